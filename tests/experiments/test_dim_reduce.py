"""Both halves of DimReduce's recipe together, and the study that is made of it."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch

from tests.experiments.small_tasks import small_task
from workbench.config import BoostConfig, ConfigError
from workbench.figures import dim_reduce_numbers
from workbench.report.dim_reduce_report import read_pairs, write_dim_reduce_report
from workbench.runs import read_run
from workbench.tasks import load_task
from workbench.training.run import RunResult
from workbench.training.subspace_runs import SubspaceRuns, subspace_table, train_in_subspace

CPU = torch.device("cpu")
STUDY = Path(__file__).parents[2] / "studies" / "dim_reduce"
WARM_UP = BoostConfig.from_dict({"snapshots": {"every_steps": 3, "count": 5}})
REDUCED = BoostConfig.from_dict(
    {"boost": {"mode": "manual", "dim_reduce": True}, "dim_reduce": {"weight_load_dir": "to be set", "n_components": 3}}
)


def test_every_seed_is_recorded_and_trained_from_the_same_start_and_the_page_says_so(tmp_path: Path) -> None:
    task = small_task(metric="loss")
    told: list[str] = []
    how: dict[str, Any] = {"seeds": [11, 2], "steps": 12, "reduced_steps": 6, "evaluate_every": 2, "device": CPU}
    out = tmp_path / "runs"
    runs = train_in_subspace(task, WARM_UP, REDUCED, out=out, on_progress=lambda name, _: told.append(name), **how)
    assert [one.seed for one in runs] == [11, 2]
    names = ["warm-up-11", "dim-reduce-11", "warm-up-2", "dim-reduce-2"]
    assert list(dict.fromkeys(told)) == names
    assert {path.name for path in (tmp_path / "runs").iterdir()} == set(names)
    for one in runs:
        assert one.reduced.plan.dim_reduce
        first, second = (read_run(tmp_path / "runs" / f"{name}-{one.seed}") for name in ("warm-up", "dim-reduce"))
        assert len(first.steps) == 12
        assert len(second.steps) == 6
        # The same weights, batch and dropout at first: the same loss.
        assert first.steps["loss"][0] == second.steps["loss"][0]
        assert second.steps["dim_reduce.explained_variance"][0] > 0.9
    table = subspace_table(runs)
    assert table["target"].tolist() == [one.warm_up.curve[-1][1] for one in runs]
    assert table["warm_up_steps"].tolist() == [12, 12]
    pairs = read_pairs(tmp_path / "runs")
    assert [pair.label for pair in pairs] == ["seed 2", "seed 11"]
    for pair, one in zip(pairs, reversed(runs), strict=True):
        numbers = dim_reduce_numbers(pair)
        assert numbers.target == one.target
        assert numbers.reached == pytest.approx(one.reached, nan_ok=True)
        assert list(zip(numbers.x, numbers.loss, strict=True)) == [(float(s), v) for s, v in one.reduced.curve]
    page = write_dim_reduce_report(tmp_path / "page.html", {"a <b> setting": tmp_path / "runs"}).read_text("utf-8")
    assert "a &lt;b&gt; setting" in page
    assert page.count("<figure") == 1
    assert f"{runs[1].target:.3g}" in page
    assert page.index(">seed 2<") < page.index(">seed 11<")


def test_a_folder_without_runs_is_told(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="must hold runs warm-up-<seed> and dim-reduce-<seed>"):
        read_pairs(tmp_path)


def result(curve: tuple[tuple[int, float], ...], higher: bool) -> RunResult:
    names = {field.name for field in dataclasses.fields(RunResult)}
    values: dict[str, Any] = dict.fromkeys(names)
    return RunResult(**{**values, "curve": curve, "metric": curve[-1][1], "higher_is_better": higher, "steps": 9})


@pytest.mark.parametrize(
    ("higher", "curve", "reached"),
    [
        (False, ((2, 0.6), (4, 0.5), (6, 0.7)), 4.0),
        (False, ((2, 0.6), (4, 0.51)), math.nan),
        (True, ((2, 0.4), (4, 0.5)), 4.0),
        (True, ((2, 0.4), (4, 0.49)), math.nan),
    ],
)
def test_the_target_is_reached_at_the_first_evaluation_as_good(
    higher: bool, curve: tuple[tuple[int, float], ...], reached: float
) -> None:
    runs = SubspaceRuns(0, result(((9, 0.5),), higher), result(curve, higher))
    assert runs.target == 0.5
    assert runs.reached == pytest.approx(reached, nan_ok=True)
    assert subspace_table([runs])["end_share"].tolist() == [curve[-1][1] / 0.5]


def test_configurations_in_the_wrong_place_are_told_before_anything_is_trained(tmp_path: Path) -> None:
    task = small_task(metric="loss")
    with pytest.raises(ConfigError, match=r"`snapshots\.count` must be above 0"):
        train_in_subspace(task, BoostConfig(), REDUCED, seeds=[0], steps=4, out=tmp_path, device=CPU)
    with pytest.raises(ConfigError, match=r"`boost\.dim_reduce` must be true, with mode manual"):
        train_in_subspace(task, WARM_UP, BoostConfig(), seeds=[0], steps=4, out=tmp_path, device=CPU)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("setting", ["own_batch", "first_half", "batch_128"])
def test_the_settings_of_the_study_hold_together(setting: str) -> None:
    warm_up, reduced, alone = (
        BoostConfig.from_json(STUDY / setting / f"{name}.json") for name in ("warm_up", "dim_reduce", "outside_alone")
    )
    plan = reduced.resolve("O1")  # what `workbench train --config` takes
    assert plan.in_effect() == ("dim_reduce",)
    assert plan.dropped == ()
    assert warm_up.resolve("O1").in_effect() == ()
    assert warm_up.snapshots.count > reduced.dim_reduce.n_components  # centred snapshots span one dimension less
    assert alone.optimizer is not None
    assert alone.optimizer.lr == reduced.dim_reduce.alpha
    assert alone.optimizer.momentum == reduced.dim_reduce.gamma
    last = (warm_up.snapshots.count - 1) * warm_up.snapshots.every_steps
    assert last == (240 if setting == "first_half" else 440)


@pytest.mark.parametrize(
    ("name", "batch_size", "scheduled"),
    [
        ("training_loss", 32, True),
        ("training_loss_batch_128", 128, True),
        ("constant_rate", 32, False),
        ("constant_rate_batch_128", 128, False),
    ],
)
def test_the_tasks_of_the_study_are_digits_lenet(name: str, batch_size: int, scheduled: bool) -> None:
    task, original = load_task(f"{STUDY / 'tasks.py'}:{name}"), load_task("digits-lenet")
    assert task.metric_name == "loss"
    assert (task.scheduler is not None) is scheduled
    assert (task.model, task.data_hash) == (original.model, original.data_hash)
    batch = next(iter(task.batches(0)))
    assert len(batch[0]) == batch_size
    (judged,) = list(task.evaluation_batches(0))
    assert len(judged[1]) == 1797 - 450
    if batch_size == 32:
        assert torch.equal(batch[0], next(iter(original.batches(0)))[0])


def test_the_recorded_result_says_what_the_study_claims() -> None:
    table = pd.read_csv(STUDY / "three_settings" / "runs.csv")
    sooner = table["reached_after"] < table["warm_up_steps"]  # an empty field, never reached, is not sooner
    fresh = table["seed_role"] == "fresh"
    counts = {
        name: (int(sooner[rows].sum()), len(rows)) for name, rows in table[fresh].groupby("setting").groups.items()
    }
    assert counts == {"own batch": (10, 10), "batch 128": (10, 10), "first half": (9, 10)}
    text = (STUDY / "README.md").read_text(encoding="utf-8")
    for name, setting in (("own batch", "own_batch"), ("batch 128", "batch_128"), ("first half", "first_half")):
        chosen = table[fresh & (table["setting"] == name)]
        reached = chosen["reached_after"]
        row = next(line for line in text.splitlines() if line.startswith(f"| `{setting}`"))
        median = reached.fillna(440).median()
        assert f"{median:.0f} ({reached.min():.0f} to {reached.max():.0f})" in row
        assert f"{chosen['end_share'].median():.2g}" in row
        alone = int((chosen["outside_alone_reached_after"] < 440).sum())
        assert f"| {alone} of 10, " in row
