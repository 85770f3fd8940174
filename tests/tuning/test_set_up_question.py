"""The study that is written for a task: what applies is searched, what does not is left out with a sentence."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from optuna.distributions import CategoricalDistribution
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim.lr_scheduler import CosineAnnealingLR, LambdaLR, OneCycleLR, ReduceLROnPlateau, StepLR
from torch.utils.data import DataLoader, Dataset

from workbench import api
from workbench.config import NetworkFacts
from workbench.core import devices
from workbench.study.ask.search_space import suggest
from workbench.study.ask.set_up_question import SetUpQuestion, ask
from workbench.study.ask.study_file import StudyFile, parse_study, read_study
from workbench.study.ask.task_study import begin_study, folder_of, threads_and_places
from workbench.study.errors import StudyBusyError, StudyError
from workbench.study.run.warm_up import NO_WARM_UP
from workbench.study.store.storage import holding_study
from workbench.tasks import Task
from workbench.tasks.errors import TaskError
from workbench.tasks.loading import load_task
from workbench.tasks.stoppable_task import StoppedError
from workbench.training import task_look
from workbench.training.task_look import TaskLook, look_at

CPU = torch.device("cpu")


def regression(**changes: Any) -> Task:
    """Return a regression by a small net; any field of the task can be another."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(64, 6, generator=generator)
    batches = [(x[i::8], x[i::8].sum(1, keepdim=True)) for i in range(8)]
    fields: dict[str, Any] = {
        "name": "sums",
        "model": lambda: nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 1)),
        "loss": nn.MSELoss(),
        "optimizer": lambda named: torch.optim.Adam(named, lr=0.01),
        "train": batches,
        "evaluate": batches,
        "metric": "mse",
    }
    return Task(**fields | changes)


LOOK = TaskLook(
    optimizer="SGD",
    rates=(0.1,),
    momentum=0.9,
    nesterov=False,
    weight_decay=5e-4,
    has_scheduler=False,
    no_merging="",
    convolutions=4,
    faster_convolutions=False,
    matrices=4,
    sparse_gradients=False,
    network=NetworkFacts(4, 4, 8, 4, 4, 4, no_sequence="its inputs are no tokens"),
    fast_bfloat16=True,
    device="cpu",
    reading="as_given",
    threads=1,
    step_seconds=0.01,
    evaluation_seconds=0.0,
)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Work in an empty folder, in which studies are written."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def asked(look: TaskLook = LOOK, *, steps: int = 180, minutes: float = 15.0, drop: Any = None) -> SetUpQuestion:
    return ask(look, "mine.py:task", steps=steps, minutes=minutes, allowed_drop=drop)


def test_threads_and_memory_are_tried_where_they_may_matter() -> None:
    assert not {"runtime.threads", "runtime.data"} & parse_study(asked().text).set_up.runtime.keys()
    look = replace(LOOK, threads=8, fewer_threads={4: 0.009, 2: 0.011, 1: 0.012}, reading="resident")
    found = parse_study(asked(look).text)
    assert (found.set_up.runtime["runtime.threads"], found.set_up.runtime["runtime.data"]) == ([4], ["resident"])
    assert found.study.threads is None
    assert asked(replace(LOOK, not_kept="Not kept.")).left_out.count("Not kept.") == 1
    ahead = parse_study(asked(replace(look, reading="prefetch")).text).set_up.runtime
    assert ahead["runtime.data"] == ["prefetch"]
    assert ahead["runtime.threads"] == [4, 2, 1], "what reads needs a core"


