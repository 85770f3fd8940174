"""README and docs: links that lead somewhere, examples that run, tables that are complete, a short first page."""

from __future__ import annotations

import importlib.util
import itertools
import json
import re
import shlex
import shutil
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
import typer
from torch import nn
from typer.testing import CliRunner

from workbench import BoostConfig, Task
from workbench.cli import app as command_line
from workbench.methods.registry import METHODS
from workbench.study import StudyFile
from workbench.study.ask.study_file import parse_study
from workbench.tasks import clicks
from workbench.training.snapshots import SnapshotRecorder

ROOT = Path(__file__).parents[1]
GENERATED = ("methods", "reference", "tutorials")  # folders of docs that hold pages of the last build
GUIDES = [path for path in sorted((ROOT / "docs").rglob("*.md")) if path.parent.name not in GENERATED]
SHOWN = [ROOT / "README.md", *GUIDES]
PAGES = [*SHOWN, ROOT / "CONTRIBUTING.md"]
BLOCK = re.compile(r"^```([^\n]*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
# Pages, and blocks by their first line, that a test of their own executes, and where.
ELSEWHERE = {
    "accelerate.md": "tests/integrations/test_pages.py",
    "transformers.md": "tests/integrations/test_pages.py",
    "lightning.md": "tests/integrations/test_lightning_together.py",
    "import workbench": "tests/browser/test_model_in_memory.py",
}
DIRECTIVE = re.compile(r"\{[a-z-]+\}")  # of MyST, such as {toctree}; Sphinx executes it

each_page = pytest.mark.parametrize("page", SHOWN, ids=lambda page: str(page.relative_to(ROOT)))


def _module(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / "docs" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


generated, tutorials = _module("generated"), _module("tutorials")


def _blocks(page: Path, language: str) -> list[str]:
    return [text for name, text in BLOCK.findall(page.read_text(encoding="utf-8")) if name == language]


def _anchor(heading: str) -> str:
    """Return the anchor that GitHub gives a heading."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


# Links


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_to_a_file_or_heading_of_ours_leads_there(page: Path) -> None:
    text = BLOCK.sub("", page.read_text(encoding="utf-8"))
    pictures = re.findall(r'(?:src|srcset)="([^"]+)"', text)
    for target in [*re.findall(r"\]\(([^)\s]+)\)", text), *pictures]:
        if "://" in target:
            continue
        name, _, anchor = target.removeprefix("project:").partition("#")
        path = (page.parent / name).resolve() if name else page
        if target.startswith("project:"):  # a page that only the built documentation has
            assert str(path.relative_to(ROOT / "docs")) in generated.pages(), target
            continue
        assert path.exists(), target
        if anchor:
            headings = re.findall(r"(?m)^#+ (.+)$", path.read_text(encoding="utf-8"))
            assert anchor in map(_anchor, headings), target


@each_page
def test_pictures_of_a_page_are_there_in_light_and_dark(page: Path) -> None:
    for name in re.findall(r"images/([\w-]+)\.png", page.read_text(encoding="utf-8")):
        for theme in ("light", "dark"):
            picture = ROOT / "docs" / "images" / f"{name.rpartition('-')[0]}-{theme}.png"
            assert picture.stat().st_size <= 60_000, picture


# Blocks of code


@each_page
def test_every_block_says_in_which_language_it_is(page: Path) -> None:
    for name, text in BLOCK.findall(page.read_text(encoding="utf-8")):
        assert name in {"python", "shell", "toml", "json"} or DIRECTIVE.match(name), text


def _names_of_a_reader(folder: Path) -> dict[str, Any]:
    """Return what the examples take for granted: a model, its data and a recording of its weights."""
    torch.manual_seed(0)
    loader = [(torch.randn(8, 4), torch.randint(0, 2, (8,))) for _ in range(8)]
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, fused=True)
    off = {"mode": "manual", "less_bn": False, "grad_freeze": False}
    set_up = {"boost": off, "schedule": {"length": 0.5, "shape": "linear"}, "batch": {"factor": 2.0}}
    for place in (folder, folder / "studies" / "mine" / "result"):
        place.mkdir(parents=True, exist_ok=True)
        (place / "boost_config.o1.json").write_text(json.dumps(set_up))
    shutil.rmtree(folder / "earlier", ignore_errors=True)
    (folder / "earlier").mkdir()
    recorder = SnapshotRecorder(dict(model.named_parameters()), folder / "earlier", every_steps=1, count=4)
    for step in range(4):
        recorder.after_step(step)
        with torch.no_grad():
            model[0].weight += torch.randn_like(model[0].weight)
    subspace = {"weight_load_dir": str(folder / "earlier"), "n_components": 2}
    return {
        "model": model,
        "net": model,
        "network": model,
        "optimizer": optimizer,
        "loader": loader,
        "epochs": 2,
        "criterion": nn.CrossEntropyLoss(),
        "loss_fn": nn.CrossEntropyLoss(),
        "held_out": loader,
        "accuracy": lambda network, batches: float((network(batches[0][0]).argmax(1) == batches[0][1]).float().mean()),
        "config": {"boost": {**off, "dim_reduce": True}, "dim_reduce": subspace},
    }


def _task_of_a_reader() -> Task:
    """Return the task that the guide to one's own model begins with."""
    names: dict[str, Any] = {}
    exec(_blocks(ROOT / "docs" / "guide" / "own_model.md", "python")[0], names)
    task: Task = names["task"]
    return task


@pytest.mark.parametrize("page", [page for page in SHOWN if _blocks(page, "python")], ids=lambda page: page.stem)
def test_python_examples_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    # MindSpore's Model has the arguments of ours; a stream without an end ends here.
    monkeypatch.setitem(sys.modules, "mindspore", SimpleNamespace(Model=importlib.import_module("workbench.nn").Model))
    endless = clicks.click_stream
    monkeypatch.setattr(clicks, "click_stream", lambda **of: itertools.islice(endless(**of), 12))
    names: dict[str, Any] = {"task": _task_of_a_reader()}  # until the page makes one
    for example in _blocks(page, "python"):
        if page.name in ELSEWHERE or example.partition("\n")[0] in ELSEWHERE:
            compile(example, page.name, "exec")
            continue
        names |= _names_of_a_reader(tmp_path)
        exec(compile(example, page.name, "exec"), names)
        if example.startswith("# my_task.py"):
            assert isinstance(names["task"], Task)


@pytest.mark.parametrize("text", ELSEWHERE)
def test_what_runs_elsewhere_is_read_there(text: str) -> None:
    assert text in (ROOT / ELSEWHERE[text]).read_text(encoding="utf-8")


@each_page
def test_examples_of_files_are_valid(page: Path) -> None:
    for text in _blocks(page, "json"):
        BoostConfig.from_dict(json.loads(text))
    for text in _blocks(page, "toml"):
        given = tomllib.loads(text)
        whole = {"task": "digits-lenet", "budget_steps": 10, "n_trials": 2, "ranks": 4, **given.get("study", {})}
        lines = [f"{key} = {json.dumps(value)}" for key, value in whole.items()]
        others = re.sub(r"(?ms)^\[study\]$.*?(?=^\[|\Z)", "", text)
        parse_study("[study]\n" + "\n".join(lines) + "\n" + others)


def _commands(page: Path) -> Iterator[list[str]]:
    """Yield the words of each command of a page's shell blocks, without what is set before it."""
    for text in _blocks(page, "shell"):
        for line in text.replace("\\\n", " ").splitlines():
            for command in line.split("&&"):
                words = shlex.split(command, comments=True)
                while words and re.fullmatch(r"[A-Z_]+=.*", words[0]):
                    words.pop(0)
                if words:
                    yield words


@each_page
def test_every_command_is_one_that_there_is(page: Path) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    for words in _commands(page):
        program, rest = Path(words[0]).name, words[1:]
        if program == "torchrun" or rest[:2] == ["-m", "workbench"]:
            program, rest = "workbench", rest[rest.index("workbench") + 1 :]
        if program == "workbench":
            _parse(rest)
        elif program == "pip":
            for extras in re.findall(r"\[([\w,]+)\]", " ".join(rest)):
                assert set(extras.split(",")) <= set(project["project"]["optional-dependencies"]), words
        elif program == "pytest":
            markers = {one.partition(":")[0] for one in project["tool"]["pytest"]["markers"]}
            named = [rest[i + 1] for i, word in enumerate(rest) if word == "-m"]
            assert set(named) <= markers, words
            assert all((ROOT / word).exists() for word in rest if word.startswith("tests")), words
        else:
            assert program in {"python", "python3.11", "sphinx-build", "source"}, words


def _parse(words: list[str]) -> None:
    """Read a command line as the program does, without doing what it says; a mistake raises."""
    command: Any = typer.main.get_command(command_line)
    while hasattr(command, "commands"):
        assert words[0] in command.commands, words
        command, words = command.commands[words[0]], words[1:]
    command.make_context("workbench", list(words))


def test_a_wrong_option_is_noticed() -> None:
    with pytest.raises(Exception, match="No such option"):
        _parse(["tune", "studies/quickstart", "--minuts", "3"])


@pytest.mark.slow
def test_the_way_from_zero_can_be_walked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    page = ROOT / "docs" / "guide" / "own_model.md"
    task = _blocks(page, "python")[0]
    (tmp_path / "my_task.py").write_text(task)
    (train,) = (words for words in _commands(page) if "train" in words and "--level" in words)
    done = CliRunner().invoke(command_line, train[train.index("workbench") + 1 :])
    assert done.exit_code == 0, done.output
    assert "accuracy" in done.stdout


# Words that a reader of English stumbles over, and that were here once.
STRANGE = (
    *("sign of life", "signs of life", "mend it", "mend the", "said so", "that is dear", "killed with -9"),
    *("counted and told", "settings pay on", "poisoned records are", "goes on from there", "nobody tuned"),
    *("nobody has worked", "called anew", "tuned anew", "belongs to somebody", "applied all the same"),
)


@pytest.mark.parametrize("folder", ["docs", "notebooks", "studies", "workbench"])
def test_texts_are_free_of_words_that_nobody_says(folder: str) -> None:
    kinds = {".md", ".py", ".ipynb", ".toml", ".j2", ".js"}
    texts = [path for path in (ROOT / folder).rglob("*") if path.suffix in kinds and "result" not in path.parts]
    assert texts
    texts += [ROOT / "README.md"]
    for path in texts:
        text = " ".join(path.read_text(encoding="utf-8").lower().split())
        assert [words for words in STRANGE if words in text] == [], path


# What is generated


def test_the_table_of_a_study_has_every_key() -> None:
    page = generated.study_page()
    schema = StudyFile.model_json_schema()
    sections = dict(re.findall(r"## `\[(\w+)\]`(.*?)(?=\n## |\Z)", page, re.DOTALL))
    assert set(sections) == set(schema["properties"])
    n_keys = 0
    for name, about in schema["properties"].items():
        reference = json.dumps(about)
        for kind in re.findall(r"#/\$defs/(\w+)", reference):
            for key in schema["$defs"][kind]["properties"]:
                rows = [line for line in sections[name].splitlines() if f"`{key}` |" in line]
                assert len(rows) == 1, (name, key)
                assert len(rows[0].split(" | ")[-1]) > 12, f"{name}.{key} says nothing of what it means"
                n_keys += 1
    assert n_keys > 50


def test_the_table_of_a_configuration_has_every_path() -> None:
    page = generated.configuration_page()
    leaves = BoostConfig().with_values({"optimizer.name": "SGD"}).leaves()
    paths = [path for path in leaves if not path.startswith("provenance")]
    assert len(paths) > 60
    assert [path for path in paths if f"`{path}` |" not in page] == []


def test_the_page_of_commands_has_every_option() -> None:
    page = generated.commands_page()
    for path, command in generated.commands():
        section = page.partition(f"## `{path}`")[2].partition("\n## ")[0]
        assert section, path
        options = {one for parameter in command.params for one in parameter.opts if one.startswith("--")}
        assert {one for one in options - {"--help"} if f"`{one}" not in section} == set(), path


@pytest.mark.parametrize("method", METHODS, ids=lambda one: one.name)
def test_a_methods_page_says_when_it_hurts_and_what_was_measured(method: Any) -> None:
    card = method.card()
    for heading in ("**What it does.**", "**When it helps.**", "**When it hurts.**", "**Measured.**", "**Source.**"):
        assert heading in card
    assert re.search(r"\*\*Measured\.\*\*[^*]*\d", card), "figures of our own"
    page = generated.method_page(method)
    included = re.search(r"\{include\} (\S+)", page)
    assert included
    assert (ROOT / "docs" / "methods" / included.group(1)).resolve().is_file()
    assert f"`{method.switch}` |" in page


def test_first_pages_show_what_the_quickstart_keeps() -> None:
    figures = generated.quickstart()
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert f"{figures['speedup']} x ({figures['speedup_low']} to {figures['speedup_high']})" in text
    assert f"loses {figures['drop']} points of accuracy, where {figures['allowed']} point is allowed" in text
    assert f"{figures['seeds']} seeds" in text


def test_pages_of_an_earlier_build_are_removed(tmp_path: Path) -> None:
    old, kept = tmp_path / "methods" / "old.md", tmp_path / "guide" / "mine.md"
    for path in (old, kept):
        path.parent.mkdir()
        path.write_text("text")
    generated.write_pages(tmp_path, {"methods/new.md": "# New\n", "reference/index.md": "# Reference\n"})
    assert not old.exists()
    assert kept.exists()
    assert (tmp_path / "methods" / "new.md").read_text() == "# New\n"


def test_a_tutorial_shows_the_figures_of_its_executed_copy_unless_that_has_another_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = ROOT / "notebooks" / "02_loss_scale_and_overflow.ipynb"
    monkeypatch.setattr(tutorials, "EXECUTED", tmp_path)
    name = f"tutorials/{source.name}"
    assert "figures are missing" in tutorials.pages()[name]
    executed = json.loads(source.read_text(encoding="utf-8"))
    cell = next(cell for cell in executed["cells"] if cell["cell_type"] == "code")
    figure = {"data": [{"y": [1, 2]}], "layout": {"title": {"text": "a </script> b"}}}
    outputs = ({tutorials.FIGURE: figure, "text/plain": "Figure"}, {tutorials.WIDGET: {"model_id": "x"}})
    cell["outputs"] = [{"output_type": "display_data", "data": data, "metadata": {}} for data in outputs]
    (tmp_path / source.name).write_text(json.dumps(executed))
    page = json.loads(tutorials.pages()[name])
    shown = [one["data"]["text/html"] for cell in page["cells"] for one in cell.get("outputs", [])]
    assert "figures are missing" not in json.dumps(page)
    embedded = re.search(r'<script type="application/json">(.*?)</script>', shown[0])
    assert embedded
    assert json.loads(embedded.group(1)) == figure
    assert "workbench lab 02" in shown[1]
    executed["cells"][1]["source"] = "print('an earlier version')"
    (tmp_path / source.name).write_text(json.dumps(executed))
    assert "figures are missing" in tutorials.pages()[name]


# The first page


def test_the_first_page_is_short_and_says_on_its_first_screen_where_it_has_not_run() -> None:
    assert (ROOT / "README.md").stat().st_size <= 12_000
    head = (ROOT / "README.md").read_text(encoding="utf-8").partition("## Install")[0]
    assert "tested against stand-ins only. macOS and Windows are untested." in " ".join(head.split())
