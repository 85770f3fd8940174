"""A study that knows its task's network: nothing is drawn that could change nothing there."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import optuna
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from tests.experiments.small_tasks import small_task
from tests.kit.fake_runner import STUDY, FakeRunner, making, tuned, write_study
from tests.kit.tasks import task_of
from workbench.api import tune as tune_task
from workbench.config import BoostConfig, NetworkFacts
from workbench.study import read_result, tune
from workbench.study.ask.study_file import parse_study, read_study
from workbench.study.store.storage import default_storage, on_its_network, open_storage
from workbench.tasks import Task
from workbench.training.task_look import network_facts

PLAIN = NetworkFacts(0, 0, 3, 3, 0, 3)
RESIDUAL = NetworkFacts(9, 4, 12, 6, 0, 12)
SHORT = STUDY.replace("n_trials = 10", "n_trials = 6").replace("[confirm]", "[confirm]\nenabled = false")
GROUPS = '"grad_freeze.param_groups" = '


class Plain(FakeRunner):
    """Trains a network without BatchNorm that has three layers."""

    def network_facts(self) -> NetworkFacts:
        return PLAIN


def test_a_study_trains_nothing_but_o0_where_nothing_can_act(tmp_path: Path) -> None:
    result = tuned(tmp_path, SHORT, make_experimenter=making(Plain))
    assert [(trial.number, trial.level, trial.summary) for trial in result.trials] == [(0, "O0", "nothing switched on")]
    told = [
        "o1, o2: O0 is exported: nothing that is searched acts on this network: less_bn is not in effect because this "
        "network has no BatchNorm; grad_freeze is not in effect because this network can be cut into 3 groups at most, "
        "fewer than `grad_freeze.param_groups` = 10; lower it.",
        "The search ended with O0, since nothing that is searched acts on this network.",
    ]
    assert result.messages == told
    assert read_result(tmp_path).messages == told
    assert result.importance == {}
    assert result.is_over


def test_no_switch_of_a_method_without_work_is_drawn_and_no_trial_repeats_another(tmp_path: Path) -> None:
    text = SHORT.replace("[confirm]", f"{GROUPS}[2, 3, 4, 10]\n[confirm]")
    result = tuned(tmp_path, text, trials=4, make_experimenter=making(Plain))
    drawn = {path for trial in result.trials for path in trial.parameters}
    assert "boost.less_bn" not in drawn
    assert "boost.grad_freeze" in drawn
    groups = {trial.parameters[GROUPS[1:-4]] for trial in result.trials if GROUPS[1:-4] in trial.parameters}
    assert groups <= {2, 3}
    assert all("LessBN" not in trial.summary for trial in result.trials)
    told = "`grad_freeze.param_groups` = 4, 10 is not tried: this network can be cut into 3 groups at most."
    assert told in result.messages
    for path in result.exported.values():
        written = json.loads(path.read_text())
        assert written["boost"]["less_bn"] is False
        assert "LessBN" not in written["provenance"]["in_effect"]


def test_single_values_beside_what_cannot_act_make_no_second_plan() -> None:
    groups = '"grad_freeze.param_groups" = [4, 8]\n"grad_freeze.total_steps" = [100]\n[confirm]'
    file = parse_study(SHORT.replace("[confirm]", groups)).on_network(PLAIN)
    assert file.most_plans() == 1
    told = " ".join(file.not_drawn())
    assert (
        told.count("is not tried: this network can be cut into 3 groups at most, so gradient freezing stays off") == 1
    )
    assert "grad_freeze is not in effect" not in told


def test_a_study_that_began_without_facts_goes_on_without_them(tmp_path: Path) -> None:
    tuned(tmp_path, SHORT, trials=1)
    tune(tmp_path, trials=2, make_experimenter=making(Plain))
    database = open_storage(default_storage(tmp_path))
    study = optuna.load_study(study_name=read_study(tmp_path).study.name, storage=database)
    assert on_its_network(read_study(tmp_path), study).plans.network is None
    assert len(read_result(tmp_path).trials) == 2


def test_what_the_question_has_left_out_is_not_said_again() -> None:
    why = "because this network has no BatchNorm."
    left_out = f'[set_up]\nleft_out = ["less_bn is left out, {why}"]\n[confirm]'
    said = parse_study(SHORT).on_network(PLAIN).not_drawn()
    assert f"less_bn is not in effect {why}" in said
    file = parse_study(SHORT.replace("[confirm]", left_out)).on_network(PLAIN)
    assert file.not_drawn() == [one for one in said if "less_bn" not in one]


def test_facts_are_no_part_of_the_question() -> None:
    file = parse_study(SHORT.replace("[confirm]", f"{GROUPS}true\n[confirm]"))
    known = file.on_network(RESIDUAL)
    assert known.canonical() == file.canonical()
    assert file.plans.network is None
    assert known.plans.network == RESIDUAL


@pytest.mark.parametrize(
    ("space", "layers", "values"),
    [
        ("true", RESIDUAL, (2, 6)),  # LessBN may be on, and six layers are left then
        ("{ low = 2, high = 20, step = 3 }", RESIDUAL, (2, 5)),
        ("[2, 6, 8]", RESIDUAL, (2, 6)),
        ("{ low = 2, high = 9 }", PLAIN, (2, 3)),
        ("{ low = 3, high = 9 }", PLAIN, (3,)),
        ("[4, 8]", PLAIN, None),
        ("{ low = 4, high = 8 }", PLAIN, None),
    ],
)
def test_freezing_groups_are_drawn_within_the_network_s_layers(
    space: str, layers: NetworkFacts, values: tuple[int, ...] | None
) -> None:
    file = parse_study(SHORT.replace("[confirm]", f"{GROUPS}{space}\n[confirm]")).on_network(layers)
    found = [one.extremes for one in file.dimensions if one.path == "grad_freeze.param_groups"]
    assert found == ([] if values is None else [values])
    assert any(sentence.startswith("`grad_freeze.param_groups` = ") for sentence in file.not_drawn())


def test_groups_count_all_layers_where_less_bn_is_never_on() -> None:
    text = SHORT.replace('"boost.less_bn" = [false, true]', '"boost.less_bn" = [false]')
    file = parse_study(text.replace("[confirm]", f"{GROUPS}true\n[confirm]")).on_network(RESIDUAL)
    assert next(one.extremes for one in file.dimensions if one.path == "grad_freeze.param_groups") == (2, 12)


def test_a_space_within_the_layers_stays_as_it_is() -> None:
    file = parse_study(SHORT.replace("[confirm]", f"{GROUPS}[2, 3]\n[confirm]"))
    assert file.on_network(PLAIN).dimensions == file.dimensions
    assert not any("param_groups" in sentence for sentence in file.on_network(PLAIN).not_drawn())


def test_batches_that_cannot_be_regrouped_are_not_searched_in_a_file_written_by_hand() -> None:
    weighted = [(torch.ones(4, 4), torch.ones(4).long(), torch.ones(2))] * 3
    known = network_facts(replace(small_task(), train=weighted))
    why = "a batch of 4 rows holds a Tensor of shape (2,) at batch[2], which cannot be divided among them"
    assert known.no_merging == why
    file = parse_study(
        '[study]\ntask = "weighted"\nbudget_steps = 8\nn_trials = 3\nobjective = "time_to_quality"\n'
        '[space]\n"batch.factor" = [1.0, 2.0]\n"schedule.length" = {low = 0.1, high = 0.9}\n'
    )
    assert [one.path for one in file.on_network(known).dimensions] == ["schedule.length"]
    assert f"`batch.factor` is not searched, because {why}." in file.on_network(known).not_drawn()
    assert len(file.on_network(replace(known, no_merging="")).dimensions) == 2


def test_batches_that_the_loader_s_own_collate_fn_makes_larger_are_searched() -> None:
    """As those of a loss that gets the targets of all texts in one row, whose length is none of the batch's."""

    def one_row(samples: list[tuple[Tensor, Tensor]]) -> dict[str, Tensor]:
        return {"x": torch.stack([x for x, _ in samples]), "targets": torch.cat([target for _, target in samples])}

    texts = [(torch.ones(4), torch.ones(length)) for length in (1, 2, 3, 1, 2, 3)]
    made = [one_row(texts)]
    task = task_of(lambda: nn.Linear(4, 1), made, loss=lambda model, batch: model(batch["x"]).mean())
    assert "which cannot be divided among them" in network_facts(task).no_merging
    assert network_facts(replace(task, train=DataLoader(texts, 2, collate_fn=one_row))).no_merging == ""


