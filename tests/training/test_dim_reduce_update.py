"""DimReduce in the training step: the golden run through AutoBoost, what is told, skipped steps, resume, bad input."""

from __future__ import annotations

import copy
import functools
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from tests.golden_files import golden_paths, load_npz
from tests.golden_networks import assert_trajectory, build_loss, build_network, golden_batch, load_initial_weights
from tests.kit.chains import mean_square
from workbench.config import ConfigError
from workbench.core.records import Event, EventKind
from workbench.methods.dim_reduce.acting import DimReduceUpdate
from workbench.methods.dim_reduce.method import DimReduce
from workbench.methods.dim_reduce.pca import principal_components
from workbench.methods.dim_reduce.pca_files import load_snapshots, save_pca_matrix
from workbench.methods.plan_mark import trained_parameters
from workbench.mindspore.train_step_cells import BoostTrainOneStepCell, WithLossCell
from workbench.training import AutoBoost, Boosted, apply

K = 3


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 2))


def batch(step: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(step)
    x = torch.randn(16, 4, generator=generator)
    return x, torch.sin(x[:, :2])


def write_snapshots(folder: Path, net: nn.Module, count: int = 6) -> Path:
    generator = torch.Generator().manual_seed(5)
    folder.mkdir(exist_ok=True)
    for number in range(count):
        weights = {
            name: (p.detach() + number * 0.1 * torch.randn(p.shape, generator=generator))
            for name, p in net.named_parameters()
        }
        save_file(weights, folder / f"snapshot_{number:06d}.safetensors")
    return folder


def config_of(folder: Path | None = None, **changes: Any) -> dict[str, Any]:
    values: dict[str, Any] = {"n_components": K, "alpha": 0.05, **changes}
    if folder is not None:
        values["weight_load_dir"] = str(folder)
    return {"boost": {"mode": "manual", "dim_reduce": True}, "dim_reduce": values, "amp": {"level": "O0"}}


def boosted_on(folder: Path, net: nn.Module | None = None, **sections: Any) -> Boosted:
    net = net or network()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    return apply({**config_of(folder), **sections}, net, optimizer, level="O0")


def train(boosted: Boosted, steps: range) -> list[dict[str, float]]:
    columns = []
    for step in steps:
        loss_now = functools.partial(mean_square, boosted.model, batch(step))
        boosted.backward(loss_now())
        columns.append(dict(boosted.step(loss_now).columns))
    return columns


def weights_of(module: nn.Module) -> Tensor:
    return torch.cat([p.detach().reshape(-1) for p in module.parameters()])


@pytest.mark.parametrize("path", golden_paths("dim_reduce_autoboost_*.npz"), ids=lambda path: path.stem)
@pytest.mark.parametrize("source", ["matrix", "snapshots"])
def test_golden_run_from_autoboost_to_the_weights(path: Path, source: str, tmp_path: Path) -> None:
    meta, arrays = load_npz(path)
    net = build_network(meta["net"])
    load_initial_weights(net, arrays)
    named = dict(net.named_parameters())
    order = meta.get("parameter_order", list(named))
    matrix = arrays["pca_mat"]
    if source == "matrix":
        place = {"pca_mat_path": str(save_pca_matrix(tmp_path / "pca.npy", matrix))}
    else:  # snapshots whose components are the recorded ones: each lies along one of them, the first one furthest
        for number in range(len(matrix)):
            for sign in (-1, 1):
                # Falling sizes set the order; the sign of a component is free, and B starts without a preference.
                row = torch.from_numpy(matrix[number]) * sign * (4.0 - 4.0 * number / len(matrix))
                parts = zip(order, torch.split(row, [named[name].numel() for name in order]), strict=True)
                shaped = {name: part.reshape(named[name].shape).clone() for name, part in parts}
                save_file(shaped, tmp_path / f"snapshot_{2 * number + (sign > 0)}.safetensors")
        place = {"weight_load_dir": str(tmp_path)}
    hyper = {name: meta["hyper"][name] for name in ("rho", "gamma", "alpha", "sigma")}
    config = {
        "boost": {"mode": "manual", "dim_reduce": True},
        "dim_reduce": {**hyper, **place, "n_components": len(matrix)},
        "compatibility": {"dim_reduce": "reference"},  # its two trials come with it
    }
    ordered = [named[name] for name in order]
    boost = AutoBoost("O0", config)
    net, optimizer = boost.network_auto_process_train(net, torch.optim.Adam(ordered, lr=0.123))
    assert type(optimizer).__name__ == "SGD"
    assert optimizer.param_groups[0]["lr"] == meta["autoboost_result"]["lr"]
    cell = BoostTrainOneStepCell(WithLossCell(net, build_loss(meta["loss"])), optimizer)
    assert cell.check_dim_reduce_enable()
    update = cell.boosted.update
    assert isinstance(update, DimReduceUpdate)
    assert update.dim_reduce.line_search_trials == 2
    exact = source == "matrix"  # otherwise float32 rows, with the signs of our own rule
    rtol, atol = (1e-3, 2e-4) if exact else (2e-3, 5e-4)
    for call in range(len(arrays["losses"])):
        step = cell(*golden_batch(arrays, call))
        np.testing.assert_allclose(step.loss.item(), arrays["losses"][call], rtol=rtol)
        assert_trajectory(net, arrays, call + 1, rtol=rtol, atol=atol)
    if exact:
        size = np.abs(arrays["bk"]).max()
        np.testing.assert_allclose(update.dim_reduce.inverse_hessian.numpy(), arrays["bk"], rtol=0, atol=2e-3 * size)


def test_a_step_is_the_method_s_own_step_on_unscaled_gradients(tmp_path: Path) -> None:
    net = network()
    folder = write_snapshots(tmp_path / "snapshots", net)
    twin = copy.deepcopy(net)
    named = dict(twin.named_parameters())
    found = principal_components(load_snapshots(folder, {n: tuple(p.shape) for n, p in named.items()}), K)
    by_hand = DimReduce(
        twin, None, list(named.values()), found.components, K, 0.55, 0.9, 0.05, 0.4, 0, 1, line_search_trials=8
    )
    boosted = boosted_on(folder, net, loss_scale={"kind": "fixed", "init": 2.0**10})
    columns = train(boosted, range(6))
    for step in range(6):
        loss_now = functools.partial(mean_square, twin, batch(step))
        loss = loss_now()
        taken = by_hand.step(loss.detach(), torch.autograd.grad(loss, by_hand.weight), loss_now)
        assert columns[step]["dim_reduce.rho"] == taken.rho
        assert columns[step]["dim_reduce.trials"] == taken.trials
    torch.testing.assert_close(weights_of(net), weights_of(twin), rtol=1e-5, atol=1e-6)
    assert columns[-1]["dim_reduce.condition"] == pytest.approx(by_hand.condition(), rel=1e-3)
    assert columns[0]["dim_reduce.explained_variance"] == pytest.approx(found.explained_variance_ratio.sum())
    assert all("dim_reduce.explained_variance" not in later for later in columns[1:])
    assert weights_of(net).isfinite().all()


def test_names_do_not_depend_on_wrappers_and_order_is_the_optimizer_s() -> None:
    net = network()
    AutoBoost("O0").network_auto_process_train(net, torch.optim.SGD(net.parameters(), lr=1.0))
    reverse = torch.optim.SGD(list(net.parameters())[::-1], lr=1.0)
    wanted = ["2.bias", "2.weight", "0.bias", "0.weight"]
    assert list(trained_parameters(net, reverse)) == wanted
    assert list(trained_parameters(WithLossCell(net, nn.MSELoss()), reverse)) == wanted
    assert list(trained_parameters(torch.compile(net, backend="eager"), reverse)) == wanted  # type: ignore[arg-type]
    stranger = torch.optim.SGD([*net.parameters(), nn.Parameter(torch.ones(1))], lr=1.0)
    with pytest.raises(ConfigError, match="1 of the 5 that the optimizer trains are not in the network"):
        trained_parameters(net, stranger)


def test_a_failed_search_is_an_event_and_a_rho_of_zero(tmp_path: Path) -> None:
    boosted = boosted_on(write_snapshots(tmp_path / "snapshots", network()))
    heard: list[Event] = []
    boosted.events = SimpleNamespace(emit=heard.append)  # type: ignore[assignment]
    (x, y), before = batch(0), weights_of(boosted.model)
    boosted.backward(nn.functional.mse_loss(boosted.model(x), y))
    columns = boosted.step(lambda: torch.tensor(float("nan"))).columns
    assert (columns["dim_reduce.rho"], columns["dim_reduce.trials"]) == (0.0, 8.0)
    (event,) = heard
    assert (event.step, event.kind, event.subject) == (0, EventKind.LINE_SEARCH_FAILED, "dim_reduce")
    assert event.value == pytest.approx(0.55**7)
    assert "none of 8 trials" in event.message
    assert not torch.equal(weights_of(boosted.model), before)  # the residual's part is taken all the same
    train(boosted, range(1, 3))
    assert len(heard) == 1


def test_an_overflowed_step_is_skipped_before_anything_is_tried(tmp_path: Path) -> None:
    boosted = boosted_on(
        write_snapshots(tmp_path / "snapshots", network()), loss_scale={"kind": "dynamic", "init": 2.0**8}
    )
    train(boosted, range(3))
    before, state = weights_of(boosted.model), boosted.update.state_dict()
    x, y = batch(3)
    x[0, 0] = float("inf")
    boosted.backward(nn.functional.mse_loss(boosted.model(x), y))

    def never() -> Tensor:
        raise AssertionError("an overflowed batch was evaluated")

    outcome = boosted.step(never)
    assert bool(outcome.overflow)
    assert outcome.columns == {}
    assert float(outcome.loss_scale_after) == 2.0**7
    assert torch.equal(weights_of(boosted.model), before)
    for name, value in boosted.update.state_dict().items():
        assert value == state[name] if isinstance(value, bool) else torch.equal(value, state[name])
    train(boosted, range(4, 6))
    assert weights_of(boosted.model).isfinite().all()


def test_wrong_uses_are_told_in_one_sentence(tmp_path: Path) -> None:
    boosted = boosted_on(write_snapshots(tmp_path / "snapshots", network()))
    x, y = batch(0)
    boosted.backward(nn.functional.mse_loss(boosted.model(x), y))
    with pytest.raises(RuntimeError, match=r"call boosted\.step\(lambda: criterion\(boosted\.model\(x\), y\)\)"):
        boosted.step()
    boosted = boosted_on(tmp_path / "snapshots")
    boosted.optimizer.param_groups[0]["lr"] = 0.5  # as a scheduler would
    with pytest.raises(RuntimeError, match=r"its learning rate must stay 1, got 0\.5; train without a learning-rate"):
        train(boosted, range(1))


def test_bad_input_is_one_sentence_on_the_way_of_a_plan(tmp_path: Path) -> None:
    net, matrix = network(), save_pca_matrix(tmp_path / "pca.npy", np.eye(K, 7))
    words = r"must have one column per trained weight \(44\), got 7; it was made for another network"
    with pytest.raises(ConfigError, match=f"^dim_reduce cannot start: .*{words}"):
        apply(config_of(pca_mat_path=str(matrix)), net, torch.optim.SGD(net.parameters(), lr=0.1), level="O0")
    table = nn.Sequential(nn.EmbeddingBag(3, 2, sparse=True))
    with pytest.raises(ConfigError, match=r"dense gradients only, but those of 0.weight are sparse"):
        apply(config_of(pca_mat_path=str(matrix)), table, torch.optim.SGD(table.parameters(), lr=0.1), level="O0")
