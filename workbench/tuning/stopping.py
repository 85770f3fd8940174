"""Let somebody else end a study: a panel's button, another thread.

Ctrl-C reaches the main thread only. So a study asks before each thing it does and, inside a run, at every step; what it
was doing then is put back as Ctrl-C would, and the same command continues from there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from workbench.config import BoostConfig
from workbench.tuning.around_experimenter import AroundExperimenter
from workbench.tuning.errors import StudyStoppedError

if TYPE_CHECKING:  # those who train ask here, too
    from workbench.tuning.experimenter import Experimenter, PolicyOutcome, RunStep, Side, SpeedMeasured, Trained

__all__ = ["StoppableExperimenter", "end_if_asked"]


def end_if_asked(stop: Callable[[], bool] | None) -> None:
    """End the study if somebody asks for it.

    Args:
        stop: Returns whether to end; None never does.

    Raises:
        StudyStoppedError: When it is to end.
    """
    if stop is not None and stop():
        raise StudyStoppedError("stopped on request; everything finished is saved, and the same study can go on")


class StoppableExperimenter(AroundExperimenter):
    """An experimenter that ends the study when asked: between two calls, and within one step of a run.

    Args:
        inner: Who trains.
        stop: Asked at every step, from the thread that trains.
    """

    def __init__(self, inner: Experimenter, stop: Callable[[], bool]) -> None:
        super().__init__(inner)
        self._stop = stop

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
        """Train, unless the study is to end; what was cut short is no result."""
        end_if_asked(self._stop)
        trained = self._inner.train(
            config,
            level,
            seed=seed,
            steps=steps,
            evaluate_every=evaluate_every,
            run_id=run_id,
            exponents_every=exponents_every,
            on_evaluation=on_evaluation,
            on_step=on_step,
            stop=self._stop if stop is None else stop,
        )
        end_if_asked(self._stop)
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
        """Measure, unless the study is to end."""
        end_if_asked(self._stop)
        measured = self._inner.speed(
            baseline,
            candidate,
            seed=seed,
            rounds=rounds,
            steps_per_block=steps_per_block,
            stop=self._stop if stop is None else stop,
        )
        end_if_asked(self._stop)
        return measured

    def replay(self, run_path: str, policies: Sequence[Mapping[str, Any]]) -> list[PolicyOutcome]:
        """Replay, unless the study is to end."""
        end_if_asked(self._stop)
        return self._inner.replay(run_path, policies)

    def freezing_limit(self, candidate: Side, *, seed: int, rounds: int, steps_per_block: int) -> dict[str, float]:
        """Measure, unless the study is to end."""
        end_if_asked(self._stop)
        return self._inner.freezing_limit(candidate, seed=seed, rounds=rounds, steps_per_block=steps_per_block)
