"""A place in a Ray cluster where trials run one after the other: one worker, or one per rank of the trial.

Where it is, Ray decides, from the resources it is asked for; when there is no room yet it waits there, and an
autoscaler sees that somebody waits. In place of a worker that dies Ray is asked for another, on whatever node has room.
Ranks are held together by a placement group; when one dies all of them begin anew in it.
"""

from __future__ import annotations

import contextlib
import importlib
import itertools
from collections.abc import Callable
from typing import Any

from workbench.study.run.job import Job
from workbench.study.run.ray_resources import TrialResources
from workbench.study.run.ray_worker import (
    CONCURRENCY_GROUPS,
    Evaluated,
    RayWorker,
    TaskFacts,
)

__all__ = ["LostWorkerError", "Place"]

_LISTEN_SECONDS = 1.0
_POLL_SECONDS = 0.2
_MEETING_SECONDS = 300.0


class LostWorkerError(ConnectionError):
    """The process or the node that ran something is gone; the message says what Ray knows."""


class Place:
    """A place for trials; making one asks Ray for room and does not wait for it.

    Args:
        ray: The module.
        resources: What each process needs.
        ranks: Processes of a trial.
        arguments: What a `RayWorker` is made from.
    """

    def __init__(self, ray: Any, resources: TrialResources, ranks: int, arguments: tuple[Any, ...]) -> None:
        self._ray = ray
        self._ranks = ranks
        options: dict[str, Any] = {**resources.options, "concurrency_groups": dict(CONCURRENCY_GROUPS)}
        self._numbers = itertools.count(1)
        self._group = self._groups = None
        if ranks > 1:
            self._groups = importlib.import_module("ray.util.placement_group")
            self._group = self._groups.placement_group([dict(resources.amounts)] * ranks, strategy="PACK")
        self._worker = ray.remote(**options)(_with_groups(ray))
        self._arguments = arguments
        self._workers: list[Any] = []
        self._met = ranks == 1
        self._heard: Any = None
        self._start()

    def ready(self) -> Any:
        """Return what Ray calls a reference: it is there when the place is."""
        return self._workers[0].address.remote()

    def facts(self) -> TaskFacts:
        """Return what the workers know of the task; waits for the place."""
        told: TaskFacts = self._call(lambda: self._get_all([worker.facts.remote() for worker in self._together()])[0])
        return told

    def sees_folder(self) -> bool:
        """Return whether the study's folder is shared with this place."""
        return bool(self._call(lambda: self._ray.get(self._workers[0].sees_folder.remote())))

    def work(
        self,
        job: Job[Any],
        *,
        tell: Callable[[Any], bool | None],
        end: Callable[[], bool],
        evaluates: bool = False,
        packed: bytes = b"",
    ) -> tuple[Any, bytes]:
        """Let the workers run one job, and listen to it.

        Args:
            job: What to do.
            tell: Takes each message; answers an evaluation with whether the run is to end.
            end: Asked several times a second; True ends the job at its next step.
            evaluates: Whether evaluations wait for an answer.
            packed: The run that a `ReplayJob` names, for a worker that does not see it.

        Returns:
            The outcome, and the run directory that was sent with it.

        Raises:
            LostWorkerError: When a worker or its node died; the place is ready for another try.
        """

        def listen() -> tuple[Any, bytes]:
            workers = self._together()
            first, number = workers[0], next(self._numbers)
            asked_of = workers if job.trains else workers[:1]
            calls = [one.work.remote(number, job, evaluates=evaluates, packed=packed) for one in asked_of]
            asked = False
            left = list(calls)
            while left:
                # One that listens at a time, over the end of a call: it would take what the next call tells.
                self._heard = heard = self._heard or first.messages.remote(_LISTEN_SECONDS)
                ready, _ = self._ray.wait([*left, heard], num_returns=1, timeout=_POLL_SECONDS)
                if not asked and end():
                    asked = True
                    first.end_call.remote(number)
                if heard in ready:
                    self._heard = None
                    for message in self._ray.get(heard):
                        answer = tell(message)
                        if isinstance(message, Evaluated):
                            first.answer.remote(bool(answer))
                for done in [one for one in left if one in ready]:
                    self._ray.get(done)  # raises what it raised
                    left.remove(done)
            result: tuple[Any, bytes] = self._ray.get(calls[0])
            return result

        answer: tuple[Any, bytes] = self._call(listen)
        return answer

    def close(self) -> None:
        """End the workers and give the room back."""
        self._kill()
        if self._groups is not None:
            with contextlib.suppress(Exception):  # the cluster may be gone
                self._groups.remove_placement_group(self._group)

    def _start(self) -> None:
        strategies = importlib.import_module("ray.util.scheduling_strategies")
        for rank in range(self._ranks):
            worker = self._worker
            if self._group is not None:
                where = strategies.PlacementGroupSchedulingStrategy(self._group, placement_group_bundle_index=rank)
                worker = worker.options(scheduling_strategy=where)
            self._workers.append(worker.remote(*self._arguments))

    def _together(self) -> list[Any]:
        """Return the workers, which have met."""
        if not self._met:
            host, port, _ = self._ray.get(self._workers[0].address.remote())
            joined = [one.join.remote(rank, self._ranks, host, port) for rank, one in enumerate(self._workers)]
            self._get_all(joined, timeout=_MEETING_SECONDS)
            self._met = True
        return self._workers

    def _get_all(self, references: list[Any], timeout: float | None = None) -> list[Any]:
        """Return all results; the first failure, whichever it is, ends the wait."""
        left = list(references)
        while left:
            ready, left = self._ray.wait(left, num_returns=1, timeout=timeout)
            if not ready:
                raise LostWorkerError(f"the ranks have not met within {timeout:g} seconds")
            self._ray.get(ready)
        return [self._ray.get(one) for one in references]

    def _call(self, ask: Callable[[], Any]) -> Any:
        errors = self._ray.exceptions
        lost = (errors.RayActorError, errors.WorkerCrashedError, errors.NodeDiedError, errors.OutOfMemoryError)
        try:
            return ask()
        except lost as error:
            reason = str(error)
        except errors.RayTaskError as error:
            cause = getattr(error, "cause", None)
            if not _is_rank_failure(cause):
                if isinstance(cause, Exception) and not isinstance(cause, errors.RayError):
                    raise cause from None
                raise RuntimeError(str(error).strip().splitlines()[-1]) from None
            reason = str(cause)
        except LostWorkerError as error:
            reason = str(error)
        self._heard = None
        # Not Ray's max_restarts: calls to an actor that is being restarted fail at once, those to a new one wait; and
        # ranks come back together or not at all.
        self._kill()
        self._met = self._ranks == 1
        self._start()
        raise LostWorkerError(" ".join(reason.split())[:300])

    def _kill(self) -> None:
        for worker in self._workers:
            with contextlib.suppress(Exception):
                self._ray.kill(worker)
        self._workers = []


def _with_groups(ray: Any) -> type:
    """Return `RayWorker` with its methods in their concurrency groups; the class itself knows nothing of Ray."""
    groups = {"messages": "messages", "answer": "answers", "end_call": "answers"}
    methods = {name: ray.method(concurrency_group=group)(_copied(name)) for name, group in groups.items()}
    # Ray finds a method's group by the names of module, class and function: they have to be the class's own.
    return type(RayWorker.__name__, (RayWorker,), {**methods, "__module__": RayWorker.__module__})


def _copied(name: str) -> Any:
    method = getattr(RayWorker, name)

    def call(self: Any, *arguments: Any) -> Any:
        return method(self, *arguments)

    # Not functools.wraps: Ray would look through it, at the function that has no group.
    call.__name__, call.__qualname__, call.__module__ = name, method.__qualname__, method.__module__
    return call


def _is_rank_failure(error: Any) -> bool:
    return type(error).__name__ == "RankFailure"
