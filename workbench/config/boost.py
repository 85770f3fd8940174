"""The sections of MindSpore's ``boost_config_dict``, key for key, what its levels ask for and what its switches need.

Names, defaults and levels are those of MindSpore 2.7 (``mindspore/boost/boost.py``); ranges are ours, because the
original checks none of them. ``gradient_split_groups`` has no default there either, whatever its documentation says.
What a switch needs differs in these points:

* dim_reduce needs a source for its subspace; the original finds that out in the middle of training.
* adasum needs at least 2 servers, a power of two. The original divides by 8 whatever device_number says; that rule is
  ``compatibility.adasum_servers = "eight"``.
* What changes nothing is not in effect: accumulation over 1 micro-batch, freezing with 1 group or over 0 steps and,
  where the network is known (``NetworkFacts``), less_bn without a BatchNorm to spare and freezing with more groups than
  layers.
* loss_scale_group needs a dynamic loss scale.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, field_validator

from workbench.config.conditions import (
    Condition,
    acts,
    condition,
    dynamic_scale,
    in_mode_manual,
    is_not,
    method_off,
    method_on,
    several_ranks,
    without,
)
from workbench.config.errors import ConfigError, shown
from workbench.config.section import Section, described

if TYPE_CHECKING:
    from workbench.config.boost_config import BoostConfig
    from workbench.config.facts import Facts

LEVELS: dict[str, tuple[str, ...]] = {
    "O0": (),
    "O1": ("less_bn", "grad_freeze"),
    "O2": ("less_bn", "grad_freeze", "adasum"),
}
"""Boost level -> algorithms it asks for."""

OPTIMIZER_STEPS = without("dim_reduce", "DimReduce makes its own steps")
GRADIENTS_MAY_HIDE = method_off(
    "loss_scale_group", "group loss scales must see gradients pass, which torch.compile hides"
)
_ALONE = without("dim_reduce", "dim_reduce is on, which runs alone")
_LESS_BN, _GRAD_FREEZE = method_on("less_bn"), method_on("grad_freeze")


@condition(
    "the network has BatchNorms to spare",
    "less_bn.fn_flag",
    "less_bn.gc_flag",
    "compatibility.fn_scope",
    "compatibility.grad_centralization",
    "compatibility.less_bn_match",
)
def _spare_batch_norms(config: BoostConfig, facts: Facts) -> str:
    # The normalised head and gradient centralization go with removed BatchNorms; without any they would only slow
    # training down. The wider scopes, the reference's among them, replace a head all the same, and under the
    # reference's rule for centralized weights these are centralized all the same, as there.
    network, rules = facts.network, config.compatibility
    if network is None:
        return ""
    wider = rules.fn_scope != type(rules).model_fields["fn_scope"].default
    by_reference = rules.less_bn_match == "reference"
    if config.less_bn.fn_flag and wider:
        return ""
    if config.less_bn.gc_flag and rules.grad_centralization == "multiple_of_16":
        return ""
    if network.removable_by_reference if by_reference else network.removable:
        return ""
    if network.batch_norms:
        norms = "its only BatchNorm" if network.batch_norms == 1 else f"any of its {network.batch_norms} BatchNorms"
        return f"this network cannot spare {norms}"
    return "this network has no BatchNorm"


@condition(
    "the network has a layer for each group", "grad_freeze.param_groups", "boost.less_bn", "compatibility.less_bn_match"
)
def _enough_layers(config: BoostConfig, facts: Facts) -> str:
    network, groups, less = facts.network, config.grad_freeze.param_groups, ""
    if network is None:
        return ""
    layers = network.layers
    if acts("less_bn", config, facts):
        by_reference = config.compatibility.less_bn_match == "reference"
        layers = network.layers_left_by_reference if by_reference else network.layers_left
        less = "without its BatchNorms "
    if layers >= groups:
        return ""
    if layers <= 1:
        return f"{less}this network is too small to be cut into groups of layers"
    # Not how many layers it has, which people count otherwise.
    most = f"{less}this network can be cut into {layers} groups at most"
    return f"{most}, fewer than `grad_freeze.param_groups` = {groups}; lower it"


@condition("there are 2, 4, 8, ... full servers of ranks", "common.device_number", "compatibility.adasum_servers")
def _full_servers(config: BoostConfig, facts: Facts) -> str:
    eight = config.compatibility.adasum_servers == "eight"
    ranks = 8 if eight else config.common.device_number
    servers, left_over = divmod(facts.world_size, ranks)
    power_of_two = servers > 1 and servers & (servers - 1) == 0
    if power_of_two and (eight or not left_over):  # As upstream: with eight, left-over ranks go unnoticed
        return ""
    have = "there is 1 rank" if facts.world_size == 1 else f"there are {facts.world_size} ranks"
    return (
        f"it needs 2, 4, 8, ... full servers of {ranks} ranks "
        f"({'fixed by `compatibility.adasum_servers`' if eight else '`common.device_number`'}), and {have}"
    )


@condition("the subspace has a source", "dim_reduce.pca_mat_path", "dim_reduce.weight_load_dir")
def _subspace_source(config: BoostConfig, _facts: Facts) -> str:
    if config.dim_reduce.pca_mat_path is not None or config.dim_reduce.weight_load_dir is not None:
        return ""
    return (
        "dim_reduce needs a source for its subspace: set `dim_reduce.pca_mat_path` to a .npy matrix [n_components, "
        "parameters] or `dim_reduce.weight_load_dir` to a folder of weight snapshots (a run with `snapshots.count` "
        "above 0 records them), or switch `boost.dim_reduce` off"
    )


NOT_REBUILT = (
    "MindSpore 2.7 cannot train LessBN or gradient freezing with Adam, AdamWeightDecay or AdamOffload: it fails "
    "with a KeyError or an AttributeError when it rebuilds the optimizer. Train with Momentum or SGD there, or "
    "switch both methods off."
)


@condition("MindSpore can rebuild the optimizer", "optimizer.name")
def rebuilt_in_mindspore(config: BoostConfig, _facts: Facts) -> str:
    """Hold where no optimizer is named that MindSpore cannot rebuild; the task's own may still be one."""
    optimizer = config.optimizer
    return NOT_REBUILT if optimizer and optimizer.name in ("Adam", "AdamW", "adam_offload") else ""


