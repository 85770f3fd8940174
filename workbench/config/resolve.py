"""What a configuration means at a level: which algorithms are in effect, and why the others are not.

The mode and the level give the switches asked for. What each of them, and each parameter, needs to be in effect is
declared with it (``workbench.config.boost``) and answered by ``workbench.config.conditions``.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from workbench.config.boost import SWITCHES, requested_switches
from workbench.config.conditions import loss_scale_kind
from workbench.config.errors import ConfigError, shown
from workbench.config.facts import Facts
from workbench.config.parameters import describe_parameters, parameters_by_section
from workbench.config.section import MethodSection, Section
from workbench.methods.registry import METHODS

if TYPE_CHECKING:
    from workbench.config.boost_config import BoostConfig
    from workbench.config.facts import NetworkFacts


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
    world_size: int
    config: BoostConfig
    requested: Mapping[str, bool]
    dropped: tuple[Dropped, ...] = ()
    network: NetworkFacts | None = None
    less_bn: bool = False
    grad_freeze: bool = False
    adasum: bool = False
    grad_accumulation: bool = False
    dim_reduce: bool = False
    loss_scale_group: bool = False

    def in_effect(self) -> tuple[str, ...]:
        """Return the methods in effect: the reference's switches in its order, then those with their own section."""
        return self._methods

    @cached_property
    def _methods(self) -> tuple[str, ...]:  # a search asks each of thousands of plans for every method
        switches = (name for name in SWITCHES if getattr(self, name))
        with_sections = ((one.name, getattr(self.config, one.section)) for one in METHODS if one.section_class)
        return (*switches, *(name for name, part in with_sections if section_acts(part, self.config, self.facts)))

    def is_in_effect(self, name: str) -> bool:
        """Return whether a method is in effect."""
        return name in self.in_effect()

    def level_defaults(self) -> dict[str, bool]:
        """Return the switches that the configuration leaves to the level although its mode is manual, and how they are.

        As in the original a switch that is not named follows the level, whatever else was switched on.
        """
        if self.config.boost.mode != "manual":
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
        sentences = [entry.reason for entry in self.dropped]
        if any(self.requested.values()) and not self.in_effect():
            sentences.append(f"level {self.level} is equal to O0 here: none of the methods it asks for is in effect")
        return sentences

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
        for section, parameters in parameters_by_section().items():
            part = getattr(config, section)
            if section == "boost" or part is None or not section_acts(part, config, facts):
                continue  # a method that is off is as one that does not exist: keys of plans outlive new methods
            for name, about in parameters.items():
                value = getattr(part, name)
                if value is None and about.unset is not None:
                    value = about.unset(config)
                if value is not None and not about.when.why_not(config, facts):
                    effective[about.path] = value
        return {**effective, "loss_scale.kind": loss_scale_kind(config)}

    @cached_property
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
        return _digest(self._effective)

    def training_key(self) -> str:
        """Return a short text that plans share which train alike, though a parameter that is rounded differs.

        A schedule that has whole steps only makes the same of many values. `key` must tell these apart: studies
        keep their runs by it, and go on from those begun earlier.
        """
        infos, effective = describe_parameters(), self._effective
        shares = {path: share(self.config) for path in effective if (share := infos[path].share)}
        return _digest(effective | shares)

    def step_key(self) -> str:
        """Return a short text that plans share whose steps take equally long; rates and lengths do not count."""
        infos = describe_parameters()
        return _digest({path: value for path, value in self._effective.items() if infos[path].step_time})

    def summary(self) -> str:
        """Return what is in effect in a few words, for example ``"amp O2 float16 + dynamic loss scale"``."""
        config = self.config
        methods = {one.name: one for one in METHODS}
        parts = [
            self._acting_part(one.section).summary() or one.title
            for one in map(methods.__getitem__, self.in_effect())
            if one.section != "loss_scale"  # which stands further down
        ]
        if config.amp.level != "O0":
            parts.append(f"amp {config.amp.level} {config.amp.dtype}")
        kind = loss_scale_kind(config)
        if kind in {"fixed", "dynamic"}:
            groups = f", {config.loss_scale.groups} groups" if self.matters("loss_scale.groups") else ""
            parts.append(f"{kind} loss scale{groups}")
        elif self.matters("loss_scale.groups"):
            parts.append(f"{config.loss_scale.groups} loss scale groups")
        if config.optimizer is not None and self.matters("optimizer.name"):
            named = config.optimizer.name or "task's optimizer"
            rates = ", ".join(f"{name} {_brief(value)}" for name, value in config.optimizer.hyper_parameters().items())
            parts.append(f"{named} ({rates})" if rates else named)
        return " + ".join(parts) or "nothing switched on"

    def _acting_part(self, section: str) -> Section:
        """Return a section with what is left out of it at its default."""
        part: Section = getattr(self.config, section)
        left_out = part.left_out(self.config, self.facts) if isinstance(part, MethodSection) else {}
        return part.model_copy(update={name: type(part).model_fields[name].default for name in left_out})

    def explicit_config(self) -> BoostConfig:
        """Return the configuration in mode manual, each switch set to what is in effect: any level means this plan."""
        return self.config.with_values(
            {"boost.mode": "manual"} | {f"boost.{name}": getattr(self, name) for name in SWITCHES}
        )

    def __eq__(self, other: object) -> bool:
        return self.key() == other.key() if isinstance(other, Plan) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.key())

    def __repr__(self) -> str:
        return f"Plan({self.level}, {self.summary()})"


