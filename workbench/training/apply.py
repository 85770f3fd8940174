"""Turn a configuration into a processed model and optimizer: `apply` for a loop of one's own, `AutoBoost` by its name.

`AutoBoost` is named and shaped after ``mindspore.boost.AutoBoost`` (MindSpore 2.7). Differences: every instance stands
alone (the reference keeps one for the whole process), its configuration is validated, and an unknown level is an error.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from torch import Tensor, distributed, nn
from torch.nn.parallel import DistributedDataParallel
from torch.nn.parameter import is_lazy
from torch.optim import SGD, Adagrad, Optimizer

from workbench.config import BoostConfig, ConfigLike, Plan, read_config
from workbench.core import distributed as ranks
from workbench.core.devices import device_of
from workbench.core.signatures import why_not_called
from workbench.core.sparse_tables import sparse_tables
from workbench.core.step_optimizer import held_parameters
from workbench.core.torch_internals import step_hooks
from workbench.core.warning import warn
from workbench.core.wrapped_model import unwrapped
from workbench.loss_scale.scaler import LossScaling
from workbench.methods.facts import facts_of, learning_reasons
from workbench.methods.in_effect import MethodsInEffect, fitted_config, prepare_
from workbench.methods.parameter_groups import part_of_group, rebuild_optimizer, register_step_hooks
from workbench.methods.plan_mark import boost_plan_of, mark_
from workbench.methods.protocol import Preparation
from workbench.methods.schedule.method import over_parts
from workbench.optim import build_optimizer, change_optimizer_
from workbench.training.boosted import Boosted
from workbench.training.course import changes_length, has_schedule
from workbench.training.pass_graphs import PassGraphs
from workbench.training.precision import Precision, cast_model_and_state_, refuse_impossible, slow_bfloat16_sentence

_log = logging.getLogger("workbench")
_noted: set[str] = set()


def apply(
    config: ConfigLike,
    model: nn.Module,
    optimizer: Optimizer,
    total_steps: int | None = None,
    *,
    level: str = "O1",
    world_size: int | None = None,
    seed: int = 0,
    criterion: Any = None,
    example_inputs: Any = None,
    scheduler: Callable[[Optimizer, int], Any] | None = None,
    max_grad_norm: float | None = None,
) -> Boosted:
    """Process a model and its optimizer by a configuration and return what a training loop calls.

    The model is changed in place (BatchNorms removed, head replaced, weights cast, as configured). Use
    ``boosted.model``, ``boosted.optimizer`` and ``boosted.criterion`` from here on, take the batches from
    ``boosted.batches(loader, epochs)`` and evaluate under ``boosted.evaluating()``. A learning-rate scheduler of your
    own goes in as ``scheduler``, and ``boosted.step()`` advances it; only where the configuration changes neither
    schedule nor batches it may instead be put on ``boosted.optimizer`` and stepped by hand. A model under
    ``torch.compile`` stays compiled: one graph per freezing group. For several ranks call ``boosted.distribute()``
    afterwards. A method that tries its steps on the batch needs a closure in ``step``.

    Args:
        config: Configuration, dictionary, or path of a ``boost_config.json``.
        model: Module on the device it will train on.
        optimizer: Any torch optimizer over the model's parameters; ``fused=True`` avoids a host synchronisation per
            step when a loss scale is in use. Where the configuration names another (``optimizer.name``), that one is
            built over the same parameters, in this one's groups; other settings of the section are changed in it.
        total_steps: The loader's batches that the model is trained for today: epochs times batches per epoch. May be
            left to ``boosted.batches(loader, epochs)``, but freezing under a shorter run needs it here.
        level: Boost level; decides about the algorithms that the configuration does not switch on or off itself.
        world_size: Ranks that train together; None asks torch.distributed.
        seed: Seed of the freezing schedule.
        criterion: What judges the model's output, for example ``nn.CrossEntropyLoss()``; the one to train with is
            ``boosted.criterion``, while this one stays as it is. Only the head of a known classifier may be normalised.
        example_inputs: A tensor, a sequence of arguments, a mapping of keyword arguments, or a function that calls the
            model it is given. What the model does is recorded from it; needed where torch.fx cannot trace the model and
            no image of noise fits it, and for the size of a trained head's scores.
        scheduler: Today's learning-rate schedule: a function of the optimizer and the number of updates that returns a
            scheduler. The run goes through the whole of it, whatever its length.
        max_grad_norm: Norm to which an update's gradients are clipped; None for no clipping. Between ``backward`` and
            ``step`` they carry the loss scale, and may be part of a sum.

    Returns:
        The boosted pair, with ``autocast()``, ``backward(loss)`` and ``step()``; ``notes`` tells what became of
        the head.

    Raises:
        ConfigError: When the configuration is not valid.
        TypeError: When the model is not a module, or the optimizer not one that steps on gradients.
        ValueError: When a scheduler is attached to the optimizer though the configuration has a schedule, another
            number of updates or another optimizer, the optimizer holds none of the model's parameters, lacks a
            hyper-parameter that the section sets, or would have to decay a table with sparse gradients.
        RuntimeError: When the model was boosted before, has lazy layers whose sizes matter here, is a
            DistributedDataParallel that would not notice what is done to it, or a compiled one that hides what group
            scales have to see.

    Example:
        >>> from torch import nn, randn
        >>> from torch.optim import SGD
        >>> net = nn.Linear(3, 1)
        >>> boosted = apply({"amp": {"level": "O0"}}, net, SGD(net.parameters(), lr=0.1, fused=True), level="O0")
        >>> with boosted.autocast():
        ...     loss = boosted.model(randn(8, 3)).square().mean()
        >>> boosted.backward(loss)
        >>> boosted.step().applied
        True
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"`model` must be a torch.nn.Module, got {type(model).__name__}")
    if not isinstance(optimizer, Optimizer):
        raise TypeError(f"`optimizer` must be a torch.optim.Optimizer, got {type(optimizer).__name__}")
    if why_not_called(type(optimizer).step, optimizer):  # LBFGS needs a closure
        raise TypeError(
            f"{type(optimizer).__name__} computes the loss several times in a step, with the same batch; take an "
            "optimizer that steps on gradients, such as AdamW"
        )
    earlier = boost_plan_of(model)
    if earlier is not None and earlier.in_effect():  # an optimizer's settings or a loss scale leave no trace in a model
        raise RuntimeError(
            "`model` has been boosted already, and a second time would change it again; go on with what the first "
            "apply() returned, or build the model afresh"
        )
    settings = read_config(config)
    together = ranks.world_size() if world_size is None else world_size
    if total_steps is not None:
        settings = fitted_config(settings, level, total_steps, together)
    boost = AutoBoost(level, settings, world_size=together, seed=seed)
    inner = unwrapped(model)
    asked_for = MethodsInEffect(boost.plan)
    asked_for.refuse(model)
    device = device_of(model)
    precision = Precision(
        settings.effective_amp_level(device.type), settings.amp.dtype, device.type, settings.amp.keep_batchnorm_fp32
    )
    refuse_impossible(inner, precision)
    own = set(inner.parameters())
    if own and own.isdisjoint(held_parameters(optimizer)):
        raise ValueError(
            "the optimizer holds none of the model's parameters, so that nothing would be trained; build it from those "
            "of this model, which a Task's `optimizer` function is given"
        )
    named = settings.optimizer is not None and settings.optimizer.name is not None
    needs_shapes = asked_for.needs_shapes or named or precision.level == "O3"  # bfloat16() takes no lazy parameter
    if needs_shapes and any(is_lazy(one) for one in inner.parameters()):
        raise RuntimeError(
            "`model` has lazy layers, whose sizes the first batch decides; call it once on inputs of the right shape "
            "before apply()"
        )
    given = optimizer
    if not boost.plan.why_not("optimizer.name"):
        _refuse_attached_scheduler(optimizer, asked_for, settings, scheduler is not None)
        optimizer = _configured_optimizer(settings, inner, optimizer)
        if together == 1:  # several ranks make sparse gradients dense
            _refuse_decay_of_rows(inner, optimizer)
    _, optimizer = boost.network_auto_process_train(
        inner, optimizer, criterion=criterion, example_inputs=example_inputs
    )
    if scheduler is not None and 1 < len(given.param_groups) != len(optimizer.param_groups):
        scheduler = functools.partial(over_parts, scheduler, given, _parts_of(given, optimizer))
    _say_once(slow_bfloat16_sentence(precision))
    cast_model_and_state_(inner, optimizer, precision)
    methods = MethodsInEffect(boost.plan)
    captured = None if isinstance(model, DistributedDataParallel) else methods.captured(model)
    scaling = methods.loss_scaling(inner, device) or LossScaling.from_config(settings, device)
    boosted = Boosted(
        methods.compiled(model),
        optimizer,
        loss_scaling=scaling,
        precision=precision,
        plan=boost.plan,
        notes=boost.notes,
        criterion=criterion,
        make_scheduler=scheduler,
        max_grad_norm=max_grad_norm,
        passes=None if captured is None else PassGraphs(captured, device),
    )
    if total_steps is not None:
        boosted.course.begin(total_steps)
    return boosted


