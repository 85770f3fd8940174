"""What a look at a task shows about how it could be trained faster: copies are examined, a few steps are timed.

Random generators are put back, and the task's own objects are not changed.
"""

from __future__ import annotations

import contextlib
import math
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from workbench.config import BoostConfig, NetworkFacts
from workbench.core import devices
from workbench.core.arguments import checked_number
from workbench.core.batch import move_batch
from workbench.core.out_of_memory import is_out_of_memory
from workbench.core.own_generators import kept_generators
from workbench.core.sparse_tables import sparse_tables
from workbench.core.step_optimizer import held_parameters
from workbench.core.text import first_line
from workbench.core.torch_internals import BatchNorm, has_fused_kernel
from workbench.core.wrapped_model import unwrapped
from workbench.methods.batch.method import concatenated, why_not_merged
from workbench.methods.facts import facts_of_copies
from workbench.methods.runtime.convolution import found_by_passes
from workbench.methods.schedule.method import StandIn, has_rate, recorded
from workbench.optim.muon.optimizer import parameter_groups
from workbench.tasks import Task, TaskError
from workbench.tasks.reading import quicker_reading
from workbench.tasks.stoppable_task import StoppedError
from workbench.training.evaluation import check_outputs, evaluate
from workbench.training.loop import training_loop
from workbench.training.setup import Prepared, batches_to_join, first_batch, prepare
from workbench.training.step_counts import StepCounts

_TIMED_STEPS = 4
_CLEARLY_LONGER = 1.25  # of a step, where fewer threads are no longer enough
_MERGED = 4  # batches that a search puts together at most
_MOST_UPDATES = 100_000  # of a schedule that is looked at
_EARLY = 0.2  # share of a run in which no schedule that was meant for it has ended
_FALLEN = 0.01  # share of the highest rate below which little is learned
_ABOUT = 0.1  # how far from 1 a schedule's highest factor on the optimizer's rate may be
_USUAL_BATCHES = 300  # of a task that says nothing
_SAME = 1e-5  # relative; two evaluations with the same weights, on any device
_NAMED = 3  # parameters, in a sentence


@dataclass(frozen=True, slots=True)
class TaskLook:
    """What was seen."""

    optimizer: str  # its class
    rates: tuple[float, ...]  # highest learning rate of each of its groups in a run
    momentum: float  # 0 where it has none
    nesterov: bool
    weight_decay: float  # the largest of its groups
    has_scheduler: bool
    no_merging: str  # why batches cannot be concatenated, to stand after "because"; empty where they can
    convolutions: int  # over images
    faster_convolutions: bool  # whether some of them may be computed faster than by the library's usual way
    matrices: int  # hidden ones, that Muon would take
    sparse_gradients: bool  # whether a table of embeddings has some
    network: NetworkFacts
    fast_bfloat16: bool  # whether the device multiplies it faster than float32
    device: str  # its type
    reading: str  # how batches may be read faster than today, a value of `runtime.data`
    threads: int  # that CPU operations use
    step_seconds: float
    evaluation_seconds: float
    fewer_threads: Mapping[int, float] = field(default_factory=dict)  # and a step's seconds where they are about enough
    reading_cores: int | None = None  # that a loader's worker processes keep busy beside; None where there are none
    not_kept: str = ""  # why samples are not kept in memory where that might help, a sentence; else empty
    compared: str = ""  # which items of a batch the metric compares, a sentence; empty where that is unambiguous
    falls_early: str = ""  # where the schedule ends long before the run, a sentence; empty where it does not
    counted: str = ""  # which counts of steps weigh in the metric, a sentence; empty where none does
    unfused: str = ""  # that the task's optimizer could be fused, a sentence; empty where it is or cannot be
    untrained: str = ""  # which parameters of the loss get gradients that no optimizer uses, a sentence
    sets_rates: bool = False  # whether the schedule goes up to other rates than the optimizer's, as OneCycleLR does
    rises_to: float = 1.0  # times the optimizer's rates, the highest of such a schedule; 0 where its groups differ


