"""Samplers by name: in a conditional space, seeded per trial, over processes and interruptions."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import optuna
import pytest
from optuna.trial import FrozenTrial, TrialState

from tests.kit.fake_runner import SEARCH, FakeRunner, stored_trials, write_study
from tests.kit.processes import forkserver
from workbench.config import ConfigError
from workbench.study import StudyError, parse_study, tune
from workbench.study.ask.search_space import SearchedSpace, Suggestion
from workbench.study.sample import grid
from workbench.study.sample.grid import grid_points
from workbench.study.sample.sampling import PRUNERS, make_pruner, make_sampler
from workbench.study.sample.whole_space import sampler_state, value_at

MIXED = """
[study]
task = "fake"
budget_steps = 100
n_trials = 30

[space]
level = ["O0", "O1"]
"boost.grad_freeze" = [false, true]
"grad_freeze.freeze_type" = [0, 1]
"grad_freeze.freeze_p" = { low = 0.3, high = 0.9 }
"grad_freeze.param_groups" = { low = 3, high = 6 }
"optimizer.name" = ["SGD", "Adam"]
"optimizer.lr" = { low = 0.001, high = 1.0, log = true }
"optimizer.momentum" = { low = 0.5, high = 0.9 }
"""
LEVELLESS = MIXED.replace('level = ["O0", "O1"]\n', "")
FINITE = """
[study]
task = "fake"
budget_steps = 100
n_trials = 30

[space]
"boost.grad_freeze" = [false, true]
"grad_freeze.freeze_type" = [0, 1]
"grad_freeze.freeze_p" = { low = 0.3, high = 0.9, step = 0.3 }
"optimizer.name" = ["SGD", "Adam"]
"optimizer.momentum" = { low = 0.5, high = 0.7, step = 0.1 }
"""
# Four ways to freeze (no; off and on; type 0 and 1, three shares each: 7), three momenta with SGD, none with Adam.
FINITE_POINTS = (1 + 2 * 3) * (3 + 1)
WHOLE_SPACE = ["gp", "nsga2", "nsga3", "cmaes", "qmc"]


def space_of(text: str = MIXED) -> SearchedSpace:
    return parse_study(text).searched


def value_of(suggestion: Suggestion) -> float:
    """Smooth in what is in effect; the best is Adam at 0.1 with half of the steps frozen."""
    drawn = suggestion.parameters
    value = 1.0 + 0.3 * (drawn.get("optimizer.name") == "SGD")
    value += 0.3 * abs(np.log10(drawn.get("optimizer.lr", 1.0)) + 1.0)
    return value + (abs(drawn["grad_freeze.freeze_p"] - 0.5) - 0.3 if "grad_freeze.freeze_p" in drawn else 0.0)


def begun(sampler: optuna.samplers.BaseSampler, storage: Any = None, name: str | None = None) -> optuna.Study:
    """Return a study after its O0, which has drawn next to nothing."""
    study = optuna.create_study(sampler=sampler, storage=storage, study_name=name)
    study.enqueue_trial({"level": "O0"})
    baseline = study.ask()
    baseline.suggest_categorical("level", ["O0", "O1"])
    baseline.set_constraint("metric_deficit", -0.01)
    study.tell(baseline, 2.0)
    return study


def run(
    study: optuna.Study, space: SearchedSpace, trials: int, constraint: Callable[[Suggestion], float] = lambda _: -0.01
) -> None:
    for _ in range(trials):
        trial = study.ask()
        suggestion = space.suggest(trial)
        trial.set_constraint("metric_deficit", constraint(suggestion))
        study.tell(trial, value_of(suggestion))


def drawn(study: optuna.Study) -> list[dict[str, Any]]:
    return [trial.params for trial in study.get_trials(deepcopy=False)[1:]]


@pytest.mark.parametrize("name", ["tpe", "nsga2", "cmaes", "qmc"])
def test_a_sampler_draws_the_same_trials_however_often_the_study_is_begun_again(name: str) -> None:
    space = space_of()

    def made() -> optuna.samplers.BaseSampler:
        return make_sampler(name, {}, space=space, seed=3, n_trials=10)

    straight, interrupted = begun(made()), begun(made())
    run(straight, space, 8)
    for _ in range(8):
        interrupted.sampler = made()
        run(interrupted, space, 1)
    assert drawn(interrupted) == drawn(straight)
    other = begun(make_sampler(name, {}, space=space, seed=4, n_trials=10))
    run(other, space, 14)
    assert drawn(other) != drawn(straight)


@pytest.mark.parametrize("name", [pytest.param(one, marks=[pytest.mark.slow] * (one == "gp")) for one in WHOLE_SPACE])
def test_parameters_not_in_effect_are_not_drawn_although_the_whole_space_is_proposed(name: str) -> None:
    space = space_of()
    options = {"n_startup_trials": 4} if name == "gp" else {}
    study = begun(make_sampler(name, options, space=space, seed=0, n_trials=16))
    run(study, space, 6 if name == "gp" else 8)
    for parameters in drawn(study):
        assert ("grad_freeze.freeze_p" in parameters) == (parameters.get("boost.grad_freeze") is True)
        assert ("optimizer.momentum" in parameters) == (parameters.get("optimizer.name") == "SGD")


def test_optuna_s_own_samplers_would_see_nothing_of_such_a_study() -> None:
    """Why ``whole_space.py`` is there; when this fails it may have become unnecessary."""
    space = space_of()
    study = begun(optuna.samplers.RandomSampler(seed=0))
    run(study, space, 12)
    last = study.get_trials(deepcopy=False)[-1]
    for sampler in (optuna.samplers.GPSampler(), optuna.samplers.NSGAIISampler()):
        assert set(sampler.infer_relative_search_space(study, last)) <= {"level"}


def generations(study: optuna.Study, key: str) -> list[int]:
    return [sampler_state(trial)[key] for trial in study.get_trials(deepcopy=False)[1:]]


def test_generations_of_the_genetic_sampler_advance_though_it_is_made_anew_for_every_trial() -> None:
    space = space_of()
    study = begun(make_sampler("nsga2", {"population_size": 5}, space=space, seed=0, n_trials=30))
    run(study, space, 20)
    assert Counter(generations(study, "NSGAIISampler:generation")) == {0: 5, 1: 5, 2: 5, 3: 5}


def test_generations_of_cmaes_advance_and_gather_around_the_best() -> None:
    space = space_of(LEVELLESS.replace('["SGD", "Adam"]', '["Adam"]'))
    study = begun(make_sampler("cmaes", {"popsize": 6}, space=space, seed=0, n_trials=60))
    run(study, space, 48)
    assert generations(study, "generation") == [number // 6 for number in range(48)]
    rates = [np.log10(parameters["optimizer.lr"]) for parameters in drawn(study)]
    assert abs(np.mean(rates[-6:]) + 1.0) < 0.3
    assert np.std(rates[-6:]) < 0.5 * np.std(rates[:6])


def test_cmaes_takes_an_allowed_trial_before_a_better_one_that_is_not() -> None:
    space = space_of(LEVELLESS.replace('["SGD", "Adam"]', '["Adam"]'))
    study = begun(make_sampler("cmaes", {"popsize": 6}, space=space, seed=0, n_trials=60))
    run(study, space, 48, lambda suggestion: float(np.log10(suggestion.parameters["optimizer.lr"]) + 2.0))
    rates = [np.log10(parameters["optimizer.lr"]) for parameters in drawn(study)]
    assert np.mean(rates[-6:]) < -1.8  # the best value lies at -1, what is allowed ends at -2


BY_NAME = """
[study]
task = "fake"
budget_steps = 100
n_trials = 30