def test_a_real_task_is_looked_at_once_and_kept_with_the_study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[Task] = []

    def look(task: Task) -> NetworkFacts:
        looked.append(task)
        return network_facts(task)

    monkeypatch.setattr("workbench.training.task_look.network_facts", look)
    # Two dense layers, without BatchNorm: too few to freeze ten groups, nothing to remove.
    task = small_task(model=lambda: nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)))
    text = '[study]\ntask = "small"\nbudget_steps = 3\nn_trials = 4\ndevice = "cpu"\n[space]\nlevel = ["O0", "O1"]\n'
    write_study(tmp_path, text + '"boost.less_bn" = [false, true]\n')
    result = tune_task(tmp_path, task=task)
    assert [trial.level for trial in result.trials] == ["O0"]
    study = optuna.load_study(study_name=None, storage=open_storage(default_storage(tmp_path)))
    known = NetworkFacts.from_dict(study.user_attrs["network_facts"])
    assert known.no_resolution == "the batches hold no images (4-D floating-point tensors)"
    assert replace(known, no_resolution="", no_sequence="", no_smoothing="") == NetworkFacts(0, 0, 1, 1, 0, 1)
    assert len(looked) == 1
    assert result.chosen == {"o1": "O0", "o2": "O0"}
    assert result.report is not None
    assert "no BatchNorm" in result.report.read_text(encoding="utf-8")
    for path in result.exported.values():
        config = BoostConfig.from_json(path)
        assert config.resolve("O1").in_effect() == ()
        assert config.boost.less_bn is False
        assert config.to_dict()["provenance"]["in_effect"] == "nothing switched on"