def look_at(task: Task, device: torch.device, steps: int, seed: int = 0) -> TaskLook:
    """Look at a task on the device where it would be trained, for so many batches of its loader.

    ``seed`` is that of the copy and of the batches.
    """
    with kept_generators(device), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        network = network_facts(task)
        # Before there is another copy, since memory may be short.
        first = _first_steps(task, device, steps, seed)
        by_threads, threads = first.by_threads, max(first.by_threads)
        model = task.new_model().to(device)
        optimizer = task.new_optimizer(model)
        groups = optimizer.param_groups
        rates = tuple(_number(group.get("lr", 0.0)) for group in groups)  # before a scheduler changes them
        course = _course(task, optimizer, steps)
        highest, of_doubled = _highest(course), _highest(_course(task, _doubled(optimizer), steps))
        sets_rates = any(factor and abs(factor - 1.0) > _ABOUT for factor in highest + of_doubled)  # 0: of a rate of 0
        scheduler = task.new_scheduler(optimizer, steps)
        n_batches = epoch_batches(task, seed)
        step_seconds = by_threads.pop(threads)
        reading = quicker_reading(
            task.train,
            seed,
            device,
            batch_size=task.batch_size_of(next(task.batches(seed))),
            step_seconds=step_seconds,
            epochs=steps / (n_batches or steps),
        )
        return TaskLook(
            optimizer=type(optimizer).__name__,
            rates=tuple(rate * factor for rate, factor in zip(rates, highest, strict=True)) if sets_rates else rates,
            momentum=_number(groups[0].get("momentum", 0.0)),
            nesterov=bool(groups[0].get("nesterov", False)),
            weight_decay=max(_number(group.get("weight_decay", 0.0)) for group in groups),
            has_scheduler=scheduler is not None,
            # One alone would be put together with itself.
            no_merging="the loader gives one batch" if n_batches == 1 else _why_not_at_once(task, model, seed),
            convolutions=sum(isinstance(module, nn.Conv2d) for module in model.modules()),
            faster_convolutions=first.faster_convolutions,
            matrices=sum(len(group["params"]) for group in parameter_groups(model) if group["matrices"]),
            sparse_gradients=bool(sparse_tables(model)),
            network=network,
            fast_bfloat16=devices.has_fast_bfloat16(device),
            device=device.type,
            reading=reading.data,
            threads=threads,
            step_seconds=step_seconds,
            evaluation_seconds=first.evaluation_seconds,
            fewer_threads=by_threads,
            not_kept=reading.not_kept,
            reading_cores=reading.cores,
            compared=task.what_is_compared(model, next(iter(task.evaluation_batches(seed)))),
            falls_early=_falls_early(course),
            counted=first.counted,
            unfused="" if sparse_tables(model) else _unfused(optimizer),
            untrained=first.untrained,
            sets_rates=sets_rates,
            rises_to=_one_factor(highest) if sets_rates else 1.0,
        )


def _why_not_at_once(task: Task, model: nn.Module, seed: int) -> str:
    """Return why batches cannot be put together and trained on as one, to stand after "because"; else empty."""
    batches = list(islice(batches_to_join(task, seed), _MERGED))
    if why_not := why_not_merged(batches):
        return why_not
    try:
        task.with_own_loss().compute_loss(model, move_batch(concatenated(batches), devices.device_of(model)))
    except StoppedError:
        raise
    except Exception as error:  # a state for so many samples, for example; any module may refuse in its own way
        if not is_out_of_memory(error):  # fewer may fit
            said = f"{type(error).__name__}: {first_line(error)}"
            return f"the network does not take {len(batches)} batches at once ({said})"
    return ""


def _number(value: Any) -> float:
    is_known = value is not None and not callable(value)  # Adafactor's may be None: it finds its own
    return float(value.item() if isinstance(value, Tensor) else value) if is_known else 0.0


class _FirstSteps(NamedTuple):
    by_threads: dict[int, float]  # seconds of a step
    evaluation_seconds: float
    untrained: str  # see `TaskLook`, as the next two
    counted: str
    faster_convolutions: bool


def _first_steps(task: Task, device: torch.device, steps: int, seed: int) -> _FirstSteps:
    """Time a step of the task as given, by number of threads, and an evaluation; say what these steps have shown.

    On a CPU some steps are timed with all threads, with half of them, and so on until a step takes clearly longer.
    """
    off = BoostConfig().with_values({"boost.mode": "disable_all"})
    most = torch.get_num_threads()
    n_counts = most.bit_length() if device.type == "cpu" else 1
    n_steps = n_counts * _TIMED_STEPS
    # A schedule may not go on beyond its end, and a training may be shorter than what is timed.
    prepared = prepare(task, off, level="O0", seed=seed, device=device, steps=max(steps, n_steps))
    batches = prepared.batches(seed)
    model, precision = unwrapped(prepared.boosted.model), prepared.boosted.precision
    counts, before = StepCounts(model), _gradient_sums(prepared.task.loss)
    loop = training_loop(prepared.boosted, prepared.task.compute_loss, batches, steps=n_steps)
    found = {most: _least_seconds(loop, device)}
    with devices.kept_threads():
        for halvings in range(1, n_counts):
            devices.use_threads(most >> halvings)
            seconds = _least_seconds(loop, device)
            if seconds > _CLEARLY_LONGER * min(found.values()):
                break
            found[most >> halvings] = seconds
    with found_by_passes(model) as faster:
        _refuse_updates_in_the_loss(prepared, next(batches))
    check_outputs(task, model, device, precision, seed)  # what is loaded for a metric is loaded once
    began = time.perf_counter()
    evaluate(task, model, device, precision, seed)
    seconds = time.perf_counter() - began
    counted = _counted(task, counts, steps / n_steps, lambda: evaluate(task, model, device, precision, seed))
    untrained = _untrained(prepared.task.loss, before, prepared.boosted.optimizer)
    return _FirstSteps(found, seconds, untrained, counted, bool(faster))


