"""Section ``optimizer``: the optimizer to use, or changes to the task's own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, field_validator, model_validator

from workbench.config.boost import OPTIMIZER_STEPS
from workbench.config.conditions import Condition, declared
from workbench.config.section import MethodSection, described

if TYPE_CHECKING:
    from workbench.config.boost_config import BoostConfig
    from workbench.config.facts import Facts

_SGD, _ADAM = ("lr", "momentum", "weight_decay", "nesterov"), ("lr", "weight_decay", "betas", "eps")
HYPER_PARAMETERS: dict[str, tuple[str, ...]] = {
    "SGD": _SGD,
    "Adam": _ADAM,
    "AdamW": _ADAM,
    "RMSprop": ("lr", "momentum", "weight_decay", "eps"),
    "Adagrad": ("lr", "weight_decay", "eps"),
    "Muon": ("lr", "aux_lr", "momentum", "weight_decay", "nesterov", "ns_steps", "betas", "eps"),
    "ScheduleFreeAdamW": (*_ADAM, "warmup_steps"),
    "thor": (*_SGD, "damping", "damping_decay", "frequency", "factor_decay", "trace_threshold", "kl_clip"),
    "adam_offload": ("lr", "weight_decay", "nesterov", "betas", "eps"),
}
"""Which hyper-parameters each optimizer takes from this section: classes of ``torch.optim``, and four of our own."""

TASKS_OWN = "task"
"""Stands for no name in a study's list of optimizers: the task's own."""

_RATES = {  # where each one's learning rate is searched
    "SGD": (0.003, 1.0),
    "Adam": (3e-4, 0.03),
    "AdamW": (3e-4, 0.03),
    "RMSprop": (1e-4, 0.01),
    "Adagrad": (0.003, 0.3),
    "Muon": (0.005, 0.15),
    "ScheduleFreeAdamW": (5e-4, 0.03),
    "thor": (0.005, 0.5),
    "adam_offload": (3e-4, 0.03),
}


def have_it(hyper_parameter: str) -> str:
    """Say which optimizers have a hyper-parameter."""
    *others, last = owners_of(hyper_parameter)
    return f"{', '.join(others)} and {last} have it" if others else f"only {last} has it"


def owners_of(hyper_parameter: str) -> list[str]:
    """Return the optimizers that have a hyper-parameter; none for what belongs to no optimizer in particular."""
    return [name for name, own in HYPER_PARAMETERS.items() if hyper_parameter in own]


def optimizer_is(*names: str, why_not: str = "the optimizer is {name}") -> Condition:
    """Hold where an optimizer steps that is one of the named ones, or the task's own, which may be any."""

    def reason(optimizer: OptimizerConfig | None) -> str:
        name = optimizer and optimizer.name
        return "" if name is None or name in names else why_not.format(name=name)

    words = f"the optimizer is {', '.join(names)}{' or ' if names else ''}the task's own"
    return OPTIMIZER_STEPS & Condition(lambda config, _: reason(config.optimizer), words, frozenset({"optimizer.name"}))


def _hyper(name: str, title: str, **more: Any) -> Any:
    """Declare a hyper-parameter, unset by default; it acts where the named optimizer has it, or none is named."""
    why_not = f"{{name}} has no such parameter; {have_it(name)}"
    return described(None, title, when=optimizer_is(*owners_of(name), why_not=why_not), **more)


