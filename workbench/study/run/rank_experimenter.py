"""A study whose trials train over several ranks: rank 0 searches, the others do what it does.

Rank 0 has the study, its storage and the sampler. Before it trains or measures, it tells the other ranks what; they
call the same method of an experimenter of their own, whose training meets rank 0's in every collective. What is told
are configurations and numbers; callbacks stay with rank 0.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from workbench.config import BoostConfig
from workbench.study.errors import StudyError
from workbench.study.run.around_experimenter import AroundExperimenter
from workbench.study.run.experimenter import (
    Experimenter,
    PolicyOutcome,
    RunStep,
    Side,
    SpeedMeasured,
    Trained,
)

__all__ = ["LeadingExperimenter", "follow"]


@dataclass(frozen=True, slots=True)
class _Work:
    """One call that all ranks make together."""

    method: str
    arguments: tuple[Any, ...]
    options: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class _End:
    """The study is over on rank 0."""

    result: Any


def follow(experimenter: Experimenter) -> Any:
    """Do what rank 0 does until its study is over: what every other rank does.

    Args:
        experimenter: This rank's own.

    Returns:
        What rank 0 gave to ``LeadingExperimenter.end``.

    Raises:
        RankFailure: When a rank has died, or rank 0's study ended with an error.
        OSError: When this rank's files fail.
    """
    from workbench.core import distributed as ranks

    while True:
        told: Any = ranks.broadcast_object(None)
        if isinstance(told, _End):
            return told.result
        try:
            _do(experimenter, told, {})
        except OSError:  # a lost rank, a full disk: the study ends on every rank, as it would on one
            raise
        except Exception:  # it failed alike on every rank, and rank 0 decides what that means
            continue


class LeadingExperimenter(AroundExperimenter):
    """Rank 0's experimenter: has the other ranks make each call together with its own.

    Args:
        inner: Who trains on this rank.
    """

    def train(
        self,
        config: BoostConfig,
        level: str,
        *,
        seed: int,
        steps: int,
        evaluate_every: int,
        run_id: str = "",
        exponents_every: int = 0,
        on_evaluation: Callable[[int, float], bool] | None = None,
        on_step: Callable[[RunStep], None] | None = None,
        stop: Callable[[], bool] | None = None,
    ) -> Trained:
        """Train over all ranks."""
        options = {
            "seed": seed,
            "steps": steps,
            "evaluate_every": evaluate_every,
            "run_id": run_id,
            "exponents_every": exponents_every,
        }
        work = _Work("train", (config, level), options)
        trained: Trained = self._together(work, {"on_evaluation": on_evaluation, "on_step": on_step, "stop": stop})
        return trained

    def speed(
        self,
        baseline: Side,
        candidate: Side,
        *,
        seed: int,
        rounds: int,
        steps_per_block: int,
        stop: Callable[[], bool] | None = None,
    ) -> SpeedMeasured:
        """Measure over all ranks, by this rank's clock."""
        options = {"seed": seed, "rounds": rounds, "steps_per_block": steps_per_block}
        measured: SpeedMeasured = self._together(_Work("speed", (baseline, candidate), options), {"stop": stop})
        return measured

    def replay(self, run_path: str, policies: Sequence[Mapping[str, Any]]) -> list[PolicyOutcome]:
        """Replay a recorded run, which is arithmetic and needs no other rank."""
        return self._inner.replay(run_path, policies)

    def freezing_limit(
        self,
        candidate: Side,
        *,
        seed: int,
        rounds: int,
        steps_per_block: int,
        stop: Callable[[], bool] | None = None,
    ) -> dict[str, float]:
        """Refuse: it is measured in one process, which ``study.toml`` is checked for."""
        raise StudyError("[freezing_limit] is measured in one process; set `study.ranks` to 1")

    def end(self, result: Any) -> None:
        """Let the other ranks go, with the study's result."""
        from workbench.core import distributed as ranks

        ranks.broadcast_object(_End(result))

    def _together(self, work: _Work, callbacks: Mapping[str, Any]) -> Any:
        from workbench.core import distributed as ranks

        ranks.broadcast_object(work)
        return _do(self._inner, work, callbacks)


def _do(experimenter: Experimenter, work: _Work, callbacks: Mapping[str, Any]) -> Any:
    """Make a call that every rank makes; raises what it raised, or RankFailure when only some ranks failed."""
    from workbench.core import distributed as ranks

    try:
        result = getattr(experimenter, work.method)(*work.arguments, **work.options, **callbacks)
    except Exception as raised:
        error = ranks.explained(raised)
        if isinstance(error, ranks.RankFailure):
            raise error from raised
        if not isinstance(raised, OSError):  # those end the study, and leaving wakes ranks that did not fail
            ranks.together(raised)
        raise
    ranks.together(None)
    return result
