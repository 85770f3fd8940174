"""When a parameter is in effect: small conditions, declared beside the parameter and combined with ``&`` and ``|``.

    thor_factors = described(..., when=optimizer_is("thor"))
    freeze_p = described(..., when=method_on("grad_freeze"))
    adasum = described(..., when=in_mode_manual, needs=without("dim_reduce", ...) & full_servers)

A condition is asked about a configuration and the `Facts` it meets, and answers with the reason why the parameter is
not in effect: the words that follow "because". It also says which parameters it reads, so that a search can draw those
first. A *method* is an algorithm with a switch in section ``boost``: it acts when it is asked for (`asked_for`) and
what it ``needs`` holds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pydantic.fields import FieldInfo

from workbench.config.levels import asked_for

if TYPE_CHECKING:
    from workbench.config.boost_config import BoostConfig
    from workbench.config.facts import Facts


@dataclass(frozen=True, slots=True)
class Condition:
    """Says whether something is in effect, and if not, why.

    ``why_not`` gets a configuration and the facts and returns the reason why it does not hold, empty where it does.
    ``words`` are the condition in short, for the schema and the documentation; ``reads`` the paths of the parameters
    that the answer depends on, where a switch stands for all that its method needs.
    """

    why_not: Callable[[BoostConfig, Facts], str]
    words: str
    reads: frozenset[str] = frozenset()

    def __and__(self, other: Condition) -> Condition:
        """Both must hold; the reason is that of the first that does not."""
        words, reads = f"{self.words} and {other.words}", self.reads | other.reads
        return Condition(lambda *met: self.why_not(*met) or other.why_not(*met), words, reads)

    def __or__(self, other: Condition) -> Condition:
        """One of them must hold; the reason is the second's."""
        words, reads = f"({self.words} or {other.words})", self.reads | other.reads
        return Condition(lambda *met: self.why_not(*met) and other.why_not(*met), words, reads)


@dataclass(frozen=True, slots=True)
class Declared:
    """When a parameter is in effect, what its method needs (of a switch), and whether it may change a step's time."""

    when: Condition
    needs: Condition
    step_time: bool = True


ALWAYS = Condition(lambda _config, _facts: "", "always")

_UNCONDITIONAL = Declared(ALWAYS, ALWAYS)


def declared(field: FieldInfo) -> Declared:
    """Return the conditions of a section's field."""
    return next((one for one in field.metadata if isinstance(one, Declared)), _UNCONDITIONAL)


def acts(name: str, config: BoostConfig, facts: Facts) -> bool:
    """Return whether a method is asked for and finds what it needs."""
    if not asked_for(name, config, facts.level):
        return False
    return not declared(_switch(name, config)).needs.why_not(config, facts)


def method_on(name: str) -> Condition:
    """Hold where a method is in effect."""
    return Condition(
        lambda config, facts: "" if acts(name, config, facts) else f"{_switch(name, config).title} is off",
        f"{name} is in effect",
        frozenset({f"boost.{name}"}),
    )


def without(name: str, why_not: str) -> Condition:
    """Hold where a method is not even asked for."""
    return Condition(
        lambda config, facts: why_not if asked_for(name, config, facts.level) else "",
        f"{name} is not asked for",
        frozenset({f"boost.{name}"}),
    )


def is_not(path: str, value: Any, why_not: str) -> Condition:
    """Hold where a parameter has another value than the given one."""
    section, _, name = path.partition(".")
    return Condition(
        lambda config, _facts: why_not if getattr(getattr(config, section), name) == value else "",
        f"{path} is not {str(value).lower() if isinstance(value, bool) else value}",
        frozenset({path}),
    )


def loss_scale_is(*kinds: str, why_not: str = "the loss scale is {kind}") -> Condition:
    """Hold for some kinds of loss scale; one that only the device decides may be dynamic."""

    def reason(config: BoostConfig, _facts: Facts) -> str:
        kind = loss_scale_kind(config) or "dynamic"
        if kind in kinds:
            return ""
        return why_not.format(kind=kind) if kind != "none" else _NO_SCALE

    return Condition(reason, f"the loss scale is {' or '.join(kinds)}", _LOSS_SCALE_KIND)


def loss_scale_kind(config: BoostConfig) -> str | None:
    """Return the kind of loss scale; None when only the device decides it (amp auto with float16)."""
    if config.loss_scale.kind is None and config.amp.level == "auto" and config.amp.dtype == "float16":
        return None
    return config.effective_loss_scale_kind("")


