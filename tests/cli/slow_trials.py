"""A study on a real table whose trials are quick, or take minutes while a file is there: time to kill and interrupt."""

from __future__ import annotations

from pathlib import Path

from optuna.trial import FrozenTrial, TrialState

from tests.cli.conftest import STUDY, TASK
from workbench.study.store.storage import default_storage, find_study, open_storage

_SLOW = "slow"
_BATCHES = """\
class Batches(list):
    def __iter__(self):
        for batch in super().__iter__():
            if Path(__file__).with_name("slow").exists():
                time.sleep(1.0)
            yield batch


batches ="""


def write_slow_study(folder: Path) -> Path:
    """Write the task and a study of it that has not begun; return the study's folder."""
    text = TASK.replace("import torch\n", "import time\nfrom pathlib import Path\n\nimport torch\n", 1)
    text = text.replace("batches =", _BATCHES, 1).replace("train=batches", "train=Batches(batches)")
    (folder / "wine.py").write_text(text)
    study = folder / "study"
    study.mkdir()
    (study / "study.toml").write_text(STUDY.replace("budget_steps = 12", "budget_steps = 200"))
    return study


def make_slow(study: Path, *, slow: bool) -> None:
    """Let trials take minutes from now on, or be quick again."""
    file = study.with_name(_SLOW)
    file.touch() if slow else file.unlink()


def trials_of(study: Path) -> list[FrozenTrial]:
    """Return the trials as the database has them now."""
    storage = open_storage(default_storage(study))
    try:
        return find_study(storage, "study").get_trials(deepcopy=False)
    finally:
        storage.engine.dispose()


def in_training(study: Path) -> set[int]:
    """Return the numbers of the running trials that have begun to train."""
    begun = {path.parent.name for path in study.rglob("steps.jsonl")}
    running = [one.number for one in trials_of(study) if one.state == TrialState.RUNNING]
    return {number for number in running if f"trial_{number:04d}" in begun}
