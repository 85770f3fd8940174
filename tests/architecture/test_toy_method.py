"""A method is one folder and one line.

The toy in ``tests/kit/toy_method`` is added to a fresh process by its line in the registry alone, and is found wherever
a method has to be.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

LINE = """
from importlib.machinery import PathFinder, SourceFileLoader
import sys

LINES = b"from tests.kit import toy_method; METHODS = (*METHODS, toy_method.DESCRIPTION)"

class Registry(SourceFileLoader):
    def get_code(self, fullname):
        return self.source_to_code(self.get_data(self.path) + LINES, self.path)

class Finder:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name == "workbench.methods.registry":
            found = PathFinder.find_spec(name, path)
            found.loader = Registry(name, found.origin)
            return found

sys.meta_path.insert(0, Finder)
"""
TASK = """
import torch
from torch import nn
from workbench.config import BoostConfig
from workbench.tasks import Task
ON = {"toy": {"enabled": True, "decay": 0.25}}
inputs = torch.randn(64, 4, generator=torch.Generator().manual_seed(0))
points = [(inputs[i : i + 16], (inputs[i : i + 16].sum(dim=1) > 0).long()) for i in range(0, 64, 16)]
def task():
    return Task(
        name="points", model=lambda: nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)),
        loss=nn.CrossEntropyLoss(), optimizer=lambda named: torch.optim.SGD([p for _, p in named], lr=0.1),
        train=points, evaluate=points, metric="accuracy", data_hash="points",
    )
"""
PLACES = {
    "configuration": """
        config = BoostConfig.from_dict(ON)
        assert BoostConfig.from_dict(config.to_dict()) == config
        assert repr(config) == "BoostConfig(toy.enabled=true, toy.decay=0.25)"
        try:
            BoostConfig.from_dict({"toy": {"decai": 0.5}})
        except ValueError as error:
            assert "did you mean" in str(error), error
        else:
            raise AssertionError
        assert "decay" in str(BoostConfig.json_schema())
    """,
    "plan": """
        on, off = BoostConfig.from_dict(ON).resolve("O0"), BoostConfig().resolve("O0")
        assert on.in_effect() == ("toy",)
        assert on.summary() == "Toy", on.summary()
        assert on.parameters_in_effect()["toy.decay"] == 0.25
        assert not [path for path in off.parameters_in_effect() if path.startswith("toy")]  # keys stay as they were
        assert off == BoostConfig.from_dict({"toy": {"decay": 0.5}}).resolve("O0")
        assert "off" in off.why_not("toy.decay")
    """,
    "search space": """
        from workbench.config import describe_parameters
        decay = describe_parameters()["toy.decay"]
        assert (decay.low, decay.high) == (0.1, 0.9)
        from workbench.study import parse_study
        text = '[study]\\ntask = "points"\\nbudget_steps = 4\\nn_trials = 2\\n[space]\\n"toy.enabled" = [false, true]'
        file = parse_study(text + '\\n"toy.decay" = { low = 0.1, high = 0.9 }\\n')
        assert list(file.space) == ["toy.enabled", "toy.decay"], file.space
    """,
    "study": """
        import tempfile, pathlib, workbench
        folder = pathlib.Path(tempfile.mkdtemp()) / "s"
        folder.mkdir()
        (folder / "study.toml").write_text(
            '[study]\\ntask = "points"\\nbudget_steps = 8\\nn_trials = 2\\ndevice = "cpu"\\n'
            '[speed]\\nrounds = 2\\nsteps_per_block = 1\\n'
            '[space]\\nlevel = ["O1"]\\n"toy.enabled" = [true]\\n"toy.decay" = { low = 0.1, high = 0.9 }\\n'
            '[confirm]\\nenabled = false\\n')
        result = workbench.tune(folder, task=task())
        assert [trial.summary for trial in result.trials] == ["nothing switched on", "Toy"], result.trials
    """,
    "panel and card": """
        from workbench.panels.config_panel import ConfigPanel
        panel = ConfigPanel()
        assert panel.control("toy.decay") is not None
        assert "Toy" in panel.sections.titles
        from workbench.methods.registry import METHODS
        assert next(method for method in METHODS if method.name == "toy").card().startswith("# Toy")
    """,
    "training": """
        import workbench
        from tests.kit.toy_method import acting
        acting.CALLS.clear()
        run = workbench.train(task(), BoostConfig.from_dict(ON), level="O0", steps=8, out=None)
        assert run.steps == 8
        wanted = {"reshape", "prepare", "before update", "evaluating"}
        assert wanted <= set(acting.CALLS), acting.CALLS
        assert acting.CALLS.count("before update") == 4  # two micro-batches make an update
    """,
    "resumption": """
        from workbench import apply
        def boosted():
            torch.manual_seed(0)
            model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
            return apply(ON, model, optimizer, level="O0")
        def train(one, first, last):
            for step in range(first, last):
                x, y = points[step % 4]
                one.backward(nn.functional.cross_entropy(one.model(x), y))
                one.step()
        whole = boosted()
        train(whole, 0, 9)
        first = boosted()
        train(first, 0, 5)
        second = boosted()
        second.load_state_dict(first.state_dict())
        train(second, 5, 9)
        for a, b in zip(whole.model.parameters(), second.model.parameters(), strict=True):
            assert torch.equal(a, b)
        for a, b in zip(whole.state_dict()["methods"]["toy"]["mean"], second.state_dict()["methods"]["toy"]["mean"]):
            assert torch.equal(a, b)
    """,
}
EACH_PLACE = """
import json, sys, traceback
failures = {}
for place, code in json.loads(sys.argv[1]).items():
    try:
        exec(code, dict(globals()))
    except BaseException:
        failures[place] = traceback.format_exc()[-2000:]
print(json.dumps(failures))
"""


def test_one_folder_and_one_line_are_enough() -> None:
    places = json.dumps({place: textwrap.dedent(code) for place, code in PLACES.items()})
    command = [sys.executable, "-c", LINE + TASK + EACH_PLACE, places]
    root = Path(__file__).parents[2]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=root, timeout=240)
    assert done.returncode == 0, done.stderr[-2000:]
    assert json.loads(done.stdout.splitlines()[-1]) == {}


def test_nothing_of_the_package_knows_the_toy() -> None:
    package = Path(__file__).parents[2] / "workbench"
    assert not [path for path in package.rglob("*.py") if "toy_method" in path.read_text(encoding="utf-8")]


# Where a method may be named besides: its configuration, MindSpore's names, what draws it, names of version 0.6.
SHELLS = ("boost.py", "config/", "figures/", "mindspore/", "report/", "reports/")
MINDSPORES_GROUP_KEY = ("optim/adam_offload/",)  # `grad_centralization` in a parameter group, as MindSpore's optimizer


@pytest.mark.parametrize("name", ["less_bn", "grad_centralization", "grad_freeze", "grad_accumulation", "adasum",
                                  "dim_reduce", "loss_scale_group"])  # fmt: skip
def test_a_method_of_mindspores_is_named_in_two_files_at_most(name: str) -> None:
    package = Path(__file__).parents[2] / "workbench"
    files = (path for ending in ("py", "j2", "js") for path in package.rglob(f"*.{ending}"))
    naming = [
        place
        for path in files
        if re.search(name.replace("_", "_?"), path.read_text(encoding="utf-8"), re.IGNORECASE)
        and not (place := path.relative_to(package).as_posix()).startswith((*SHELLS, *MINDSPORES_GROUP_KEY))
        and not place.startswith(f"methods/{name}/")
    ]
    assert len(naming) <= 2, naming
    assert "methods/registry.py" in naming
