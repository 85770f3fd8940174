"""What a study answers, asked through its public names alone, so that any version can be asked: each of these
failed on version 0.6 (5493cf8)."""

from __future__ import annotations

import html
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

from tests.tuning.fake_experimenter import STUDY, FakeExperimenter, make_fake, write_study
from workbench import Task, export
from workbench import tune as tune_task
from workbench.cli import main
from workbench.config import BoostConfig
from workbench.study import read_result, tune
from workbench.study.ask.study_file import StudyFile
from workbench.study.run.experimenter import SpeedMeasured, Trained

LUCKY, SOUND = 0.7, 0.5
TWO_PLANS = STUDY.replace('["O0", "O1", "O2"]', '["O1"]').replace("[false, true]", "[true]")
TWO_PLANS = TWO_PLANS.replace("{ low = 0.3, high = 0.9 }", f"[{LUCKY}, {SOUND}]").replace("[0, 1]", "[0]")
TWO_PLANS = TWO_PLANS.replace("n_trials = 10", "n_trials = 3")
TWO_PLANS = TWO_PLANS.replace("seeds_max = 8", "seeds_max = 16").replace("o2 = 0.05\n", "")


class Lucky(FakeExperimenter):
    """One plan reaches the target early on the search's seed alone; over seeds the other one is faster."""

    def train(self, config: BoostConfig, level: str, **options: Any) -> Trained:
        reached = 100
        if config.resolve(level).grad_freeze:
            reached = 80 if config.grad_freeze.freeze_p == SOUND else (50 if options["seed"] == 0 else 100)
        plan = int(config.resolve(level).key(), 16) % 2**32
        noise = np.random.default_rng([options["seed"], plan]).standard_normal()
        curve = tuple((step, (0.9 if step >= reached else 0.5) + 1e-5 * step) for step in range(10, 101, 10))
        return Trained(0.9 + 0.001 * noise, curve, 0.01, steps=100)


class Unclear(FakeExperimenter):
    """As accurate as O0 on every seed, and a little faster or a little slower."""

    def train(self, config: BoostConfig, level: str, **options: Any) -> Trained:
        return Trained(0.9, tuple((step, 0.009 * step) for step in range(10, 101, 10)), 0.01, steps=100)

    def speed(self, baseline: Any, candidate: Any, **options: Any) -> SpeedMeasured:
        return SpeedMeasured(0.97, 0.9, 1.07)


def make_lucky(file: StudyFile, directory: Path) -> Lucky:
    return Lucky(directory)


def make_unclear(file: StudyFile, directory: Path) -> Unclear:
    return Unclear(directory)


def winner(directory: Path, target: str = "o1") -> float | None:
    """The freeze_p of the exported file; None where nothing is switched on."""
    config = BoostConfig.from_json(directory / "result" / f"boost_config.{target}.json")
    return config.grad_freeze.freeze_p if config.resolve("O1").grad_freeze else None


def page(directory: Path) -> str:
    text = (directory / "result" / "report.html").read_text(encoding="utf-8")
    return html.unescape(re.sub(r"<(script|style).*?</\1>|<[^>]+>", " ", text, flags=re.DOTALL))


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = write_study(tmp_path_factory.mktemp("ended") / "s")
    tune(directory, make_experimenter=make_fake)
    return directory


def test_point_7_an_equal_plan_has_one_score_whatever_level_it_was_drawn_at(ended: Path) -> None:
    trials = read_result(ended).trials
    assert len({trial.allowed_drop for trial in trials}) == 1
    assert {trial.level for trial in trials} > {"O0"}


def test_point_8_what_is_confirmed_over_seeds_is_exported_and_shown_everywhere(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = write_study(tmp_path / "s", TWO_PLANS)
    result = tune(directory, make_experimenter=make_lucky)
    by_search = min((trial for trial in result.trials if trial.level != "O0"), key=lambda trial: trial.value)
    assert by_search.parameters["grad_freeze.freeze_p"] == LUCKY
    assert winner(directory) == SOUND
    export(directory)
    assert winner(directory) == SOUND
    table = pd.read_csv(directory / "result" / "candidates.csv")
    (row,) = table.loc[(table["export"] == "o1") & table["exported"]].to_dict("records")
    assert read_result(directory).chosen["o1"] == result.chosen["o1"] == row["candidate"]
    with pytest.raises(SystemExit, match=r"^0$"):
        main(["status", str(directory)])
    assert result.chosen["o1"] in capsys.readouterr().out
    assert result.chosen["o1"] in page(directory)


def test_point_9_as_accurate_but_not_clearly_faster_is_no_gain(tmp_path: Path) -> None:
    directory = write_study(tmp_path / "s", TWO_PLANS)
    result = tune(directory, make_experimenter=make_unclear, require_confirmed=True)
    assert result.chosen["o1"] == "O0"
    assert winner(directory) is None
    assert "confirmed" not in {str(one.verdict.value) for one in result.candidates}


def plain_task() -> Task:
    inputs = torch.randn(64, 4, generator=torch.Generator().manual_seed(0))
    points = [(inputs, (inputs.sum(dim=1) > 0).long())]
    return Task(
        name="points",
        model=lambda: nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)),
        loss=nn.CrossEntropyLoss(),
        optimizer=lambda named: torch.optim.SGD([p for _, p in named], lr=0.1),
        train=points,
        evaluate=points,
        metric="accuracy",
        data_hash="points",
    )


PLAIN = """
[study]
task = "points"
budget_steps = 3
n_trials = 4
device = "cpu"
[space]
level = ["O0", "O1"]
"boost.less_bn" = [false, true]
"""


def test_points_10_and_11_what_found_nothing_is_not_in_effect_and_the_report_says_why(tmp_path: Path) -> None:
    directory = write_study(tmp_path / "s", PLAIN)
    result = tune_task(directory, task=plain_task())
    assert not [trial.summary for trial in result.trials if "LessBN" in trial.summary or "freez" in trial.summary]
    for target in ("o1", "o2"):
        written = json.loads((directory / "result" / f"boost_config.{target}.json").read_text(encoding="utf-8"))
        assert written["provenance"]["in_effect"] == "nothing switched on"
        assert written["boost"]["less_bn"] is False
    assert result.chosen == {"o1": "O0", "o2": "O0"}
    assert "no BatchNorm" in page(directory)
    assert "unchecked" not in page(directory)


def test_point_12_a_key_that_changes_no_trial_may_be_edited(tmp_path: Path) -> None:
    text = STUDY.replace("[confirm]", "[confirm]\nenabled = false")
    directory = write_study(tmp_path / "s", text)
    tune(directory, trials=3, make_experimenter=make_fake)
    write_study(directory, text.replace("[study]", "[study]\ntimeout_seconds = 900.0"))
    assert len(tune(directory, trials=3, make_experimenter=make_fake).trials) == 3


def test_point_13_a_trial_is_a_plan_that_was_run(ended: Path) -> None:
    result = read_result(ended)
    plans = [BoostConfig.from_dict(one.config).resolve(one.level).key() for one in result.trials]
    assert len(plans) == len(set(plans)) == 10
    export(ended)
    assert len(pd.read_csv(ended / "result" / "trials.csv")) == 10