def line_search_trials(config: BoostConfig) -> int:
    """Return how many step lengths DimReduce tries: what is set, else 8, or 2 as the original where it is followed."""
    given = config.dim_reduce.line_search_trials
    return given or (2 if config.compatibility.dim_reduce == "reference" else 8)


def _switch(title: str, description: str, *, needs: Condition, **more: Any) -> Any:
    text = f"{description} Counts in mode manual only; unset means that the level decides."
    return described(None, title, text, when=in_mode_manual, needs=needs, **more)


class BoostSwitches(Section, use_attribute_docstrings=True):
    """Section ``boost``: the mode and one switch per algorithm."""

    mode: Literal["auto", "manual", "enable_all", "disable_all"] = described("auto", "Mode")
    """auto: the level decides and the switches are ignored; manual: switches that are set override the level;
    enable_all and disable_all: every switch on or off (all on means dim_reduce, which runs alone).
    """
    less_bn: bool | None = _switch(
        "LessBN",
        "Remove the BatchNorms that the network can spare.",
        needs=_ALONE & _spare_batch_norms,
        in_mindspore=rebuilt_in_mindspore,
    )
    grad_freeze: bool | None = _switch(
        "Gradient freezing",
        "Skip the backward pass of leading layers in part of the steps.",
        needs=_ALONE
        & is_not("grad_freeze.param_groups", 1, "`grad_freeze.param_groups` is 1: the only group is the whole network")
        & is_not("grad_freeze.total_steps", 0, "`grad_freeze.total_steps` is 0: its schedule has no step")
        & _enough_layers,
        in_mindspore=rebuilt_in_mindspore,
    )
    adasum: bool | None = _switch(
        "AdaSum",
        "Combine the updates of several servers by AdaSum instead of averaging.",
        needs=_ALONE
        & without("grad_freeze", "grad_freeze is asked for; switch grad_freeze off to use it")
        & _full_servers,
    )
    grad_accumulation: bool | None = _switch(
        "Gradient accumulation",
        "Update once per several micro-batches.",
        needs=_ALONE
        & is_not("grad_accumulation.grad_accumulation_step", 1, "`grad_accumulation.grad_accumulation_step` is 1"),
        in_mindspore=method_off(
            "grad_freeze",
            "MindSpore 2.7 cannot train gradient freezing together with gradient accumulation: it fails with an "
            "AttributeError when the network is built. Switch one of them off.",
        ),
    )
    dim_reduce: bool | None = _switch(
        "DimReduce",
        "Second-order training in a subspace of earlier weights; runs alone.",
        needs=_subspace_source,
        must_act=True,
        in_mindspore=is_not(
            "dim_reduce.pca_mat_path",
            None,
            "MindSpore computes the subspace of DimReduce from `dim_reduce.weight_load_dir` itself, from checkpoints "
            "in its own format; snapshots of this package are not.",
        ),
    )
    loss_scale_group: bool | None = _switch(
        "Loss scale per group", "Keep one loss scale per parameter group.", needs=_ALONE & dynamic_scale
    )

    def asks_for(self, name: str, level: str) -> bool:
        """Return whether an algorithm is asked for at a level, as the original resolves it.

        Auto takes the level's table, manual lets switches that are set override it, enable_all and disable_all set all.
        """
        if self.mode in {"enable_all", "disable_all"}:
            return self.mode == "enable_all"
        given: bool | None = getattr(self, name) if self.mode == "manual" else None
        return name in LEVELS[level] if given is None else given


