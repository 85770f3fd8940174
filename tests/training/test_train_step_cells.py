from __future__ import annotations

import copy
import warnings
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD

from tests.golden_files import golden_paths, load_json, load_npz
from tests.golden_networks import (
    MiniResidualNet,
    assert_trajectory,
    build_loss,
    build_network,
    build_optimizer,
    divide_by_loss_scale,
    golden_batch,
    load_initial_weights,
    plain_list,
)
from tests.kit.configurations import accumulating, freezing
from workbench.config import ConfigError
from workbench.loss_scale import (
    DynamicLossScaleManager,
    DynamicLossScaleUpdateCell,
    FixedLossScaleUpdateCell,
    NonFusedOptimizerWarning,
)
from workbench.mindspore.train_step_cells import (
    BoostTrainOneStepCell,
    BoostTrainOneStepWithLossScaleCell,
    TrainOneStepCell,
    TrainOneStepWithLossScaleCell,
    WithLossCell,
)
from workbench.training import AutoBoost

CELLS = {
    "TrainOneStepWithLossScaleCell": TrainOneStepWithLossScaleCell,
    "BoostTrainOneStepWithLossScaleCell": BoostTrainOneStepWithLossScaleCell,
}


def ids(path: Path) -> str:
    return path.stem


def scale_sense_from(manager: dict[str, Any]) -> nn.Module | Tensor:
    kind = manager["kind"]
    if kind == "DynamicLossScaleUpdateCell":
        # The recorded scale has no ceiling; it grows to inf.
        return DynamicLossScaleUpdateCell(manager["init"], manager["factor"], manager["window"], growth_ceiling="none")
    if kind.startswith("Fixed"):
        value = next(v for k, v in manager.items() if k != "kind")
        return FixedLossScaleUpdateCell(value)
    if kind.startswith("Tensor"):
        shape = (1,) if "(1,)" in kind else ()
        return torch.full(shape, float(manager["value"]))
    raise ValueError(f"unknown manager {manager}")


@pytest.mark.parametrize("is_fused", [True, False], ids=["fused", "not_fused"])
@pytest.mark.parametrize("path", golden_paths("with_loss_scale_*.npz"), ids=ids)
def test_golden_training_with_loss_scale(path: Path, is_fused: bool) -> None:
    meta, arrays = load_npz(path)
    net = build_network(meta["net"], torch.float32)  # overflow is a matter of float32
    load_initial_weights(net, arrays)
    optimizer = build_optimizer(meta, plain_list(net), **({"fused": True} if is_fused else {}))
    network = WithLossCell(net, build_loss(meta["loss"]))
    cell = CELLS[meta["cell"]](network, optimizer, scale_sense_from(meta["manager"]))
    changes = {int(step): value for step, value in (meta.get("set_scale_before_step") or {}).items()}
    for step in range(len(arrays["losses"])):
        if step in changes:
            cell.set_sense_scale(torch.tensor(changes[step], dtype=torch.float32))
        assert float(cell.scale_sense) == pytest.approx(arrays["scale_before"][step], rel=1e-6)
        before = {name: p.detach().clone() for name, p in net.named_parameters()}
        momenta = [optimizer.state[p].get("momentum_buffer", p.new_zeros(())).clone() for p in net.parameters()]
        with pytest.warns(NonFusedOptimizerWarning) if step == 0 and not is_fused else nullcontext():
            loss, overflow, scale = cell(*golden_batch(arrays, step, torch.float32))
        if meta["loss"] == "ce" and np.isinf(arrays["losses"][step]):
            assert loss > 87  # the recorded cross entropy is -log of a probability that float32 counts as 0
        elif step not in meta["nan_input_steps"]:  # the recorded ReLU maps NaN to 0, torch's hands it on
            np.testing.assert_allclose(float(loss), arrays["losses"][step], rtol=1e-4, atol=1e-5)
        assert bool(overflow) == bool(arrays["overflow"][step])
        assert float(scale) == pytest.approx(arrays["returned_scale"][step], rel=1e-6)
        assert float(cell.scale_sense) == pytest.approx(arrays["scale_after"][step], rel=1e-6)
        if bool(overflow):
            assert all(torch.equal(before[name], p) for name, p in net.named_parameters())
        elif arrays["scale_before"][step] > 2.0**126:
            recorded = [torch.from_numpy(arrays[f"traj/{name}"][step + 1]) for name in before]
            follow_flushed_gradients_(net, optimizer, recorded, list(before.values()), momenta)
        assert_trajectory(net, arrays, step + 1)


