"""Virtual environments with a few of the packages installed here and no others, made in a second without a network."""

from __future__ import annotations

import venv
from collections.abc import Iterable
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import Requirement


def environment_with(folder: Path, names: Iterable[str], *, on_path: Path | None = None) -> str:
    """Make an environment of links to these distributions and to what they require; return its interpreter.

    ``on_path`` is a folder whose packages are there, too, as after an editable installation.
    """
    venv.create(folder, symlinks=True)
    site = next(folder.glob("lib/python*/site-packages"))
    for one in required(names):
        for part in {file.parts[0] for file in one.files or ()} - {"..", "__pycache__"}:
            link, target = site / part, Path(str(one.locate_file(part)))
            if not link.exists() and target.exists():
                link.symlink_to(target)
    if on_path is not None:
        (site / "on_path.pth").write_text(f"{on_path}\n", encoding="utf-8")
    return str(folder / "bin/python")


def required(names: Iterable[str]) -> list[Distribution]:
    """Return these distributions and those that they require without extras; what is not here is left out."""
    found: dict[str, Distribution] = {}
    wanted = list(names)
    while wanted:
        name = wanted.pop().lower().replace("_", "-")
        if name in found:
            continue
        try:
            found[name] = distribution(name)
        except PackageNotFoundError:  # of another platform
            continue
        requirements = [Requirement(line) for line in found[name].requires or ()]
        wanted += [one.name for one in requirements if one.marker is None or one.marker.evaluate({"extra": ""})]
    return list(found.values())
