"""The questions: files of ``studies/bench`` with a ``BENCHMARK``, importable as ``workbench.bench.questions.NAME``.

A wheel carries the folder among the templates of ``workbench init``; in a checkout it is the repository's own.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Final

from workbench.bench.benchmark import Benchmark

__all__ = ["BenchError", "benchmarks", "chosen"]

_PACKAGE: Final = Path(__file__).parents[1]
_FOLDERS: Final = (_PACKAGE / "packaged_templates" / "studies" / "bench", _PACKAGE.parent / "studies" / "bench")
__path__ = [str(folder) for folder in _FOLDERS if folder.is_dir()][:1]  # where Python looks for our submodules

ALL: Final = "all"


class BenchError(ValueError):
    """A benchmark that does not exist was asked for."""


def benchmarks() -> dict[str, Benchmark]:
    """Return every benchmark by name, in the order of lists and tables."""
    files = (file for folder in __path__ for file in Path(folder).glob("*.py"))
    modules = [file.stem for file in files if "\nBENCHMARK = " in file.read_text(encoding="utf-8")]
    found: list[Benchmark] = [import_module(f"{__name__}.{module}").BENCHMARK for module in modules]
    return {one.name: one for one in sorted(found, key=lambda one: (one.place, one.name))}


def chosen(names: Sequence[str]) -> list[Benchmark]:
    """Return the benchmarks that are meant.

    Args:
        names: Names of benchmarks or of their groups; ``"all"`` means every one, no name the quick ones.

    Raises:
        BenchError: When a name is unknown, or this installation has no benchmarks.
    """
    offered = benchmarks()
    if not offered:
        raise BenchError("this installation carries no benchmarks; install boost-workbench again")
    if not names:
        return [benchmark for benchmark in offered.values() if benchmark.quick]
    groups = {
        one.group: [other.name for other in offered.values() if other.group == one.group]
        for one in offered.values()
        if one.group
    }
    meant = [one for name in names for one in groups.get(name, (name,))]
    unknown = [name for name in meant if name != ALL and name not in offered]
    if unknown:
        there = ", ".join((*offered, *groups))
        raise BenchError(f"no benchmark is called {unknown[0]!r}; there are {there}, or {ALL!r}")
    return list(offered.values()) if ALL in meant else [offered[name] for name in dict.fromkeys(meant)]
