"""Naming, grouping and regrouping of parameters: shared ground for every method that treats layers differently.

A *parameter group* is a dictionary as ``torch.optim`` uses it: ``params`` (list of tensors), optionally ``param_names``
(list of str), and options such as ``lr``. A *nested group* is a suffix of the ordered parameter list.

The grouping rule is that of MindSpore 2.7.0 (``mindspore.boost``, ``split_parameters_groups``), seen from outside.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import compress
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from workbench.core.arguments import checked_count
from workbench.core.step_optimizer import StepOptimizer
from workbench.core.torch_internals import step_hooks
from workbench.core.wrapped_model import plain_name as plain_name

CHUNK_FULL = 3  # parameters: a convolution and the two of its normalization


def checked_optimizer(name: str, value: object) -> Optimizer:
    """Return a torch optimizer: TypeError when it is something else."""
    if not isinstance(value, Optimizer):
        raise TypeError(f"`{name}` must be a torch.optim.Optimizer, got {type(value).__name__}")
    return value


def named_trainable_parameters(network: nn.Module) -> list[tuple[str, nn.Parameter]]:
    """Return plain name and parameter of what requires gradients, in registration order; tied ones once."""
    return [(plain_name(name), p) for name, p in network.named_parameters() if p.requires_grad]


def split_into_chunks(names: Sequence[str]) -> list[list[str]]:
    """Cut an ordered list of parameter names into chunks that stay together, roughly one layer each.

    A name that contains ``bn`` or ``bias`` always joins the running chunk. Any other name starts a new chunk once the
    running one holds three names or more. The match is by substring of the full dotted name, as upstream: a module
    called ``conv_bn1`` makes everything below it match, ``norm1`` and ``downsample.1`` do not.
    """
    chunks: list[list[str]] = []
    for name in names:
        belongs_to_a_layer = "bn" in name or "bias" in name
        if not chunks or (not belongs_to_a_layer and len(chunks[-1]) >= CHUNK_FULL):
            chunks.append([])
        chunks[-1].append(name)
    return chunks


def split_into_nested_groups(names: Sequence[str], n_groups: int) -> list[list[str]]:
    """Split ordered parameter names into nested groups: group 0 is everything, each further one a shorter suffix.

    With c chunks (see :func:`split_into_chunks`) and stride ``c // n_groups``, group i holds all names from chunk
    ``i * stride`` to the end. With fewer chunks than groups the stride is 0 and every group is the whole list.
    """
    chunks = split_into_chunks(names)
    stride = len(chunks) // checked_count("param_groups", n_groups, kind="an integer")
    return [[name for chunk in chunks[index * stride :] for name in chunk] for index in range(n_groups)]


def part_of_group(group: Mapping[str, Any], members: Collection[Tensor]) -> dict[str, Any]:
    """Return a parameter group with those of its parameters alone that are among a set of them."""
    chosen = [parameter in members for parameter in group["params"]]
    parts = {key: list(compress(group[key], chosen)) for key in ("params", "param_names") if key in group}
    return {**group, **parts}


def rebuild_optimizer(
    optimizer: Optimizer, groups: Iterable[Mapping[str, Any]], *, copy_state: bool = False
) -> Optimizer:
    """Build an optimizer of the same class and constructor arguments over other parameter groups.

    State of parameters that appear in ``groups`` moves along (or is copied, where several optimizers share parameters),
    and so do the hooks before and after a step. Options that groups leave out come from the optimizer's defaults. A
    `StepOptimizer` may build its successor itself; another whose constructor does not take its own defaults is a
    TypeError.
    """
    fresh = [dict(group, params=list(group["params"])) for group in groups]
    # One that was built from more than parameters knows from what.
    own = optimizer.over_groups(fresh) if isinstance(optimizer, StepOptimizer) else None
    rebuilt = _constructed_like(optimizer, fresh) if own is None else own
    for group in rebuilt.param_groups:
        for parameter in group["params"]:
            if parameter in optimizer.state:
                state = optimizer.state[parameter]
                rebuilt.state[parameter] = copy.deepcopy(state) if copy_state else state
    register_step_hooks(rebuilt, step_hooks(optimizer))
    return rebuilt


def register_step_hooks(
    optimizer: Optimizer, hooks: tuple[Sequence[Callable[..., Any]], Sequence[Callable[..., Any]]]
) -> None:
    """Register step hooks of another optimizer behind those there are; the same one is not registered twice.

    torch leaves hooks behind when an optimizer is copied or pickled; a method that acts through one would stop unseen.
    """
    registers = optimizer.register_step_pre_hook, optimizer.register_step_post_hook
    for register, wanted, present in zip(registers, hooks, step_hooks(optimizer), strict=True):
        for hook in wanted:
            if not any(hook is other for other in present):
                register(hook)


def _constructed_like(optimizer: Optimizer, groups: list[dict[str, Any]]) -> Optimizer:
    kind = type(optimizer)
    signature = inspect.signature(kind.__init__).parameters
    takes_any = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in signature.values())
    # AdamW keeps defaults that its constructor does not take (decoupled_weight_decay), hence the filter.
    arguments = {key: value for key, value in optimizer.defaults.items() if takes_any or key in signature}
    try:
        return kind(groups, **arguments)
    except TypeError as error:
        raise TypeError(
            f"{kind.__name__} cannot be rebuilt from parameter groups and its defaults ({error}); "
            "its constructor must take `params` first and its hyper-parameters by keyword"
        ) from error
