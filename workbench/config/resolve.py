"""What a configuration means at a level: which algorithms are in effect, and why the others are not.

Order of decisions, as in MindSpore 2.7 (``mindspore/boost/boost.py``) unless said otherwise:

1. The mode gives the six switches asked for: auto takes the level's table, manual lets switches that are set override
   it, enable_all and disable_all set all of them.
2. dim_reduce runs alone. It needs a source of its subspace; the original finds that out in the middle of training.
3. With grad_freeze on, adasum is not in effect.
4. adasum needs at least 2 servers, a power of two. The original divides by 8 whatever device_number says; that rule is
   ``compatibility.adasum_servers = "eight"``.
5. grad_accumulation over 1 micro-batch and freezing with 1 group or over 0 steps change nothing and are not in effect.
6. loss_scale_group needs a dynamic loss scale.
7. Where the network is known (``NetworkFacts``), less_bn without a BatchNorm to spare and freezing with more groups
   than layers change nothing and are not in effect.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from workbench.config.errors import ConfigError, shown
from workbench.config.levels import SWITCHES, requested_switches

if TYPE_CHECKING:
    from workbench.config.boost_config import BoostConfig
    from workbench.config.facts import NetworkFacts
    from workbench.config.optimizer import OptimizerConfig

__all__ = [
    "Dropped",
    "Outline",
    "Plan",
    "deciding",
    "line_search_trials",
    "resolve",
    "sections_deciding",
]

_OWN_SECTIONS = ("less_bn", "grad_freeze", "grad_accumulation", "dim_reduce")
"""Sections that count as a whole, when the switch of their name is in effect."""


class _Everything(tuple[str, ...]):
    """Holds every name."""

    __slots__ = ()

    def __contains__(self, name: object) -> bool:
        return True


_EVERY = _Everything()

_SELECTORS = frozenset({"boost.mode", "amp.level", "loss_scale.kind", "optimizer.name"})
"""Parameters that choose among others; changing one may always change the plan."""


_SECTIONS_DECIDING: dict[str, frozenset[str]] = {
    path: frozenset({*others, path.partition(".")[0], "boost", "dim_reduce"})  # which runs alone
    for path, others in {
        # Of a known network: whether BatchNorms go decides about its layers, and they about freezing.
        "boost.less_bn": ("less_bn", "grad_freeze", "compatibility"),
        "boost.grad_freeze": ("grad_freeze", "less_bn", "common", "compatibility"),  # it takes adasum's place
        "boost.adasum": ("common", "compatibility"),
        "boost.grad_accumulation": ("grad_accumulation",),
        "boost.loss_scale_group": ("loss_scale", "amp"),
        "less_bn": ("grad_freeze", "compatibility"),
        "grad_freeze": ("less_bn", "compatibility"),
        "grad_accumulation": (),
        "dim_reduce": ("compatibility",),
        "optimizer": (),
        "snapshots": (),
    }.items()
}
"""Path or section -> what decides whether its values matter, where that is not every section."""


@dataclass(frozen=True, slots=True)
class Dropped:
    """Something that was asked for and is not in effect.

    Args:
        name: Switch (``"adasum"``) or config path (``"optimizer.momentum"``).
        reason: One sentence.
    """

    name: str
    reason: str


@dataclass(frozen=True, slots=True)
class Outline:
    """Which parameters are in effect: all of a plan but the values its configuration holds.

    Args:
        names: Section -> names whose values count as the configuration has them.
        derived: Path -> value of those that follow from others; what it says of a path in ``names`` holds.
    """

    names: Mapping[str, tuple[str, ...]]
    derived: Mapping[str, Any]


@dataclass(frozen=True, eq=False)
class Plan:
    """What is in effect.

    Two plans are equal when the same things are in effect with the same parameters, whatever level or mode asked for
    them: O1 and O2 on one device are one configuration.

    Args:
        level: Boost level that was asked for.
        mode: Mode of the configuration.
        world_size: Number of ranks.
        config: The configuration.
        requested: The six switches as the original resolves them.
        less_bn: Whether LessBN is in effect; likewise the other switches.
        grad_freeze: See ``less_bn``.
        adasum: See ``less_bn``.
        grad_accumulation: See ``less_bn``.
        dim_reduce: See ``less_bn``.
        loss_scale_group: See ``less_bn``.
        dropped: What was asked for and is not in effect, with reasons.
    """

    level: str
    mode: str
    world_size: int
    config: BoostConfig
    requested: Mapping[str, bool]
    less_bn: bool = False
    grad_freeze: bool = False
    adasum: bool = False
    grad_accumulation: bool = False
    dim_reduce: bool = False
    loss_scale_group: bool = False
    dropped: tuple[Dropped, ...] = field(default=())

    def in_effect(self) -> tuple[str, ...]:
        """Return the names of the switches in effect, in the original's order."""
        return tuple(name for name in SWITCHES if getattr(self, name))

    def level_defaults(self) -> dict[str, bool]:
        """Return the switches that the configuration leaves to the level although its mode is manual, and how they are.

        As in the original a switch that is not named follows the level: less_bn alone, at O1, freezes too.
        """
        if self.mode != "manual":
            return {}
        return {name: self.requested[name] for name in SWITCHES if getattr(self.config.boost, name) is None}

    def level_default_sentence(self) -> str:
        """Return a sentence about `level_defaults`; empty when every switch is named or the mode names none."""
        defaults = self.level_defaults()
        if not defaults:
            return ""
        on = [name for name, value in defaults.items() if value]
        off = [name for name, value in defaults.items() if not value]
        settings = [f"{', '.join(names)} {word}" for names, word in ((on, "on"), (off, "off")) if names]
        return f"switches that are not named take the default of level {self.level}: {'; '.join(settings)}"

    def remarks(self) -> list[str]:
        """Return why things asked for are not in effect, and that nothing is where nothing is, in sentences."""
        told = [entry.reason for entry in self.dropped]
        if any(self.requested.values()) and not self.in_effect():
            told.append(f"level {self.level} is equal to O0 here: none of the methods it asks for is in effect")
        return told

    def parameters_in_effect(self) -> dict[str, Any]:
        """Return config path -> value of everything that matters under this plan, and nothing that does not.

        A switch's value is whether it is in effect, not what the file says. Values that are unset are left out,
        except ``loss_scale.kind`` when only the device decides it (amp auto).
        """
        outline = self.outline()
        effective = {f"boost.{name}": getattr(self, name) for name in SWITCHES}
        for section, names in outline.names.items():
            part = getattr(self.config, section)
            for name in names:
                value = getattr(part, name)
                if value is not None:
                    effective[f"{section}.{name}"] = value
        return {**effective, **outline.derived}

    def outline(self) -> Outline:
        """Return which parameters are in effect, without the values they have in the configuration."""
        config = self.config
        derived: dict[str, Any] = {f"boost.{name}": getattr(self, name) for name in SWITCHES}
        derived["loss_scale.kind"] = _loss_scale_kind(config)
        if self.dim_reduce:
            derived["dim_reduce.line_search_trials"] = line_search_trials(config)
        if config.amp.level in {"O2", "O3"}:
            derived["amp.keep_batchnorm_fp32"] = config.effective_keep_batchnorm_fp32("")
        names = {}
        for section, given in self._names_in_effect().items():
            part = getattr(config, section)
            if part is not None:
                names[section] = tuple(name for name in type(part).model_fields if name in given)
        return Outline(names, derived)

    def matters(self, path: str) -> bool:
        """Return whether changing one parameter may change what this plan does; a search need not sample the others."""
        if path in _SELECTORS:
            return True
        if path.startswith("boost."):
            return self.mode == "manual"
        section, _, name = path.partition(".")
        return name in self._names_in_effect().get(section, ())  # provenance tells, it does not act

    def key(self) -> str:
        """Return a short text that equal plans, and only equal plans, share."""
        canonical = json.dumps(self.parameters_in_effect(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(canonical.encode()).hexdigest()[:16]

    def summary(self) -> str:
        """Return what is in effect in a few words, for example ``"LessBN + freezing (frozen steps: 30 %)"``."""
        config = self.config
        parts = []
        if self.dim_reduce:
            parts.append(f"DimReduce ({config.dim_reduce.n_components} components)")
        if self.less_bn:
            parts.append("LessBN")
        if self.grad_freeze:
            parts.append(f"freezing (frozen steps: {_percent(config.grad_freeze.frozen_share())})")
        if self.adasum:
            parts.append("AdaSum")
        if self.grad_accumulation:
            parts.append(f"accumulation over {config.grad_accumulation.grad_accumulation_step}")
        if config.amp.level != "O0":
            parts.append(f"amp {config.amp.level} {config.amp.dtype}")
        kind = _loss_scale_kind(config)
        if kind in {"fixed", "dynamic"}:
            groups = f", {config.loss_scale.groups} groups" if self.loss_scale_group else ""
            parts.append(f"{kind} loss scale{groups}")
        elif self.loss_scale_group:
            parts.append(f"{config.loss_scale.groups} loss scale groups")
        if config.optimizer is not None and not self.dim_reduce:
            named = config.optimizer.name or "task's optimizer"
            rates = ", ".join(f"{name} {value}" for name, value in config.optimizer.hyper_parameters().items())
            parts.append(f"{named} ({rates})" if rates else named)
        return " + ".join(parts) or "nothing switched on"

    def explicit_config(self) -> BoostConfig:
        """Return the configuration in mode manual, each switch set to what is in effect: any level means this plan."""
        switches: dict[str, Any] = {f"boost.{name}": getattr(self, name) for name in SWITCHES}
        return self.config.with_values({"boost.mode": "manual", **switches})

    def __eq__(self, other: object) -> bool:
        return self.key() == other.key() if isinstance(other, Plan) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.key())

    def __repr__(self) -> str:
        return f"Plan({self.level}, {self.summary()})"

    def _names_in_effect(self) -> dict[str, Collection[str]]:
        """Return section -> names of the parameters that have a say, whether they are set or not."""
        config = self.config
        on = {name: _EVERY if getattr(self, name) else () for name in _OWN_SECTIONS}
        optimizer = config.optimizer
        return on | {
            # A single rank reduces nothing.
            "common": [
                *(["device_number"] if self.adasum else []),
                *(["gradient_split_groups"] if self.world_size > 1 else []),
            ],
            "loss_scale": _loss_scale_parameters(config, grouped=self.loss_scale_group),
            "amp": _EVERY if config.amp.level != "O0" else ("level",),
            "optimizer": self._optimizer_parameters(optimizer),
            "snapshots": _EVERY if config.snapshots.count > 0 else ("count",),
            "compatibility": self._options_in_effect(),
        }

    def _optimizer_parameters(self, optimizer: OptimizerConfig | None) -> Collection[str]:
        if self.dim_reduce:  # it steps by itself
            return ()
        if optimizer is None:
            return _EVERY
        return ["name", *(name for name in type(optimizer).model_fields if name != "name" and optimizer.takes(name))]

    def _options_in_effect(self) -> list[str]:
        config, optimizer = self.config, self.config.optimizer
        kind = _loss_scale_kind(config)
        matters = {
            "freeze_state": self.grad_freeze,
            "less_bn_match": self.less_bn,
            "fn_scope": self.less_bn and config.less_bn.fn_flag,
            "fn_bias": self.less_bn and config.less_bn.fn_flag,
            "grad_centralization": self.less_bn and config.less_bn.gc_flag,
            "loss_scale_ceiling": kind in {"dynamic", None},
            "adasum_servers": self.adasum,
            "dim_reduce": self.dim_reduce,
            "group_loss_scale": self.loss_scale_group,
            # A task's own optimizer may be THOR, too.
            "thor_factors": not self.dim_reduce and (optimizer is None or optimizer.name in {None, "thor"}),
        }
        return [name for name, counts in matters.items() if counts]


def deciding(section: str, part: Any, network: NetworkFacts | None = None) -> tuple[Any, ...]:
    """Return what of one section decides which parameters are in effect.

    Two configurations that agree in this, section by section, have the same outline at the same level on the same
    number of ranks. Whoever asks about thousands of configurations can look their outline up by it.

    Args:
        section: Name of the section.
        part: The section itself; None for an optimizer that is the task's own.
        network: What the network offers, where that is known.
    """
    match section:
        case "boost":
            return (part.mode, *(getattr(part, name) for name in SWITCHES))
        case "common":
            return (part.device_number,)
        case "less_bn":
            return (part.fn_flag, part.gc_flag)
        case "grad_freeze":
            layers = () if network is None else (network.layers, network.layers_left, network.layers_left_by_reference)
            too_many = tuple(part.param_groups > count for count in layers)
            return (part.param_groups == 1, part.total_steps == 0, *too_many)
        case "grad_accumulation":
            return (part.grad_accumulation_step == 1,)
        case "dim_reduce":
            return (part.pca_mat_path is None, part.weight_load_dir is None, part.line_search_trials)
        case "loss_scale":
            return (part.kind, part.drop_overflow_update)
        case "amp":
            return (part.level, part.dtype, part.keep_batchnorm_fp32)
        case "optimizer":
            return () if part is None else (part.name,)
        case "snapshots":
            return (part.count > 0,)
        case "compatibility":
            return (part.adasum_servers, part.dim_reduce, part.less_bn_match, part.fn_scope)
    return ()  # provenance tells, it does not act


def sections_deciding(path: str) -> frozenset[str] | None:
    """Return the sections whose `deciding` facts say whether two values of a parameter can give two plans.

    Args:
        path: Path of the parameter.

    Returns:
        Names of sections, its own among them; None where any section may have a say.
    """
    return _SECTIONS_DECIDING.get(path) or _SECTIONS_DECIDING.get(path.partition(".")[0])


def line_search_trials(config: BoostConfig) -> int:
    """Return how many step lengths DimReduce tries: what is set, else 8, or 2 as the original where it is followed."""
    given = config.dim_reduce.line_search_trials
    return given or (2 if config.compatibility.dim_reduce == "reference" else 8)


def resolve(config: BoostConfig, level: str = "O0", world_size: int = 1, network: NetworkFacts | None = None) -> Plan:
    """Decide what is in effect.

    Args:
        config: The configuration.
        level: ``"O0"``, ``"O1"`` or ``"O2"``.
        world_size: Number of ranks, at least 1.
        network: What the network offers; None where it is not known, and every method is taken to find work.

    Returns:
        The plan; ``dropped`` has a sentence for each thing asked for and not in effect.

    Raises:
        ConfigError: When the level is unknown, the number of ranks is no positive whole number, or dim_reduce is asked
            for without a source of its subspace.
    """
    requested = requested_switches(config, level)
    if isinstance(world_size, bool) or not isinstance(world_size, int) or world_size < 1:
        raise ConfigError(f"`world_size` must be a whole number at least 1, got {shown(world_size)}")
    if requested["dim_reduce"]:
        _check_subspace_source(config)
    dropped = []
    for name in SWITCHES:
        if requested[name]:
            reason = _why_not(name, config, requested, world_size, network)
            if reason:
                dropped.append(Dropped(name, reason))
    refused = {entry.name for entry in dropped}
    return Plan(
        level=level,
        mode=config.boost.mode,
        world_size=world_size,
        config=config,
        requested=requested,
        dropped=(*dropped, *_idle_optimizer_parameters(config, dim_reduce=requested["dim_reduce"])),
        **{name: requested[name] and name not in refused for name in SWITCHES},
    )


def _check_subspace_source(config: BoostConfig) -> None:
    if config.dim_reduce.pca_mat_path is None and config.dim_reduce.weight_load_dir is None:
        raise ConfigError(
            "dim_reduce needs a source of its subspace: set `dim_reduce.pca_mat_path` to a .npy matrix [n_components, "
            "parameters] or `dim_reduce.weight_load_dir` to a folder of weight snapshots (a run with `snapshots.count` "
            "above 0 records them), or switch `boost.dim_reduce` off"
        )


def _why_not(
    name: str, config: BoostConfig, requested: Mapping[str, bool], world_size: int, network: NetworkFacts | None
) -> str:
    """Return why a requested algorithm is not in effect, or an empty string when it is."""
    if name == "dim_reduce":
        return ""
    if requested["dim_reduce"]:
        return f"{name} is not in effect because dim_reduce is on, which runs alone"
    if name == "adasum" and requested["grad_freeze"]:
        return "adasum is not in effect because grad_freeze is on; switch grad_freeze off to use it"
    if name == "adasum":
        return _why_no_adasum(config, world_size)
    if name == "grad_freeze" and config.grad_freeze.param_groups == 1:
        return (
            "grad_freeze is not in effect because `grad_freeze.param_groups` is 1: the only group is the whole network"
        )
    if name == "grad_freeze" and config.grad_freeze.total_steps == 0:
        return "grad_freeze is not in effect because `grad_freeze.total_steps` is 0: its schedule has no step"
    if name == "less_bn" and network is not None:
        reason = network.why_no_less_bn(config)
        return reason and f"{name} is not in effect because {reason}"
    if name == "grad_freeze" and network is not None:
        reason = network.why_no_freezing(config, less_bn=requested["less_bn"] and network.less_bn_acts(config))
        return reason and f"{name} is not in effect because {reason}"
    if name == "grad_accumulation" and config.grad_accumulation.grad_accumulation_step == 1:
        return "grad_accumulation is not in effect because `grad_accumulation.grad_accumulation_step` is 1"
    if name == "loss_scale_group" and _loss_scale_kind(config) not in {"dynamic", None}:
        return (
            f"loss_scale_group is not in effect because the loss scale is {_loss_scale_kind(config)}; set "
            "`loss_scale.kind` to dynamic, or `amp.level` to O2 with `amp.dtype` float16"
        )
    return ""


def _why_no_adasum(config: BoostConfig, world_size: int) -> str:
    eight = config.compatibility.adasum_servers == "eight"
    ranks = 8 if eight else config.common.device_number
    servers, left_over = divmod(world_size, ranks)
    power_of_two = servers > 1 and servers & (servers - 1) == 0
    if power_of_two and (eight or not left_over):  # As upstream: with eight, left-over ranks go unnoticed
        return ""
    have = f"{world_size} {'rank' if world_size == 1 else 'ranks'}"
    return (
        f"adasum is not in effect because it needs 2, 4, 8, ... full servers of {ranks} ranks "
        f"({'fixed by `compatibility.adasum_servers`' if eight else '`common.device_number`'}), and there are {have}"
    )


def _idle_optimizer_parameters(config: BoostConfig, *, dim_reduce: bool) -> list[Dropped]:
    optimizer = config.optimizer
    if optimizer is None:
        return []
    if dim_reduce:
        return [Dropped("optimizer", "section optimizer is not in effect because dim_reduce makes its own steps")]
    return [
        Dropped(
            f"optimizer.{name}", f"`optimizer.{name}` is not in effect because {optimizer.name} has no such parameter"
        )
        for name in type(optimizer).model_fields
        if name != "name" and getattr(optimizer, name) is not None and not optimizer.takes(name)
    ]


def _loss_scale_kind(config: BoostConfig) -> str | None:
    """Return the kind of loss scale; None when only the device decides it (amp auto with float16)."""
    if config.loss_scale.kind is None and config.amp.level == "auto" and config.amp.dtype == "float16":
        return None
    return config.effective_loss_scale_kind("")


def _loss_scale_parameters(config: BoostConfig, *, grouped: bool) -> set[str]:
    names = {"kind"}
    match _loss_scale_kind(config):
        case "fixed":
            names |= {"init", "drop_overflow_update"}
            if config.loss_scale.drop_overflow_update:  # only then an overflow is looked for
                names |= {"collapse_after"}
        case "dynamic" | None:
            names |= {"init", "factor", "window", "minimum", "maximum", "collapse_after"}
    return names | ({"groups"} if grouped else set())


def _percent(share: float) -> str:
    return f"{100 * share:.3g} %"
