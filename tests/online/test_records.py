"""Poisoned records: found, counted, told of, taken out and nothing else, up to a limit."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from tests.kit.callbacks import Kept
from tests.kit.chains import assert_same_bits
from tests.online.recommender import Recommender, new_recommender, stream
from workbench.core.records import EventKind
from workbench.online import RecordLimitError, RecordRules
from workbench.online.record_rules import Verdict, form_of, judge, select_rows
from workbench.online.record_sieve import RecordSieve
from workbench.rec import RecModel


def good(n: int = 4) -> tuple[tuple[Tensor, Tensor], Tensor]:
    return (torch.arange(2 * n).reshape(n, 2), torch.ones(n, 3)), torch.zeros(n)


def with_value(place: str, row: int, value: float) -> Any:
    (ids, numbers), labels = good()
    {"ids": ids, "numbers": numbers, "labels": labels}[place][row] = value
    return (ids, numbers), labels


class Named(NamedTuple):
    x: Tensor
    y: Tensor


RULES = RecordRules(label_range=(0.0, 1.0), id_range=(0, 7), max_abs=1e6)


def judged(batch: Any, rules: RecordRules = RULES, like: Any = None) -> Verdict:
    """Return what is wrong with a batch of a stream whose first one was good."""
    form = form_of(good() if like is None else like)
    return judge(batch, form, rules)


@pytest.mark.parametrize(
    ("batch", "reasons"),
    [
        pytest.param(with_value("numbers", 2, math.nan), {"not finite": 1}, id="nan"),
        pytest.param(with_value("numbers", 0, math.inf), {"not finite": 1}, id="inf"),
        pytest.param(with_value("numbers", 0, -math.inf), {"not finite": 1}, id="minus inf"),
        pytest.param(with_value("numbers", 3, 1e7), {"too large": 1}, id="too large"),
        pytest.param(with_value("labels", 1, -1.0), {"label out of range": 1}, id="negative label"),
        pytest.param(with_value("labels", 1, 2.0), {"label out of range": 1}, id="label above one"),
        pytest.param(with_value("labels", 1, math.nan), {"not finite": 1}, id="no label"),
        pytest.param(with_value("ids", 1, -1), {"id out of range": 1}, id="negative id"),
        pytest.param(with_value("ids", 1, 8), {"id out of range": 1}, id="id beyond the table"),
    ],
)
def test_a_poisoned_record_is_found(batch: Any, reasons: dict[str, int]) -> None:
    verdict = judged(batch)
    assert (verdict.whole, verdict.reasons, verdict.n_records) == ("", reasons, 4)
    assert int(verdict.bad.sum()) == 1


def test_a_number_that_is_a_key_makes_no_label() -> None:
    batch = {0: torch.ones(4, 2), 1: torch.full((4, 2), 7.0)}
    assert judged(batch, like=batch).reasons is None
    assert not judged(batch, like=batch).whole


@pytest.mark.parametrize(
    ("batch", "reason"),
    [
        pytest.param(good()[0], "wrong structure", id="no label"),
        pytest.param((good()[0][0], good()[1]), "wrong structure", id="no numbers"),
        pytest.param([], "wrong structure", id="nothing"),
        pytest.param(None, "wrong structure", id="none"),
        pytest.param(((good()[0][0], torch.ones(4, 2)), torch.zeros(4)), "wrong shape", id="too few numbers"),
        pytest.param(((good()[0][0], torch.ones(4, 3)), torch.tensor(0.0)), "wrong shape", id="scalar label"),
        pytest.param(((good()[0][0], torch.ones(4, 3).double()), torch.zeros(4)), "wrong dtype", id="float64"),
        pytest.param((good()[0], torch.zeros(4).long()), "wrong dtype", id="whole labels"),
        pytest.param((good()[0], torch.zeros(3)), "unequal numbers of rows", id="a label is missing"),
        pytest.param(good(0), "no record", id="empty"),
        pytest.param(((good()[0][0], torch.full((4, 3), math.nan)), torch.zeros(4)), "not finite", id="all nan"),
    ],
)
def test_a_batch_that_is_not_like_the_others_is_rejected_as_a_whole(batch: Any, reason: str) -> None:
    assert judged(batch).whole == reason


@given(
    st.lists(st.sampled_from(["", "nan", "inf", "label"]), min_size=1, max_size=12),
    st.sampled_from([tuple, list, dict, Named]),
)
def test_exactly_the_poisoned_records_are_taken_out(faults: list[str], kind: Any) -> None:
    n = len(faults)
    x, y = torch.arange(3.0 * n).reshape(n, 3), torch.arange(n) / n
    clean = x.clone(), y.clone()
    for row, fault in enumerate(faults):
        if fault == "label":
            y[row] = -1.0
        elif fault:
            x[row, row % 3] = math.nan if fault == "nan" else -math.inf
    told: list[tuple[str, float]] = []
    batch = {"x": x, "label": y} if kind is dict else Named(x, y) if kind is Named else kind((x, y))
    sieve = RecordSieve(RecordRules(label_range=(0, 1)), lambda reason, number, _: told.append((reason, number)))
    kept = sieve.sift(batch)
    stays = [row for row, fault in enumerate(faults) if not fault]
    assert (sieve.accepted, sieve.rejected) == (len(stays), n - len(stays))
    if not stays:
        assert kept is None
        return
    reasons = {"label out of range" if fault == "label" else "not finite" for fault in faults if fault}
    assert {reason for reason, _ in told} == reasons
    assert type(kept) is type(batch)
    got = kept.values() if kind is dict else kept
    assert all(torch.equal(found, column[stays]) for found, column in zip(got, clean, strict=True))
    assert (kept is batch) == (len(stays) == n)


def test_batches_without_common_rows_are_judged_as_a_whole() -> None:
    bag = {"values": torch.ones(7), "offsets": torch.tensor([0, 3]), "label": torch.zeros(2)}
    assert judged({**bag, "values": torch.ones(9)}, like=bag).whole == ""
    assert judged({**bag, "values": torch.full((7,), math.nan)}, like=bag).whole == "not finite"


def test_too_few_good_records_are_none() -> None:
    assert judged(with_value("numbers", 0, math.nan), RecordRules(min_rows=4)).whole == "not finite"
    assert judged(with_value("numbers", 0, math.nan), RecordRules(min_rows=3)).whole == ""


def test_a_sum_that_overflows_is_no_fault() -> None:
    large, label = torch.full((2, 1), 3e38), torch.ones(2)
    assert judged((large, label), RecordRules(), like=(label[:, None], label)).bad is None


def test_rows_are_selected_in_nested_containers() -> None:
    selected = select_rows({"a": [torch.arange(3)], "b": "text"}, torch.tensor([True, False, True]))
    assert selected["b"] == "text"
    assert selected["a"][0].tolist() == [0, 2]


def test_events_come_at_most_once_in_a_while_and_nothing_is_lost() -> None:
    now, told = 0.0, list[tuple[str, float, str]]()
    sieve = RecordSieve(RecordRules(report_seconds=10), lambda *event: told.append(event), clock=lambda: now)
    for second in range(100):
        now = float(second)
        sieve.sift(with_value("numbers", 0, math.nan) if second else good())
    assert [number for _, number, _ in told] == [1, 11, 21, 31, 41, 51, 61, 71, 81, 91]
    assert told[1][2] == "11 records rejected so far: not finite"
    assert sieve.reasons == {"not finite": 99}


def test_a_share_that_is_too_much_is_an_error_that_says_what_was_wrong() -> None:
    sieve = RecordSieve(RecordRules(limit_share=0.2, limit_window=100), lambda *_: None)
    for _ in range(500):
        sieve.sift(good())
    for _ in range(20):
        sieve.sift(with_value("numbers", 0, math.nan))
    with pytest.raises(RecordLimitError, match=r"21 of the last 100 records were rejected \(21 not finite\)"):
        sieve.sift(with_value("numbers", 0, math.nan))


def test_a_number_that_is_too_much_is_an_error() -> None:
    sieve = RecordSieve(RecordRules(limit_count=2), lambda *_: None)
    for _ in range(2):
        sieve.sift(with_value("numbers", 0, math.nan))
    with pytest.raises(RecordLimitError, match=r"3 records were rejected .* `limit_count` is 2"):
        sieve.sift(with_value("numbers", 0, math.nan))


def test_a_short_streak_is_survived() -> None:
    sieve = RecordSieve(RecordRules(limit_share=0.1, limit_window=1000), lambda *_: None)
    for _ in range(249):
        assert sieve.sift(None if sieve.accepted else good()) is None or sieve.accepted == 4


def test_the_counts_go_on_from_their_state() -> None:
    rules = RecordRules(limit_share=0.3, limit_window=40)
    one = RecordSieve(rules, lambda *_: None)
    batches = [good()] * 10 + [with_value("numbers", 0, math.nan)] * 9 + [good(), None] * 40
    for number, batch in enumerate(batches):
        one.sift(batch)
        if number == 13:
            other = RecordSieve(rules, lambda *_: None)
            other.load_state_dict(one.state_dict())
        elif number > 13:
            other.sift(batch)
    assert other.state_dict() == one.state_dict()


# The whole way through training


def poisoned(n: int) -> Iterator[Any]:
    """Yield a stream in which every kind of poison comes once in a while, the clean records unchanged."""
    for number, ((ids, numbers), labels) in enumerate(stream(seed=1, start=0, n=n)):
        if number % 7 == 1:
            bad = numbers[:1].clone()
            bad[0, 0] = math.nan
            yield (torch.cat([ids, ids[:1]]), torch.cat([numbers, bad])), torch.cat([labels, labels[:1]])
            continue
        if number % 7 == 3:
            yield (ids, numbers[:, :1]), labels
        if number % 7 == 4:
            yield (ids, numbers), labels[1:]
        if number % 7 == 5:
            yield "a line that is no record"
        if number % 7 == 6:
            yield (ids + 10**9, numbers), labels  # the embedding table has no such row
        yield (ids, numbers), labels


def test_training_on_a_poisoned_stream_has_the_bits_of_training_on_the_clean_one() -> None:
    clean = new_recommender()
    clean.online_train(stream(seed=1, start=0, n=60))
    hurt, kept = new_recommender(), Kept()
    summary = hurt.online_train(poisoned(60), recorder=kept)
    assert (summary.n_steps, summary.n_records) == (60, 60 * 16)
    assert summary.n_rejected == 9 + 9 * 16 + 8 * 16 + 8 + 8 * 16
    assert_same_bits(clean.predict_network, hurt.predict_network)
    of_the_batch = {"wrong shape", "unequal numbers of rows", "wrong structure", "the network raised IndexError"}
    assert {event.subject for event in kept.events} == {"not finite"} | of_the_batch
    assert all(event.kind is EventKind.RECORD_REJECTED for event in kept.events)
    assert [record.step for record in kept.records] == list(range(60))
    assert [record.samples for record in kept.records] == [16] * 60
    rejected = [record.columns["online.rejected"] for record in kept.records]
    assert rejected == sorted(rejected)
    assert kept.events[0].message.startswith("step ")


def test_a_first_batch_that_is_wrong_does_not_set_the_form() -> None:
    batches = list(stream(seed=1, start=0, n=5))
    (ids, numbers), labels = batches[0]
    model, clean = new_recommender(), new_recommender()
    torch.manual_seed(6)
    assert model.online_train(iter([((ids, numbers[:, :1]), labels), *batches])).n_steps == 5
    torch.manual_seed(6)
    clean.online_train(iter(batches))
    assert_same_bits(clean.predict_network, model.predict_network)


def test_a_stream_that_is_mostly_poison_ends_with_a_sentence() -> None:
    def spoiled() -> Iterator[Any]:
        yield from stream(seed=1, start=0, n=10)
        while True:
            yield (torch.zeros(16, 4, dtype=torch.int64), torch.full((16, 3), math.nan)), torch.zeros(16)

    with pytest.raises(RecordLimitError, match=r"of the last .* records were rejected"):
        new_recommender().online_train(spoiled())


def test_an_error_of_the_criterion_is_not_taken_for_poison_for_ever() -> None:
    def criterion(prediction: Tensor, label: Tensor) -> Tensor:
        raise ValueError("a mistake in the program")

    network = Recommender()
    model = RecModel(network, criterion, torch.optim.SGD(network.parameters(), lr=0.1))
    with pytest.raises(ValueError, match="a mistake in the program"):
        model.online_train(stream(seed=1, start=0, n=20))
