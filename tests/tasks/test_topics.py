"""The byte-level transformer: no look-ahead, no evaluation byte in training, float16 that works and that overflows."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.kit.plain_training import trained
from workbench.tasks import load_task
from workbench.tasks.topics import CONTEXT, ByteTransformer, load_text, training_starts


@settings(max_examples=50, deadline=None)
@given(n_bytes=st.integers(1500, 9000), seed=st.integers(0, 100))
def test_no_training_window_touches_the_evaluation_block(n_bytes: int, seed: int) -> None:
    starts, (first, behind) = training_starts(n_bytes, seed)
    assert behind - first == n_bytes // 10
    assert bool(((starts + CONTEXT < first) | (starts >= behind)).all())
    assert starts.min() >= 0
    assert starts.max() + CONTEXT < n_bytes
    assert len(starts) >= n_bytes * 0.9 - 2 * CONTEXT - 1
    assert len(starts.unique()) == len(starts)


def test_ten_seeds_evaluate_on_all_of_the_text() -> None:
    blocks = sorted(training_starts(5000, seed)[1] for seed in range(10, 20))
    assert blocks == [(start, start + 500) for start in range(0, 5000, 500)]


def test_targets_are_the_bytes_that_follow() -> None:
    task = load_task("topics-gpt")
    text = bytes(load_text().tolist())
    for inputs, targets in [next(task.batches(0)), next(iter(task.evaluation_batches(0)))]:
        assert inputs.shape == targets.shape == (len(inputs), CONTEXT)
        assert torch.equal(inputs[:, 1:], targets[:, :-1])
        assert bytes([*inputs[0].tolist(), targets[0, -1].item()]) in text
    assert sum(len(inputs) for inputs, _ in task.evaluation_batches(0)) == 256


def test_a_prediction_sees_no_later_byte() -> None:
    model = ByteTransformer()
    inputs = torch.randint(0, 256, (2, CONTEXT))
    changed = inputs.clone()
    changed[:, 40:] = (changed[:, 40:] + 1) % 256
    before, after = model(inputs), model(changed)
    torch.testing.assert_close(before[:, :40], after[:, :40])
    assert not torch.allclose(before[:, 40:], after[:, 40:])


def test_an_untrained_model_is_near_eight_bits_per_byte() -> None:
    task = load_task("topics-gpt")
    model = task.new_model()
    assert 300_000 < sum(p.numel() for p in model.parameters()) < 800_000
    metric = task.new_metric()
    with torch.no_grad():
        task.update_metric(metric, model, next(iter(task.evaluation_batches(0))))
    assert metric.compute() == pytest.approx(8.0, abs=0.1)
    assert (task.metric_name, task.higher_is_better) == ("bits_per_byte", False)


@pytest.mark.parametrize(("scale", "finite"), [(2.0**12, True), (2.0**24, False)], ids=["2^12", "2^24"])
def test_float16_gradients_are_finite_at_a_sane_scale_and_overflow_at_a_huge_one(scale: float, finite: bool) -> None:
    task = load_task("topics-gpt")
    model = task.new_model()
    inputs, targets = next(task.batches(0))
    batch = inputs[:4], targets[:4]
    with torch.autocast("cpu", dtype=torch.float16):
        assert model(batch[0]).dtype == torch.float16
        loss = task.compute_loss(model, batch)
    (loss * scale).backward()
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    assert len(gradients) == len(list(model.parameters()))
    assert all(bool(gradient.isfinite().all()) for gradient in gradients) is finite
    if finite:  # and they are the float32 gradients, to float16's precision
        half = torch.cat([gradient.flatten() / scale for gradient in gradients])
        model.zero_grad()
        task.compute_loss(model, batch).backward()
        full = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
        assert (half - full).norm() < 0.01 * full.norm()


@pytest.mark.long
def test_300_steps_bring_it_clearly_below_four_bits() -> None:
    assert trained(load_task("topics-gpt"), seed=0, n_steps=300)[1] < 3.8