@pytest.mark.parametrize(
    ("seconds", "idle", "expected"),
    [
        ({1: 0.012}, 2.0, (1, 2, " takes 0.83 x as long with 2, and so 2 runs are trained at a time.")),
        ({1: 0.012}, 1.0, (None, 1, "")),
        ({1: 0.009}, 1.0, (1, 1, " takes 1.1 x as long with 2.")),
        ({}, 2.0, (None, 1, "")),
    ],
    ids=["about as quick", "about as quick, busy", "quicker, busy", "slower"],
)
def test_a_run_has_as_few_threads_as_are_about_enough_where_more_runs_then_go_at_a_time(
    seconds: dict[int, float], idle: float, expected: tuple[int | None, int, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(devices, "usable_cores", lambda: 2)
    monkeypatch.setattr(devices, "other_work_now", lambda: SimpleNamespace(idle_cores=lambda: idle))
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    look = replace(LOOK, threads=2, fewer_threads=seconds)
    assert threads_and_places(look, "cpu", jobs=2) == ((1, 2) if seconds else (None, 1))
    threads, places = threads_and_places(look, "cpu", jobs=None)
    question = ask(look, "mine.py:task", steps=180, minutes=15.0, allowed_drop=None, places=places, threads=threads)
    found, told = parse_study(question.text), [one for one in question.left_out if "thread" in one]
    assert (threads, places, found.study.threads) == (*expected[:2], expected[0])
    assert told == ([f"More than one thread for a run is left out: a step as given{expected[2]}"] if threads else [])
    assert not (threads and "runtime.threads" in found.set_up.runtime)
    assert question.run_seconds == pytest.approx(180 * (seconds[1] if threads else 0.01))


@pytest.mark.parametrize(
    ("reading", "busy", "cores", "expected"),
    [
        ("prefetch", None, 2, (1, 1)),
        ("prefetch", None, 4, (1, 2)),
        ("resident", 2, 2, (1, 2)),
        ("as_given", 2, 4, (1, 1)),
        ("as_given", 2, 6, (1, 2)),
    ],
)
def test_a_run_has_cores_for_what_reads_beside_it(
    reading: str, busy: int | None, cores: int, expected: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(devices, "usable_cores", lambda: cores)
    monkeypatch.setattr(devices, "other_work_now", lambda: SimpleNamespace(idle_cores=lambda: float(cores)))
    seen = {"threads": 2, "step_seconds": 0.01, "fewer_threads": {1: 0.0101}}
    look = replace(LOOK, **seen, reading=reading, reading_cores=busy)
    assert threads_and_places(look, "cpu", jobs=None) == threads_and_places(look, "cpu", jobs=9) == expected
    assert parse_study(asked(look).text).study.reading_cores == busy


@pytest.mark.parametrize(("jobs", "expected"), [(None, (2, 4)), (4, (2, 4)), (1, (2, 1))])
def test_more_threads_than_the_fewest_are_taken_where_they_leave_as_much_room(
    jobs: int | None, expected: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(devices, "usable_cores", lambda: 8)
    monkeypatch.setattr(devices, "other_work_now", lambda: SimpleNamespace(idle_cores=lambda: 8.0))
    monkeypatch.setattr(torch, "get_num_threads", lambda: 8)
    look = replace(LOOK, threads=8, step_seconds=0.01, fewer_threads={4: 0.01, 2: 0.0102, 1: 0.0124})
    assert threads_and_places(look, "cpu", jobs) == expected


def test_a_look_halves_the_threads_until_a_step_takes_clearly_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Time goes by as the number of threads says."""
    seconds, clock, threads = {8: 10.0, 4: 9.0, 2: 11.0, 1: 20.0}, [0.0], [8]

    def tick() -> float:
        clock[0] += seconds[threads[-1]]
        return clock[0]

    monkeypatch.setattr(torch, "get_num_threads", lambda: 8)
    monkeypatch.setattr(devices, "use_threads", threads.append)
    monkeypatch.setattr(time, "perf_counter", tick)
    look = look_at(regression(), CPU, 100)
    assert threads == [8, 4, 2, 1, 8]
    assert look.threads == 8
    assert {n: round(one / look.step_seconds, 2) for n, one in look.fewer_threads.items()} == {4: 0.9, 2: 1.1}


def test_a_gpu_is_asked_for_graphs_tf32_and_a_half_that_it_multiplies() -> None:
    file = parse_study(asked(replace(LOOK, device="cuda")).text)
    chosen = {"runtime.cuda_graph", "runtime.matmul_precision", "runtime.cudnn_benchmark"}
    assert chosen <= file.set_up.runtime.keys()
    assert file.base_config().amp.dtype == "bfloat16"
    older = parse_study(asked(replace(LOOK, device="cuda", fast_bfloat16=False, convolutions=0)).text)
    assert older.set_up.runtime["amp.level"] == ["O0", "O2"]
    assert older.base_config().amp.dtype == "float16"
    assert "runtime.cudnn_benchmark" not in older.set_up.runtime
    assert not chosen & parse_study(asked().text).set_up.runtime.keys()


def test_other_convolutions_are_timed_where_a_cpu_may_gain_by_them() -> None:
    asked_of = {
        device: parse_study(asked(replace(LOOK, device=device, faster_convolutions=True)).text).set_up.runtime
        for device in ("cpu", "cuda")
    }
    assert asked_of["cpu"]["runtime.convolution"] == ["library", "by_shape"]
    assert "runtime.convolution" not in asked_of["cuda"]
    assert "runtime.convolution" not in parse_study(asked().text).set_up.runtime


@pytest.mark.parametrize("augments", [False, True])
def test_a_look_finds_samples_that_are_decoded_again_and_again(augments: bool) -> None:
    class Files(Dataset[Any]):
        def __len__(self) -> int:
            return 64

        def __getitem__(self, index: int) -> Any:
            time.sleep(0.001)
            noise = torch.randn(6) if augments else torch.zeros(6)
            return torch.full((6,), index / 64) + noise, torch.ones(1)

    look = look_at(regression(train=DataLoader(Files(), batch_size=8, shuffle=True)), CPU, 100)
    assert look.reading == ("prefetch" if augments else "resident")
    assert ("random numbers are drawn when one is read" in look.not_kept) is augments


def study_of(task: Task, steps: int = 100) -> tuple[SetUpQuestion, StudyFile]:
    """Look at a task and return the question with the study that its text means."""
    question = ask(look_at(task, CPU, 100), task.name, steps=steps, minutes=60.0, allowed_drop=None)
    file = parse_study(question.text)
    for dimension in file.dimensions:
        dimension.check(file.base_config())
    return question, file


def paths(file: StudyFile) -> set[str]:
    return {one.path for one in file.dimensions}


def said(question: SetUpQuestion, start: str) -> str:
    """Return the one sentence that begins so."""
    found = [sentence for sentence in question.left_out if sentence.startswith(start)]
    assert len(found) == 1, question.left_out
    assert found[0].endswith(".")
    return found[0]


@pytest.mark.parametrize("name", ["digits-lenet", "digits-resnet"])
def test_an_image_classifier_may_have_everything_but_shorter_sequences(name: str) -> None:
    question, file = study_of(load_task(name))
    assert file.study.objective == "time_to_quality"
    assert file.study.task == name
    assert {
        "optimizer.name",
        "schedule.length",
        "batch.factor",
        "regularization.label_smoothing",
        "regularization.weight_average",
    } <= paths(file)
    assert "runtime.memory_format" in file.set_up.runtime
    assert list(file.set_up.left_out) == question.left_out
    names = next(one for one in file.dimensions if one.path == "optimizer.name").choices
    assert "Muon" in names
    less_bn = next((one for one in file.dimensions if one.path == "boost.less_bn"), None)
    assert (less_bn is not None) == (name == "digits-resnet"), "only one of them has BatchNorms"
    if name == "digits-lenet":
        assert "BatchNorm" in said(question, "less_bn is left out")


def test_a_look_changes_nothing_and_draws_nothing() -> None:
    task = regression()
    torch.manual_seed(7)
    before = torch.get_rng_state()
    look_at(task, CPU, 100)
    assert torch.equal(torch.get_rng_state(), before)


def test_a_regression_has_no_labels_to_smooth_and_no_images() -> None:
    question, file = study_of(regression())
    assert "because" in said(question, "Label smoothing is left out")
    assert "because" in said(question, "Smaller inputs at first are left out")
    assert not {"regularization.label_smoothing", "curriculum.kind", "boost.less_bn"} & paths(file)
    assert "runtime.memory_format" not in file.set_up.runtime
    names = next(one for one in file.dimensions if one.path == "optimizer.name").choices
    assert set(names) == {"Adam", "Muon"}
    own = next(one for one in file.dimensions if one.path == "optimizer.lr[Adam]")
    assert own.low < 0.01 < own.high, "around the task's own rate"
    assert file.allowed_drops("mse", 2.0) == {"o1": pytest.approx(0.02)}


def test_a_schedule_that_waits_for_a_metric_is_refused_in_a_sentence() -> None:
    with pytest.raises(TaskError, match=r"ReduceLROnPlateau.step\(\) needs metrics"):
        study_of(regression(scheduler=lambda optimizer, _: ReduceLROnPlateau(optimizer, patience=1)))


@pytest.mark.parametrize(
    ("train", "why"),
    [
        (
            [(torch.ones(4, 6 + i % 2), torch.ones(4, 1)) for i in range(4)],
            "batches of shapes (4, 6), (4, 7), (4, 6) at batch[0] cannot be concatenated without a method "
            "joined(batches) that pads them",
        ),
        (
            [(torch.ones(4, 6), torch.ones(4, 1), torch.ones(9 + i, 5)) for i in range(4)],
            "a batch of 4 rows holds a Tensor of shape (9, 5) at batch[2], which cannot be divided among them",
        ),
        ([(torch.ones(4, 6), torch.ones(4, 1))], "the loader gives one batch"),
    ],
    ids=["ragged batches", "boxes of all images", "one batch"],
)
def test_batches_that_cannot_be_put_together_are_not(train: list[tuple[Tensor, ...]], why: str) -> None:
    def loss(model: nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
        return F.mse_loss(model(batch[0][:, :6]), batch[1])

    question, file = study_of(regression(train=train, loss=loss))
    assert said(question, "Larger batches") == f"Larger batches are left out, because {why}."
    assert not any(path.startswith("batch.") for path in paths(file))


def two_rates(named: Iterator[tuple[str, nn.Parameter]]) -> torch.optim.Optimizer:
    first, *others = [parameter for _, parameter in named]
    return torch.optim.SGD([{"params": [first], "lr": 0.01}, {"params": others}], lr=0.1)


@pytest.mark.parametrize(
    ("highest", "factor"),
    [(None, 1.0), ([0.05, 0.5], 5.0), ([0.02, 0.05], None)],
    ids=["no schedule", "a schedule of five times the rates", "a schedule that sets them one by one"],
)
def test_groups_with_rates_of_their_own_are_scaled_alike(highest: list[float] | None, factor: float | None) -> None:
    cycle = highest and (lambda optimizer, updates: OneCycleLR(optimizer, highest, total_steps=updates))
    question, file = study_of(regression(optimizer=two_rates, scheduler=cycle))
    assert "learning rates of their own" in said(question, "Other optimizers are left out")
    assert "optimizer.name" not in paths(file)
    factors = [(one.low, one.high, one.log) for one in file.dimensions if one.path == "optimizer.lr_factor"]
    assert factors == ([] if factor is None else [(factor / 4, factor * 8, True)])
    assert file.set_up.plain_rates == ([] if factor is None else [factor, 2 * factor, 4 * factor])
    assert file.set_up.plain_rate == ("optimizer.lr" if factor is None else "optimizer.lr_factor")
    assert "schedule.length" in paths(file)
    shapes = next(one.choices for one in file.dimensions if one.path == "schedule.shape")
    assert shapes == ("linear" if factor else "task",)
    assert file.set_up.plain_shape == ("task" if highest and factor is None else "linear")
    told = [one for one in question.left_out if "left out of tuned plain" in one]
    assert ["from its highest, 0.05 and 0.5, takes" in one for one in told] == ([True] if factor == 5.0 else [])


def test_a_table_with_sparse_gradients_keeps_the_optimizer_that_takes_them() -> None:
    class Table(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rows = nn.EmbeddingBag(8, 16, sparse=True)
            self.out = nn.Linear(16, 1)

        def forward(self, x: Tensor) -> Tensor:
            found: Tensor = self.out(self.rows((x > 0).long()))
            return found

    question, file = study_of(regression(model=Table, optimizer=lambda named: torch.optim.SGD(named, lr=0.01)))
    assert "sparse gradients" in said(question, "Other optimizers are left out")
    assert {one for one in paths(file) if one.startswith("optimizer.")} == {"optimizer.lr_factor"}


def test_of_an_optimizer_that_is_no_family_of_ours_the_rate_is_searched() -> None:
    question, file = study_of(regression(optimizer=lambda named: torch.optim.NAdam([p for _, p in named], lr=0.01)))
    assert "NAdam, nothing but its rate is searched" in said(question, "Of the task's own optimizer")
    names = next(one for one in file.dimensions if one.path == "optimizer.name").choices
    assert names == ("AdamW", "Muon", "task")
    for name in names:

        def draw(path: str, asked: Any, name: str = name) -> Any:
            first = asked.choices[0] if isinstance(asked, CategoricalDistribution) else asked.low
            return name if path == "optimizer.name" else first

        drawn = suggest(draw, file.dimensions, file.base_config(), file.plans)
        rates = {path for path in drawn.parameters if "lr" in path and path.startswith("optimizer.")}
        of_muon = {"optimizer.aux_lr[Muon]"} if name == "Muon" else set()
        assert rates - of_muon == ({"optimizer.lr_factor"} if name == "task" else {f"optimizer.lr[{name}]"})
        assert drawn.config.optimizer is not None
        assert drawn.config.optimizer.name == (None if name == "task" else name)
        assert drawn.config.optimizer.lr_factor == (0.25 if name == "task" else None)


@pytest.mark.parametrize("fast", [True, False])
def test_bfloat16_is_tried_where_it_can_pay(fast: bool) -> None:
    question = asked(replace(LOOK, fast_bfloat16=fast))
    file = parse_study(question.text)
    assert ("amp.level" in file.set_up.runtime) == fast
    assert bool([one for one in question.left_out if one.startswith("bfloat16")]) != fast
    if fast:
        assert file.base_config().amp.dtype == "bfloat16"


def test_compiling_is_tried_where_a_run_is_long_enough_to_pay_for_it() -> None:
    short, long = asked(steps=180), asked(replace(LOOK, step_seconds=1.0), minutes=600.0)
    assert "too short to pay" in said(short, "torch.compile is left out")
    cut = asked(steps=20_000, minutes=15.0)
    assert "compiling takes longer than the 18 s of a run in the search" in said(cut, "torch.compile is left out")
    less_cut = parse_study(asked(steps=20_000, minutes=30.0).text)
    assert less_cut.share_of_today == pytest.approx(0.18)
    assert less_cut.set_up.runtime["runtime.compile"] == ["off", "default"], "it takes a part of the training it is for"
    assert parse_study(long.text).set_up.runtime["runtime.compile"] == ["off", "default"]


def test_too_little_time_is_refused_with_what_it_takes() -> None:
    with pytest.raises(StudyError, match=r"6 s is too short a time .* give it at least (\d+) minutes") as refused:
        asked(steps=100_000, minutes=0.1)
    needed = float(str(refused.value).split("at least ")[1].split()[0])
    assert asked(steps=100_000, minutes=needed).steps >= 100_000 / 16


def test_a_long_training_is_asked_about_at_a_horizon_that_is_said() -> None:
    question = asked(steps=10_000, minutes=15.0)
    assert question.steps == 1800, "fifty runs of 1,800 batches of 10 ms are 15 minutes"
    sentence = said(question, "The study trains 1800 of 10000 batches")
    needed = float(sentence.split("--minutes ")[1].split()[0])
    assert asked(steps=10_000, minutes=needed).steps == 10_000
    file = parse_study(question.text)
    assert file.study.budget_steps == 1800
    assert sentence in file.set_up.left_out
    assert file.set_up.shortened == sentence
    assert file.set_up.todays_steps == 10_000


def test_of_a_training_too_long_for_the_time_faster_steps_are_searched() -> None:
    question = asked(replace(LOOK, reading="resident"), steps=100_000, minutes=2.0)
    file = parse_study(question.text)
    assert (file.study.objective, file.study.budget_steps, file.set_up.todays_steps) == ("speed", 240, 100_000)
    assert file.set_up.runtime == {
        "amp.level": ["O0", "O2"],
        "runtime.data": ["resident"],
        "runtime.memory_format": ["contiguous", "channels_last"],
    }
    assert file.finds_steps_alone
    plan = file.base_config().with_values({"amp.level": "O2"}).resolve("O1")
    assert (plan.less_bn, plan.grad_freeze) == (False, False)
    assert NO_WARM_UP.speed_job(plan, file, 0).loading, "since the study asks how to read"
    other = parse_study(asked(steps=100_000, minutes=2.0).text)
    assert not NO_WARM_UP.speed_job(plan, other, 0).loading
    assert file.allowed_drops("accuracy") == {"o1": 0.005}
    assert file.allowed_drops("mse", 3.0) == {"o1": pytest.approx(0.03)}
    sentence = said(question, "The study trains 240 of 100000 batches and searches only what makes a step faster")
    assert file.set_up.shortened == sentence
    needed = float(sentence.split("--minutes ")[1].split()[0])
    assert parse_study(asked(steps=100_000, minutes=needed).text).study.objective == "time_to_quality"
    assert "too short a time for it" in said(question, "torch.compile is left out")
    longer = parse_study(asked(steps=1_000_000, minutes=5.0).text)
    assert longer.set_up.runtime["runtime.compile"] == ["off", "default"]


def test_a_search_for_faster_steps_is_gone_on_with_and_says_what_it_is(here: Path) -> None:
    task, notes = regression(name="long", steps=10_000), list[str]()
    folder = begin_study(task, minutes=60.0, device="cpu")
    text = asked(steps=10_000, minutes=2.0).text.replace("mine.py:task", "long")
    (folder / "study.toml").write_text(text, encoding="utf-8")
    begin_study(task, device="cpu", on_note=notes.append)
    assert notes[1:] == [parse_study(text).set_up.shortened]
    assert "searches only what makes a step faster" in notes[1]


def test_several_runs_at_a_time_confirm_on_more_seeds() -> None:
    how: Any = {"steps": 900, "minutes": 15.0, "allowed_drop": None}
    seeds = [parse_study(ask(LOOK, "mine.py:task", **how, places=n).text).confirm.seeds_max for n in (1, 2, 100)]
    assert 10 < seeds[0] < seeds[1] < 2 * seeds[0] + 2 < seeds[2] == 60


def test_several_runs_at_a_time_are_longer_and_need_fewer_minutes() -> None:
    two: Any = {"allowed_drop": None, "places": 2}
    question = ask(LOOK, "mine.py:task", steps=10_000, minutes=15.0, **two)
    assert question.steps == 3600, "fifty runs of 3,600 batches of 10 ms, two at a time, are 15 minutes"
    needed = float(said(question, "The study trains 3600 of 10000").split("--minutes ")[1].split()[0])
    assert needed == pytest.approx(50 * 10_000 * 0.01 / 60 / 2, abs=1.0)
    assert ask(LOOK, "mine.py:task", steps=10_000, minutes=needed, **two).steps == 10_000
    with pytest.raises(StudyError) as refused:
        ask(LOOK, "mine.py:task", steps=100_000, minutes=0.05, **two)
    needed = float(str(refused.value).split("at least ")[1].split()[0])
    assert parse_study(ask(LOOK, "mine.py:task", steps=100_000, minutes=needed, **two).text).set_up.plain_rates


@pytest.mark.parametrize("steps", [5, 160])
def test_of_few_long_steps_no_run_is_longer_than_today_s(steps: int) -> None:
    """Runs of ten batches, which a search for faster steps has at least, are no small part of such a training."""
    with pytest.raises(StudyError, match="too short a time to search a training") as refused:
        asked(replace(LOOK, step_seconds=20.0), steps=steps, minutes=0.8 * math.ceil(steps / 16) * 50 / 3)
    assert "faster steps alone" not in str(refused.value)


def test_an_evaluation_takes_its_share_of_the_time() -> None:
    slow = replace(LOOK, evaluation_seconds=9.0)
    question = asked(slow, steps=10_000, minutes=15.0)
    assert question.steps == 900, "fifty runs of 9 s and an evaluation are 15 minutes"
    assert "50" in question.forecast(15.0)
    with pytest.raises(StudyError, match=r"with an evaluation of 9 s; give it at least 9 minutes") as refused:
        asked(slow, steps=1000, minutes=3.0)
    assert "faster steps alone may be found in 4 minutes" in str(refused.value), "in 25 runs of ten batches"
    assert parse_study(asked(slow, steps=1000, minutes=4.0).text).finds_steps_alone


@pytest.mark.parametrize(
    ("optimizer", "is_told"),
    [
        (lambda named: torch.optim.Adam(named, lr=0.01), True),
        (lambda named: torch.optim.Adam(named, lr=0.01, fused=True), False),
        (lambda named: torch.optim.NAdam(named, lr=0.01), False),
        (lambda named: type("Adam", (torch.optim.Adam,), {})(named, lr=0.01), False),
    ],
    ids=["plain", "fused", "no kernel", "one's own"],
)
def test_an_optimizer_that_could_be_fused_is_told(optimizer: Any, is_told: bool) -> None:
    unfused = look_at(regression(optimizer=optimizer), CPU, 20).unfused
    assert unfused.startswith("The task's Adam is not fused.") is is_told
    assert bool(unfused) is is_told


class Warming(nn.Module):
    """Counts the steps it is trained for, in a buffer or in an attribute, for a term of its loss that grows."""

    def __init__(self, in_buffer: bool, *, also_evaluating: bool) -> None:
        super().__init__()
        self.body, self.also_evaluating = nn.Linear(6, 1), also_evaluating
        self.seen: Any = 0
        if in_buffer:
            del self.seen
            self.register_buffer("seen", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.seen += self.training
        return self.body(x)  # type: ignore[no-any-return]

    def weight(self) -> Any:
        return self.seen / 100 if self.training or self.also_evaluating else 1.0


def warming_loss(model: Any, batch: tuple[Tensor, Tensor]) -> Tensor:
    return F.mse_loss(model(batch[0]), batch[1]) + model.weight() * model.body.weight.square().sum()


@pytest.mark.parametrize("in_buffer", [True, False])
@pytest.mark.parametrize("also_evaluating", [True, False])
def test_a_count_of_steps_that_weighs_in_the_metric_is_told(in_buffer: bool, also_evaluating: bool) -> None:
    task = regression(
        model=lambda: Warming(in_buffer, also_evaluating=also_evaluating), loss=warming_loss, metric="loss"
    )
    counted = look_at(task, CPU, 200).counted
    assert ("depends on a count of steps in the model (seen)" in counted) is also_evaluating
    assert bool(counted) is also_evaluating


class Looking(Warming):
    """Looks its weight up in a list that ends where today's training does."""

    def weight(self) -> Any:
        return [1.0, 0.5, 0.25, *[0.0] * 17][int(self.seen)]


def test_a_count_that_cannot_be_set_to_the_end_ends_no_look() -> None:
    task = regression(model=lambda: Looking(True, also_evaluating=True), loss=warming_loss, metric="loss")
    assert look_at(task, CPU, 20).counted == ""


def test_a_schedule_is_looked_at_over_the_length_that_it_will_have() -> None:
    one_cycle = regression(scheduler=lambda optimizer, updates: OneCycleLR(optimizer, 0.1, total_steps=updates - 100))
    look = look_at(one_cycle, CPU, 200)
    assert look.has_scheduler
    assert 0.0 < look.evaluation_seconds < 5.0
    shorter_than_what_is_timed = regression(scheduler=lambda optimizer, n: OneCycleLR(optimizer, 0.1, total_steps=n))
    assert look_at(shorter_than_what_is_timed, CPU, 3).sets_rates


@pytest.mark.parametrize(
    ("scheduler", "sets_rates", "highest"),
    [
        (lambda optimizer, updates: OneCycleLR(optimizer, 0.4, total_steps=updates), True, 0.4),
        (lambda optimizer, updates: OneCycleLR(optimizer, 0.1, total_steps=updates), True, 0.1),
        (lambda optimizer, _: LambdaLR(optimizer, lambda i: 0.01 * min((i + 1) ** -0.5, (i + 1) / 64)), True, 2.5e-4),
        (CosineAnnealingLR, False, 0.1),
        (lambda optimizer, _: LambdaLR(optimizer, lambda update: min(update / 30, 1.0)), False, 0.1),
    ],
    ids=["one cycle", "one cycle at the optimizer's rate", "a base rate of no meaning", "cosine", "warm-up"],
)
def test_rates_are_those_that_a_run_reaches(scheduler: Any, sets_rates: bool, highest: float) -> None:
    task = replace(regression(scheduler=scheduler), optimizer=lambda named: torch.optim.SGD(named, lr=0.1))
    look = look_at(task, CPU, 100)
    assert look.sets_rates == sets_rates
    assert look.rates == pytest.approx((highest,))
    question = asked(look)
    assert ('plain_shape = "linear"' in question.text) == sets_rates, "its rates would be tried in vain"
    assert ("own schedule is left out of tuned plain" in " ".join(question.left_out)) == sets_rates
    assert parse_study(question.text).set_up.plain_rates == pytest.approx([highest, 2 * highest, 4 * highest])


def test_what_could_not_be_read_is_not_written(here: Path) -> None:
    still = replace(regression(steps=24), optimizer=lambda named: torch.optim.SGD(named, lr=0.0))
    with pytest.raises(StudyError, match="logarithmic range"):
        begin_study(still, minutes=60.0, device="cpu")
    assert not (here / "studies").exists()


@pytest.mark.parametrize(
    ("scheduler", "said"),
    [
        (lambda optimizer, updates: StepLR(optimizer, 1, 0.7), "after 13 of 100 updates"),
        (lambda optimizer, updates: CosineAnnealingLR(optimizer, T_max=6), "after 6 of 100 updates"),
        (lambda optimizer, updates: StepLR(optimizer, 10, 0.7), ""),
        (lambda optimizer, updates: CosineAnnealingLR(optimizer, T_max=updates), ""),
        (lambda optimizer, updates: OneCycleLR(optimizer, 0.1, total_steps=updates), ""),
        (lambda optimizer, updates: LambdaLR(optimizer, lambda update: min(update / 30, 1.0)), ""),
        (None, ""),
    ],
    ids=["steps of epochs", "cosine of epochs", "steps", "cosine", "one cycle", "warm-up", "none"],
)
def test_a_schedule_that_counts_epochs_is_noticed(scheduler: Any, said: str) -> None:
    sentence = look_at(replace(regression(), scheduler=scheduler), CPU, 100).falls_early
    assert said in sentence
    assert bool(sentence) == bool(said)


@pytest.mark.parametrize(("metric", "is_said"), [("mse", True), ("loss", False)])
def test_what_a_metric_compares_is_said_where_a_function_takes_more_than_pairs(metric: str, is_said: bool) -> None:
    def weighted(model: nn.Module, batch: list[torch.Tensor]) -> torch.Tensor:
        x, weight, y = batch
        return (weight * (model(x) - y) ** 2).mean()

    batches = [(x, torch.ones(len(x), 1), y) for x, y in regression().train]
    task = regression(loss=weighted, train=batches, evaluate=batches, metric=metric)
    sentence = "Of the 3 items of a batch, the metric mse compares model(batch[0]) with batch[1]"
    assert look_at(task, CPU, 20).compared.startswith(sentence) == is_said
    assert look_at(regression(), CPU, 20).compared == ""


class Carried(nn.GRUCell):
    """A network with a state for just as many samples as the loader gives at once."""

    def __init__(self) -> None:
        super().__init__(6, 1)
        self.register_buffer("state", torch.zeros(8, 1))

    def forward(self, x: Tensor) -> Tensor:
        state = super().forward(x, self.state)
        self.state = state.detach()
        return state


def test_larger_batches_are_left_out_where_the_network_does_not_take_them() -> None:
    question, file = study_of(regression(model=Carried))
    start = "Larger batches are left out, because the network does not take 4 batches at once (RuntimeError: "
    assert "32" in said(question, start)
    assert "batch.factor" not in paths(file)


def test_a_stop_while_larger_batches_are_tried_is_no_refusal_of_the_network() -> None:
    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        if len(batch[0]) == 32:
            raise StoppedError("stopped on request")
        return F.mse_loss(model(batch[0]), batch[1])

    with pytest.raises(StoppedError):
        look_at(regression(loss=loss), CPU, 20)


class Weighed(nn.MSELoss):
    """A criterion with a weight to be trained, and one that gets no gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.teacher = nn.Parameter(torch.zeros(())), nn.Linear(2, 2)

    def forward(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return (-self.weight).exp() * super().forward(outputs, targets) + self.weight


@pytest.mark.parametrize("is_held", [False, True])
def test_weights_of_a_loss_that_nobody_trains_are_named(is_held: bool) -> None:
    loss = Weighed()
    loss.teacher(torch.ones(2)).sum().backward()  # it has just been trained by itself

    def optimizer(named: Iterator[tuple[str, nn.Parameter]]) -> torch.optim.Adam:
        return torch.optim.Adam([*named, *([("weight", loss.weight)] if is_held else [])], lr=0.01)

    told = look_at(regression(loss=loss, optimizer=optimizer), CPU, 20).untrained
    expected = "" if is_held else "The loss has parameters that get gradients and are not trained: weight."
    assert told.partition(" Give")[0] == expected


@pytest.mark.parametrize("fused", [False, True])  # a fused kernel leaves a tensor's version as it is
def test_a_loss_with_an_optimizer_of_its_own_is_refused(fused: bool) -> None:
    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        F.mse_loss(model(batch[0]), batch[1]).backward()
        torch.optim.Adam(model.parameters(), lr=1e-3, fused=fused).step()
        return F.mse_loss(model(batch[0]), batch[1])

    with pytest.raises(TaskError, match=r"loss of sums updates weights that its optimizer trains \(0\.weight, "):
        look_at(regression(loss=loss), CPU, 20)


class WritesItsWeights(nn.Module):
    """Keeps a table within bounds and follows a layer slowly, in the forward pass, as networks may."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.layer, self.slow = nn.Embedding(40, 6, max_norm=0.5), nn.Linear(6, 1), nn.Linear(6, 1)

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            self.slow.weight.lerp_(self.layer.weight, 0.1)
            target = self.slow(x)
        return self.layer(x + self.table((10 * x[:, 0].abs()).long())) + 0.0 * target


def test_a_network_may_write_its_own_weights() -> None:
    assert look_at(regression(model=WritesItsWeights), CPU, 20).optimizer == "Adam"


def test_one_minute_is_no_plural() -> None:
    told = said(asked(steps=180, minutes=1.0), "The study trains 120 of 180 batches")
    assert "would take longer than 1 minute; what it finds" in told


def test_a_short_training_keeps_its_length() -> None:
    question = asked(steps=180)
    assert question.steps == 180
    assert not any("annealed" in sentence for sentence in question.left_out)
    assert parse_study(question.text).set_up.shortened == ""
    assert parse_study(question.text).set_up.todays_steps is None
    assert question.run_seconds == pytest.approx(1.8)
    share = "of which starting and timing take a share"
    assert question.forecast(15.0) == f"A run as given takes about 1.8 s; at most 500 of them fit into 15 min, {share}."
    assert question.forecast(15.0, 4).endswith(f"; at most 2000 of them, 4 at a time, fit into 15 min, {share}.")


@pytest.mark.parametrize(
    ("drop", "metric", "expected"),
    [
        (None, "accuracy", 0.005),
        (None, "val_accuracy", 0.005),
        (None, "MulticlassAccuracy", 0.005),
        (None, "acc", 0.005),
        (None, "f1", 0.004),
        (None, "mse", 0.004),
        (0.02, "accuracy", 0.02),
        ("2 %", "mse", 0.008),
        ("0.5%", "accuracy", 0.002),
    ],
)
def test_one_drop_is_asked_about_the_given_or_the_usual_one(drop: Any, metric: str, expected: float) -> None:
    file = parse_study(asked(drop=drop).text)
    assert file.allowed_drops(metric, 0.4) == {"o1": pytest.approx(expected)}
    is_share = isinstance(drop, str)
    assert math.isnan(file.allowed_drops("accuracy")["o1"]) is is_share, "a share is unknown until the baseline is"


def test_a_task_s_own_length_is_taken_and_what_is_said_goes_first(here: Path) -> None:
    lengths = {}
    for name, fields, said_now in (
        ("steps", {"steps": 24}, {}),
        ("epochs", {"epochs": 2.5}, {}),
        ("said", {"steps": 24}, {"steps": 40}),
        ("passes", {"steps": 24}, {"epochs": 4}),
    ):
        folder = begin_study(regression(name=name, **fields), minutes=60.0, device="cpu", **said_now)
        lengths[name] = read_study(folder).study.budget_steps
    assert lengths == {"steps": 24, "epochs": 20, "said": 40, "passes": 32}


def test_a_study_that_is_there_is_gone_on_with(here: Path) -> None:
    task, notes = regression(name="a task / of mine", steps=24), list[str]()
    folder = begin_study(task, minutes=60.0, device="cpu", allowed_drop="2 %")
    assert folder == folder_of(task) == Path("studies/a-task-of-mine")
    written = (folder / "study.toml").read_bytes()
    assert begin_study(task, minutes=30.0, device="cpu", on_note=notes.append) == folder
    assert (folder / "study.toml").read_bytes() == written
    assert any("Continuing" in note for note in notes)
    assert begin_study(task, device="cpu", allowed_drop="2%") == folder, "the same share, written without a blank"


@pytest.mark.parametrize(
    "other", [{"steps": 12}, {"steps": 48}, {"epochs": 9}, {"allowed_drop": 0.5}, {"allowed_drop": "3 %"}], ids=str
)
def test_another_question_than_the_one_that_is_there_is_refused(here: Path, other: dict[str, Any]) -> None:
    task = regression(steps=24)
    begin_study(task, minutes=60.0, device="cpu", allowed_drop="2 %")
    with pytest.raises(StudyError, match="--fresh starts a new one"):
        begin_study(task, minutes=60.0, device="cpu", **other)
    begin_study(task, minutes=60.0, device="cpu", fresh=True, **other)


@pytest.mark.parametrize("limit", [{"epochs": math.inf}, {"minutes": math.inf}, {"minutes": math.nan}], ids=str)
def test_a_limit_without_end_is_refused(here: Path, limit: dict[str, float]) -> None:
    with pytest.raises(StudyError, match=r"must be a finite number, got (inf|nan)"):
        begin_study(regression(), device="cpu", **{"epochs": 2.0} | limit)


@pytest.mark.parametrize("drop", [0, 1, 0.5], ids=str)
def test_the_same_drop_may_be_asked_again(here: Path, drop: float) -> None:
    task = regression(steps=24)
    folder = begin_study(task, minutes=60.0, device="cpu", allowed_drop=drop)
    assert begin_study(task, minutes=60.0, device="cpu", allowed_drop=drop) == folder


def test_a_study_that_is_replaced_is_archived_with_its_own_question_but_not_while_it_is_tuned(here: Path) -> None:
    task, notes = regression(steps=24), list[str]()
    folder = begin_study(task, minutes=60.0, device="cpu")
    (folder / "study.db").touch()
    question = (folder / "study.toml").read_text()
    again: dict[str, Any] = {"minutes": 30.0, "device": "cpu", "fresh": True, "on_note": notes.append}
    with holding_study(folder), pytest.raises(StudyBusyError, match="is being tuned by"):
        begin_study(task, **again)
    assert (folder / "study.toml").read_text() == question
    begin_study(task, **again)
    (archived,) = (folder / "archive").iterdir()
    assert (archived / "study.db").exists()
    assert (archived / "study.toml").read_text() == question != (folder / "study.toml").read_text()
    assert notes[-1] == f"The earlier study is archived in {archived}."


def test_a_study_in_another_storage_is_not_replaced_before_anything_is_known(here: Path) -> None:
    task = regression(steps=24)
    folder = begin_study(task, minutes=60.0, device="cpu")
    question = (folder / "study.toml").read_text()
    with pytest.raises(StudyError, match="with `storage`, rename the task"):
        api.tune(task, minutes=30.0, fresh=True, storage="sqlite:///elsewhere.db")
    assert (folder / "study.toml").read_text() == question


def test_a_task_of_the_same_name_from_another_place_is_refused(here: Path) -> None:
    (here / "own.py").touch()
    mine, other = (replace(regression(steps=24), spec=f"{name}.py:task") for name in ("own", "another"))
    folder = begin_study(mine, minutes=60.0, device="cpu")
    assert begin_study(replace(mine, spec=f"{here}/own.py:task"), device="cpu") == folder
    with pytest.raises(
        StudyError, match=r"is about \.\./\.\./own\.py:task, not another\.py:task; give the task another"
    ):
        begin_study(other, device="cpu")


def test_what_a_shortened_study_was_asked_may_be_asked_again(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    a_second_each = replace(LOOK, step_seconds=1.0, evaluation_seconds=0.0)
    monkeypatch.setattr(task_look, "look_at", lambda *_: a_second_each)
    task, many = regression(), 400
    folder = begin_study(task, steps=many, minutes=many / 4 * 50 / 60, device="cpu")  # 50 runs of a quarter of them
    assert read_study(folder).study.budget_steps == many / 4
    assert begin_study(task, steps=many, device="cpu") == folder
    with pytest.raises(StudyError, match="--fresh starts a new one"):
        begin_study(task, steps=many - 1, device="cpu")


def test_passes_of_a_loader_without_a_length_are_no_length(here: Path) -> None:
    def endless(seed: int) -> Iterator[Any]:
        yield from regression().train

    with pytest.raises(StudyError, match="does not know its length"):
        begin_study(regression(train=endless, epochs=3), device="cpu")
