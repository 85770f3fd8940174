"""The graph of a network as the BatchNorm rules see it, and the structural rule.

:func:`read_graph` traces a network with torch.fx down to its layers and returns its steps in execution order.
:func:`removable_by_structure` reads from them which BatchNorms LessBN may remove.

The rule
--------
A BatchNorm may go if another BatchNorm that stays takes over its work: the scale of its channels is set again before
it can reach a sum, a concatenation or the output. Words: a *join* is an addition of two signals or a concatenation of
several; a signal *escapes* if it reaches a join or the output without meeting another BatchNorm.

1. *Residual branch.* Between a fork and the addition that ends it, with no other join inside: every BatchNorm that
   does not escape. So the last one before the addition stays and keeps the size of the sum in hand.
   (ResNet basic: bn1. Bottleneck: bn1 and bn2. MobileNetV2 with skip: the expansion BatchNorm.)
2. *Shortcut.* Where the main branch has at least two convolutions and ends in a BatchNorm that stays, the single
   BatchNorm of a one-convolution shortcut (downsample). Its input is the previous block's normalised sum.
3. *Inverted bottleneck without skip.* The BatchNorm of an expansion: a convolution that reads a linear signal (a
   BatchNorm or an addition, no activation) and is followed by an activation, a depthwise convolution and its
   BatchNorm.
4. *Dense layer.* A BatchNorm that reads a concatenation and does not escape (norm1 of every DenseNet layer but the
   first of a block, which reads a pooled map; norm2 and the transitions escape).

Exceptions, each read off the same networks:

* behind a depthwise convolution it stays: no channel mixing evens out the scales of the channels;
* the first one of a path stays: with no BatchNorm before it, nothing bounds what comes in;
* at most two in a row go, as in the bottleneck block; in a longer branch the third one stays;
* a module that is called several times goes only if every call may go.

Operand order, ``+`` or ``torch.add``, and the style of concatenation do not enter. A plain chain of layers (VGG) has no
join, hence nothing is removed.

Reference: Brock et al., "Characterizing signal propagation to close the performance gap in unnormalized ResNets",
ICLR 2021, arXiv:2101.08692, section 3, on how the variance grows along a residual path and what resets it.
"""

from __future__ import annotations

import inspect
import operator
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx, nn
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import _ConvNd

__all__ = ["Step", "TraceError", "read_graph", "removable_by_structure"]

LONGEST_RUN = 2  # BatchNorms removed in a row; the bottleneck block of ResNet-50 is the longest published case


class TraceError(RuntimeError):
    """torch.fx cannot trace the model; the message says why in one line."""


@dataclass(eq=False)
class Step:
    """One layer call or operation of a traced network.

    Attributes:
        kind: ``input``, ``constant``, ``output``, ``conv``, ``linear``, ``bn``, ``relu``, ``relu6``, ``maxpool``,
            ``mean``, ``add`` (of two signals), ``cat`` (of two or more signals) or ``other``.
        inputs: Steps it reads, in the order of the arguments.
        name: Dotted name of the module, empty for an operation.
        module: The module, if it is a layer.
        position: Index in execution order.
    """

    kind: str
    inputs: list[Step] = field(default_factory=list)
    name: str = ""
    module: nn.Module | None = None
    position: int = 0

    @property
    def depthwise(self) -> bool:
        """Whether this is a convolution in which no channel sees another."""
        layer = self.module
        return isinstance(layer, _ConvNd) and layer.groups > 1 and layer.groups == layer.in_channels

    @property
    def is_join(self) -> bool:
        """Whether several signals meet here."""
        return self.kind in {"add", "cat"}


def read_graph(model: nn.Module) -> list[Step]:
    """Trace the model and return its steps in execution order, the output last.

    Args:
        model: Network whose control flow does not depend on data. Its parameters and buffers are not touched.

    Raises:
        TraceError: When torch.fx cannot trace it.
    """
    graph = _trace(model)
    modules = dict(model.named_modules(remove_duplicate=False))
    first_names = {id(module): name for name, module in model.named_modules()}
    steps: list[Step] = []
    step_of: dict[fx.Node, Step] = {}
    for node in graph.nodes:
        read = [step_of[argument] for argument in _argument_nodes(node) if argument in step_of]
        module = modules.get(str(node.target)) if node.op == "call_module" else None
        kind = _kind_of_layer(module) if module is not None else _kind_of_operation(node)
        if kind == "cat":
            read = [step for step in read if step.kind != "constant"]
        if kind == "identity" or (kind == "cat" and len(read) == 1):  # torchvision's first dense layer concatenates one
            step_of[node] = read[0]
            continue
        if kind == "add" and (len(read) != 2 or any(step.kind == "constant" for step in read)):
            kind = "other"  # a bias or a position embedding, not a second signal
        step = Step(kind, read, first_names[id(module)] if module is not None else "", module, len(steps))
        step_of[node] = step
        steps.append(step)
    return steps


