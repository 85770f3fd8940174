"""An experimenter that trains somewhere in a Ray cluster: the driver keeps the study, a `Place` does the work.

What the search knows of pruning and progress stays with it: evaluations and steps come back as messages, answers and
the wish to end go there. A worker or node that dies costs the call under way; it is made again, and evaluations that
were answered before are answered the same without asking anybody, since the same seed gives the same curve.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from workbench.config import BoostConfig, NetworkFacts
from workbench.study.run import ray_folders
from workbench.study.run.experimenter import (
    PolicyOutcome,
    RunStep,
    Side,
    SpeedMeasured,
    Trained,
)
from workbench.study.run.ray_place import LostWorkerError, Place
from workbench.study.run.ray_worker import Evaluated, TaskFacts
from workbench.study.run.stopping import end_if_asked

__all__ = ["LostTrialError", "RayExperimenter"]

MOST_LOSSES = 3
"""So often a call may lose its worker before its trial counts as the reason."""


class LostTrialError(RuntimeError):
    """Worker after worker died under the same call; the message is one sentence."""


class RayExperimenter:
    """Trains at a place in a Ray cluster.

    Args:
        place: Where.
        facts: What is known of the task.
        directory: Folder of the study.
        stop: Asked while waiting; True ends the study at the next step.
    """

    def __init__(self, place: Place, facts: TaskFacts, directory: Path, stop: Callable[[], bool] | None = None) -> None:
        self._place = place
        self._facts = facts
        self._directory = directory
        self._stop = stop

    @property
    def metric_name(self) -> str:
        """Name of the task's metric."""
        return self._facts.metric_name

    @property
    def higher_is_better(self) -> bool:
        """Direction of the metric."""
        return self._facts.higher_is_better

    @property
    def data_hash(self) -> str:
        """Hash of the training data; empty when unknown."""
        return self._facts.data_hash

    def environment(self) -> dict[str, Any]:
        """Return versions, hardware and data of the machine the first worker was on."""
        return dict(self._facts.environment)

    def network_facts(self) -> NetworkFacts | None:
        """Return what the first worker found of the task's network."""
        return self._facts.network

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
        """Train there; a run directory that is not shared is brought back."""
        options = {
            "seed": seed,
            "steps": steps,
            "evaluate_every": evaluate_every,
            "run_id": run_id,
            "exponents_every": exponents_every,
        }
        answered: dict[int, bool] = {}

        def tell(message: Any) -> bool | None:
            if isinstance(message, RunStep):
                if on_step is not None:
                    on_step(message)
                return None
            if not isinstance(message, Evaluated) or on_evaluation is None:
                return None
            if message.step not in answered:
                answered[message.step] = on_evaluation(message.step, message.metric)
            return answered[message.step]

        trained, run = self._work(
            "train", (config, level), options, tell=tell, stop=stop, evaluates=on_evaluation is not None
        )
        if run:
            trained = replace(trained, path=ray_folders.unpack_run(self._directory, trained.path, run))
        result: Trained = trained
        return result

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
        """Measure there, both sides in one process."""
        options = {"seed": seed, "rounds": rounds, "steps_per_block": steps_per_block}
        measured: SpeedMeasured = self._work("speed", (baseline, candidate), options, stop=stop)[0]
        return measured

    def freezing_limit(
        self,
        candidate: Side,
        *,
        seed: int,
        rounds: int,
        steps_per_block: int,
        stop: Callable[[], bool] | None = None,
    ) -> dict[str, float]:
        """Measure there what freezing could save at best."""
        options = {"seed": seed, "rounds": rounds, "steps_per_block": steps_per_block}
        measured: dict[str, float] = self._work("freezing_limit", (candidate,), options, stop=stop)[0]
        return measured

    def replay(self, run_path: str, policies: Sequence[Mapping[str, float]]) -> list[PolicyOutcome]:
        """Replay a recorded run there; it is sent along when the folder is not shared."""
        packed = b""
        if not self._retried("replay", self._place.sees_folder):
            packed = ray_folders.pack_run(self._directory, run_path) or b""
        outcomes: list[PolicyOutcome] = self._work("replay", (run_path, list(policies)), {}, packed=packed)[0]
        return outcomes

    def _work(
        self,
        method: str,
        arguments: tuple[Any, ...],
        options: Mapping[str, Any],
        *,
        tell: Callable[[Any], bool | None] = lambda message: None,
        stop: Callable[[], bool] | None = None,
        evaluates: bool = False,
        packed: bytes = b"",
    ) -> tuple[Any, bytes]:
        def end() -> bool:
            return any(ask() for ask in (stop, self._stop) if ask is not None)

        def ask() -> tuple[Any, bytes]:
            return self._place.work(method, arguments, options, tell=tell, end=end, evaluates=evaluates, packed=packed)

        answer: tuple[Any, bytes] = self._retried(method, ask)
        return answer

    def _retried(self, what: str, ask: Callable[[], Any]) -> Any:
        """Make a call again when its worker dies, a few times."""
        losses = 0
        while True:
            end_if_asked(self._stop)
            try:
                return ask()
            except LostWorkerError as error:
                losses += 1
                end_if_asked(self._stop)
                if losses >= MOST_LOSSES:
                    raise LostTrialError(
                        f"the worker died {losses} times during `{what}`; Ray says of the last: {error}"
                    ) from None
