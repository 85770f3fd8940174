"""The questions: files of ``studies/bench`` with a ``BENCHMARK``, importable as ``workbench.bench.questions.NAME``.

A wheel carries the folder among the templates of ``workbench init``; in a checkout it is the repository's own.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Final

from workbench.bench.benchmark import Benchmark

_PACKAGE: Final = Path(__file__).parents[1]
_FOLDERS: Final = (_PACKAGE / "packaged_templates" / "studies" / "bench", _PACKAGE.parent / "studies" / "bench")
__path__ = [str(folder) for folder in _FOLDERS if folder.is_dir()][:1]  # where Python looks for our submodules


class BenchError(ValueError):
    """A benchmark that does not exist was asked for."""


def benchmarks() -> dict[str, Benchmark]:
    """Return every benchmark by name, in the order of lists and tables."""
    files = (file for folder in __path__ for file in Path(folder).glob("*.py"))
    modules = [file.stem for file in files if "\nBENCHMARK = " in file.read_text(encoding="utf-8")]
    found: list[Benchmark] = [import_module(f"{__name__}.{module}").BENCHMARK for module in modules]
    return {one.name: one for one in sorted(found, key=lambda one: (one.place, one.name))}


def chosen(names: Sequence[str]) -> list[Benchmark]:
    """Return the benchmarks that names of theirs or of their groups mean, or ``"all"``; none mean the quick ones.

    Raises:
        BenchError: When a name is unknown, or this installation has no benchmarks.
    """
    offered = benchmarks()
    if not offered:
        raise BenchError("this installation carries no benchmarks; install boost-workbench again")
    meant = {name: [name] for name in offered}
    for one in offered.values():
        if one.group:
            meant.setdefault(one.group, []).append(one.name)
    if unknown := [name for name in names if name not in (*meant, "all")]:
        raise BenchError(f"no benchmark is called {unknown[0]!r}; there are {', '.join(meant)}, or 'all'")
    if "all" in names:
        return list(offered.values())
    wanted = dict.fromkeys(one for name in names for one in meant[name])
    return [offered[name] for name in wanted] or [one for one in offered.values() if one.quick]
