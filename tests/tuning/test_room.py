"""Runs at a time: as many as have cores for their threads and for what reads beside them."""

from __future__ import annotations

import multiprocessing
import os
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import optuna
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from tests.experiments.small_tasks import small_task
from tests.kit.fake_runner import SHORT, calls, tuned
from tests.tuning.test_set_up_question import LOOK
from tests.tuning.test_side_by_side import make_mortal
from workbench.core import devices
from workbench.study.ask.set_up_question import ask
from workbench.study.ask.study_file import StudyFile, parse_study
from workbench.study.run.experimenter import TaskExperimenter
from workbench.study.run.room import AnyRoom, Room

CHOSEN = "runtime_choice"


def study_file(reading: str, reading_cores: int | None = None) -> StudyFile:
    look = replace(LOOK, reading=reading, reading_cores=reading_cores)
    return parse_study(ask(look, "mine.py:task", steps=180, minutes=15.0, allowed_drop=None).text)


def chosen(data: str) -> optuna.Study:
    study: Any = SimpleNamespace(user_attrs={CHOSEN: {"values": {"runtime.data": data}, "measured": []}})
    return study


@pytest.fixture
def eight_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "usable_cores", lambda: 8)
    monkeypatch.setattr(devices, "other_work_now", lambda: SimpleNamespace(idle_cores=lambda: 8.0))
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)


@pytest.mark.usefixtures("eight_cores")
@pytest.mark.parametrize(
    ("offered", "busy", "workers", "data", "before", "after"),
    [
        ("as_given", None, 0, "as_given", 4, (4, 4)),
        ("prefetch", None, 0, "prefetch", 4, (4, 4)),
        ("as_given", None, 3, "as_given", 2, (2, 2)),
        ("as_given", 1, 3, "as_given", 4, (4, 4)),
        ("resident", 7, 7, "resident", 1, (1, 4)),
        ("resident", 7, 7, "as_given", 1, (1, 1)),
    ],
    ids=["nothing reads", "ahead", "workers", "idle workers", "kept", "not kept"],
)
def test_what_reads_has_cores_until_a_search_knows_that_nothing_does(
    offered: str, busy: int | None, workers: int, data: str, before: int, after: tuple[int, int]
) -> None:
    for jobs in (None, 4):
        room = Room(study_file(offered, busy), jobs, workers=workers)
        assert (room.alike(), room.in_search()) == (before, jobs or before)
        room.study = chosen(data)
        assert (room.alike(), room.in_search()) == (after[0], jobs or after[1])


@pytest.mark.parametrize(("data", "places"), [("prefetch", 1), ("as_given", 2)])
def test_a_core_for_what_reads_ahead_is_used_again_where_that_is_not_chosen(
    data: str, places: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(devices, "usable_cores", lambda: 2)
    monkeypatch.setattr(devices, "other_work_now", lambda: SimpleNamespace(idle_cores=lambda: 2.0))
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    room = Room(study_file("prefetch"), None)
    assert (room.alike(), room.in_search()) == (1, 1)
    room.study = chosen(data)
    assert (room.alike(), room.in_search()) == (places, places)


@pytest.mark.parametrize("workers", [0, 1])
def test_a_task_has_as_many_readers_as_its_loader_has_workers(workers: int, tmp_path: Path) -> None:
    loader = DataLoader(TensorDataset(torch.zeros(8, 2)), num_workers=workers)
    for train in (loader, lambda seed: loader):
        task = replace(small_task(), train=train)
        assert TaskExperimenter(task, "cpu", tmp_path).worker_processes() == workers


@pytest.mark.slow
def test_a_search_has_processes_of_its_own_where_it_has_more_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(AnyRoom, "alike", lambda room: 1)
    tuned(tmp_path, SHORT.replace("n_trials = 4", "n_trials = 6"), jobs=2, make_experimenter=make_mortal)
    processes = [int(line.split()[1]) for line in calls(tmp_path) if line.startswith("process")]
    assert processes[0] == processes[-1] == os.getpid()  # O0, and the confirmation
    assert len({*processes} - {os.getpid()}) == 2
    assert not multiprocessing.active_children()