class AutoBoost:
    """Apply the algorithms of a boost level to a network and its optimizer.

    Args:
        level: ``"O0"``, ``"O1"`` or ``"O2"``.
        boost_config_dict: Configuration: a dictionary, a ``BoostConfig``, a path, or ``""`` for the defaults.
        world_size: Ranks that train together; None asks torch.distributed.
        seed: Seed of the freezing schedule; None draws from numpy's global generator, as the reference does (over
            several ranks from that of the first one).

    Raises:
        ConfigError: On an unknown level, key, mode or a value out of range.

    Example:
        >>> from torch import nn
        >>> from torch.optim import SGD
        >>> network = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 2))
        >>> boost = AutoBoost("O0", {"loss_scale": {"kind": "dynamic"}})
        >>> network, optimizer = boost.network_auto_process_train(network, SGD(network.parameters(), lr=0.1))
        >>> boost
        AutoBoost('O0': dynamic loss scale)
    """

    def __init__(
        self,
        level: str = "O0",
        boost_config_dict: ConfigLike = "",
        *,
        world_size: int | None = None,
        seed: int | None = None,
    ) -> None:
        self.config = read_config(boost_config_dict)
        self.plan = self.config.resolve(level, world_size=ranks.world_size() if world_size is None else world_size)
        self._asked_for = self.plan
        self.level = level
        self.seed = seed
        #: What became of the network, one line each; empty before it was processed.
        self.notes: tuple[str, ...] = ()
        for dropped in self.plan.dropped:
            warn(dropped.reason)
        if any(self.plan.level_defaults().values()):  # it switches on more than was set by hand
            _say_once(self.plan.level_default_sentence())

    def network_auto_process_train(
        self, network: nn.Module, optimizer: Optimizer, *, criterion: Any = None, example_inputs: Any = None
    ) -> tuple[nn.Module, Optimizer]:
        """Process a network and its optimizer for training, in the order of :mod:`workbench.methods.registry`.

        Args:
            network: Changed in place and returned, marked with the plan: from now on that is what acts on it.
            optimizer: Rebuilt when parameters or groups change; a method may wrap or replace it. Learning-rate
                schedulers belong on the returned optimizer.
            criterion: What judges the network's output; a head is normalised only where this is known to be a
                classification. A network that ends in torch's criterion says so itself.
            example_inputs: What methods may call the network with, see :func:`workbench.apply`.
        """
        self.plan = self._asked_for  # what found no work in another network may have some in this one
        preparation = Preparation(
            network,
            optimizer,
            self.plan,
            criterion=criterion,
            example_inputs=example_inputs,
            draw_seed=self._common_seed,
            look_again=self._acting_plan,
        )
        prepare_(preparation)
        self.notes = tuple(preparation.notes)
        mark_(network, preparation.plan)
        return network, preparation.optimizer

    def network_auto_process_eval(self, network: nn.Module, *, example_inputs: Any = None) -> nn.Module:
        """Process a network for evaluation, in place: BatchNorms are reduced as in training, the head stays as it is.

        Args:
            network: Changed in place and returned.
            example_inputs: As for training.
        """
        MethodsInEffect(self.plan).prepare_evaluation(network, example_inputs)
        mark_(network, self.plan)
        return network

    def _acting_plan(self, preparation: Preparation) -> Plan:
        """Return the plan with what this network offers, and warn of what it leaves without work."""
        model = preparation.model
        facts = facts_of(model, preparation.optimizer)
        if facts.layers:  # else an optimizer of another network, which freezing refuses in its own words
            reasons: dict[str, Any] = learning_reasons(
                model, preparation.criterion, preparation.example_inputs, self.config
            )
            known = {dropped.name for dropped in self.plan.dropped} | preparation.warned
            self.plan = self.config.resolve(self.level, self.plan.world_size, replace(facts, **reasons))
            for dropped in self.plan.dropped:
                if dropped.name not in known:
                    warn(dropped.reason)
        return self.plan

    def _common_seed(self) -> int | None:
        """Return the seed of the freezing schedule: without one of our own, several ranks must still agree."""
        if self.seed is not None or ranks.world_size() == 1:
            return self.seed
        drawn = [int(np.random.randint(2**31))]  # noqa: NPY002  # the reference's generator, on the first rank
        distributed.broadcast_object_list(drawn)
        return drawn[0]

    def __repr__(self) -> str:
        return f"AutoBoost({self.level!r}: {self.plan.summary()})"