def removable_by_structure(steps: Sequence[Step], *, input_is_normalized: bool = False) -> tuple[str, ...]:
    """Return the names of the BatchNorm modules that the rule of this module lets go, in execution order.

    Args:
        steps: Steps of one network, from :func:`read_graph`.
        input_is_normalized: Whether a BatchNorm stands before the input, when ``steps`` are only a part of a network.
    """
    flow = _Flow(steps)
    candidates = {
        norm
        for norm in [*_branch_norms(flow), *_shortcut_norms(flow), *_expansion_norms(flow), *_dense_norms(flow)]
        if not (norm.inputs and norm.inputs[0].depthwise) and (input_is_normalized or flow.has_norm_before(norm))
    }
    # From the end backwards: how many go in a row until one that stays.
    run: dict[Step, int] = {}
    for norm in sorted(flow.norms, key=lambda step: step.position, reverse=True):
        following = max((run[after] for after in flow.next_norms(norm)), default=0)
        if norm in candidates and following >= LONGEST_RUN:
            candidates.discard(norm)
        run[norm] = following + 1 if norm in candidates else 0
    calls: dict[str, list[Step]] = {}
    for norm in flow.norms:
        calls.setdefault(norm.name, []).append(norm)
    return tuple(name for name, norms in calls.items() if all(norm in candidates for norm in norms))


class _Flow:
    """Who reads whom: ancestors as bit masks over positions, users as lists."""

    def __init__(self, steps: Sequence[Step]) -> None:
        self.steps = steps
        self.norms = [step for step in steps if step.kind == "bn"]
        self.users: dict[Step, list[Step]] = {step: [] for step in steps}
        self.ancestors: list[int] = []
        for step in steps:
            mask = 1 << step.position
            for source in step.inputs:
                mask |= self.ancestors[source.position]
                self.users[source].append(step)
            self.ancestors.append(mask)
        self._norm_mask = sum(1 << norm.position for norm in self.norms)
        self._signal_mask = sum(1 << step.position for step in steps if step.kind != "constant")

    def has_norm_before(self, norm: Step) -> bool:
        return bool(self.ancestors[norm.position] & self._norm_mask & ~(1 << norm.position))

    def exclusive(self, one: Step, other: Step) -> set[Step]:
        """Steps that lead to ``one`` and not to ``other``."""
        return self.in_mask(self.ancestors[one.position] & ~self.ancestors[other.position])

    def common_signal(self, one: Step, other: Step) -> bool:
        return bool(self.ancestors[one.position] & self.ancestors[other.position] & self._signal_mask)

    def in_mask(self, mask: int) -> set[Step]:
        found = set()
        while mask:
            lowest = mask & -mask
            found.add(self.steps[lowest.bit_length() - 1])
            mask ^= lowest
        return found

    def reached(self, start: Step, stops: Callable[[Step], bool]) -> Iterator[Step]:
        """Steps after ``start``, each once; a step for which ``stops`` holds is given but not passed."""
        waiting, seen = list(self.users[start]), set()
        while waiting:
            step = waiting.pop()
            if step in seen:
                continue
            seen.add(step)
            yield step
            if not stops(step):
                waiting.extend(self.users[step])

    def next_norms(self, norm: Step) -> list[Step]:
        return [step for step in self.reached(norm, _stops_signal) if step.kind == "bn"]

    def escapes(self, norm: Step) -> bool:
        return any(step.is_join or step.kind == "output" for step in self.reached(norm, _stops_signal))

    def only_user(self, step: Step) -> Step | None:
        users = self.users[step]
        return users[0] if len(users) == 1 else None


def _stops_signal(step: Step) -> bool:
    return step.kind == "bn" or step.is_join or step.kind == "output"


def _branches(flow: _Flow) -> Iterator[tuple[Step, Step, set[Step], set[Step]]]:
    """Every residual addition, from both sides: addition, operand, steps of its branch, steps of the other branch."""
    for addition in flow.steps:
        if addition.kind != "add":
            continue
        one, other = addition.inputs
        if one is other or not flow.common_signal(one, other):
            continue
        sides = flow.exclusive(one, other), flow.exclusive(other, one)
        if any(step.is_join for side in sides for step in side):
            continue  # a feature pyramid or a U-Net: what lies between is no single branch
        yield addition, other, sides[0], sides[1]
        yield addition, one, sides[1], sides[0]


def _n_convolutions(steps: Iterable[Step]) -> int:
    return sum(step.kind == "conv" for step in steps)


