from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator
from pathlib import Path

import ipywidgets as widgets
import pytest
from torch import nn

import workbench
import workbench.panels
from tests.experiments.small_tasks import small_task
from tests.panels.looking import LONG, ended, everything, missing, our_threads, text_in
from workbench.config import BoostConfig
from workbench.panels.workbench import Workbench

TITLES = ("Configure", "Train", "Loss scale", "Tune", "Compare", "Export")


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Workbench]:
    with Workbench(small_task(), level="O0", steps=4, out=tmp_path / "runs", studies=tmp_path / "studies") as made:
        yield made
    assert our_threads() == []


def test_the_first_of_six_tabs_is_open_and_every_other_is_made_once_when_it_is_opened(bench: Workbench) -> None:
    assert (bench.tabs.titles, bench.tabs.selected_index) == (TITLES, 0)
    unopened = [place.children[0] for place in bench.tabs.children[1:]]
    assert all("Opening…" in getattr(notice, "value", "") for notice in unopened)
    assert bench.tabs.children[0].children == (bench.panel("Configure").widget,)
    assert "Boost Workbench: small" in text_in(bench)
    with pytest.raises(KeyError, match="no tab is called 'Tests'; there are Configure, Train"):
        bench.panel("Tests")
    for index, title in enumerate(TITLES):
        bench.tabs.selected_index = index
        (shown,) = bench.tabs.children[index].children
        assert bench.panel(title).widget is shown
        bench.tabs.selected_index = (index + 1) % len(TITLES)
        bench.tabs.selected_index = index
        assert bench.tabs.children[index].children == (shown,)
        assert bench.panel(title).shared is bench.shared


def test_all_tabs_look_at_one_configuration_and_begin_with_the_steps_that_were_given(bench: Workbench) -> None:
    config, train = bench.panel("Configure"), bench.panel("Train")
    assert train.steps.value == bench.panel("Compare").steps.value == 4
    assert bench.panel("Tune").entries["study.budget_steps"].value == 4
    config.preset.buttons.value = "O1"
    bench.shared.change({"grad_freeze.param_groups": 2})  # as many as the network has layers
    assert "freezing (frozen steps: 30 %)" in text_in(train)
    train.preset.buttons.value = "O0"
    assert config.preset.buttons.value == "O0"


def test_the_first_tab_says_what_finds_nothing_to_do_in_the_task_s_network(tmp_path: Path) -> None:
    def plain() -> nn.Module:
        return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))

    with Workbench(small_task(model=plain), out=None, studies=tmp_path) as bench:
        train = bench.panel("Train")  # by now the network has been looked at
        told = ("this network has no BatchNorm", "level O1 is equal to O0 here")
        assert missing(bench.panel("Configure"), *told) == []
        assert "nothing switched on" in text_in(train)
        assert "In effect at O1: nothing switched on." in text_in(bench.panel("Export"))


def test_a_task_whose_model_cannot_be_built_is_told_where_it_is_trained(tmp_path: Path) -> None:
    def broken() -> nn.Module:
        raise ValueError("no model today")

    with Workbench(small_task(model=broken), out=None, studies=tmp_path) as bench:
        bench.panel("Train")
        assert "LessBN + freezing" in text_in(bench.panel("Configure"))


def test_a_run_goes_on_while_another_tab_is_looked_at(bench: Workbench) -> None:
    train = bench.panel("Train")
    train.measure.value = False
    train.start()
    bench.tabs.selected_index = 4
    ended(train)
    assert "4 steps in" in bench.static_html()


def test_loss_scale_lists_the_runs_that_were_recorded_while_another_tab_was_open(bench: Workbench) -> None:
    bench.tabs.selected_index = 2
    scale, train = bench.panel("Loss scale"), bench.panel("Train")
    assert "✕" not in text_in(scale), "a folder that no run has made yet is no mistake"
    assert "runs here yet: train something" in text_in(scale)
    train.measure.value = False
    for n_runs in (1, 2):
        bench.tabs.selected_index = 1
        train.start()
        ended(train)
        bench.tabs.selected_index = 2
        assert scale.chooser.lister.wait(LONG)
        assert len(scale.runs.options) == n_runs
    assert "here yet" not in text_in(scale)


def test_export_offers_what_the_study_of_the_tune_tab_has_found(bench: Workbench) -> None:
    folder = Path(bench.panel("Tune").folder.value)
    bench.tabs.selected_index = 5
    assert bench.panel("Export").choice.options == ("this configuration",)
    (folder / "result").mkdir(parents=True)
    BoostConfig().save(folder / "result" / "boost_config.o1.json")
    bench.tabs.selected_index = 0
    bench.tabs.selected_index = 5
    choice = bench.panel("Export").choice
    assert (choice.options, choice.value) == (("this configuration", "o1"), "this configuration")


def test_closing_the_workbench_or_a_panel_alone_leaves_neither_thread_nor_widget(tmp_path: Path) -> None:
    before = set(widgets.widget._instances)
    for _ in range(2):
        made = Workbench(small_task(), out=tmp_path, studies=tmp_path)
        panels = [made.panel(title) for title in TITLES]
        opened = set(widgets.widget._instances)
        for title in TITLES:
            made._makers[title]().close()
            assert set(widgets.widget._instances) == opened, title
        assert len(everything(made.widget)) > 100
        for choice, source in zip(made.panel("Compare").sides, ("A file", "JSON text", "O2", "O1"), strict=True):
            choice.source.value = source
        made.panel("Tune").space.set({"grad_freeze.freeze_p": True, "boost.less_bn": True, "loss_scale.init": [2.0]})
        made.panel("Tune").space.set({"grad_freeze.freeze_p": True})
        made.panel("Configure").sections.selected_index = 3
        made.close()
        assert all(panel.closed for panel in panels)
        assert {type(widgets.widget._instances[name]) for name in set(widgets.widget._instances) - before} == set()
        assert our_threads() == []


@pytest.mark.parametrize(("own", "given", "shown"), [
    ({"epochs": 2}, None, 8), ({"steps": 25}, None, 25), ({}, None, 300), ({"steps": 25}, 7, 7)
])  # fmt: skip
def test_runs_are_as_long_as_the_task_is_trained_today(
    tmp_path: Path, own: dict[str, int], given: int | None, shown: int
) -> None:
    task = small_task()
    task = dataclasses.replace(task, train=list(itertools.islice(task.batches(0), 4)), **own)
    with Workbench(task, steps=given, out=None, studies=tmp_path) as made:
        steps = [made.panel(title).steps.value for title in ("Train", "Compare")]
        assert [*steps, made.panel("Tune").entries["study.budget_steps"].value] == [shown] * 3


def test_it_begins_with_the_configuration_that_is_given() -> None:
    config = BoostConfig.from_dict({"grad_freeze": {"freeze_p": 0.25}})
    with Workbench("digits-lenet", config, level="O2") as made:
        assert made.shared.both() == (config, "O2")


def test_the_panels_are_public() -> None:
    assert workbench.Workbench is Workbench
    for name in workbench.panels.__all__:
        assert getattr(workbench.panels, name).__module__.startswith("workbench.panels.")
    with pytest.raises(AttributeError, match="no attribute 'TrainPane'"):
        workbench.panels.TrainPane  # noqa: B018