def _refuse_updates_in_the_loss(prepared: Prepared, batch: Any) -> None:
    """Raise TaskError where a loss updates what the optimizer trains: no method could freeze or accumulate that."""
    boosted = prepared.boosted
    held = set(held_parameters(boosted.optimizer))
    trained = {name: one for name, one in unwrapped(boosted.model).named_parameters() if one in held}

    def written() -> list[str]:
        # By their sums: what a fused kernel writes is not counted in a tensor's version.
        before = {name: _sum(parameter) for name, parameter in trained.items()}
        boosted.forward_backward(prepared.task.compute_loss, batch)
        # A momentum encoder, which is written in the forward pass, may require gradients, but gets none.
        names = [name for name in before if trained[name].grad is not None and _sum(trained[name]) != before[name]]
        boosted.forget_pass()
        return names

    if not (names := written()):
        return
    # A layer may keep its weights within bounds, as an embedding with `max_norm` does; that changes nothing twice.
    before = {name: trained[name].detach().clone() for name in names}
    written()
    names = [name for name in names if not _about_equal(trained[name], before[name])]
    if names:
        raise TaskError(
            f"the loss of {prepared.task.name} updates weights that its optimizer trains ({_listed(names)}), which no "
            "method could freeze or accumulate; leave every update to the optimizer of the task"
        )


def _sum(parameter: Tensor) -> float:
    return float(parameter.detach().sum(dtype=torch.float32))


def _about_equal(one: Tensor, other: Tensor) -> bool:
    return torch.allclose(one, other, rtol=8 * torch.finfo(one.dtype).eps, equal_nan=True)


def _listed(names: Sequence[str]) -> str:
    return ", ".join([*names[:_NAMED], *["..."] * (len(names) > _NAMED)])


def _counted(task: Task, counts: StepCounts, share: float, judge: Callable[[], float]) -> str:
    """Say which counts of steps weigh in the metric: a training of fewer steps would be judged by another measure."""
    try:
        at_first, at_last = counts.judged(judge, share)
    except StoppedError:
        raise
    except Exception:  # a count may index a list, or be kept in eight bits: any model may refuse in its own way
        return ""
    if math.isclose(at_first, at_last, rel_tol=_SAME) or math.isnan(at_first + at_last):
        return ""
    return (
        f"The {task.metric_name} depends on a count of steps in the model ({_listed(counts.names)}): the same weights "
        f"have {at_first:.4g} with the count of a training's first step and {at_last:.4g} with that of its last. "
        "Set-ups of fewer updates are judged by another measure then; let evaluations take the value of the end."
    )


def _gradient_sums(loss: Any) -> dict[str, float]:
    """Return the sum of each gradient that a parameter of a loss has, by name: a teacher may come with some."""
    named = loss.named_parameters() if isinstance(loss, nn.Module) else ()
    return {name: _sum(one.grad) for name, one in named if one.grad is not None}


def _untrained(loss: Any, before: Mapping[str, float], optimizer: Optimizer) -> str:
    """Say which parameters of a loss got gradients in training that its optimizer does not use; else empty."""
    held = set(held_parameters(optimizer))
    got = [name for name, value in _gradient_sums(loss).items() if value != before.get(name)]
    names = [name for name in got if loss.get_parameter(name) not in held]
    if not names:
        return ""
    return (
        f"The loss has parameters that get gradients and are not trained: {_listed(names)}. Give them to the "
        "optimizer, or let them not require gradients."
    )


def _least_seconds(loop: Iterator[Any], device: torch.device) -> float:
    """Return what the quickest of some steps takes, not counting the first."""
    seconds, began = [], time.perf_counter()
    for _ in islice(loop, _TIMED_STEPS):
        devices.synchronize(device)
        seconds.append(time.perf_counter() - began)
        began = time.perf_counter()
    return min(seconds[1:])


