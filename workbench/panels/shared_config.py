"""The one configuration that all panels of a workbench look at and change, its history, and others kept by name."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from workbench.config import LEVELS, BoostConfig, ConfigError, NetworkFacts, Plan
from workbench.config.boost_json import parse_json

Observer = Callable[[BoostConfig, str], None]
Setup = tuple[BoostConfig, str]
"""A configuration and its level."""

_ONE_EDIT: Final = 1.5  # seconds within which further changes of one value are the same edit: a slider that is dragged
_EDITS_KEPT: Final = 200


class SharedConfig:
    """A valid configuration with a level, and the observers of both; every change can be undone.

    What was taken as a whole (a file, a trial, a name) still exists at its source. Edits made since do not unless they
    are kept under a name: ``is_edited`` tells, and panels ask before they replace them.

    Attributes:
        network: What the network offers to the methods; None until one has been examined.
        task: Name of the task whose network that is.
        kept: Name -> configuration and level kept under it.
    """

    def __init__(self, config: BoostConfig | None = None, level: str = "O1") -> None:
        self._lock = threading.RLock()
        self._provenances: list[tuple[Setup, dict[str, Any]]] = []
        self._both = self._bare(config if config is not None else BoostConfig(), _checked_level(level))
        self.network: NetworkFacts | None = None
        self.task = ""
        self.kept: dict[str, Setup] = {}
        self._past: list[Setup] = []
        self._future: list[Setup] = []
        self._last_edit = frozenset[str](), 0.0  # what it changed, and when
        self._taken = [self._both]  # whole, and so to be had again
        self._observers: list[Observer] = []

    @property
    def config(self) -> BoostConfig:
        """The configuration; always a valid one."""
        return self._both[0]

    @property
    def level(self) -> str:
        """The boost level."""
        return self._both[1]

    def both(self) -> Setup:
        """Return configuration and level as they belong together."""
        return self._both

    def with_provenance(self) -> Setup:
        """Return both, with the section ``provenance`` that came along: where the set-up comes from, its verdict.

        Provenance holds for that very set-up and not for an edit of it, so ``config`` itself has none.
        """
        with self._lock:
            config, level = self._both
            found = [provenance for setup, provenance in self._provenances if setup == self._both]
        return config.with_values({"provenance": found[-1]}) if found else config, level

    def plan_or_problem(self, world_size: int = 1) -> tuple[Plan | None, str]:
        """Return what is in effect on ``world_size`` ranks; where a method lacks something, None and what it lacks."""
        config, level = self._both
        try:
            return config.resolve(level, world_size, self.network), ""
        except ConfigError as error:
            return None, str(error)

    def found_elsewhere(self) -> str:
        """Return a sentence where the set-up was found on another task than the one of the panels; empty elsewhere."""
        return self.with_provenance()[0].found_elsewhere(self.task) if self.task else ""

    def learn(self, network: NetworkFacts, task: str = "") -> None:
        """Note what is known of the network, and whose it is, from now on, and call all observers."""
        self.network, self.task = network, task
        self._tell_observers()

    def set(self, config: BoostConfig, level: str | None = None, *, edited: bool = False) -> None:
        """Take another configuration, and level if given, and call all observers, unless nothing changes.

        Its provenance is what ``with_provenance`` returns for it. One that is ``edited`` was made by hand just now, and
        exists nowhere else.
        """
        self._replace(lambda _: config, level)
        if not edited:
            with self._lock:
                self._taken = [*self._taken[-_EDITS_KEPT:], self._both]

    def change(self, values: Mapping[str, Any], level: str | None = None) -> None:
        """Change some values, by path, and the level if given; a ConfigError leaves everything as it was."""
        self._replace(lambda config: config.with_values(values), level)

    @property
    def is_edited(self) -> bool:
        """Whether the configuration was made by hand since one was taken whole, and is not kept under a name."""
        return self._both not in (*self._taken, *self.kept.values())

    def undo(self) -> None:
        """Undo the last edit; nothing happens if there is none."""
        self._step(self._past, self._future)

    def redo(self) -> None:
        """Redo the edit that was undone last; nothing happens if there is none."""
        self._step(self._future, self._past)

    def undoes(self) -> list[str]:
        """Return the config paths, and ``level``, that ``undo`` would set back; empty when there is nothing to undo."""
        return differing(self._past[-1], self._both) if self._past else []

    def redoes(self) -> list[str]:
        """Return the same for ``redo``."""
        return differing(self._future[-1], self._both) if self._future else []

    def keep(self, name: str) -> None:
        """Keep the configuration under a name, in place of an earlier one; an empty name is a ConfigError."""
        if not name.strip():
            raise ConfigError("name the configuration, for example `fast`")
        with self._lock:
            self.kept = {**self.kept, name.strip(): self._both}
        self._tell_observers()

    def forget(self, name: str) -> None:
        """Forget what is kept under a name."""
        with self._lock:
            self.kept = {one: setup for one, setup in self.kept.items() if one != name}
        self._tell_observers()

    def observe(self, observer: Observer) -> Callable[[], None]:
        """Have a function called with every new configuration and level; calling what is returned ends this."""
        with self._lock:
            self._observers.append(observer)

        def leave() -> None:
            with self._lock:
                if observer in self._observers:
                    self._observers.remove(observer)

        return leave

    def _replace(self, make: Callable[[BoostConfig], BoostConfig], level: str | None) -> None:
        with self._lock:
            config, before = self._both
            made = make(config)
            new = self._bare(made, before if level is None else _checked_level(level))
            if new != self._both:
                self._remember(new)
                self._both = new
            elif made.provenance is None:
                return
        self._tell_observers()

    def _bare(self, config: BoostConfig, level: str) -> Setup:
        """Return a set-up without its provenance, which is remembered for it."""
        if config.provenance is None:
            return config, level
        bare = config.with_values({"provenance": None}), level
        self._provenances.append((bare, config.provenance))
        return bare

    def _remember(self, new: Setup) -> None:
        """Note the state before an edit, once for all changes that a dragged slider makes."""
        paths, now = frozenset(differing(self._both, new)), time.monotonic()
        before, when = self._last_edit
        if not (len(paths) == 1 and paths == before and now - when < _ONE_EDIT):
            self._past = [*self._past[-_EDITS_KEPT:], self._both]
        elif self._past[-1] == new:  # back where the edit began: there is none, and what follows is another
            self._past.pop()
            paths = frozenset()
        self._future.clear()
        self._last_edit = paths, now

    def _step(self, taken: list[Setup], given: list[Setup]) -> None:
        with self._lock:
            if not taken:
                return
            given.append(self._both)
            self._both = taken.pop()
            self._last_edit = frozenset(), 0.0
        self._tell_observers()

    def _tell_observers(self) -> None:
        with self._lock:
            now, observers = self._both, list(self._observers)
        for observer in observers:  # without the lock: an observer may wait for a thread that wants it
            observer(*now)

    def __repr__(self) -> str:
        return f"SharedConfig({self.level}, {self.config!r})"


def differing(one: Setup, other: Setup) -> list[str]:
    """Return the config paths, and ``level``, in which two set-ups differ, provenance aside."""
    paths = [path for path in one[0].diff(other[0]) if path != "provenance"]
    return [*paths, *(["level"] if one[1] != other[1] else [])]


def config_of_text(document: str | bytes, name: str) -> BoostConfig:
    """Read a configuration from the content of a JSON file; errors use the given name."""
    return BoostConfig.from_dict(parse_json(document, name))


def _checked_level(level: str) -> str:
    if level not in LEVELS:
        raise ConfigError(f"`level` must be one of {', '.join(LEVELS)}, got {level!r}")
    return level
