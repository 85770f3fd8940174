"""Accelerate's loop with a set-up."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

pytest.importorskip("accelerate", reason="pip install boost-workbench[test] brings accelerate")

from accelerate import Accelerator
from accelerate.state import AcceleratorState, GradientState
from accelerate.utils import DataLoaderConfiguration

from workbench.integrations.accelerate import accelerator_arguments, carried, prepare

NONE = {"boost": {"mode": "manual", "less_bn": False, "grad_freeze": False}}
EPOCHS = 4


@pytest.fixture(autouse=True)
def fresh_state() -> Iterator[None]:
    yield
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()


def an_accelerator(**given: Any) -> Any:
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()
    return Accelerator(
        cpu=True, dataloader_config=DataLoaderConfiguration(use_seedable_sampler=True, data_seed=1), **given
    )


def a_task() -> tuple[nn.Module, torch.optim.Optimizer, DataLoader[Any]]:
    torch.manual_seed(0)
    inputs = torch.randn(64, 6)
    data = TensorDataset(inputs, (inputs[:, 0] > 0).long())
    model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Dropout(0.1), nn.Linear(16, 2))
    return (
        model,
        torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9, fused=True),
        DataLoader(data, 8, shuffle=True),
    )


def trained(config: Any, until: int | None = None, folder: Path | None = None, **given: Any) -> Any:
    accelerator = an_accelerator()
    criterion = nn.CrossEntropyLoss()
    boosted, loader = prepare(accelerator, config, *a_task(), epochs=EPOCHS, criterion=criterion, **given)
    if folder is not None and until is None:
        accelerator.load_state(str(folder))
    for x, y in boosted.batches(loader, EPOCHS, start=boosted.step_index):
        torch.manual_seed(boosted.step_index)  # the masks of dropout are not the question here
        with boosted.autocast():
            loss = boosted.criterion(boosted.model(x), y)
        boosted.backward(loss)
        boosted.step()
        if boosted.step_index == until:
            accelerator.save_state(str(folder))
            break
    return boosted


def test_without_a_choice_the_loop_trains_as_before() -> None:
    accelerator = an_accelerator()
    model, optimizer, loader = a_task()
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    criterion, step = nn.CrossEntropyLoss(), 0
    for epoch in range(EPOCHS):
        loader.set_epoch(epoch)
        for x, y in loader:
            torch.manual_seed(step)
            accelerator.backward(criterion(model(x), y))
            accelerator.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
            optimizer.zero_grad()
            step += 1
    for mine, theirs in zip(trained(NONE, max_grad_norm=0.5).model.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs)


@pytest.mark.parametrize("scale", [1.0, 4096.0])
def test_unscaled_gradients_are_clipped(scale: float) -> None:
    boosted = trained(NONE | {"loss_scale": {"kind": "fixed", "init": scale}}, max_grad_norm=0.5)
    plain = trained(NONE, max_grad_norm=0.5)
    for mine, other in zip(boosted.model.parameters(), plain.model.parameters(), strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-4, atol=1e-6)


def test_a_saved_state_goes_on_with_the_same_bits(tmp_path: Path) -> None:
    config = NONE | {
        "schedule": {"length": 0.75, "shape": "cosine"}, "batch": {"factor": 2.0},
        "regularization": {"weight_average": "ema"}, "loss_scale": {"kind": "dynamic", "window": 3},
    }  # fmt: skip
    whole = trained(config)
    trained(config, until=5, folder=tmp_path)
    resumed = trained(config, folder=tmp_path)
    assert resumed.step_index == whole.step_index == 12
    with whole.evaluating(), resumed.evaluating():
        for mine, other in zip(resumed.model.parameters(), whole.model.parameters(), strict=True):
            torch.testing.assert_close(mine, other, rtol=0, atol=0)


def test_what_both_would_do_is_refused_with_the_way_out() -> None:
    low = NONE | {"amp": {"level": "O2", "dtype": "bfloat16"}}
    with pytest.raises(ValueError, match=r"`mixed_precision` is 'bf16'.*amp\.level O2.*leave it out"):
        prepare(an_accelerator(mixed_precision="bf16"), low, *a_task(), epochs=1)
    with pytest.raises(ValueError, match=r"`gradient_accumulation_steps` is 2.*leave it at 1"):
        prepare(an_accelerator(gradient_accumulation_steps=2), NONE, *a_task(), epochs=1)
    boosted, _ = prepare(an_accelerator(mixed_precision="bf16"), NONE, *a_task(), epochs=1)
    assert boosted.precision.level == "O0", "today's precision stays where nothing else is chosen"


def test_its_arguments_carry_precision_accumulation_and_the_compiler() -> None:
    config = {
        "boost": NONE["boost"] | {"grad_accumulation": True}, "grad_accumulation": {"grad_accumulation_step": 4},
        "amp": {"level": "O2"}, "runtime": {"compile": "default"},
    }  # fmt: skip
    assert carried(config).is_whole
    expected = {"mixed_precision": "fp16", "gradient_accumulation_steps": 4, "dynamo_backend": "inductor"}
    assert accelerator_arguments(config) == expected
    left = carried(NONE | {"amp": {"level": "O3"}, "optimizer": {"lr": 0.1}, "curriculum": {"kind": "sequence"}}).left
    assert left["amp.level"].startswith("Accelerate has autocast")
    assert left["optimizer.lr"].startswith("it belongs to your loop")
    assert left["curriculum.kind"] == "Accelerate has no argument for it"
