"""What a trial costs beside its training does not depend on how many trials have ended; counted, never timed."""

from __future__ import annotations

import copy
import functools
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import optuna
import pytest
from optuna.storages import RDBStorage
from optuna.trial import TrialState
from sqlalchemy import Engine, event

from tests.kit.fake_runner import STUDY, make_fake, write_study
from workbench.study import TuneProgress, tune
from workbench.study.answer import notes, selection, status_keeper
from workbench.study.ask.study_file import read_study
from workbench.study.run import objective
from workbench.study.run.job import UNMONITORED, Job, Monitor, SpeedJob, SpeedMeasured, Trained
from workbench.study.run.objective import Baseline, Objective
from workbench.study.run.progress import StudyWatch
from workbench.study.store import liveness, stored_records, study_storage
from workbench.study.store.ended_trials import EndedTrials
from workbench.study.store.storage import default_storage, find_study, open_storage

SAME = """
[study]
task = "nothing"
budget_steps = 100
evaluate_every = 50
n_trials = 32

[sampler]
name = "random"

[space]
"boost.grad_freeze" = [true]
"grad_freeze.freeze_p" = { low = 0.4, high = 0.9 }

[confirm]
enabled = false
"""


class Nothing:
    """Trains nothing, so that every trial asks the database for the same."""

    metric_name, higher_is_better, data_hash = "accuracy", True, ""

    def environment(self) -> dict[str, Any]:
        return {}

    def network_facts(self) -> None:
        return None

    def run(self, job: Job[Any], monitor: Monitor = UNMONITORED) -> Any:
        if isinstance(job, SpeedJob):
            ratio = 1.0 - 0.5 * (1.0 - job.candidate[0].grad_freeze.freeze_p)
            return SpeedMeasured(ratio, ratio * 0.98, ratio * 1.02)
        return Trained(0.9, ((50, 0.8), (100, 0.9)), 0.01, steps=100)


@pytest.fixture
def done(monkeypatch: pytest.MonkeyPatch) -> Iterator[Counter[str]]:
    """Count what is asked of the database and made of its answers; what is due by the clock is done once at most."""
    counts = Counter[str]()

    def counting(owner: Any, name: str) -> None:
        method: Callable[..., Any] = getattr(owner, name)

        def counted(*args: Any, **options: Any) -> Any:
            counts[name] += 1
            return method(*args, **options)

        monkeypatch.setattr(owner, name, counted)

    for owner, name in [
        (RDBStorage, "_build_frozen_trial_from_trial_model"),
        (stored_records, "_record"),
        (objective, "score"),
        (objective, "_measured"),
        (objective, "_place_as_twin"),
        (selection, "plan_of"),
    ]:
        counting(owner, name)
    for clock in (
        (notes, "_EVERY_SECONDS"),
        (status_keeper, "_LEAST_SECONDS"),
        (liveness, "_LOOK_SECONDS"),
        (study_storage, "FRESH_SECONDS"),
    ):
        monkeypatch.setattr(*clock, 1e9)

    def statement(*_: Any) -> None:
        counts["statements"] += 1

    event.listen(Engine, "before_cursor_execute", statement)
    yield counts
    event.remove(Engine, "before_cursor_execute", statement)


@pytest.mark.slow
def test_a_later_trial_reads_and_scores_as_much_as_an_earlier_one(tmp_path: Path, done: Counter[str]) -> None:
    by_trial: dict[int, Counter[str]] = {}

    def look(now: TuneProgress) -> None:
        by_trial[now.trials] = Counter(done)

    tune(write_study(tmp_path, SAME), on_progress=look, make_experimenter=lambda file, directory: Nothing())
    early, late = (Counter(by_trial[n + 1]) - by_trial[n] for n in (12, 30))
    assert early["statements"] > 10
    assert early.keys() >= {"_build_frozen_trial_from_trial_model", "_record", "_measured", "plan_of", "score"}
    assert late == early


def test_a_trial_that_has_ended_is_handed_out_once_and_one_that_ends_later_later() -> None:
    study = optuna.create_study()
    ended, complete = EndedTrials(), EndedTrials([TrialState.COMPLETE])

    def numbers(of: EndedTrials) -> list[int]:
        return [trial.number for trial in of.new(study.get_trials(deepcopy=False))]

    first, second, third = study.ask(), study.ask(), study.ask()
    study.tell(second, 1.0)
    assert numbers(ended) == [1]
    assert not numbers(ended)
    study.tell(third, state=TrialState.FAIL)
    study.tell(first, 2.0)
    assert numbers(ended) == [0, 2]
    assert numbers(complete) == [0, 1]
    study.tell(study.ask(), 0.5)
    assert numbers(ended) == numbers(complete) == [3]
    assert not numbers(ended)


@pytest.mark.parametrize("asked", ["time_to_target", pytest.param("pareto", marks=pytest.mark.long)])
def test_what_is_known_trial_by_trial_is_what_all_trials_say_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked: str
) -> None:
    text = STUDY.replace("time_to_target", asked).replace("n_trials = 10", "n_trials = 13")
    text = text.replace("[confirm]", '[sampler]\nname = "random"\n[confirm]\nenabled = false')
    directory = write_study(tmp_path / "s", text)
    file, pairs, leaders, seen = read_study(directory), list[tuple[Any, Any]](), set[str](), {0}
    limits_of = Objective._limits

    @functools.cache
    def study_of() -> optuna.Study:
        return find_study(open_storage(default_storage(directory)), file.study.name)

    def limits_both_ways(self: Objective, baseline: Baseline) -> dict[float, float]:
        anew = copy.copy(self)
        anew._unscored = EndedTrials([TrialState.COMPLETE])
        anew._allowed_values, anew._baseline_values = {}, {}
        found = limits_of(self, baseline)
        pairs.append((found, limits_of(anew, baseline)))
        return found

    def look(now: TuneProgress) -> None:
        if now.phase == "search" and now.trials not in seen:
            seen.add(now.trials)
            at_once: list[TuneProgress] = []
            StudyWatch(study_of(), file, 13, on_progress=at_once.append).trial_finished()
            pairs.append(((now.best, now.trials), (at_once[-1].best, at_once[-1].trials)))
            leaders.add(now.best)

    monkeypatch.setattr(Objective, "_limits", limits_both_ways)
    tune(directory, on_progress=look, make_experimenter=make_fake)
    assert [one for one, _ in pairs] == [other for _, other in pairs]
    assert len(leaders - {""}) > 1
