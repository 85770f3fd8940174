"""Finding tasks: built in, in a module, in a file; and one sentence when they cannot be found."""

from __future__ import annotations

import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.kit.plain_training import trained
from workbench.tasks import BUILT_IN, Task, TaskError, load_task
from workbench.tasks.loading import task_sources

# A user's file as the README shows it: a scikit-learn table, an MLP, ten lines.
WINE = """
import torch
from sklearn.datasets import load_wine
from torch import nn
from workbench.tasks import Task
table = load_wine()
x = torch.tensor((table.data - table.data.mean(0)) / table.data.std(0), dtype=torch.float32).split(16)
y = torch.tensor(table.target).split(16)
task = Task(name="wine", model=lambda: nn.Sequential(nn.Linear(13, 32), nn.ReLU(), nn.Linear(32, 3)),
            loss=nn.CrossEntropyLoss(), optimizer=lambda named: torch.optim.Adam(named, lr=0.01),
            train=list(zip(x, y))[::2], evaluate=list(zip(x, y))[1::2], metric="accuracy")
"""

SMALL = """
import torch
from torch import nn
from workbench.tasks import Task
from {neighbour} import N_IN

def make():
    return Task("small", lambda: nn.Linear(N_IN, 2), nn.MSELoss(), lambda named: torch.optim.SGD(named, lr=0.1),
                [(torch.ones(1, N_IN), torch.ones(1, 2))], [(torch.ones(1, N_IN), torch.ones(1, 2))], "mse")

small = make()
class Holder:
    inner = small
def needs(x): ...
def fails(): raise RuntimeError("no data\\nhere")
number = 3
"""


@pytest.fixture(autouse=True)
def clean_imports(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))


