from __future__ import annotations

import dataclasses
import json
import math
import random
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from tests.experiments.small_tasks import BATCH_SIZE, Net, small_task
from tests.kit.configurations import accumulating
from tests.kit.runs import read_back, run_task
from workbench.config import BoostConfig
from workbench.core.records import Event, EventKind, StepRecord
from workbench.runs import RunRecorder, TelemetryError, read_run
from workbench.tasks import Task
from workbench.tasks.digits import digits_resnet
from workbench.tasks.stoppable_task import stoppable
from workbench.training import run as run_module
from workbench.training.evaluation import evaluate
from workbench.training.gradient_watch import GradientWatch
from workbench.training.precision import Precision
from workbench.training.run import RunProgress, RunResult
from workbench.training.setup import prepare
from workbench.training.trace_buffer import TraceBuffer

CPU = torch.device("cpu")
DYNAMIC = {"loss_scale": {"kind": "dynamic", "init": 8.0, "window": 4, "collapse_after": 3}}


def run(task: Task, config: dict[str, Any] | None = None, **options: Any) -> RunResult:
    options = {"steps": 12, "device": CPU} | options
    return run_task(task, BoostConfig.from_dict(config or {}), **options)


@pytest.fixture
def drain_every_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the host see every step at once, as if a second passed between two of them."""
    monkeypatch.setattr(TraceBuffer, "due", lambda self: True)


def test_a_run_that_ends_as_planned_gives_metric_curve_and_counts() -> None:
    result = run(small_task(), steps=30, evaluate_every=10)
    assert [step for step, _ in result.curve] == [10, 20, 30]
    assert result.metric == result.curve[-1][1] > 0.6
    assert (result.metric_name, result.higher_is_better) == ("accuracy", True)
    assert (result.steps, result.overflows, result.final_loss_scale) == (30, 0, 1.0)
    assert (result.diverged, result.stopped, result.message, result.path) == (False, False, "", None)
    assert 0 < result.seconds < 60
    assert result.plan.level == "O0"


def test_a_run_directory_holds_config_environment_steps_events_and_summary(tmp_path: Path) -> None:
    config = {"loss_scale": {"kind": "dynamic", "init": 16.0, "window": 3}}
    options: dict[str, Any] = {"seed": 3, "steps": 20, "evaluate_every": 10, "exponents_every": 2}
    result = run(small_task(), config, **options, out=tmp_path, run_id="one")
    assert result.path == tmp_path / "one"
    written = read_run(result.path)
    assert written.finished
    assert BoostConfig.from_dict(written.config) == BoostConfig.from_dict(config)
    environment = written.environment
    assert (environment["seed"], environment["task"], environment["level"]) == (3, "small", "O0")
    assert (environment["data_hash"], environment["steps"]) == ("points 1", 20)
    assert environment["device"]["type"] == "cpu"
    steps = written.steps
    assert steps["step"].tolist() == list(range(20))
    assert result.final_loss == pytest.approx(steps["loss"].iloc[-2:].mean()), "the mean of the last tenth"
    assert (steps["samples"] == BATCH_SIZE).all()
    assert steps["grad_norm"].notna().all()
    assert [len(histograms) > 0 for histograms in steps["grad_exponents"]] == [True, False] * 10
    assert steps["underflow_share"].notna().tolist() == [True, False] * 10
    kinds = written.events["kind"].tolist()
    assert kinds.count(EventKind.EVALUATION) == 2
    assert kinds.count(EventKind.SCALE_UP) == 6
    evaluations = written.events[written.events["kind"] == EventKind.EVALUATION]
    assert [tuple(row) for row in evaluations[["step", "value"]].to_numpy()] == [(s - 1, v) for s, v in result.curve]
    summary = json.loads((tmp_path / "one" / "summary.json").read_text(encoding="utf-8"))
    assert summary == written.summary
    assert summary["state"] == "finished"
    assert summary["in_effect"] == result.plan.summary()
    assert summary["metric"] == result.metric
    assert summary["curve"] == [list(point) for point in result.curve]
    assert summary["recorded"]["steps"] == 20


def test_gradients_are_looked_at_where_somebody_sees_what_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[int] = []
    monkeypatch.setattr(GradientWatch, "observe", lambda _, parameters: looks.append(len(parameters)))
    run(small_task(), steps=3)
    assert looks == []
    run(small_task(), steps=3, on_records=lambda records, events: None)
    run(small_task(), steps=3, out=tmp_path)
    assert len(looks) == 6


def test_an_overflow_event_names_the_modules_that_went_non_finite(tmp_path: Path) -> None:
    class Poisoned(Net):
        def __init__(self) -> None:
            super().__init__()
            self.backwards = 0
            self.head.bias.register_hook(self._poison)

        def _poison(self, gradient: torch.Tensor) -> torch.Tensor:
            self.backwards += 1
            return gradient * torch.inf if self.backwards == 3 else gradient

    result = run(small_task(model=Poisoned), DYNAMIC, steps=5, out=tmp_path)
    assert result.overflows == 1
    events = read_back(result).events
    overflow = events[events["kind"] == EventKind.OVERFLOW]
    assert overflow[["step", "subject"]].to_numpy().tolist() == [[2, "head"]]


def test_a_loss_that_turns_nan_ends_the_run_at_the_next_drain(tmp_path: Path, drain_every_step: None) -> None:
    result = run(small_task(poison_from=4), steps=1000, out=tmp_path)
    assert result.diverged
    assert result.steps == 5
    assert "step 4" in result.message
    assert "diverged" in result.message
    assert math.isnan(result.metric)
    written = read_back(result)
    assert written.summary["state"] == "diverged"
    assert len(written.steps) == 5
    diverged = written.events[written.events["kind"] == EventKind.DIVERGED]
    assert diverged["step"].tolist() == [4]


def test_a_diverged_model_is_not_shown_to_the_pruner() -> None:
    shown: list[tuple[int, float]] = []

    def judge(step: int, value: float) -> bool:
        shown.append((step, value))
        return False

    result = run(small_task(poison_from=6), steps=1000, evaluate_every=4, on_evaluation=judge)
    assert result.diverged
    assert [step for step, _ in shown] == [4]
    assert result.steps == 8


def test_a_metric_that_is_nan_is_a_divergence(tmp_path: Path) -> None:
    class Broken(Net):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x) if self.training else super().forward(x) * torch.nan

    result = run(small_task(model=Broken, metric="loss"), steps=4, out=tmp_path)
    assert result.diverged
    assert result.message.startswith("loss is nan after 4 steps, though all weights are finite: look at the metric")
    assert result.curve == ()
    written = read_back(result)
    assert written.summary["state"] == "diverged"
    assert written.events["kind"].tolist() == [EventKind.DIVERGED]


def test_stop_ends_the_run_within_one_step(tmp_path: Path) -> None:
    asked: list[int] = []

    def stop() -> bool:
        asked.append(1)
        return len(asked) == 7

    result = run(small_task(), steps=1000, stop=stop, out=tmp_path)
    assert result.stopped
    assert not result.diverged
    assert result.steps == 7
    assert result.message == "stopped on request after 7 steps"
    assert math.isnan(result.metric)
    written = read_back(result)
    assert len(written.steps) == 7
    assert written.events["kind"].tolist() == [EventKind.STOPPED]
    assert written.summary["state"] == "stopped"


@pytest.mark.parametrize("evaluate_every", [8, None], ids=["on the way", "at the end"])
def test_stop_ends_a_long_evaluation_at_its_next_batch(
    evaluate_every: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_module, "_LONG_EVALUATION", 0.0)
    evaluated: list[int] = []
    batch = next(iter(small_task().evaluation_batches(0)))

    def batches(seed: int) -> Any:
        for place in range(1000):
            evaluated.append(place)
            yield batch

    task = dataclasses.replace(small_task(), evaluate=batches, data_hash="long")
    result = run(task, steps=12, evaluate_every=evaluate_every, stop=lambda: len(evaluated) > 20)
    assert result.stopped
    assert (result.steps, result.curve) == (evaluate_every or 12, ())
    assert len(evaluated) < 30
    assert "while it was evaluated" in result.message


def test_a_pruner_ends_the_run_at_an_evaluation_and_its_curve_stays(tmp_path: Path) -> None:
    result = run(small_task(), steps=1000, evaluate_every=5, on_evaluation=lambda step, _: step == 15, out=tmp_path)
    assert [step for step, _ in result.curve] == [5, 10, 15]
    assert result.steps == 15
    assert result.metric == result.curve[-1][1]
    assert not result.stopped
    assert not result.diverged
    assert "ended early after 15 steps" in result.message
    written = read_back(result)
    assert written.summary["state"] == "ended early"
    assert len(written.steps) == 15


def test_a_collapsed_scale_says_what_to_change(tmp_path: Path, drain_every_step: None) -> None:
    result = run(small_task(poison_from=2, poison=math.inf), DYNAMIC, steps=1000, out=tmp_path)
    assert result.diverged
    # From 8 the scale falls to its floor 1 in three overflows (steps 2 to 4) that already ends there: two more follow.
    assert result.steps == 7
    assert result.final_loss_scale == 1.0
    assert "the loss scale collapsed: at step 6" in result.message
    assert "overflowed 3 times in a row" in result.message
    assert "lower the learning rate" in result.message
    events = read_back(result).events
    assert events[events["kind"] == EventKind.SCALE_COLLAPSE][["step", "value"]].to_numpy().tolist() == [[6, 1.0]]


GROUPS = {
    "boost": {"mode": "manual", "loss_scale_group": True},
    "loss_scale": DYNAMIC["loss_scale"] | {"minimum": 2.0},
}


@pytest.mark.parametrize(
    ("config", "poison_from", "steps", "overflows"),
    [
        # Steps 2 and 3 lower the scales to their floors, a quarter of the start; three more find nothing left to lower.
        (GROUPS, 2, 7, 5),
        (DYNAMIC | accumulating(2), 0, 10, 5),  # three windows to the floor, the last of them counts; two more
        (DYNAMIC, 96, 100, 4),  # the overflows end before the limit
    ],
    ids=["groups that lie on their floors", "counted by windows", "too few overflows"],
)
def test_a_collapse_is_counted_over_drains(
    config: dict[str, Any], poison_from: int, steps: int, overflows: int, drain_every_step: None
) -> None:
    result = run(small_task(poison_from=poison_from, poison=math.inf), config, steps=100)
    assert (result.steps, result.overflows) == (steps, overflows)
    assert result.diverged == ("the loss scale collapsed" in result.message) == (steps < 100)


def test_an_exception_in_the_task_is_passed_on_and_its_steps_are_kept(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError, match="the user's task"):
        run(small_task(fail_at=6), out=tmp_path, run_id="broken")
    written = read_run(tmp_path / "broken")
    assert written.finished
    assert written.summary["state"] == "interrupted"
    assert written.summary["message"] == "ZeroDivisionError: the loss of the user's task failed"
    assert written.steps["step"].tolist() == list(range(6))
    assert not (tmp_path / "broken" / "writer.lock").exists()


def test_an_interrupt_from_a_progress_display_keeps_every_step(tmp_path: Path, drain_every_step: None) -> None:
    def interrupt(progress: RunProgress) -> None:
        if progress.step == 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(small_task(), out=tmp_path, run_id="interrupted", on_progress=interrupt)
    written = read_run(tmp_path / "interrupted")
    assert written.steps["step"].tolist() == list(range(5))
    assert written.summary["state"] == "interrupted"


@pytest.mark.parametrize("stays", [False, True], ids=["full once", "full for good"])
def test_a_full_disk_ends_a_run_that_keeps_what_could_be_written(
    stays: bool, tmp_path: Path, drain_every_step: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, calls = RunRecorder.write, []

    def full(self: RunRecorder, records: Any, events: Any = ()) -> None:
        calls.append(1)
        if len(calls) == 4 or (stays and len(calls) > 4):
            raise TelemetryError("no space left on the disk")
        write(self, records, events)

    monkeypatch.setattr(RunRecorder, "write", full)
    with pytest.raises(TelemetryError, match="no space left") as caught:
        run(small_task(), out=tmp_path, run_id="full")
    notes = getattr(caught.value, "__notes__", [])
    assert any("could not be recorded" in note for note in notes) is stays, "the first error is told"
    written = read_run(tmp_path / "full")
    assert written.steps["step"].tolist() == [0, 1, 2] + [3] * (not stays)  # what failed once is written later
    assert written.finished is not stays
    assert stays or written.summary["state"] == "interrupted"
    assert not (tmp_path / "full" / "writer.lock").exists()


BFLOAT16 = DYNAMIC | {"amp": {"level": "O2", "dtype": "bfloat16"}}


@pytest.mark.parametrize("config", [{}, BFLOAT16], ids=["float32", "bfloat16"])
def test_the_same_seed_gives_the_same_bits(tmp_path: Path, config: dict[str, Any]) -> None:
    results = [
        run(small_task(), config, seed=5, evaluate_every=5, out=tmp_path, run_id="a", exponents_every=3),
        run(small_task(), config, seed=5, out=tmp_path, run_id="b"),  # evaluating on the way changes nothing
        run(small_task(), config, seed=5),  # nor does recording
    ]
    first, second = (read_run(tmp_path / name).steps for name in ("a", "b"))
    for column in ("loss", "grad_norm", "grad_amax", "learning_rate", "loss_scale"):
        assert first[column].tolist() == second[column].tolist(), column
    assert results[0].final_loss == results[1].final_loss == results[2].final_loss
    assert results[0].metric == results[1].metric == results[2].metric
    assert run(small_task(), config, seed=6).final_loss != results[0].final_loss


def test_accumulation_counts_micro_batches(tmp_path: Path) -> None:
    config = accumulating(4)
    result = run(small_task(), config, steps=12, evaluate_every=6, out=tmp_path)
    assert result.steps == 12
    assert [step for step, _ in result.curve] == [6, 12]
    steps = read_back(result).steps
    assert steps["accumulated"].tolist() == [1, 2, 3, 4] * 3
    assert steps["grad_norm"].notna().tolist() == [False, False, False, True] * 3


def test_progress_is_told_at_drains_and_evaluations(drain_every_step: None) -> None:
    told: list[RunProgress] = []
    run(small_task(), steps=6, evaluate_every=3, on_progress=told.append)
    assert {progress.step for progress in told} == set(range(1, 7))
    assert all(progress.steps == 6 and progress.loss_scale == 1.0 for progress in told)
    assert all(math.isfinite(progress.loss) for progress in told)
    assert math.isnan(told[0].metric)
    assert math.isfinite(told[-1].metric)
    seconds = [progress.seconds for progress in told]
    assert seconds == sorted(seconds)


@pytest.mark.parametrize("option", ["steps", "evaluate_every"])
@pytest.mark.parametrize(
    ("value", "error", "words"),
    [
        (0, ValueError, "be at least 1, got 0"),
        (-3, ValueError, "be at least 1, got -3"),
        (2.5, TypeError, r"be a whole number of batches, got 2\.5"),
        (True, TypeError, "be a whole number of batches, got True"),
    ],
)
def test_counts_that_are_no_counts_are_refused(option: str, value: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=f"`{option}` must {words}"):
        run(small_task(), **{option: value})


def test_a_config_that_cannot_run_leaves_no_run_directory(tmp_path: Path) -> None:
    config = {"boost": {"mode": "manual", "dim_reduce": True}, "dim_reduce": {"pca_mat_path": "basis.npy"}}
    with pytest.raises(ValueError, match=r"`pca_mat_path` basis\.npy does not exist"):
        run(small_task(), config, out=tmp_path / "runs")
    assert not (tmp_path / "runs").exists()


def test_an_evaluation_that_fails_is_told_before_the_training() -> None:
    class Detects(Net):
        def forward(self, x: torch.Tensor) -> Any:
            return {"loss": super().forward(x).square().mean()} if self.training else [{"boxes": x}]

    def loss(model: Any, batch: Any) -> Any:
        return sum(model(batch[0]).values())

    task = dataclasses.replace(small_task(model=Detects), loss=loss, metric="loss")
    with (
        pytest.warns(UserWarning, match=r"before training, a batch cannot be evaluated \(AttributeError: .*values"),
        pytest.raises(AttributeError, match="values"),
    ):
        run_task(task, BoostConfig(), steps=2, device=CPU)


def test_where_a_metric_may_compare_the_wrong_item_of_a_batch_the_warning_says_which() -> None:
    batches = [(torch.randn(4, 4), torch.tensor([4]), torch.randint(0, 2, (4,))) for _ in range(3)]

    def loss(model: Any, batch: Any) -> Any:
        return torch.nn.functional.cross_entropy(model(batch[0]), batch[2])

    def matches(outputs: torch.Tensor, sizes: torch.Tensor) -> float:
        return float(outputs[sizes.rows].sum())  # type: ignore[attr-defined]  # of another kind of target

    given = {"model": lambda: nn.Linear(4, 2), "loss": loss, "train": batches, "evaluate": batches}
    task = dataclasses.replace(small_task(), **given, metric=matches, direction="maximize", data_hash="sized")
    with (
        pytest.warns(UserWarning, match=r"'rows'\); it may fail .* too. Of the 3 items .* compares .* batch\[1\]"),
        pytest.raises(AttributeError, match="rows"),
    ):
        run_task(task, BoostConfig(), steps=2, device=CPU)


def test_evaluation_leaves_no_trace_on_training() -> None:
    class Frozen(Net):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x) + 0 * torch.rand(())  # a model that draws even when it is evaluated

    task = small_task(model=Frozen)
    net = task.new_model()
    net.train()
    net.get_submodule("norm").eval()  # the user keeps the statistics of a pretrained layer
    before = {name: value.clone() for name, value in net.state_dict().items()}
    drawn_from = torch.get_rng_state()
    value = evaluate(task, net, CPU, Precision("O0", "float16", "cpu"), seed=2)
    assert 0 <= value <= 1
    assert torch.equal(torch.get_rng_state(), drawn_from)
    assert [name for name, module in net.named_modules() if not module.training] == ["norm"]
    assert all(torch.equal(before[name], after) for name, after in net.state_dict().items())
    assert all(p.grad is None for p in net.parameters())


def test_a_model_that_draws_in_evaluation_draws_the_same_for_a_seed_and_leaves_no_trace() -> None:
    class Noisy(Net):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x) * torch.rand(()) + random.random() + np.random.rand(2)[0]  # noqa: NPY002

    task = dataclasses.replace(small_task(model=Noisy), metric="loss")
    net = task.new_model()

    def evaluated(seed: int) -> float:
        return evaluate(task, net, CPU, Precision("O0", "float16", "cpu"), seed)

    def states() -> tuple[Any, ...]:
        return random.getstate(), np.random.get_state()[2], torch.get_rng_state().tolist()  # noqa: NPY002

    first = evaluated(2)
    random.random(), np.random.rand(), torch.rand(3)  # noqa: NPY002  # as training does between two evaluations
    before = states()
    assert evaluated(2) == first
    assert evaluated(3) != first
    assert states() == before


class Weighted(nn.Module):
    """A criterion that learns class weights while it is trained with."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("weight", torch.ones(2))

    def forward(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.weight.lerp_(1.0 / (1.0 + torch.bincount(targets, minlength=2)), 0.1)
        return nn.functional.cross_entropy(outputs, targets, self.weight)


def test_evaluation_leaves_no_trace_on_the_criterion() -> None:
    task = dataclasses.replace(small_task(metric="loss"), loss=Weighted())
    often, once = run(task, steps=9, evaluate_every=2), run(task, steps=9)
    assert (often.final_loss, often.metric) == (once.final_loss, once.metric)


class Observed(Net):
    """A net that gathers statistics in evaluation, too, as fake quantisation does."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("range", torch.tensor([]))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        seen = x.detach().abs().max()[None]
        with torch.no_grad():
            if self.range.numel():
                seen = 0.9 * self.range + 0.1 * seen
            self.range.resize_(1).copy_(seen)
        return super().forward(x) / self.range


class Remembering(Net):
    """A model with a state that it carries from batch to batch, in an attribute and in a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(()))
        self.last = torch.zeros(())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = super().forward(x) + self.last + self.mean
        self.last, self.mean = y.detach().mean(), 0.5 * y.detach().mean()
        return y


