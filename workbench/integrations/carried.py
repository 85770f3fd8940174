"""Which choices of a configuration a framework's own arguments carry, and which need this package.

Each framework has a function that walks through a configuration once and says of every choice where it goes; arguments,
scripts, documentation and the decision whether a class of ours is needed all read its answer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from workbench.config import BoostConfig, OptimizerConfig, Plan, describe_parameters
from workbench.methods.batch.section import BatchSection
from workbench.methods.registry import METHODS

RATES = ("optimizer.lr", "optimizer.lr_factor", "batch.lr_rule")
"""Paths that decide about the learning rate of an optimizer."""

FORMATS = ("amp.level", "amp.dtype", "amp.keep_batchnorm_fp32")
"""Paths that decide in which number formats a network computes."""

_ACCUMULATES = next(method for method in METHODS if method.micro_batches)
ACCUMULATION = (_ACCUMULATES.micro_batches, _ACCUMULATES.switch)
"""Path of the micro-batches per update, and that of the switch that goes with it."""


@dataclass(frozen=True)
class Carried:
    """A configuration as a framework takes it."""

    arguments: Mapping[str, Any]  # the framework's own, by name
    carriers: Mapping[str, tuple[str, ...]]  # config path of a choice -> the arguments that carry it
    left: Mapping[str, str]  # config path of a choice -> why the framework's arguments cannot carry it

    @property
    def is_whole(self) -> bool:
        """Whether the framework's own arguments carry everything, so that this package is not needed."""
        return not self.left

    @property
    def left_by_reason(self) -> dict[str, str]:
        """Why the arguments cannot carry what is left -> the paths that share this reason, one after the other."""
        paths: dict[str, list[str]] = {}
        for path, why in self.left.items():
            paths.setdefault(why, []).append(path)
        return {why: ", ".join(sharing) for why, sharing in paths.items()}


class Sorting:
    """The choices of a plan while a framework takes one after the other."""

    def __init__(self, framework: str, plan: Plan) -> None:
        self._framework = framework
        self._effective = plan.parameters_in_effect()
        self._open = choices(plan)
        self._arguments: dict[str, Any] = {}
        self._carriers: dict[str, tuple[str, ...]] = {}
        self._left: dict[str, str] = {}

    def value(self, path: str) -> Any:
        """Return what is in effect at a config path, else its default."""
        return self._effective.get(path, describe_parameters()[path].default)

    def is_chosen(self, *paths: str) -> bool:
        """Return whether one of these paths holds a choice that nothing has taken yet."""
        return any(path in self._open for path in paths)

    def hyper_parameters(self) -> list[str]:
        """Return the names of the optimizer's hyper-parameters that are chosen, but for a factor on its rates."""
        names = (name for name in OptimizerConfig.model_fields if name not in {"name", "lr_factor"})
        return [name for name in names if self.is_chosen(f"optimizer.{name}")]

    @property
    def scales_as_torch(self) -> bool:
        """Whether the loss scale is dynamic by the rule that is torch's default."""
        infos = describe_parameters()
        rule = [f"loss_scale.{name}" for name in ("init", "factor", "window", "minimum", "maximum")]
        usual = all(self.value(path) == infos[path].default for path in rule)
        return usual and bool(self.value("loss_scale.kind") == "dynamic")

    def take(self, path: str, arguments: Callable[[Any], Mapping[str, Any]], *also: str) -> None:
        """Carry a path, if it is chosen, by what a function makes of its value, and others along with it."""
        if path in self._open:
            self.carry(path, *also, **arguments(self.value(path)))

    def carry_course(self, argument: str) -> None:
        """Carry the shape of the learning rate, if it is chosen, by one argument with all that decides about it."""
        names = ("shape", "warmup", "final")
        course = {name: self.value(f"schedule.{name}") for name in names}
        self.take("schedule.shape", lambda _: {argument: course}, *(f"schedule.{name}" for name in names))

    def carry(self, *paths: str, **arguments: Any) -> None:
        """Give the framework these arguments; they carry these paths, chosen or not."""
        self._arguments.update(arguments)
        for path in paths:
            if path in self._open:
                del self._open[path]
                self._carriers[path] = tuple(arguments)

    def leave(self, why: str, *paths: str) -> None:
        """Record why the arguments cannot carry those of these paths that are chosen; a section's name is all in it."""
        for path in [one for one in self._open if one in paths or one.partition(".")[0] in paths]:
            del self._open[path]
            self._left[path] = why

    def done(self) -> Carried:
        """Return the answer; what nothing took has no counterpart in the framework."""
        rest = dict.fromkeys(self._open, f"{self._framework} has no argument for it")
        return Carried(self._arguments, self._carriers, self._left | rest)


def choices(plan: Plan) -> dict[str, Any]:
    """Return config path -> value of what a plan does otherwise than a configuration without any choice."""
    nothing = BoostConfig().resolve("O0").parameters_in_effect()
    infos = describe_parameters()
    return {
        path: value
        for path, value in plan.parameters_in_effect().items()
        if value != nothing.get(path, infos[path].default)
    }


def accumulates_twice(steps: int) -> str:
    """Say that a framework is to leave accumulation to the set-up; empty where it does."""
    if steps <= 1:
        return ""
    return (
        f"`gradient_accumulation_steps` is {steps}, but the updates of a set-up are counted in batches; leave it at 1: "
        f"{_ACCUMULATES.switch} in the configuration accumulates"
    )


def rate_factor(config: BoostConfig) -> float:
    """Return what a configuration multiplies the rates of an optimizer by."""
    section = config.optimizer
    own = 1.0 if section is None or section.name is not None else section.lr_factor or 1.0
    return own * config.part(BatchSection).rate_factor()


def learning_rate(config: BoostConfig, own: float | None) -> float | None:
    """Return the rate of the first update at full height: the section's, else ``own``, times `rate_factor`."""
    section = config.optimizer
    rate = own if section is None or section.lr is None else section.lr
    return None if rate is None else rate * rate_factor(config)
