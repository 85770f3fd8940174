"""Page-Hinkley: the sum written out, rises told soon, falls and noise not at all."""

from __future__ import annotations

import math

import numpy as np
import pytest

from workbench.online import PageHinkley


def told_at(detector: PageHinkley, values: np.ndarray) -> list[int]:
    return [index for index, value in enumerate(values) if detector.update(float(value))]


def test_it_is_the_sum_less_its_minimum() -> None:
    values = np.random.default_rng(0).normal(size=40).tolist() + [2.0] * 30
    detector = PageHinkley(threshold=8.0, tolerance=0.5, warm_up=20, memory=50.0)
    seen: list[float] = []
    sums = [0.0]
    expected = -1
    mean = variance = 0.0
    for index, value in enumerate(values):
        if index >= 20:
            sums.append(sums[-1] + (value - mean) / math.sqrt(variance) - 0.5)
            if sums[-1] - min(sums) > 8.0:
                expected = index
                break
        seen.append(value)
        weight = max(1 / len(seen), 1 / 50.0)
        variance = (1 - weight) * (variance + weight * (value - mean) ** 2)
        mean += weight * (value - mean)
        if len(seen) <= 50:  # still plain moments
            assert mean == pytest.approx(float(np.mean(seen)))
            assert variance == pytest.approx(float(np.var(seen)))
    assert 40 < expected < 60
    assert told_at(detector, np.array(values))[0] == expected


@pytest.mark.parametrize("seed", range(3))
def test_a_rise_is_told_once_and_soon(seed: int) -> None:
    noise = np.random.default_rng(seed).normal(size=6000)
    learned = 0.6 + 0.3 * np.exp(-np.arange(3000) / 300)  # a loss that falls while the model learns
    after = 0.6 + 0.1 * np.exp(-np.arange(3000) / 500)  # the world changes, and the model recovers
    detector = PageHinkley()
    told = told_at(detector, np.concatenate([learned, after]) + 0.05 * noise)
    assert len(told) == 1
    assert 3000 < told[0] < 3060


@pytest.mark.parametrize("seed", range(3))
def test_noise_and_falls_are_not_told(seed: int) -> None:
    noise = np.random.default_rng(seed).normal(size=20_000)
    assert told_at(PageHinkley(), noise) == []
    assert told_at(PageHinkley(), noise - np.repeat([0, 5], 10_000)) == []


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e9])
def test_the_unit_does_not_matter(scale: float) -> None:
    values = np.random.default_rng(0).normal(size=1000) + np.repeat([3.0, 6.0], 500)
    assert told_at(PageHinkley(), values * scale) == told_at(PageHinkley(), values)


def test_what_is_no_number_is_passed_over() -> None:
    values = np.random.default_rng(0).normal(size=400) + np.repeat([0.0, 3.0], 200)
    detector = PageHinkley()
    assert not detector.update(math.nan)
    assert told_at(detector, values) == told_at(PageHinkley(), values)
    assert not detector.update(math.inf)
    assert told_at(PageHinkley(), np.ones(1000)) == []


def test_the_state_is_all_there_is() -> None:
    values = np.random.default_rng(3).normal(size=900) + np.repeat([0.0, 2.0, 4.0], 300)
    whole = told_at(PageHinkley(), values)
    assert whole
    for cut in (0, 50, 290, 305, 500):
        first, second = PageHinkley(), PageHinkley()
        told = told_at(first, values[:cut])
        second.load_state_dict(first.state_dict())
        assert told + [cut + at for at in told_at(second, values[cut:])] == whole
