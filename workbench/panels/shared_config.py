"""The one configuration that all panels of a workbench look at and change."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any

from workbench.config import LEVELS, BoostConfig, ConfigError, NetworkFacts, Plan
from workbench.config.boost_json import parse_json
from workbench.config.errors import shown

Observer = Callable[[BoostConfig, str], None]


class SharedConfig:
    """A valid configuration with a level, and those who want to know when either changes."""

    def __init__(self, config: BoostConfig | None = None, level: str = "O1") -> None:
        self._lock = threading.RLock()
        self._both = config if config is not None else BoostConfig(), _checked_level(level)
        self.network: NetworkFacts | None = None  # what it offers to the methods, once one has been examined
        self._observers: list[Observer] = []

    @property
    def config(self) -> BoostConfig:
        """The configuration; always a valid one."""
        return self._both[0]

    @property
    def level(self) -> str:
        """The boost level."""
        return self._both[1]

    def both(self) -> tuple[BoostConfig, str]:
        """Return configuration and level as they belong together."""
        return self._both

    def plan(self, world_size: int = 1) -> Plan:
        """Return what is in effect on so many ranks; a ConfigError tells what a method lacks."""
        config, level = self._both
        return config.resolve(level, world_size, self.network)

    def plan_or_problem(self, world_size: int = 1) -> tuple[Plan | None, str]:
        """Return the plan and an empty text; where there is none, None and why."""
        try:
            return self.plan(world_size), ""
        except ConfigError as error:
            return None, str(error)

    def learn(self, network: NetworkFacts) -> None:
        """Take what is known of the network from now on, and call all observers."""
        self.network = network
        self._tell_observers()

    def set(self, config: BoostConfig, level: str | None = None) -> None:
        """Take another configuration, and level if given, and call all observers, unless it is the one there is."""
        self._replace(lambda _: config, level)

    def change(self, values: Mapping[str, Any], level: str | None = None) -> None:
        """Change some values, by path, and the level if given; a ConfigError leaves everything as it was."""
        self._replace(lambda config: config.with_values(values), level)

    def observe(self, observer: Observer) -> Callable[[], None]:
        """Have a function called with every new configuration and level; what is returned ends this."""
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
            new = make(config), before if level is None else _checked_level(level)
            if new == self._both:
                return
            self._both = new
        self._tell_observers()

    def _tell_observers(self) -> None:
        with self._lock:
            now, observers = self._both, list(self._observers)
        for observer in observers:  # without the lock: an observer may wait for a thread that wants it
            observer(*now)

    def __repr__(self) -> str:
        return f"SharedConfig({self.level}, {self.config!r})"


def config_of_text(document: str | bytes, name: str) -> BoostConfig:
    """Read a configuration from the content of a JSON file; errors call it by a name."""
    try:
        text = document if isinstance(document, str) else document.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{name}: is not UTF-8 text (byte {error.start})") from None
    values = parse_json(text, name)
    if not isinstance(values, dict):
        raise ConfigError(f"{name}: must hold an object of sections, got {shown(values)}")
    return BoostConfig.from_dict(values)


def _checked_level(level: str) -> str:
    if level not in LEVELS:
        raise ConfigError(f"`level` must be one of {', '.join(LEVELS)}, got {level!r}")
    return level
