"""The built-in click stream, its evicting table and row-wise Adam, trained on without end."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from tests.kit.callbacks import Kept, StopAt
from workbench.core.records import EventKind
from workbench.online import (
    OnlineCheckpoints,
    OnlineSummary,
    PageHinkley,
    Prequential,
    SnapshotPublisher,
    load_published,
)
from workbench.rec import RecModel
from workbench.tasks.click_law import ClickLaw
from workbench.tasks.clicks import ClickModel, click_stream, row_wise_adam


def new_model(n_rows: int = 1 << 13) -> RecModel:
    torch.manual_seed(0)
    network = ClickModel(n_rows=n_rows)
    return RecModel(network, nn.BCEWithLogitsLoss(), row_wise_adam(network.named_parameters()))


def state_of(model: RecModel) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in model.predict_network.state_dict().items()}


def test_clicks_are_learned_from_a_poisoned_stream(tmp_path: Path) -> None:
    kept, model = Kept(), new_model()
    summary = model.online_train(
        lambda n: click_stream(seed=0, start=n, poison=0.01, misshapen=0.01),
        StopAt(200),
        prequential=Prequential(window=10_000, every=25),
        publisher=SnapshotPublisher(tmp_path, every_steps=25),
        recorder=kept,
        queue_size=4,
    )
    assert summary.n_steps == 200
    assert summary.auc > 0.6
    assert summary.n_records + summary.n_rejected > 200 * 64
    reasons = {event.subject for event in kept.events if event.kind is EventKind.RECORD_REJECTED}
    assert {"not finite", "label out of range", "wrong shape"} <= reasons
    rows = [record.columns["online.table_rows"] for record in kept.records if "online.table_rows" in record.columns]
    assert len(rows) == 8
    assert rows == sorted(rows)
    published = load_published(tmp_path)
    assert published.step == 200
    assert len(published.deltas) > 5
    assert all(torch.equal(published.tensors[name], value) for name, value in state_of(model).items())


def test_evicting_tables_and_row_wise_moments_resume_exactly(tmp_path: Path) -> None:
    def train(step: int, folder: Path) -> tuple[RecModel, OnlineSummary]:
        model = new_model(n_rows=512)  # so small that rows are evicted
        summary = model.online_train(
            lambda n: click_stream(seed=1, start=n, poison=0.02, misshapen=0.02),
            StopAt(step),
            prequential=Prequential(window=2000, every=20),
            drift=PageHinkley(warm_up=10),
            checkpoints=OnlineCheckpoints(folder, every_steps=10),
            resume=True,
        )
        return model, summary

    whole, expected = train(80, tmp_path / "whole")
    for step in (13, 40, 41):
        train(step, tmp_path / "cut")
    resumed, summary = train(80, tmp_path / "cut")
    assert summary.n_steps == 39
    for figure in ("auc", "n_records", "n_rejected"):
        assert getattr(summary, figure) == getattr(expected, figure)
    one, other = state_of(whole), state_of(resumed)
    assert all(torch.equal(one[name], other[name]) for name in one)
    evictions = whole.predict_network.table.occupancy().evictions  # type: ignore[union-attr,operator]
    assert evictions > 0


@pytest.mark.long
def test_a_drift_of_the_law_is_told_and_recovered_from() -> None:
    """The law changes its mind at record 64,000; what was learned is worth less, and is learned again."""
    law = ClickLaw(seed=3, drift_every=64_000)
    kept = Kept()
    new_model().online_train(
        lambda start: click_stream(seed=3, start=start, law=law),
        StopAt(2000),
        prequential=Prequential(window=6400, every=50),
        drift=PageHinkley(),
        recorder=kept,
    )
    auc = {record.step + 1: record.columns["online.auc"] for record in kept.records if "online.auc" in record.columns}
    told = [event.step for event in kept.events if event.kind is EventKind.DRIFT]
    assert auc[1100] < auc[1000] - 0.02
    assert auc[2000] > auc[1100] + 0.01
    assert len(told) <= 2
    assert any(1000 <= step < 1400 for step in told), (told, auc)
