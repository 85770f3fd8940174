"""Exported configurations mean the same to MindSpore's AutoBoost as here.

Optional: MindSpore is no dependency, and needs numpy<2. Its interpreter is named by WORKBENCH_MINDSPORE_PYTHON; files
travel there and answers back through pipes.
"""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.config.config_strategies import configs, repeatable
from workbench.config import SWITCHES, BoostConfig, ConfigError, Plan, requested_switches
from workbench.core.records import CandidateRecord, Choice, Verdict
from workbench.methods.dim_reduce.pca_files import save_pca_matrix
from workbench.methods.grad_freeze.method import freeze_index_sequence
from workbench.study.answer.export import export_configs
from workbench.study.ask.plans import StudyPlans

VARIABLE = "WORKBENCH_MINDSPORE_PYTHON"
HOW = (
    f"set {VARIABLE} to the interpreter of an environment of its own: `python3.11 -m venv mindspore-env && "
    'mindspore-env/bin/pip install mindspore==2.7.0 "numpy<2"`, then mindspore-env/bin/python'
)
SCRIPT = Path(__file__).parent / "resolve_with_mindspore.py"

# MindSpore's attribute -> our parameter.
ATTRIBUTES = {
    "gradient_groups": "common.gradient_split_groups",
    "device_number": "common.device_number",
    "_fn_flag": "less_bn.fn_flag",
    "_gc_flag": "less_bn.gc_flag",
    "_param_groups": "grad_freeze.param_groups",
    "_freeze_type": "grad_freeze.freeze_type",
    "_freeze_p": "grad_freeze.freeze_p",
    "_total_steps": "grad_freeze.total_steps",
    "grad_accumulation_step": "grad_accumulation.grad_accumulation_step",
    "rho": "dim_reduce.rho",
    "gamma": "dim_reduce.gamma",
    "alpha": "dim_reduce.alpha",
    "sigma": "dim_reduce.sigma",
    "n_components": "dim_reduce.n_components",
    "pca_mat_path": "dim_reduce.pca_mat_path",
    "weight_load_dir": "dim_reduce.weight_load_dir",
    "timeout": "dim_reduce.timeout",
}
WIDTH = 4  # inputs of the network that MindSpore prepares for training
N_WEIGHTS = WIDTH * 3 + 3 + 3 * 2 + 2
N_RANKS = 16  # two servers of eight, as MindSpore counts whatever device_number says

# Nothing at its default, so that a value that did not arrive shows.
VALUES: dict[str, Any] = {
    "common": {"gradient_split_groups": [1, 3], "device_number": 2},
    "less_bn": {"fn_flag": False, "gc_flag": False},
    "grad_freeze": {"param_groups": 2, "freeze_type": 0, "freeze_p": 0.25, "total_steps": 40},
    "grad_accumulation": {"grad_accumulation_step": 3},
    "dim_reduce": {
        "rho": 0.35,
        "gamma": 0.75,
        "alpha": 0.0625,
        "sigma": 0.125,
        "n_components": 5,
        "weight_load_dir": "schnappschüsse",
        "timeout": 77,
    },
    # Sections that MindSpore does not know, with what might be mistaken for one of its options.
    "loss_scale": {"kind": "dynamic", "init": 1024.0, "window": 100, "groups": 3},
    "amp": {"level": "O2", "dtype": "float16", "keep_batchnorm_fp32": True},
    "optimizer": {"name": "SGD", "lr": 0.05, "momentum": 0.9},
    "schedule": {"length": 0.5, "shape": "linear", "warmup": 0.1},
    "batch": {"factor": 2.0, "lr_rule": "sqrt"},
    "curriculum": {"kind": "resolution", "start": 0.5, "until": 0.4},
    "regularization": {"label_smoothing": 0.1, "weight_average": "ema", "decay": 0.9},
    "runtime": {"memory_format": "channels_last", "threads": 1},
    "snapshots": {"every_steps": 7, "count": 3},
    "compatibility": "mindspore-2.7",
    "provenance": {
        "rho": 0.99,
        "param_groups": 77,
        "boost": {"mode": "disable_all"},
        "task": "Ziffern",
        "speedup": 1.5,
    },
}


