"""One count, one wording and one winner, wherever a study is looked at."""

from __future__ import annotations

import json
import math
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import optuna
import pandas as pd
import pytest

from tests.kit.fake_runner import STUDY, FakeRunner, making, tuned
from tests.tuning.ended_study import Ended
from workbench.api import export
from workbench.cli import main
from workbench.config import BoostConfig
from workbench.core.records import CandidateRecord, Choice, StudyResult, TrialRecord, Verdict
from workbench.core.trial_counts import count_trials, outcome_of
from workbench.figures import importance_figure
from workbench.figures.drawing import figure_text
from workbench.panels.study_answer import answer_html
from workbench.study import read_result
from workbench.study.answer import result as answering
from workbench.study.answer.not_exported import faster_untested
from workbench.study.ask.study_file import StudyFile
from workbench.study.run.job import UNMONITORED, Job, Monitor, Trained, TrainJob
from workbench.study.run.study_stages import StudyStages
from workbench.study.store.storage import default_storage, open_storage

DROPS = {"o1": 0.01, "o2": 0.03}


@pytest.fixture
def finished(whole: Ended, tmp_path: Path) -> Path:
    """Return the folder of a study that has run to its end, the test's own copy."""
    return shutil.copytree(whole[0], tmp_path / "s")


def stored(directory: Path) -> optuna.Study:
    return optuna.load_study(study_name="s", storage=open_storage(default_storage(directory)))


def trial(number: int, state: str = "complete", deficit: float = math.nan, **known: Any) -> TrialRecord:
    return TrialRecord(number, state, metric_deficit=deficit, **known)


TRIALS = [trial(0, deficit=0.0), trial(1, deficit=0.01), trial(2, deficit=0.02), trial(3, deficit=0.04), trial(4),
          trial(5, "pruned", 0.0), trial(6, "failed"), trial(7, "waiting")]  # fmt: skip


def test_a_trial_comes_to_one_thing_and_the_counts_add_up() -> None:
    told = ["O0", "within the allowed drop", "within the drop of o2 only", *["beyond the allowed drop"] * 2,
            "pruned", "failed", "waiting"]  # fmt: skip
    assert [outcome_of(one, DROPS) for one in TRIALS] == told
    counts = count_trials(TRIALS, DROPS)
    assert counts.n_finished == sum(counts.finished.values()) == 6
    assert counts.text() == (
        "O0, 1 within the allowed drop, 1 within the drop of o2 only, 2 beyond the allowed drop, 1 pruned; "
        "besides 1 failed, 1 not begun"
    )
    assert outcome_of(replace(TRIALS[2], feasible=True)) == "within the allowed drop"  # by the study's target


def searched(number: int, time: float, deficit: float, chance: float) -> TrialRecord:
    return trial(number, deficit=deficit, relative_step_time=time, chance=chance, allowed_drop=0.01,
                 feasible=chance >= 0.9)  # fmt: skip


SEARCHED = [searched(1, 0.3, 0.004, 0.95), searched(2, 0.2, 0.004, 0.4), searched(3, 0.25, 0.009, 0.07),
            searched(4, 0.1, 0.02, 0.0), searched(5, 0.5, 0.004, 0.5)]  # fmt: skip


def test_a_trial_of_a_search_for_set_ups_is_within_the_drop_only_where_that_is_sure() -> None:
    unsure = "within the drop, but not surely"
    told = ["within the allowed drop", unsure, unsure, "beyond the allowed drop", unsure]
    assert [outcome_of(one, {"o1": 0.01}) for one in SEARCHED] == told
    assert count_trials(SEARCHED).text() == f"1 within the allowed drop, 3 {unsure}, 1 beyond the allowed drop"