SWITCHES = tuple(name for name in BoostSwitches.model_fields if name != "mode")
"""The six switches, in the order the original lists them."""


def requested_switches(config: BoostConfig, level: str) -> dict[str, bool]:
    """Return the six switches a configuration asks for at a level, as the original resolves them.

    An unknown level is a ConfigError (the original takes O0 without a word).
    """
    if not isinstance(level, str) or level not in LEVELS:
        raise ConfigError(f"`level` must be one of {', '.join(map(shown, LEVELS))}, got {shown(level)}")
    return {name: config.boost.asks_for(name, level) for name in SWITCHES}


def with_switch(config: BoostConfig, level: str, name: str, *, on: bool) -> BoostConfig:
    """Return the configuration with one switch set by hand and the others as the level asks for them."""
    asked = requested_switches(config, level) | {name: on}
    return config.with_values({"boost.mode": "manual", **{f"boost.{switch}": asked[switch] for switch in SWITCHES}})


class CommonConfig(Section, use_attribute_docstrings=True):
    """Section ``common``: what several algorithms share."""

    gradient_split_groups: list[Annotated[int, Field(ge=0)]] | None = described(
        None, "Gradient split points", when=several_ranks
    )
    """Parameter positions at which a new communication bucket begins when gradients are reduced over ranks; unset means
    one split in the middle.
    """

    device_number: int = described(8, "Ranks per server", unit="ranks", ge=1, when=method_on("adasum"))
    """How many ranks share one server."""


class LessBNConfig(Section, use_attribute_docstrings=True):
    """Section ``less_bn``."""

    fn_flag: bool = described(True, "FN head", when=_LESS_BN)
    """Replace the last dense layer of a classifier that loses BatchNorms by one with normalised inputs and weights."""

    gc_flag: bool = described(True, "Gradient centralization", when=_LESS_BN)
    """Subtract the mean from the gradient of each weight."""


