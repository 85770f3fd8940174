"""Train, compare, replay, tune and export on a small real table, as a notebook would call them."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch

import workbench
from tests.cli.conftest import STUDY, TASK
from tests.kit.configurations import accumulating
from workbench import BoostConfig, Task
from workbench.runs import read_run
from workbench.study import StudyError, StudyStoppedError, TuneProgress, read_study
from workbench.training.run import RunProgress

ACCUMULATE = accumulating(2)
HALF = {
    "boost": {"mode": "manual", "less_bn": False, "grad_freeze": False},
    "amp": {"level": "O2", "dtype": "float16"},
    "loss_scale": {"kind": "dynamic", "init": 2.0**24, "window": 8},
}
REPLAY = "[loss_scale_replay]\nsteps = 10\nwindow = 4\nexponents_every = 1\n"


def make_task() -> Task:
    """Return a perceptron on scikit-learn's wine table."""
    names: dict[str, Any] = {}
    exec(TASK, names)
    task: Task = names["task"]
    return task


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_train_takes_a_task_and_records_what_it_reports(here: Path) -> None:
    seen: list[RunProgress] = []
    result = workbench.train(make_task(), steps=24, device="cpu", out="kept", evaluate_every=8, on_progress=seen.append)
    assert [step for step, _ in result.curve] == [8, 16, 24]
    assert result.metric == result.curve[-1][1] > result.curve[0][1]
    assert result.path is not None
    run = read_run(result.path)
    assert result.path.parent == Path("kept")
    assert run.summary["metric"] == result.metric
    assert run.steps["loss"].iloc[-2:].mean() == pytest.approx(result.final_loss)
    assert seen[-1].step == 24
    assert not result.plan.grad_accumulation


def test_train_accepts_every_way_to_give_a_configuration(here: Path) -> None:
    BoostConfig.from_dict(ACCUMULATE).save(here / "c.json")
    results = [
        workbench.train(make_task(), config, steps=8, device="cpu", out=None)
        for config in (ACCUMULATE, BoostConfig.from_dict(ACCUMULATE), "c.json", here / "c.json")
    ]
    assert all(result.plan.grad_accumulation and result.plan.level == "O1" for result in results)
    assert len({result.final_loss for result in results}) == 1
    assert all(result.path is None for result in results)
    assert not (here / "runs").exists()


def test_train_stops_when_asked(here: Path) -> None:
    asked = iter([False, False, True])
    result = workbench.train(make_task(), steps=50, device="cpu", out=None, stop=lambda: next(asked))
    assert (result.stopped, result.steps) == (True, 3)


def test_compare_pairs_seeds_and_takes_o0_as_the_base_of_one(here: Path) -> None:
    labels: list[str] = []
    options: dict[str, Any] = {"steps": 8, "device": "cpu"}
    comparison = workbench.compare(
        make_task(), [ACCUMULATE], seeds=[3, 5], on_progress=lambda label, _: labels.append(label), **options
    )
    base, side = comparison.sides
    assert (base.label, base.summary, side.summary) == ("O0", "nothing switched on", "accumulation over 2")
    assert comparison.seeds == (3, 5)
    alone = [workbench.train(make_task(), ACCUMULATE, seed=seed, out=None, **options).metric for seed in (3, 5)]
    assert list(side.metrics) == alone
    assert side.drop is not None
    assert side.drop.mean == pytest.approx(sum(a - b for a, b in zip(base.metrics, alone, strict=True)) / 2)
    assert {"O0, seed 3", "O0, seed 5"} <= set(labels)
    assert side.label in comparison.sentences()[0]


def test_replay_judges_every_combination_and_knows_what_happened(here: Path) -> None:
    result = workbench.train(make_task(), HALF, steps=40, device="cpu", exponents_every=1)
    assert result.overflows > 0
    assert result.path is not None
    replayed = workbench.replay(result.path, init=[2.0**24, 2.0**4], factor=[2.0, 4.0], window=[8])
    table = replayed.table
    assert len(table) == 4
    assert replayed.recorded_overflows == result.overflows
    as_recorded = table[(table["init"] == 2.0**24) & (table["factor"] == 2.0)].iloc[0]
    assert as_recorded["overflows_low"] <= result.overflows <= as_recorded["overflows_high"]
    cautious = table[table["init"] == 2.0**4]
    assert (cautious["overflows"] < as_recorded["overflows"]).all()
    assert (cautious["underflow_share"] >= as_recorded["underflow_share"]).all()
    run = read_run(result.path)
    assert len(workbench.replay(run).table) == 9 * 2  # 2^8, 2^10, ..., 2^24 with two windows


def test_tune_and_export_write_configurations_and_a_report(here: Path) -> None:
    (here / "wine.py").write_text(TASK)
    (here / "study").mkdir()
    (here / "study" / "study.toml").write_text(STUDY + REPLAY)
    seen: list[TuneProgress] = []
    result = workbench.tune("study", on_progress=seen.append)
    assert {one.phase for one in seen} >= {"search", "loss scale", "export"}
    assert result.trials[0].summary == "nothing switched on"
    assert set(result.exported) == {"o1", "o2"}
    assert result.report is not None
    page = result.report.read_text()
    assert "wine.py" in page
    assert "<script" in page
    assert 'src="http' not in page
    policy = result.loss_scale_policy
    assert policy is not None
    assert "failed" not in policy
    for path in result.exported.values():
        config = BoostConfig.from_json(path)
        assert config.boost.mode == "manual"
        assert config.loss_scale.init == policy["init"]

    again = workbench.export("study", here / "elsewhere")
    assert {path.parent for path in again.exported.values()} == {here / "elsewhere"}
    assert again.report == here / "elsewhere" / "report.html"
    for target, path in again.exported.items():
        first = BoostConfig.from_json(result.exported[target])
        assert set(first.diff(BoostConfig.from_json(path))) <= {"provenance", "provenance.written"}
    assert math.isnan(again.seconds)  # nothing was trained


def test_a_task_that_only_this_program_knows_is_tuned_and_stopped(here: Path) -> None:
    (here / "study").mkdir()
    (here / "study" / "study.toml").write_text(STUDY.replace("../wine.py", "nobody-knows-it"))
    with pytest.raises(StudyError, match=r"`jobs` \(in the Tune tab: Workers\) must be 1 for a task that only this"):
        workbench.tune("study", task=make_task(), jobs=2)
    seen: list[TuneProgress] = []
    trained = lambda: any(one.trials for one in seen)  # noqa: E731  # a whole trial of it
    with pytest.raises(StudyStoppedError, match="the same study can be continued"):
        workbench.tune("study", task=make_task(), on_progress=seen.append, stop=trained)


def test_a_study_of_fewer_threads_gives_the_others_back(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    study, before = Path("s"), torch.get_num_threads()
    study.mkdir()
    (study / "study.toml").write_text(STUDY.replace('device = "cpu"', f'device = "cpu"\nthreads = {before + 1}'))

    def tune(place: Path, *, make_experimenter: Any, **_: Any) -> None:
        make_experimenter(read_study(place), place)
        assert torch.get_num_threads() == before + 1
        raise StudyStoppedError("enough")

    monkeypatch.setattr("workbench.study.tune", tune)
    with pytest.raises(StudyStoppedError):
        workbench.tune(study, task=make_task())
    assert torch.get_num_threads() == before