@pytest.mark.parametrize("model", [Observed, Remembering])
def test_neither_the_look_before_the_first_run_nor_evaluations_leave_a_trace_in_what_a_model_gathers(
    model: type[nn.Module],
) -> None:
    task = small_task(model=model)  # looked at in its first run only
    runs = [run(task, steps=6, evaluate_every=every) for every in (6, 6, 2)]
    assert runs[0].final_loss == runs[1].final_loss == runs[2].final_loss


class Annealed(nn.Module):
    """A criterion that counts its calls and keeps a running centre, beside a teacher of its own."""

    def __init__(self, teacher: nn.Module) -> None:
        super().__init__()
        self.register_buffer("centre", torch.zeros(()))
        self.teacher, self.calls = teacher, 0

    def forward(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        with torch.no_grad():
            self.centre.mul_(0.9).add_(outputs.detach().abs().mean())
        loss = nn.functional.cross_entropy(outputs, targets)
        return min(1.0, self.calls / 10) * loss + self.centre * outputs.square().mean()


@pytest.mark.parametrize("metric", ["accuracy", "loss"])
def test_what_a_criterion_gathers_ends_with_its_run(metric: str) -> None:
    loss = Annealed(nn.Linear(2, 2))
    task = dataclasses.replace(small_task(metric=metric), loss=loss)
    first, second = (run(task, steps=5, evaluate_every=5) for _ in range(2))
    assert (first.final_loss, first.metric) == (second.final_loss, second.metric)
    assert (loss.calls, loss.centre.item()) == (0, 0.0)
    own = task.with_own_loss().loss
    assert own is not loss
    assert own.teacher.weight is loss.teacher.weight  # a large one is not held twice
    assert stoppable(task, lambda: False).with_own_loss().loss is not loss


class Weighed(nn.Module):
    """A criterion with a weight of its own to be trained, as losses of several tasks have them."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(()))

    def forward(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return (-self.weight).exp() * nn.functional.cross_entropy(outputs, targets) + self.weight


@pytest.mark.parametrize("kind", ["criterion", "function"])
def test_what_is_trained_of_a_loss_begins_every_run_alike(kind: str) -> None:
    weighed = Weighed()
    loss = weighed if kind == "criterion" else lambda model, batch: weighed(model(batch[0]), batch[1])
    task = dataclasses.replace(
        small_task(), loss=loss, optimizer=lambda named: torch.optim.Adam([*named, ("weight", weighed.weight)], lr=0.1)
    )
    first = run(task, steps=5)
    weighed.weight.grad = torch.ones(())
    second = run(task, steps=5)
    assert (first.final_loss, first.metric) == (second.final_loss, second.metric)
    assert weighed.weight.item() != 0.0


def test_evaluation_takes_the_split_of_the_seed() -> None:
    seeds: list[int] = []
    base = small_task()

    def split(seed: int) -> Any:
        seeds.append(seed)
        return base.evaluate(seed)

    run(dataclasses.replace(base, evaluate=split, data_hash="points"), steps=4, seed=7, evaluate_every=2)
    assert set(seeds) == {7}


def test_a_model_is_put_back_when_the_metric_fails() -> None:
    class Broken(Net):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if not self.training:
                raise ValueError("no evaluation today")
            return super().forward(x)

    net = Broken()
    with pytest.raises(ValueError, match="no evaluation today"):
        evaluate(small_task(model=Broken), net, CPU, Precision("O0", "float16", "cpu"))
    assert all(module.training for module in net.modules())


def test_schedulers_count_updates_not_micro_batches() -> None:
    totals: list[int] = []
    base = small_task()

    def schedule(optimizer: torch.optim.Optimizer, total: int) -> Any:
        totals.append(total)
        return torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.5, total_iters=total)

    task, config = dataclasses.replace(base, scheduler=schedule), BoostConfig.from_dict(accumulating(3))
    prepare(task, config, level="O0", seed=0, device=CPU, steps=12)
    assert totals == [4]


class Gate:
    """Hold a run once, before the step of a number, and let time pass meanwhile by a clock that looks hardly move."""

    def __init__(self, before: int, seconds: float = 0.0) -> None:
        self.before, self.seconds, self.asked, self.held_at, self.now = before, seconds, 0, -1, 0.0

    def clock(self) -> float:
        self.now += 1e-5
        return self.now

    def requested(self) -> bool:
        self.asked += 1
        return self.asked == self.before

    def wait(self) -> None:
        self.held_at = self.asked
        self.now += self.seconds


def test_a_pause_holds_the_run_between_two_steps_and_counts_as_no_time_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate, seen = Gate(before=4, seconds=100.0), []
    monkeypatch.setattr(time, "perf_counter", gate.clock)
    result = run(
        small_task(), steps=10, pause=gate, out=tmp_path, on_records=lambda records, events: seen.append(len(records))
    )
    assert gate.held_at == 4
    assert gate.asked == 10
    assert seen[0] == 4, "what was trained before the pause is to be seen during it"
    assert result.steps == 10
    assert result.seconds < 0.5
    steps = read_back(result).steps
    assert steps["step_ms"].max() < 500
    assert steps["seconds"].max() < 0.5


def test_a_run_can_be_stopped_while_it_is_held() -> None:
    gate = Gate(before=4)
    result = run(small_task(), steps=10, pause=gate, stop=lambda: gate.held_at > 0)
    assert (result.stopped, result.steps) == (True, 4)


def test_a_live_consumer_gets_every_step_and_event_once_and_in_order(drain_every_step: None) -> None:
    steps: list[int] = []
    kinds: list[EventKind] = []

    def take(records: Sequence[StepRecord], events: Sequence[Event]) -> None:
        steps.extend(record.step for record in records)
        kinds.extend(event.kind for event in events)

    run(small_task(), DYNAMIC, steps=12, evaluate_every=6, on_records=take)
    assert steps == list(range(12))
    assert kinds.count(EventKind.EVALUATION) == 2
    assert kinds.count(EventKind.SCALE_UP) == 3


def test_drain_seconds_says_how_late_records_may_come(monkeypatch: pytest.MonkeyPatch) -> None:
    ages: list[float] = []
    due = TraceBuffer.due
    monkeypatch.setattr(TraceBuffer, "due", lambda self: bool(ages.append(self.max_seconds)) or due(self))
    run(small_task(), steps=2, drain_seconds=0.2)
    run(small_task(), steps=1)
    assert ages == [0.2, 0.2, 1.0]


def test_the_tasks_criterion_decides_about_the_head_and_the_run_says_so(tmp_path: Path) -> None:
    task = dataclasses.replace(digits_resnet(), loss=nn.MultiMarginLoss(), metric="loss")
    note = "head not normalised: MultiMarginLoss is not known to be a classification"
    config = BoostConfig.from_dict({"boost": {"mode": "manual", "grad_freeze": False}})
    result = run_task(task, config, level="O1", steps=1, out=tmp_path, device=torch.device("cpu"))
    assert result.notes == (note,)
    assert result.path is not None
    assert json.loads((result.path / "summary.json").read_bytes())["notes"] == [note]


@pytest.mark.parametrize(("found_on", "is_said"), [("another", True), (small_task().name, False), (None, False)])
def test_a_set_up_that_was_found_on_another_task_says_so(found_on: str | None, is_said: bool) -> None:
    provenance = {} if found_on is None else {"environment": {"task": found_on}}
    config = BoostConfig.from_dict({"provenance": provenance})
    result = run_task(small_task(), config, level="O0", steps=2, device=torch.device("cpu"))
    told = f"found on the task another: what it gains and costs on {small_task().name} was not measured"
    assert (told in result.notes) is is_said