class OptimizerConfig(MethodSection, use_attribute_docstrings=True):
    """Section ``optimizer``; without a name the given hyper-parameters change the task's own optimizer."""

    needs: ClassVar[Condition] = OPTIMIZER_STEPS

    name: (
        Literal["SGD", "Adam", "AdamW", "RMSprop", "Adagrad", "Muon", "ScheduleFreeAdamW", "thor", "adam_offload"]
        | None
    ) = described(None, "Optimizer", when=OPTIMIZER_STEPS)
    """Class in torch.optim, Muon (orthogonal steps for hidden matrices), ScheduleFreeAdamW (averages instead of a
    schedule), thor (second order) or adam_offload (Adam on the host); unset means the task's own, with the
    hyper-parameters given here.
    """

    lr: float | None = _hyper(
        "lr", "Learning rate", low=1e-4, high=1.0, log=True, gt=0, step_time=False, by_name=_RATES
    )
    """Step size, of Muon that of hidden matrices; unset means the optimizer's own."""

    lr_factor: float | None = described(
        None,
        "Learning rate factor",
        low=0.25,
        high=8.0,
        log=True,
        gt=0,
        step_time=False,
        when=optimizer_is(why_not="{name} has no rates of the task's; set `optimizer.lr`"),
    )
    """For the task's own optimizer, whatever it is: multiplies the rate of each of its groups; unset means 1."""

    aux_lr: float | None = _hyper(
        "aux_lr", "Auxiliary learning rate", low=0.001, high=0.03, log=True, gt=0, step_time=False
    )
    """For Muon: AdamW's rate for everything that is no hidden matrix; unset means 0.005."""

    momentum: float | None = _hyper(
        "momentum", "Momentum", low=0.5, high=0.99, ge=0, lt=1, by_name={"Muon": (0.85, 0.98)}
    )
    """For SGD, RMSprop, Muon and thor; unset means the optimizer's own."""

    weight_decay: float | None = _hyper(
        "weight_decay",
        "Weight decay",
        low=1e-6,
        high=0.1,
        log=True,
        ge=0,
        step_time=False,
        by_name={"AdamW": (1e-4, 0.3), "Muon": (1e-4, 0.1), "ScheduleFreeAdamW": (1e-4, 0.3)},
    )
    """Decay coefficient; unset means the optimizer's own."""

    nesterov: bool | None = _hyper("nesterov", "Nesterov")
    """Nesterov momentum, for SGD, Muon, thor and adam_offload; unset means the optimizer's own."""

    ns_steps: int | None = _hyper("ns_steps", "Newton-Schulz steps", low=2, high=5, ge=1, le=10)
    """For Muon: polynomials that make an update orthogonal; each takes time, unset means 3."""

    warmup_steps: int | None = _hyper("warmup_steps", "Warm-up", unit="updates", low=1, high=100, log=True, ge=0)
    """For ScheduleFreeAdamW, which takes no schedule: updates in which its rate rises from 0; unset means none."""

    betas: tuple[Annotated[float, Field(ge=0, lt=1)], Annotated[float, Field(ge=0, lt=1)]] | None = _hyper(
        "betas", "Betas", step_time=False
    )
    """Decay rates of Adam's first and second moments; unset means the optimizer's own."""

    eps: float | None = _hyper("eps", "Epsilon", low=1e-10, high=1e-4, log=True, gt=0, step_time=False)
    """Added to the denominator; unset means the optimizer's own."""

    damping: float | None = _hyper("damping", "Damping", low=1e-4, high=1.0, log=True, gt=0)
    """For thor: added to the curvature, so that the smaller it is, the longer the steps; unset means 0.1."""

    damping_decay: float | None = _hyper("damping_decay", "Damping decay", low=0.8, high=1.0, gt=0, le=1)
    """For thor: the damping is multiplied by this at every refresh; unset means 1, which keeps it."""

    frequency: int | None = _hyper("frequency", "Refresh frequency", unit="steps", low=2, high=200, log=True, ge=2)
    """For thor: steps from one refresh of the curvature to the next; unset means 20."""

    factor_decay: float | None = _hyper("factor_decay", "Factor decay", low=0.0, high=0.95, ge=0, lt=1)
    """For thor: share of the past in running averages of the curvature; unset means the optimizer's own."""

    trace_threshold: float | None = _hyper("trace_threshold", "Trace threshold", low=0.001, high=0.5, log=True, ge=0)
    """For thor: a layer whose curvature's trace changed by this share or less keeps its inverses; unset refreshes
    always.
    """

    kl_clip: float | None = _hyper("kl_clip", "KL clip", low=1e-4, high=0.1, log=True, gt=0)
    """For thor: bound on the squared length of a step, measured by the curvature; unset means the optimizer's own."""

    def hyper_parameters(self) -> dict[str, Any]:
        """Return the hyper-parameters that are set and that the named optimizer takes, ready as keyword arguments."""
        return {
            name: getattr(self, name)
            for name in type(self).model_fields
            if name != "name" and getattr(self, name) is not None and self.takes(name)
        }

    def left_out(self, config: BoostConfig, facts: Facts) -> dict[str, str]:
        """Return which parameters are set although the optimizer does not have them, and why: name -> reason."""
        given = {name: member for name, member in type(self).model_fields.items() if getattr(self, name) is not None}
        reasons = {name: declared(member).when.why_not(config, facts) for name, member in given.items()}
        return {name: reason for name, reason in reasons.items() if reason}

    def takes(self, hyper_parameter: str) -> bool:
        """Return whether the named optimizer has this hyper-parameter (without a name: unknown, so True)."""
        return self.name is None or hyper_parameter in HYPER_PARAMETERS[self.name]

    @field_validator("name", mode="before")
    @classmethod
    def _tasks(cls, value: Any) -> Any:
        return None if value == TASKS_OWN else value  # TOML has no null

    @field_validator("betas", mode="before")
    @classmethod
    def _pair(cls, value: Any) -> Any:
        return tuple(value) if isinstance(value, list) else value  # JSON has lists only

    @model_validator(mode="after")
    def _nesterov_needs_momentum(self) -> Self:
        if self.name == "SGD" and self.nesterov and not self.momentum:
            raise ValueError(
                "`optimizer.nesterov` needs `optimizer.momentum` above 0; set a momentum or switch nesterov off"
            )
        return self