def full_steps(freeze_p: float, n_frozen: int) -> int:
    """Return how many full steps come before so many frozen ones, for a share of full steps below 1."""
    return int(freeze_p * n_frozen // (1 - freeze_p))  # as upstream: whole steps, by floor division of floats


class GradFreezeConfig(Section, use_attribute_docstrings=True):
    """Section ``grad_freeze``."""

    param_groups: int = described(10, "Parameter groups", unit="groups", low=2, high=20, ge=1, when=_GRAD_FREEZE)
    """Into how many nested groups the parameters are cut."""

    freeze_type: Literal[0, 1] = described(
        1, "Freeze strategy", names={0: "front to back, in turn", 1: "drawn at random"}, when=_GRAD_FREEZE
    )
    """0: continuous, groups take turns in a fixed period; 1: interval, groups are drawn at random."""

    freeze_p: float = described(
        0.7,
        "Share of full steps",
        low=0.1,
        high=0.95,
        ge=0,
        lt=1,
        when=_GRAD_FREEZE,
        share=lambda config: config.grad_freeze.frozen_share(),
        share_name="frozen steps",
    )
    """Share of FULL steps, in which every parameter is trained; in the remaining 1 - freeze_p of the steps leading
    layers are frozen, so a smaller value freezes more.
    """

    total_steps: int = described(65536, "Steps of the schedule", unit="steps", ge=0, when=_GRAD_FREEZE)
    """Length of the freezing schedule; it starts over when it ends."""

    def frozen_share(self) -> float:
        """Return the share of steps that freeze, in [0, 1].

        ``1 - freeze_p``, but a continuous schedule (type 0) has whole steps only: with z full ones in a period of
        z + param_groups - 1 it freezes more than asked for, and with z = 0 in every step.
        """
        n_frozen = self.param_groups - 1
        if self.freeze_type == 1 or not n_frozen:
            return 1 - self.freeze_p if n_frozen else 0.0
        return n_frozen / (full_steps(self.freeze_p, n_frozen) + n_frozen)

    def summary(self) -> str:
        """Return what it does in a few words."""
        return f"freezing (frozen steps: {100 * self.frozen_share():.3g} %)"

    @field_validator("freeze_type", mode="before")
    @classmethod
    def _whole_number(cls, value: Any) -> Any:
        # A Literal compares with ==, which would let true and 1.0 pass for 1.
        if isinstance(value, (bool, float)):
            raise ValueError(f"`grad_freeze.freeze_type` must be one of 0, 1, got {str(value).lower()}")
        return value


class GradAccumulationConfig(Section, use_attribute_docstrings=True):
    """Section ``grad_accumulation``."""

    grad_accumulation_step: int = described(
        1, "Micro-batches per update", unit="micro-batches", low=2, high=8, ge=1, when=method_on("grad_accumulation")
    )
    """How many micro-batches make one update."""

    def summary(self) -> str:
        """Return what it does in a few words."""
        return f"accumulation over {self.grad_accumulation_step}"


_subspace = functools.partial(described, when=method_on("dim_reduce"))


class DimReduceConfig(Section, use_attribute_docstrings=True):
    """Section ``dim_reduce``."""

    rho: float = _subspace(0.55, "Line-search ratio", low=0.1, high=0.9, gt=0, lt=1)
    """Factor between the trial step lengths of the line search."""

    gamma: float = _subspace(0.9, "Residual momentum", low=0.5, high=0.99, ge=0, lt=1)
    """Momentum of the gradient outside the subspace."""

    alpha: float = _subspace(0.001, "Residual step", low=1e-4, high=0.1, log=True, ge=0)
    """Step length outside the subspace; 0 trains inside it only."""

    sigma: float = _subspace(0.4, "Sufficient decrease", low=1e-4, high=0.5, log=True, gt=0, lt=1)
    """Share of the predicted decrease a trial step must reach."""

    line_search_trials: int | None = _subspace(
        None, "Line-search trials", unit="trials", low=2, high=16, ge=1, unset=line_search_trials, ours=True
    )
    """Most step lengths tried per step, each one forward pass; unset means 8, or the original's 2 where
    compatibility.dim_reduce is reference. MindSpore ignores this name.
    """

    n_components: int = _subspace(32, "Subspace dimension", unit="components", low=4, high=64, log=True, ge=1)
    """Number of principal components of the weight snapshots."""

    pca_mat_path: str | None = _subspace(None, "Subspace file")
    """Path of a .npy or .safetensors matrix [n_components, parameters]; unset means computed from weight_load_dir."""

    weight_load_dir: str | None = _subspace(None, "Snapshot folder")
    """Folder of weight snapshots from which the subspace is computed; unset means none."""

    timeout: int = _subspace(1800, "Longest wait", unit="seconds", ge=1)
    """How long a rank waits for the subspace another rank computes."""

    def summary(self) -> str:
        """Return what it does in a few words."""
        return f"DimReduce ({self.n_components} components)"

    @field_validator("pca_mat_path", "weight_load_dir", mode="before")
    @classmethod
    def _empty_path_is_none(cls, value: Any) -> Any:
        return None if isinstance(value, str) and not value.strip() else value
