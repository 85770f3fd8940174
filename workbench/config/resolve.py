"""What a configuration means at a level: which algorithms are in effect, and why the others are not.

The mode and the level give the six switches asked for (``workbench.config.levels``). What each of them, and each
parameter, needs to be in effect is declared beside it and answered by ``workbench.config.conditions``. The rules are
those of MindSpore 2.7 (``mindspore/boost/boost.py``) but for these:

* dim_reduce needs a source of its subspace; the original finds that out in the middle of training.
* adasum needs at least 2 servers, a power of two. The original divides by 8 whatever device_number says; that rule is
  ``compatibility.adasum_servers = "eight"``.
* What changes nothing is not in effect: accumulation over 1 micro-batch, freezing with 1 group or over 0 steps and,
  where the network is known (``NetworkFacts``), less_bn without a BatchNorm to spare and freezing with more groups than
  layers.
* loss_scale_group needs a dynamic loss scale.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from typing import TYPE_CHECKING, Any

from workbench.config.conditions import loss_scale_kind
from workbench.config.errors import ConfigError, shown
from workbench.config.facts import Facts
from workbench.config.levels import SWITCHES, requested_switches
from workbench.config.parameters import describe_parameters
from workbench.config.section import MethodSection
from workbench.methods.registry import METHODS

if TYPE_CHECKING:
    from workbench.config.boost_config import BoostConfig
    from workbench.config.facts import NetworkFacts
    from workbench.methods.protocol import Description

__all__ = ["Dropped", "Plan", "line_search_trials", "resolve", "why_no_method"]


@dataclass(frozen=True, slots=True)
class Dropped:
    """Something that was asked for and is not in effect: a switch or config path, and the reason in one sentence."""

    name: str
    reason: str


@dataclass(frozen=True, eq=False)
class Plan:
    """What is in effect at a level, in a mode, on so many ranks.

    Two plans are equal when the same things are in effect with the same parameters, whatever level or mode asked for
    them: O1 and O2 on one device are one configuration. ``requested`` are the six switches as the original resolves
    them; those of the plan say what of it is in effect, and ``dropped`` why the rest is not.
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
    dropped: tuple[Dropped, ...] = ()
    network: NetworkFacts | None = None

    def in_effect(self) -> tuple[str, ...]:
        """Return the methods in effect: the reference's switches in its order, then those with their own section."""
        switches = (name for name in SWITCHES if getattr(self, name))
        return (*switches, *(method.name for method in METHODS if self._enables(method)))

    def is_in_effect(self, name: str) -> bool:
        """Return whether a method is in effect."""
        return name in self.in_effect()

    def _enables(self, method: Description) -> bool:
        """Return whether a method with a section of its own is in effect."""
        if not method.section_class:
            return False
        return section_acts(getattr(self.config, method.section), self.config, self.facts)

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
        return dict(self._effective)

    @cached_property
    def _effective(self) -> dict[str, Any]:
        config, facts = self.config, self.facts
        effective: dict[str, Any] = {f"boost.{name}": getattr(self, name) for name in SWITCHES}
        by_section = groupby(describe_parameters().items(), key=lambda item: item[0].partition(".")[0])
        for section, parameters in by_section:
            part = getattr(config, section)
            if section == "boost" or part is None or not section_acts(part, config, facts):
                continue  # a method that is off is as one that does not exist: keys of plans outlive new methods
            for path, about in parameters:
                value = getattr(part, path.partition(".")[2])
                if value is not None and not about.when.why_not(config, facts):
                    effective[path] = value
        # What follows from other parameters.
        effective["loss_scale.kind"] = loss_scale_kind(config)
        if self.dim_reduce:
            effective["dim_reduce.line_search_trials"] = line_search_trials(config)
        if config.amp.level in {"O2", "O3"}:
            effective["amp.keep_batchnorm_fp32"] = config.effective_keep_batchnorm_fp32("")
        return effective

    @property
    def facts(self) -> Facts:
        """What the configuration meets."""
        return Facts(self.level, self.world_size, self.network)

    def why_not(self, path: str) -> str:
        """Return why a parameter is not in effect, to stand after "because"; empty where it is.

        A switch is in effect where it can be turned, whether its method acts or not.
        """
        return describe_parameters()[path].when.why_not(self.config, self.facts)

    def matters(self, path: str) -> bool:
        """Return whether changing one parameter may change what this plan does."""
        return not self.why_not(path)

    def idle_reason(self, path: str) -> str:
        """Return `why_not`, but nothing where a method that is off waits for this parameter: setting it is a way on."""
        refusals = (why_no_method(name, self.config, self.facts) for name in SWITCHES)
        return "" if any(f"`{path}`" in refusal for refusal in refusals) else self.why_not(path)

    def key(self) -> str:
        """Return a short text that equal plans, and only equal plans, share."""
        return _digest(self.parameters_in_effect())

    def training_key(self) -> str:
        """Return a short text that plans share which train alike, though a parameter that is rounded differs.

        A continuous freezing schedule has whole steps only, so many values of ``grad_freeze.freeze_p`` make the same
        one. `key` tells these apart and has to: studies keep their runs by it, and go on from those begun earlier.
        """
        effective = self.parameters_in_effect()
        if self.grad_freeze:
            effective["grad_freeze.freeze_p"] = self.config.grad_freeze.frozen_share()
        return _digest(effective)

    def step_key(self) -> str:
        """Return a short text that plans share whose steps take equally long; rates and lengths do not count."""
        told = describe_parameters()
        timed = {
            path: value
            for path, value in self.parameters_in_effect().items()
            if path not in told or told[path].step_time
        }
        return _digest(timed)

    def summary(self) -> str:
        """Return what is in effect in a few words, for example ``"LessBN + freezing (frozen steps: 30 %)"``."""
        config = self.config
        said = {
            "dim_reduce": f"DimReduce ({config.dim_reduce.n_components} components)",
            "less_bn": "LessBN",
            "grad_freeze": f"freezing (frozen steps: {100 * config.grad_freeze.frozen_share():.3g} %)",
            "adasum": "AdaSum",
            "grad_accumulation": f"accumulation over {config.grad_accumulation.grad_accumulation_step}",
        }
        parts = [words for name, words in said.items() if getattr(self, name)]
        parts += [_said(method, config) for method in METHODS if self._enables(method)]
        if config.amp.level != "O0":
            parts.append(f"amp {config.amp.level} {config.amp.dtype}")
        kind = loss_scale_kind(config)
        if kind in {"fixed", "dynamic"}:
            groups = f", {config.loss_scale.groups} groups" if self.loss_scale_group else ""
            parts.append(f"{kind} loss scale{groups}")
        elif self.loss_scale_group:
            parts.append(f"{config.loss_scale.groups} loss scale groups")
        if config.optimizer is not None and not self.dim_reduce:
            named = config.optimizer.name or "task's optimizer"
            rates = ", ".join(f"{name} {_brief(value)}" for name, value in config.optimizer.hyper_parameters().items())
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


