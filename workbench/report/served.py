"""What a page knows of the server that shows it: `workbench view` follows work that goes on, a file does not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RunChoice:
    """A run that may be laid over others."""

    path: str  # below the folder that is served, with slashes
    label: str
    address: str  # of its own page
    chosen: bool = False  # at first


@dataclass(frozen=True, slots=True)
class Served:
    """What a served page shows besides its content."""

    version: str  # of the content: the page asks for another one
    state: str = ""  # whether the work goes on, a sentence
    is_live: bool = False  # it does
    up: tuple[str, str] | None = None  # address and name of the folder around it
    here: str = ""  # address of the folder that the paths of a study's runs begin from
    runs: Sequence[RunChoice] = ()  # that may be laid over each other
