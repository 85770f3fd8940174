"""A study with a fake in the place of training, run to its end."""

from __future__ import annotations

from pathlib import Path

from tests.kit.fake_runner import STUDY, make_fake, write_study
from workbench.study import StudyResult, TuneProgress, tune

__all__ = ["Ended", "ended"]

Ended = tuple[Path, StudyResult, list[TuneProgress]]
"""The folder, the result, and what was told on the way."""


def ended(directory: Path, text: str = STUDY) -> Ended:
    """Run a study."""
    progress: list[TuneProgress] = []
    result = tune(write_study(directory, text), make_experimenter=make_fake, on_progress=progress.append)
    return directory, result, progress