def test_what_looks_faster_than_the_export_is_said_not_to_be_sure() -> None:
    taken = candidate(trial_number=1)
    [sentence] = faster_untested(Choice("o1", taken, ""), SEARCHED, {1}, {})
    assert sentence == (
        "not trial 2 or 1 more, though faster in few runs (up to 5.00 x): that the quality holds in a confirmation is "
        "7 to 40 % likely, and 90 % is asked of a leader."
    )
    [alone] = faster_untested(Choice("o1", None, ""), [SEARCHED[4]], (), {})
    assert "not trial 5, though faster in few runs (up to 2.00 x)" in alone
    assert "is 50 % likely" in alone
    assert faster_untested(Choice("o1", taken, ""), [SEARCHED[0], SEARCHED[3], *TRIALS], {1}, {}) == []
    assert faster_untested(Choice("o1", taken, ""), SEARCHED, {1, 2, 3}, {}) == [], "they have their sentences"


def test_what_is_sure_and_faster_but_has_a_part_without_gain_has_its_sentence() -> None:
    frozen = BoostConfig().with_values({"boost.grad_freeze": True}).to_dict()
    plain, idle = BoostConfig().with_values({"boost.grad_freeze": False}).to_dict(), {"boost.grad_freeze": False}
    known = [replace(searched(number, time, 0.004, 0.95), config=config)
             for number, time, config in ((1, 0.3, plain), (2, 0.25, frozen), (3, 0.2, plain))]  # fmt: skip
    choice = Choice("o1", candidate(trial_number=1), "")
    assert faster_untested(choice, known, {1, 3}, {"remaining_set_up": {"idle": idle}}) == [
        "not trial 2, though faster in the search (up to 4.00 x): a part of it was found to be no sure gain."
    ]
    assert faster_untested(choice, known, {1, 3}, {}) == []


def test_schedules_that_round_to_the_same_one_are_one_plan_with_keys_of_their_own() -> None:
    def plan(freeze_p: float, freeze_type: int = 0) -> Any:
        values = {"param_groups": 2, "freeze_type": freeze_type, "freeze_p": freeze_p}
        return BoostConfig.from_dict({"grad_freeze": values}).resolve("O1")

    assert plan(0.2).training_key() == plan(0.38).training_key()  # each freezes in every step
    assert plan(0.2).training_key() != plan(0.5).training_key()
    assert plan(0.2, 1).training_key() != plan(0.38, 1).training_key()
    assert plan(0.2).key() != plan(0.38).key()
    # As version 0.6 made it: confirmations are stored by it.
    assert BoostConfig().resolve("O1").key() == "1af9e01c6907c4d7"


def test_a_search_trains_one_of_the_plans_that_train_alike(tmp_path: Path) -> None:
    text = STUDY.replace('["O0", "O1", "O2"]', '["O1"]').replace("[0, 1]", "[0]").replace("[false, true]", "[true]")
    text = text.replace("low = 0.3, high = 0.9", "low = 0.36, high = 0.6").replace("n_trials = 10", "n_trials = 4")
    more = '"grad_freeze.param_groups" = [2]\n[confirm]\nenabled = false'
    result = tuned(tmp_path, text.replace("[confirm]", more))
    plans = {BoostConfig.from_dict(one.config).resolve(one.level).training_key() for one in result.trials}
    assert len(plans) == len(result.trials) == 3  # O0, no full step (below 0.5), one full step in two
    assert result.importance == {}


def importance_of(study: optuna.Study) -> tuple[dict[str, float], str]:
    file = SimpleNamespace(dimensions=[], study=SimpleNamespace(objective="speed"))
    return answering._importance(study, cast("StudyFile", file))


@pytest.mark.parametrize("n_parameters", [1, 2, 3])
@pytest.mark.parametrize("n_directions", [1, 2])
def test_of_a_constant_objective_no_parameter_stands_out(n_parameters: int, n_directions: int) -> None:
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0), directions=["minimize"] * n_directions)
    names = [f"p{i}" for i in range(n_parameters)]

    def objective(trial: optuna.Trial, slope: float) -> list[float]:
        return [slope * sum(trial.suggest_float(name, 0, 1) for name in names)] * n_directions

    study.optimize(lambda trial: objective(trial, 0.0), n_trials=8)
    assert importance_of(study) == (dict.fromkeys(names, 0.0), "")
    assert "no parameter stands out" in figure_text(importance_figure(importance_of(study)[0]))
    study.optimize(lambda trial: objective(trial, 1.0), n_trials=8)
    assert sum(importance_of(study)[0].values()) == pytest.approx(1.0)