def optimizer_is(*names: str, why_not: str = "the optimizer is {name}") -> Condition:
    """Hold where an optimizer steps that is one of the named ones, or the task's own, which may be any."""

    def reason(config: BoostConfig, _facts: Facts) -> str:
        name = None if config.optimizer is None else config.optimizer.name
        return "" if name is None or name in names else why_not.format(name=name)

    words = f"the optimizer is {', '.join(names)} or the task's own"
    return OPTIMIZER_STEPS & Condition(reason, words, frozenset({"optimizer.name"}))


_NO_SCALE = "there is no loss scale (loss_scale.kind)"
_LOSS_SCALE_KIND = frozenset({"loss_scale.kind", "amp.level", "amp.dtype"})
OPTIMIZER_STEPS = without("dim_reduce", "DimReduce makes its own steps")


def _condition(words: str, *reads: str) -> Callable[[Callable[[BoostConfig, Facts], str]], Condition]:
    """Turn the function below into a condition."""
    return lambda why_not: Condition(why_not, words, frozenset(reads))


@_condition("boost.mode is manual", "boost.mode")
def in_mode_manual(config: BoostConfig, _facts: Facts) -> str:
    """Hold in mode manual."""
    mode = config.boost.mode
    return "" if mode == "manual" else f"switches count in mode manual, and the mode is {mode}"


@_condition("several ranks train")
def several_ranks(_config: BoostConfig, facts: Facts) -> str:
    """Hold over several ranks."""
    return "" if facts.world_size > 1 else "a single rank reduces nothing"


# What methods need


@_condition("the loss scale is dynamic", *_LOSS_SCALE_KIND)
def dynamic_scale(config: BoostConfig, _facts: Facts) -> str:
    """Hold for a dynamic loss scale."""
    kind, way = (
        loss_scale_kind(config),
        "set `loss_scale.kind` to dynamic, or `amp.level` to O2 with `amp.dtype` float16",
    )
    return "" if kind in {"dynamic", None} else f"the loss scale is {kind}; {way}"


@_condition(
    "the network has BatchNorms to spare", "less_bn.fn_flag", "compatibility.fn_scope", "compatibility.less_bn_match"
)
def spare_batch_norms(config: BoostConfig, facts: Facts) -> str:
    """Hold where LessBN acts."""
    return "" if facts.network is None else facts.network.why_no_less_bn(config)


@_condition(
    "the network has a layer for each group", "grad_freeze.param_groups", "boost.less_bn", "compatibility.less_bn_match"
)
def enough_layers(config: BoostConfig, facts: Facts) -> str:
    """Hold where freezing can cut the network into its groups."""
    network = facts.network
    return "" if network is None else network.why_no_freezing(config, less_bn=acts("less_bn", config, facts))


@_condition("there are 2, 4, 8, ... full servers of ranks", "common.device_number", "compatibility.adasum_servers")
def full_servers(config: BoostConfig, facts: Facts) -> str:
    """Hold where AdaSum has servers to combine."""
    eight = config.compatibility.adasum_servers == "eight"
    ranks = 8 if eight else config.common.device_number
    servers, left_over = divmod(facts.world_size, ranks)
    power_of_two = servers > 1 and servers & (servers - 1) == 0
    if power_of_two and (eight or not left_over):  # As upstream: with eight, left-over ranks go unnoticed
        return ""
    have = f"{facts.world_size} {'rank' if facts.world_size == 1 else 'ranks'}"
    return (
        f"it needs 2, 4, 8, ... full servers of {ranks} ranks "
        f"({'fixed by `compatibility.adasum_servers`' if eight else '`common.device_number`'}), and there are {have}"
    )


@_condition("the subspace has a source", "dim_reduce.pca_mat_path", "dim_reduce.weight_load_dir")
def subspace_source(config: BoostConfig, _facts: Facts) -> str:
    """Hold where DimReduce has a subspace."""
    if config.dim_reduce.pca_mat_path is not None or config.dim_reduce.weight_load_dir is not None:
        return ""
    return (
        "dim_reduce needs a source of its subspace: set `dim_reduce.pca_mat_path` to a .npy matrix [n_components, "
        "parameters] or `dim_reduce.weight_load_dir` to a folder of weight snapshots (a run with `snapshots.count` "
        "above 0 records them), or switch `boost.dim_reduce` off"
    )


def _switch(name: str, config: BoostConfig) -> FieldInfo:
    return type(config.boost).model_fields[name]
