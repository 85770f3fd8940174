"""What is trained, where, and where it is recorded: the fields that Train and Compare share."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from workbench.panels.kit import Dropdown, text_box

if TYPE_CHECKING:
    from workbench.tasks import Task

_DEVICES: Final = ("auto", "cpu", "cuda", "npu")


class TaskControls:
    """Fields for task, device and folder; the name of a task that was ``given`` as an object cannot be changed."""

    def __init__(self, task: Task | str, device: str, out: str | Path | None) -> None:
        self.given = None if isinstance(task, str) else task
        self.name = text_box(
            task if isinstance(task, str) else task.name,
            "Name of a built-in task, package.module:attribute, or path/to/file.py:attribute",
        )
        self.device = Dropdown(
            options=list(dict.fromkeys((*_DEVICES, device))), value=device, css="wb-wide", tooltip="Where to train"
        )
        self.out = text_box(
            "" if out is None else str(out),
            "Folder in which run directories are made; empty records nothing",
            placeholder="records nothing",
        )

    @property
    def task(self) -> Task | str:
        """The task, or its name."""
        return self.given if self.given is not None else str(self.name.value)

    @property
    def folder(self) -> Path | None:
        """Folder of run directories; None records nothing."""
        return Path(self.out.value).expanduser() if self.out.value.strip() else None

    def lock(self, locked: bool) -> None:
        """Disable the fields while work is under way, or free them again."""
        self.name.disabled = locked or self.given is not None
        self.device.disabled = self.out.disabled = locked