def test_of_a_parameter_that_hardly_any_trial_has_drawn_no_importance_is_told() -> None:
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))

    def objective(trial: optuna.Trial) -> float:
        if trial.number % 6 == 3:
            return 10.0 + trial.suggest_float("lr[AdamW]", 0, 1)
        return trial.suggest_float("lr[SGD]", 0, 1)

    study.optimize(objective, n_trials=24)
    assert "lr[AdamW]" in optuna.importance.get_param_importances(study)
    assert importance_of(study) == ({"lr[SGD]": 1.0}, "")
    study.optimize(objective, n_trials=6)  # the fifth
    assert importance_of(study)[0].keys() == {"lr[SGD]", "lr[AdamW]"}


class Lucky(FakeRunner):
    """With freeze_p 0.7 the target is reached early on the search's seed alone; over seeds 0.5 is faster."""

    def run(self, job: Job[Any], monitor: Monitor = UNMONITORED) -> Any:
        if not isinstance(job, TrainJob):
            return super().run(job, monitor)
        reached, freeze_p = 100, job.config.grad_freeze.freeze_p
        if job.config.resolve(job.level).grad_freeze:
            reached = 80 if freeze_p == 0.5 else 50 if job.seed == 0 else 100
        noise = np.random.default_rng([job.seed, int(100 * freeze_p), reached]).standard_normal()
        curve = tuple((step, (0.9 if step >= reached else 0.5) + 1e-5 * step) for step in range(10, 101, 10))
        return Trained(0.9 + 0.001 * noise, curve, 0.01, steps=100)


def test_what_is_confirmed_over_seeds_is_exported_and_not_what_led_the_search(tmp_path: Path) -> None:
    text = STUDY.replace('["O0", "O1", "O2"]', '["O1"]').replace("[0, 1]", "[0]").replace("[false, true]", "[true]")
    text = text.replace("{ low = 0.3, high = 0.9 }", "[0.7, 0.5]").replace("o2 = 0.05\n", "")
    text = text.replace("n_trials = 10", "n_trials = 3").replace("seeds_max = 8", "seeds_max = 16")
    result = tuned(tmp_path, text, make_experimenter=making(Lucky))
    by_search = min((one for one in result.trials if one.number), key=lambda one: one.value)
    assert by_search.parameters["grad_freeze.freeze_p"] == 0.7
    exported = BoostConfig.from_json(tmp_path / "result" / "boost_config.o1.json")
    assert exported.resolve("O1").grad_freeze
    assert exported.grad_freeze.freeze_p == 0.5
    table = pd.read_csv(tmp_path / "result" / "candidates.csv")
    (row,) = table.loc[(table["export"] == "o1") & table["exported"]].to_dict("records")
    assert read_result(tmp_path).chosen["o1"] == result.chosen["o1"] == row["candidate"]


