"""A method is one folder and one line.

The toy in ``tests/kit/toy_method`` is added to a process of its own by its line in the registry alone, and is found
wherever a method has to be.
"""

from __future__ import annotations

import re
import sys
from concurrent.futures import ProcessPoolExecutor
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn

from tests.kit.processes import forkserver

if TYPE_CHECKING:
    from workbench.tasks import Task
    from workbench.training import Boosted

REGISTRY = "workbench.methods.registry"
LINE = b"from tests.kit import toy_method; METHODS = (*METHODS, toy_method.DESCRIPTION)"
ON = {"toy": {"enabled": True, "decay": 0.25}}
STUDY = """
[study]
task = "points"
budget_steps = 8
n_trials = 2
device = "cpu"
[speed]
rounds = 2
steps_per_block = 1
[space]
level = ["O1"]
"toy.enabled" = [true]
"toy.decay" = { low = 0.1, high = 0.9 }
[confirm]
enabled = false
"""
INPUTS = torch.randn(64, 4, generator=torch.Generator().manual_seed(0))
POINTS = [(inputs, (inputs.sum(dim=1) > 0).long()) for inputs in INPUTS.split(16)]


class RegistryWithTheLine(SourceFileLoader):
    def get_code(self, fullname: str) -> Any:
        return self.source_to_code(self.get_data(self.path) + LINE, self.path)


class RegistryFinder:
    @staticmethod
    def find_spec(name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        found = PathFinder.find_spec(name, path) if name == REGISTRY else None
        if found is not None and found.origin is not None:
            found.loader = RegistryWithTheLine(name, found.origin)
        return found


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))


def task() -> Task:
    from workbench.tasks import Task

    return Task(
        name="points",
        model=network,
        loss=nn.CrossEntropyLoss(),
        optimizer=lambda named: torch.optim.SGD([p for _, p in named], lr=0.1),
        train=POINTS,
        evaluate=POINTS,
        metric="accuracy",
        data_hash="points",
    )


def it_is_in_the_configuration() -> None:
    from workbench.config import BoostConfig

    config = BoostConfig.from_dict(ON)
    assert BoostConfig.from_dict(config.to_dict()) == config
    assert repr(config) == "BoostConfig(toy.enabled=true, toy.decay=0.25)"
    with pytest.raises(ValueError, match="did you mean"):
        BoostConfig.from_dict({"toy": {"decai": 0.5}})
    assert "decay" in str(BoostConfig.json_schema())


def it_is_in_the_plan() -> None:
    from workbench.config import BoostConfig

    on, off = BoostConfig.from_dict(ON).resolve("O0"), BoostConfig().resolve("O0")
    assert on.in_effect() == ("toy",)
    assert on.summary() == "Toy"
    assert on.parameters_in_effect()["toy.decay"] == 0.25
    assert not [path for path in off.parameters_in_effect() if path.startswith("toy")]  # keys stay as they were
    assert off == BoostConfig.from_dict({"toy": {"decay": 0.5}}).resolve("O0")
    assert "off" in off.why_not("toy.decay")


def it_is_in_the_search_space() -> None:
    from workbench.config import describe_parameters
    from workbench.study import parse_study

    decay = describe_parameters()["toy.decay"]
    assert (decay.low, decay.high) == (0.1, 0.9)
    assert list(parse_study(STUDY).space) == ["level", "toy.enabled", "toy.decay"]


def a_study_tries_it(folder: Path) -> None:
    import workbench

    folder.mkdir()
    (folder / "study.toml").write_text(STUDY)
    trials = workbench.tune(folder, task=task()).trials
    assert [trial.summary for trial in trials] == ["nothing switched on", "Toy"]


def a_panel_shows_it_and_its_card() -> None:
    from workbench.methods.registry import METHODS
    from workbench.panels.config_panel import ConfigPanel

    panel = ConfigPanel()
    assert panel.control("toy.decay") is not None
    assert "Toy" in panel.sections.titles
    assert next(method for method in METHODS if method.name == "toy").card().startswith("# Toy")


def it_acts_in_training() -> None:
    import workbench
    from tests.kit.toy_method import acting
    from workbench.config import BoostConfig

    acting.CALLS.clear()
    assert workbench.train(task(), BoostConfig.from_dict(ON), level="O0", steps=8, out=None).steps == 8
    assert set(acting.CALLS) >= {"reshape", "prepare", "before update", "evaluating"}
    assert acting.CALLS.count("before update") == 4  # two micro-batches make an update


def it_resumes() -> None:
    from workbench import apply

    def boosted() -> Boosted:
        model = network()
        return apply(ON, model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), level="O0")

    def train(one: Boosted, first: int, last: int) -> None:
        for step in range(first, last):
            x, y = POINTS[step % 4]
            one.backward(nn.functional.cross_entropy(one.model(x), y))
            one.step()

    whole, first, second = boosted(), boosted(), boosted()
    train(whole, 0, 9)
    train(first, 0, 5)
    second.load_state_dict(first.state_dict())
    train(second, 5, 9)
    means = (one.state_dict()["methods"]["toy"]["mean"] for one in (whole, second))
    for values in ((whole.model.parameters(), second.model.parameters()), means):
        for a, b in zip(*values, strict=True):
            assert torch.equal(a, b)


def in_every_place(folder: Path) -> None:
    """Import the package anew, the registry with the line behind it, and look wherever a method has to be."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "workbench"]:
        del sys.modules[name]
    sys.meta_path.insert(0, RegistryFinder())  # type: ignore[arg-type]
    it_is_in_the_configuration()
    it_is_in_the_plan()
    it_is_in_the_search_space()
    a_study_tries_it(folder / "study")
    a_panel_shows_it_and_its_card()
    it_acts_in_training()
    it_resumes()


def test_one_folder_and_one_line_are_enough(tmp_path: Path) -> None:
    with ProcessPoolExecutor(1, mp_context=forkserver()) as one:
        one.submit(in_every_place, tmp_path).result(timeout=240)


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
