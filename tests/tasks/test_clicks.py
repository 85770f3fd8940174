"""The click stream: the same record at the same place, the law that is told, drift that can be seen."""

from __future__ import annotations

import math
from itertools import islice
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from workbench.core.metrics import new_accumulator
from workbench.optim.embeddings.mixing import mix64_number
from workbench.tasks import load_task
from workbench.tasks.click_law import FIELD_SHIFT, ClickLaw
from workbench.tasks.clicks import ClickBatch, ClickModel, click_stream


def auroc(scores: Any, clicks: Any) -> float:
    metric = new_accumulator("auroc", nn.BCEWithLogitsLoss())
    metric.update(torch.as_tensor(scores), (None, torch.as_tensor(clicks)))
    return metric.compute()


def same(one: ClickBatch, other: ClickBatch) -> bool:
    pairs = zip((*one[0], one[1]), (*other[0], other[1]), strict=True)
    return all(torch.equal(mine.nan_to_num(9.0), theirs.nan_to_num(9.0)) for mine, theirs in pairs)


@settings(deadline=None, max_examples=8)
@given(seed=st.integers(0, 2**40), start=st.integers(0, 10**9), skip=st.integers(0, 150), size=st.integers(1, 100))
def test_a_stream_opened_anywhere_continues_itself(seed: int, start: int, skip: int, size: int) -> None:
    def opened(at: int) -> Any:
        return click_stream(seed, at, size, poison=0.1, misshapen=0.1)

    there = next(islice(opened(start), skip, None))
    assert same(there, next(opened(start + skip)))


def test_a_record_is_a_function_of_seed_and_place_alone() -> None:
    law = ClickLaw(seed=5)
    whole = law.records(np.arange(1000, 1400))
    picked = np.array([1399, 1000, 1250])
    some = law.records(picked)
    for column in (0, 1, 2):
        assert np.array_equal(some[column], whole[column][picked - 1000])
    assert not np.array_equal(ClickLaw(seed=6).records(picked)[0], law.records(picked)[0])


