"""Whether two values of a parameter give two different plans, asked thousands of times per trial.

Asking the plans themselves is exact and slow: each is a configuration validated, resolved and written out. But values
decide little. Which parameters are in effect depends on few facts of a configuration (`workbench.config.deciding`), of
which a study meets few combinations; so the outline of each is kept. Two configurations that differ in one parameter
then have equal plans if and only if their outlines are equal and the parameter is either outside of them or the same.
"""

from __future__ import annotations

import functools
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

from workbench.config import (
    BoostConfig,
    ConfigError,
    Outline,
    deciding,
    sections_deciding,
)
from workbench.config.section import Section
from workbench.study.ask.plans import StudyPlans

__all__ = ["Differences"]

_MOST_SECTIONS = 2_000
_MOST_OUTLINES = 50_000  # some ten MB; most of them share what they hold

_Facts = tuple[Hashable, ...]


class _Outlines:
    """Outlines of plans by level and deciding facts, each kept once, so that equal ones are the same object.

    Args:
        plans: How the study resolves configurations.
    """

    def __init__(self, plans: StudyPlans) -> None:
        self._plans = plans
        self._by_facts: dict[Hashable, _Outline] = {}
        self._kept: dict[Hashable, _Outline] = {}

    def of(self, config: BoostConfig, level: str, changes: Mapping[str, Any], facts: _Facts) -> _Outline:
        """Return the outline of a changed configuration.

        Args:
            config: The configuration.
            level: Boost level.
            changes: Path -> value of what is changed.
            facts: What of the changed configuration decides.

        Raises:
            ConfigError: When it cannot be resolved.
        """
        found = self._by_facts.get((level, facts))
        if found is None:
            if len(self._by_facts) >= _MOST_OUTLINES:
                self._by_facts.clear()
            outline = _Outline(self._plans.resolve(config.with_values(changes), level).outline())
            found = self._by_facts[level, facts] = self._kept.setdefault(outline.key, outline)
        return found


class _Outline:
    """An outline that knows quickly whether a path is in it."""

    def __init__(self, outline: Outline) -> None:
        derived = tuple(sorted(outline.derived.items(), key=lambda item: item[0]))
        self.key: Hashable = (tuple(outline.names.items()), derived)
        paths = {f"{section}.{name}" for section, names in outline.names.items() for name in names}
        self.paths = paths - outline.derived.keys()  # those whose values count as they stand


class _Known:
    """What is known of a section as it stands; shared by all configurations that have it alike.

    Attributes:
        changed: Changes of it -> the section with them and what of it decides, or why they are refused.
        asked: Values about which was asked last whether they decide.
        decisive: Those of them that do.
        differ: Questions of `Differences.differ` -> their answers; None for a section as it will hardly be met again.
    """

    __slots__ = ("asked", "changed", "decisive", "differ")

    def __init__(self, *, is_kept: bool) -> None:
        self.differ: dict[Hashable, bool] | None = {} if is_kept else None
        self.changed: dict[Hashable, tuple[Section | None, _Facts] | ConfigError] = {}
        self.asked: Sequence[tuple[str, Any]] | None = None
        self.decisive: tuple[tuple[str, Any], ...] = ()


@functools.lru_cache(maxsize=8)
def _outlines(plans: StudyPlans) -> _Outlines:
    return _Outlines(plans)