class MindSpore:
    """AutoBoost of another interpreter, as a process that answers questions.

    Raises:
        RuntimeError: When there is no such interpreter, or it has no MindSpore 2.7.
    """

    def __init__(self, python: str) -> None:
        clean = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
        try:
            self.process = subprocess.Popen(
                [python, str(SCRIPT)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env={**clean, "GLOG_v": "3", "OMP_NUM_THREADS": "1"},
                text=True,
                encoding="utf-8",
            )
        except OSError as error:
            raise RuntimeError(f"{VARIABLE} must name an interpreter, got {python} ({error.strerror}); {HOW}") from None
        self.version = json.loads(self._read() or '"no MindSpore"')
        if not self.version.startswith("2.7"):
            self.close()
            raise RuntimeError(f"{VARIABLE} names {python}, which has {self.version}, not MindSpore 2.7; {HOW}")

    def resolve(self, path: Path, level: str, *, train: bool = False) -> dict[str, Any]:
        """Return what AutoBoost makes of a file, and of a small network when it is to be trained."""
        request = {"path": str(path), "level": level, "attributes": list(ATTRIBUTES), "width": WIDTH * train}
        print(json.dumps(request), file=self.process.stdin, flush=True)
        found = json.loads(self._read() or '{"error": "the process of MindSpore has ended"}')
        assert "error" not in found, f"{path.read_text(encoding='utf-8')}\n{found['error']}"
        return dict(found)

    def close(self) -> None:
        self.process.communicate()

    def _read(self) -> str:
        return self.process.stdout.readline()


def needs_mindspore(test: Any) -> Any:
    return pytest.mark.mindspore(pytest.mark.skipif(not os.environ.get(VARIABLE), reason=HOW)(test))


@pytest.fixture(scope="module")
def mindspore() -> Iterator[MindSpore]:
    try:
        made = MindSpore(os.environ[VARIABLE])
    except RuntimeError as error:
        reason = str(error)
    else:
        yield made
        made.close()
        return
    pytest.fail(reason, pytrace=False)


def plan_of(switches: Sequence[str], **changes: Any) -> Plan:
    """Return the plan of mode manual on several servers, with every value set, and these switches alone asked for."""
    boost = {"mode": "manual", **{name: name in switches for name in SWITCHES}}
    config = BoostConfig.from_dict({"boost": boost, **VALUES}).with_values(changes)
    return config.resolve("O1", N_RANKS)


def assert_understood(found: dict[str, Any], config: BoostConfig, in_effect: Sequence[str]) -> None:
    assert found["switches"] == {name: name in in_effect for name in SWITCHES}
    values, defaults = config.leaves(), BoostConfig().leaves()
    for attribute, path in ATTRIBUTES.items():
        section = path.partition(".")[0]
        # AutoBoost passes over the sections of what is off; there our defaults must be its own.
        expected = (values if section in {"common", *in_effect} else defaults)[path]
        value = found["attributes"][attribute]
        assert (value, type(value)) == (expected, type(expected)), path


COMBINATIONS = sorted(
    {
        tuple(name for name in plan_of(asked).in_effect() if name in SWITCHES)  # the rest is not MindSpore's
        for length in range(len(SWITCHES) + 1)
        for asked in itertools.combinations(SWITCHES, length)
    }
)


def test_every_algorithm_is_among_the_combinations() -> None:
    assert {name for combination in COMBINATIONS for name in combination} == set(SWITCHES)
    # AdaSum excludes freezing, and DimReduce everything: 2 x 2 of the rest with AdaSum, freezing or neither, and alone.
    assert len(COMBINATIONS) == 2 * 2 * 2 * 3 + 1


@pytest.mark.parametrize("level", ["O1", "O2"])
@pytest.mark.parametrize("combination", COMBINATIONS, ids=lambda names: "+".join(names) or "nothing")
@needs_mindspore
def test_a_saved_plan_means_the_same_to_mindspore(
    mindspore: MindSpore, tmp_path: Path, combination: tuple[str, ...], level: str
) -> None:
    config = plan_of(combination).explicit_config()
    path = config.save(tmp_path / "boost_config.json")
    assert_understood(mindspore.resolve(path, level), config, combination)


@settings(repeatable, max_examples=150)
@given(configs, st.sampled_from(["O1", "O2"]), st.sampled_from([1, 2, 16, 64]))
@needs_mindspore
def test_any_plan_means_the_same_to_mindspore(
    mindspore: MindSpore, tmp_path_factory: pytest.TempPathFactory, config: BoostConfig, level: str, world_size: int
) -> None:
    try:
        plan = config.resolve(level, world_size)
    except ConfigError as error:
        assume("needs a source for its subspace" not in str(error))
        raise
    path = plan.explicit_config().save(tmp_path_factory.mktemp("any") / "boost_config.json")
    assert_understood(mindspore.resolve(path, level), plan.explicit_config(), plan.in_effect())


@settings(repeatable, max_examples=100)
@given(configs, st.sampled_from(["O0", "O1", "O2"]))
@needs_mindspore
def test_a_configuration_as_written_by_hand_asks_mindspore_for_the_same(
    mindspore: MindSpore, tmp_path_factory: pytest.TempPathFactory, config: BoostConfig, level: str
) -> None:
    requested = requested_switches(config, level)
    path = config.save(tmp_path_factory.mktemp("hand") / "boost_config.json")
    found = mindspore.resolve(path, level)
    assert_understood(found, config, [name for name in SWITCHES if requested[name]])


def components(folder: Path) -> Path:
    """Write six components of the network that MindSpore prepares; the configuration asks for five."""
    matrix = np.linalg.qr(np.random.default_rng(0).normal(size=(N_WEIGHTS, 6)))[0].T
    return save_pca_matrix(folder / "components.npy", matrix)


def candidate(target: str, config: BoostConfig) -> CandidateRecord:
    judged: dict[str, Any] = {"speedup": 1.2, "speedup_low": 1.1, "speedup_high": 1.3, "drop": 0.0, "drop_bound": 0.01}
    return CandidateRecord(
        "trial 3",
        3,
        target,
        "",
        config.to_dict(),
        **judged,
        allowed_drop=0.02,
        n_seeds=5,
        verdict=Verdict.CONFIRMED,
        sentence="1.2 times as fast; “größer” is told as well",
    )


@pytest.mark.parametrize(
    ("o1", "o2"),
    [
        (("less_bn", "adasum", "grad_accumulation", "loss_scale_group"), ("less_bn", "grad_freeze")),
        (("dim_reduce",), None),
    ],
    ids=["adasum and freezing", "dim_reduce and nothing"],
)
@needs_mindspore
def test_what_a_study_exports_means_the_same_to_mindspore(
    mindspore: MindSpore, tmp_path: Path, o1: tuple[str, ...], o2: tuple[str, ...] | None
) -> None:
    source = {"dim_reduce.pca_mat_path": str(components(tmp_path))}
    chosen = {
        target: Choice(target, None if switches is None else candidate(target, plan_of(switches, **source).config), "")
        for target, switches in (("o1", o1), ("o2", o2))
    }
    origin = {"task": "digits-lenet", "seed": 0, "environment": {"torch": "2", "rho": 0.9}, "loss_scale": "chosen"}
    files = export_configs(tmp_path / "out", chosen, BoostConfig(), origin, StudyPlans(N_RANKS))
    for target, level, switches in (("o1", "O1", o1), ("o2", "O2", o2)):
        config = BoostConfig.from_json(files[target])
        assert config.provenance
        found = mindspore.resolve(files[target], level, train="dim_reduce" in (switches or ()))
        assert_understood(found, config, switches or ())
        if found["training"] is not None:
            assert found["training"]["components"] == [5, 5]


@pytest.mark.parametrize("fn_flag", [True, False])
@pytest.mark.parametrize(
    "combination",
    # MindSpore 2.7 cannot build a train cell that freezes and accumulates; scale groups need marks in the network.
    [
        names
        for names in COMBINATIONS
        if "loss_scale_group" not in names and {"grad_freeze", "grad_accumulation"} - {*names}
    ],
    ids=lambda names: "+".join(names) or "nothing",
)
@needs_mindspore
def test_mindspore_prepares_a_network_as_the_file_says(
    mindspore: MindSpore, tmp_path: Path, combination: tuple[str, ...], fn_flag: bool
) -> None:
    source = {"dim_reduce.pca_mat_path": str(components(tmp_path))}
    plan = plan_of(combination, **source, **{"less_bn.fn_flag": fn_flag})
    path = plan.explicit_config().save(tmp_path / "boost_config.json")
    training = mindspore.resolve(path, "O1", train=True)["training"]
    dim_reduce, less_bn, freezing = plan.dim_reduce, plan.less_bn, plan.grad_freeze
    assert training == {
        "network": "LessBN" if less_bn else "WithLossCell",
        "head": "CommonHeadLastFN" if less_bn and fn_flag else "Dense",
        "optimizer": "SGD" if dim_reduce else "FreezeOpt" if freezing else "Momentum",
        "adasum": plan.adasum,
        "freezing steps": len(freezing_steps(plan)) if freezing else 0,
        "freezing groups": plan.config.grad_freeze.param_groups if freezing else 0,
        "micro-batches": 3 if plan.grad_accumulation else 1,
        "components": [5, 5] if dim_reduce else None,
    }


@needs_mindspore
def test_freezing_with_accumulation_is_still_beyond_mindspore(mindspore: MindSpore, tmp_path: Path) -> None:
    # Left out above: here both work together, there the file is read rightly and the train cell cannot be built.
    plan = plan_of(["grad_freeze", "grad_accumulation"])
    path = plan.explicit_config().save(tmp_path / "boost_config.json")
    with pytest.raises(AssertionError, match=r"AttributeError: .*_TrainFreezeCell.* has no attribute"):
        mindspore.resolve(path, "O1", train=True)


def freezing_steps(plan: Plan) -> Sequence[int]:
    settings = plan.config.grad_freeze
    return list(
        freeze_index_sequence(settings.param_groups, settings.freeze_type, settings.freeze_p, settings.total_steps)
    )


def test_an_interpreter_without_mindspore_is_told_in_one_sentence(tmp_path: Path) -> None:
    without = tmp_path / "python"
    without.write_text(f'#!/bin/sh\nexec {sys.executable} -c "import no_such_module"\n', encoding="utf-8")
    without.chmod(0o755)
    with pytest.raises(RuntimeError, match=r"names .*python, which has no MindSpore, not MindSpore 2\.7; set WORK"):
        MindSpore(str(without))
    older = tmp_path / "older"
    older.write_text("#!/bin/sh\necho '\"2.3.0\"'\n", encoding="utf-8")
    older.chmod(0o755)
    with pytest.raises(RuntimeError, match=r"which has 2\.3\.0, not MindSpore 2\.7"):
        MindSpore(str(older))
    with pytest.raises(RuntimeError, match=r"must name an interpreter, got .*none \(No such file or directory\); set"):
        MindSpore(str(tmp_path / "none"))
