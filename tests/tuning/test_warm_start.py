"""Warm start: the best of an earlier study or an exported file, mapped to the space of another study."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.kit.fake_runner import STUDY, calls, make_fake, stored_trials, tuned, write_study
from workbench.config import BoostConfig
from workbench.core.records import TrialRecord
from workbench.study import (
    StudyError,
    parse_study,
    read_result,
    tune,
)
from workbench.study.ask.warm_start import EarlierPlan, earlier_plans, mapped_values

SHORT = STUDY.replace("n_trials = 10", "n_trials = 4").replace("[confirm]", "[confirm]\nenabled = false")
NARROW = """
[study]
task = "fake"
budget_steps = 100
evaluate_every = 10
n_trials = 5

[allowed_drop]
o1 = 0.02
o2 = 0.05

[warm_start]
from = "../earlier"
trials = 2

[space]
level = ["O1", "O2"]
"boost.grad_freeze" = [false, true]
"grad_freeze.freeze_p" = { low = 0.5, high = 0.6 }
"grad_freeze.param_groups" = { low = 2, high = 4 }

[confirm]
enabled = false
"""


@pytest.fixture(scope="module")
def earlier_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = write_study(tmp_path_factory.mktemp("warm") / "earlier", SHORT)
    tuned(directory)
    return directory


@pytest.fixture
def earlier(earlier_once: Path, tmp_path: Path) -> Path:
    return shutil.copytree(earlier_once, tmp_path / "earlier")


def plan(values: dict[str, Any], level: str = "O1") -> EarlierPlan:
    config = BoostConfig().with_values({"boost.mode": "manual", **values})
    return EarlierPlan("earlier trial 7", config, level)


def space(text: str) -> Any:
    head = '[study]\ntask = "t"\nbudget_steps = 100\nn_trials = 3\n[space]\n'
    return parse_study(head + text).searched


def freezing(**values: Any) -> EarlierPlan:
    return plan({"boost.grad_freeze": True, **{f"grad_freeze.{name}": value for name, value in values.items()}})


def feasible(trials: list[TrialRecord]) -> list[TrialRecord]:
    useful = [one for one in trials if one.feasible and one.state == "complete" and one.level != "O0"]
    return sorted(useful, key=lambda one: one.value)


def test_the_best_trials_of_an_earlier_study_come_first_after_o0(earlier: Path, tmp_path: Path) -> None:
    best = feasible(read_result(earlier).trials)[0]
    directory = write_study(
        tmp_path / "later", SHORT.replace("[space]", '[warm_start]\nfrom = "../earlier"\n\n[space]')
    )
    result = tuned(directory, trials=2)
    assert result.trials[0].level == "O0"
    first = result.trials[1]
    assert BoostConfig.from_dict(first.config).resolve(first.level).key() == (
        BoostConfig.from_dict(best.config).resolve(best.level).key()
    )
    assert first.value == pytest.approx(best.value)  # trained again, by the same fake
    assert len(calls(directory)) > 2
    label = stored_trials(directory)[1].user_attrs["warm_start"]
    assert label.endswith(f"trial {best.number}"), "and not drawn by chance"


@pytest.mark.slow
def test_a_source_is_enqueued_once_however_often_the_study_is_continued(earlier: Path, tmp_path: Path) -> None:
    directory = write_study(tmp_path / "later", NARROW)
    first = tuned(directory, trials=3)
    second = tuned(directory, trials=5, warm_start=[earlier])
    assert [one.parameters for one in second.trials[: len(first.trials)]] == [one.parameters for one in first.trials]
    again = tuned(directory, trials=5, warm_start=[earlier])
    assert len(again.trials) == len(second.trials)


def test_a_study_without_its_database_gives_its_exports_each_at_its_own_level(earlier: Path) -> None:
    (earlier / "study.db").unlink()
    assert [(one.label, one.level) for one in earlier_plans("earlier", earlier, 5)] == [
        ("earlier/result/boost_config.o1.json", "O1"),
        ("earlier/result/boost_config.o2.json", "O2"),
    ]


def test_no_more_are_enqueued_than_the_study_has_room_for(earlier: Path, tmp_path: Path) -> None:
    directory = write_study(tmp_path / "later", SHORT)
    result = tuned(directory, trials=1, warm_start=[earlier])
    assert [one.state for one in result.trials] == ["complete"]
    assert any("is not tried, since the study has only 1 trials" in message for message in result.messages)


@pytest.mark.parametrize(
    ("text", "earlier_values", "values", "told"),
    [
        ('"boost.grad_freeze" = [false, true]\n"grad_freeze.freeze_p" = { low = 0.3, high = 0.9 }', {"freeze_p": 0.4},
         {"boost.grad_freeze": True, "grad_freeze.freeze_p": 0.4}, []),
        ('"boost.grad_freeze" = [true]\n"grad_freeze.freeze_p" = { low = 0.5, high = 0.9 }', {"freeze_p": 0.4},
         {"boost.grad_freeze": True, "grad_freeze.freeze_p": 0.5},
         ["earlier trial 7: `grad_freeze.freeze_p` = 0.4 cannot be drawn here; 0.5 is tried instead."]),
        ('"boost.grad_freeze" = [true]\n"grad_freeze.freeze_p" = { low = 0.3, high = 0.9, step = 0.2 }',
         {"freeze_p": 0.62},
         {"boost.grad_freeze": True, "grad_freeze.freeze_p": pytest.approx(0.7)},
         ["earlier trial 7: `grad_freeze.freeze_p` = 0.62 cannot be drawn here; 0.7 is tried instead."]),
        ('"boost.grad_freeze" = [true]\n"grad_freeze.freeze_p" = [0.5, 0.7]', {"freeze_p": 0.4},
         {"boost.grad_freeze": True},
         ["earlier trial 7: `grad_freeze.freeze_p` = 0.4 is not a choice here, so the sampler draws it."]),
        ('"boost.grad_freeze" = [true]\n"grad_freeze.total_steps" = [100]', {"total_steps": 200},
         {"boost.grad_freeze": True}, []),
        ('"boost.grad_freeze" = [true]\n"grad_freeze.param_groups" = { low = 2, high = 4 }', {"param_groups": 9},
         {"boost.grad_freeze": True, "grad_freeze.param_groups": 4},
         ["earlier trial 7: `grad_freeze.param_groups` = 9 cannot be drawn here; 4 is tried instead."]),
    ],
)  # fmt: skip
def test_a_plan_is_mapped_to_another_space(
    text: str, earlier_values: dict[str, Any], values: dict[str, Any], told: list[str]
) -> None:
    found, sentences = mapped_values(freezing(**earlier_values), space(text))
    assert found == values
    assert sentences == told


def test_a_plan_with_the_task_s_own_optimizer_keeps_it_where_it_is_a_choice() -> None:
    rates = '"optimizer.lr_factor" = { low = 0.25, high = 8.0, log = true }'
    own = EarlierPlan("earlier", BoostConfig().with_values({"optimizer.lr_factor": 2.0}), "O1")
    with_it, without = (space(f'"optimizer.name" = [{names}]\n{rates}') for names in ('"AdamW", "task"', '"AdamW"'))
    assert mapped_values(own, with_it) == ({"optimizer.name": "task", "optimizer.lr_factor": 2.0}, [])
    assert mapped_values(own, without) == ({"optimizer.lr_factor": 2.0}, [])


def test_a_switch_that_is_not_searched_is_said_where_it_differs() -> None:
    found, told = mapped_values(plan({"boost.grad_freeze": False}), space('"boost.less_bn" = [false, true]'))
    assert found == {"boost.less_bn": True}
    assert told == ["earlier trial 7: grad_freeze is off there and on here, where it is not searched."]


def test_a_level_that_is_not_searched_is_said() -> None:
    found, told = mapped_values(freezing(), space('level = ["O0", "O2"]\n"boost.grad_freeze" = [false, true]'))
    assert "level" not in found
    assert told == ["earlier trial 7: `level` = 'O1' is not a choice here, so the sampler draws it."]


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda folder: folder / "nothing", "there is nothing to start from; name the folder"),
        (lambda folder: folder / "nothing.json", "a warm start needs a boost_config.json: "),
        (lambda folder: folder / "later", "a study cannot start from itself"),
        (lambda folder: folder / "broken.json", "a warm start needs a boost_config.json: "),
    ],
)
def test_a_source_that_cannot_be_used_is_one_sentence(tmp_path: Path, make: Any, sentence: str) -> None:
    directory = write_study(tmp_path / "later", SHORT)
    (tmp_path / "broken.json").write_text("{")
    with pytest.raises(StudyError) as caught:
        tune(directory, warm_start=[make(tmp_path)], make_experimenter=make_fake)
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)
    assert calls(directory) == []