class Differences:
    """Compares the plans that values of one parameter would give, everything else being as in a configuration.

    One that is kept from trial to trial (`Differences.of`) knows of most sections what it is asked.

    Args:
        config: What is decided so far.
        level: Boost level.
        plans: How the study resolves configurations.
    """

    def __init__(self, config: BoostConfig, level: str, plans: StudyPlans) -> None:
        self._config = config
        self._level = level
        self._outlines, self._network = _outlines(plans), plans.network
        self._sections = {name: getattr(config, name) for name in type(config).model_fields}
        self._facts = {name: deciding(name, part, plans.network) for name, part in self._sections.items()}
        self._met: dict[tuple[str, Section | None], _Known] = {}
        self._known = {name: self._known_of(name, part) for name, part in self._sections.items()}

    @classmethod
    def of(cls, config: BoostConfig, level: str, plans: StudyPlans) -> Differences:
        """Return the same object for the same configuration, level and plans."""
        # Provenance is a dictionary, which is no key; a study's baseline has none.
        return _kept(config, level, plans) if config.provenance is None else cls(config, level, plans)

    def with_value(self, path: str, value: Any) -> Differences:
        """Return the same for a configuration with one more value; what is known of other sections is kept.

        Raises:
            ConfigError: When the value is refused.
        """
        changed = Differences.__new__(Differences)
        changed._config = self._config.with_values({path: value})
        changed._level, changed._outlines, changed._network = self._level, self._outlines, self._network
        section = path.partition(".")[0]
        part = getattr(changed._config, section)
        changed._sections = {**self._sections, section: part}
        changed._facts = {**self._facts, section: deciding(section, part, self._network)}
        changed._met = self._met
        changed._known = {**self._known, section: self._known_of(section, part)}
        return changed

    @property
    def config(self) -> BoostConfig:
        """What is decided so far."""
        return self._config

    def differ(self, path: str, values: Sequence[Any], besides: tuple[str, Any] | None = None) -> bool:
        """Return whether two of the values give two different plans; being refused is an outcome of its own.

        Args:
            path: Path of the parameter in question.
            values: Values of it, at least one.
            besides: Path and value of another parameter, set before it.
        """
        section, _, _ = path.partition(".")
        other = section if besides is None else besides[0].partition(".")[0]
        # The answer depends on the two sections as they stand and on what decides in the others that have a say.
        having_say = sections_deciding(path)
        table = self._known[section].differ
        if table is None or self._known[other].differ is None:
            return self._differ(path, values, besides)
        keys = tuple(map(_as_key, values))
        beside = None if besides is None else (besides[0], _as_key(besides[1]), self._known[other])
        facts = tuple([own for name, own in self._facts.items() if having_say is None or name in having_say])
        question = (path, keys, beside, facts)
        answer = table.get(question)
        if answer is None:
            answer = table[question] = self._differ(path, values, besides)
        return answer

    def _differ(self, path: str, values: Sequence[Any], besides: tuple[str, Any] | None) -> bool:
        first = self._outcome(path, values[0], besides)
        return any(self._outcome(path, value, besides) != first for value in values[1:])

    def _known_of(self, section: str, part: Section | None) -> _Known:
        """Return what is known of a section as it stands; kept for the first that are met, switches among them."""
        if isinstance(part, dict):  # provenance, which is no key and decides nothing
            return _Known(is_kept=False)
        known = self._met.get((section, part))
        if known is None:
            is_kept = len(self._met) < _MOST_SECTIONS
            known = _Known(is_kept=is_kept)
            if is_kept:
                self._met[section, part] = known
        return known

    def decisive(self, section: str, values: Sequence[tuple[str, Any]]) -> tuple[tuple[str, Any], ...]:
        """Return the values that are possible and change anything that decides what else is in effect.

        Args:
            section: Section of the configuration.
            values: Paths in it with values. The answer is kept for those that were asked about last.
        """
        known = self._known[section]
        if known.asked != values:
            known.asked, known.decisive = values, tuple(one for one in values if self._decides(section, one))
        return known.decisive

    def possible(self, path: str, value: Any) -> bool:
        """Return whether a value is not refused."""
        return not isinstance(self._section((path, value)), ConfigError)

    def _decides(self, section: str, change: tuple[str, Any]) -> bool:
        changed = self._section(change)
        return not isinstance(changed, ConfigError) and changed[1] != self._facts[section]

    def _outcome(self, path: str, value: Any, besides: tuple[str, Any] | None) -> object:
        section, _, name = path.partition(".")
        facts = self._facts
        changes: tuple[tuple[str, Any], ...] = ((path, value),)
        if besides is not None:
            other = besides[0].partition(".")[0]
            if other == section:
                changes = (besides, (path, value))
            else:
                changed = self._section(besides)
                if isinstance(changed, ConfigError):
                    return f"refused: {changed}"
                facts = {**facts, other: changed[1]}
        changed = self._section(*changes)
        if isinstance(changed, ConfigError):
            return f"refused: {changed}"
        part, own_facts = changed
        facts = {**facts, section: own_facts}
        try:
            everything = dict(changes) if besides is None else dict((besides, (path, value)))
            outline = self._outlines.of(self._config, self._level, everything, tuple(facts.values()))
        except ConfigError as error:
            return f"refused: {error}"
        return outline, getattr(part, name) if path in outline.paths and part is not None else None

    def _section(self, *changes: tuple[str, Any]) -> tuple[Section | None, _Facts] | ConfigError:
        """Return a changed section with what of it decides, or why it is refused; all changes are of one section."""
        section = changes[0][0].partition(".")[0]
        key = tuple([(path, _as_key(value)) for path, value in changes])
        table = self._known[section].changed
        known = table.get(key)
        if known is None:
            try:
                part = getattr(self._config.with_values(dict(changes)), section)
                known = (part, deciding(section, part, self._network))
            except ConfigError as error:
                known = error
            table[key] = known
        return known


@functools.lru_cache(maxsize=32)
def _kept(config: BoostConfig, level: str, plans: StudyPlans) -> Differences:
    return Differences(config, level, plans)


def _as_key(value: Any) -> Hashable:
    """Return what stands for a value in a dictionary: a list is no key, and true equals 1 without being the same."""
    return type(value), value if isinstance(value, (bool, int, float, str)) else repr(value)