def _branch_norms(flow: _Flow) -> Iterator[Step]:
    for _, _, branch, _ in _branches(flow):
        if _n_convolutions(branch) >= 2:
            yield from (step for step in branch if step.kind == "bn" and not flow.escapes(step))


def _shortcut_norms(flow: _Flow) -> Iterator[Step]:
    for addition, shortcut_end, branch, shortcut in _branches(flow):
        norms = [step for step in shortcut if step.kind == "bn"]
        if norms != [shortcut_end] or _n_convolutions(shortcut) != 1 or flow.only_user(shortcut_end) is not addition:
            continue
        source = shortcut_end.inputs[0]
        main_ends_normalized = any(
            addition in flow.reached(step, lambda after: _stops_signal(after) or after.kind in {"conv", "linear"})
            for step in branch
            if step.kind == "bn"
        )
        if source.kind == "conv" and _n_convolutions(branch) >= 2 and main_ends_normalized:
            yield shortcut_end


def _expansion_norms(flow: _Flow) -> Iterator[Step]:
    for norm in flow.norms:
        expansion = norm.inputs[0]
        if expansion.kind != "conv" or expansion.depthwise or flow.only_user(expansion) is not norm:
            continue
        if expansion.inputs[0].kind not in {"bn", "add"}:
            continue
        activation = flow.only_user(norm)
        if activation is None or activation.kind not in {"relu", "relu6", "other"}:
            continue
        depthwise = flow.only_user(activation)
        if depthwise is None or not depthwise.depthwise:
            continue
        after = flow.only_user(depthwise)
        if after is not None and after.kind == "bn":
            yield norm


def _dense_norms(flow: _Flow) -> Iterator[Step]:
    for norm in flow.norms:
        if norm.inputs[0].kind == "cat" and not flow.escapes(norm) and flow.next_norms(norm):
            yield norm


ADDITIONS = {operator.add, operator.iadd, torch.add, "add", "add_"}
CONCATENATIONS = {torch.cat, torch.concat, torch.concatenate}
MEANS = {torch.mean, "mean"}
RELUS = {F.relu, F.relu_, torch.relu, torch.relu_, "relu", "relu_"}
MAX_POOLS = {F.max_pool1d, F.max_pool2d, F.max_pool3d, torch.max_pool1d, torch.max_pool2d, torch.max_pool3d}


def _kind_of_operation(node: fx.Node) -> str:
    if node.op in {"placeholder", "get_attr", "output"}:
        return {"placeholder": "input", "get_attr": "constant", "output": "output"}[node.op]
    target = node.target
    if target in ADDITIONS:
        return "add"
    if target in CONCATENATIONS:
        return "cat"
    if target in RELUS:
        return "relu"
    if target is F.relu6:
        return "relu6"
    if target in MAX_POOLS:
        return "maxpool"
    return "mean" if target in MEANS else "other"


def _kind_of_layer(module: nn.Module) -> str:
    kinds: tuple[tuple[type[nn.Module] | tuple[type[nn.Module], ...], str], ...] = (
        (nn.Identity, "identity"),
        (_BatchNorm, "bn"),
        (_ConvNd, "conv"),
        (nn.Linear, "linear"),
        (nn.ReLU6, "relu6"),  # before ReLU only for clarity: ReLU6 is a Hardtanh
        (nn.ReLU, "relu"),
        ((nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d), "maxpool"),
    )
    return next((kind for cls, kind in kinds if isinstance(module, cls)), "other")


def _argument_nodes(node: fx.Node) -> list[fx.Node]:
    """Nodes among the arguments, in order and with repetitions (``all_input_nodes`` would drop those)."""
    found: list[fx.Node] = []

    def collect(argument: fx.Node) -> fx.Node:
        found.append(argument)
        return argument

    fx.map_arg((node.args, node.kwargs), collect)
    return found


class _LayerTracer(fx.Tracer):
    """Tracer that keeps a user's own subclasses of convolution, BatchNorm and Linear as one node each."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return isinstance(m, (_BatchNorm, _ConvNd, nn.Linear)) or super().is_leaf_module(m, module_qualified_name)


def _trace(model: nn.Module) -> fx.Graph:
    # Optional arguments keep their defaults: `mask=None` must stay None for `if mask is not None`.
    optional: dict[str, Any] = {
        name: parameter.default
        for name, parameter in inspect.signature(model.forward).parameters.items()
        if parameter.default is not inspect.Parameter.empty
    }
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about the symbolic tensors of the trace, nothing the user can act on
            return _LayerTracer().trace(model, concrete_args=optional or None)
    except Exception as error:  # any error of the user's forward may come from a symbolic tensor
        reason = " ".join(str(error).split()) or type(error).__name__
        raise TraceError(f"torch.fx cannot trace {type(model).__name__}: {reason[:200]}") from error
