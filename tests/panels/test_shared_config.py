from __future__ import annotations

import threading

import pytest

from workbench.config import BoostConfig, ConfigError
from workbench.panels.shared_config import SharedConfig


def test_a_change_reaches_an_observer_with_its_level_until_it_leaves_and_no_change_is_no_news() -> None:
    shared, seen = SharedConfig(), []
    leave = shared.observe(lambda config, level: seen.append((config.grad_freeze.freeze_p, level)))
    shared.change({"grad_freeze.freeze_p": 0.5})
    shared.change({"grad_freeze.freeze_p": 0.4}, level="O2")
    shared.set(BoostConfig())
    shared.set(BoostConfig(), "O2")
    shared.change({"grad_freeze.freeze_p": 0.7})
    leave()
    leave()
    shared.set(BoostConfig(), "O1")
    assert seen == [(0.5, "O1"), (0.4, "O2"), (0.7, "O2")]


@pytest.mark.parametrize("values", [{"grad_freeze.freeze_p": 1.2}, {"grad_freeze.freeze": 0.2}])
def test_a_refused_change_changes_nothing(values: dict[str, float]) -> None:
    shared, seen = SharedConfig(level="O2"), []
    shared.observe(lambda config, level: seen.append(level))
    with pytest.raises(ConfigError):
        shared.change(values)
    with pytest.raises(ConfigError, match="`level` must be one of O0, O1, O2, got 'O4'"):
        shared.set(BoostConfig.from_dict({"boost": {"mode": "manual"}}), "O4")
    assert shared.both() == (BoostConfig(), "O2")
    assert seen == []


def test_changes_from_many_threads_lose_nothing() -> None:
    shared = SharedConfig()
    paths = ["grad_freeze.freeze_p", "dim_reduce.rho", "dim_reduce.gamma", "dim_reduce.sigma"]

    def change(path: str) -> None:
        for step in range(1, 20):
            shared.change({path: step / 100})

    threads = [threading.Thread(target=change, args=(path,)) for path in paths]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    leaves = shared.config.leaves()
    assert [leaves[path] for path in paths] == [0.19] * 4


def test_the_plan_is_that_of_configuration_and_level() -> None:
    shared = SharedConfig(level="O1")
    plan, problem = shared.plan_or_problem()
    assert plan is not None
    assert (plan.in_effect(), problem) == (("less_bn", "grad_freeze"), "")
    shared.change({"boost.mode": "manual", "boost.dim_reduce": True})
    plan, problem = shared.plan_or_problem()
    assert plan is None
    assert "source for its subspace" in problem


@pytest.mark.parametrize("at_first", [False, True], ids=["taken", "begun with"])
def test_a_provenance_holds_for_the_set_up_that_brought_it_and_for_no_edit_of_it(at_first: bool) -> None:
    exported = BoostConfig.from_dict({"grad_freeze": {"freeze_p": 0.5}, "provenance": {"study": "mine"}})
    shared = SharedConfig(exported if at_first else None)
    shared.set(exported.with_values({"provenance": None}))  # the same, made by hand
    seen: list[str] = []
    shared.observe(lambda config, level: seen.append(level))
    shared.set(exported)
    assert seen == ["O1"], "where it comes from is news"
    assert shared.config.provenance is None
    assert shared.with_provenance() == (exported, "O1")
    assert not shared.is_edited
    shared.change({"loss_scale.window": 500})
    assert shared.with_provenance() == shared.both()
    shared.undo()
    assert shared.with_provenance() == (exported, "O1")
    shared.change({}, "O2")
    assert shared.with_provenance() == shared.both()