def line_search_trials(config: BoostConfig) -> int:
    """Return how many step lengths DimReduce tries: what is set, else 8, or 2 as the original where it is followed."""
    given = config.dim_reduce.line_search_trials
    return given or (2 if config.compatibility.dim_reduce == "reference" else 8)


def resolve(config: BoostConfig, level: str = "O0", world_size: int = 1, network: NetworkFacts | None = None) -> Plan:
    """Decide what is in effect; without a network every method is taken to find work.

    Raises:
        ConfigError: When the level is unknown, the number of ranks is no positive whole number, or dim_reduce is asked
            for without a source of its subspace.
    """
    requested = requested_switches(config, level)
    if isinstance(world_size, bool) or not isinstance(world_size, int) or world_size < 1:
        raise ConfigError(f"`world_size` must be a whole number at least 1, got {shown(world_size)}")
    facts = Facts(level, world_size, network)
    refused = {name: reason for name in SWITCHES if requested[name] and (reason := why_no_method(name, config, facts))}
    if "dim_reduce" in refused:
        raise ConfigError(refused["dim_reduce"])
    dropped = (Dropped(name, reason) for name, reason in refused.items())
    return Plan(
        level=level,
        mode=config.boost.mode,
        world_size=world_size,
        config=config,
        requested=requested,
        dropped=(*dropped, *_idle_sections(config, facts), *_idle_optimizer_parameters(config, facts)),
        network=network,
        **{name: requested[name] and name not in refused for name in SWITCHES},
    )


def why_no_method(name: str, config: BoostConfig, facts: Facts) -> str:
    """Return a sentence that says why a method would not be in effect if it were asked for; empty where it would."""
    reason = describe_parameters()[f"boost.{name}"].needs.why_not(config, facts)
    if not reason or name == "dim_reduce":  # which is refused, rather than left out, without a source of its subspace
        return reason
    return f"{name} is not in effect because {reason}"


def section_acts(part: Any, config: BoostConfig, facts: Facts) -> bool:
    """Return whether a section is in effect; one that no method brought along is."""
    is_asked_for = bool(getattr(part, "enabled", True))
    return is_asked_for and not (isinstance(part, MethodSection) and part.why_not(config, facts))


def _said(method: Description, config: BoostConfig) -> str:
    part = getattr(config, method.section)
    return (part.summary() if isinstance(part, MethodSection) else "") or method.title


def _idle_sections(config: BoostConfig, facts: Facts) -> Iterator[Dropped]:
    for method in METHODS:
        part = getattr(config, method.section) if method.section_class else None
        if not isinstance(part, MethodSection) or not part.enabled:
            continue
        if reason := part.why_not(config, facts):
            yield Dropped(method.name, f"section {method.section} is not in effect because {reason}")
            continue
        for name, reason in part.left_out(config, facts).items():
            path = f"{method.section}.{name}"
            yield Dropped(path, f"`{path}` is not in effect because {reason}")


def _idle_optimizer_parameters(config: BoostConfig, facts: Facts) -> Iterator[Dropped]:
    infos, optimizer = describe_parameters(), config.optimizer
    if optimizer is None:
        return
    reason = infos["optimizer.name"].when.why_not(config, facts)
    if reason:
        yield Dropped("optimizer", f"section optimizer is not in effect because {reason}")
        return
    for name in type(optimizer).model_fields:
        path = f"optimizer.{name}"
        reason = infos[path].when.why_not(config, facts)
        if reason and getattr(optimizer, name) is not None:
            yield Dropped(path, f"`{path}` is not in effect because {reason}")


def _digest(effective: Mapping[str, Any]) -> str:
    canonical = json.dumps(effective, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()[:16]


def _brief(value: Any) -> Any:
    return float(f"{value:.3g}") if isinstance(value, float) else value