def _unfused(optimizer: Optimizer) -> str:
    """Say so where torch has a kernel that updates all weights at once, and the optimizer does not use it."""
    name, is_fused = type(optimizer).__name__, any(group.get("fused", True) for group in optimizer.param_groups)
    if getattr(torch.optim, name, None) is not type(optimizer) or is_fused:
        return ""
    if not all(has_fused_kernel(parameter, f"_fused_{name.lower()}_") for parameter in held_parameters(optimizer)):
        return ""
    return (
        f"The task's {name} is not fused. `fused=True` makes its updates faster; set-ups that name an optimizer have "
        "it fused, and what that saves is a part of their gain."
    )


def _course(task: Task, optimizer: Optimizer, steps: int) -> Sequence[tuple[float, ...]]:
    """Return the factors of the task's schedule on the optimizer's rates; empty where there is none.

    Of a long training that of a shorter one stands for it: a million steps of a scheduler take a minute.
    """
    steps = min(steps, _MOST_UPDATES)
    with contextlib.suppress(ValueError):  # of a scheduler that is stepped past its end, as the first run will tell
        return (recorded(task.new_scheduler, optimizer, steps) if has_rate(optimizer) else None) or ()
    return ()


def _highest(course: Sequence[tuple[float, ...]]) -> list[float]:
    """Return the highest factor of each group."""
    return [max(factors) for factors in zip(*course, strict=True)]


def _one_factor(highest: Sequence[float]) -> float:
    """Return the factor of all groups that have a rate; 0 where there are several."""
    factors = [factor for factor in highest if factor]
    return factors[0] if factors and max(factors) < (1.0 + _ABOUT) * min(factors) else 0.0


def _doubled(optimizer: Optimizer) -> Optimizer:
    """Return a stand-in for an optimizer with twice its rates."""
    stand_in = StandIn(optimizer)
    if has_rate(stand_in):
        for group in stand_in.param_groups:
            group["lr"] *= 2.0
    return stand_in


def _falls_early(course: Sequence[tuple[float, ...]]) -> str:
    """Say where the rates of a run fall to nothing at its beginning; empty where they do not."""
    highest = 0.0
    for update, rates in enumerate(course[: int(_EARLY * len(course))]):
        highest = max(highest, *rates)
        if max(rates) < _FALLEN * highest:
            return (
                f"The learning rate has fallen below 1 % of its highest after {update} of {len(course)} updates: a run "
                "steps the scheduler after every update, not after every epoch."
            )
    return ""


def epoch_batches(task: Task, seed: int = 0) -> int | None:
    """Return the number of batches in an epoch; None if the loader does not know."""
    source = task.train
    with contextlib.suppress(Exception):  # a function of more than a seed, an endless stream
        source = source(seed) if callable(source) and not hasattr(source, "__len__") else source
        return len(source)
    return None


def usual_batches(task: Task) -> int:
    """Return the number of batches a task is trained on by default: its own, or 300 if it says none."""
    if task.epochs is not None:
        return batches_of_epochs(task, task.epochs)
    return _USUAL_BATCHES if task.steps is None else int(task.steps)


def batches_of_epochs(task: Task, epochs: float) -> int:
    """Return how many batches ``epochs`` passes over the data take; a TaskError if an epoch's are not known."""
    n_batches = epoch_batches(task)
    if n_batches is None:
        raise TaskError(f"the loader of {task.name} does not know its length; say --steps N instead of epochs")
    return max(math.ceil(checked_number("epochs", epochs, above=0.0) * n_batches), 1)


def network_facts(task: Task, *, with_weights: bool = True) -> NetworkFacts:
    """Measure what methods will find in a task's network, on up to two copies on the CPU, without training it.

    Without weights nothing is drawn, so another thread may train meanwhile, and it is quick. But not every model can be
    built that way, and none is called, so less is known of one that torch.fx cannot trace.
    """
    cpu = torch.device("cpu")
    if not with_weights:
        return facts_of_copies(lambda: _without_weights(task), task.new_optimizer, task.loss, None)
    with kept_generators(cpu):
        first = first_batch(task, 0, cpu)
        return facts_of_copies(lambda: unwrapped(task.new_model()), task.new_optimizer, task.loss, first)


def _without_weights(task: Task) -> nn.Module:
    with torch.device("meta"):
        network = unwrapped(task.new_model())
    network.to_empty(device="cpu")
    for module in network.modules():
        if isinstance(module, BatchNorm):
            module.reset_parameters()  # a method may ask whether it has learned anything
    return network
