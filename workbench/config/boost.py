"""The sections of MindSpore's ``boost_config_dict``, key for key.

Names and defaults are those of MindSpore 2.7 (``mindspore/boost/boost.py``); ranges are ours, because the original
checks none of them. ``gradient_split_groups`` has no default there either, whatever its documentation says.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, field_validator

from workbench.config import conditions as only_if
from workbench.config.conditions import Condition, is_not, method_on, without
from workbench.config.section import Section, described

_LESS_BN, _GRAD_FREEZE, _DIM_REDUCE = (method_on(name) for name in ("less_bn", "grad_freeze", "dim_reduce"))
_ALONE = without("dim_reduce", "dim_reduce is on, which runs alone")


def _switch(title: str, description: str, *, needs: Condition) -> Any:
    return described(
        None,
        title,
        f"{description} Counts in mode manual only; unset means that the level decides.",
        when=only_if.in_mode_manual,
        needs=needs,
    )


class BoostSwitches(Section, use_attribute_docstrings=True):
    """Section ``boost``: the mode and one switch per algorithm."""

    section: ClassVar[str] = "boost"

    mode: Literal["auto", "manual", "enable_all", "disable_all"] = described("auto", "Mode")
    """auto: the level decides and the switches are ignored; manual: switches that are set override the level;
    enable_all and disable_all: every switch on or off (all on means dim_reduce, which runs alone).
    """
    less_bn: bool | None = _switch(
        "LessBN", "Remove BatchNorms where a residual net can spare them.", needs=_ALONE & only_if.spare_batch_norms
    )
    grad_freeze: bool | None = _switch(
        "Gradient freezing",
        "Skip the backward pass of leading layers in part of the steps.",
        needs=_ALONE
        & is_not("grad_freeze.param_groups", 1, "`grad_freeze.param_groups` is 1: the only group is the whole network")
        & is_not("grad_freeze.total_steps", 0, "`grad_freeze.total_steps` is 0: its schedule has no step")
        & only_if.enough_layers,
    )
    adasum: bool | None = _switch(
        "AdaSum",
        "Combine the updates of several servers by AdaSum instead of averaging.",
        needs=_ALONE
        & without("grad_freeze", "grad_freeze is on; switch grad_freeze off to use it")
        & only_if.full_servers,
    )
    grad_accumulation: bool | None = _switch(
        "Gradient accumulation",
        "Update once per several micro-batches.",
        needs=_ALONE
        & is_not("grad_accumulation.grad_accumulation_step", 1, "`grad_accumulation.grad_accumulation_step` is 1"),
    )
    dim_reduce: bool | None = _switch(
        "DimReduce",
        "Second-order training in a subspace of earlier weights; runs alone.",
        needs=only_if.subspace_source,
    )
    loss_scale_group: bool | None = _switch(
        "Loss scale per group", "Keep one loss scale per parameter group.", needs=_ALONE & only_if.dynamic_scale
    )


class CommonConfig(Section, use_attribute_docstrings=True):
    """Section ``common``: what several algorithms share."""

    section: ClassVar[str] = "common"

    gradient_split_groups: list[Annotated[int, Field(ge=0)]] | None = described(
        None, "Gradient split points", when=only_if.several_ranks
    )
    """Parameter positions at which a new communication bucket begins when gradients are reduced over ranks; unset means
    one split in the middle.
    """

    device_number: int = described(8, "Ranks per server", unit="ranks", ge=1, when=method_on("adasum"))
    """How many ranks share one server."""


class LessBNConfig(Section, use_attribute_docstrings=True):
    """Section ``less_bn``."""

    section: ClassVar[str] = "less_bn"

    fn_flag: bool = described(True, "FN head", when=_LESS_BN)
    """Replace the last dense layer of a classifier that loses BatchNorms by one with normalised inputs and weights."""

    gc_flag: bool = described(True, "Gradient centralization", when=_LESS_BN)
    """Subtract the mean from the gradient of each weight."""


class GradFreezeConfig(Section, use_attribute_docstrings=True):
    """Section ``grad_freeze``."""

    section: ClassVar[str] = "grad_freeze"

    param_groups: int = described(10, "Parameter groups", unit="groups", low=2, high=20, ge=1, when=_GRAD_FREEZE)
    """Into how many nested groups the parameters are cut."""

    freeze_type: Literal[0, 1] = described(1, "Freeze strategy", when=_GRAD_FREEZE)
    """0: continuous, groups take turns in a fixed period; 1: interval, groups are drawn at random."""

    freeze_p: float = described(0.7, "Share of full steps", low=0.1, high=0.95, ge=0, lt=1, when=_GRAD_FREEZE)
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
        n_full = int(self.freeze_p * n_frozen // (1 - self.freeze_p))
        return n_frozen / (n_full + n_frozen)

    @field_validator("freeze_type", mode="before")
    @classmethod
    def _whole_number(cls, value: Any) -> Any:
        # A Literal compares with ==, which would let true and 1.0 pass for 1.
        if isinstance(value, (bool, float)):
            raise ValueError(f"`grad_freeze.freeze_type` must be one of 0, 1, got {str(value).lower()}")
        return value


class GradAccumulationConfig(Section, use_attribute_docstrings=True):
    """Section ``grad_accumulation``."""

    section: ClassVar[str] = "grad_accumulation"

    grad_accumulation_step: int = described(
        1, "Micro-batches per update", unit="micro-batches", low=2, high=8, ge=1, when=method_on("grad_accumulation")
    )
    """How many micro-batches make one update."""


class DimReduceConfig(Section, use_attribute_docstrings=True):
    """Section ``dim_reduce``."""

    section: ClassVar[str] = "dim_reduce"

    rho: float = described(0.55, "Line-search ratio", low=0.1, high=0.9, gt=0, lt=1, when=_DIM_REDUCE)
    """Factor between the trial step lengths of the line search."""

    gamma: float = described(0.9, "Residual momentum", low=0.5, high=0.99, ge=0, lt=1, when=_DIM_REDUCE)
    """Momentum of the gradient outside the subspace."""

    alpha: float = described(0.001, "Residual step", low=1e-4, high=0.1, log=True, ge=0, when=_DIM_REDUCE)
    """Step length outside the subspace; 0 trains inside it only."""

    sigma: float = described(0.4, "Sufficient decrease", low=1e-4, high=0.5, log=True, gt=0, lt=1, when=_DIM_REDUCE)
    """Share of the predicted decrease a trial step must reach."""

    line_search_trials: int | None = described(
        None, "Line-search trials", unit="trials", low=2, high=16, ge=1, when=_DIM_REDUCE
    )
    """Most step lengths tried per step, each one forward pass; unset means 8, or the original's 2 where
    compatibility.dim_reduce is reference. MindSpore passes over this name.
    """

    n_components: int = described(
        32, "Subspace dimension", unit="components", low=4, high=64, log=True, ge=1, when=_DIM_REDUCE
    )
    """Number of principal components of the weight snapshots."""

    pca_mat_path: str | None = described(None, "Subspace file", when=_DIM_REDUCE)
    """Path of a .npy or .safetensors matrix [n_components, parameters]; unset means computed from weight_load_dir."""

    weight_load_dir: str | None = described(None, "Snapshot folder", when=_DIM_REDUCE)
    """Folder of weight snapshots from which the subspace is computed; unset means none."""

    timeout: int = described(1800, "Longest wait", unit="seconds", ge=1, when=_DIM_REDUCE)
    """How long a rank waits for the subspace another rank computes."""

    @field_validator("pca_mat_path", "weight_load_dir", mode="before")
    @classmethod
    def _empty_path_is_none(cls, value: Any) -> Any:
        return None if isinstance(value, str) and not value.strip() else value