[space]
"optimizer.name" = ["SGD", "Muon"]
"optimizer.lr[SGD]" = { low = 0.1, high = 1.0, log = true }
"optimizer.lr[Muon]" = { low = 0.01, high = 0.1, log = true }
"optimizer.aux_lr" = { low = 0.001, high = 0.01, log = true }
"""


@pytest.mark.parametrize("name", ["tpe", "cmaes", "grid"])
def test_every_sampler_draws_ranges_by_optimizer(name: str) -> None:
    space = space_of(BY_NAME)
    options = {"points": 3} if name == "grid" else {}
    study = begun(make_sampler(name, options, space=space, seed=0, n_trials=16))
    run(study, space, 12)
    for parameters in drawn(study):
        owner = parameters["optimizer.name"]
        also = {"optimizer.aux_lr"} if owner == "Muon" else set()
        assert set(parameters) == {"optimizer.name", f"optimizer.lr[{owner}]"} | also
    assert {parameters["optimizer.name"] for parameters in drawn(study)} == {"SGD", "Muon"}
    if name == "grid":  # 3 rates of SGD, 3 times 3 of Muon
        assert len({tuple(parameters.items()) for parameters in drawn(study)}) == 12


def test_the_grid_has_every_plan_of_a_conditional_space_once() -> None:
    space = space_of(FINITE)
    points = grid_points(space, None)
    assert len(points) == FINITE_POINTS
    assert len({tuple(sorted(point.items())) for point in points}) == FINITE_POINTS
    assert {point["optimizer.momentum"] for point in points if "optimizer.momentum" in point} == {0.5, 0.6, 0.7}


def test_points_spread_a_range_from_end_to_end() -> None:
    space = space_of(LEVELLESS)
    points = grid_points(space, 3)
    rates = sorted({round(point["optimizer.lr"], 6) for point in points})
    assert rates == pytest.approx([0.001, 0.031623, 1.0], abs=1e-5)
    groups = {point["grad_freeze.param_groups"] for point in points if "grad_freeze.param_groups" in point}
    assert groups == {3, 5, 6}


@pytest.mark.parametrize("name", ["grid", "brute_force"])
def test_a_grid_takes_every_point_once_and_comes_back_to_that_of_a_failed_trial(name: str) -> None:
    space = space_of(FINITE)
    study = begun(make_sampler(name, {}, space=space, seed=1, n_trials=99))
    failed = study.ask()
    missed = space.suggest(failed).parameters
    study.tell(failed, state=TrialState.FAIL)
    run(study, space, FINITE_POINTS)
    done = [trial.params for trial in study.get_trials(deepcopy=False)[2:]]
    assert dict(missed) in done
    assert len({tuple(sorted(parameters.items())) for parameters in done}) == FINITE_POINTS


def _draw(url: str, text: str, name: str, trials: int, barrier: Any) -> None:
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    space = parse_study(text).searched
    sampler = make_sampler(name, {}, space=space, seed=1, n_trials=30)
    study = optuna.load_study(study_name="s", storage=url, sampler=sampler)
    barrier.wait()
    run(study, space, trials)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["grid", pytest.param("cmaes", marks=pytest.mark.long)])
def test_two_processes_draw_one_study_between_them(tmp_path: Path, name: str) -> None:
    text = FINITE if name == "grid" else LEVELLESS
    url = f"sqlite:///{tmp_path / 'study.db'}"
    begun(optuna.samplers.RandomSampler(seed=0), url, "s")
    context = forkserver()
    barrier = context.Barrier(2)
    workers = [context.Process(target=_draw, args=(url, text, name, 14, barrier)) for _ in range(2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert [worker.exitcode for worker in workers] == [0, 0]
    trials: list[FrozenTrial] = optuna.load_study(study_name="s", storage=url).get_trials(deepcopy=False)[1:]
    assert len(trials) == 28
    distinct = len({tuple(sorted(trial.params.items())) for trial in trials})
    assert distinct == 28  # the grid has 28 points; two processes that drew with one seed would repeat each other
    if name == "cmaes":
        assert max(sampler_state(trial)["generation"] for trial in trials) >= 2


def test_the_even_sequence_fills_every_part_of_a_range() -> None:
    space = space_of(LEVELLESS)
    study = begun(make_sampler("qmc", {}, space=space, seed=0, n_trials=17))
    run(study, space, 15)
    rates = sorted(np.log10(parameters["optimizer.lr"]) for parameters in drawn(study))
    tenths = Counter(int((rate + 3.0) / 3.0 * 8) for rate in rates)
    assert set(tenths) == set(range(8))
    assert max(tenths.values()) <= 2  # sixteen points of a Sobol sequence, of which O0 took the first


@pytest.mark.parametrize(
    ("distribution", "share", "value"),
    [
        (optuna.distributions.FloatDistribution(1.0, 100.0, log=True), 0.5, 10.0),
        (optuna.distributions.FloatDistribution(0.0, 1.0, step=0.25), 0.99, 1.0),
        (optuna.distributions.IntDistribution(3, 6), 0.0, 3),
        (optuna.distributions.IntDistribution(3, 6), 1.0, 6),
        (optuna.distributions.IntDistribution(2, 512, log=True), 1.0, 512),
        (optuna.distributions.CategoricalDistribution(["a", "b"]), 0.5, "b"),
    ],
)
def test_a_share_of_a_range_is_a_value_in_it(
    distribution: optuna.distributions.BaseDistribution, share: float, value: Any
) -> None:
    assert value_at(distribution, share) == pytest.approx(value)
    assert distribution._contains(distribution.to_internal_repr(value_at(distribution, share)))


@pytest.mark.parametrize(
    ("sampler", "sentence"),
    [
        ('name = "grid"', "[space] `grad_freeze.freeze_p` is a range without steps"),
        ('name = "brute_force"', "[space] `grad_freeze.freeze_p` is a range without steps"),
        ('name = "brute_force"\npoints = 3', '`sampler.points` is not an option of the sampler "brute_force"'),
        ('name = "grid"\npoints = 0', "`sampler.points` must be a whole number, 1 or more, got 0"),
        ('name = "grid"\npoint = 3', 'did you mean "points"?'),
        ('name = "qmc"\nqmc_type = "sobel"', 'qmc_type must be one of "sobol", "halton"'),
        ('name = "nsga2"\npopulation_size = 1', "population_size"),
        ('name = "cmae"', 'did you mean "cmaes"?'),
        ('name = "tpe"\nn_startup_trials = "x"', '`sampler.n_startup_trials` must be a whole number, got "x"'),
        ('name = "tpe"\nn_startup_trials = true', "`sampler.n_startup_trials` must be a whole number, got true"),
        ('name = "tpe"\nmultivariate = 1', "`sampler.multivariate` must be true or false, got 1"),
        ('name = "tpe"\nprior_weight = -1', "`sampler.prior_weight` must be at least 0, got -1"),
        ('name = "tpe"\nn_ei_candidates = 0', "`sampler.n_ei_candidates` must lie in [1, 100000], got 0"),
        ('name = "tpe"\ngamma = 3', "`sampler.gamma` cannot be set in a file"),
        ('name = "nsga3"\ndividing_parameter = 0', "`sampler.dividing_parameter` must lie in [1, 100], got 0"),
        ('name = "nsga3"\nreference_points = [[0.5, 0.5]]', "must be rows of numbers, 1 each"),
        ('name = "qmc"\nqmc_type = 3', "`sampler.qmc_type` must be a text, got 3"),
    ],
)
def test_a_sampler_that_does_not_fit_is_refused_with_one_sentence(sampler: str, sentence: str) -> None:
    with pytest.raises(StudyError) as caught:
        parse_study(f"{MIXED}\n[sampler]\n{sampler}\n")
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)


ODD = ['"x"', "true", "-1", "0", "3", "1000000000000000000", "-0.5", "2.5", "1e308", "[]", "[[0.5]]", '["a"]', "{}"]


@pytest.mark.filterwarnings("ignore:.* has been deprecated:FutureWarning")  # some options of TPE's
@pytest.mark.filterwarnings("ignore:divide by zero:RuntimeWarning")  # no weight for the prior
@pytest.mark.parametrize("value", ODD)
@pytest.mark.parametrize(("section", "name"), [("sampler", "tpe"), ("sampler", "nsga3"), ("pruner", "hyperband")])
def test_an_option_that_is_not_refused_lasts_for_a_whole_search(section: str, name: str, value: str) -> None:
    maker: Any = {**PRUNERS, "tpe": optuna.samplers.TPESampler, "nsga3": optuna.samplers.NSGAIIISampler}[name]
    for option in inspect.signature(maker).parameters:
        try:
            file = parse_study(f'{MIXED}\n[{section}]\nname = "{name}"\n{option} = {value}\n')
        except StudyError:
            continue
        sampler = make_sampler(file.sampler.name, file.sampler.options, space=file.searched, seed=1, n_trials=30)
        pruner = make_pruner(file.pruner.name, file.pruner.options, budget_steps=100)
        study = optuna.create_study(sampler=sampler, pruner=pruner)
        for _ in range(14):
            trial = study.ask()
            x = trial.suggest_float("x", 0, 1)
            for step in (1, 16, 99):
                trial.report(x + step, step)
                trial.should_prune()
            study.tell(trial, x)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (MIXED.replace("n_trials = 30", 'n_trials = 30\nobjective = "pareto"'), "has two"),
        (MIXED.partition('"grad_freeze.freeze_p"')[0], "needs a range"),
    ],
)
def test_cmaes_is_refused_where_it_cannot_work(text: str, sentence: str) -> None:
    with pytest.raises(StudyError, match=sentence):
        parse_study(f'{text}\n[sampler]\nname = "cmaes"\n')


def test_a_grid_that_is_too_large_is_refused_before_anything_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grid, "_MOST_POINTS", 40)
    with pytest.raises(StudyError, match="has more than 40 points"):
        grid_points(space_of(), 3)


def test_contradicting_values_are_no_point_of_the_grid() -> None:
    text = '[study]\ntask = "t"\nbudget_steps = 3\nn_trials = 3\n[baseline]\n"amp.level" = "O2"\n'
    space = space_of(text + '[space]\n"loss_scale.init" = [4.0, 64.0]\n"loss_scale.minimum" = [1.0, 16.0]\n')
    points = grid_points(space, None)
    assert {"loss_scale.init": 4.0, "loss_scale.minimum": 16.0} not in points
    assert len(points) == 3
    with pytest.raises(ConfigError):
        space.base.with_values({"loss_scale.init": 4.0, "loss_scale.minimum": 16.0})


@pytest.mark.parametrize("name", [pytest.param("gp", marks=pytest.mark.long), "nsga2"])
def test_what_was_pruned_or_differs_in_what_is_not_in_effect_is_not_proposed_again(tmp_path: Path, name: str) -> None:
    text = SEARCH.replace("n_trials = 4", "n_trials = 12")
    folder = write_study(tmp_path / "s", f'{text}\n[sampler]\nname = "{name}"\n[pruner]\nname = "median"\n')
    result = tune(folder, make_experimenter=lambda _, directory: FakeRunner(directory))
    assert "The search ended with all 12 trials." in result.messages
    assert {"complete", "pruned"} == {trial.state for trial in result.trials}
    assert sum("repeats" in trial.user_attrs for trial in stored_trials(folder)) < 6, "levels at which nothing acts"
