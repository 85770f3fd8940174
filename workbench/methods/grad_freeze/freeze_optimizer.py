"""An optimizer that trains, step by step, only the parameters of one nested group.

The moments of one step, in the order in which a training loop meets them::

    index = optimizer.begin_step()     # toggles requires_grad_: autograd now skips what is frozen
    loss = criterion(model(x), y)      # the frozen front saves no activations
    loss.backward()                    # ... and computes no gradients
    optimizer.step()                   # updates the group, moves on in the strategy, begins the next step
    optimizer.zero_grad()

``begin_step`` may be left out: ``step`` begins the following step itself. An engine that decides about the update
on its own (overflow, accumulation) calls ``active_optimizer.step()`` and ``advance()`` instead of ``step``.

Two ways to keep optimizer state: ``"shared"`` (default) is one optimizer, for which a frozen parameter keeps weight and
momentum; ``"per_group"`` is one optimizer per group, of the same class and arguments, with its own buffers and step
count, as in MindSpore 2.7.0 (``mindspore/python/mindspore/boost/grad_freeze.py``).
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import torch
from torch import Tensor
from torch.utils.hooks import RemovableHandle

from workbench.core.step_optimizer import held_parameters
from workbench.core.torch_internals import mark_stepped, register_step_hook, step_hooks
from workbench.core.wrapped_model import allow_one_graph_per_group as allow_one_graph_per_group
from workbench.methods.grad_freeze.group_arguments import (
    NOT_AN_OPTION,
    Groups,
    read_groups,
    read_rates,
    read_strategy,
    require_no_own_options,
    split_learning_rates,
)
from workbench.methods.parameter_groups import (
    checked_optimizer,
    part_of_group,
    rebuild_optimizer,
    register_step_hooks,
)
from workbench.methods.protocol import GroupSchedule

FreezeState = Literal["shared", "per_group"]

EVERYTHING = -1  # the "group" in force while nothing is frozen


class FreezeOpt(GroupSchedule, torch.optim.Optimizer):
    """Optimizer for gradient freezing: each step updates one group of parameters and leaves the rest untouched.

    It is a ``torch.optim.Optimizer`` whose ``param_groups`` are those of ``opt``, so learning-rate schedulers, gradient
    scalers and checkpoints work with it as with ``opt``; with ``state="per_group"`` every change of an option (such as
    the learning rate) reaches all group optimizers. Parameters that do not require gradients at construction stay
    frozen for good.

    Args:
        opt: The optimizer to apply. Keep using this object only through ``FreezeOpt``.
        train_parameter_groups: Per group a list of parameters, or of parameter-group dicts. Options in them that
            differ from those of ``opt`` need ``state="per_group"`` and stay as given, whatever a scheduler does.
            None: one group with everything.
        train_strategy: Group index of each step, a list or tuple of int or a 1-D int32 tensor; starts again after the
            last entry. None: the groups take turns.
        state: ``"shared"`` or ``"per_group"``, see the module's text.
        learning_rates: Learning rate of each step (list or 1-D tensor), dealt out by :func:`split_learning_rates`;
            past its end the last rate stays (upstream fails there on a CPU). Only with ``state="per_group"``;
            otherwise use a scheduler.

    Raises:
        ValueError: When a strategy comes without groups or points outside them, a group is empty or holds a parameter
            that ``opt`` does not, or options contradict ``state``.

    Example:
        >>> layers = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 1))
        >>> groups = [list(layers.parameters()), list(layers[1].parameters())]
        >>> optimizer = FreezeOpt(torch.optim.SGD(layers.parameters(), lr=0.1), groups, [0, 1])
        >>> optimizer.begin_step(), optimizer.n_groups
        (0, 2)
    """

    def __init__(
        self,
        opt: torch.optim.Optimizer,
        train_parameter_groups: Sequence[Sequence[Any]] | None = None,
        train_strategy: Sequence[int] | Tensor | None = None,
        *,
        state: FreezeState = "shared",
        learning_rates: Sequence[float] | Tensor | None = None,
    ) -> None:
        checked_optimizer("opt", opt)
        if isinstance(opt, FreezeOpt):
            raise TypeError("`opt` is a FreezeOpt already; wrap the optimizer inside it instead")
        if state not in {"shared", "per_group"}:
            raise ValueError(f'`state` must be "shared" or "per_group", got {state!r}')
        if state == "shared" and isinstance(opt, torch.optim.LBFGS):
            raise ValueError(
                "LBFGS moves parameters without gradients too, so freezing would not hold; "
                'use state="per_group" or another optimizer'
            )
        if state == "per_group" and hasattr(opt, "eval"):
            raise ValueError(
                f"{type(opt).__name__} averages weights, of which each group's optimizer would see its own steps only; "
                'use state="shared"'
            )
        if train_parameter_groups is None and train_strategy is not None:
            raise ValueError("`train_strategy` needs `train_parameter_groups`, got None")
        super().__init__(opt.param_groups, opt.defaults)
        self._inner = opt
        self._relink()
        entries = read_groups(train_parameter_groups, opt)
        self._members = [tuple(p for params, _ in group for p in params) for group in entries]
        self._strategy = None if train_strategy is None else read_strategy(train_strategy, len(entries))
        self._position = 0
        self._updates = [0] * len(entries)
        # Only these are ever toggled; what the user froze stays frozen.
        self._toggled = frozenset(parameter for parameter in held_parameters(opt) if parameter.requires_grad)
        self._trained = [self._toggled.intersection(members) for members in self._members]
        self._applied = EVERYTHING
        self._optimizers: list[torch.optim.Optimizer] = []
        self._sources: list[list[tuple[int, frozenset[str]]]] = []
        self._rates: list[list[float]] | None = None
        if state == "per_group":
            self._build_group_optimizers(entries)
        else:
            require_no_own_options(entries, opt)
        if learning_rates is not None:
            if state == "shared":
                raise ValueError('`learning_rates` needs state="per_group"; with one optimizer use a scheduler')
            self._rates = split_learning_rates(read_rates(learning_rates), self._strategy, len(entries))

    @property
    def n_groups(self) -> int:
        """Number of groups."""
        return len(self._members)

    @property
    def strategy(self) -> list[int] | None:
        """Group index of each step, or None when the groups take turns."""
        return None if self._strategy is None else list(self._strategy)

    @property
    def position(self) -> int:
        """Index in the strategy (or, without one, of the group) that the coming update will use."""
        return self._position

    @property
    def group_index(self) -> int:
        """Group of the coming update."""
        return self._position if self._strategy is None else self._strategy[self._position]

    @property
    def group_learning_rates(self) -> list[list[float]] | None:
        """The rates dealt out to each group, or None when no list of rates was given."""
        return None if self._rates is None else [list(rates) for rates in self._rates]

    @property
    def active_optimizer(self) -> torch.optim.Optimizer:
        """The torch optimizer that will apply the coming update, with its options up to date."""
        return self.optimizer_of(self.group_index)

    def group_parameters(self, index: int) -> list[Tensor]:
        """Return the parameters of a group in the order its optimizer holds them."""
        return list(self._members[index])

    def optimizer_of(self, index: int) -> torch.optim.Optimizer:
        """Return the torch optimizer of a group (the inner one when state is shared), with its options up to date."""
        self._relink()
        if not self._optimizers:
            return self._inner
        optimizer = self._optimizers[index]
        for group, (source, own) in zip(optimizer.param_groups, self._sources[index], strict=True):
            for key, value in self.param_groups[source].items():
                if key not in own:
                    group[key] = value
        if self._rates is not None and (rates := self._rates[index]):
            for group in optimizer.param_groups:
                group["lr"] = rates[min(self._updates[index], len(rates) - 1)]
        return optimizer

    def begin_step(self) -> int:
        """Freeze for the coming update and return the index of its group (0 of GradientFreeze's freezes nothing).

        Newly frozen parameters lose their stale gradient. Calling it again before :meth:`advance` changes nothing.
        """
        index = self.group_index
        self.enter_group(index)
        return index

    def enter_group(self, index: int) -> None:
        """Freeze for a given group, whatever the strategy says. :meth:`begin_step` is the usual way."""
        if index == self._applied:
            return
        before, after = (self._toggled if i == EVERYTHING else self._trained[i] for i in (self._applied, index))
        for parameter in before - after:
            parameter.requires_grad_(False)
            parameter.grad = None  # stale: it belongs to an update that is over
        for parameter in after - before:
            parameter.requires_grad_(True)
        self._applied = index

    def unfreeze_all(self) -> contextlib.ExitStack:
        """Let every parameter require gradients, until the next :meth:`begin_step` or the end of a ``with`` block."""
        restored = contextlib.ExitStack()
        restored.callback(self.enter_group, self._applied)
        self.enter_group(EVERYTHING)
        return restored

    def check_graph(self, loss: Tensor) -> None:
        """Raise if a reentrant checkpoint would silently keep later layers from training.

        A reentrant checkpoint (``torch.utils.checkpoint.checkpoint(..., use_reentrant=True)``) hands on gradients only
        if an input of its requires them; behind a frozen front none does.

        Raises:
            RuntimeError: When a reentrant checkpoint is found in the loss's graph.
        """
        waiting, seen = [loss.grad_fn], set()
        while waiting:
            node = waiting.pop()
            if node is None or node in seen:
                continue
            seen.add(node)
            if node.name() == "CheckpointFunctionBackward":
                raise RuntimeError(
                    "grad_freeze cannot be combined with reentrant activation checkpointing: behind frozen layers "
                    "nothing in a checkpoint would be trained; call torch.utils.checkpoint.checkpoint with "
                    "use_reentrant=False, or switch `boost.grad_freeze` off"
                )
            waiting.extend(before for before, _ in node.next_functions)

    def advance(self) -> None:
        """Note that the update of this step was attempted (also when it was skipped) and move on in the strategy."""
        self._updates[self.group_index] += 1
        mark_stepped(self)  # engines step active_optimizer, not us
        steps = self.n_groups if self._strategy is None else len(self._strategy)
        self._position = (self._position + 1) % steps

    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Update the group of this step, move on in the strategy and freeze for the next step, as torch's ``step``.

        Gradients that frozen parameters may carry (no ``begin_step`` before the backward pass, or ``requires_grad``
        changed from outside) are dropped, so frozen stays frozen.
        """
        index = self.begin_step()
        for parameter in self._toggled - self._trained[index]:
            parameter.grad = None
        loss = self.active_optimizer.step(closure)
        self.advance()
        # Without this a loop that never calls begin_step would run the next backward pass with this step's group.
        self.begin_step()
        return loss

    def register_step_pre_hook(self, hook: Callable[..., Any]) -> RemovableHandle:
        """Register a hook of torch's that runs before each step, with the optimizer that steps as first argument."""
        return register_step_hook(self._optimizers or [self._inner], hook, before=True)

    def register_step_post_hook(self, hook: Callable[..., Any]) -> RemovableHandle:
        """Register a hook of torch's that runs after each step, with the optimizer that stepped as first argument."""
        return register_step_hook(self._optimizers or [self._inner], hook, before=False)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Refuse: groups are fixed once freezing is set up.

        Raises:
            RuntimeError: Always, after construction.
        """
        if "_inner" in self.__dict__:
            raise RuntimeError(
                "FreezeOpt cannot take another parameter group: the strategy would not know when to train it; "
                "add it to the inner optimizer before wrapping"
            )
        super().add_param_group(param_group)

    def state_dict(self) -> dict[str, Any]:
        """Return the inner optimizer's state dict and under ``freeze`` what else is needed to continue exactly.

        ``position``; ``strategy`` (1-D int32 tensor or None); ``group_sizes`` (parameters per group); ``updates``
        (attempted, per group); ``optimizers`` (their state dicts, empty when state is shared); ``learning_rates`` (per
        group, or None).
        """
        self._relink()
        strategy = None if self._strategy is None else torch.tensor(self._strategy, dtype=torch.int32)
        freeze = {
            "position": self._position,
            "strategy": strategy,
            "group_sizes": [len(members) for members in self._members],
            "updates": list(self._updates),
            "optimizers": [self.optimizer_of(i).state_dict() for i in range(len(self._optimizers))],
            "learning_rates": self.group_learning_rates,
        }
        return {**self._inner.state_dict(), "freeze": freeze}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Continue from a saved state; call :meth:`begin_step` (or :meth:`step`) next, parameters are not toggled here.

        The saved strategy replaces the present one, which may have been drawn at random.

        Raises:
            ValueError: When it was saved by another kind of optimizer, for other groups or another ``state``.
        """
        if "freeze" not in state_dict:
            raise ValueError(
                'state_dict has no entry "freeze": it was not saved by a FreezeOpt; '
                "load it into the inner optimizer before wrapping"
            )
        freeze = state_dict["freeze"]
        sizes = [len(members) for members in self._members]
        if list(freeze["group_sizes"]) != sizes:
            raise ValueError(f"state_dict belongs to groups of {freeze['group_sizes']} parameters, these have {sizes}")
        if len(freeze["optimizers"]) != len(self._optimizers):
            saved = "per_group" if freeze["optimizers"] else "shared"
            raise ValueError(f'state_dict was saved with state="{saved}"; build this FreezeOpt the same way')
        self._inner.load_state_dict({key: value for key, value in state_dict.items() if key != "freeze"})
        for optimizer, saved_state in zip(self._optimizers, freeze["optimizers"], strict=True):
            optimizer.load_state_dict(saved_state)
        strategy = freeze["strategy"]
        self._strategy = None if strategy is None else tuple(torch.as_tensor(strategy).tolist())
        self._position = int(freeze["position"])
        self._updates = list(freeze["updates"])
        rates = freeze["learning_rates"]
        self._rates = None if rates is None else [list(group) for group in rates]
        self._relink()

    def __getattr__(self, name: str) -> Any:
        # What an optimizer of averaged weights (Schedule-Free) has in addition: train(), eval(), takes_schedule.
        if name in {"train", "eval", "takes_schedule"}:
            return getattr(self.__dict__["_inner"], name)
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def __getstate__(self) -> dict[str, Any]:
        kept = super().__getstate__()
        own = ("_inner", "_members", "_strategy", "_position", "_updates", "_toggled", "_trained", "_applied")
        kept.update({key: self.__dict__[key] for key in (*own, "_optimizers", "_sources", "_rates")})
        # torch drops hooks when an optimizer is copied; a method that acts through one must survive a copy of ours.
        kept["_step_hooks"] = [step_hooks(optimizer) for optimizer in (self._inner, *self._optimizers)]
        return kept

    def __setstate__(self, state: dict[str, Any]) -> None:
        hooks = state.pop("_step_hooks")
        super().__setstate__(state)
        for optimizer, registered in zip((self._inner, *self._optimizers), hooks, strict=True):
            register_step_hooks(optimizer, registered)
        self._relink()

    def __repr__(self) -> str:
        steps = "taking turns" if self._strategy is None else f"step {self._position} of {len(self._strategy)}"
        mode = "per_group" if self._optimizers else "shared"
        return f"FreezeOpt({type(self._inner).__name__}, {self.n_groups} groups, {steps}, state={mode!r})"

    def _relink(self) -> None:
        # The inner optimizer replaces these two objects whenever it loads a state.
        self.param_groups = self._inner.param_groups
        self.state = self._inner.state

    def _build_group_optimizers(self, entries: Groups) -> None:
        for index, group in enumerate(entries):
            fresh: list[dict[str, Any]] = []
            sources: list[tuple[int, frozenset[str]]] = []
            for (params, options), (source, original) in itertools.product(group, enumerate(self.param_groups)):
                part = part_of_group(original, set(params)) | options
                if part["params"]:
                    part.pop("initial_lr", None)
                    # An option that merely repeats the optimizer's own still follows it (and its scheduler).
                    own = {key for key, value in options.items() if original.get(key) != value} | set(NOT_AN_OPTION)
                    fresh.append(part)
                    sources.append((source, frozenset(own)))
            optimizer = rebuild_optimizer(self._inner, fresh, copy_state=True)
            self._optimizers.append(optimizer)
            self._sources.append(sources)
            self._members[index] = tuple(held_parameters(optimizer))