def follow_flushed_gradients_(
    net: nn.Module,
    optimizer: torch.optim.Optimizer,
    recorded: list[Tensor],
    before: list[Tensor],
    momenta: list[Tensor],
) -> None:
    """Take the gradient out of this step of each tensor for which the recording machine counted 1 / scale as 0.

    Which ones these are depends on that machine (tensors of more than 6, 8 or 10 elements), so the recording decides:
    where it is not at the end of the whole step, it must be where the momentum alone leads.
    """
    group_of = {parameter: group for group in optimizer.param_groups for parameter in group["params"]}
    for parameter, wanted, start, momentum in zip(net.parameters(), recorded, before, momenta, strict=True):
        if torch.allclose(parameter, wanted.float(), rtol=1e-4, atol=1e-5):
            continue
        group = group_of[parameter]
        with torch.no_grad():
            optimizer.state[parameter]["momentum_buffer"].copy_(group["momentum"] * momentum)
            parameter.copy_(start - group["lr"] * group["momentum"] * momentum)


@pytest.mark.parametrize("path", golden_paths("with_loss_scale_errors*.json"), ids=ids)
def test_golden_argument_errors_of_loss_scale_cells(path: Path) -> None:
    for key, expected in load_json(path)["results"].items():
        cell_name, argument = key.split("|")
        net = nn.Linear(2, 1)
        network, optimizer = WithLossCell(net, nn.MSELoss()), SGD(net.parameters(), lr=0.1, fused=True)
        arguments: dict[str, Any] = {
            "float": 128.0,
            "tensor_scalar": torch.tensor(128.0),
            "tensor_1": torch.full((1,), 128.0),
            "tensor_2": torch.full((2,), 128.0),
            "manager": DynamicLossScaleManager(),
            "none": None,
        }

        def build(value: Any, cell_name: str = cell_name, network: Any = network, optimizer: Any = optimizer) -> Any:
            return CELLS[cell_name](network, optimizer, value)

        if argument == "set_sense_scale(float)":
            with pytest.raises(TypeError, match="tensor of shape"):
                build(torch.tensor(1.0)).set_sense_scale(128.0)
        elif expected == "ok":
            build(arguments[argument])
        else:
            with pytest.raises({"TypeError": TypeError, "ValueError": ValueError}[expected]):
                build(arguments[argument])


@pytest.mark.parametrize("path", golden_paths("train_one_step_sens*.json"), ids=ids)
def test_golden_sens_scales_the_step_and_none_means_one(path: Path) -> None:
    recorded = load_json(path)["results"]["sens"]

    def weight_change(sens: float | None) -> float:
        torch.manual_seed(1)
        net = nn.Linear(3, 2)
        before = net.weight.detach().clone()
        cell = BoostTrainOneStepCell(WithLossCell(net, nn.MSELoss()), SGD(net.parameters(), lr=0.01), sens=sens)
        loss, overflow, _ = cell(torch.randn(4, 3), torch.randn(4, 2))
        assert torch.isfinite(loss)  # the reference returns None for sens=None: documented difference
        assert not overflow
        return float((net.weight.detach() - before).abs().sum())

    for key, value in recorded.items():
        mode, text = key.split("|")
        sens = None if text == "None" else float(text)
        if "exception" in value:
            with pytest.raises({"ValueError": ValueError}[value["exception"]]):
                weight_change(sens)
        else:
            expected = value["dw_abs_sum"] / recorded[f"{mode}|1.0"]["dw_abs_sum"]
            np.testing.assert_allclose(weight_change(sens) / weight_change(1.0), expected, rtol=1e-4)
    for text, value in load_json(path)["results"]["accum_le1"].items():
        config = {"boost": {"mode": "manual", "grad_accumulation": True}}
        if int(text) < 1:  # the reference silently takes 1 for it
            with pytest.raises(ConfigError, match="grad_accumulation_step"):
                AutoBoost("O0", config | {"grad_accumulation": {"grad_accumulation_step": int(text)}})
        else:
            with pytest.warns(UserWarning, match="grad_accumulation is not in effect"):
                boost = AutoBoost("O0", config | {"grad_accumulation": {"grad_accumulation_step": int(text)}})
            assert boost.plan.grad_accumulation == value["use"]


@pytest.mark.parametrize("path", golden_paths("grad_accum_cell_*.npz"), ids=ids)
def test_golden_accumulation_through_autoboost_and_the_train_cell(path: Path) -> None:
    meta, arrays = load_npz(path)
    net = build_network(meta["net"])
    load_initial_weights(net, arrays)
    network = WithLossCell(net, build_loss(meta["loss"]))
    boost = AutoBoost("O1", meta["autoboost_config"])
    network, optimizer = boost.network_auto_process_train(network, build_optimizer(meta, plain_list(net)))
    divide_by_loss_scale(optimizer, meta)
    cell = BoostTrainOneStepCell(network, optimizer, meta["sens"])
    for step in range(len(arrays["losses"])):
        loss, _, _ = cell(*golden_batch(arrays, step))
        np.testing.assert_allclose(float(loss), arrays["losses"][step], rtol=1e-4, atol=1e-5)
        assert cell.boosted.window.position == meta["accumulation_step_after"][step]
        assert_trajectory(net, arrays, step + 1)
        for name, parameter in net.named_parameters():
            buffer = np.zeros_like(arrays[f"accum/{name}"][step]) if parameter.grad is None else parameter.grad.numpy()
            np.testing.assert_allclose(buffer, arrays[f"accum/{name}"][step], rtol=1e-4, atol=1e-5 * meta["sens"])


