"""What one click on Start asks of a study, and the work of the panel's thread that does it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workbench.core.files import write_text_atomically

if TYPE_CHECKING:
    from workbench.panels.worker import RunControl
    from workbench.study import StudyResult, TuneProgress
    from workbench.tasks import Task

__all__ = ["StudyOrder", "run_study"]


@dataclass(frozen=True, slots=True)
class StudyOrder:
    """What one click on Start asks for; ``text`` is what ``study.toml`` shall say.

    ``task`` is one that only this program knows, ``options`` are trials and timeout beyond those in the file of a study
    that has begun, and ``fresh`` archives what is there and begins again.
    """

    folder: Path
    text: str
    task: Task | None = None
    jobs: int = 1
    fresh: bool = False
    options: Mapping[str, Any] = field(default_factory=dict)


def run_study(order: StudyOrder, control: RunControl) -> StudyResult | None:
    """Write the study's file and run it; None when it was stopped on the way.

    It sends its progress, and after each trial what is known of the study. A study that is asked something else than
    before keeps its file, and says so with a StudyError.
    """
    from workbench import api
    from workbench import study as studies

    studies.parse_study(order.text, source="study.toml", default_name=order.folder.resolve().name)
    path = order.folder / "study.toml"
    before = path.read_text(encoding="utf-8") if path.exists() else None
    if before != order.text:
        order.folder.mkdir(parents=True, exist_ok=True)
        write_text_atomically(path, order.text)
    seen: list[Any] = []

    def send(progress: TuneProgress) -> None:
        control.send(progress)
        if seen != [progress.phase, progress.trials]:
            seen[:] = [progress.phase, progress.trials]
            control.send(studies.read_result(order.folder))

    try:
        return api.tune(
            order.folder,
            fresh=order.fresh,
            jobs=order.jobs,
            on_progress=send,
            stop=control.stop_requested,
            task=order.task,
            **order.options,
        )
    except studies.StudyStoppedError:
        control.send(studies.read_result(order.folder))
        return None
    except studies.StudyChangedError:
        if before is not None and before != order.text:  # until the user says so the stored question stands
            write_text_atomically(path, before)
        raise
