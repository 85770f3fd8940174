"""What keeps a BatchNorm in a network, and which layer takes up one that goes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from torch import nn
from torch.nn.parameter import is_lazy

from workbench.core.torch_internals import BatchNorm
from workbench.methods.less_bn.batch_norm_folding import can_fold_into
from workbench.methods.less_bn.network_graph import NetworkGraph, Step


def is_unset(norm: BatchNorm) -> bool:
    """Return whether a lazy BatchNorm has no parameters yet."""
    return any(is_lazy(tensor) for tensor in (norm.weight, norm.running_mean) if tensor is not None)


def reason_to_keep(
    norm: BatchNorm, rest: tuple[str, ...] | None, model: nn.Module, read_elsewhere: frozenset[str]
) -> str:
    """Return why a BatchNorm cannot be taken out of a network; empty where it can.

    ``rest`` are the children that a call of it runs after it has normalised; None where a call does something else.
    """
    own = {id(tensor) for tensor in [*norm.parameters(), *norm.buffers()]}
    named = [*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False)]
    names = [tensor_name for tensor_name, tensor in named if id(tensor) in own]
    if not read_elsewhere.isdisjoint(names):
        return "the model reads its weight or statistics outside of its call"
    parts = {id(part) for part in norm.modules()}
    if any(id(model.get_submodule(tensor_name.rpartition(".")[0])) not in parts for tensor_name in names):
        return "another module shares its parameters"
    if is_unset(norm):
        return "it has no parameters before the first batch"
    if rest is None:
        return f"a call of this {type(norm).__name__} does something other than normalise and run its children"
    if norm.running_mean is None and norm.affine and not bool((norm.weight == 1).all() and (norm.bias == 0).all()):
        return "it keeps no running statistics and normalises by the batch in evaluation, too"
    return ""


def read_elsewhere_in(graphs: Sequence[NetworkGraph]) -> frozenset[str]:
    """Return the tensors that a network reads outside of the calls of their modules, by name."""
    return frozenset[str]().union(*(graph.read_elsewhere for graph in graphs))


def layers_before(model: nn.Module, graphs: Sequence[NetworkGraph]) -> dict[str, str]:
    """Return by BatchNorm the layer that can take it up: it alone reads the output, and nothing else the weight."""
    if len(graphs) < 2:  # without what the network does in training nothing is promised
        return {}
    modules = dict(model.named_modules())
    n_holders = Counter(id(p) for module in modules.values() for p in module.parameters(recurse=False))
    elsewhere = read_elsewhere_in(graphs)
    read = {id(tensor) for name, tensor in model.named_parameters(remove_duplicate=False) if name in elsewhere}
    before: dict[str, str] = {}
    found = [_pairs_of(graph.steps) for graph in graphs]
    for norm, layer in found[0].items():
        # A layer may be out of use in training (a dropped block), but must not be used otherwise.
        if any(layer in pairs.values() and pairs.get(norm) != layer for pairs in found[1:]):
            continue
        n_calls = (sum(step.module is not None and step.name == layer for step in graph.steps) for graph in graphs)
        if any(n > (norm in pairs) for n, pairs in zip(n_calls, found, strict=True)):
            continue
        shared = any(n_holders[id(p)] > 1 or id(p) in read for p in modules[layer].parameters(recurse=False))
        target = modules[norm]
        if not shared and isinstance(target, BatchNorm) and can_fold_into(modules[layer], target):
            before[norm] = layer
    return before


def _pairs_of(steps: Sequence[Step]) -> dict[str, str]:
    """BatchNorm -> the layer whose output it alone reads, where both are called exactly once."""
    readers = Counter(id(source) for step in steps for source in step.inputs)
    calls = Counter(step.name for step in steps if step.module is not None)
    return {
        step.name: source.name
        for step in steps
        if step.kind == "bn" and step.inputs and calls[step.name] == 1
        for source in step.inputs[:1]
        if source.module is not None and readers[id(source)] == 1 and calls[source.name] == 1
    }
