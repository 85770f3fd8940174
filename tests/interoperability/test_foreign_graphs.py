"""PyTorch Geometric: a network over its batches of graphs is trained, judged and searched as any other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from workbench import BoostConfig, Task, train
from workbench.training.task_look import look_at

pytestmark = pytest.mark.slow  # importing torch_geometric takes seconds


def task(*, as_whole: bool) -> Task:
    """Return a classification of rings and stars by their degrees."""
    why = "pip install boost-workbench[networks] brings torch_geometric"
    pytest.importorskip("torch_geometric", reason=why)
    from torch_geometric.data import Data
    from torch_geometric.loader import DataLoader
    from torch_geometric.nn import GCNConv, global_mean_pool

    class Network(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.norm, self.second = GCNConv(2, 16), nn.BatchNorm1d(16), GCNConv(16, 16)
            self.head = nn.Linear(16, 2)

        def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor) -> Any:
            hidden = self.norm(self.first(x, edge_index)).relu()
            return self.head(global_mean_pool(self.second(hidden, edge_index), batch))

    class OfData(Network):
        def forward(self, data: Any) -> Any:  # type: ignore[override]
            return super().forward(data.x, data.edge_index, data.batch)

    def graph(number: int) -> Any:
        n_nodes, is_star = 5 + number % 4, number % 2
        nodes = torch.arange(1, n_nodes)
        ends = torch.zeros_like(nodes) if is_star else nodes - 1
        edges = torch.stack([torch.cat([nodes, ends]), torch.cat([ends, nodes])])
        degree = torch.bincount(edges[0], minlength=n_nodes).float()
        return Data(x=torch.stack([degree, torch.ones(n_nodes)], dim=1), edge_index=edges, y=torch.tensor([is_star]))

    graphs = [graph(number) for number in range(48)]
    return Task(
        name="graphs",
        model=OfData if as_whole else Network,
        loss=nn.CrossEntropyLoss(),
        optimizer=lambda named: torch.optim.Adam([one for _, one in named], lr=0.02),
        train=DataLoader(graphs, batch_size=8, shuffle=True),
        evaluate=DataLoader(graphs, batch_size=24),
        metric="accuracy",
    )


@pytest.mark.parametrize("as_whole", [True, False])
def test_batches_of_graphs_are_trained_on_and_put_together(as_whole: bool, tmp_path: Path) -> None:
    graphs = task(as_whole=as_whole)
    config = BoostConfig().with_values(
        {"boost.mode": "disable_all", "batch.factor": 2.0, "optimizer.name": "AdamW", "optimizer.lr": 0.02}
    )
    for asked in (None, config):
        result = train(graphs, steps=60, config=asked, out=tmp_path)
        assert result.metric > 0.9
        assert result.steps == (60 if asked is None else 30)
    look = look_at(graphs, torch.device("cpu"), 60)
    assert look.no_merging == ""
    assert look.network.no_sequence
