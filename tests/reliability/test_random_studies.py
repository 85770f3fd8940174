"""Any study file that may be written: read as it was meant, or refused; and tiny ones, run to their end."""

from __future__ import annotations

import json
import math
import tempfile
from pathlib import Path
from typing import Any

import optuna
import pytest
import tomlkit
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.config.config_strategies import legal_values
from tests.kit.fake_runner import make_fake
from tests.reliability.guarded import FUZZ, result_or_sentence
from workbench.config import BOOST_SECTIONS, BoostConfig, ConfigError
from workbench.study import StudyFailedError, read_result, tune
from workbench.study.ask.study_file import StudyFile, parse_study
from workbench.study.errors import StudyError

_share = st.floats(0.0, 0.9)


def lists_of(values: st.SearchStrategy[Any]) -> st.SearchStrategy[list[Any]]:
    return st.lists(values, min_size=1, max_size=3, unique_by=repr)


@st.composite
def ranges(draw: st.DrawFn, low: float, high: float, *, whole: bool = False) -> dict[str, Any]:
    numbers: st.SearchStrategy[Any] = st.integers(int(low), int(high)) if whole else st.floats(low, high)
    first, second = sorted((draw(numbers), draw(numbers)))
    described: dict[str, Any] = {"low": first, "high": second if second > first else first + 1}
    if first > 0 and draw(st.booleans()):
        described["log"] = draw(st.booleans())
    return described


SPACE: dict[str, st.SearchStrategy[Any]] = {
    "level": lists_of(st.sampled_from(["O0", "O1", "O2"])),
    "boost.less_bn": lists_of(st.booleans()),
    "boost.grad_freeze": lists_of(st.booleans()),
    "boost.grad_accumulation": lists_of(st.booleans()),
    "grad_freeze.freeze_p": lists_of(_share) | ranges(0.0, 0.9).filter(lambda one: one["high"] < 1),
    "grad_freeze.freeze_type": lists_of(st.sampled_from([0, 1])),
    "grad_freeze.param_groups": lists_of(st.integers(2, 30)) | ranges(2, 30, whole=True),
    "grad_accumulation.grad_accumulation_step": lists_of(st.integers(1, 8)) | ranges(1, 8, whole=True),
    "loss_scale.window": ranges(1, 3000, whole=True),
    "loss_scale.factor": lists_of(st.sampled_from([2.0, 4.0, 8.0])),
}


@st.composite
def studies(draw: st.DrawFn, *, tiny: bool = False) -> dict[str, Any]:
    """Draw the content of a study file that breaks no rule (a few combinations may)."""
    budget = draw(st.integers(10, 60))
    study: dict[str, Any] = {"task": "fake", "budget_steps": budget, "n_trials": draw(st.integers(1, 4))}
    for key, values in {
        "name": st.sampled_from(["s", "größe", "a b"]),
        "seed": st.integers(0, 2**31),
        "evaluate_every": st.integers(1, budget),
        "objective": st.sampled_from(["time_to_target", "speed", "pareto"]),
        "device": st.just("cpu"),
        "threads": st.integers(1, 4),
    }.items():
        if draw(st.booleans()):
            study[key] = draw(values)
    content: dict[str, Any] = {"study": study}
    if draw(st.booleans()):
        content["allowed_drop"] = draw(
            st.fixed_dictionaries({}, optional={"o1": st.floats(0, 1), "o2": st.floats(0, 1)})
        )
    if draw(st.booleans()):
        content["sampler"] = {"name": draw(st.sampled_from(["tpe", "random"]))}
    if draw(st.booleans()):
        content["pruner"] = {"name": draw(st.sampled_from(["median", "none"]))}
    if draw(st.booleans()):
        content["speed"] = {"rounds": draw(st.integers(2, 9)), "steps_per_block": draw(st.integers(1, 9))}
    least = draw(st.integers(2, 3))
    seeds = {"seeds_min": least, "seeds_max": draw(st.integers(least, 4))}
    content["confirm"] = {**seeds, "candidates": draw(st.integers(1, 2))}
    if draw(st.integers(0, 3)) == 0:
        content["confirm"] = {"enabled": False}
    if draw(st.integers(0, 2)) == 0:
        content["loss_scale_replay"] = {"steps": draw(st.integers(2, 30))}
    if not tiny and draw(st.booleans()):
        paths = draw(st.lists(st.sampled_from(sorted(legal_values)), unique=True, max_size=3))
        baseline = {path: draw(legal_values[path]) for path in paths}
        content["baseline"] = {path: value for path, value in baseline.items() if value is not None}
    paths = draw(st.lists(st.sampled_from(sorted(SPACE)), unique=True, min_size=1))
    content["space"] = {path: draw(SPACE[path]) for path in paths}
    return content


@FUZZ
@given(content=studies())
def test_a_study_file_means_the_same_however_it_is_written(content: dict[str, Any]) -> None:
    file = result_or_sentence(lambda: parse_study(tomlkit.dumps(content)), StudyError)
    if not isinstance(file, StudyFile):
        return
    canonical = file.canonical()
    assert json.loads(json.dumps(canonical)) == canonical  # it is stored as JSON and compared with what comes back
    assert parse_study(tomlkit.dumps(dict(reversed(content.items())))).canonical() == canonical
    study = {**content["study"], "name": file.study.name}
    quoted = {**content, "baseline": file.canonical()["baseline"], "study": study}
    assert parse_study(tomlkit.dumps(quoted)).canonical() == canonical
    other = {**content, "study": {**content["study"], "budget_steps": content["study"]["budget_steps"] + 100}}
    assert parse_study(tomlkit.dumps(other)).canonical() != canonical


def assert_ended_well(directory: Path, n_trials: int) -> None:
    result = read_result(directory)
    states = [trial.state for trial in result.trials]
    assert set(states) <= {"complete", "pruned"}
    stored = optuna.load_study(study_name=result.name, storage=f"sqlite:///{directory / 'study.db'}").trials
    ran = [one.number for one in stored if "repeats" not in one.user_attrs]  # others are no trials of their own
    assert [trial.number for trial in result.trials] == ran
    assert len(ran) <= n_trials
    for trial in result.trials:
        BoostConfig.from_dict(trial.config).resolve(trial.level)
        assert not math.isinf(trial.metric)
    assert set(result.exported) == {"o1", "o2"}
    for target, path in result.exported.items():
        text = path.read_text(encoding="ascii")
        assert "null" not in text.replace('"null"', "")  # the real AutoBoost refuses it
        sections = json.loads(text)
        assert set(BOOST_SECTIONS) <= set(sections)
        config = BoostConfig.from_json(path)
        assert config.boost.mode == "manual"
        assert config.resolve(f"O{target[1]}") is not None
        assert config.provenance is not None


@pytest.mark.slow
@settings(parent=FUZZ, max_examples=max(FUZZ.max_examples // 2, 5))
@given(content=studies(tiny=True))
def test_tiny_studies_run_to_their_end(content: dict[str, Any]) -> None:
    with tempfile.TemporaryDirectory() as place:
        directory = Path(place)
        (directory / "study.toml").write_text(tomlkit.dumps(content), encoding="utf-8")
        try:
            tune(directory, make_experimenter=make_fake)
        except StudyFailedError:  # every drawn freeze_p diverges, say
            return
        except (StudyError, ConfigError):
            assert not (directory / "study.db").exists()  # before anything was begun
            return
        assert_ended_well(directory, content["study"]["n_trials"])
        before = (directory / "calls.log").read_text()
        tune(directory, make_experimenter=make_fake)
        assert (directory / "calls.log").read_text() == before  # a finished study trains nothing again