@pytest.mark.parametrize("path", golden_paths("autoboost_train_*.npz"), ids=ids)
def test_golden_autoboost_end_to_end(path: Path) -> None:
    meta, arrays = load_npz(path)
    net = build_network(meta["net"])
    config = {**meta["config"], "compatibility": "mindspore-2.7"}
    optimizer = build_optimizer(
        {"learning_rate": meta["learning_rate"], **_optimizer_meta(meta)}, _groups_as_decayed(net, meta["result"])
    )
    np.random.seed(meta["np_seed"])  # noqa: NPY002  # the reference draws from the global generator
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        boost = AutoBoost(meta["level"], config)
        network, optimizer = boost.network_auto_process_train(WithLossCell(net, build_loss(meta["loss"])), optimizer)
    _assert_told_what_is_not_in_effect(boost, [str(warning.message) for warning in caught])
    # The recorded list keeps what belongs to removed BatchNorms: nothing reads it, and the decay is all that moves it.
    gone = tuple(f"traj/{name}." for name, module in net.named_modules() if type(module) is nn.Identity)
    arrays = {key: rows for key, rows in arrays.items() if not key.startswith(gone)}
    load_initial_weights(net, arrays)
    cell = BoostTrainOneStepCell(network, optimizer, 1.0)
    result = meta["result"]
    names = {id(p): name for name, p in net.named_parameters()}
    assert list(names.values()) == [name for name in result["trainable"] if not f"traj/{name}".startswith(gone)]
    assert boost.plan.requested["adasum"] is result["adasum_mark"]  # set there on one rank, too
    freezes = result["strategy"] is not None and result["optimizer"] == "FreezeOpt"
    if freezes and all(group == result["groups"][0] for group in result["groups"]):  # which freezes nothing
        assert not boost.plan.grad_freeze
        if len(result["groups"]) > 1:
            pytest.skip("more groups than layers, each with a momentum of the whole network: documented difference")
    elif freezes:
        assert type(optimizer).__name__ == "FreezeOpt"
        assert list(optimizer.strategy) == result["strategy"]
        groups = [[names[id(p)] for p in optimizer.group_parameters(i)] for i in range(optimizer.n_groups)]
        recorded = [[name for name in group["params"] if name in names.values()] for group in result["groups"]]
        if gone and groups != recorded:
            pytest.skip("the reference cuts layers into groups as if the removed BatchNorms were there: documented")
        assert groups == recorded
        for i, group in enumerate(result["groups"]):
            assert _centralized(optimizer.optimizer_of(i), names) == _recorded_as_centralized(group, names)
    else:
        (group,) = result["groups"]
        assert _centralized(optimizer, names) == _recorded_as_centralized(group, names)
    losses = meta["losses"] if "losses" in meta else arrays["losses"]
    for step, expected in enumerate(losses):
        loss, _, _ = cell(*golden_batch(arrays, step))
        np.testing.assert_allclose(float(loss), expected, rtol=1e-4, atol=1e-5)
        assert_trajectory(net, arrays, step + 1)


def _optimizer_meta(meta: dict[str, Any]) -> dict[str, Any]:
    arguments = {k: meta[k] for k in ("momentum", "weight_decay") if k in meta}
    return {"optimizer": meta["optimizer"], "optimizer_args": arguments}


def _groups_as_decayed(net: nn.Module, result: dict[str, Any]) -> list[dict[str, Any]]:
    # Left as it is, a plain list decays no scale and shift of norms there; any algorithm makes it one decayed group.
    flags = dict(zip(result["groups"][0]["params"], result["groups"][0]["decay_flags"], strict=True))
    if len(set(flags.values())) == 1:
        return [{"params": list(net.parameters())}]
    return [{"params": [p], **({} if flags[name] else {"weight_decay": 0.0})} for name, p in net.named_parameters()]


def _centralized(optimizer: torch.optim.Optimizer, names: dict[int, str]) -> set[str]:
    return {
        names[id(p)] for group in optimizer.param_groups if group.get("grad_centralization") for p in group["params"]
    }


