"""Accelerate's loop with a set-up."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState, GradientState
from accelerate.utils import DataLoaderConfiguration
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from tests.kit.configurations import accumulating
from workbench.integrations.accelerate import BoostedAccelerator, prepare

NONE = {"boost": {"mode": "manual", "less_bn": False, "grad_freeze": False}}
EPOCHS = 4


def forget_the_accelerator() -> None:
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()


@pytest.fixture(autouse=True)
def fresh_state() -> Iterator[None]:
    yield
    forget_the_accelerator()


def an_accelerator(kind: Any = Accelerator, **given: Any) -> Any:
    forget_the_accelerator()
    order = DataLoaderConfiguration(use_seedable_sampler=True, data_seed=1)
    return kind(cpu=True, dataloader_config=order, **given)


def a_task() -> tuple[nn.Module, torch.optim.Optimizer, DataLoader[Any]]:
    torch.manual_seed(0)
    inputs = torch.randn(64, 6)
    data = TensorDataset(inputs, (inputs[:, 0] > 0).long())
    body = [part for _ in range(4) for part in (nn.Linear(16, 16), nn.Tanh())]
    model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Dropout(0.1), *body, nn.Linear(16, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9, fused=True)
    return model, optimizer, DataLoader(data, 8, shuffle=True)


def trained(config: Any, **given: Any) -> Any:
    accelerator = an_accelerator()
    criterion = nn.CrossEntropyLoss()
    boosted, loader = prepare(accelerator, config, *a_task(), epochs=EPOCHS, criterion=criterion, **given)
    for x, y in boosted.batches(loader, EPOCHS):
        torch.manual_seed(boosted.step_index)  # the masks of dropout are not the question here
        with boosted.autocast():
            loss = boosted.criterion(boosted.model(x), y)
        boosted.backward(loss)
        boosted.step()
    return boosted


def trained_by_a_loop_of_theirs(
    accelerator: Any, *, max_norm: float = 0.5, until: int | None = None, folder: Path | None = None
) -> nn.Module:
    """Train as a loop for Accelerate does, by whatever accelerator."""
    model, optimizer, loader = accelerator.prepare(*a_task())
    if folder is not None and until is None:
        accelerator.load_state(str(folder))
    criterion = nn.CrossEntropyLoss()
    step = accelerator.boosted.step_index if isinstance(accelerator, BoostedAccelerator) else 0
    for epoch in range(EPOCHS):
        loader.set_epoch(epoch)
        assert loader.dataset is not None
        left = len(loader)
        for x, y in loader:
            torch.manual_seed(step)
            loss = criterion(model(x), y)
            accelerator.backward(loss)
            accelerator.clip_grad_norm_(model.parameters(), max_norm)
            optimizer.step()
            optimizer.zero_grad()
            step, left = step + 1, left - 1
            if step == until:
                accelerator.save_state(str(folder))
                return model
        assert left == 0, "the loader's length is the number of its batches"
    return model


def assert_same(one: nn.Module, other: nn.Module, **tolerance: float) -> None:
    for mine, theirs in zip(one.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, **tolerance)


def test_without_a_choice_the_loop_trains_as_before() -> None:
    assert_same(trained(NONE, max_grad_norm=0.5).model, trained_by_a_loop_of_theirs(an_accelerator()))


EXACT = {"rtol": 0, "atol": 0}
SET_UPS: dict[str, dict[str, Any]] = {
    "nothing": NONE,
    "shorter": NONE | {"schedule": {"length": 0.4, "shape": "cosine"}, "batch": {"factor": 3.0}},
    "averaged": NONE | {"regularization": {"weight_average": "ema", "decay": 0.8}},
    "float16": NONE | {"amp": {"level": "O2"}, "loss_scale": {"init": 2.0**17, "window": 5}},
    "frozen": {
        "boost": {"mode": "manual", "less_bn": False, "grad_freeze": True},
        "grad_freeze": {"param_groups": 2, "total_steps": 40},
    },
    "accumulated": accumulating(2),
}


@pytest.mark.parametrize("name", SET_UPS)
def test_a_loop_of_theirs_trains_by_a_set_up_as_a_loop_of_ours(name: str) -> None:
    accelerator = an_accelerator(BoostedAccelerator, boost=SET_UPS[name], epochs=EPOCHS)
    model = trained_by_a_loop_of_theirs(accelerator)
    ours = trained(SET_UPS[name], max_grad_norm=0.5)
    assert accelerator.boosted.step_index == ours.step_index
    assert all(parameter.requires_grad for parameter in model.parameters())
    with ours.evaluating():  # their model has the weights to use, once the loop has ended
        assert_same(model, ours.model, **(EXACT if name != "float16" else {"rtol": 1e-3, "atol": 1e-4}))


def test_an_evaluation_after_the_last_batch_sees_the_weights_to_use(tmp_path: Path) -> None:
    config = NONE | {"optimizer": {"name": "ScheduleFreeAdamW", "lr": 0.01}}
    accelerator = an_accelerator(BoostedAccelerator, boost=config, epochs=EPOCHS)
    model = trained_by_a_loop_of_theirs(accelerator)
    ours = trained(config, max_grad_norm=0.5)
    accelerator.save_state(str(tmp_path))
    again = an_accelerator(BoostedAccelerator, boost=config, epochs=EPOCHS)
    resumed = trained_by_a_loop_of_theirs(again, folder=tmp_path)
    with accelerator.boosted.evaluating(), again.boosted.evaluating(), ours.evaluating():
        assert_same(model, ours.model, **EXACT)
        assert_same(resumed, ours.model, **EXACT)


RESUMED = NONE | {
    "schedule": {"length": 0.75, "shape": "cosine"}, "batch": {"factor": 2.0},
    "regularization": {"weight_average": "ema"}, "loss_scale": {"kind": "dynamic", "window": 3},
}  # fmt: skip


@pytest.mark.parametrize("until", [5, 8])  # in an epoch, and between two
def test_a_loop_of_theirs_goes_on_with_the_same_bits(until: int, tmp_path: Path) -> None:
    def accelerator() -> Any:
        return an_accelerator(BoostedAccelerator, boost=RESUMED, epochs=EPOCHS)

    whole = trained_by_a_loop_of_theirs(accelerator())
    trained_by_a_loop_of_theirs(accelerator(), until=until, folder=tmp_path)
    assert_same(trained_by_a_loop_of_theirs(accelerator(), folder=tmp_path), whole, **EXACT)


def test_a_loop_of_theirs_hears_of_overflows_norms_and_low_precision() -> None:
    config = NONE | {"amp": {"level": "O2"}, "loss_scale": {"kind": "fixed", "init": 2.0**15}}
    accelerator = an_accelerator(BoostedAccelerator, boost=config, epochs=EPOCHS)
    model, optimizer, loader = accelerator.prepare(*a_task())
    held_out = accelerator.prepare(DataLoader(TensorDataset(torch.zeros(4, 6)), 2))
    assert len(held_out) == 2
    told = []
    for (x, y), factor in zip(loader, (1.0, 1e9, 1.0), strict=False):
        with accelerator.accumulate(model), accelerator.autocast():
            scores = model(x)
            assert scores.dtype is torch.float32
            accelerator.backward(factor * nn.functional.cross_entropy(scores, y))
            norm = accelerator.clip_grad_norm_(model.parameters(), 0.5)
            before = [parameter.clone() for parameter in model.parameters()]
            optimizer.step()
        still = all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
        assert optimizer.step_was_skipped == accelerator.optimizer_step_was_skipped
        told.append((bool(torch.isfinite(norm)), optimizer.step_was_skipped, still))
    assert told == [(False, False, False), (True, True, True), (False, False, False)]


def test_a_loop_of_theirs_is_refused_what_both_would_do() -> None:
    accelerator = an_accelerator(BoostedAccelerator, boost=NONE, epochs=1)
    with pytest.raises(RuntimeError, match=r"in place after accelerator.prepare\(model, optimizer, loader\)"):
        accelerator.backward(torch.zeros(()))
    model, optimizer, loader = a_task()
    with pytest.raises(ValueError, match=r"give a function: BoostedAccelerator\(scheduler=lambda"):
        accelerator.prepare(model, optimizer, loader, torch.optim.lr_scheduler.LambdaLR(optimizer, lambda _: 1.0))
    with pytest.raises(ValueError, match="needs all three in one call"):
        accelerator.prepare(model, optimizer)
    accelerator.prepare(model, optimizer, loader)
    with pytest.raises(TypeError, match="takes a loss alone, got retain_graph"):
        accelerator.backward(torch.zeros((), requires_grad=True), retain_graph=True)
    with pytest.raises(ValueError, match=r"`mixed_precision` is 'fp16'.*leave it out"):
        an_accelerator(BoostedAccelerator, boost=NONE, epochs=1, mixed_precision="fp16").prepare(*a_task())


def test_what_both_would_do_is_refused_with_the_way_out() -> None:
    low = NONE | {"amp": {"level": "O2", "dtype": "bfloat16"}}
    with pytest.raises(ValueError, match=r"`mixed_precision` is 'bf16'.*amp\.level O2.*leave it out"):
        prepare(an_accelerator(mixed_precision="bf16"), low, *a_task(), epochs=1)
    with pytest.raises(ValueError, match=r"`gradient_accumulation_steps` is 2.*leave it at 1"):
        prepare(an_accelerator(gradient_accumulation_steps=2), NONE, *a_task(), epochs=1)
    boosted, _ = prepare(an_accelerator(mixed_precision="bf16"), NONE, *a_task(), epochs=1)
    assert boosted.precision.level == "O0", "today's precision stays where nothing else is chosen"
