"""A study from O0 to its files: search, loss-scale policy, confirmation, export.

    trial 0 = O0, and then trials until there are enough of them or time is over    (`searching`, `places`)
    or the stages of a search for the fastest set-up                                (`set_up.stages`)
    a float16 run, and policies judged by it, where the study asks for it           (`answer.loss_scale_policy`)
    freezing timed beside its limit, likewise                                       (`answer.freezing_limits`)
    the best for each export beside O0 over fresh seeds, until the verdict is in    (`answer.confirming`)
    what each export takes, and the files                                           (`answer.selection`, `result`)

`tune` opens the study, and `StudyStages` has a method for each line. Everything is stored when it is done, so the same
command continues wherever the last one ended, whatever ended it.

With ``ranks`` above 1 in the file every trial trains over several processes, which torchrun or ``workbench tune`` has
started: rank 0 goes through the stages, the others follow it (``rank_experimenter.py``).
"""

from __future__ import annotations

import functools
import importlib
import math
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

from workbench.core.other_work import OtherWork
from workbench.core.rank_environment import is_first_rank, rank_environment
from workbench.study.answer.doubts import needs_no_training
from workbench.study.answer.result import StudyResult
from workbench.study.answer.status_keeper import StatusKeeper
from workbench.study.ask.study_file import StudyFile, read_study, study_folder
from workbench.study.ask.warm_start import enqueue_warm_start, sources_in
from workbench.study.errors import OutOfTimeError, StudyError
from workbench.study.run.experimenter import MakeExperimenter, TaskExperimenter, experimenter_for
from workbench.study.run.joining import check_limits
from workbench.study.run.process_trainer import ProcessCrew
from workbench.study.run.progress import StudyWatch, TuneProgress
from workbench.study.run.rank_experimenter import LeadingExperimenter, follow
from workbench.study.run.ray_engine import RayCrew, RayEngine
from workbench.study.run.room import AnyRoom, Room
from workbench.study.run.runner import Experimenter, Limits, StoppableExperimenter, TaskExpert, end_if_asked
from workbench.study.run.searching import Search
from workbench.study.run.study_stages import StudyStages
from workbench.study.store import storage as kept
from workbench.study.store.liveness import StaleTrials
from workbench.study.store.stored_records import keep, keep_question
from workbench.study.store.write_ahead import writing_ahead

_LOADING_SHARE = 0.1  # of the time limit, which processes may take again for what this one has taken to load the task
_WRITING_SECONDS = 1.0
_WRITING_SHARE = 0.25
"""At least these seconds, and at most this share of the time limit, are kept for writing the answer."""