def _recorded_as_centralized(group: dict[str, Any], names: dict[int, str]) -> set[str]:
    return {name for name, flag in zip(group["params"], group["gc_flags"], strict=True) if flag} & set(names.values())


def _assert_told_what_is_not_in_effect(boost: AutoBoost, told: list[str]) -> None:
    """Compare warnings with the plan: AdaSum on one rank, freezing with one group, a net with no BatchNorm to spare."""
    idle = [name for name, asked in boost.plan.requested.items() if asked and not getattr(boost.plan, name)]
    for name in idle:
        assert any(text.startswith((f"{name} is not in effect", f"{name} had no effect")) for text in told), name
    assert all("is not in effect" in text or "no effect" in text for text in told), told


@pytest.mark.parametrize("cell", [TrainOneStepCell, BoostTrainOneStepCell])
@pytest.mark.parametrize(
    ("sens", "error", "words"),
    [(sens, ValueError, "finite number other than 0") for sens in (0, float("nan"), float("inf"))]
    + [(sens, TypeError, "must be a number") for sens in ("1", True)],
)
def test_sens_that_is_no_usable_number_is_refused(cell: Any, sens: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        cell(nn.Linear(1, 1), SGD([nn.Parameter(torch.ones(1))], lr=0.1), sens)


def test_plain_cell_returns_the_loss_before_the_update() -> None:
    net = nn.Linear(3, 2)
    twin = copy.deepcopy(net)
    x, y = torch.randn(4, 3), torch.randn(4, 2)
    expected = nn.functional.mse_loss(twin(x), y)
    expected.backward()
    SGD(twin.parameters(), lr=0.1).step()
    loss = TrainOneStepCell(WithLossCell(net, nn.MSELoss()), SGD(net.parameters(), lr=0.1))(x, y)
    assert torch.equal(loss, expected)
    assert torch.equal(net.weight, twin.weight)


def boosted_cell(net: nn.Module, config: dict[str, Any]) -> BoostTrainOneStepCell:
    given = WithLossCell(net, nn.MSELoss()), SGD(net.parameters(), lr=0.1)
    return BoostTrainOneStepCell(*AutoBoost("O0", config).network_auto_process_train(*given))


def test_gradients_handed_over_are_accumulated_like_a_backward_pass() -> None:
    net = nn.Linear(3, 2)
    twin = copy.deepcopy(net)
    cells = [boosted_cell(module, accumulating(2)) for module in (net, twin)]
    for _ in range(4):
        x, y = torch.randn(4, 3), torch.randn(4, 2)
        loss = cells[0].network(x, y)
        grads = torch.autograd.grad(loss, list(net.parameters()))
        assert cells[0].gradient_accumulation_process(loss, grads, 1.0) is loss
        cells[1](x, y)
        torch.testing.assert_close(net.weight, twin.weight)
    with pytest.raises(ValueError, match="one gradient per trained parameter"):
        cells[0].gradient_accumulation_process(loss, grads[:1], 1.0)


def test_the_freezing_process_is_one_step_and_returns_its_loss() -> None:
    net = nn.Sequential(*[nn.Linear(3, 3, bias=False) for _ in range(7)])
    cell = boosted_cell(net, freezing(2, kind=0, p=0.0, steps=4))
    before = [p.detach().clone() for p in net.parameters()]
    x, y = torch.randn(4, 3), torch.randn(4, 3)
    expected = nn.functional.mse_loss(net(x), y).detach()
    assert torch.equal(cell.gradient_freeze_process(x, y), expected)
    moved = [not torch.equal(p, old) for p, old in zip(net.parameters(), before, strict=True)]
    assert moved[-1]
    assert not moved[0]  # with freeze_p = 0 the first step freezes the first group
    assert not cell.check_adasum_enable()
    assert not cell.check_dim_reduce_enable()


def test_evaluation_removes_the_batch_norms_of_training_once() -> None:
    net = MiniResidualNet("basic", [4, 6], [1, 2], 3)
    boost = AutoBoost("O1", {"grad_freeze": {"param_groups": 2}, "less_bn": {"fn_flag": True}})
    state = {name: value.clone() for name, value in net.state_dict().items()}
    evaluated = boost.network_auto_process_eval(net)
    report = net.less_bn_report
    assert report.removed
    assert type(evaluated.fc) is nn.Linear  # the head stays as it is
    assert torch.equal(evaluated.fc.weight, state["fc.weight"])
    assert boost.network_auto_process_eval(net) is evaluated  # a second time there is nothing left to do
    assert net.less_bn_report is report


def test_the_backbone_is_found_under_the_name_of_the_reference() -> None:
    net = nn.Linear(2, 1)
    assert WithLossCell(net, nn.MSELoss()).backbone_network is net
