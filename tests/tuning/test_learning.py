"""A task that learns nothing: its answer means nothing, and everyone who shows the answer says so."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

from tests.kit import set_up_search
from tests.kit.fake_runner import SEARCH, SHORT, FakeRunner, making, tuned
from tests.kit.surface_runner import SurfaceRunner
from tests.reports.synthetic_study import fastest_study
from workbench.cli import app
from workbench.cli.study_commands import _print_result
from workbench.config import BoostConfig
from workbench.config.boost_config import read_config
from workbench.panels.study_answer import answer_html
from workbench.report import study_report_html
from workbench.report.sources import Sources
from workbench.study import TuneProgress, join_study, read_result
from workbench.study.run.experimenter import TaskExperimenter
from workbench.study.run.job import Agreement, AgreementJob, Trained, TrainJob
from workbench.tasks import Task

TOLD = "The task as given learns nothing in 100 batches: it ends with accuracy "


def beginning_at(untrained: float) -> Callable[..., FakeRunner]:
    def trained(job: TrainJob, run: Trained) -> Trained:
        assert not job.also_untrained or job.level == "O0"
        return replace(run, untrained=untrained) if job.also_untrained else run

    return making(trained=trained)


@pytest.mark.parametrize(
    ("below", "told"),
    [(0.001, "The task as given learns less than may be lost"), (-0.2, TOLD), (0.3, ""), (math.nan, "")],
    ids=["near", "above", "far", "?"],
)
def test_a_baseline_no_better_than_without_learning_is_said_once_it_is_known(
    tmp_path: Path, below: float, told: str
) -> None:
    notes, reached = set[str](), 0.9

    def on_progress(progress: TuneProgress) -> None:
        if progress.trials <= 1:
            notes.add(progress.note)

    how: Any = {"make_experimenter": beginning_at(reached - below), "on_progress": on_progress}
    result = tuned(tmp_path, SEARCH, trials=2, **how)
    assert result.doubt.startswith(told)
    assert bool(result.doubt) is bool(told)
    assert (', which direction="maximize" calls better' in result.doubt) is (below < 0)
    assert (result.doubt in notes - {""}) is bool(told), "before the search goes on"
    assert read_result(tmp_path).doubt == result.doubt


def test_in_a_small_part_of_a_long_training_little_is_learned_and_that_is_no_fault(tmp_path: Path) -> None:
    early = SHORT.replace('"time_to_target"', '"speed"') + "\n[set_up]\ntodays_steps = 50000\n"
    result = tuned(tmp_path, early, trials=2, make_experimenter=beginning_at(0.899))
    assert result.doubt.startswith("In 100 of today's 50000 batches the task as given hardly learns: it ends with")
    assert len(result.trials) == 2
    assert "All this in runs of 100 of today's 50000 batches." in result.candidates[0].sentence
    told = CliRunner().invoke(app, ["validate", str(result.exported["o1"])]).output
    assert "all this in runs of 100 of today's 50000 batches; `workbench compare` trains whole ones" in told


def hardly_learning(directory: Path, gain: float, noise: float = 0.001) -> SurfaceRunner:
    """Return what trains to 0.9 or so from a little less."""

    def trained(job: TrainJob, run: Trained) -> Trained:
        return replace(run, untrained=run.metric - gain) if job.also_untrained else run

    return SurfaceRunner(directory, noise=noise, trained=trained)


@pytest.mark.parametrize(
    ("gain", "noise", "told"),
    [
        (0.001, 0.001, "learns nothing in 200 batches"),
        (0.018, 0.001, "learns less than may be lost"),
        (0.03, 0.03, " points apart from seed to seed), and without learning it has "),
        (0.3, 0.001, ""),
    ],
    ids=["nothing", "less than the drop", "less than its seeds differ by", "more"],
)
def test_a_search_for_the_fastest_set_up_ends_where_no_training_is_needed(
    tmp_path: Path, gain: float, noise: float, told: str
) -> None:
    folder = set_up_search.write(tmp_path / "s", n_trials=3, plain_runs=2, **set_up_search.SEARCH_ALONE)
    result = set_up_search.run(folder, hardly_learning(folder, gain, noise))
    assert (len(result.trials) == 1) is bool(told)
    assert (result.choices["o1"].candidate is None) is bool(told)
    assert told in result.doubt
    assert bool(result.doubt) is bool(told)
    state = read_result(folder)
    assert (state.choices, state.messages) == (result.choices, result.messages)
    if told:
        exported = read_config(result.exported["o1"])
        assert exported.resolve("O1").summary() == exported.resolve("O0").summary()
        text = (folder / "study.toml").read_text()
        (folder / "study.toml").write_text(text.replace("o1 = ", "o2 = "))
        assert read_result(folder).doubt == state.doubt, "by the drop that the study was begun with"
        (folder / "study.toml").write_text(text)
        worker = join_study(folder, make_experimenter=lambda _file, _folder: hardly_learning(folder, gain))
        assert (worker.finished_here, worker.complete) == (0, True)


@pytest.mark.parametrize(
    ("gain", "learned", "why_not"),
    [(0.001, "nothing", ""), (0.001, "nothing", "its losses differ"), (0.018, "less than may be lost", "differs")],
    ids=["faster", "not the same", "less than the drop"],
)
def test_where_a_training_cut_short_learns_nothing_a_faster_runtime_is_searched_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gain: float, learned: str, why_not: str
) -> None:
    set_up = 'todays_steps = 2000\n[set_up.runtime]\n"amp.level" = ["O0", "O2"]'
    folder = set_up_search.write(tmp_path / "s", set_up=set_up)
    runner = hardly_learning(folder, gain)  # and amp O2 takes 0.8 of the time
    run = runner.run
    agreed = Agreement(why_not)
    monkeypatch.setattr(runner, "run", lambda job, *on: agreed if isinstance(job, AgreementJob) else run(job, *on))
    result = set_up_search.run(folder, runner)
    assert f"learns {learned} in 200 of its 2000 batches" in result.doubt
    assert result.doubt.endswith("more minutes, so that its runs are longer, and start over (--minutes, --fresh).")
    assert "The search ended with what makes a step faster, since runs so short show no more." in result.messages
    assert not any("importance" in one for one in result.messages)
    taken, n_tried = result.choices["o1"].candidate, len(result.trials) - 1
    assert read_config(result.exported["o1"]).amp.level == ("O0" if why_not else "O2")
    assert read_result(folder).choices == result.choices
    if why_not:
        assert (taken, n_tried) == (None, 0)
        assert "nothing that was timed makes its steps faster" in result.choice_sentences[0]
    else:
        assert taken is not None
        assert (taken.verdict, n_tried) == ("confirmed", 1)
        assert taken.speedup == pytest.approx(1.0 / 0.8, rel=0.05)


def test_terminal_notebook_panel_and_report_begin_with_it(capsys: pytest.CaptureFixture[str]) -> None:
    study = fastest_study(doubt=f"{TOLD}10 %.")
    _print_result(study, json=False)
    assert capsys.readouterr().out.splitlines()[0] == study.doubt
    assert str(study).splitlines()[0] == study.doubt
    for page in (answer_html(study), study_report_html(study, Sources({"o1": BoostConfig()}, None, None))):
        assert 0 < page.index("learns nothing in 100 batches") < page.index("boost_config.o1.json")
    assert "learns nothing" not in answer_html(fastest_study())


def constant_labels(share: float, *, lr: float) -> Task:
    labels = (torch.arange(100) >= 100 * share).long()
    x = torch.randn(100, 4, generator=torch.Generator().manual_seed(0))
    return Task(
        name="labels",
        model=lambda: nn.Linear(4, 2),
        loss=nn.CrossEntropyLoss(),
        optimizer=lambda named: torch.optim.SGD(named, lr=lr),
        train=[(x, labels)],
        evaluate=[(x, labels)],
        metric="accuracy",
    )


def trained_in(folder: Path, task: Task, **options: Any) -> Trained:
    """Train a task as given for three batches."""
    off = BoostConfig().with_values({"boost.mode": "disable_all"})
    run: Trained = TaskExperimenter(task, "cpu", folder / "runs").run(TrainJob(off, "O0", 0, 3, 3, **options))
    return run


def test_without_learning_an_accuracy_is_at_least_the_share_of_the_commonest_label(tmp_path: Path) -> None:
    task = constant_labels(0.83, lr=0.0)
    run, again = trained_in(tmp_path, task, also_untrained=True), trained_in(tmp_path, task)
    assert run.untrained == pytest.approx(0.83)
    assert Trained.from_json(run.to_json()) == run
    assert math.isnan(again.untrained)
    assert again.metric == run.metric, "the run itself is the same"
    assert "untrained" not in again.to_json()


def test_the_metric_of_an_untrained_network_is_evaluated_where_there_are_no_labels(tmp_path: Path) -> None:
    run = trained_in(tmp_path, replace(constant_labels(0.5, lr=0.0), metric="loss"), also_untrained=True)
    assert run.untrained == pytest.approx(run.metric), "at a learning rate of 0 nothing changes"


def test_a_run_knows_what_its_evaluation_takes_beside_its_steps(tmp_path: Path) -> None:
    class Slow(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            time.sleep(0.0 if self.training else 0.3)
            return super().forward(x)

    run = trained_in(tmp_path, replace(constant_labels(0.5, lr=0.0), model=lambda: Slow(4, 2)))
    assert run.beside_seconds >= 0.3
    assert run.by_clock(2.0) == pytest.approx(2.0 * run.seconds + run.beside_seconds)
