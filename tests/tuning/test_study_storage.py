"""What the study's database promises to processes that come, die and come back."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import optuna
import pytest
from optuna.study import StudyDirection
from optuna.trial import TrialState
from sqlalchemy import Connection
from sqlalchemy.exc import OperationalError

from tests.kit.fake_runner import FakeRunner, write_study
from workbench.study.ask.study_file import read_study
from workbench.study.run.patience import Patience
from workbench.study.store.liveness import StaleTrials
from workbench.study.store.storage import default_storage, open_study
from workbench.study.store.study_storage import TAKEN_ERRORS, StudyStorage, TrialTakenError, was_given_up


class Forgetful(StudyStorage):
    """A database whose next confirmations get lost on the way, or which is away."""

    losses, away = 0, False

    @contextmanager
    def _transaction(self, **how: bool) -> Iterator[Connection]:
        with super()._transaction(**how) as connection:
            if self.away:
                raise OperationalError("", None, Exception("server closed the connection unexpectedly"))
            yield connection
        if self.losses > 0:
            self.losses -= 1
            raise OperationalError("", None, Exception("server closed the connection unexpectedly"))


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_study(tmp_path_factory.mktemp("storage") / "s")


@pytest.fixture(scope="module")
def databases(directory: Path) -> Iterator[tuple[Forgetful, Forgetful]]:
    """Two processes' views of one database."""
    url = default_storage(directory)
    here, there = (Forgetful(url, patience=Patience(60.0, sleep=lambda _: None), role="worker") for _ in range(2))
    yield here, there
    for database in (here, there):
        database.engine.dispose()


@pytest.fixture
def here(databases: tuple[Forgetful, Forgetful]) -> Forgetful:
    return databases[0]


@pytest.fixture
def there(databases: tuple[Forgetful, Forgetful]) -> Forgetful:
    return databases[1]


@pytest.fixture
def study(databases: tuple[Forgetful, Forgetful]) -> Iterator[optuna.Study]:
    """A study without trials, in a database of which neither process runs any."""
    yield optuna.create_study(storage=databases[0])
    for database in databases:
        for trial_id in list(database._held):
            database.forget(trial_id)


def loaded(study: optuna.Study, database: StudyStorage) -> optuna.Study:
    return optuna.load_study(study_name=study.study_name, storage=database)


def elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let new marks be those of a process on another machine."""
    monkeypatch.setattr("workbench.study.store.liveness.machine", lambda: "another")
    monkeypatch.setattr("socket.gethostname", lambda: "another")


def test_a_waiting_trial_is_taken_once(study: optuna.Study, here: Forgetful, there: Forgetful) -> None:
    study.enqueue_trial({})
    trial = study.get_trials()[0]
    assert there.set_trial_state_values(trial._trial_id, TrialState.RUNNING)
    assert not here.set_trial_state_values(trial._trial_id, TrialState.RUNNING)
    assert [one.trial_id for one in here.running(study._study_id)] == [trial._trial_id]
    assert there.running(study._study_id) == []  # it holds that one itself


def test_whoever_comes_first_enqueues_o0(directory: Path, here: Forgetful, there: Forgetful) -> None:
    file, experimenter = read_study(directory), FakeRunner(directory)
    studies = [open_study(database, file, experimenter) for database in (here, there)]
    template = {"level": "O0"}
    studies[1].enqueue_trial(template, user_attrs={"baseline": True})  # as one that had not seen the first does
    trials = studies[0].get_trials()
    assert [(one.state, one.user_attrs) for one in trials] == [(TrialState.WAITING, {"baseline": True})]


@pytest.mark.parametrize("lost", range(4))
def test_a_lost_confirmation_changes_nothing(study: optuna.Study, here: Forgetful, lost: int) -> None:
    study.enqueue_trial({}, user_attrs={"baseline": True})
    for number in range(2):
        here.losses = lost  # taking the first, creating the second
        trial = study.ask()
        assert trial.number == number
        here.losses = lost
        study.tell(trial, 0.5)
    here.losses = 0
    assert [(one.state, one.values) for one in study.get_trials()] == [(TrialState.COMPLETE, [0.5])] * 2


def test_who_was_believed_dead_does_not_write_beside_its_successor(
    study: optuna.Study, here: Forgetful, there: Forgetful
) -> None:
    trial = study.ask()
    (seen,) = there.running(study._study_id)
    assert there.put_back(seen, died=True)
    successor = loaded(study, there).ask()
    assert successor.number == trial.number
    assert not here.beat(trial._trial_id)
    with pytest.raises(TrialTakenError, match="another process runs trial 0 now"):
        study.tell(trial, 1.0)
    trial.set_user_attr("speed", 0.5)
    with pytest.raises(TrialTakenError):
        here.write(trial._trial_id)
    loaded(study, there).tell(successor, 2.0)
    with pytest.raises((ValueError, *TAKEN_ERRORS)):
        study.tell(trial, 1.0)
    here.forget(trial._trial_id)
    assert [(one.values, "speed" in one.user_attrs) for one in study.get_trials()] == [([2.0], False)]


def test_a_finished_run_counts_although_its_trial_was_put_back(
    study: optuna.Study, here: Forgetful, there: Forgetful
) -> None:
    trial = study.ask()
    assert there.put_back(there.running(study._study_id)[0], died=True)
    trial.set_user_attr("speed", 0.5)
    study.tell(trial, 1.0)  # nobody has begun it yet
    (stored,) = loaded(study, there).get_trials()
    assert (stored.state, stored.values, stored.user_attrs["speed"]) == (TrialState.COMPLETE, [1.0], 0.5)


def test_two_who_saw_the_same_put_it_back_once(study: optuna.Study, here: Forgetful, there: Forgetful) -> None:
    trial = study.ask()
    trial.suggest_float("x", 0.0, 1.0)
    trial.report(0.25, step=3)
    here.write(trial._trial_id)
    (seen,) = there.running(study._study_id)
    assert there.put_back(seen, died=True)
    again = loaded(study, there).ask()
    assert not here.put_back(seen, died=True)  # it runs again, under another claim
    there.beat(again._trial_id)
    here.forget(trial._trial_id)
    frozen = study.get_trials()[0]
    assert (frozen.state, frozen.params, frozen.intermediate_values) == (TrialState.RUNNING, trial.params, {3: 0.25})
    assert frozen.user_attrs["worker_deaths"] == 1


def test_a_trial_that_ends_while_it_is_read_is_nobodys_to_put_back(
    study: optuna.Study, here: Forgetful, there: Forgetful, monkeypatch: pytest.MonkeyPatch
) -> None:
    trial = study.ask()
    study.tell(trial, 1.0)
    (read,) = loaded(study, there).get_trials()
    read.state = TrialState.RUNNING  # as its row was, a moment before its attributes were read
    monkeypatch.setattr(there, "_read", lambda *_: [read])
    assert StaleTrials(there, study).put_back() == []


def test_a_heartbeat_meanwhile_keeps_the_trial(study: optuna.Study, here: Forgetful, there: Forgetful) -> None:
    trial = study.ask()
    (seen,) = there.running(study._study_id)
    here.beat(trial._trial_id)
    assert not there.put_back(seen, died=True)


def test_a_trial_that_ends_three_workers_is_given_up(study: optuna.Study, here: Forgetful, there: Forgetful) -> None:
    for _ in range(3):
        begun = study.ask()
        assert there.put_back(there.running(study._study_id)[0], died=True)
        here.forget(begun._trial_id)
    (trial,) = study.get_trials()
    assert was_given_up(trial)
    assert trial.user_attrs["message"].startswith("its worker died 3 times while it ran this trial")
    assert study.ask().number == 1


def test_o0_is_never_given_up_since_it_has_to_stay_trial_0(
    study: optuna.Study, here: Forgetful, there: Forgetful
) -> None:
    study.enqueue_trial({}, user_attrs={"baseline": True})
    for _ in range(4):
        begun = study.ask()
        assert begun.number == 0
        assert there.put_back(there.running(study._study_id)[0], died=True)
        here.forget(begun._trial_id)


def test_a_trial_that_is_handed_back_is_never_given_up(study: optuna.Study, here: Forgetful) -> None:
    for _ in range(5):
        trial = study.ask()
        assert trial.number == 0
        here.hand_back(trial._trial_id)


def test_silence_tells_of_a_process_elsewhere(
    study: optuna.Study, here: Forgetful, there: Forgetful, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    stale = StaleTrials(here, study, clock=lambda: now[0])
    with monkeypatch.context() as patch:
        elsewhere(patch)
        trial = loaded(study, there).ask()
    assert stale.put_back() == []  # first seen
    now[0] = 179.0
    assert stale.put_back() == []
    there.beat(trial._trial_id)
    now[0] = 200.0
    assert stale.put_back() == []  # it was heard
    now[0] = 370.0
    assert stale.put_back() == []
    now[0] = 381.0
    here.patience.note_failure()  # the database was away: nobody could be heard
    assert stale.put_back() == []
    here.patience._failed_at = -float("inf")
    now[0] = 390.0
    assert stale.put_back() == [0]
    assert study.get_trials()[0].state == TrialState.WAITING


@pytest.mark.parametrize(
    ("began", "found", "found_alone"),
    [
        ({"os.getpid": lambda: 2**22 + 1, "workbench.core.process_identity.start_ticks": lambda pid: 1}, [0], []),
        ({"os.getpid": os.getppid}, [], []),
        ({"workbench.study.store.liveness.machine": lambda: "the boot before"}, [], [0]),
    ],
    ids=["by a process that is gone", "by a running process", "before the machine was started again"],
)
def test_a_trial_begun_here_is_nobodys_once_its_process_is_surely_gone(
    began: dict[str, object],
    found: list[int],
    found_alone: list[int],
    study: optuna.Study,
    here: Forgetful,
    there: Forgetful,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with monkeypatch.context() as patch:
        for name, value in began.items():
            patch.setattr(name, value)
        loaded(study, there).ask()
    if not found:
        study.ask()  # this process's own stays
    assert StaleTrials(here, study).put_back() == found
    assert StaleTrials(here, study).put_back(alone=True) == found_alone, "where nobody else works"


def test_ctrl_c_during_an_outage_waits_for_nothing(study: optuna.Study, here: Forgetful) -> None:
    trial = study.ask()
    here.away = True
    here.hand_back(trial._trial_id)
    here.away = False
    assert study.get_trials()[0].state == TrialState.RUNNING  # found abandoned later


def test_a_study_is_read_again_where_it_is_new_or_has_not_finished(
    study: optuna.Study, here: Forgetful, there: Forgetful
) -> None:
    theirs = loaded(study, there)
    study.tell(study.ask(), 1.0)
    begun = study.ask()
    assert [one.state for one in theirs.get_trials()] == [TrialState.COMPLETE, TrialState.RUNNING]
    study.tell(begun, 2.0)
    study.ask()
    first = theirs.get_trials(deepcopy=False)[0]
    seen = theirs.get_trials(deepcopy=False)
    assert [one.values for one in seen] == [[1.0], [2.0], None]
    assert seen[0] is first, "what had finished is not read again"


def test_a_study_and_a_trial_that_are_not_there_are_key_errors(here: Forgetful) -> None:
    with pytest.raises(KeyError):
        here.get_all_trials(10**6)
    with pytest.raises(KeyError):
        here.get_trial(10**6)


def test_trials_are_read_as_optuna_reads_them(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'all.db'}"
    ours, optunas = StudyStorage(url, patience=Patience(60.0)), optuna.storages.RDBStorage(url)
    study = optuna.create_study(storage=optunas, study_name="all")
    for state in (TrialState.COMPLETE, TrialState.PRUNED, TrialState.FAIL, TrialState.WAITING):
        study.add_trial(
            optuna.trial.create_trial(
                state=state,
                value=float("inf") if state == TrialState.COMPLETE else None,
                params={"kind": None},
                distributions={"kind": optuna.distributions.CategoricalDistribution(["a", None, True])},
                user_attrs={"curve": [[1, 0.5]], "name": f"µ {state}"},
                system_attrs={"fixed_params": {"lr": 0.1}},
                intermediate_values={20: float("nan"), 10: 0.25, 30: float("-inf")},
            )
        )
    study_id = ours.get_study_id_from_name("all")
    expected = optunas.get_all_trials(study_id)
    for _ in range(2):  # what has finished is not read again
        found = ours.get_all_trials(study_id)
        assert repr(found) == repr(expected)
        assert [trial._trial_id for trial in found] == [trial._trial_id for trial in expected]
    assert repr(ours.get_trial(expected[3]._trial_id)) == repr(expected[3])
    assert repr(ours.get_all_trials(study_id, states=(TrialState.WAITING,))) == repr(expected[3:])
    for storage in (ours, optunas):
        storage.engine.dispose()


def test_the_first_look_at_a_study_waits_for_its_database_too(
    study: optuna.Study, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study.ask()
    fresh = StudyStorage(default_storage(directory), patience=Patience(60.0, sleep=lambda _: None))
    directions, away = fresh._backend.get_study_directions, [True]

    def away_once(study_id: int) -> list[StudyDirection]:
        if away.pop() if away else False:
            raise OperationalError("", None, Exception("server closed the connection unexpectedly"))
        return directions(study_id)

    monkeypatch.setattr(fresh._backend, "get_study_directions", away_once)
    assert [one.state for one in fresh.get_all_trials(study._study_id)] == [TrialState.RUNNING]
    assert not away
    fresh.engine.dispose()


def test_attributes_of_a_study_are_copied_without_their_values(study: optuna.Study) -> None:
    study.set_user_attr("runs", [1, 2])
    attributes = study.user_attrs
    assert study.user_attrs["runs"] is attributes["runs"]
    attributes["more"] = 1
    assert study.user_attrs == {"runs": [1, 2]}