def test_the_chance_of_a_click_is_the_documented_formula() -> None:
    law = ClickLaw(seed=3, n_fields=4, n_numbers=2, drift_every=1000, slow_period=7000, bias=0.3, strength=1.5)

    def drawn(key: int, which: int) -> float:
        bits = mix64_number(key, (3 << 32) + which)
        parts = [(bits >> shift) & 0xFFFF for shift in (0, 16, 32, 48)]
        return (sum(parts) - 2 * 65535) / math.sqrt((65536**2 - 1) / 3)

    def weight(key: int, place: int) -> float:
        turn = 2 * math.pi * place / 7000
        slow = math.cos(turn) * drawn(key, 101) + math.sin(turn) * drawn(key, 102)
        return (slow + drawn(key, 1000 + place // 1000)) * math.sqrt(0.5)

    for place in (0, 999, 1000, 5432):
        ids, numbers, _ = law.records(np.array([place]))
        total = sum(weight(int(i), place) for i in ids[0])
        for a, b in ((0, 1), (2, 3)):
            total += sum(drawn(int(ids[0, a]), 301 + k) * drawn(int(ids[0, b]), 301 + k) for k in range(2))
        total += sum(weight(-1 - k, place) * float(numbers[0, k]) for k in range(2))
        expected = 1 / (1 + math.exp(-(0.3 + 1.5 / math.sqrt(4 + 4 + 2) * total)))
        assert law.probabilities(np.array([place]))[0] == pytest.approx(expected, rel=1e-6)


def test_clicks_come_with_their_chance() -> None:
    law, places = ClickLaw(seed=1), np.arange(40_000)
    chances, (_, numbers, clicks) = law.probabilities(places), law.records(places)
    order = np.argsort(chances)
    for part in np.split(order, 10):
        error = math.sqrt(chances[part].mean() * (1 - chances[part].mean()) / len(part))
        assert abs(clicks[part].mean() - chances[part].mean()) < 4 * error
    assert abs(numbers.mean()) < 0.02
    assert numbers.std() == pytest.approx(1.0, abs=0.01)
    assert auroc(chances, clicks) > 0.8


def test_ids_follow_zipfs_law_on_a_vocabulary_that_grows() -> None:
    law = ClickLaw(vocabulary=100, growth_interval=10, birth_interval=10)
    for start, size in ((0, 100), (100_000, 10_100)):
        places = np.arange(start, start + 20_000)
        ids = law.records(places)[0]
        assert (ids >> FIELD_SHIFT == np.arange(8)).all()
        ranks = (ids & ((1 << FIELD_SHIFT) - 1))[:, 0]
        assert ranks.max() < size + 2000
        expected = math.log(2) / math.log(size + 1000)  # of rank 0, at the middle of the stretch
        assert (ranks == 0).mean() == pytest.approx(expected, rel=0.1)


def test_items_are_born_and_forgotten() -> None:
    law = ClickLaw(vocabulary=50, birth_interval=20)
    early, late = (set(law.records(np.arange(s, s + 1000))[0][:, 1].tolist()) for s in (0, 3000))
    assert not early & late


def test_numbers_of_different_uses_are_independent() -> None:
    law, places = ClickLaw(n_fields=64, n_numbers=64), np.arange(4000)
    columns = np.concatenate([law.draws(places, *of) for of in (("id", 64), ("number", 64), ("label", 2))], axis=1)
    correlations = np.corrcoef(columns.T) - np.eye(130)
    assert np.abs(correlations).max() < 5.5 / math.sqrt(4000)
    assert not set(law.draws(places[:9], "label", 1).ravel()) & set(law.draws(places[:9], "poison", 3).ravel())


def test_poison_is_as_much_as_asked_for_and_nothing_else_changes() -> None:
    clean = list(islice(click_stream(2), 300))
    poisoned = list(islice(click_stream(2, poison=0.03, misshapen=0.1), 300))
    kinds = {"nan": 0, "inf": 0, "label": 0, "shape": 0}
    for ((ids, numbers), labels), ((bad_ids, bad_numbers), bad_labels) in zip(clean, poisoned, strict=True):
        assert torch.equal(ids, bad_ids)
        if bad_numbers.shape[1] == 3:
            kinds["shape"] += 1
            continue
        nan, inf, label = bad_numbers.isnan().any(1), bad_numbers.isinf().any(1), bad_labels == -1
        good = ~(nan | inf | label)
        for kind, rows in (("nan", nan), ("inf", inf), ("label", label)):
            kinds[kind] += int(rows.sum())
        assert torch.equal(numbers[good], bad_numbers[good])
        assert torch.equal(labels[good], bad_labels[good])
    assert kinds["shape"] == pytest.approx(30, abs=16)
    for kind in ("nan", "inf", "label"):
        assert kinds[kind] == pytest.approx(0.01 * 270 * 64, rel=0.35)


def learned(model: ClickModel, optimizer: torch.optim.Optimizer, stream: Any, n_batches: int) -> None:
    loss = nn.BCEWithLogitsLoss()
    for features, clicks in islice(stream, n_batches):
        loss(model(features), clicks).backward()
        optimizer.step()
        optimizer.zero_grad()


def judged(model: ClickModel, law: ClickLaw, start: int) -> float:
    (ids, numbers), clicks = next(click_stream(0, start // 8192, 8192, law=law))
    model.eval()
    with torch.no_grad():
        found = auroc(model((ids, numbers)), clicks)
    model.train()
    return found


@pytest.mark.long
def test_a_frozen_model_loses_at_a_drift_what_the_stream_taught_it() -> None:
    law = ClickLaw(seed=0, vocabulary=20, birth_interval=100_000, drift_every=65_536, slow_period=None)
    task = load_task("clicks")
    torch.manual_seed(0)
    model = ClickModel(n_rows=1024, dim=8, width=32)
    optimizer = task.new_optimizer(model)
    learned(model, optimizer, click_stream(0, 0, 128, law=law), 448)
    before, after = judged(model, law, 57_344), judged(model, law, 65_536)
    assert before > 0.74
    assert after < before - 0.05
    learned(model, optimizer, click_stream(0, 576, 128, law=law), 400)
    assert judged(model, law, 122_880) > after + 0.04


def test_the_task_evaluates_on_what_follows_its_training_records() -> None:
    task = load_task("clicks")
    kept = list(task.evaluation_batches(0))
    assert sum(len(labels) for _, labels in kept) == 16_384
    assert same(kept[0], next(click_stream(0, 125, 1024)))
    stream = task.batches(0, start=1999)
    assert same(next(stream), next(click_stream(0, 1999)))
    assert same(next(stream), next(click_stream(0, 0)))
    assert (task.metric_name, task.higher_is_better) == ("auroc", True)


def test_the_model_sees_pairs_as_a_factorization_machine_does() -> None:
    model = ClickModel(n_fields=3, n_numbers=1, n_rows=16, dim=2, width=2)
    ids, numbers = torch.tensor([[1, 2, 3]]), torch.ones(1, 1)
    logit = model((ids, numbers))
    a, b, c = model.table(ids)[0]
    hidden = model.relu(model.hidden(torch.cat([a, b, c, numbers[0]])))
    torch.testing.assert_close(logit[0], model.out(hidden)[0] + a @ b + a @ c + b @ c)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"n_fields": 65}, r"`n_fields` and `n_numbers` must lie in \[1, 64\]"),
        ({"vocabulary": 1}, "`vocabulary` must be at least 2, got 1"),
        ({"drift_every": 0}, "`drift_every` must be at least 1"),
        ({"strength": float("nan")}, "`strength` must be at least 0"),
    ],
)
def test_a_law_that_cannot_be_is_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        ClickLaw(**options)


@pytest.mark.parametrize("options", [{"start": -1}, {"batch_size": 0}, {"poison": 1.5}, {"misshapen": float("nan")}])
def test_a_stream_that_cannot_be_is_refused_at_once(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"`{next(iter(options))}`"):
        click_stream(0, **options)