def _configured_optimizer(config: BoostConfig, model: nn.Module, given: Optimizer) -> Optimizer:
    """Return the optimizer that section ``optimizer`` names, else the given one with the section's hyper-parameters.

    The named one takes over what the given one trains: other parameters stay untrained, a group with its own rate
    keeps its ratio to the others, and one without weight decay stays without.
    """
    section = config.optimizer
    if section is None:
        return given
    if section.name is None:
        change_optimizer_(given, section)
        return given
    group_of = {parameter: index for index, group in enumerate(given.param_groups) for parameter in group["params"]}
    sparse = [name for name, table in sparse_tables(model).items() if table in group_of]
    if sparse and section.name not in ("SGD", "Adagrad"):
        raise ValueError(
            f"{section.name} takes dense gradients only, but those of {sparse[0]} are sparse; set `optimizer.name` to "
            "SGD or Adagrad, or take an nn.Embedding with sparse=False"
        )
    built = build_optimizer(section, model, config.compatibility)
    register_step_hooks(built, step_hooks(given))  # one that clips gradients, for example
    held = set(held_parameters(built))
    if len(given.param_groups) == 1 and group_of.keys() == held:
        return built
    groups = [
        part
        for group in built.param_groups
        for index, theirs in enumerate(given.param_groups)
        if (part := _part(group, {p for p in group["params"] if group_of.get(p) == index}, theirs, given))["params"]
    ]
    others = [parameter for parameter in group_of if parameter not in held and parameter.requires_grad]
    if others:  # of a criterion, for example
        groups.append({"params": others})
        if "param_names" in built.param_groups[0]:
            groups[-1]["param_names"] = [f"outside.{place}" for place in range(len(others))]
    return rebuild_optimizer(built, groups)


