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

GROUND = {
    "atomic_file",
    "batch",
    "config",
    "credentials",
    "devices",
    "kernels",
    "metrics",
    "openmp",
    "rank_environment",
    "ranks",
    "records",
}
METHODS = {"algorithms", "optimizers", "scaling"}
STEP = {"training", "tasks", "telemetry"}

# Package or module -> what it may import besides itself and the ground floor.
MAY_IMPORT: dict[str, set[str]] = {
    **{name: set() for name in GROUND},
    # Pure PyTorch beside each other.
    "algorithms": set(),
    "embeddings": set(),
    "optimizers": set(),
    "scaling": set(),
    # One step and one loop; what is trained; what is kept. They meet in experiments.
    "training": METHODS,
    "tasks": {"embeddings", "optimizers"},
    "telemetry": set(),
    # Around the loop of a Model: what a stream without end needs.
    "online": {"training"},
    "experiments": METHODS | STEP,
    # Runs in other people's tools; its callback for a Model is the one file that knows the training.
    "mirrors": {"telemetry", "training"},
    # Siblings that never meet: a study runs without a display, a figure is drawn from plain records without a study.
    "tuning": METHODS | STEP | {"experiments"},
    "figures": set(),
    "reports": {"figures", "experiments", "telemetry"},
    # On top: what puts the layers together for a user.
    "facade": METHODS | STEP | {"experiments", "mirrors", "tuning", "figures", "reports"},
    "templates": set(),
    "doctor": STEP,
    "panels": METHODS | STEP | {"experiments", "tuning", "figures", "reports", "facade", "templates"},
    # It times what the others do, panels included.
    "bench": METHODS | STEP | {"embeddings", "experiments", "figures", "facade", "panels", "tuning"},
    "cli": STEP
    | {
        "",
        "experiments",
        "mirrors",
        "tuning",
        "figures",
        "reports",
        "facade",
        "templates",
        "doctor",
        "panels",
        "bench",
    },
    # The reference's names, defined elsewhere.
    "boost": {"algorithms", "scaling", "training"},
    "nn": {"optimizers", "scaling", "training"},
    "rec": {"online"},
    "__main__": {"cli"},
    "": {"facade", "tasks", "training", "panels"},  # workbench/__init__.py
}

NAMES_ONLY = ("boost", "nn", "rec")  # they define nothing

# Inside algorithms: shared ground that every method may use ...
SHARED_GROUND = {"optimizer_hooks", "parameter_groups", "parameter_process", "parameter_succession"}
# ... the files a method consists of besides its own ...
PART_OF = {
    "batch_norm_folding": "less_bn",
    "batch_norm_graph": "less_bn",
    "batch_norm_patterns": "less_bn",
    "batch_norm_removal": "less_bn",
    "full_normalization": "less_bn",
    "freeze_optimizer": "grad_freeze",
    "freeze_cell": "grad_freeze",
    "optimizer_process": "grad_centralization",
}
# ... and the places where one method knows of another, each with its reason.
EXCEPTIONS = {
    ("freeze_cell", "grad_accumulation"): "the reference's signature of freeze_cell asks for both at once",
}

# Library -> the only packages that import it ("cli" keeps --help light, "tuning" keeps Optuna out of figures, ...).
LIBRARY_HOMES: dict[str, set[str]] = {
    "optuna": {"tuning", "bench"},
    "plotly": {"figures", "reports"},
    "tsdownsample": {"figures"},
    "anywidget": {"figures"},
    "ipywidgets": {"panels", "bench"},
    "markdown_it": {"panels"},
    "tomlkit": {"panels"},
    "typer": {"cli"},
    "rich": {"cli"},
    "tqdm": {"cli"},
    "torch": {
        "batch",
        "devices",
        "embeddings",
        "kernels",
        "metrics",
        "ranks",
        *METHODS,
        "training",
        "mirrors",
        "online",
        "tasks",
        "experiments",
        "doctor",
        "bench",
    },
    "torchmetrics": {"metrics"},
    "safetensors": {"training", "online", "experiments", "algorithms"},
    "sklearn": {"tasks", "tuning", "bench"},
    "threadpoolctl": {"bench"},
    # Peers: packages that do the same, measured where somebody has installed them, and never needed.
    "deepspeed": {"bench"},
    "torchao": {"bench"},
    "pytorch_optimizer": {"bench"},
    "kfac": {"bench"},
    "scipy": {"experiments", "tuning"},
    "cmaes": {"tuning"},
    "pydantic": {"config", "tuning"},
    "annotated_types": {"config"},
    "pyarrow": {"telemetry", "tuning"},
    "pandas": {"telemetry", "experiments", "tuning", "figures", "reports", "facade", "panels"},
    "sqlalchemy": {"tuning"},
    "psycopg": {"tuning"},
    "ray": {"tuning"},
    "tensorboard": {"mirrors"},
    "mlflow": {"mirrors"},
    "psutil": {"bench", "devices", "telemetry", "tuning"},
}

