"""Confirmation trains pairs, shares runs between exports, stops when a verdict is in and goes on to the next."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import optuna
import pytest

from tests.tuning.fake_experimenter import STUDY, FakeExperimenter, calls
from workbench.config import BoostConfig
from workbench.records import CandidateRecord, TrialRecord, Verdict
from workbench.tuning.confirming import Confirmation, Contender, confirmation_seeds
from workbench.tuning.experimenter import SpeedMeasured, Trained
from workbench.tuning.study_file import parse_study
from workbench.tuning.warm_up import WarmUps

FILE = parse_study(STUDY)


class Scripted(FakeExperimenter):
    """O0 reaches 0.9 on every seed; a plan with freeze_p loses its drop, alternating by noise."""

    def __init__(self, directory: Path, drops: dict[float, float], noise: float = 0.0) -> None:
        super().__init__(directory)
        self.drops = drops
        self.noise = noise

    def train(self, config: BoostConfig, level: str, **options: Any) -> Trained:
        seed = options["seed"]
        drop = self.drops[config.grad_freeze.freeze_p] if config.resolve(level).grad_freeze else 0.0
        self.log(f"trained {config.grad_freeze.freeze_p if drop or drop != drop else 'O0'} {seed}")
        noise = self.noise * (1 if seed % 2 else -1) if drop else 0.0
        return Trained(0.9 - drop + noise, ((100, 0.9),), 2.0, diverged=math.isnan(drop))


def contender(number: int, freeze_p: float, target: str = "o1", allowed: float = 0.02) -> Contender:
    config = BoostConfig.from_dict(
        {"boost": {"mode": "manual", "less_bn": False, "grad_freeze": True}, "grad_freeze": {"freeze_p": freeze_p}}
    )
    record = TrialRecord(number, "complete", relative_step_time=0.8, relative_low=0.7, relative_high=0.9)
    return Contender(record, target, config, config.resolve("O1"), allowed)


def judge(
    experimenter: FakeExperimenter, pool: Sequence[Contender], study: optuna.Study | None = None, **options: Any
) -> list[CandidateRecord]:
    study = study or optuna.create_study()
    pools: dict[str, list[Contender]] = {"o1": [], "o2": []}
    for one in pool:
        pools[one.target].append(one)
    warm_ups = WarmUps(FILE, experimenter.directory, experimenter)
    return Confirmation(study, FILE, experimenter, warm_ups, **options).judge(pools)


def test_seeds_differ_from_the_search_s() -> None:
    assert FILE.study.seed not in confirmation_seeds(FILE.study.seed, 20)


def test_a_clear_case_stops_at_the_first_look(tmp_path: Path) -> None:
    (record,) = judge(Scripted(tmp_path, {0.5: 0.001}), [contender(1, 0.5)])
    assert record.verdict is Verdict.CONFIRMED
    assert record.n_seeds == 3
    assert len(record.metrics) == 3
    assert record.speedup == pytest.approx(1.0 / 0.75, rel=0.2)


def test_a_speed_up_whose_interval_holds_one_is_not_claimed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wide = SpeedMeasured(ratio=0.94, low=0.73, high=1.6)
    monkeypatch.setattr(Scripted, "speed", lambda self, *sides, **options: wide)
    (record,) = judge(Scripted(tmp_path, {0.5: 0.001}), [contender(1, 0.5)])
    assert "A step is not clearly faster or slower than O0's: 1.06 x" in record.sentence
    assert "95 % interval of the speed-up 0.62 to 1.37" in record.sentence


def test_an_open_case_takes_all_seeds_and_says_how_many_more(tmp_path: Path) -> None:
    experimenter = Scripted(tmp_path, {0.5: 0.015}, noise=0.02)
    (record,) = judge(experimenter, [contender(1, 0.5)], command="workbench tune s --confirm-seeds {seeds}")
    assert record.verdict is Verdict.UNDECIDED
    assert record.n_seeds == 6
    assert "more seeds would decide (" in record.sentence
    assert "workbench tune s --confirm-seeds " in record.sentence


def test_seeds_that_are_added_do_not_seem_to_begin_anew(tmp_path: Path) -> None:
    told: list[tuple[int, int]] = []
    experimenter = Scripted(tmp_path, {0.5: 0.015}, noise=0.02)
    judge(experimenter, [contender(1, 0.5)], on_run=lambda done, planned: told.append((done, planned)))
    assert [done for done, _ in told] == sorted(done for done, _ in told)
    assert told[0] == (0, 6)  # three seeds of O0 and one candidate
    assert told[-1] == (12, 12)
    assert all(done <= planned for done, planned in told)


def test_a_plan_that_competes_for_both_exports_is_trained_once(tmp_path: Path) -> None:
    pool = [contender(1, 0.5), contender(1, 0.5, "o2", 0.05)]
    records = judge(Scripted(tmp_path, {0.5: 0.001}), pool)
    assert [record.target for record in records] == ["o1", "o2"]
    assert sum(line.startswith("trained 0.5") for line in calls(tmp_path)) == 3


def test_when_all_are_refuted_the_next_are_tried(tmp_path: Path) -> None:
    drops = {0.1: 0.5, 0.2: 0.4, 0.3: math.nan, 0.5: 0.001, 0.6: 0.001}
    pool = [contender(number, freeze_p) for number, freeze_p in enumerate(drops, start=1)]
    records = judge(Scripted(tmp_path, drops), pool)
    refuted, confirmed = Verdict.REFUTED, Verdict.CONFIRMED
    assert [record.verdict for record in records] == [refuted, refuted, refuted, confirmed]
    assert sum(line.startswith("trained 0.3") for line in calls(tmp_path)) == 1  # one divergence is enough


def test_a_slower_contender_gets_no_more_seeds_once_a_faster_one_is_confirmed(tmp_path: Path) -> None:
    experimenter = Scripted(tmp_path, {0.3: 0.001, 0.5: 0.0185})
    experimenter.noise = 0.003
    records = judge(experimenter, [contender(1, 0.3), contender(2, 0.5)])
    assert records[0].verdict is Verdict.CONFIRMED
    assert records[1].verdict is Verdict.UNDECIDED
    assert records[1].n_seeds == records[0].n_seeds == 3


def test_finished_runs_are_used_again_by_the_next_command(tmp_path: Path) -> None:
    study = optuna.create_study()
    experimenter = Scripted(tmp_path, {0.5: 0.001})
    first = judge(experimenter, [contender(1, 0.5)], study)
    before = calls(tmp_path)
    assert judge(experimenter, [contender(1, 0.5)], study) == first
    assert calls(tmp_path) == before


def test_without_time_nothing_is_run_and_the_verdict_is_open(tmp_path: Path) -> None:
    (record,) = judge(Scripted(tmp_path, {0.5: 0.0}), [contender(1, 0.5)], deadline=0.0)
    assert record.verdict is Verdict.UNDECIDED
    assert record.n_seeds == 0
    assert calls(tmp_path) == []
    assert record.speedup == pytest.approx(1.25)  # the search's own measurement
