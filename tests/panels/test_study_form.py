from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from workbench.panels.study_form import study_fields
from workbench.study import parse_study
from workbench.study.ask.study_text import new_study_text, space_of, study_text, values_of
from workbench.study.sample.sampling import PRUNERS, SAMPLERS

EVERYTHING = Path(__file__).parents[2] / "studies" / "everything" / "study.toml"


def test_a_file_that_is_asked_what_it_says_stays_as_it_is() -> None:
    text = EVERYTHING.read_text(encoding="utf-8")
    assert study_text(text, values_of(text), space_of(text)) == text


def test_changes_keep_every_comment() -> None:
    text = EVERYTHING.read_text(encoding="utf-8")
    space = {path: value for path, value in space_of(text).items() if path != "less_bn.fn_flag"}
    space["loss_scale.window"] = {"low": 10, "high": 100, "log": True}
    changed = study_text(text, {"study.n_trials": 5, "allowed_drop.o1": None, "speed.rounds": 9}, space)
    assert [line.partition("#")[2] for line in changed.splitlines() if "#" in line and "o1 =" not in line] == [
        line.partition("#")[2] for line in text.splitlines() if "#" in line and "o1 =" not in line
    ]
    now, before = tomllib.loads(changed), tomllib.loads(text)
    assert now["study"] == {**before["study"], "n_trials": 5}
    assert now["allowed_drop"] == {"o2": 0.03}
    assert now["speed"]["rounds"] == 9
    assert space_of(changed) == space
    assert parse_study(changed).study.n_trials == 5


def test_sub_tables_mean_the_same_and_are_said_anew_when_they_change() -> None:
    text = '[study]\ntask = "a"\n[space.grad_freeze]\nfreeze_p = { low = 0.3, high = 0.9 }\nfreeze_type = [0, 1]\n'
    assert space_of(text) == {"grad_freeze.freeze_p": {"low": 0.3, "high": 0.9}, "grad_freeze.freeze_type": [0, 1]}
    assert study_text(text, {}, space_of(text)) == text
    assert space_of(study_text(text, {}, {"grad_freeze.freeze_type": [1]})) == {"grad_freeze.freeze_type": [1]}


def test_true_is_not_one() -> None:
    text = '[space]\n"grad_freeze.freeze_type" = [0, 1]\n'
    assert "[false, true]" in study_text(text, {}, {"grad_freeze.freeze_type": [False, True]})


def test_a_new_study_says_what_it_is_asked_and_nothing_else() -> None:
    text = new_study_text(
        "digits-lenet",
        {"optimizer.name": "Adam", "optimizer.lr": 0.001},
        {"study.n_trials": 4, "study.budget_steps": 20, "study.seed": None},
        {"level": ["O1"], "boost.less_bn": True},
    )
    file = parse_study(text)
    assert (file.study.task, file.study.n_trials, file.study.budget_steps) == ("digits-lenet", 4, 20)
    assert file.base_config().leaves()["optimizer.name"] == "Adam"
    assert [one.path for one in file.dimensions] == ["level", "boost.less_bn"]
    assert "seed" not in text


def test_what_is_no_toml_is_refused() -> None:
    with pytest.raises(ValueError, match="Expected"):
        values_of("[study")


@pytest.mark.parametrize(("path", "names"), [("sampler.name", SAMPLERS), ("pruner.name", PRUNERS)])
def test_whatever_a_study_file_may_name_is_offered(path: str, names: dict[str, object]) -> None:
    assert set(study_fields()[path].choices) == set(names)
