from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.experiments.small_tasks import small_task
from tests.panels.looking import LONG, run
from workbench import train
from workbench.config import BoostConfig
from workbench.panels.run_overlay import is_baseline
from workbench.panels.shared_config import SharedConfig
from workbench.panels.train_panel import TrainPanel

FREEZING = {"boost": {"mode": "manual", "less_bn": False, "grad_freeze": True}, "grad_freeze": {"param_groups": 2}}
HALF = {"amp": {"level": "O2", "dtype": "float16"}, "loss_scale": {"init": 8.0}}


def panel_on(level: str, *, out: Path | None = None) -> TrainPanel:
    shared = SharedConfig(BoostConfig.from_dict(FREEZING if level == "O1" else {}), level)
    return TrainPanel(small_task(), shared, steps=40, out=out, measure=False)


def offered(panel: TrainPanel) -> set[str]:
    """Train, and return of what kinds the runs are that are offered: trained by the panel, or recorded before."""
    run(panel)
    assert panel.overlay._reader.wait(LONG)
    return {name.split()[1] for name in panel.overlay.boxes}


def test_recorded_runs_are_offered_for_a_task_that_is_found_by_its_file_too(
    tmp_path: Path, keep: Callable[[Any], Any]
) -> None:
    """They are recorded under its own name."""
    file, options = tmp_path / "own.py", {"steps": 4, "out": tmp_path / "runs", "measure": False}
    file.write_text("from tests.experiments.small_tasks import small_task\n\ntask = small_task()\n")
    for expected in ({"run"}, {"run", "recorded"}):
        assert offered(keep(TrainPanel(f"{file}:task", SharedConfig(level="O0"), **options))) == expected


def test_a_damaged_run_of_o0_is_passed_over(tmp_path: Path, keep: Callable[[Any], Any]) -> None:
    for _ in range(2):
        train(small_task(), BoostConfig(), level="O0", steps=4, out=tmp_path)
    newest = max(tmp_path.iterdir())
    (newest / "steps.parquet").write_bytes(b"no such file")
    panel = keep(panel_on("O1", out=tmp_path))
    run(panel)
    assert panel.overlay._reader.wait(LONG)
    assert panel.error is None
    assert [curve.label for curve in panel.overlay.curves()] == [f"O0, recorded {min(tmp_path.iterdir()).name[:15]}"]


def names(panel: TrainPanel) -> list[str]:
    assert panel.overlay._reader.wait(LONG)
    return list(dict.fromkeys(trace.name for trace in panel.live.figure.shown.data))


def test_a_run_is_smoothed_as_the_reader_chooses_and_lies_over_the_newest_of_o0_or_others_that_are_ticked(
    keep: Callable[[Any], Any],
) -> None:
    panel = keep(panel_on("O0"))
    run(panel)
    assert names(panel) == ["small"], "O0 needs no other run beside it"
    assert [step for step, _ in panel.trace.evaluations] == list(range(4, 41, 4)), (
        "it was evaluated without being asked"
    )
    losses = panel.trace.steps["loss"].tolist()
    panel.overlay.smoothing.choice.value = "5 steps"
    assert panel.live.figure.shown.data[0].y[4] == pytest.approx(sum(losses[:5]) / 5)
    panel.overlay.smoothing.choice.value = "none"
    assert list(panel.live.figure.shown.data[0].y) == pytest.approx(losses)

    panel.shared.set(BoostConfig.from_dict(FREEZING), "O1")
    run(panel)
    assert names(panel) == ["this run (O1)", "O0, run 1"]
    run(panel)
    assert names(panel) == ["this run (O1)", "O0, run 1"], "of earlier ones O0 alone"
    panel.overlay.boxes["O1, run 2"].value = True
    assert names(panel) == ["this run (O1)", "O1, run 2", "O0, run 1"]
    panel.overlay.boxes["O0, run 1"].value = False
    assert names(panel) == ["this run (O1)", "O1, run 2"]
    assert "Loss scale" not in panel.choice.options
    panel.shared.set(BoostConfig.from_dict(HALF), "O0")
    run(panel)
    assert panel.choice.options == ("Loss and metric", "Loss scale", "Step time"), "as this run has one"


def test_a_recorded_run_of_o0_is_found_and_read(keep: Callable[[Any], Any], tmp_path: Path) -> None:
    recorded = train(small_task(), {}, level="O0", steps=12, evaluate_every=6, out=tmp_path)
    train(small_task(), HALF, level="O0", steps=12, out=tmp_path)  # newer, and no baseline
    panel = keep(panel_on("O1", out=tmp_path))
    run(panel)
    label = f"O0, recorded {recorded.path.name[:15]}"  # type: ignore[union-attr]
    assert names(panel) == ["this run (O1)", label]
    metric = panel.live.figure.shown.data[-1]
    assert list(metric.x) == [6, 12], "its evaluations are read, too"


def test_o0_is_what_asks_for_nothing() -> None:
    assert is_baseline(BoostConfig(), "O0")
    assert not is_baseline(BoostConfig(), "O1")
    assert not is_baseline(BoostConfig.from_dict(HALF), "O0")
    assert not is_baseline(BoostConfig.from_dict({"boost": {"mode": "enable_all"}}), "O0"), "it cannot act"