ALL_IMPORTS = imports_below()


def breaks_an_arrow(entry: Import) -> bool:
    """Whether an import within the package points sideways or upward."""
    source, target = home(entry.importer), home(entry.target)
    return source != target and target not in GROUND and target not in MAY_IMPORT[source]


def meets_another_method(entry: Import) -> bool:
    """Whether a file of one method imports a file of another."""
    source, target = entry.importer.rpartition(".")[2], entry.target.rpartition(".")[2]
    if home(entry.importer) != "algorithms" or home(entry.target) != "algorithms":
        return False
    if source in {"algorithms", "catalog"} or target in SHARED_GROUND or (source, target) in EXCEPTIONS:
        return False
    return PART_OF.get(source, source) != PART_OF.get(target, target)


def is_away_from_home(entry: Import) -> bool:
    """Whether a library is imported outside its home."""
    library = entry.target.partition(".")[0]
    return entry.is_third_party and home(entry.importer) not in LIBRARY_HOMES.get(library, set(MAY_IMPORT))


def listed(offences: list[Import]) -> str:
    return "\n" + "\n".join(str(entry) for entry in offences)


def test_every_package_has_a_place_in_the_table() -> None:
    present = {home(module_name(path)) for path in ROOT.rglob("*.py")}
    assert present <= set(MAY_IMPORT), f"give these a line in MAY_IMPORT: {sorted(present - set(MAY_IMPORT))}"
    assert len(ALL_IMPORTS) > 500, "the graph was not read"


def test_the_arrows_of_the_table_have_no_cycle() -> None:
    above: dict[str, set[str]] = {name: set(targets) for name, targets in MAY_IMPORT.items()}
    while above:
        free = {name for name, targets in above.items() if not targets & set(above)}
        assert free, f"these import each other: {sorted(above)}"
        above = {name: targets for name, targets in above.items() if name not in free}


def test_imports_point_only_downward() -> None:
    offences = [entry for entry in ALL_IMPORTS if entry.is_ours and breaks_an_arrow(entry)]
    assert not offences, listed(offences)


def test_a_method_knows_no_other_method() -> None:
    offences = [entry for entry in ALL_IMPORTS if meets_another_method(entry)]
    assert not offences, listed(offences)


def test_every_exception_among_the_methods_is_still_needed() -> None:
    files = {path.stem for path in (ROOT / "algorithms").glob("*.py")}
    imported = {(e.importer.rpartition(".")[2], e.target.rpartition(".")[2]) for e in ALL_IMPORTS}
    assert SHARED_GROUND | set(PART_OF) | set(PART_OF.values()) <= files
    assert set(EXCEPTIONS) <= imported


def test_every_library_is_imported_at_home_only() -> None:
    offences = [entry for entry in ALL_IMPORTS if is_away_from_home(entry)]
    assert not offences, listed(offences)


def test_figures_and_tuning_never_meet() -> None:
    offences = [e for e in ALL_IMPORTS if {home(e.importer), home(e.target)} == {"figures", "tuning"}]
    assert not offences, listed(offences)