def test_every_place_counts_the_same(finished: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stored(finished).enqueue_trial({"level": "O1"})
    export(finished)
    result = read_result(finished)
    assert len(result.trials) == 11
    told = result.counts.text()
    assert told.endswith("besides 1 not begun")
    assert not result.is_over
    results = (finished / "result" / "results.md").read_text(encoding="utf-8")
    assert f"10 of 10 trials finished: {told}." in results
    page = (finished / "result" / "report.html").read_text(encoding="utf-8")
    assert f'<span class="value">10</span><span class="note">{told}</span>' in page
    table = page.partition('<div class="trials">')[2].partition("</script>")[0]
    assert len(json.loads(table.partition(">")[2])["trials"]) == 11
    with pytest.raises(SystemExit, match=r"^0$"):
        main(["status", str(finished)])
    shown = capsys.readouterr().out
    assert told in shown
    for label in {*result.chosen.values()} - {"O0"}:
        assert label in shown
        assert label in page


def candidate(**changed: Any) -> CandidateRecord:
    values: dict[str, Any] = {
        "label": "trial 1", "trial_number": 1, "target": "o1", "summary": "freezing", "config": {}, "speedup": 1.2,
        "speedup_low": 0.0, "speedup_high": math.inf, "drop": math.nan, "drop_bound": math.inf, "allowed_drop": 0.01,
        "n_seeds": 0, "verdict": Verdict.UNDECIDED, "sentence": "Undecided.",
    }  # fmt: skip
    return CandidateRecord(**(values | changed))


def study_result(directory: Path, **changed: Any) -> StudyResult:
    known: dict[str, Any] = {
        "name": "s", "directory": directory, "task": "t", "metric_name": "accuracy", "higher_is_better": True,
        "objective": "speed", "n_trials": 8, "trials": TRIALS, "allowed_drops": DROPS,
    }  # fmt: skip
    return StudyResult(**(known | changed))


def test_what_is_not_known_is_said_in_one_way(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from workbench.cli.study_commands import _print_candidates
    from workbench.report.result_files import results_page
    from workbench.study.answer.export import write_tables

    one = candidate()
    result = study_result(tmp_path, candidates=[one], choices={"o1": Choice("o1", one, "")})
    _print_candidates(result)
    shown = capsys.readouterr().out
    row = next(line for line in shown.splitlines() if one.label in line)
    assert row.split()[3:6] == ["1.20", "x", "unknown"]
    assert "95 % bound unknown: " in " ".join(shown.split())
    assert "| 1.20 | unknown | unknown | 1 point | 0 | undecided | yes |" in results_page(result)
    write_tables(tmp_path, result)
    table = pd.read_csv(tmp_path / "candidates.csv")
    assert table[["speedup_high", "drop", "drop_bound"]].isna().all(axis=None)


def test_exports_with_one_answer_say_it_once() -> None:
    choices = {target: Choice(target, None, "O0 is exported: nothing acts.") for target in DROPS}
    result = study_result(Path("s"), choices=choices)
    assert result.choice_sentences == ["o1, o2: O0 is exported: nothing acts."]
    assert result.in_effect("o1") == result.exports["o1"]["summary"] == "nothing switched on"
    told = answer_html(result)
    assert told.count("nothing acts") == 1
    assert "The same as for o1, for the same reason." in told


def test_a_stored_command_names_the_folder_as_it_is_called_now(finished: Path) -> None:
    study = stored(finished)
    candidates = study.user_attrs["candidates"]
    candidates[0]["sentence"] = (
        "Undecided. About 9 fresh seeds would decide: `workbench tune elsewhere --confirm-seeds 44`."
    )
    study.set_user_attr("candidates", candidates)
    told = read_result(finished).candidates[0].sentence
    assert told.endswith(f"would decide: `workbench tune {finished} --confirm-seeds 44`.")


def test_status_says_that_the_limit_ended_the_confirmation(finished: Path) -> None:
    study = stored(finished)
    assert json.dumps(study.user_attrs["cut_short"]) == '""'
    sentence = "The time limit ended the confirmation; the same command continues from there."
    study.set_user_attr("cut_short", sentence)
    assert sentence in read_result(finished).messages
    assert sentence not in tuned(finished).messages


@pytest.mark.parametrize(
    ("limit", "seconds", "more"),
    [
        (None, 600.0, ""),
        (240.0, 25.0, ""),
        (60.0, 25.0, " --minutes 2"),
        (240.0, 400.0, " --minutes 15"),
        (60.0, math.nan, ""),
    ],
)
def test_a_command_for_more_seeds_asks_for_the_time_that_they_take(
    limit: float | None, seconds: float, more: str, tmp_path: Path
) -> None:
    unused: Any = SimpleNamespace(study=SimpleNamespace(objective="time_to_quality"))
    stages = StudyStages(unused, unused, tmp_path, *[unused] * 5, limit, None, None, in_file=True)
    assert stages.for_more_seeds(18, seconds) == f"workbench tune {tmp_path} --confirm-seeds 18{more}"
