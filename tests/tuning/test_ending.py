"""When a search ends: device-hours, patience, an exhausted grid; and that status says which."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

import optuna
import pytest
from optuna.trial import TrialState, create_trial

from tests.kit.fake_runner import STUDY, FakeRunner, calls, tuned, write_study
from workbench.study import parse_study, read_result, tune
from workbench.study.run.ending import SearchEnd, device_hours, trials_without_gain
from workbench.study.run.job import UNMONITORED, Job, Monitor, TrainJob

NO_CONFIRMATION = STUDY.replace("[confirm]", "[confirm]\nenabled = false")


def ended(value: float, *, seconds: float = 1.0, allowed: bool = True, state: TrialState = TrialState.COMPLETE) -> Any:
    value_of = None if state == TrialState.FAIL else value
    trial = create_trial(state=state, value=value_of, constraints={"metric_deficit": -0.1 if allowed else 0.1})
    trial.datetime_start = datetime.datetime(2026, 1, 1)
    trial.datetime_complete = trial.datetime_start + datetime.timedelta(seconds=seconds)
    return trial


def study_of(*trials: Any, directions: int = 1) -> optuna.Study:
    study = optuna.create_study(directions=["minimize"] * directions)
    study.add_trials(trials)
    return study


@pytest.mark.parametrize(
    ("trials", "idle"),
    [
        ([5.0], 0),
        ([5.0, 6.0, 5.0], 2),
        ([5.0, 6.0, 4.0], 0),
        ([5.0, 4.0, (1.0, "refused"), 4.5], 2),
        ([5.0, 4.0, (1.0, "pruned"), (1.0, "failed"), (1.0, "repeat")], 1),
    ],
)
def test_trials_without_gain_count_finished_ones_that_are_no_better_and_allowed(trials: list[Any], idle: int) -> None:
    stored = []
    for trial in trials:
        value, kind = trial if isinstance(trial, tuple) else (trial, "")
        states = {"pruned": TrialState.PRUNED, "failed": TrialState.FAIL}
        one = ended(value, allowed=kind != "refused", state=states.get(kind, TrialState.COMPLETE))
        if kind == "repeat":
            one.set_user_attr("repeats", 0)
        stored.append(one)
    assert trials_without_gain(study_of(*stored)) == idle


def test_with_two_objectives_a_gain_is_beyond_o0_and_all_gains_before() -> None:
    def both(metric: float, time: float) -> Any:
        return create_trial(values=[metric, time], constraints={"metric_deficit": -0.1})

    baseline = create_trial(values=[1.0, 1.0], constraints={"metric_deficit": -0.1}, user_attrs={"baseline": True})
    front = [baseline, both(1.0, 0.9), both(1.02, 0.8)]
    study = study_of(*front, directions=2)
    study.set_user_attr("allowed_drops", {"o1": 0.05, "o2": 0.1})
    assert trials_without_gain(study) == 0
    study.add_trial(both(1.03, 0.85))  # worse than the last in both
    study.add_trial(both(1.2, 0.1))  # beyond what is allowed
    assert trials_without_gain(study) == 2
    study.add_trial(both(0.9, 0.95))
    assert trials_without_gain(study) == 0


def test_device_hours_add_up_over_trials_and_ranks_and_survive_a_clock_set_back() -> None:
    trials = [ended(1.0, seconds=3600), ended(1.0, seconds=1800, state=TrialState.FAIL), ended(1.0, seconds=-600)]
    assert device_hours(trials, ranks=1) == pytest.approx(1.5)
    assert device_hours(trials, ranks=4) == pytest.approx(6.0)
    running = create_trial(state=TrialState.RUNNING)
    running.datetime_start = datetime.datetime.now() - datetime.timedelta(hours=2)
    assert device_hours([*trials, running], ranks=1) == pytest.approx(3.5, abs=0.01)


@pytest.mark.parametrize(
    ("keys", "sentence"),
    [
        ("device_hours = 0.5", "because it has used 1 of 0.5 device-hours; 2 of 10 trials had finished."),
        ("patience = 1", "because 1 trials in a row found nothing better (`study.patience` is 1); 2 of 10"),
        ("n_trials = 2", "with all 2 trials."),
        ("device_hours = 2.0\npatience = 5", ""),
    ],
)
def test_whichever_limit_comes_first_ends_the_search_and_is_named(keys: str, sentence: str) -> None:
    text = STUDY.replace("n_trials = 10\n", "") if "n_trials" in keys else STUDY
    file = parse_study(text.replace("[study]\n", f"[study]\n{keys}\n"))
    study = study_of(ended(1.0, seconds=1800), ended(2.0, seconds=1800))
    reason = SearchEnd(study, file, file.study.n_trials).reason(study.get_trials())
    assert sentence in reason
    assert bool(sentence) == bool(reason)


def test_given_set_ups_are_counted_beside_the_trials() -> None:
    given = ended(1.0)
    given.set_user_attr("given", {"batch.factor": 2.0})
    file = parse_study(STUDY)
    study = study_of(ended(1.0), given)
    sentence = SearchEnd(study, file, 10).out_of_time(study.get_trials())
    assert "; 1 of 10 trials had finished, besides 1 that the search does not choose, such as tuned plain." in sentence


@pytest.mark.parametrize(
    ("kind", "is_drawn", "sentence"),
    [
        ("repeats", True, "because nearly every draw repeated a trial; 1 of 2 trials"),
        ("skipped", True, "because nearly no draw could be faster than the leader; 1 of 2 trials"),
        ("repeats", False, ""),
        ("given", False, ""),
    ],
)
def test_a_search_that_draws_in_vain_ends_and_says_how(kind: str, is_drawn: bool, sentence: str) -> None:
    study = study_of(ended(1.0))
    for at in range(6):
        assert SearchEnd(study, parse_study(STUDY), 2).reason(study.get_trials()) == "", f"after {at}"
        trial = ended(1.0)
        for name in {kind} if is_drawn else {kind, "given"}:
            trial.set_user_attr(name, 0)
        study.add_trial(trial)
    reason = SearchEnd(study, parse_study(STUDY), 2).reason(study.get_trials())
    assert sentence in reason
    assert bool(sentence) == bool(reason)


@pytest.mark.slow
def test_a_study_that_finds_nothing_better_ends_early_and_goes_on_with_more_patience(tmp_path: Path) -> None:
    text = NO_CONFIRMATION.replace("n_trials = 10", "n_trials = 30\npatience = 2")
    result = tuned(tmp_path, text)
    finished = [trial for trial in result.trials if trial.seconds > 0.0]
    assert len(finished) < 30
    assert min(trial.value for trial in finished if trial.feasible) not in [one.value for one in finished[-2:]]
    told = [one for one in result.messages if "`study.patience` is 2" in one]
    assert told
    assert told[0] in read_result(tmp_path).messages
    before = len(calls(tmp_path))
    assert len(tuned(tmp_path, text.replace("patience = 2", "patience = 4")).trials) > len(result.trials)
    assert len(calls(tmp_path)) > before


@pytest.mark.slow
def test_a_grid_ends_the_search_when_every_point_was_tried(tmp_path: Path) -> None:
    text = NO_CONFIRMATION.replace(
        '"grad_freeze.freeze_p" = { low = 0.3, high = 0.9 }', '"grad_freeze.freeze_p" = [0.7]'
    )
    text = text.replace('"boost.less_bn" = [false, true]\n', "").replace('["O0", "O1", "O2"]', '["O1"]')
    result = tuned(tmp_path, text + '\n[sampler]\nname = "grid"\n')
    assert len(result.trials) == 1 + 3  # O0; no freezing and both of its types
    assert any("every point of the grid has been tried" in message for message in read_result(tmp_path).messages)


class Impatient(FakeRunner):
    """Is interrupted in the last of four trainings."""

    def run(self, job: Job[Any], monitor: Monitor = UNMONITORED) -> Any:
        if isinstance(job, TrainJob) and sum(line.startswith("train ") for line in calls(self.directory)) == 3:
            self.log("train but little")
            raise KeyboardInterrupt
        return super().run(job, monitor)


def test_the_last_point_of_a_grid_that_was_interrupted_is_tried_by_the_next_command(tmp_path: Path) -> None:
    text = NO_CONFIRMATION.replace('"grad_freeze.freeze_p" = { low = 0.3, high = 0.9 }', '"level" = ["O1"]')
    text = text.replace('level = ["O0", "O1", "O2"]\n', "").replace('"boost.less_bn" = [false, true]\n', "")
    write_study(tmp_path, text + '\n[sampler]\nname = "grid"\n')
    with pytest.raises(KeyboardInterrupt):
        tune(tmp_path, make_experimenter=lambda _, folder: Impatient(folder))
    result = tuned(tmp_path)
    assert [trial.state for trial in result.trials if trial.state not in {"complete", "pruned"}] == []
    assert any("every point of the grid has been tried" in message for message in result.messages)


def test_a_trial_that_is_drawn_when_others_have_begun_the_last_ones_is_not_run_and_not_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reason, asked = SearchEnd.reason, []

    def late(self: SearchEnd, trials: Any) -> str:
        """Say once that trials are wanted when they no longer are, as to a process that reads a moment too early."""
        sentence = reason(self, trials)
        asked.append(sentence)
        return "" if asked.count(sentence) == 1 else sentence

    monkeypatch.setattr(SearchEnd, "reason", late)
    result = tuned(tmp_path, NO_CONFIRMATION.replace("n_trials = 10", "n_trials = 2"))
    stored = optuna.load_study(study_name=None, storage=f"sqlite:///{tmp_path / 'study.db'}").trials
    assert [trial.state.name for trial in stored] == ["COMPLETE", "COMPLETE", "FAIL"]
    assert [trial.state for trial in result.trials] == ["complete", "complete"]
    assert sum(line.startswith("train ") for line in calls(tmp_path)) == 2
