"""The answer of a search for the fastest set-up, in one sentence and as JSON."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from tests.reports.synthetic_study import PARTS, candidate, fastest_study
from workbench.cli.output import plain
from workbench.core.headline import (
    headline,
    parts_against_total,
    search_against_confirmation,
    tuned_plain_sentence,
    tuned_plain_speed,
)
from workbench.core.records import Choice, TunedPlain, Verdict

STUDY = fastest_study()
CHOICE = STUDY.choices["o1"]
TUNED = STUDY.tuned_plain["o1"]


def _choice(**changed: object) -> Choice:
    assert CHOICE.candidate is not None
    return replace(CHOICE, candidate=replace(CHOICE.candidate, **changed))


def test_a_confirmed_export_reaches_the_same_quality() -> None:
    assert headline(CHOICE, "accuracy", TUNED) == (
        "Trial 7 trains in 0.50 of O0's time (2.00 x as fast, 95 % interval 1.80 to 2.25; 10 hours become 5 h), with "
        "accuracy 0.1 points worse than O0's (0.5 points allowed); confirmed on 6 seeds. Tuned plain needs 0.80 of "
        "O0's time; the export is 1.60 x (1.50 to 1.70) as fast as tuned plain."
    )


def test_what_shorter_runs_have_shown_is_not_said_of_todays() -> None:
    said = headline(CHOICE, "accuracy", shortened=(30, 228))
    assert "(2.00 x as fast, 95 % interval 1.80 to 2.25), with" in said
    assert said.endswith("confirmed on 6 seeds, in runs of 30 batches where today's have 228.")


@pytest.mark.parametrize(
    ("seeds", "told"), [(6, "undecided on 6 seeds"), (0, "undecided without a test over seeds")], ids=["tested", "not"]
)
def test_what_is_not_confirmed_only_may(seeds: int, told: str) -> None:
    said = headline(_choice(verdict=Verdict.UNDECIDED, n_seeds=seeds), "accuracy")
    assert said.startswith("Trial 7 may train in 0.50 of O0's time")
    assert told in said
    assert "trains" not in said


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"metrics": ((0.98, 0.97), (0.99, 0.98))}, "with accuracy 97.50 %, 0.1 points worse than O0's (0.5 points"),
        ({"drop": -0.02}, "with accuracy 2 points better than O0's"),
        ({"drop": 0.0}, "with accuracy as good as O0's"),
        ({"drop": math.nan}, "; 10 hours become 5 h), 0.5 points allowed in accuracy; confirmed"),
        (
            {"speedup": 12.3},
            "in 0.081 of O0's time (12.30 x as fast, 95 % interval 1.80 to 2.25; 10 hours become 49 min)",
        ),
        ({"speedup": 6.0}, "10 hours become 1 h 40 min)"),
        ({"speedup_low": 2.0, "speedup_high": 2.0}, "0.50 of O0's time (2.00 x as fast; 10 hours"),
        ({"speedup_low": 0.0, "speedup_high": math.inf}, "(2.00 x as fast; 10 hours"),
    ],
    ids=[
        *("what it reaches", "a gain", "no change", "no metric", "much", "hours and minutes"),
        *("a calculated speed", "an interval without ends"),
    ],
)
def test_the_quality_and_the_time_are_in_units_of_the_user(changed: dict[str, object], told: str) -> None:
    assert told in headline(_choice(**changed), "accuracy")


@pytest.mark.parametrize("choice", [Choice("o1", None, "O0 is exported: nothing."), _choice(speedup=math.nan)])
def test_without_a_speed_the_choice_speaks_for_itself(choice: Choice) -> None:
    assert headline(choice, "accuracy", TUNED) == choice.sentence


def test_tuned_plain_is_measured_beside_the_export_or_else_predicted() -> None:
    predicted = replace(TUNED, speedup=math.nan)
    assert tuned_plain_speed(CHOICE, TUNED) == 2.0 / 1.6
    assert tuned_plain_speed(CHOICE, predicted) == 1.0 / 0.7
    assert tuned_plain_sentence(CHOICE, predicted) == "Tuned plain is predicted to need 0.70 of O0's time."
    quicker = replace(predicted, relative_time=0.4)
    assert tuned_plain_sentence(CHOICE, quicker).endswith(", but no full runs have confirmed that.")
    assert "confirmed" not in tuned_plain_sentence(CHOICE, replace(quicker, drop=0.0051))
    lossy = tuned_plain_sentence(CHOICE, replace(TUNED, drop=0.0051))
    assert lossy.startswith("Tuned plain needs 0.80 of O0's time but loses more than is allowed; the export is 1.60 x")
    unknown = TunedPlain("", {}, math.nan)
    assert math.isnan(tuned_plain_speed(CHOICE, unknown))
    assert tuned_plain_sentence(CHOICE, unknown) == "Tuned plain was not tried, so that how long it takes is not known."


@pytest.mark.parametrize(
    ("ends", "told"),
    [
        ((0.97, 1.08), "the export is 1.02 x (0.97 to 1.08) as fast as tuned plain, which is no sure gain."),
        ((1.0, 1.08), "(1.00 to 1.08) as fast as tuned plain, which is no sure gain."),
        ((1.01, 1.03), "(1.01 to 1.03) as fast as tuned plain."),
        ((0.9, 0.99), "(0.90 to 0.99) as fast as tuned plain, so tuned plain is the faster one."),
        ((math.nan, math.nan), "the export is 1.02 x as fast as tuned plain, which is no sure gain."),
    ],
    ids=["around 1", "from 1", "above 1", "below 1", "without an interval"],
)
def test_no_gain_over_tuned_plain_is_claimed_that_is_not_sure(ends: tuple[float, float], told: str) -> None:
    low, high = ends
    assert told in tuned_plain_sentence(CHOICE, replace(TUNED, speedup=1.02, speedup_low=low, speedup_high=high))


def test_where_nothing_plainer_was_found_tuned_plain_is_the_task_as_given() -> None:
    found_nothing = replace(TUNED, relative_time=1.0, n_runs=9)
    assert "Tuned plain is the task as given: no shorter schedule" in headline(CHOICE, "accuracy", found_nothing)
    assert "kept the quality in 9 runs." in headline(CHOICE, "accuracy", found_nothing)
    assert "kept the quality in 1 run." in headline(CHOICE, "accuracy", replace(found_nothing, n_runs=1))
    assert "Tuned plain needs 0.80" in headline(CHOICE, "accuracy", replace(found_nothing, n_runs=0))


def test_an_export_that_is_tuned_plain_says_so() -> None:
    own = replace(TUNED, config={"batch": {"factor": 4}})
    assert "It is tuned plain itself" in headline(CHOICE, "accuracy", own)


def test_parts_that_make_less_than_was_measured_say_so() -> None:
    assert parts_against_total(PARTS, CHOICE.candidate) == ""
    assert parts_against_total(PARTS, candidate(speedup=2.2)) == (
        "the parts multiply to 2.00 x, whole runs were measured at 2.20 x"
    )
    assert parts_against_total(PARTS[:1], candidate(speedup=9.0)).startswith("the one part comes to ")
    assert parts_against_total(PARTS, candidate(speedup=math.nan)) == ""
    assert parts_against_total((), candidate(speedup=2.2)) == ""


def test_json_has_the_fair_baseline_and_the_parts() -> None:
    told = plain(STUDY.exports)["o1"]
    expected = {
        "label": "trial 7", "summary": "AdamW, batch x 4", "verdict": "confirmed", "speedup": 2.0, "speedup_low": 1.8,
        "speedup_high": 2.25, "drop": 0.001, "drop_bound": 0.004, "seeds": 6, "path": "boost_config.o1.json",
        "headline": headline(CHOICE, "accuracy", TUNED),
        "tuned_plain": {"speedup": 1.6, "speedup_low": 1.5, "speedup_high": 1.7},
    }  # fmt: skip
    assert {name: told[name] for name in expected} == expected
    assert told["attribution"] == [
        {"part": "schedule x 0.5", "factor": 2.0, "low": 1.8, "high": 2.2},
        {"part": "batch x 4", "factor": 1.25, "low": None, "high": None},
        {"part": "LessBN", "factor": 0.8, "low": 0.7, "high": 0.9},
    ]


@pytest.mark.parametrize(
    ("changed", "sentence", "is_said"),
    [
        ({}, "Confirmed.", False),
        ({}, "Confirmed. Its time includes 9 s of compiling.", True),
        ({"verdict": Verdict.UNDECIDED}, "About 9 fresh seeds would decide.", True),
    ],
)
def test_what_a_headline_says_is_not_said_again(changed: dict[str, Any], sentence: str, is_said: bool) -> None:
    choice = replace(_choice(**changed), sentence=sentence)
    study = replace(
        STUDY, choices={"o1": choice}, messages=[f"o1: {sentence}", "o1: not trial 3: slower.", "Cut short."]
    )
    assert study.remarks == study.messages[0 if is_said else 1 :]
    assert (sentence in str(study)) == is_said


def test_another_objective_has_no_headline() -> None:
    other = replace(STUDY, objective="speed", attribution={}, tuned_plain={})
    assert other.headlines == {}
    told = other.exports["o1"]
    assert (told["tuned_plain"], told["attribution"], told["headline"]) == (None, [], CHOICE.sentence)


def test_what_the_search_computed_stands_beside_what_the_confirmation_measured() -> None:
    said = search_against_confirmation(STUDY)
    trial = next(one for one in STUDY.trials if one.number == STUDY.candidates[0].trial_number)
    assert said.startswith("The confirmation measured trial 7 at 2.00 x (1.80 to 2.25), where the search had ")
    assert f"{trial.speed[0]:.2f} x" in said
    assert said.endswith("(95 % intervals, whole runs in turn with O0's).")
    unmeasured = [replace(one, speedup_low=math.nan) for one in STUDY.candidates]
    assert search_against_confirmation(replace(STUDY, candidates=unmeasured)) == ""
    untested = [replace(one, n_seeds=0) for one in STUDY.candidates]  # their speed is the search's own
    assert search_against_confirmation(replace(STUDY, candidates=untested)) == ""
    assert search_against_confirmation(replace(STUDY, objective="time_to_target")) == ""  # not the same quantity