@pytest.fixture
def folder(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    # A module name of its own per test: what was imported once stays imported.
    neighbour = f"neighbour_{abs(hash(request.node.nodeid))}"
    (tmp_path / f"{neighbour}.py").write_text("N_IN = 3\n")
    (tmp_path / "tasks_here.py").write_text(SMALL.format(neighbour=neighbour))
    return tmp_path


@pytest.mark.parametrize("name", ["digits-resnet", "topics-gpt"])  # the others are chains of layers
def test_a_built_in_model_is_one_graph_to_the_compiler_and_to_tracing(name: str) -> None:
    task = load_task(name)
    model, inputs = task.new_model(), next(task.batches(0))[0][:3]
    torch.testing.assert_close(torch.compile(model, backend="eager", fullgraph=True)(inputs), model(inputs))
    if name != "topics-gpt":  # whose positions follow the length of what comes
        traced = torch.fx.symbolic_trace(model.eval())
        torch.testing.assert_close(traced(inputs), model(inputs))


@pytest.mark.parametrize("name", BUILT_IN)
def test_a_built_in_task_is_found_by_its_name(name: str) -> None:
    task = load_task(name)
    assert (task.name, task.spec, task.description) == (name, name, BUILT_IN[name])
    assert "sha256:" in task.data_hash


def test_a_ten_line_task_in_a_file_is_found_and_learns(tmp_path: Path) -> None:
    (tmp_path / "wine.py").write_text(WINE)
    task = load_task(str(tmp_path / "wine.py"))
    assert trained(task, seed=0, n_steps=150)[1] > 0.9
    assert task.data_digest().startswith("first 8 batches sha256:")


PARSED = """\
import argparse

parser = argparse.ArgumentParser()
parser.add_argument("--width", type=int, {option})
width = parser.parse_args().width
"""


def test_what_a_script_reads_from_its_command_line_are_its_defaults(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not what stands on that of this program."""
    monkeypatch.setattr("sys.argv", ["workbench", "tune", "own.py:task"])
    (tmp_path / "own.py").write_text(PARSED.format(option="default=7") + WINE)
    assert load_task(str(tmp_path / "own.py")).name == "wine"
    assert sys.argv[1:] == ["tune", "own.py:task"]
    (tmp_path / "own.py").write_text(PARSED.format(option="required=True") + WINE)
    with pytest.raises(TaskError, match=r"SystemExit: 2 \(line 5 .*goes below `if __name__ == .*reading its arguments"):
        load_task(str(tmp_path / "own.py"))


@pytest.mark.parametrize("attribute", ["small", "make", "Holder.inner"])
def test_an_attribute_may_be_a_task_or_a_function_that_returns_one(folder: Path, attribute: str) -> None:
    task = load_task(f"{folder / 'tasks_here.py'}:{attribute}")
    assert task.name == "small"
    assert task.new_model().in_features == 3
    assert load_task(task.spec).name == "small"


def test_a_relative_path_is_looked_for_in_the_folder_given_and_then_here(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "elsewhere").mkdir()
    monkeypatch.chdir(folder / "elsewhere")
    task = load_task("tasks_here.py:small", folder=folder)
    assert task.spec == f"{(folder / 'tasks_here.py').resolve()}:small"
    with pytest.raises(TaskError, match=r"task file tasks_here.py is not there; looked at .*elsewhere"):
        load_task("tasks_here.py:small")
    text = (folder / "tasks_here.py").read_text()
    (folder / "elsewhere" / "tasks_here.py").write_text(text.replace('"small"', '"of another"'))
    assert load_task("tasks_here.py:small", folder=folder).name == "small"


def test_a_file_of_the_working_directory_is_never_taken_silently(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "study").mkdir()
    monkeypatch.chdir(folder)
    with pytest.warns(UserWarning, match=r"tasks_here.py is not in .*study; .*tasks_here.py, of the working directory"):
        task = load_task("tasks_here.py:small", folder=folder / "study")
    assert task.name == "small"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        load_task("../tasks_here.py:small", folder=folder / "study")
        load_task(f"{folder / 'tasks_here.py'}:small", folder=folder / "study")


def test_the_code_of_a_task_is_its_file_and_what_it_imports_from_beside_it(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)  # where torch's modules without a file, such as _ops.py, would be
    text = (folder / "tasks_here.py").read_text()
    [neighbour] = folder.glob("neighbour_*.py")
    (folder / "not_imported.py").write_text("WIDTH = 4\n")
    found = task_sources(load_task(f"{folder / 'tasks_here.py'}:small"))
    assert set(found) == {"tasks_here.py", neighbour.name}
    (folder / "tasks_here.py").write_text(f"# said in a comment\n\n{text}")
    commented = task_sources(load_task(f"{folder / 'tasks_here.py'}:small"))
    assert commented["tasks_here.py"].split()[0] != found["tasks_here.py"].split()[0]
    assert commented["tasks_here.py"].split()[1] == found["tasks_here.py"].split()[1]
    neighbour.write_text("N_IN = 5\n")
    after = task_sources(load_task(f"{folder / 'tasks_here.py'}:small"))
    assert [name for name in found if after[name].split()[1] != found[name].split()[1]] == [neighbour.name]
    assert task_sources(load_task("digits-lenet")) == {}


def test_a_task_that_only_a_program_knows_is_known_by_its_parts() -> None:
    def parts(width: int = 4, rate: float = 0.1, metric: str = "accuracy") -> dict[str, str]:
        class Own(torch.nn.Linear):  # a class that is made anew, as in a cell of a notebook that is run again
            pass

        batch = torch.zeros(2, 3), torch.zeros(2, dtype=torch.long)
        task = Task(
            name="mine",
            model=lambda: torch.nn.Sequential(Own(3, width), torch.nn.ReLU(), Own(width, 2)),
            loss=torch.nn.functional.cross_entropy,
            optimizer=lambda named: torch.optim.SGD(named, lr=rate),
            train=[batch],
            evaluate=[batch],
            metric=metric,
        )
        return task_sources(task)

    before = torch.random.get_rng_state()
    given = parts()
    assert parts() == given
    assert torch.equal(torch.random.get_rng_state(), before)

    def changed(**other: Any) -> set[str]:
        return {name for name, digest in parts(**other).items() if digest != given[name]}

    assert changed(width=5) == {"its model"}
    assert changed(rate=0.2) == {"its optimizer"}
    assert changed(metric="loss") == {"its metric"}


def test_a_file_is_one_module_until_it_is_edited(folder: Path) -> None:
    spec = f"{folder / 'tasks_here.py'}:small"
    first = load_task(spec)
    assert load_task(spec).model is first.model
    text = (folder / "tasks_here.py").read_text()
    (folder / "tasks_here.py").write_text(text.replace('"small"', '"other"'))  # same length, same second
    assert load_task(spec).name == "other"


def test_a_module_in_the_working_directory_is_found(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = folder / f"package_{folder.name.replace('-', '_')}"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "mine.py").write_text((folder / "tasks_here.py").read_text())
    monkeypatch.chdir(folder)
    task = load_task(f"{package.name}.mine:small")
    assert task.spec == f"{package.name}.mine:small"
    assert task.name == "small"


@pytest.mark.long
def test_another_process_finds_the_task_by_its_spec(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    spec = load_task(f"{folder / 'tasks_here.py'}:small").spec
    script = f"from workbench.tasks import load_task; print(load_task({spec!r}).name)"
    root = Path(__file__).parents[2]
    command = [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(root)!r}); {script}"]
    assert subprocess.check_output(command, cwd=tmp_path_factory.mktemp("somewhere"), text=True).strip() == "small"


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("digits-resnt", "unknown task 'digits-resnt'; did you mean 'digits-resnet'"),
        ("nonsense", f"unknown task 'nonsense'; built in are {', '.join(BUILT_IN)}"),
        ("", "a task must be named by text"),
        ("no_such_module_here:task", "task module no_such_module_here is not there"),
        ("workbench.no_such_part:task", "no module named 'workbench.no_such_part'"),
        ("no/such/file.py", "task file no/such/file.py is not there; looked at /"),
        ("workbench.tasks.digits:digits_resnt", "has no attribute 'digits_resnt'; did you mean .*:digits_resnet?"),
    ],
)
def test_a_name_that_leads_nowhere_says_so(spec: str, words: str) -> None:
    with pytest.raises(TaskError, match=words) as caught:
        load_task(spec)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("attribute", "words"),
    [
        ("mak", "has no attribute 'mak'; did you mean .*tasks_here.py:make?"),
        ("smal", "has no attribute 'smal'; did you mean .*tasks_here.py:small?"),
        ("", "has no attribute 'task'; did you mean .*tasks_here.py:small?"),
        ("number", "must be a workbench Task or a function that returns one, got int"),
        ("needs", r"must be a Task or a function without arguments, got one with \(x\)"),
        ("fails", r"failed: RuntimeError: no data here \(line 15 of .*tasks_here.py\)"),
        ("Holder", "must be a workbench Task or a function that returns one, got Holder"),
    ],
)
def test_an_attribute_that_is_no_task_says_so(folder: Path, attribute: str, words: str) -> None:
    spec = f"{folder / 'tasks_here.py'}" + (f":{attribute}" if attribute else "")
    with pytest.raises(TaskError, match=words) as caught:
        load_task(spec)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("import os\nimport no_such_package\n", r"ModuleNotFoundError: No module named 'no_such_package' \(line 2 of"),
        ("x = 1\ny = (\n", r"SyntaxError: .* \(line 2 of"),
        ("def f():\n    return 1 / 0\n\nf()\n", r"ZeroDivisionError: division by zero \(line 2 of"),
        ("raise SystemExit(3)\n", r"SystemExit: 3 \(line 1 of"),
        ("from workbench.tasks import Task\n\nTask('a', 3, 3, 3, [], [], 'x')\n", r"`model` must .* \(line 3 of"),
    ],
    ids=["missing package", "syntax", "error", "exit", "bad task"],
)
def test_a_file_that_fails_says_what_and_where(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "broken.py"
    path.write_text(text)
    with pytest.raises(TaskError, match=rf"task file .*broken.py cannot be loaded: .*{words} .*broken.py") as caught:
        load_task(str(path))
    assert "\n" not in str(caught.value)
    assert str(tmp_path) not in sys.path


def test_a_module_that_fails_says_what_and_where(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "broken_module_of_mine.py").write_text("\n\nimport no_such_package\n")
    monkeypatch.chdir(tmp_path)
    words = r"cannot be imported: ModuleNotFoundError: No module named 'no_such_package' \(line 3 of .*of_mine.py\)"
    with pytest.raises(TaskError, match=words):
        load_task("broken_module_of_mine:task")
