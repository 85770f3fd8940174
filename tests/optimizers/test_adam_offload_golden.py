"""AdamOffload against what the reference computed (MindSpore 2.7.0, CPU, really executed)."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from tests.golden_files import golden_paths, load_json, load_npz
from workbench.optim.adam_offload.optimizer import AdamOffload

SETTINGS = ("learning_rate", "beta1", "beta2", "eps", "use_locking", "use_nesterov", "weight_decay", "loss_scale")


def identifier(path: Path) -> str:
    return path.stem.removeprefix("adam_offload_")


def dynamic(value: Any) -> Any:
    """A setting as the file has it: a number, or a callable for "...: a * b ** step" or "... ** (step / c)"."""
    if not isinstance(value, str):
        return value
    number = r"([\d.eE+-]+)"
    found = re.search(rf"{number} \* {number} \*\* (?:step|\(step / {number}\))", value)
    assert found is not None, value
    start, base, stretch = (float(part or 1) for part in found.groups())

    def at(step: int) -> float:
        return start * base ** (step / stretch)

    return at


def make_optimizer(meta: dict[str, Any], weights: dict[str, nn.Parameter], transfer: str) -> AdamOffload:
    config = meta["config"]
    settings = {"transfer": transfer, "bucket_bytes": 100} | {
        key: dynamic(config[key]) for key in SETTINGS if key in config
    }
    if config.get("kind") == "1-D tensor":
        settings["learning_rate"] = torch.tensor(config["learning_rate"])
    if "groups" not in config:
        # In the reference a normalization's scale and shift have the names gamma and beta.
        flags = dict(zip(meta["optimizer_order"], meta["decay_flags"], strict=True))
        named = [(n if flags[n] else f"{n}.gamma", weights[n]) for n in meta["optimizer_order"]]
        return AdamOffload(named, **settings)
    groups: list[dict[str, Any]] = []
    for index, group in enumerate(config["groups"]):
        options = {key: dynamic(value) for key, value in group.items() if key != "params"}
        if f"group{index}_lr_list" in config:
            options["lr"] = config[f"group{index}_lr_list"]
        groups.append({"params": [weights[n] for n in group["params"]], **options})
    # One file was recorded with an order that its config does not mention.
    if [n for group in config["groups"] for n in group["params"]] != meta["optimizer_order"]:
        groups.append({"order_params": [weights[n] for n in meta["optimizer_order"]]})
    return AdamOffload(groups, **settings)


@pytest.mark.parametrize("transfer", ["needed", "always"], ids=["in_place", "over_the_host"])
@pytest.mark.parametrize("path", golden_paths("adam_offload_*.npz"), ids=identifier)
def test_weights_and_moments_follow_the_reference(path: Path, transfer: str) -> None:
    meta, arrays = load_npz(path)
    names = meta["optimizer_order"]
    weights = {n: nn.Parameter(torch.from_numpy(arrays[f"traj/{n}"][0].copy())) for n in names}
    optimizer = make_optimizer(meta, weights, transfer)
    assert all(a is weights[n] for a, n in zip(optimizer.parameters, names, strict=True))
    for step in range(len(meta["global_step_after"])):
        for n in names:
            weights[n].grad = torch.from_numpy(arrays[f"grad/{n}"][step].copy())
        optimizer.step()
        assert optimizer.global_step == meta["global_step_after"][step]
        for n in names:
            np.testing.assert_allclose(
                weights[n].detach().numpy(), arrays[f"traj/{n}"][step + 1], rtol=1e-4, atol=1e-5, err_msg=f"{n}, {step}"
            )
    for n in names:
        state = optimizer.state[weights[n]]
        np.testing.assert_allclose(state["exp_avg"].numpy(), arrays[f"moment1/{n}"], rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(state["exp_avg_sq"].numpy(), arrays[f"moment2/{n}"], rtol=1e-4, atol=1e-6)


def weights() -> list[nn.Parameter]:
    return [nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(2))]


def two_groups(**first: Any) -> list[dict[str, Any]]:
    one, two = weights()
    return [{"params": [one], **first}, {"params": [two]}]


def ordered(change: Callable[[list[dict[str, Any]]], dict[str, Any]]) -> AdamOffload:
    groups = two_groups()
    return AdamOffload([*groups, change(groups)])


CASES: dict[str, Callable[[], AdamOffload]] = {
    "beta1=1.0": lambda: AdamOffload(weights(), beta1=1.0),
    "beta1=0.0": lambda: AdamOffload(weights(), beta1=0.0),
    "beta1=1(int)": lambda: AdamOffload(weights(), beta1=1),
    "eps=0.0": lambda: AdamOffload(weights(), eps=0.0),
    "eps=0(int)": lambda: AdamOffload(weights(), eps=0),
    "weight_decay=-0.1": lambda: AdamOffload(weights(), weight_decay=-0.1),
    'weight_decay="x"': lambda: AdamOffload(weights(), weight_decay="x"),
    "loss_scale=0.0": lambda: AdamOffload(weights(), loss_scale=0.0),
    "loss_scale=-1.0": lambda: AdamOffload(weights(), loss_scale=-1.0),
    "loss_scale=2(int)": lambda: AdamOffload(weights(), loss_scale=2),
    "use_nesterov=1": lambda: AdamOffload(weights(), use_nesterov=1),  # type: ignore[arg-type]
    'use_locking="a"': lambda: AdamOffload(weights(), use_locking="a"),  # type: ignore[arg-type]
    "lr=-1.0": lambda: AdamOffload(weights(), -1.0),
    'lr="x"': lambda: AdamOffload(weights(), "x"),
    "lr=None": lambda: AdamOffload(weights(), None),
    "lr=2d": lambda: AdamOffload(weights(), torch.ones(2, 2)),
    "lr=0": lambda: AdamOffload(weights(), 0),
    "lr=[]": lambda: AdamOffload(weights(), []),
    "params=[]": lambda: AdamOffload([]),
    "params=None": lambda: AdamOffload(None),
    "params=[1]": lambda: AdamOffload([1]),
    "unknown group key": lambda: AdamOffload(two_groups(speed=1)),
    "duplicate param in groups": lambda: AdamOffload([{"params": [nn.Parameter(torch.ones(3))]}] * 2),
    "order_params length mismatch": lambda: ordered(lambda groups: {"order_params": groups[0]["params"]}),
    "order_params with other key": lambda: ordered(
        lambda groups: {"order_params": groups[0]["params"] + groups[1]["params"], "lr": 0.1}
    ),
    "order_params not iterable": lambda: ordered(lambda groups: {"order_params": 1}),
    "empty group": lambda: AdamOffload([{"params": []}, {"params": weights()}]),
    "group dynamic lr length mismatch": lambda: AdamOffload(two_groups(lr=[0.1, 0.2]), [0.1, 0.2, 0.3]),
}


@pytest.mark.parametrize("path", golden_paths("adam_offload_errors*.json"), ids=identifier)
def test_arguments_fail_as_in_the_reference(path: Path) -> None:
    results = load_json(path)["results"]
    assert set(results) <= set(CASES), "a case of the file is not known here"
    for case, expected in results.items():
        if expected == "ok":
            CASES[case]()
            continue
        with pytest.raises(Exception) as caught:  # noqa: PT011  # the class is compared below
            CASES[case]()
        assert type(caught.value).__name__ == expected, case
        assert len(str(caught.value)) > 20, f"{case}: no sentence"