def test_every_imported_library_is_a_declared_dependency() -> None:
    project = tomllib.loads((ROOT.parent / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    declared = {canonical(re.split(r"[\[<>=!~; ]", line)[0]) for line in project["dependencies"]}
    distributions = metadata.packages_distributions()
    offences = [
        entry
        for entry in ALL_IMPORTS
        if entry.is_third_party
        and entry.target.partition(".")[0] not in OPTIONAL
        and not declared & {canonical(name) for name in distributions.get(entry.target.partition(".")[0], [])}
    ]
    assert not offences, listed(offences)


# Imported only where they are installed, or a part of a declared dependency's own interface.
OPTIONAL = {
    "ray": "the extra `cluster`",
    "tensorboard": "the extra `mirrors`",
    "mlflow": "the extra `mirrors`",
    "deepspeed": "a peer of `workbench bench --peers`",
    "torchao": "a peer of `workbench bench --peers`",
    "pytorch_optimizer": "a peer of `workbench bench --peers`",
    "kfac": "a peer of `workbench bench --peers`",
    "threadpoolctl": "comes with scikit-learn, whose threads it counts",
    "cmaes": "the sampler of that name; without it its name is refused with what to install",
    "torch_npu": "the plugin of Ascend machines",
    "annotated_types": "pydantic's constraints are objects of this package",
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
        ("algorithms/a.py", "from workbench.scaling import x", True),
        ("algorithms/a.py", "from workbench.config import BoostConfig", False),
        ("scaling/a.py", "def f():\n    import workbench.training.loop", True),
        ("scaling/a.py", "if TYPE_CHECKING:\n    from workbench.training import loop", False),
        ("scaling/a.py", "if TYPE_CHECKING:\n    pass\nelse:\n    from workbench.training import loop", True),
        ("tuning/a.py", "from workbench.figures import theme", True),
        ("telemetry/a.py", "from ..tasks import task", True),
        ("telemetry/a.py", "import importlib\nimportlib.import_module('workbench.tasks')", True),
        ("records.py", "from workbench import facade", True),
        ("records.py", "import workbench", True),
        ("experiments/a.py", "from workbench.training import apply\nfrom workbench import devices", False),
    ],
)
def test_the_reader_sees_an_arrow_that_points_up(tmp_path: Path, source: str, target: str, offends: bool) -> None:
    root = tmp_path / "workbench"
    for name in ("devices.py", "facade.py", source):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).touch()
    (root / source).write_text(target, encoding="utf-8")
    found = [e for e in imports_of(root / source, root) if e.is_ours and breaks_an_arrow(e)]
    assert bool(found) is offends
    assert all(str(entry.path) == str(root / source) and entry.line == target.count("\n") + 1 for entry in found)


def loaded_by(*arguments: str) -> set[str]:
    """Return the top-level packages that a fresh interpreter has imported after running something."""
    done = subprocess.run(
        [sys.executable, "-X", "importtime", *arguments], capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr[-2000:]
    lines = [line for line in done.stderr.splitlines() if line.startswith("import time:")]
    return {line.rpartition("|")[2].strip().partition(".")[0] for line in lines}


def test_help_loads_neither_torch_nor_plotly() -> None:
    loaded = loaded_by("-m", "workbench", "--help")
    assert "workbench" in loaded
    assert not loaded & {"torch", "plotly", "optuna", "pandas", "sklearn"}


@pytest.mark.parametrize(
    ("module", "absent"),
    [
        ("workbench", {"torch", "plotly", "optuna", "pandas", "ipywidgets"}),
        ("workbench.config", {"torch", "plotly", "optuna", "pandas"}),
        ("workbench.records", {"torch", "plotly", "optuna", "pandas"}),
        ("workbench.telemetry", {"torch", "plotly", "optuna"}),
        ("workbench.tuning", {"torch", "plotly"}),
        ("workbench.mirrors", {"torch", "tensorboard", "mlflow", "optuna"}),
        ("workbench.figures", {"torch", "optuna"}),
        ("workbench.reports", {"torch", "optuna"}),
        ("workbench.training", {"plotly", "optuna", "pandas"}),
        ("workbench.panels", {"torch", "optuna"}),
    ],
)
def test_importing_a_package_does_not_load(module: str, absent: set[str]) -> None:
    loaded = loaded_by("-c", f"import {module}")
    assert "workbench" in loaded
    assert not loaded & absent