def _refuse_decay_of_rows(model: nn.Module, optimizer: Optimizer) -> None:
    """Raise ValueError where torch would have to decay weights with sparse gradients, which fails in the first step."""
    if type(optimizer) not in (SGD, Adagrad):
        return
    decayed = {parameter for group in optimizer.param_groups if group["weight_decay"] for parameter in group["params"]}
    if rows := [name for name, table in sparse_tables(model).items() if table in decayed]:
        raise ValueError(
            f"{type(optimizer).__name__} cannot decay {rows[0]}, whose gradients are sparse; train it without weight "
            "decay (`optimizer.weight_decay` 0, or a parameter group of its own), or take an nn.Embedding with "
            "sparse=False"
        )


def _part(group: dict[str, Any], members: set[Tensor], theirs: dict[str, Any], given: Optimizer) -> dict[str, Any]:
    """Return the part of a group that belongs to one of the given optimizer's, with that optimizer's own options."""
    part = part_of_group(group, members)
    usual = _usual_rate(given)
    if usual and "lr" in theirs:
        part["lr"] = group["lr"] * (float(theirs["lr"]) / usual)
    decays = [other.get("weight_decay", 0) for other in given.param_groups]
    if any(decays) and not theirs.get("weight_decay", 0) and "weight_decay" in part:
        part["weight_decay"] = 0.0
    return part


def _parts_of(given: Optimizer, optimizer: Optimizer) -> list[int]:
    """Return for each group of an optimizer the number of the given one's group that it is a part of."""
    number_of = {parameter: number for number, group in enumerate(given.param_groups) for parameter in group["params"]}
    return [next((number_of[p] for p in group["params"] if p in number_of), 0) for group in optimizer.param_groups]


def _usual_rate(optimizer: Optimizer) -> float:
    """Return the default rate where a group has it, else the largest: a default that no group took says nothing."""
    rates = [float(group["lr"]) for group in optimizer.param_groups if "lr" in group]
    default = float(optimizer.defaults.get("lr") or 0.0)
    return default if default in rates else max(rates, default=0.0)


def _refuse_attached_scheduler(
    optimizer: Optimizer, methods: MethodsInEffect, config: BoostConfig, another: bool
) -> None:
    """Raise if a scheduler attached to the given optimizer would set its rates wrongly, or to no effect."""
    if not any("initial_lr" in group for group in optimizer.param_groups):  # torch's schedulers leave it there
        return
    named = None if config.optimizer is None else config.optimizer.name
    if has_schedule(methods, optimizer):
        why = "the configuration has a schedule of its own"
    elif changes_length(methods):
        why = "the configuration changes the number of updates"
    elif named is not None:
        why = f"the configuration replaces it by {named}"
    elif another:
        why = "`scheduler` makes another"
    else:
        return
    raise ValueError(
        f"a learning-rate scheduler is attached to `optimizer`, but {why}; build the optimizer without it, and give "
        "apply() a function instead: scheduler=lambda optimizer, updates: ..."
    )


def _say_once(sentence: str) -> None:
    """Say a sentence once per process, on the first of several ranks."""
    if sentence and sentence not in _noted and ranks.rank() == 0:
        _noted.add(sentence)
        _log.warning("%s", sentence)
