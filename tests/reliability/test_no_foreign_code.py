"""No module of the package runs what a file holds, or times anything by a clock that people set."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path

import pytest

from tests.architecture.import_graph import ROOT, nodes_below

# What runs code, or builds what a file names; and where it may stand, with the reason.
RUNS_CODE = {"eval", "exec", "compile", "__import__", "execfile", "input"}
UNPICKLES = {"pickle", "cPickle", "_pickle", "dill", "cloudpickle", "joblib", "marshal", "shelve", "yaml", "jsonpickle"}
LOADS = {"torch.load", "np.load", "numpy.load", "torch.jit.load", "torch.hub.load", "ForkingPickler.loads"}
ALLOWED = {
    ("core/open_files.py", "pickle"): "which only writes there, and keeps nothing",
    ("study/run/process_trainer.py", "pickle"): "an error of its own, to see whether it can be sent",
    ("methods/batch/own_collate.py", "pickle"): "samples that a process forked from this one hands over",
    ("tasks/read_ahead.py", "ForkingPickler.loads"): "batches that a process forked from this one hands over",
    ("tasks/loading.py", "exec"): "a task file is the user's own program, named on the command line",
    ("tasks/loading.py", "compile"): "the same",
    ("training/checkpoint.py", "torch.load"): "with weights_only=True, which builds tensors and plain values",
}

# Days and dates are for people and for files' own times; durations are measured with a monotonic clock.
WALL_CLOCK = {"time.time", "time.time_ns", "datetime.now", "datetime.utcnow", "datetime.today", "datetime.datetime.now"}
TELLS_THE_TIME = {
    "runs/recorder.py": "when a run began and ended, and its name",
    "runs/overview.py": "the age of files",
    "runs/writer_lock.py": "the age of files",
    "study/store/storage.py": "the name of an archive",
    "study/store/status_file.py": "the age of a file",
    "view/pages.py": "the age of files",
    "study/answer/export.py": "when a file was written",
    "study/run/ending.py": "when a trial began, as Optuna stored it",
    "study/store/study_storage.py": "when a trial began and ended, as Optuna's own storage says it",
    "cli/command_start.py": "when a command began, handed to its ranks",
    "training/run_output.py": "when a run began",
    "runs/mirrors/mirror.py": "when a run began, for a library that asks",
    "mindspore/mirror_callback.py": "the same",
}


def dotted(node: ast.AST) -> str:
    """Return ``a.b.c`` for names and attributes of names, and nothing for anything else."""
    if isinstance(node, ast.Attribute):
        return f"{inner}.{node.attr}" if (inner := dotted(node.value)) else ""
    return node.id if isinstance(node, ast.Name) else ""


def calls(nodes: list[ast.AST]) -> list[tuple[str, ast.Call]]:
    """Return every call with the dotted name of what is called; names that were imported stand for themselves."""
    return [(dotted(node.func), node) for node in nodes if isinstance(node, ast.Call)]


def keyword(call: ast.Call, name: str) -> str:
    """Return what a call gives for a keyword, as it is written; False stands for nothing."""
    return next((ast.unparse(one.value) for one in call.keywords if one.arg == name), "False")


def test_nothing_runs_or_unpickles_a_file() -> None:
    found: list[str] = []
    used = set()
    for path, nodes in nodes_below().items():
        place = path.relative_to(ROOT).as_posix()
        for node in nodes:
            names = [one.name for one in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            for name in {name.split(".")[0] for name in names} & UNPICKLES:
                used.add((place, name))
                if (place, name) not in ALLOWED:
                    found.append(f"{place}:{node.lineno} imports {name}")
        for name, call in calls(nodes):
            key = (place, name)
            if name in RUNS_CODE | LOADS:
                used.add(key)
                if key not in ALLOWED:
                    found.append(f"{place}:{call.lineno} calls {name}")
            if name == "torch.load" and keyword(call, "weights_only") != "True":
                found.append(f"{place}:{call.lineno} loads without weights_only=True")
            if keyword(call, "allow_pickle") != "False":
                found.append(f"{place}:{call.lineno} allows pickles")
            if keyword(call, "shell") != "False" or name in {"os.system", "os.popen"}:
                found.append(f"{place}:{call.lineno} starts a shell")
    assert not found
    assert used == ALLOWED.keys(), "an exception that nobody needs any more"


def test_only_dates_are_told_by_a_clock_that_people_set() -> None:
    told = {path for path, nodes in nodes_below().items() for name, _ in calls(nodes) if name in WALL_CLOCK}
    assert not {path.relative_to(ROOT).as_posix() for path in told} - TELLS_THE_TIME.keys()


@pytest.mark.parametrize("notebook", sorted((ROOT.parent / "notebooks").glob("*.ipynb")), ids=lambda path: path.stem)
def test_no_notebook_runs_or_unpickles_a_file(notebook: Path) -> None:
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    text = "".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")
    assert not re.findall(r"pickle|torch\.load\(|(?<![.\w])(?:eval|exec)\(", text)  # model.eval() is another
