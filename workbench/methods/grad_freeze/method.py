"""Gradient freezing: on some steps the front layers are not trained, which saves their backward pass.

Brock, Lim, Ritchie, Weston, "FreezeOut: Accelerate Training by Progressively Freezing Layers", 2017, arXiv:1706.04983,
freezes layers progressively; here, as in MindSpore 2.7.0 (``mindspore/python/mindspore/boost/grad_freeze.py``), a
sequence says for each step how many leading groups rest, and every layer keeps being trained on the full steps.
``freeze_p`` is the share of these, as in the reference's code; its name suggests the opposite.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from workbench.config import BoostConfig
from workbench.config.boost import full_steps
from workbench.core.arguments import checked_count
from workbench.core.sparse_tables import why_not_at_rest
from workbench.core.step_optimizer import held_parameters
from workbench.core.warning import warn
from workbench.methods.grad_freeze.freeze_optimizer import FreezeOpt, FreezeState, allow_one_graph_per_group
from workbench.methods.parameter_groups import checked_optimizer, named_trainable_parameters, split_into_nested_groups
from workbench.methods.protocol import Method, Preparation

__all__ = ["FreezeOpt", "FreezingMethod", "GradientFreeze", "allow_one_graph_per_group", "freeze_index_sequence"]

CONTINUOUS, INTERVAL = 0, 1
LENGTH_MARGIN = 1.01  # the sequence covers 1 % more steps than announced, as upstream

Randomness = np.random.Generator | np.random.RandomState | int | None


def freeze_index_sequence(
    n_groups: int, freeze_type: int, freeze_p: float, total_steps: int, rng: Randomness = None
) -> list[int]:
    """Return for each step the index of the group that is trained; index 0 trains everything.

    With T = int(1.01 * total_steps), at least T of them:

    * up to one group: T zeros;
    * type 0, continuous: periods of z zeros followed by 1, 2, ..., n_groups - 1, where
      z = floor(freeze_p * (n_groups - 1) / (1 - freeze_p)), repeated whole until T steps are covered;
    * type 1, interval: begins with 0; while the share of frozen steps so far is below 1 - freeze_p a frozen step
      follows, else a full one. The index k of a frozen step is drawn with weight n_groups - k, so freezing few groups
      is the most likely.

    Args:
        n_groups: Number of nested groups.
        freeze_type: 0 or 1.
        freeze_p: Share of full steps, in [0, 1]; below 1 for type 0, where upstream divides by zero.
        total_steps: Number of updates that training will take.
        rng: Where type 1 draws from: a numpy generator, a seed, or None for numpy's global generator, which is what the
            reference uses.

    Example:
        >>> freeze_index_sequence(3, 0, 0.5, 6)
        [0, 0, 1, 2, 0, 0, 1, 2]
    """
    if n_groups > 1 and freeze_type not in {CONTINUOUS, INTERVAL}:
        raise ValueError(f"`grad_freeze.freeze_type` must be 0 (continuous) or 1 (interval), got {freeze_type!r}")
    _check_freeze_p(freeze_p, freeze_type if n_groups > 1 else INTERVAL)
    length = int(total_steps * LENGTH_MARGIN)
    if n_groups <= 1:
        return [0] * length
    if freeze_type == CONTINUOUS:
        return _continuous_sequence(n_groups, freeze_p, length)
    return _interval_sequence(n_groups, freeze_p, length, rng)


def _check_freeze_p(freeze_p: float, freeze_type: int) -> None:
    # As upstream, 1 is a share: every step is full. A configuration says so by leaving freezing off, and refuses it.
    if not 0 <= freeze_p <= 1:
        raise ValueError(f"`grad_freeze.freeze_p` must lie in [0, 1], got {freeze_p}")
    if freeze_p == 1 and freeze_type == CONTINUOUS:
        raise ValueError("`grad_freeze.freeze_p` must be below 1 with freeze_type 0, got 1: no step would ever freeze")


def _continuous_sequence(n_groups: int, freeze_p: float, length: int) -> list[int]:
    period = [0] * full_steps(freeze_p, n_groups - 1) + list(range(1, n_groups))
    n_periods = max(0, -(-length // len(period)))
    return period * n_periods


def _interval_sequence(n_groups: int, freeze_p: float, length: int, rng: Randomness) -> list[int]:
    frozen = [False]
    n_frozen = 0
    while len(frozen) < length:
        frozen.append(n_frozen / len(frozen) < 1 - freeze_p)
        n_frozen += frozen[-1]
    # None is the global legacy generator: seeding it reproduces the reference's sequences.
    generator: Any = np.random if rng is None else np.random.default_rng(rng) if isinstance(rng, int) else rng
    indices = np.arange(n_groups - 1, 0, -1)
    weights = np.arange(1, n_groups)
    # One call for all draws: it consumes the generator as the reference's single draws do, 60 times faster.
    draws = iter(generator.choice(indices, size=n_frozen, p=weights / weights.sum()).tolist())
    return [next(draws) if is_frozen else 0 for is_frozen in frozen]


class GradientFreeze:
    """Set up gradient freezing for a network and its optimizer.

    Args:
        param_groups: Number of nested groups, at least 1.
        freeze_type: 0 continuous, 1 interval, see :func:`freeze_index_sequence`.
        freeze_p: Share of full steps in [0, 1]; below 1 for type 0.
        total_steps: Number of updates that training will take.
        state: Optimizer state, ``"shared"`` or ``"per_group"`` (as the reference), see :class:`FreezeOpt`.
        rng: Where type 1 draws its indices from, see :func:`freeze_index_sequence`.

    Raises:
        TypeError: When a value is of the wrong kind.
        ValueError: When it lies outside its range.

    Example:
        >>> net = nn.Sequential(*[nn.Linear(2, 2, bias=False) for _ in range(8)])
        >>> network, optimizer = GradientFreeze(2, 1, 0.5, 2000).freeze_generate(net, torch.optim.SGD(net.parameters()))
        >>> optimizer.n_groups
        2
    """

    def __init__(
        self,
        param_groups: int,
        freeze_type: int,
        freeze_p: float,
        total_steps: int,
        *,
        state: FreezeState = "shared",
        rng: Randomness = None,
    ) -> None:
        checked_count("grad_freeze.param_groups", param_groups, kind="an integer")
        checked_count("grad_freeze.total_steps", total_steps, kind="an integer")
        checked_count("grad_freeze.freeze_type", freeze_type, None, kind="an integer")
        if isinstance(freeze_p, bool) or not isinstance(freeze_p, int | float):
            raise TypeError(f"`grad_freeze.freeze_p` must be a number, got {freeze_p!r}")
        if freeze_type not in {CONTINUOUS, INTERVAL}:
            raise ValueError(f"`grad_freeze.freeze_type` must be 0 or 1, got {freeze_type}")
        _check_freeze_p(freeze_p, freeze_type if param_groups > 1 else INTERVAL)
        self.param_groups = param_groups
        self.freeze_type = freeze_type
        self.freeze_p = float(freeze_p)
        self.total_steps = total_steps
        self.state: FreezeState = state
        self.rng = rng

    def split_parameters_groups(self, net: nn.Module, freeze_para_groups_number: int) -> list[list[nn.Parameter]]:
        """Return the nested groups of a network's trainable parameters; each group is a suffix of the first.

        Args:
            net: The network; the names of its parameters matter, see
                :func:`~workbench.methods.parameter_groups.split_into_chunks`.
            freeze_para_groups_number: Number of groups, at least 1.
        """
        return _nested_parameters(named_trainable_parameters(net), freeze_para_groups_number)

    def generate_freeze_index_sequence(
        self, parameter_groups_number: int, freeze_strategy: int, freeze_p: float, total_steps: int
    ) -> list[int]:
        """Return the group index of each step, see :func:`freeze_index_sequence`.

        Args:
            parameter_groups_number: Number of nested groups.
            freeze_strategy: 0 continuous, 1 interval.
            freeze_p: Share of full steps, in [0, 1]; below 1 for strategy 0.
            total_steps: Number of updates that training will take.
        """
        return freeze_index_sequence(parameter_groups_number, freeze_strategy, freeze_p, total_steps, self.rng)

    def freeze_generate(
        self,
        network: nn.Module,
        optimizer: torch.optim.Optimizer,
        *,
        learning_rates: Sequence[float] | Tensor | None = None,
    ) -> tuple[nn.Module, FreezeOpt]:
        """Return the unchanged network and an optimizer that freezes.

        Groups are formed from the trainable parameters that the optimizer holds. Anything else it holds (a
        loss with parameters of its own, say) belongs to every group and is always trained.

        Args:
            network: The network.
            optimizer: Its optimizer.
            learning_rates: One rate per step, see :class:`FreezeOpt`; needs ``state="per_group"``.

        Raises:
            ValueError: When the optimizer holds no trainable parameter of the network.
        """
        groups = _groups_held(network, checked_optimizer("optimizer", optimizer), self.param_groups)
        strategy = freeze_index_sequence(len(groups), self.freeze_type, self.freeze_p, self.total_steps, self.rng)
        return network, FreezeOpt(optimizer, groups, strategy, state=self.state, learning_rates=learning_rates)


def _groups_held(network: nn.Module, optimizer: torch.optim.Optimizer, n_groups: int) -> list[list[Any]]:
    """Return the nested groups of what an optimizer holds of a network, each with everything else that it holds."""
    held = held_parameters(optimizer)
    trainable = named_trainable_parameters(network)
    among_held, in_network = set(held), {p for _, p in trainable}
    named = [(name, p) for name, p in trainable if p in among_held]
    if not named:
        raise ValueError("the optimizer holds no trainable parameter of this network; was the network replaced?")
    groups: list[list[Any]] = list(_nested_parameters(named, n_groups))
    if n_groups > 1 and len(groups[-1]) == len(groups[0]):
        warn(
            f"gradient freezing has no effect: the network has fewer layers than `grad_freeze.param_groups` = "
            f"{n_groups} (stride 0), so every group is the whole network; lower it"
        )
    always = [p for p in held if p not in in_network]
    return [group + always for group in groups]


def _nested_parameters(named: Sequence[tuple[str, nn.Parameter]], n_groups: int) -> list[list[nn.Parameter]]:
    parameters = [p for _, p in named]
    groups = split_into_nested_groups([name for name, _ in named], n_groups)
    return [parameters[len(parameters) - len(group) :] for group in groups]  # every group is a suffix


class FreezingMethod(Method):
    """Leaves leading layers untrained in a share of the steps; the step asks its `GroupSchedule`, the optimizer."""

    splits_gradients = True

    def refusal(self, model: nn.Module) -> str:
        """Refuse a DistributedDataParallel that would wait for gradients of frozen parameters."""
        wrapper = next((module for module in model.modules() if isinstance(module, DistributedDataParallel)), None)
        if wrapper is None:
            return ""
        if wrapper.find_unused_parameters:
            return why_not_at_rest(wrapper.module)
        return (
            "with gradient freezing DistributedDataParallel needs find_unused_parameters=True, or it waits for the "
            "gradients of frozen parameters; pass it, or apply() to the plain model first and call "
            "boosted.distribute() then"
        )

    @staticmethod
    def fitted(config: BoostConfig, updates: int) -> BoostConfig:
        """Let the freezing schedule span the run's updates."""
        return config.with_values({"grad_freeze.total_steps": updates})

    @staticmethod
    def groups_at_rest(config: BoostConfig) -> tuple[Sequence[int], int]:
        """Return the configured schedule, drawn with seed 0 where it is random, and the number of groups."""
        freeze = config.grad_freeze
        schedule = freeze.param_groups, freeze.freeze_type, freeze.freeze_p, freeze.total_steps
        sequence = freeze_index_sequence(*schedule, np.random.RandomState(0))
        # It reaches a little beyond the steps it is made for; then it starts over.
        return sequence[: freeze.total_steps], freeze.param_groups

    def prepare(self, preparation: Preparation) -> None:
        """Form the groups, draw the schedule and wrap the optimizer."""
        freeze, state, seed = self.config.grad_freeze, self.config.compatibility.freeze_state, preparation.draw_seed()
        rng = None if seed is None else np.random.RandomState(seed % 2**32)  # which takes no larger ones
        schedule = freeze.param_groups, freeze.freeze_type, freeze.freeze_p, freeze.total_steps
        method = GradientFreeze(*schedule, state=state, rng=rng)
        _, preparation.optimizer = method.freeze_generate(preparation.model, preparation.optimizer)
