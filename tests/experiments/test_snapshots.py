"""Snapshots: when they are taken, what they hold, that they lead to DimReduce."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.optim.lr_scheduler import StepLR

from tests.experiments.small_tasks import small_task
from tests.kit.runs import read_back, run_task
from workbench.config import BoostConfig
from workbench.methods.dim_reduce.pca_files import list_snapshots, load_snapshots
from workbench.training import Boosted, apply
from workbench.training.snapshots import SnapshotRecorder, snapshot_recorder


def parameters(value: float = 0.0, dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
    return {"fc.weight": torch.full((2, 3), value, dtype=dtype), "fc.bias": torch.zeros(2, dtype=dtype)}


def test_weights_are_kept_as_they_are_at_those_steps_and_in_order(tmp_path: Path) -> None:
    named = parameters()
    recorder = SnapshotRecorder(named, tmp_path / "deep" / "snapshots", every_steps=5, count=3, start_step=95)
    written = []
    for done in range(120):
        named["fc.weight"].fill_(done)
        written.append(recorder.after_step(done))
    names = ["snapshot_000095.safetensors", "snapshot_000100.safetensors", "snapshot_000105.safetensors"]
    assert [path.name for path in written if path is not None] == names
    assert [done for done, path in enumerate(written) if path is not None] == [95, 100, 105]
    assert [path.name for path in list_snapshots(recorder.folder)] == names
    assert sorted(path.name for path in recorder.folder.iterdir()) == names  # no temporary file stays
    rows = load_snapshots(recorder.folder, {"fc.bias": (2,), "fc.weight": (2, 3)})
    np.testing.assert_array_equal(rows[:, 2:], np.repeat([[95.0], [100.0], [105.0]], 6, axis=1))
    with safe_open(written[100], framework="np") as file:
        assert file.metadata()["step"] == "100"


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_every_precision_is_kept_as_float32(tmp_path: Path, dtype: torch.dtype) -> None:
    named = parameters(0.1, dtype)
    path = SnapshotRecorder(named, tmp_path, every_steps=1, count=1).after_step(0)
    assert path is not None
    stored = load_file(path)
    assert {tensor.dtype for tensor in stored.values()} == {torch.float32}
    assert torch.equal(stored["fc.weight"], named["fc.weight"].float())


def test_weights_that_are_not_finite_are_left_out_with_a_warning(tmp_path: Path) -> None:
    recorder = SnapshotRecorder(parameters(float("nan")), tmp_path, every_steps=1, count=2)
    with pytest.warns(UserWarning, match=r"after 1 steps are inf or NaN; snapshot_000001\.safetensors was not written"):
        assert recorder.after_step(1) is None
    assert list(tmp_path.iterdir()) == []


def test_a_write_that_fails_leaves_no_half_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = SnapshotRecorder(parameters(), tmp_path, every_steps=1, count=2)

    def broken(tensors: Any, path: Path, metadata: Any) -> None:
        path.write_bytes(b"half")
        raise OSError("the disk went away")

    monkeypatch.setattr("workbench.training.snapshots.save_file", broken)
    with pytest.raises(OSError, match="went away"):
        recorder.after_step(0)
    assert list(tmp_path.iterdir()) == []


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Linear(6, 2))


def batch(step: int) -> tuple[Tensor, Tensor]:
    x = torch.randn(16, 4, generator=torch.Generator().manual_seed(step))
    return x, torch.sin(x[:, :2])


def one_step(boosted: Boosted, step: int) -> dict[str, float]:
    x, y = batch(step)

    def loss_now() -> Tensor:
        loss: Tensor = nn.functional.mse_loss(boosted.model(x), y)
        return loss

    boosted.backward(loss_now())
    return dict(boosted.step(loss_now).columns)


@pytest.mark.parametrize("compiled", [False, True], ids=["plain", "compiled"])
def test_a_run_recorded_by_its_configuration_leads_to_dim_reduce(tmp_path: Path, compiled: bool) -> None:
    config = BoostConfig.from_dict({"snapshots": {"every_steps": 2, "count": 5}, "amp": {"level": "O0"}})
    net = network()
    start = {name: p.detach().clone() for name, p in net.named_parameters()}
    # Names must not know of the wrapper; "eager" compiles nothing and so takes no time.
    model: Any = torch.compile(net, backend="eager") if compiled else net
    boosted = apply(config, model, torch.optim.SGD(model.parameters(), lr=0.1), level="O0")
    recorder = snapshot_recorder(config, boosted, tmp_path)
    assert recorder is not None
    recorder.after_step(0)
    for step in range(10):
        one_step(boosted, step)
        recorder.after_step(step + 1)
    found = list_snapshots(tmp_path / "snapshots")
    assert [path.stem[-2:] for path in found] == ["00", "02", "04", "06", "08"]
    first = load_file(found[0])
    assert list(first) == sorted(start)  # parameters only, no statistics; safetensors sorts
    assert all(torch.equal(first[name], start[name]) for name in start)

    reduced = {
        "boost": {"mode": "manual", "dim_reduce": True},
        "dim_reduce": {"n_components": 4, "weight_load_dir": str(tmp_path / "snapshots")},
        "amp": {"level": "O0"},
    }
    twin = network()
    again = apply(reduced, twin, torch.optim.SGD(twin.parameters(), lr=0.1), level="O0")
    columns = one_step(again, 0)
    # Four components are all that five centred snapshots have.
    assert columns["dim_reduce.explained_variance"] == pytest.approx(1.0)


def test_only_the_first_rank_of_a_recorded_run_that_asks_for_it_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = BoostConfig.from_dict({"snapshots": {"count": 5}})
    net = network()
    boosted = apply(asked, net, torch.optim.SGD(net.parameters(), lr=0.1), level="O0")
    assert snapshot_recorder(asked, boosted, None) is None
    assert snapshot_recorder(BoostConfig(), boosted, tmp_path) is None
    monkeypatch.setattr("workbench.core.distributed.rank", lambda: 1)
    assert snapshot_recorder(asked, boosted, tmp_path) is None
    assert list(tmp_path.iterdir()) == []
    monkeypatch.setattr("workbench.core.distributed.rank", lambda: 0)
    assert snapshot_recorder(asked, boosted, tmp_path) is not None


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"every_steps": 0}, "`every_steps` must be at least 1, got 0"),
        ({"count": 0}, "`count` must be at least 1, got 0"),
        ({"start_step": -1}, "`start_step` must be at least 0, got -1"),
        ({"every_steps": True}, "`every_steps` must be a whole number, got True"),
        ({"parameters": {}}, "`parameters` must name the weights to keep, got none"),
    ],
)
def test_wrong_arguments_are_told_in_one_sentence(tmp_path: Path, changes: dict[str, Any], words: str) -> None:
    values: dict[str, Any] = {"parameters": parameters(), "every_steps": 1, "count": 1, **changes}
    with pytest.raises((ValueError, TypeError), match=words):
        SnapshotRecorder(values.pop("parameters"), tmp_path, **values)


def test_snapshots_of_two_runs_are_not_mixed(tmp_path: Path) -> None:
    SnapshotRecorder(parameters(), tmp_path, every_steps=1, count=1).after_step(0)
    with pytest.raises(ValueError, match=r"holds 1, from snapshot_000000\.safetensors on; components of two runs"):
        SnapshotRecorder(parameters(), tmp_path, every_steps=1, count=1)


WARM_UP = {"snapshots": {"every_steps": 4, "count": 6}, "amp": {"level": "O0"}}


def reduced(folder: Path, **changes: Any) -> BoostConfig:
    values = {"n_components": 5, "alpha": 0.05, "weight_load_dir": str(folder), **changes}
    return BoostConfig.from_dict(
        {"boost": {"mode": "manual", "dim_reduce": True}, "dim_reduce": values, "amp": {"level": "O0"}}
    )


def test_a_task_is_recorded_and_then_trained_in_the_subspace(tmp_path: Path) -> None:
    cpu = torch.device("cpu")
    task = dataclasses.replace(small_task(), scheduler=lambda optimizer, _: StepLR(optimizer, 1, 0.5))
    first = run_task(task, BoostConfig.from_dict(WARM_UP), steps=20, device=cpu, out=tmp_path, run_id="warm")
    assert first.path is not None
    folder = first.path / "snapshots"
    assert [path.stem[-2:] for path in list_snapshots(folder)] == ["00", "04", "08", "12", "16", "20"]
    second = run_task(task, reduced(folder), steps=12, device=cpu, out=tmp_path, run_id="reduced")
    recorded = read_back(second)
    steps = recorded.steps
    assert steps["dim_reduce.explained_variance"].notna().tolist() == [True] + 11 * [False]
    assert 0.99 < steps["dim_reduce.explained_variance"][0] <= 1.0 + 1e-9  # five components of six snapshots: all
    assert steps["dim_reduce.trials"].between(1, 8).all()
    taken = steps["dim_reduce.rho"]
    np.testing.assert_allclose(taken[taken > 0], 0.55 ** (steps["dim_reduce.trials"][taken > 0] - 1))
    assert (steps["dim_reduce.condition"] >= 1.0).all()
    failed = recorded.events[recorded.events["kind"] == "line_search_failed"]
    assert failed["step"].tolist() == steps["step"][taken == 0].tolist()
    assert (steps["learning_rate"] == 1.0).all()  # not the task's, and no schedule
    assert second.plan.dim_reduce


def test_recording_weights_does_not_change_training(tmp_path: Path) -> None:
    cpu = torch.device("cpu")
    plain = run_task(small_task(), BoostConfig(), steps=20, device=cpu)
    kept = run_task(small_task(), BoostConfig.from_dict(WARM_UP), steps=20, device=cpu, out=tmp_path)
    assert kept.final_loss == plain.final_loss
    assert kept.metric == plain.metric
