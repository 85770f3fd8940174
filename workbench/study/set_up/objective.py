"""What one trial does where the question is the fastest set-up: time its steps, train it whole, judge it with the rest.

A trial's value is the total time of its run relative to the baseline's, known before it is trained (`total_time`); its
constraint is the mean deficit of its final metric less the allowed drop. A plan that cannot beat the leader is not
trained, one that would lead is trained on further seeds first. Trials take the baseline's seeds in turn as their first,
so that no seed's luck affects every plan.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import optuna

from workbench.config import BoostConfig, Plan
from workbench.core.out_of_memory import is_out_of_memory
from workbench.methods.batch.section import BatchSection
from workbench.methods.batch.unequal_batches import could_not_merge
from workbench.study.ask.search_space import GIVEN
from workbench.study.errors import OutOfTimeError, StudyFailedError
from workbench.study.run.job import Monitor, RunStep, Trained, TrainJob, plain
from workbench.study.run.objective import AS_O0, Objective, metric_deficit
from workbench.study.run.runner import end_if_over
from workbench.study.run.side_by_side import places, train_rounds
from workbench.study.run.warm_up import NO_WARM_UP, WarmUp, WarmUpError
from workbench.study.set_up import standing as standings
from workbench.study.set_up.runtime_choice import ground_of, note_no_room
from workbench.study.set_up.standing import Run, Standing, TrainedPlan, standing_now
from workbench.study.set_up.total_time import StepTimes, total_time
from workbench.study.set_up.tuned_plain import PLAIN, plain_standing
from workbench.study.store.storage import BASELINE_RUN
from workbench.study.store.stored_records import RUN_METRICS
from workbench.study.store.trial_ids import id_of

SKIPPED = "skipped"  # user attribute of one that was not trained, since it cannot beat the leader; it does not count

_MORE_SEEDS = (2, 4, 8)  # at which a plan that would lead is looked at again
# Between these probabilities of keeping the quality another seed may change who leads.
_HOPELESS, _NO_DOUBT = 0.25, 0.95


class SetUpObjective(Objective):
    """Run one trial of a search for the fastest set-up; see `Objective` for the arguments."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._times = StepTimes(self._study, self._file, self._experimenter)

    def _run_baseline(self, trial: optuna.Trial, plan: Plan) -> tuple[float, ...]:
        runs = self._baseline_runs(plan)
        metrics = [run.metric for run in runs]
        mean = self._mean_of(runs, float(np.mean(metrics)))
        self._keep_drops(trial, mean.metric)
        trial.set_user_attr("spread", float(np.std(metrics, ddof=1)))
        trial.set_user_attr("trained", mean.to_json())
        _keep_runs(trial, runs)
        trial.set_user_attr("speed", AS_O0.to_json())
        return self._finish(trial, mean, AS_O0, self._baseline_of(mean))

    def _baseline_runs(self, plan: Plan) -> list[Trained]:
        """Train the baseline on the seeds on which no earlier command has, and return its runs.

        Where it diverges nothing is compared, on these seeds as on later ones: another seed takes the place. If most
        diverge, it does not train. An OutOfTimeError tells how long all those that are missing take.
        """
        n_runs = self._file.set_up.baseline_seeds
        known = standings.baseline_runs(self._study.user_attrs)
        if self.trainers:
            missing = [index for index in range(n_runs) if index not in known]
            known |= self._train_baseline_side_by_side(plan, missing)
        runs, lost = list[Trained](), dict[int, Trained]()
        for index in itertools.count():
            try:
                on_step = functools.partial(self._step_of_baseline, len(runs), n_runs)
                trained = known.get(index) or self._train_seed(plan, index, on_step)
            except OutOfTimeError as error:
                known_seconds = [error.needed_seconds, *(run.by_clock() for run in runs)]
                each = float(np.fmax.reduce(known_seconds))  # NaN only where nothing is known
                raise OutOfTimeError(str(error), (n_runs - len(runs)) * each) from None
            if not trained.is_usable:
                lost[index] = trained
                if len(lost) > n_runs // 2:
                    why = trained.message or f"its {self._metric.name} is NaN or infinite"
                    seeds = ", ".join(str(self._file.study.seed + one) for one in lost)
                    raise StudyFailedError(
                        f"O0 itself does not train with seeds {seeds}, so there is nothing to compare with: {why}"
                    )
                continue
            if index not in known:
                self._keep_baseline(index, trained)
            runs.append(trained)
            if len(runs) == n_runs:
                break
        for index, run in lost.items():  # only now: a task that did not train is run again once corrected
            self._keep_baseline(index, run)
        return runs

    def _step_of_baseline(self, n_done: int, n_runs: int, step: RunStep) -> None:
        self._on_step(RunStep(n_done * step.steps + step.step, n_runs * step.steps, step.metric))

    def _train_baseline_side_by_side(self, plan: Plan, missing: Sequence[int]) -> dict[int, Trained]:
        done = dict[int, Trained]()
        try:
            for index, (run,) in self._side_by_side({one: [self._job(plan, one, NO_WARM_UP)] for one in missing}):
                done[index] = run
                if run.is_usable:
                    self._keep_baseline(index, run)
        except OutOfTimeError as error:
            waves = math.ceil((len(missing) - len(done)) / len(self.trainers))
            raise OutOfTimeError(str(error), waves * error.needed_seconds) from None
        return done

    def _side_by_side(self, rounds: Mapping[int, Sequence[TrainJob]]) -> Iterator[tuple[int, Sequence[Trained]]]:
        for n_done, (index, runs) in enumerate(train_rounds(self.trainers, rounds.items()), start=1):
            self._on_step(RunStep(n_done, len(rounds), runs[-1].metric))
            yield index, runs

    def _mean_of(self, runs: Sequence[Trained], metric: float) -> Trained:
        """Return the mean of some runs, to be scored at a metric; NaN where one of them diverged."""
        curve = () if math.isnan(metric) else ((self._file.study.budget_steps, metric),)
        seconds = float(np.mean([run.seconds for run in runs]))
        beside = float(np.median([run.beside_seconds for run in runs]))  # the first may load what the others find
        mean = replace(runs[0], metric=metric, curve=curve, diverged=math.isnan(metric))
        return replace(mean, seconds=seconds, beside_seconds=beside)

    def _baseline_seeds(self) -> list[int]:
        """Return the indices of the seeds whose mean is the quality to keep: the first on which O0 did not diverge."""
        lost = standings.without_reference(self._study.user_attrs)
        usable = (index for index in itertools.count() if index not in lost)
        return list(itertools.islice(usable, self._file.set_up.baseline_seeds))

    def _keep_baseline(self, index: int, run: Trained) -> None:
        self._study.set_user_attr(f"{BASELINE_RUN}{index}", run.to_json())

    def _baseline_metric(self, index: int) -> float:
        """Return the baseline's final metric on a seed, trained now if it has not been; NaN where it diverged."""
        known = standings.baseline_metrics(self._study.user_attrs)
        if index not in known:
            run = self._train_seed(self._file.baseline_plan(), index)
            self._keep_baseline(index, run)
            return run.metric
        return known[index]

    def _start(self) -> BoostConfig:
        return ground_of(super()._start(), self._study.user_attrs)

    def _run(self, trial: optuna.Trial, plan: Plan, warm_up: WarmUp) -> tuple[float, ...]:
        try:
            return self._timed_and_trained(trial, plan, warm_up)
        except (RuntimeError, MemoryError, ValueError) as error:
            if is_out_of_memory(error) or could_not_merge(error):  # of texts, few batches may be of another length
                note_no_room(self._study, plan.config.part(BatchSection).factor)
            raise

    def _timed_and_trained(self, trial: optuna.Trial, plan: Plan, warm_up: WarmUp) -> tuple[float, ...]:
        baseline = self._stored_baseline()
        self._times.read_again()
        steps = self._file.study.budget_steps
        share = self._file.share_of_today
        speed = total_time(plan, self._times.measured(plan, warm_up), steps, warm_up.steps, share_of_today=share)
        trial.set_user_attr("step_key", plan.step_key())
        trial.set_user_attr("speed", speed.to_json())
        self._database.write(id_of(trial))
        standing = self._standing(trial, [], speed.ratio)
        if GIVEN not in trial.user_attrs and speed.ratio >= standing.best_time:
            trial.set_user_attr(SKIPPED, True)
            trial.set_user_attr("message", "not trained: it cannot be faster than the leader")
            raise optuna.TrialPruned
        n_turns = math.ceil(int(trial.user_attrs.get("n_seeds", 1)) / places(self.trainers, [plan]))
        end_if_over(self.deadline, n_turns * self._baseline_run.by_clock(speed.ratio))
        runs, deficits = self._train_seeds(trial, plan, speed.ratio)
        mean = float(np.mean(deficits))
        metric = baseline.metric - mean if baseline.higher_is_better else baseline.metric + mean
        whole = self._mean_of(runs, metric if math.isfinite(mean) else math.nan)
        trial.set_user_attr("trained", whole.to_json())
        _keep_runs(trial, runs)
        return self._finish(trial, whole, speed, baseline, warm_up.steps)

    def _train_seeds(self, trial: optuna.Trial, plan: Plan, time: float) -> tuple[list[Trained], list[float]]:
        """Train a plan on one seed, and on more while it would lead; those without a reference are left out."""
        trained: list[Trained] = []
        runs: list[Run] = []
        baselines, first = self._baseline_seeds(), int(trial.user_attrs.get("n_seeds", 1))
        n_known, unseen = len(baselines), baselines[-1] + 1
        most = int(trial.user_attrs.get(standings.MOST_SEEDS, self._file.set_up.most_seeds))
        looks = {min(n_seeds, most) for n_seeds in (first, *_MORE_SEEDS) if n_seeds >= first}
        for before, n_more in itertools.pairwise([0, *sorted(looks)]):
            # Round the baseline's seeds, then further ones.
            wanted = range(before, n_more)
            seeds = [
                baselines[(trial.number + at) % n_known] if at < n_known else unseen + at - n_known for at in wanted
            ]
            for run, of_seed in self._beside_baseline(plan, seeds):
                trained.append(run)
                runs.append(of_seed)
            trial.set_user_attr(standings.SEEDS, [seed for seed, _ in runs])
            trial.set_user_attr("deficits", plain([lost for _, lost in runs]))
            if n_more == most or not all(math.isfinite(lost) for _, lost in runs):
                break
            standing = self._standing(trial, runs, time)
            if not (time < standing.best_time or standing.leader == trial.number):
                break
            sure = standing.sure[trial.number]
            if sure < _HOPELESS or (sure >= _NO_DOUBT and len(runs) >= 2):
                break
        return trained, [lost for _, lost in runs]

    def _beside_baseline(self, plan: Plan, indices: Sequence[int]) -> list[tuple[Trained, Run]]:
        """Train a plan on seeds, and the baseline where it has not been; return each run, its seed and its deficit.

        Seeds on which the baseline diverges are left out: there is nothing to compare with.
        """
        higher = self._metric.higher_is_better
        compared = list[tuple[Trained, Run]]()
        are_several = len(indices) > 1 and places(self.trainers, [plan]) > 1
        known = self._trained_side_by_side(plan, indices) if are_several else {}
        for index in indices:
            reference = self._baseline_metric(index)
            if math.isfinite(reference):
                run = known.get(index) or self._train_seed(plan, index)
                lost = metric_deficit(reference, run.metric, higher_is_better=higher)
                compared.append((run, (index, lost)))
        return compared

    def _trained_side_by_side(self, plan: Plan, indices: Sequence[int]) -> dict[int, Trained]:
        """Train a plan on several seeds at a time, and the baseline first where it has not been; return the plan's."""
        known = standings.baseline_metrics(self._study.user_attrs)
        trained = dict[int, Trained]()
        plans = {index: [plan] if index in known else [self._file.baseline_plan(), plan] for index in indices}
        rounds = {index: [self._job(one, index, NO_WARM_UP) for one in row] for index, row in plans.items()}
        for index, (*baseline, run) in self._side_by_side(rounds):
            trained[index] = run
            for one in baseline:
                self._keep_baseline(index, one)
        return trained

    def _standing(self, trial: optuna.Trial, runs: Sequence[Run], time: float) -> Standing:
        also = TrainedPlan(trial.number, trial.user_attrs["parameters"], runs, time) if runs else None
        # Tuned plain stands among its like: it shall be found, not only lead.
        standing = plain_standing if trial.user_attrs.get(PLAIN) else standing_now
        return standing(self._study, self._file, None, also)

    def settle(self, n_seeds: int) -> None:
        """Train the leader on further seeds, until the plan in the lead has been trained on that many.

        The best of many plans is too good by selection, and all of them were trained on the same few seeds.
        """
        while True:
            trials, attributes = self._study.get_trials(deepcopy=False), self._study.user_attrs
            further, lacking = standings.further_of(attributes), standings.without_reference(attributes)
            standing = standing_now(self._study, self._file)
            leader = standing.leader
            if leader is None or len(standing.tried[leader].deficits) >= n_seeds:
                return
            trial = optuna.Trial(self._study, id_of(trials[leader]))
            plan = self._plans.resolve(BoostConfig.from_dict(trial.user_attrs["config"]), trial.user_attrs["level"])
            row = further.setdefault(leader, [])
            used = {*trial.user_attrs[standings.SEEDS], *(index for index, _ in row), *lacking}
            # Not the baseline's seeds: the plan was picked by these.
            first = self._baseline_seeds()[-1] + 1
            unused = [one for one in range(first, first + n_seeds) if one not in used]
            indices = unused[: min(places(self.trainers, [plan]), n_seeds - len(standing.tried[leader].deficits))]
            if not indices:  # the baseline diverges on some of them
                return
            missing = () if {*indices} <= standings.baseline_metrics(attributes).keys() else (1.0,)
            end_if_over(self.deadline, sum(map(self._baseline_run.by_clock, (*missing, standing.times[leader]))))
            row += [of_seed for _, of_seed in self._beside_baseline(plan, indices)]
            stored = {str(number): [[one, plain(lost)] for one, lost in runs] for number, runs in further.items()}
            self._study.set_user_attr(standings.FURTHER, stored)

    def _train_seed(self, plan: Plan, index: int, on_step: Callable[[RunStep], None] | None = None) -> Trained:
        """Train a plan on a seed, after the seed's own warm-up; without one it counts as a plan that diverged."""
        try:
            warm_up = self._warm_ups.before(plan, self._file.study.seed + index)
        except WarmUpError as error:
            return Trained(math.nan, (), 0.0, diverged=True, message=str(error))
        return self._experimenter.run(self._job(plan, index, warm_up), Monitor(None, on_step or self._on_step))

    def _job(self, plan: Plan, index: int, warm_up: WarmUp) -> TrainJob:
        study, is_baseline = self._file.study, plan.key() == self._file.baseline_plan().key()
        options = {"steps": study.budget_steps, "evaluate_every": study.budget_steps}
        return warm_up.train_job(plan, seed=study.seed + index, also_untrained=is_baseline and index == 0, **options)


def _keep_runs(trial: optuna.Trial, runs: Sequence[Trained]) -> None:
    trial.set_user_attr("run_seconds", [run.seconds for run in runs])
    trial.set_user_attr(RUN_METRICS, plain([run.metric for run in runs]))