def tune(
    study_dir: str | Path,
    *,
    trials: int | None = None,
    timeout: float | None = None,
    fresh: bool = False,
    new_baseline: bool = False,
    confirm_seeds: int | None = None,
    require_confirmed: bool = False,
    jobs: int | None = 1,
    storage: str | None = None,
    warm_start: Sequence[str | Path] = (),
    on_progress: Callable[[TuneProgress], None] | None = None,
    stop: Callable[[], bool] | None = None,
    make_experimenter: MakeExperimenter | None = None,
    ray: RayEngine | None = None,
    began: float | None = None,
) -> StudyResult:
    """Run a study that has its file, or continue it; other arguments are as in ``workbench.tune``.

    ``make_experimenter``, a function of a module, returns the experimenter; None trains the task the file names.
    ``began`` is the ``time.monotonic()`` from which the time limit counts. Every rank gets the result, with the
    exported files; its ``report`` is None, since reports are written above this layer.

    Raises:
        StudyError: When the study, an argument or the storage is wrong, ``study.toml`` changed since the study began,
            it is being tuned already, or the time limit is too short for O0 itself.
        StudyFailedError: When O0 does not train or trials keep failing.
        RankFailure: When another rank has died; as after ``stop`` (StudyStoppedError) and Ctrl-C the state is saved,
            and the running trial will be run again.
    """
    began = time.monotonic() if began is None else began
    file, directory = read_study(study_dir), study_folder(study_dir)
    check_limits(trials=trials, timeout=timeout, confirm_seeds=confirm_seeds, jobs=jobs)
    starts_over = fresh or new_baseline
    if starts_over and storage is not None:
        raise StudyError(
            "--fresh archives the SQLite file in the study's folder; with --storage, give the study a new name"
        )
    if ray is None:
        _check_ranks(file, study_dir, jobs)
    n_trials = file.study.n_trials if trials is None else trials
    limit = file.study.timeout_seconds if timeout is None else timeout
    url, finds_set_up = storage or kept.default_storage(directory), file.study.objective == "time_to_quality"
    # With one rank nothing is joined, and torch is not imported: fakes do without it.
    with nullcontext() if ray is not None or file.study.ranks == 1 else _joined(file) as device:
        if not is_first_rank():
            followed: StudyResult = follow(experimenter_for(file, directory, make_experimenter, device))
            return followed
        with kept.quiet_optuna(), kept.holding_study(directory), ExitStack() as leaving:
            if limit is not None:
                # Importances are counted at the end, by a module that takes a second or more to load: it is loaded
                # now, so that the time kept for writing the answer need not include that.
                importlib.import_module("optuna.importance")
            end_if_asked(stop)
            # The task and its drops first: a study that cannot run must not archive one that did.
            crew: RayCrew | ProcessCrew
            room: Room | AnyRoom = AnyRoom(1)
            expert: TaskExpert
            if ray is not None:
                end = None if limit is None else began + limit
                crew = leaving.enter_context(ray.crew(file, directory, make_experimenter, stop, end))
                expert = crew.experimenter
            else:
                expert = experimenter_for(file, directory, make_experimenter, device)
                loading = time.monotonic() - began
                has_time = limit is not None and loading < _LOADING_SHARE * limit
                if isinstance(expert, TaskExperimenter) and file.study.ranks == 1:
                    takes_idle = finds_set_up and has_time and make_experimenter is None
                    asked = None if jobs is None and takes_idle else jobs or 1
                    room = Room(file, asked, limit=limit, workers=expert.worker_processes())
                else:
                    room = AnyRoom(jobs or 1)
                crew = leaving.enter_context(ProcessCrew(room, directory, make_experimenter, expert))
            leading = LeadingExperimenter(expert) if ray is None and file.study.ranks > 1 else None
            guard = StoppableExperimenter(leading or crew.experimenter, Limits(stop))
            file.allowed_drops(expert.metric_name)
            archived = kept.archive_study(directory) if starts_over else None
            database = kept.open_storage(url)
            end_if_asked(stop)
            study = room.study = kept.open_study(database, file, expert)
            file = kept.on_its_network(file, study)
            status = leaving.enter_context(StatusKeeper(study_dir, study, file, storage))
            leaving.enter_context(writing_ahead(database.engine))  # left first: the last state is that of a plain file
            keep_question(study, file)
            keep(study, "n_trials", n_trials)  # for workers that join
            earlier = sources_in(archived) if new_baseline else []
            enqueue_warm_start(study, file, directory, [*warm_start, *earlier], n_trials)
            StaleTrials(database, study).put_back(alone=database.engine.name == "sqlite")
            search_deadline, deadline = _deadlines(file, began, limit)
            watch = StudyWatch(study, file, n_trials, confirm_seeds, on_progress, deadline, status.refresh)
            where = (file, directory, database, study, guard)
            search = Search(*where, n_trials=n_trials, deadline=search_deadline, watch=watch, stop=stop)

            def on_poll() -> None:
                end_if_asked(stop)
                watch.trial_finished()
                watch.trial_begun()

            def trainers() -> list[Experimenter]:
                return [StoppableExperimenter(one, guard.limits) for one in crew.trainers()]

            search.at_places = functools.partial(crew.search, on_poll=on_poll)
            busy = ""

            def about_room() -> str:
                return "" if busy else room.sentence(in_file=make_experimenter is None)

            how = (study, file, directory, guard, search, watch, trainers, about_room)
            stages = StudyStages(*how, limit, deadline, confirm_seeds, in_file=make_experimenter is None)
            loaded, other = time.monotonic(), OtherWork()
            try:
                stages.train_baseline()
            except OutOfTimeError as error:
                raise StudyError(_too_short(limit or 0.0, error.needed_seconds + loaded - began)) from None
            has_answer = needs_no_training(study, file)
            # Of several ranks the others would count as other work.
            if ray is None and file.study.ranks == 1 and (busy := other.sentence(file.study.threads)):
                watch.note(f"{busy}.")
            if not has_answer:
                find = stages.find_set_up if finds_set_up else stages.find_trials
                find(searches=not stages.goes_on())
                stages.measure_more()
                stages.confirm()
            result = stages.answer(require_confirmed=require_confirmed)
        more = [] if archived is None else [f"The earlier study is archived in {archived}."]
        # A call from Python may not have shown the note.
        more += [stages.room] if stages.room and jobs == 1 else []
        messages = [*result.messages, *more]
        result = replace(result, messages=messages, n_trials=n_trials, seconds=time.monotonic() - began)
        if leading is not None:
            leading.end(result)
        return result


def _joined(file: StudyFile) -> AbstractContextManager[Any]:
    from workbench.core import distributed as ranks

    return ranks.joined(file.study.device)


def _check_ranks(file: StudyFile, study_dir: str | Path, jobs: int | None) -> None:
    here = rank_environment()
    wanted, started = file.study.ranks, 1 if here is None else here.world_size
    if wanted != started:
        few = "this is one process" if started == 1 else f"{started} ranks were started"
        raise StudyError(
            f"`study.ranks` is {wanted}, but {few}; `workbench tune {study_dir}` starts as many as the file says"
        )
    if wanted > 1 and (jobs or 1) > 1:
        raise StudyError(
            f"--jobs (in the Tune tab: Workers) must be 1 for a study with `study.ranks` = {wanted}, whose processes "
            f"train each trial together, got {jobs}"
        )


def _deadlines(file: StudyFile, began: float, limit: float | None) -> tuple[float | None, float | None]:
    """Return when the search must end, to leave the confirmation its share, and when all runs must.

    A search for a set-up ends by its `Timetable` instead, once it is known how long a run takes.
    """
    if limit is None:
        return None, None
    # How quick the machine is, starting has shown: writing the answer and ending take less than half of that.
    writing = min(max(0.5 * (time.monotonic() - began), _WRITING_SECONDS), _WRITING_SHARE * limit)
    share = file.confirm.time_share if file.confirm.enabled else 0.0
    return began + (limit - writing) * (1.0 - share), began + limit - writing


def _too_short(limit: float, needed: float) -> str:
    too_short = f"the time limit of {limit:g} s is too short for O0 itself"
    if math.isnan(needed):
        return f"{too_short}, which had not taken a step by then; give the command more time"
    at_least = math.ceil(needed / (1.0 - _WRITING_SHARE))
    still = f"which still needs about {needed:.0f} s from the start of the command"
    return f"{too_short}, {still}; give it {at_least} s at least"
