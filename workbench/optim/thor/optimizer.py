"""THOR: SGD with momentum on gradients that are preconditioned layer by layer with stale Kronecker factors.

Chen et al., "THOR, Trace-based Hardware-driven Layer-Oriented Natural Gradient Descent Computation", AAAI 2021.
Named and shaped after ``mindspore.nn.thor`` (MindSpore 2.7, GPU variant). In pseudocode, for step k::

    if k is a multiple of `frequency`: A, G from this step's passes; Ainv = inv(A + damping), Ginv = inv(G + damping)
    g = Ginv dW Ainv                        # weights of Linear, Conv2d; rows and Ginv for Embedding
    g = g / (g^2 / b + sqrt(damping))       # LayerNorm
    g = g + weight_decay * w                # where the filter agrees
    g = g / max(1, |g|)                     # with enable_clip_grad
    v = momentum * v + g
    w = w - lr * v                          # Nesterov: w - lr * (g + momentum * v)

Beside this file: ``preconditioner.py`` says what is approximated, and when factors are refreshed; ``collection.py``
what is collected of which layers; ``layer_vectors.py`` the two formats of what is one number per layer or factor;
``matrices.py`` has the factors, their inverses and what ranks do with them; ``formulas.py`` the rules, damping, and
what comes after the factors.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from workbench.core.arguments import checked_number, checked_switch
from workbench.core.records import EventSink
from workbench.core.step_optimizer import StepOptimizer, exact_flag, held_parameters, zeros_in
from workbench.core.torch_internals import has_fused_kernel
from workbench.optim.schedule import Schedule, read_schedule, value_at
from workbench.optim.thor.collection import Convention, FirstOrder
from workbench.optim.thor.formulas import Batch, DampingSplit, FactorRules, clip_by_curvature_
from workbench.optim.thor.preconditioner import Preconditioner


@dataclass(frozen=True, slots=True)
class NamedParameter:
    """What a decay filter is asked about: the dotted name in the network, and the parameter."""

    name: str
    parameter: Tensor


def _decays(parameter: NamedParameter) -> bool:  # a lambda could not be pickled
    return True


class Thor(StepOptimizer):
    """Second-order optimizer for whole networks: THOR.

    The first step and then every ``frequency``-th one look at the inputs and output gradients of the layers as they
    pass by (hooks, no second pass) and invert the factors; the steps between reuse the inverses. Steps count also
    when an overflow skips them; a refresh that an overflow spoilt is made up for in the next step.

    Linear, Conv2d and Embedding weights are preconditioned by Kronecker factors, LayerNorm parameters by a diagonal;
    ``first_order`` lists everything else with the reason (biases, BatchNorm, grouped convolutions, tied weights, ...).

    Learning-rate schedulers, parameter groups (options ``lr``, ``momentum``, ``weight_decay``, ``nesterov``,
    ``damping``), checkpoints and ``torch.amp.GradScaler`` work as with torch's own optimizers. With a GradScaler let
    ``scaler.step`` unscale, or call ``set_step_context(backward_scale=...)`` after ``unscale_``; the steps of this
    package do so by themselves. Output gradients are squared in float32, loss scale and all: where that is beyond about
    2^60 no factor is finite, and layers keep the inverses they have.

    Args:
        net: The network; or, with ``network``, its parameters or parameter groups.
        learning_rate: A number, a 1-D tensor with one entry per step (the last one stays past its end), or a function
            of the step. Groups with an ``lr`` of their own keep it. A tensor or function overrides schedulers.
        damping: d, > 0, in the same three forms. Its root is added to the factors' diagonals, see ``damping_split``.
        momentum: >= 0.
        weight_decay: >= 0, added to the gradient as ``weight_decay * w``.
        loss_scale: Factor, > 0, that the gradients carry when no training step divides it out.
        batch_size: b in the formula for LayerNorm, and in the reference's factors.
        use_nesterov: Whether momentum is Nesterov's.
        decay_filter: Called with a ``NamedParameter``; says whether ``weight_decay`` acts on it. Every parameter by
            default. A group's own ``weight_decay`` acts on all of the group.
        split_indices: Layers (counted over ``layer_names``) at which the exchange of factors between ranks is cut
            into groups; None for one. Ranks average factors whenever torch.distributed has several.
        enable_clip_grad: Whether each tensor's step is clipped to norm 1.
        frequency: Steps from one refresh to the next, >= 2.
        block_size: Rows of the blocks that factors are cut into.
        factors: ``"default"`` for covariances, ``"mindspore"`` for what MindSpore 2.7 forms; see ``collection.py``.
        damping_split: How d is shared by both factors: ``"trace"`` or ``"even"``, see ``FactorRules``. None for
            ``"trace"``, and for ``"even"`` with the reference's factors.
        damping_floor: Smallest damping of a layer in units of its mean curvature, see ``FactorRules``, >= 0: inverses
            that are some steps old, and estimated from some batches, know less of small curvatures than that. None for
            1, and for 0 with the reference's factors.
        factor_decay: Share of the past in running averages of the factors, in [0, 1); 0 uses those of one step alone.
            None for 0.8, and for 0 with the reference's factors.
        trace_threshold: Leave a layer's inverses alone when the trace of its curvature changed by this share or less;
            None refreshes always.
        kl_clip: Bound on the squared length of a step, measured by the curvature: the preconditioned gradients are
            multiplied by ``min(1, sqrt(kl_clip / (lr^2 sum(g' dW))))``; infinity for no bound. None for 0.001, and for
            no bound with the reference's factors. Curvature that is estimated from gradients vanishes with them, and
            without a bound steps grow where they should not.
        max_rows: Rows, or positions of a convolution, that enter a factor per backward pass, evenly spread; None for
            all. 4096 are 32 for each row of a block. The reference's factors always take all.
        network: The network, when ``net`` gives parameters.

    Raises:
        TypeError: When an argument is of the wrong kind.
        ValueError: When a number is out of range, or the network has no parameter to train.

    Attributes:
        first_order: Parameters that are not preconditioned, each with the reason.

    Example:
        >>> _ = torch.manual_seed(0)
        >>> net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
        >>> optimizer = Thor(net, learning_rate=0.1, damping=0.1, momentum=0.9, frequency=10)
        >>> x = torch.randn(64, 4)
        >>> for _ in range(40):
        ...     loss = (net(x) - x[:, :1] * x[:, 1:2]).square().mean()
        ...     loss.backward()
        ...     optimizer.step()
        ...     optimizer.zero_grad()
        >>> loss.item() < 0.2
        True
        >>> optimizer.layer_names, [entry.name for entry in optimizer.first_order]
        (['0', '2'], ['0.bias', '2.bias'])

    Reference:
        The module's text; for ``kl_clip`` Ba, Grosse and Martens, "Distributed Second-Order Optimization using
        Kronecker-Factored Approximations", ICLR 2017.
    """

    #: `torch.amp.GradScaler` hands `found_inf` and `grad_scale` over instead of waiting for the device.
    _step_supports_amp_scaling = True

    def __init__(
        self,
        net: nn.Module | Iterable[Any],
        learning_rate: float | Tensor | Callable[[int], Any],
        damping: float | Tensor | Callable[[int], Any],
        momentum: float,
        weight_decay: float = 0.0,
        loss_scale: float = 1.0,
        batch_size: int = 32,
        use_nesterov: bool = False,
        decay_filter: Callable[[NamedParameter], bool] = _decays,
        split_indices: Sequence[int] | None = None,
        enable_clip_grad: bool = False,
        frequency: int = 100,
        *,
        block_size: int = 128,
        factors: Convention = "default",
        damping_split: DampingSplit | None = None,
        damping_floor: float | None = None,
        factor_decay: float | None = None,
        trace_threshold: float | None = None,
        kl_clip: float | None = None,
        max_rows: int | None = 4096,
        network: nn.Module | None = None,
    ) -> None:
        arguments = dict(locals())  # another one over other groups is built from these
        for other in ("self", "net", "network", "__class__"):
            del arguments[other]
        self._arguments = arguments
        whole = net if isinstance(net, nn.Module) else network
        if not isinstance(whole, nn.Module):
            raise TypeError(f"`net` must be a torch.nn.Module (or give `network`), got {type(net).__name__}")
        self.network = whole
        # By option of a group: what users call it, and a number or schedule.
        self._schedules = {
            "lr": ("learning_rate", _read("learning_rate", learning_rate)),
            "damping": ("damping", _read("damping", damping)),
        }
        if self._value_at("damping", 0) <= 0:
            raise ValueError(f"`damping` must be above 0, got {self._value_at('damping', 0):g}")
        self.loss_scale = checked_number("loss_scale", loss_scale, above=0.0)
        if not callable(decay_filter):
            raise TypeError(f"`decay_filter` must be callable, got {type(decay_filter).__name__}")
        self.enable_clip_grad = checked_switch("enable_clip_grad", enable_clip_grad)
        rules = FactorRules(
            factors, frequency, block_size, batch_size, split_indices, damping_split, damping_floor, factor_decay,
            trace_threshold, max_rows, kl_clip,
        )  # fmt: skip
        self.kl_clip = None if rules.kl_clip == math.inf else rules.kl_clip
        self._decay_filter = decay_filter
        named = [(name, p) for name, p in self.network.named_parameters() if p.requires_grad]
        self._names = {id(p): name for name, p in named}
        self._decaying: dict[int, bool] = {}
        options = {
            "lr": self._value_at("lr", 0),
            "momentum": checked_number("momentum", momentum),
            "weight_decay": checked_number("weight_decay", weight_decay),
            "nesterov": checked_switch("use_nesterov", use_nesterov),
            "damping": self._value_at("damping", 0),
        }
        # torch fills in what a group does not say; what it does say is its own, and no schedule of ours moves it.
        given = named if isinstance(net, nn.Module) else list(net)
        if not given:
            raise ValueError("`net` must have a parameter to train, got none that requires gradients")
        # A group that comes from another Thor says itself what was its own; the rest was filled in.
        own = [set(entry.get("own_options", entry)) for entry in given if isinstance(entry, Mapping)] or [set()]
        super().__init__(given, options)
        for group, said in zip(self.param_groups, own, strict=True):
            group.setdefault("own_options", sorted(said & {"lr", "damping", "weight_decay"}))
        self.preconditioner = Preconditioner(self.network, held_parameters(self), rules)
        self._normalizations = {id(p) for p in self.preconditioner.normalizations}
        self._backward_scale: Callable[[nn.Parameter], Tensor] | None = None
        self._events: EventSink | None = None
        self._step_number: int | None = None
        self._columns: dict[str, float] = {}

    # What it consists of

    @property
    def layer_names(self) -> list[str]:
        """Names of the layers with Kronecker factors, in the network's order."""
        return [layer.name for layer in self.preconditioner.layers]

    @property
    def has_own_rates(self) -> bool:
        """See `StepOptimizer`."""
        return not isinstance(self._schedules["lr"][1], float)

    @property
    def first_order(self) -> list[FirstOrder]:
        """Parameters whose gradient is used as it is, each with the reason."""
        return list(self.preconditioner.first_order)

    @property
    def frequency(self) -> int:
        """Steps from one refresh to the next."""
        return self.preconditioner.rules.frequency

    @property
    def refreshed(self) -> bool:
        """Whether the last step made new inverses."""
        return self.preconditioner.refreshed

    def refresh_next(self) -> None:
        """Have every layer refresh in the coming step, too; call it before the forward pass."""
        self.preconditioner.arm()

    # What a training step gives and asks

    def set_step_context(
        self,
        *,
        backward_scale: Callable[[nn.Parameter], Tensor] | Tensor | float | None = None,
        step: int | None = None,
        events: EventSink | None = None,
    ) -> None:
        """Take what only the training step knows; without a backward scale ``loss_scale`` is divided out.

        Args:
            backward_scale: As for every `StepOptimizer`.
            step: Number of the step for events; None for this optimizer's own count.
            events: Where refreshes and raised damping are reported; None for nowhere.
        """
        if backward_scale is None or callable(backward_scale):
            self._backward_scale = backward_scale
        else:
            scale = torch.as_tensor(backward_scale, dtype=torch.float32)
            self._backward_scale = lambda parameter: scale.reshape(())
        self._step_number, self._events = step, events

    hear = set_step_context  # the name that programs know it by

    def columns(self) -> dict[str, float]:
        """Return what the host knows of the last step: whether it refreshed factors, and the damping."""
        return self._columns

    # The step

    def _step(self) -> None:
        found_inf = None if self.found_inf is None else exact_flag(self.found_inf)
        carried = self.carried_scale
        constant = self.loss_scale if self._backward_scale is None else 1.0
        engine = self.preconditioner
        if engine.due:
            step, inverse_scale = self._step_number, self._inverse_scale(constant, carried)
            step = engine.steps if step is None else step
            engine.refresh(self._damping_of_layers(), inverse_scale, found_inf, step=step, events=self._events)
        else:
            engine.refreshed = False
        self._update(constant, carried, found_inf)
        damping = float(self.param_groups[0]["damping"])
        self._columns = {"thor.refreshed": float(engine.refreshed), "thor.damping": damping}
        engine.advance(self._events)
        self._follow_schedules()

    def _update(self, constant: float, carried: Tensor | None, found_inf: Tensor | None) -> None:
        position = self.preconditioner.position
        batches = self._batches()
        layers: list[tuple[int, Tensor]] = []
        places: list[tuple[list[Tensor], int]] = []
        for batch in batches:
            if constant != 1.0 or carried is not None:
                inverse: Any = 1 / constant if carried is None else (carried * constant).reciprocal()
                batch.gradients = list(torch._foreach_mul(batch.gradients, inverse))
            for place, parameter in enumerate(batch.parameters):
                number = position.get(id(parameter))
                if number is not None:
                    layers.append((number, batch.gradients[place]))
                    places.append((batch.gradients, place))
            batch.scale_normalizations(self._normalizations, self.preconditioner.rules.batch_size)
        fresh = self.preconditioner.apply(layers)
        if self.kl_clip is not None and fresh:
            clip_by_curvature_(
                fresh, [gradient for _, gradient in layers], self.kl_clip, float(self.param_groups[0]["lr"])
            )
        for (gradients, place), gradient in zip(places, fresh, strict=True):
            gradients[place] = gradient
        for batch in batches:
            batch.take_step(found_inf, clips=self.enable_clip_grad)

    def _batches(self) -> list[Batch]:
        """Return parameters with gradients, by group and by whether weight decay acts on them."""
        batches: list[Batch] = []
        for group in self.param_groups:
            decay = group["weight_decay"]
            asks = decay != 0 and "weight_decay" not in group["own_options"]
            kinds: dict[tuple[bool, bool], Batch] = {}
            for parameter in group["params"]:
                gradient = parameter.grad
                if gradient is None:
                    continue
                if gradient.is_sparse:
                    raise RuntimeError("THOR takes dense gradients only; build the embedding with sparse=False")
                decays = not asks or self._decays(parameter)
                kind = decays, has_fused_kernel(parameter, "_fused_sgd_")
                batch = kinds.get(kind)
                if batch is None:
                    batch = kinds[kind] = Batch(group, decay if decays else 0.0, kind[1], [], [], [])
                batch.parameters.append(parameter)
                batch.gradients.append(gradient)
                if group["momentum"]:
                    batch.buffers.append(zeros_in(self.state[parameter], parameter, "momentum_buffer"))
            batches += kinds.values()
        return batches

    # Schedules and scales

    def _value_at(self, option: str, step: int) -> float:
        name, schedule = self._schedules[option]
        return value_at(schedule, step, name, past_end="last")

    def _follow_schedules(self) -> None:
        """Set the rates of the coming step, so that the groups show them before it."""
        for option, (_, schedule) in self._schedules.items():
            if not isinstance(schedule, float):
                value = self._value_at(option, self.preconditioner.steps)
                for group in self.param_groups:
                    if option not in group["own_options"]:
                        group[option] = value

    def _damping_of_layers(self) -> list[float]:
        default = float(self.param_groups[0]["damping"])
        by_parameter = {id(p): float(group["damping"]) for group in self.param_groups for p in group["params"]}
        return [by_parameter.get(id(layer.weight), default) for layer in self.preconditioner.layers]

    def _inverse_scale(self, constant: float, carried: Tensor | None) -> Tensor | None:
        """Return one over what output gradients were multiplied by, per layer; None for 1."""
        layers = self.preconditioner.layers
        if self._backward_scale is None and carried is None and constant == 1.0:
            return None
        device = self.preconditioner.device
        scale = torch.full((len(layers),), constant, dtype=self.preconditioner.dtype, device=device)
        if carried is not None:
            scale *= carried.to(device)
        if self._backward_scale is not None:
            scale *= torch.stack([self._backward_scale(layer.weight).to(device).reshape(()) for layer in layers])
        return scale.reciprocal()

    def _decays(self, parameter: Tensor) -> bool:
        decays = self._decaying.get(id(parameter))
        if decays is None:
            name = self._names.get(id(parameter), "")
            decays = self._decaying[id(parameter)] = bool(self._decay_filter(NamedParameter(name, parameter)))
        return decays

    # Groups, memory, copies

    def over_groups(self, groups: Sequence[dict[str, Any]]) -> Thor:
        """Return an optimizer with these arguments over other parameter groups of the same network.

        It takes along the inverses of the layers that remain, and replaces this one: taps report to the new one only.
        """
        fresh = Thor([dict(group) for group in groups], network=self.network, **self._arguments)
        old, new = self.preconditioner, fresh.preconditioner
        known = {id(layer.weight): layer.module for layer in old.layers}
        whole = all(layer.module.weight is layer.weight for layer in old.layers)  # each still belongs to its module
        if whole and all(known.get(id(layer.weight)) is layer.module for layer in new.layers):
            # The same network: several optimizers over parts of it count its steps together.
            new.release()
            fresh.preconditioner = old
        else:
            new.take_over(old)
            old.release()
        fresh._follow_schedules()
        return fresh

    def state_dict(self) -> dict[str, Any]:
        """Return torch's ``state`` (``momentum_buffer``) and ``param_groups``; under ``thor`` the preconditioner's."""
        return {**super().state_dict(), "thor": self.preconditioner.state_dict()}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Continue exactly where ``state_dict`` was taken: the next step has the same bits on a CPU.

        Raises:
            ValueError: When it is of another optimizer or another network.
        """
        if "thor" not in state_dict:
            raise ValueError("`state_dict` holds no entry `thor`; it is not THOR's")
        super().load_state_dict({key: value for key, value in state_dict.items() if key != "thor"})
        self.preconditioner.load_state_dict(state_dict["thor"])

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), **{name: self.__dict__[name] for name in _KEPT}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._backward_scale = self._events = self._step_number = None
        self._names = {id(p): name for name, p in self.network.named_parameters()}
        self._decaying = {}
        self._normalizations = {id(p) for p in self.preconditioner.normalizations}


#: The reference's name of the optimizer.
thor = Thor


# Attributes that a copy takes along; the others would act for the original, cannot be copied, or are made again.
_KEPT = (
    *("network", "preconditioner", "loss_scale", "enable_clip_grad", "kl_clip"),
    *("_schedules", "_arguments", "_decay_filter", "_columns"),
)


def _read(name: str, value: Any) -> float | Schedule:
    if not (isinstance(value, Tensor) or callable(value)):
        return checked_number(name, value)
    schedule = read_schedule(name, value)
    if schedule == ():
        raise ValueError(f"`{name}` must be 1-D with one entry per step, got an empty tensor")
    return schedule[0] if isinstance(schedule, tuple) and len(schedule) == 1 else schedule
