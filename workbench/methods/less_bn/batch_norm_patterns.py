"""Which BatchNorms MindSpore 2.7 removes: its patterns, as chains of operations read backwards.

MindSpore finds removable BatchNorms while it compiles the training graph
(mindspore/ccsrc/frontend/optimizer/irpass/less_batch_normalization.cc). It starts at every Add, ReLU6, MaxPool and
argument list of a concatenation whose arguments are all results of operations, and compares the operations before it,
always along the first input, with a list of chains. What this means:

* argument order matters (main + shortcut is found, shortcut + main is not);
* only convolutions without bias match, because the bias is an operation of its own;
* a concatenation matches only if its first or last argument is again a concatenation (pairwise style);
* the BatchNorm after a sum is removed if ReLU6 follows (MobileNetV2: also that of the last 1x1 convolution), and the
  one after a concatenation if ReLU, convolution and MaxPool follow (DenseNet with max-pool transitions).

Notation of :data:`PATTERNS`: each pattern is one chain per argument; operations are named from the start backwards. A
minus sign marks places where a BatchNorm is removed, ``?`` is any operation. (A BatchNorm of MindSpore returns a tuple,
so one operation that picks the result stands between it and its reader: ``item`` below.)
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from torch import nn

from workbench.core.torch_internals import ConvNd
from workbench.methods.less_bn.network_graph import Step

STARTS = {"add", "relu6", "maxpool", "arguments"}

PATTERNS: tuple[tuple[str, ...], ...] = (
    # residual bottleneck: with downsample, with identity, first block after the stem's pooling
    ("? bn conv relu ?- bn- conv- relu- ?- bn- conv- relu-", "?- bn- conv-"),
    ("? bn conv relu ?- bn- conv- relu- ?- bn- conv- relu-", "relu"),
    ("? bn conv relu ?- bn- conv- relu- ?- bn- conv-", "?- bn- conv-"),
    # residual basic block: with downsample, first block after the stem's pooling, with identity
    ("? bn conv relu ?- bn- conv- relu", "?- bn- conv-"),
    ("? bn conv relu ?- bn- conv-", "maxpool"),
    ("? bn conv relu ?- bn- conv- relu", "relu"),
    # inverted residual: skip after a block without skip, convolution after a sum, skip after skip, head, no skip
    ("?", "? bn conv relu6 ? bn conv- relu6- ?- bn- conv ? bn"),
    ("?- bn- conv- add-",),
    ("add", "? bn conv relu6 ? bn conv- relu6- ?- bn- conv add"),
    ("mean- relu6- ?- bn- conv-",),
    ("? bn conv relu6- ?- bn- conv- ? bn conv relu6 ? bn conv relu6 ? bn",),
    # dense layer: (x, new), transition with max pooling, (new, x), and two that follow a max-pool transition
    ("concat", "conv relu ? bn conv relu- ?- bn- concat-"),
    ("conv- relu- ?- bn- concat-",),
    ("conv relu ? bn conv relu- ?- bn- concat-", "concat"),
    ("conv- relu- ?- bn- conv- relu ? bn maxpool", "concat"),
    ("concat", "conv- relu- ?- bn- conv- relu ? bn maxpool"),
)


def removable_by_reference(steps: Sequence[Step]) -> tuple[str, ...]:
    """Return the BatchNorm modules that MindSpore 2.7 removes; one called several times only if every call may go."""
    output = _lower(steps)
    calls = [step.name for step in steps if step.kind == "bn"]
    removed: list[str] = []
    # Until nothing changes, as the compiler does: a removal can let another chain match.
    while found := _one_pass(output):
        removed.extend(found)
    return tuple(dict.fromkeys(name for name in calls if removed.count(name) == calls.count(name)))


@dataclass(eq=False)
class _Operation:
    kind: str
    inputs: list[_Operation] = field(default_factory=list)
    name: str = ""


def _lower(steps: Sequence[Step]) -> _Operation:
    """Translate steps into MindSpore's operations and return the one that ends the network."""
    result: dict[Step, _Operation] = {}
    operation = _Operation("output")
    for step in steps:
        inputs = [result[source] for source in step.inputs]
        is_conv2d = isinstance(step.module, nn.Conv2d)
        kind = ("conv" if is_conv2d else "other") if step.kind == "conv" else step.kind
        if kind == "cat":
            operation = _Operation("concat", [_Operation("arguments", inputs)])
        elif kind == "bn":
            operation = _Operation("item", [_Operation("bn", inputs, step.name)])
        else:
            operation = _Operation(kind, inputs)
        if step.kind == "conv" and isinstance(step.module, ConvNd) and step.module.bias is not None:
            operation = _Operation("bias", [operation])
        result[step] = operation
    return operation


def _backwards(output: _Operation) -> Iterator[_Operation]:
    """Walk from the output to the inputs, breadth first; what an operation reads may change once it was yielded."""
    waiting, seen = deque([output]), {output}
    while waiting:
        operation = waiting.popleft()
        yield operation
        for source in operation.inputs:
            if source not in seen:
                seen.add(source)
                waiting.append(source)


def _one_pass(output: _Operation) -> list[str]:
    """Remove what matches on the way backwards, and return the names of the BatchNorms that went."""
    readers: dict[_Operation, list[_Operation]] = {}
    for operation in _backwards(output):
        for source in operation.inputs:
            readers.setdefault(source, []).append(operation)
    removed: list[str] = []
    for operation in _backwards(output):
        for gone in _match(operation):
            removed.extend([gone.name] if gone.kind == "bn" else [])
            _bypass(gone, readers)
    return removed


def _bypass(operation: _Operation, readers: dict[_Operation, list[_Operation]]) -> None:
    source = operation.inputs[0]
    for reader in readers.pop(operation, []):
        reader.inputs = [source if one is operation else one for one in reader.inputs]
        readers.setdefault(source, []).append(reader)


def _match(start: _Operation) -> list[_Operation]:
    """Return what the first matching pattern removes before this operation."""
    if start.kind not in STARTS or any(source.kind == "input" for source in start.inputs):
        return []
    for pattern in PATTERNS:
        removed = _match_pattern(start, [chain.split() for chain in pattern])
        if removed is not None:
            return removed  # also an empty list: upstream stops at the first pattern that matches
    return []


def _match_pattern(start: _Operation, chains: list[list[str]]) -> list[_Operation] | None:
    """Compare the chains with the arguments in turn; None if they do not match.

    As upstream, the place reached in a chain is kept when an argument ends it: the next argument continues there.
    """
    places = [(place, index) for index, chain in enumerate(chains) for place in chain]
    removed: list[_Operation] = []
    reached = 0
    for argument in start.inputs:
        operation: _Operation | None = argument
        while operation is not None and operation.kind != "input" and reached < len(places):
            place, chain = places[reached]
            if place.endswith("-") and operation.kind in {"bn", "item"} and operation not in removed:
                removed.append(operation)
            if place.rstrip("-") not in {"?", operation.kind}:
                break
            reached += 1
            if reached < len(places) and places[reached][1] != chain:
                break
            operation = operation.inputs[0] if operation.inputs else None
        if reached == len(places):
            return removed
    return None