def resolve(config: BoostConfig, level: str = "O0", world_size: int = 1, network: NetworkFacts | None = None) -> Plan:
    """Decide what is in effect, see `BoostConfig.resolve`; a number of ranks that is none is a ConfigError, too."""
    requested = requested_switches(config, level)
    if isinstance(world_size, bool) or not isinstance(world_size, int) or world_size < 1:
        raise ConfigError(f"`world_size` must be a whole number at least 1, got {shown(world_size)}")
    facts = Facts(level, world_size, network)
    refused = {name: reason for name in SWITCHES if requested[name] and (reason := why_no_method(name, config, facts))}
    for name, reason in refused.items():
        if describe_parameters()[f"boost.{name}"].must_act:
            raise ConfigError(reason)
    dropped = (Dropped(name, reason) for name, reason in refused.items())
    return Plan(
        level=level,
        world_size=world_size,
        config=config,
        requested=requested,
        dropped=(*dropped, *_idle_sections(config, facts)),
        network=network,
        **{name: requested[name] and name not in refused for name in SWITCHES},
    )


def why_no_method(name: str, config: BoostConfig, facts: Facts) -> str:
    """Return a sentence that says why a method would not be in effect if it were asked for; empty where it would."""
    switch = describe_parameters()[f"boost.{name}"]
    reason = switch.needs.why_not(config, facts)
    if not reason or switch.must_act:  # which is refused, rather than left out
        return reason
    return f"{name} is not in effect because {reason}"


def section_acts(part: Any, config: BoostConfig, facts: Facts) -> bool:
    """Return whether a section is in effect; one that belongs to no method always is."""
    is_asked_for = bool(getattr(part, "enabled", True))
    return is_asked_for and not (isinstance(part, MethodSection) and part.why_not(config, facts))


def _idle_sections(config: BoostConfig, facts: Facts) -> Iterator[Dropped]:
    owners = {method.section: method.name for method in METHODS if method.section_class} | {"optimizer": "optimizer"}
    for section, owner in owners.items():
        part = getattr(config, section)
        if not isinstance(part, MethodSection) or not part.enabled:
            continue
        if reason := part.why_not(config, facts):
            yield Dropped(owner, f"section {section} is not in effect because {reason}")
            continue
        for name, reason in part.left_out(config, facts).items():
            path = f"{section}.{name}"
            yield Dropped(path, f"`{path}` is not in effect because {reason}")


def _digest(effective: Mapping[str, Any]) -> str:
    canonical = json.dumps(effective, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()[:16]


def _brief(value: Any) -> Any:
    return float(f"{value:.3g}") if isinstance(value, float) else value
