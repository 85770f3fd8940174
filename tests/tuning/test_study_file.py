"""A study file is checked completely before anything runs, and says what is wrong in one sentence."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tests.kit.fake_runner import STUDY, write_study
from workbench.config import BoostConfig
from workbench.core.metric_scale import MetricScale
from workbench.study.ask.study_file import parse_study, read_study
from workbench.study.errors import StudyError


def minimal(**study: Any) -> str:
    values = {"task": '"digits-resnet"', "budget_steps": 100, "n_trials": 3} | study
    return "[study]\n" + "\n".join(f"{key} = {value}" for key, value in values.items()) + "\n"


def test_the_name_is_the_folder_and_defaults_are_filled_in(tmp_path: Path) -> None:
    file = read_study(write_study(tmp_path / "my_study", minimal()))
    assert file.study.name == "my_study"
    assert file.evaluate_every == 10
    assert file.study.objective == "time_to_target"
    assert file.allowed_drops("accuracy") == {"o1": 0.005, "o2": 0.03}
    assert file.base_config() == BoostConfig()


@pytest.mark.parametrize("metric", ["acc", "MulticlassAccuracy", "top-1 accuracy", "bits per byte", "f1"])
def test_what_is_shown_in_points_has_an_accuracy_s_drops(metric: str) -> None:
    file = parse_study(minimal())
    if MetricScale(metric).difference_text(0.005) == "0.5 points":
        assert file.allowed_drops(metric) == {"o1": 0.005, "o2": 0.03}
    else:
        with pytest.raises(StudyError, match="only accuracies have a default"):
            file.allowed_drops(metric)


def test_a_metric_that_is_no_accuracy_must_name_its_drops() -> None:
    with pytest.raises(StudyError, match=re.escape("`allowed_drop.o1` must be given for the metric 'bits per byte'")):
        parse_study(minimal()).allowed_drops("bits per byte")


def test_baseline_sections_and_dotted_keys_mean_the_same() -> None:
    dotted = parse_study(minimal() + '[baseline]\n"amp.level" = "O2"\n"loss_scale.init" = 1024.0\n')
    nested = parse_study(minimal() + '[baseline.amp]\nlevel = "O2"\n[baseline.loss_scale]\ninit = 1024.0\n')
    assert dotted.base_config().amp.level == "O2"
    assert dotted.base_config() == nested.base_config()
    assert dotted.canonical() == nested.canonical()


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "`study` is missing"),
        ("[study\n", "is not valid TOML"),
        ("[study]\nbudget_steps = 3\nn_trials = 1\n", "`study.task` is missing"),
        (minimal(budget_steps=0), "`study.budget_steps` must be at least 1, got 0"),
        (minimal(budget_steps='"many"'), '`study.budget_steps` must be a whole number at least 1, got "many"'),
        (minimal(budget_steps=1.5), "`study.budget_steps` must be"),
        (minimal(timeout_seconds="nan"), "`study.timeout_seconds` must be"),
        (minimal(timeout_seconds=-1), "`study.timeout_seconds` must be greater than 0"),
        (minimal(n_trial=3), 'unknown key "n_trial" in section "study"; did you mean "n_trials"?'),
        (minimal(objective='"sped"'), 'did you mean "speed"?'),
        (minimal(ranks=0), "`study.ranks` must be at least 1, got 0"),
        (minimal(ranks='"two"'), '`study.ranks` must be a whole number at least 1, got "two"'),
        (minimal(evaluate_every=1000), "`study.evaluate_every` must not exceed `study.budget_steps` (100), got 1000"),
        (minimal() + "[spaces]\n", 'unknown section "spaces"; did you mean "space"?'),
        (minimal(device_hours=0), "`study.device_hours` must be greater than 0, got 0"),
        (minimal(device_hours='"2h"'), "`study.device_hours` must be"),
        (
            minimal(objective='"speed"') + '[space]\n"batch.factor" = [1.0, 2.0]\n',
            "`batch.factor` changes what a step is",
        ),
        (minimal() + '[baseline]\n"batch.factor" = 4.0\n', "ask it with `study.objective"),
        (
            minimal(objective='"time_to_quality"') + "[set_up]\nplain_rates = [0.0, 0.02]\n",
            "`set_up.plain_rates`: `optimizer.lr` must be greater than 0, got 0.0",
        ),
        (
            minimal(objective='"time_to_quality"') + '[set_up]\nplain_shape = "lineer"\n',
            'did you mean "linear"?',
        ),
        (minimal(patience=0), "`study.patience` must be at least 1, got 0"),
        (minimal(patience=2.5), "`study.patience` must be a whole number"),
        (minimal(patients=3), 'unknown key "patients" in section "study"; did you mean "patience"?'),
        (minimal() + "[warm_start]\n", "`warm_start.from` is missing"),
        (minimal() + "[warm_start]\nfrom = 3\n", "`warm_start.from` must be a path or a list of paths, got 3"),
        (minimal() + "[warm_start]\nfrom = []\n", "`warm_start.from` must be a path or a list of paths, got []"),
        (minimal() + '[warm_start]\nfrom = ["a", 3]\n', "`warm_start.from` must be a path or a list of paths"),
        (minimal() + '[warm_start]\nfrom = "a"\ntrials = 0\n', "`warm_start.trials` must be at least 1, got 0"),
        (minimal() + '[warm_start]\nform = "a"\n', 'unknown key "form" in section "warm_start"; did you mean "from"?'),
        (minimal() + '[sampler]\nname = "tpee"\n', 'did you mean "tpe"?'),
        (minimal() + '[sampler]\nname = "tpe"\nn_startup_trial = 3\n', 'did you mean "n_startup_trials"?'),
        (
            minimal() + '[pruner]\nname = "median"\nn_startup_trials = -3\n',
            'options of the pruner "median" are refused',
        ),
        (minimal() + "[confirm]\nseeds_min = 1\n", "`confirm.seeds_min` must be at least 2, got 1"),
        (minimal() + "[confirm]\nseeds_min = 6\nseeds_max = 5\n", "`confirm.seeds_max` must be at least"),
        (minimal() + "[allowed_drop]\no1 = -0.1\n", "`allowed_drop.o1` must be at least 0"),
        (
            minimal() + '[baseline.amp]\nlevel = "O7"\n',
            '[baseline] `amp.level` must be one of "O0", "O2", "O3", "auto"',
        ),
        (minimal() + '[space]\nlevel = ["O1", "O9"]\n', '[space] `level` must be one of "O0", "O1", "O2", got "O9"'),
        (minimal() + "[space]\nlevel = [[]]\n", '[space] `level` must be one of "O0", "O1", "O2", got []'),
        (minimal() + '[space]\n"grad_freeze.freeze_p" = { low = 0.1, high = 1.2 }\n', "must lie in [0, 1), got 1.2"),
        (minimal() + '[space]\n"grad_freeze.frees_p" = true\n', 'did you mean "grad_freeze.freeze_p"?'),
        (minimal() + '[space]\n"boost.less_bn" = [1]\n', "`boost.less_bn` must be true or false, got 1"),
    ],
)
def test_a_wrong_file_is_one_sentence_that_names_file_path_and_rule(text: str, sentence: str) -> None:
    with pytest.raises(StudyError) as caught:
        parse_study(text, source="here/study.toml")
    message = str(caught.value)
    assert message.startswith("here/study.toml: ")
    assert sentence in message
    assert "\n" not in message


def test_a_missing_or_unreadable_file_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(StudyError, match="there is no such study file"):
        read_study(tmp_path)
    (tmp_path / "study.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(StudyError, match="cannot be read"):
        read_study(tmp_path)


def test_comments_and_layout_do_not_change_the_question() -> None:
    assert parse_study(STUDY).canonical() == parse_study(STUDY.replace("\n\n", "\n# a remark\n\n")).canonical()
    assert parse_study(STUDY).canonical() != parse_study(STUDY.replace("high = 0.9", "high = 0.8")).canonical()


def test_when_to_end_and_where_to_begin_are_no_part_of_the_question() -> None:
    more = parse_study(minimal(device_hours=1.5, patience=4) + '[speed]\nrounds = 3\n[warm_start]\nfrom = "a"\n')
    assert more.warm_start is not None
    assert more.warm_start.sources == ["a"]
    assert more.canonical() == parse_study(minimal()).canonical(), "studies that were begun without these keys go on"


def test_another_number_of_ranks_is_another_question_but_one_rank_is_the_old_one() -> None:
    alone, two = parse_study(minimal()), parse_study(minimal(ranks=2))
    assert alone.canonical() != two.canonical()
    assert two.canonical()["study"]["ranks"] == 2
    assert "ranks" not in alone.canonical()["study"], "studies of earlier versions, which knew no ranks, go on"
    assert parse_study(minimal(ranks=1)).canonical() == alone.canonical()


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("[space]", "[{key}]\nx = 1\n[space]"),
        ("[study]", "[study]\n{key} = 1"),
        ("[space]", "[space]\n{key} = [1]"),
        ("[space]", '[space]\n"optimizer.lr[{key}]" = [1.0]'),
        ("[space]", '[sampler]\nname = "{key}"\n[space]'),
        ("[space]", '[sampler]\nname = "tpe"\n{key} = 1\n[space]'),
        ("[allowed_drop]", "[allowed_drop]\n{key} = 1"),
    ],
)
def test_a_key_of_thousands_of_letters_is_cut_in_the_sentence(before: str, after: str, tmp_path: Path) -> None:
    (tmp_path / "study.toml").write_text(STUDY.replace(before, after.replace("{key}", "o" + "9" * 5000), 1))
    with pytest.raises(StudyError) as refused:
        read_study(tmp_path)
    assert "o9999" in str(refused.value)
    assert len(str(refused.value)) < 1000
