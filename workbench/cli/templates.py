"""The notebooks and studies that come with the package: inside a wheel, or in the repository of a checkout."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from workbench.core.files import write_bytes_atomically

_PACKAGED, _CHECKOUT = Path(__file__).parents[1] / "packaged_templates", Path(__file__).parents[2]
_PATTERNS = ("studies/*/study.toml", "studies/*/README.md", "studies/*/*.py", "studies/*/*/*.json", "notebooks/*.ipynb")
_ANSWERS = "result"  # of a study: they belong to the machine that found them


def template_files() -> Iterator[tuple[Path, Path]]:
    """Yield (file, path relative to the folder it goes to), sorted."""
    root = _PACKAGED if _PACKAGED.is_dir() else _CHECKOUT
    for pattern in _PATTERNS:
        for path in sorted(root.glob(pattern)):
            if path.parent.name != _ANSWERS:
                yield path, path.relative_to(root)


def copy_templates(directory: Path, *, folder: str = "") -> tuple[list[Path], list[Path]]:
    """Write the templates into a folder, made when missing; return files written, and files that were there already.

    ``folder`` limits them to ``"notebooks"`` or ``"studies"``.
    """
    files = [(path, relative) for path, relative in template_files() if folder in {"", relative.parts[0]}]
    if not files:
        missing = folder or "notebooks and studies"
        raise RuntimeError(f"this installation carries no {missing}; install boost-workbench again")
    if directory.exists() and not directory.is_dir():
        raise NotADirectoryError(20, "not a folder; name a folder to write into", str(directory))
    written, kept = [], []
    for source, relative in files:
        target = directory / relative
        if target.exists():
            kept.append(target)
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        write_bytes_atomically(target, source.read_bytes())
        written.append(target)
    return written, kept
