"""The built-in click stream, its evicting table and row-wise Adam, trained on without end."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn

from tests.kit.callbacks import StopAt
from workbench.online import (
    OnlineCheckpoints,
    OnlineSummary,
    PageHinkley,
    Prequential,
)
from workbench.rec import RecModel
from workbench.tasks.clicks import ClickModel, click_stream, row_wise_adam


def new_model(n_rows: int = 1 << 13) -> RecModel:
    torch.manual_seed(0)
    network = ClickModel(n_rows=n_rows)
    return RecModel(network, nn.BCEWithLogitsLoss(), row_wise_adam(network.named_parameters()))


def state_of(model: RecModel) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in model.predict_network.state_dict().items()}


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
    assert (summary.auc, summary.n_records, summary.n_rejected) == (
        expected.auc,
        expected.n_records,
        expected.n_rejected,
    )
    one, other = state_of(whole), state_of(resumed)
    assert all(torch.equal(one[name], other[name]) for name in one)
    evictions = whole.predict_network.table.occupancy().evictions  # type: ignore[union-attr,operator]
    assert evictions > 0
