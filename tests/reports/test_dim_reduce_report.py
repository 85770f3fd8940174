"""The page about DimReduce, from recorded runs."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.experiments.small_tasks import small_task
from workbench.config import BoostConfig
from workbench.figures import dim_reduce_numbers
from workbench.report.dim_reduce_report import read_pairs, write_dim_reduce_report
from workbench.training.subspace_runs import train_in_subspace


def test_the_page_says_of_recorded_runs_what_the_runs_were(tmp_path: Path) -> None:
    warm_up = BoostConfig.from_dict({"snapshots": {"every_steps": 3, "count": 5}})
    reduced = BoostConfig.from_dict(
        {"boost": {"mode": "manual", "dim_reduce": True}, "dim_reduce": {"n_components": 3}}
    )
    runs = train_in_subspace(
        small_task(metric="loss"),
        warm_up,
        reduced,
        seeds=[11, 2],
        steps=12,
        out=tmp_path / "runs",
        evaluate_every=2,
        device=torch.device("cpu"),
    )
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
