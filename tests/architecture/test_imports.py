"""The arrows of the architecture: who may import whom, and where each library is at home.

Imports point downward only. The tables below say so in plain words; a test that fails prints the offending line.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import pytest

from tests.architecture.import_graph import ROOT, Import, home, imports_below, imports_of, module_name

GROUND = {"config", "core"}
METHODS = {"loss_scale", "methods", "optim"}
STEP = {"runs", "tasks", "training"}
ANSWERS = {"figures", "report", "study"}

# Package or module -> what it may import besides itself and the ground floor.
MAY_IMPORT: dict[str, set[str]] = {
    "core": set(),
    "config": set(),
    # Pure PyTorch beside each other; methods scale and unscale by the rule.
    "loss_scale": set(),
    "optim": set(),
    "methods": {"loss_scale"},
    # What is trained; what is kept of a run, columns that methods describe among it, and shown in other people's tools.
    "tasks": {"optim"},
    "runs": {"loss_scale", "methods"},
    # One step, one loop, one run.
    "training": METHODS | {"runs", "tasks"},
    # The reference's names; streams without end.
    "mindspore": METHODS | {"runs", "training"},
    "online": {"mindspore", "training"},
    # Other people's loops; files in their words.
    "integrations": METHODS | STEP,
    # Siblings that never meet: a study runs without a display, a figure is drawn from plain records without a study.
    "study": METHODS | STEP,
    "figures": set(),
    # The page replays the recorded loss scale and draws a freezing schedule; its answer is a plain record of core.
    "report": {"figures", "loss_scale", "methods", "runs"},
    # On top: what puts the layers together for a user.
    "api": METHODS | STEP | ANSWERS | {"integrations"},
    "panels": METHODS | STEP | ANSWERS | {"api", "integrations"},
    # Pages of the report for what lies in a folder, served on this machine.
    "view": {"report", "runs", "study"},
    # It times; what it times, panels included, is asked by files of studies/bench.
    "bench": {"runs", "training"},
    "cli": STEP | ANSWERS | {"", "api", "bench", "panels", "view"},
    # The reference's names, and those of version 0.6, defined elsewhere.
    "boost": METHODS | {"mindspore", "training"},
    "nn": {"loss_scale", "mindspore", "optim"},
    "rec": {"online"},
    "devices": set(),
    "telemetry": {"runs"},
    "mirrors": {"mindspore", "runs"},
    "experiments": {"training"},
    "reports": {"report"},
    "__main__": {"cli"},
    "": {"api", "tasks", "training", "panels"},  # workbench/__init__.py
}

# They define nothing.
NAMES_ONLY = (
    *("boost", "nn", "rec"),
    *("devices", "telemetry", "mirrors", "experiments/dim_reduce", "experiments/snapshots"),
    *("reports/dim_reduce_report", "training/callbacks"),
)
# Files of a package that look upward: a name of version 0.6 whose package is still here, and the configuration, which
# asks the registry for the sections that methods bring along (descriptions are plain data and import nothing of ours).
LOOKS_UP = {"workbench.training.callbacks", "workbench.config.boost_config", "workbench.config.resolve"}

# Library -> the only packages that import it ("cli" keeps --help light, "study" keeps Optuna out of figures, ...).
LIBRARY_HOMES: dict[str, set[str]] = {
    "optuna": {"study"},
    "plotly": {"figures", "report"},
    "jinja2": {"integrations", "report"},
    "markupsafe": {"report"},
    "tsdownsample": {"figures"},
    "anywidget": {"figures", "panels"},
    "ipywidgets": {"panels"},
    "traitlets": {"figures", "panels"},
    "markdown_it": {"panels"},
    "tomlkit": {"study"},
    "typer": {"cli"},
    "rich": {"cli"},
    "torch": {"core", *METHODS, "training", "mindspore", "online", "integrations", "tasks", "bench"},
    "transformers": {"integrations"},
    "lightning": {"integrations"},
    "accelerate": {"integrations"},
    "torchmetrics": {"core"},
    "safetensors": {"training", "online", "methods"},
    "sklearn": {"tasks", "study"},
    "scipy": {"core", "study"},
    "cmaes": {"study"},
    "pydantic": {"config", "study"},
    "pyarrow": {"runs", "study"},
    "pandas": {"runs", "training", "study", "figures", "report", "panels"},
    "sqlalchemy": {"study"},
    "psycopg": {"study"},
    "ray": {"study"},
    "tensorboard": {"runs"},
    "mlflow": {"runs"},
    "psutil": {"bench", "core", "runs"},
}


def breaks_an_arrow(entry: Import) -> bool:
    """Whether an import within the package points sideways or upward."""
    source, target = home(entry.importer), home(entry.target)
    if source == target or target in GROUND or entry.importer in LOOKS_UP:
        return False
    return target not in MAY_IMPORT[source]


def meets_another_method(entry: Import) -> bool:
    """Whether a file in one method's folder imports a file of another's."""
    source, target = entry.importer.split("."), entry.target.split(".")
    folders = {tuple(parts[:3]) for parts in (source, target)}
    return (
        len(folders) == 2
        and all(parts[1:2] == ["methods"] for parts in (source, target))
        and all((ROOT / "methods" / parts[2]).is_dir() for parts in (source, target) if len(parts) > 2)
        and min(len(source), len(target)) > 2
    )


def is_away_from_home(entry: Import) -> bool:
    """Whether a library is imported outside its home."""
    library = entry.target.partition(".")[0]
    return entry.is_third_party and home(entry.importer) not in LIBRARY_HOMES.get(library, set(MAY_IMPORT))


def listed(offences: list[Import]) -> str:
    return "\n" + "\n".join(str(entry) for entry in offences)


def test_every_package_has_a_place_in_the_table() -> None:
    present = {home(module_name(path)) for path in ROOT.rglob("*.py")}
    assert present <= set(MAY_IMPORT), f"give these a line in MAY_IMPORT: {sorted(present - set(MAY_IMPORT))}"
    assert len(imports_below()) > 500, "the graph was not read"


def test_the_arrows_of_the_table_have_no_cycle() -> None:
    above: dict[str, set[str]] = {name: set(targets) for name, targets in MAY_IMPORT.items()}
    while above:
        free = {name for name, targets in above.items() if not targets & set(above)}
        assert free, f"these import each other: {sorted(above)}"
        above = {name: targets for name, targets in above.items() if name not in free}


def test_imports_point_only_downward() -> None:
    offences = [entry for entry in imports_below() if entry.is_ours and breaks_an_arrow(entry)]
    assert not offences, listed(offences)


def test_a_method_knows_no_other_method() -> None:
    offences = [entry for entry in imports_below() if meets_another_method(entry)]
    assert not offences, listed(offences)


def test_every_library_is_imported_at_home_only() -> None:
    offences = [entry for entry in imports_below() if is_away_from_home(entry)]
    assert not offences, listed(offences)


def test_every_imported_library_is_a_declared_dependency() -> None:
    project = tomllib.loads((ROOT.parent / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    declared = {canonical(re.split(r"[\[<>=!~; ]", line)[0]) for line in project["dependencies"]}
    distributions = metadata.packages_distributions()
    offences = [
        entry
        for entry in imports_below()
        if entry.is_third_party
        and entry.target.partition(".")[0] not in OPTIONAL
        and not declared & {canonical(name) for name in distributions.get(entry.target.partition(".")[0], [])}
    ]
    assert not offences, listed(offences)


# Imported only where they are installed, or a part of a declared dependency's own interface.
OPTIONAL = {
    "lightning": "the extra `lightning`",
    "ray": "the extra `cluster`",
    "tensorboard": "the extra `mirrors`",
    "mlflow": "the extra `mirrors`",
    "cmaes": "the sampler of that name; without it its name is refused with what to install",
    "torch_npu": "the plugin of Ascend machines",
    "transformers": "the extra of that name",
    "accelerate": "the extra of that name",
    "markupsafe": "Jinja2's texts that are HTML already are objects of this package",
    "pydantic_core": "pydantic documents `to_jsonable_python` as its own",
}


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


@pytest.mark.parametrize("name", [name for name in NAMES_ONLY if (ROOT / f"{name}.py").exists()])
def test_modules_of_names_define_nothing(name: str) -> None:
    tree = ast.parse((ROOT / f"{name}.py").read_text(encoding="utf-8"))
    for node in tree.body:
        is_text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        is_all = isinstance(node, ast.Assign) and [getattr(t, "id", "") for t in node.targets] == ["__all__"]
        assert is_text or is_all or isinstance(node, ast.ImportFrom), f"workbench/{name}.py:{node.lineno}"


@pytest.mark.parametrize(
    ("source", "target", "offends"),
    [
        ("methods/a.py", "from workbench.optim import x", True),
        ("methods/a.py", "from workbench.config import BoostConfig", False),
        ("loss_scale/a.py", "def f():\n    import workbench.training.loop", True),
        ("loss_scale/a.py", "if TYPE_CHECKING:\n    from workbench.training import loop", False),
        ("loss_scale/a.py", "if TYPE_CHECKING:\n    pass\nelse:\n    from workbench.training import loop", True),
        ("study/a.py", "from workbench.figures import theme", True),
        ("runs/a.py", "from ..tasks import task", True),
        ("runs/a.py", "import importlib\nimportlib.import_module('workbench.tasks')", True),
        ("core/a.py", "from workbench import api", True),
        ("core/a.py", "import workbench", True),
        ("training/a.py", "from workbench.training import apply\nfrom workbench.core import devices", False),
    ],
)
def test_the_reader_sees_an_arrow_that_points_up(tmp_path: Path, source: str, target: str, offends: bool) -> None:
    root = tmp_path / "workbench"
    for name in ("core/devices.py", "api.py", source):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).touch()
    (root / source).write_text(target, encoding="utf-8")
    found = [e for e in imports_of(root / source, root) if e.is_ours and breaks_an_arrow(e)]
    assert bool(found) is offends
    assert all(str(entry.path) == str(root / source) and entry.line == target.count("\n") + 1 for entry in found)


LIGHT = {"torch", "plotly", "optuna", "pandas"}


@pytest.mark.parametrize(
    "absent",
    [
        {
            "workbench": {*LIGHT, "ipywidgets"},
            "workbench.methods.batch.section": LIGHT,  # before the configuration, which takes it up
            "workbench.config": LIGHT,
            "workbench.core.records": LIGHT,
            "workbench.runs": {*LIGHT, "pyarrow"},
            "workbench.study": LIGHT,
            "workbench.runs.recorder": {"torch", "plotly", "optuna"},
            "workbench.runs.run_directory": {"torch", "plotly", "optuna"},
            "workbench.runs.mirrors": {"torch", "tensorboard", "mlflow", "optuna"},
            "workbench.figures": {"torch", "optuna", "ipywidgets", "anywidget"},
            "workbench.report": {"torch", "optuna", "ipywidgets", "anywidget"},
            "workbench.figures.live": {"torch", "optuna"},
            "workbench.panels": {"torch", "optuna"},
        },
        {
            "workbench.study.run.search_and_confirm": {"torch", "plotly", "pandas", "scipy", "sklearn"},
            "workbench.study.run.joining": {"torch", "plotly", "pandas", "scipy", "sklearn"},
        },
        {"workbench.training": {"plotly", "optuna", "pandas"}},
    ],
    ids=["light", "tuning", "training"],
)
def test_importing_a_package_does_not_load(absent: dict[str, set[str]]) -> None:
    """One interpreter imports them in turn: what is not there after all of them, none has loaded."""
    told = "print({name.partition('.')[0] for name in sys.modules})"
    program = "import sys\n" + "\n".join(f"import {module}\n{told}" for module in absent)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]
    for (module, unwanted), line in zip(absent.items(), done.stdout.splitlines(), strict=True):
        loaded = ast.literal_eval(line)
        assert "workbench" in loaded
        assert not loaded & unwanted, module
