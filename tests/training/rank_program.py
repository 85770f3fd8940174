"""What every rank of the tests in test_ranks_together.py runs.

A case saves what its rank ended with as ``FOLDER/CASE.RANK.pt``; the test compares it with one process.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, distributed, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import SGD

from tests.kit import configurations
from tests.kit.chains import chain
from workbench.mindspore.train_step_cells import BoostTrainOneStepCell, WithLossCell
from workbench.training import AutoBoost, apply

ADASUM = {"boost": {"mode": "manual", "less_bn": False, "grad_freeze": False, "adasum": True}}
SCALED = {"boost": {"mode": "manual"}, "loss_scale": {"kind": "dynamic", "init": 1024.0}}
FREEZING = configurations.freezing(3, kind=0)
OVERFLOWING_RANK, OVERFLOWING_STEP = 1, 2
FIRST_GROUP = 2  # as after a resume: more is frozen in the first step than will be later


def network(seed: int) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 1), nn.Tanh(), nn.Linear(1, 2))


def mean_square(net: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return nn.functional.mse_loss(net(x), y)


def write_snapshots(folder: Path) -> None:
    folder.mkdir()
    generator = torch.Generator().manual_seed(1)
    for number in range(8):
        weights = {name: torch.randn(p.shape, generator=generator) for name, p in network(0).named_parameters()}
        save_file(weights, folder / f"snapshot_{number:06d}.safetensors")


def dim_reduce_config(snapshots: Path) -> dict[str, Any]:
    return {
        "boost": {"mode": "manual", "dim_reduce": True},
        "dim_reduce": {"n_components": 6, "alpha": 0.1, "weight_load_dir": str(snapshots), "timeout": 60},
    }


def data(step: int, rank: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(100 * step + rank)
    return torch.randn(6, 3, generator=generator), torch.randn(6, 2, generator=generator)


def adasum_training(rank: int, device_number: int = 1) -> dict[str, Any]:
    net = network(seed=rank)
    config = ADASUM | {"common": {"device_number": device_number}, "amp": {"level": "O0"}}
    boosted = apply(config, net, SGD(net.parameters(), lr=0.1, momentum=0.9), level="O0")
    boosted.distribute()
    for step in range(5):
        boosted.backward(mean_square(boosted.model, *data(step, rank)))
        boosted.step()
    return {"weights": [p.detach() for p in net.parameters()]}


def pull(rank: int) -> Tensor:
    return torch.randn(3, dtype=torch.complex64, generator=torch.Generator().manual_seed(rank))


def adasum_of_complex(rank: int) -> dict[str, Any]:
    net = nn.ParameterDict({"spectrum": nn.Parameter(torch.zeros(3, dtype=torch.complex64))})
    boosted = apply(ADASUM | {"common": {"device_number": 1}}, net, SGD(net.parameters(), lr=1.0), level="O0")
    boosted.distribute()
    boosted.backward((net["spectrum"] * pull(rank)).real.sum())
    boosted.step()
    return {"weights": [net["spectrum"].detach()]}


def adasum_cell(rank: int) -> dict[str, Any]:
    net = network(seed=0)
    optimizer = SGD(net.parameters(), lr=0.1, momentum=0.9)
    net, boosted = AutoBoost("O0", ADASUM | {"common": {"device_number": 1}}).network_auto_process_train(net, optimizer)  # type: ignore[assignment]
    cell = BoostTrainOneStepCell(WithLossCell(net, nn.MSELoss()), boosted)  # type: ignore[arg-type]
    enabled = cell.check_adasum_enable()
    for step in range(4):
        cell(*data(step, rank))
    loss = mean_square(net, *data(4, rank))
    returned = cell.adasum_process(loss, torch.autograd.grad(loss, list(net.parameters())))
    return {"weights": [p.detach() for p in net.parameters()], "enabled": enabled, "same": returned is loss}


def overflow(rank: int, *, ddp: bool, adasum: bool) -> dict[str, Any]:
    net = network(seed=rank)
    config = SCALED | (ADASUM | {"common": {"device_number": 1}} if adasum else {})
    boosted = apply(config, net, SGD(net.parameters(), lr=0.1, momentum=0.9, fused=True), level="O0")
    model = boosted.distribute(ddp=ddp)
    rows, weights = [], []
    for step in range(4):
        x, y = data(step, rank)
        if (rank, step) == (OVERFLOWING_RANK, OVERFLOWING_STEP):
            x = x * torch.inf
        boosted.backward(mean_square(model, x, y))
        outcome = boosted.step()
        rows.append((bool(outcome.overflow), float(outcome.loss_scale), float(outcome.loss_scale_after)))
        weights.append([p.detach().clone() for p in net.parameters()])
    return {"rows": rows, "weights": weights}


def accumulation(rank: int, *, ddp: bool) -> dict[str, Any]:
    net = network(seed=rank)
    boosted = apply(configurations.accumulating(2), net, SGD(net.parameters(), lr=0.1, momentum=0.9), level="O0")
    model = boosted.distribute(ddp=ddp)
    for step in range(6):
        with boosted.autocast():
            loss = mean_square(model, *data(step, rank))
        boosted.backward(loss)
        boosted.step()
    return {"weights": [p.detach() for p in net.parameters()]}


def freezing(rank: int, order: str = "own buckets") -> dict[str, Any]:
    net: nn.Module = chain(n_in=3, seed=rank)
    optimizer = SGD(net.parameters(), lr=0.1, momentum=0.9)
    wrapped = order == "wrapped before"
    model = DistributedDataParallel(net, find_unused_parameters=True) if wrapped else net
    boosted = apply(FREEZING, model, optimizer, level="O0")
    boosted.use_freezing_group(FIRST_GROUP)
    if not wrapped:
        boosted.distribute(ddp=order == "wrapped by distribute")
    groups = []
    for step in range(9):
        groups.append(boosted.frozen_groups)
        boosted.backward(mean_square(boosted.model, *data(step, rank)))
        boosted.step()
    boosted.finish()
    return {"weights": [p.detach() for p in net.parameters()], "groups": groups}


def train_in_subspace(
    snapshots: Path, ranks: Sequence[int], *, seed: int = 0, scaled: bool = False, distribute: bool = False
) -> dict[str, Any]:
    """Train with six components on what some ranks train on; of several, every rank holds its share of them."""
    net = network(seed).double()  # summing over ranks rounds in another order, and the update amplifies what is lost
    config = dim_reduce_config(snapshots) | {"loss_scale": SCALED["loss_scale"] if scaled else {"kind": "none"}}
    boosted = apply(config, net, SGD(net.parameters(), lr=0.1), level="O0")
    if distribute:
        boosted.distribute()
    rows, losses = [], []
    for step in range(8):
        x, y = (torch.cat(parts).double() for parts in zip(*(data(step, rank) for rank in ranks), strict=True))
        if scaled and step == OVERFLOWING_STEP and OVERFLOWING_RANK in ranks:
            x[0, 0] = torch.inf
        loss_now = partial(mean_square, boosted.model, x, y)
        boosted.backward(loss_now())
        outcome = boosted.step(loss_now)
        rows.append([outcome.columns.get(f"dim_reduce.{name}", -1.0) for name in ("rho", "trials")])
        losses.append(float(outcome.loss))
    method = boosted.update.dim_reduce  # type: ignore[attr-defined]
    weights = [p.detach() for p in net.parameters()]
    found = {"weights": weights, "inverse_hessian": method.inverse_hessian, "rows": rows, "losses": losses}
    return found | {"components": len(method.components)}


CASES: dict[str, Callable[[int], dict[str, Any]]] = {
    "adasum_training": adasum_training,
    "adasum_of_servers": partial(adasum_training, device_number=2),
    "adasum_of_complex": adasum_of_complex,
    "adasum_cell": adasum_cell,
    "overflow_in_buckets": partial(overflow, ddp=False, adasum=False),
    "overflow_under_ddp": partial(overflow, ddp=True, adasum=False),
    "overflow_with_adasum": partial(overflow, ddp=False, adasum=True),
    "accumulation_in_buckets": partial(accumulation, ddp=False),
    "accumulation_under_ddp": partial(accumulation, ddp=True),
    "freezing": freezing,
    "freezing_under_ddp": partial(freezing, order="wrapped by distribute"),
    "freezing_in_a_wrapper": partial(freezing, order="wrapped before"),
}


def run_cases(folder: Path) -> None:
    own, snapshots = distributed.get_rank(), folder / "snapshots"
    found = {name: case(own) for name, case in CASES.items()}
    for name, scaled in (("dim_reduce", False), ("dim_reduce_with_an_overflow", True)):
        found[name] = train_in_subspace(snapshots, [own], seed=own, scaled=scaled, distribute=True)
    for name, result in found.items():
        torch.save(result, folder / f"{name}.{own}.pt")
