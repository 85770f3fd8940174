"""Where the gain of a set-up comes from: its parts taken out one after the other, the least useful first.

A part's factor is how much longer a run to the same quality takes without it. For a part that changes only step times
it is their ratio. For one that changes learning, runs without it are trained at three lengths: parallel lines through
the deficits with and without it, over the logarithm of the length, are as far apart as the lengths to the same quality
(Finney, "Statistical Method in Biological Assay", 3rd edition, Griffin 1978, chapter 4). That quality is the whole
set-up's own, which has a margin to the allowed drop; how much shorter a run without the margin would be is a factor
below 1. What is left at the end is the schedule, so the factors multiply to the total. A part whose factor is not
surely above 1 is no gain, and the set-up without it competes, too.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import optuna
from optuna.trial import FrozenTrial, TrialState

from workbench.config import BoostConfig, ConfigError, describe_parameters
from workbench.core.records import GainPart
from workbench.study.answer.selection import FORM_OF, keep_remaining
from workbench.study.ask.study_file import StudyFile
from workbench.study.errors import OutOfTimeError
from workbench.study.run.job import SpeedMeasured, plain, read_record
from workbench.study.run.runner import end_if_over
from workbench.study.set_up.parallel_lines import WIDEST, Runs, mean_of, parallel_lines
from workbench.study.set_up.parts import Part, parts_of
from workbench.study.set_up.runtime_choice import ground_of
from workbench.study.set_up.standing import BOLD, LIKELY, MOST_SEEDS, SURE, standing_now
from workbench.study.set_up.total_time import StepTimes, total_time
from workbench.study.store.stored_records import allowed_drop_of

_ATTRIBUTION = "attribution"
_IDLE = "idle_parts"
_LENGTH = "schedule.length"
# Lengths tried without a part, relative to the one that the regression expects to suffice. The wider they are, the
# surer is the slope of the lines; the narrower, the less it matters that quality is no straight line.
_STRETCHES = (0.75, 1.0, 1.35)
_SEEDS = 3
_GAIN_LEVEL = 0.99  # a part stays only if this one-sided bound of its factor lies above 1
_NO_LOSS = 1.2  # how much longer than the whole a set-up without its idle parts may take
_MARGIN = "safety margin"  # among the parts: how much shorter a run would be that loses just what is allowed
_IN_RESERVE = "runs are longer than the allowed drop requires, so that the quality surely holds"
_CUT = "no time was left to measure them one by one"
_NOT_ALONE = "measured without the parts that follow; no time was left to leave it out alone"
_SCATTERED = "their runs scatter too much to tell them apart"
_VAGUE = 2.25  # ratio of the ends of an interval around 1 from which a bar of its own tells a reader nothing
_NO_SCHEDULE = "the task's own schedule"
_NO_FACTOR = 0.005  # from 1, which is rounded away
_BESIDE = ", "  # between the names of parts that were not measured one by one
_SAFE = 0.99  # where a set-up keeps the quality as surely as that, no form of it has to be safer
_SAFER, _SAFER_UNSURE = 1.12, 1.25  # how much longer a set-up's safer form is: where it is sure enough, and else
_SHORTEST_FORM, _SHORTEST = 0.5, 0.8  # of a set-up's length: a bolder form's, and what another one is expected to need


@dataclass(frozen=True, slots=True)
class _Needed:
    """How long a set-up takes to the quality of the whole, relative to the baseline's run."""

    time: float
    spread: float  # standard deviation of the time's logarithm; NaN where it was not measured
    length: float  # of its schedule
    freedom: int = 30  # degrees of freedom behind the spread
    values: Mapping[str, Any] = field(default_factory=dict)  # of the set-up, by config path
    runs: Runs = ()  # at several lengths, or at its own


@dataclass
class _Apart:
    """A set-up that is being taken apart."""

    rest: list[Part]  # that are still in it
    now: _Needed  # what is left
    whole: _Needed  # the set-up without what is known to be no gain
    bars: dict[str, GainPart] = field(default_factory=dict)  # of the parts taken out, by name, in that order
    idle: list[str] = field(default_factory=list)  # parts that are no gain
    suspects: list[Part] = field(default_factory=list)  # seemed no gain when taken out of what was left

    def take_out(self, part: Part, bar: GainPart, without: _Needed) -> None:
        """Note what a part contributes to what is left, and go on without it."""
        is_whole = self.now is self.whole
        self.rest.remove(part)
        self.bars[part.name] = replace(bar, alone=bar.factor) if is_whole else bar
        self.now = without
        if _is_idle(bar) and is_whole:
            self.whole = without
            self.idle.append(part.name)
        elif _is_idle(bar):
            self.suspects.append(part)


@dataclass
class Attributor:
    """Takes a set-up apart; the study keeps the answer.

    ``run_given`` trains a given set-up as a trial of the study and returns the trial's number.
    """

    study: optuna.Study
    file: StudyFile
    times: StepTimes
    run_given: Callable[[Mapping[str, Any], Mapping[str, Any]], int]
    deadline: float | None

    def __post_init__(self) -> None:
        self._plain = ground_of(self.file.base_config(), {})
        self._ground = ground_of(self.file.base_config(), self.study.user_attrs)
        self._measured: list[Runs] = []  # of the whole, and without each part

    def take_apart(self, number: int) -> list[GainPart]:
        """Take the parts out of a trial's set-up until only the schedule is left, as far as the time goes.

        A part that seems to be no gain once a useful one is gone may be a gain in the whole, so it is left out of the
        whole by itself, too, before it counts as idle. Return the parts as built up: schedule first, least useful last.
        What time had cut short is done again.
        """
        if is_explained(self.study, number):
            return list(attribution_of(self.study.user_attrs)[str(number)])
        trial = self.study.get_trials(deepcopy=False)[number]
        config, values = self._set_up_of(trial)
        length = float(config.leaves()[_LENGTH])
        whole = _Needed(_time_of(trial), 0.0, length, values=values, runs=self._runs(number, length))
        self._measured = [whole.runs]
        apart = _Apart(self._parts(config), whole, whole)
        with contextlib.suppress(OutOfTimeError):
            self._take_out_parts(apart, number)
            self._judge_suspects(apart, number)
        for part in apart.suspects:
            if math.isnan((bar := apart.bars[part.name]).alone):
                apart.bars[part.name] = replace(bar, note=_NOT_ALONE)
        bars = [*self._margin(whole), *apart.bars.values()]
        left = [part.name for part in apart.rest]
        note = "" if len(left) <= 1 else _CUT
        factor = 1.0 / _time_of(trial) / math.prod(bar.factor for bar in bars)
        bars.append(GainPart(_BESIDE.join(left) or _NO_SCHEDULE, factor, note=note))
        bars.reverse()
        self._keep(number, bars)
        self.study.set_user_attr(_IDLE, {**self.study.user_attrs.get(_IDLE, {}), str(number): apart.idle})
        return bars

    def _take_out_parts(self, apart: _Apart, number: int) -> None:
        """Take out parts that change times or learning, the least useful first; an OutOfTimeError where time ends."""
        kinds = {"time", "learning"}
        while able := [part for part in apart.rest if part.kind in kinds]:
            part = self._least_useful(able, apart.now)
            try:
                bar, without = self._without(part, apart.now, number)
            except OutOfTimeError:  # to train; the time of a step is known, or measured in seconds
                if part.kind == "time":
                    raise
                kinds.remove("learning")
            else:
                apart.take_out(part, bar, without)

    def _judge_suspects(self, apart: _Apart, number: int) -> None:
        """Take the suspects out of the whole, too, each by itself; an OutOfTimeError where time ends."""
        for part in apart.suspects:
            alone, without = self._without(part, apart.whole, number)
            apart.bars[part.name] = replace(apart.bars[part.name], alone=alone.factor)
            if _is_idle(alone):
                apart.whole = without
                apart.idle.append(part.name)

    def _without(self, part: Part, now: _Needed, number: int) -> tuple[GainPart, _Needed]:
        """Take a part out of a set-up; return what it contributed there, and what is left."""
        values = part.taken_out(now.values, self._plain)
        is_timed = part.kind == "time"
        needed = self._same_length(values, now) if is_timed else self._needed(values, part, now, number)
        return _bar(part, needed, now), replace(needed, values={**values, _LENGTH: min(needed.length, 1.0)})

    def _margin(self, whole: _Needed) -> list[GainPart]:
        """Return the factor of the whole's margin to the allowed drop; nothing where there is not surely one."""
        lines = parallel_lines(self._measured)
        if lines is None or not whole.runs:
            return []
        mean = mean_of(whole.runs)
        allowed = mean._replace(deficit=allowed_drop_of(self.study.user_attrs), n_runs=math.inf)
        longer, spread = lines.apart(allowed, mean)
        shortest = self._needed_at(whole.values, whole.length * math.exp(longer), spread, lines.freedom)
        bar = replace(_bar(Part(_MARGIN, (), "schedule"), shortest, whole), note=_IN_RESERVE)
        return [bar] if bar.effect == "cost" else []

    def _keep(self, number: int, bars: Sequence[GainPart]) -> None:
        stored = self.study.user_attrs.get(_ATTRIBUTION, {})
        self.study.set_user_attr(_ATTRIBUTION, {**stored, str(number): plain(bars)})

    def without_idle_parts(self, number: int) -> int:
        """Take a set-up apart and train it without the parts that are no gain, if there are any.

        Each of them is no sure gain by itself, but together they may be one. So where the set-up without all of them
        takes clearly longer, the most useful one goes back, and so on. The trial that remains is what the study
        exports, unless it turns out not to keep the quality: an answer whose parts are known is worth more than one
        that seems a little faster.
        """
        config, values = self._set_up_of(self.study.get_trials(deepcopy=False)[number])
        bars = {bar.part: bar for bar in self.take_apart(number)}
        no_gain = self.study.user_attrs.get(_IDLE, {}).get(str(number), [])
        idle = [part for part in self._parts(config) if part.name in no_gain]
        factors = {name: bar.alone if math.isfinite(bar.alone) else bar.factor for name, bar in bars.items()}
        idle.sort(key=lambda part: factors[part.name])
        remaining = number
        try:
            while idle:
                trained, longer = self._trained_without(idle, values, number)
                if longer <= _NO_LOSS:
                    remaining = trained
                    break
                names = _BESIDE.join(part.name for part in idle[:-1])
                note = f"no sure gain by itself, but without it{f' and {names}' if names else ''} "
                note += f"a run takes {longer:.2f} x as long" if math.isfinite(longer) else "no run came to its end"
                bars[idle[-1].name] = replace(bars[idle[-1].name], note=note)
                idle.pop()
        except OutOfTimeError:
            for part in idle:
                note = "no sure gain; no time was left to train the set-up without it"
                bars[part.name] = replace(bars[part.name], note=note)
            idle = []
        gone = {part.name for part in idle}
        left = [bar for bar in bars.values() if bar.part not in gone]
        self._keep(remaining, left if remaining == number else self._on_schedule(remaining, number, left))
        plain_values = self._plain.leaves()
        keep_remaining(self.study, remaining, {path: plain_values[path] for part in idle for path in part.paths})
        return remaining

    def _trained_without(self, idle: Sequence[Part], values: Mapping[str, Any], number: int) -> tuple[int, float]:
        """Train a set-up without some of its parts; return the trial and how much longer it takes, inf if it failed."""
        without = dict(values)
        for part in idle:
            without = part.taken_out(without, self._plain)
        without[_LENGTH] = self._expected(without, SURE).length
        purpose = f"trial {number} without what is no gain"
        trained = self._run(without, {"n_seeds": _SEEDS, "purpose": purpose})
        trials = self.study.get_trials(deepcopy=False)
        if trials[trained].state != TrialState.COMPLETE:  # what failed competes for nothing
            return number, math.inf
        return trained, _time_of(trials[trained]) / _time_of(trials[number])

    def _on_schedule(self, number: int, other: int, parts: Sequence[GainPart]) -> list[GainPart]:
        """Return parts of another trial on this one's schedule: what that changes is margin, where it was measured."""
        trials = self.study.get_trials(deepcopy=False)
        before, after = (self._schedule_of(trials[one]) for one in (other, number))
        named = parts[0].part.split(_BESIDE)
        names = [name for name in named if name not in (*before, _NO_SCHEDULE)] + after
        bars = [replace(parts[0], part=_BESIDE.join(names) or _NO_SCHEDULE), *parts[1:]]
        more = 1.0 / _time_of(trials[number]) / math.prod(bar.factor for bar in bars)
        at = -1 if bars[-1].part == _MARGIN else 0
        bars[at] = replace(bars[at], **{end: more * getattr(bars[at], end) for end in ("factor", "low", "high")})
        return bars

    def train_forms(self, number: int, most: int) -> None:
        """Train a trial's set-up with other lengths of its schedule, so that there are candidates of the same parts.

        The first of ``most`` is longer and safer; one that surely keeps the quality needs none. The others are shorter:
        the boldest may keep the quality.
        """
        trials = self.study.get_trials(deepcopy=False)
        config, values = self._set_up_of(trials[number])
        length = config.leaves()[_LENGTH]
        sure = standing_now(self.study, self.file).sure.get(number, 0.0)
        lengths = {"safer": length * (_SAFER if sure >= SURE else _SAFER_UNSURE)} if sure < _SAFE else {}
        names = (["bolder"] if lengths else ["a little bolder", "bolder"])[: most - len(lengths)]
        for name in names:
            probability = BOLD if name == "bolder" else SURE
            lengths[name] = min(self._expected(values, probability, _SHORTEST_FORM).length, length)
        forms = [one for one in trials if one.state.is_finished() and one.user_attrs.get(FORM_OF) == number]
        known = {one.user_attrs["purpose"] for one in forms}
        for name, other in lengths.items():
            purpose = f"trial {number}, {name}"
            if purpose not in known and other != length and other <= 1.0:
                attributes = {FORM_OF: number, MOST_SEEDS: 1, "purpose": purpose}
                self._run({**values, _LENGTH: round(other, 4)}, attributes)

    def keep_forms(self, number: int) -> None:
        """Store that the gain of a trial's forms comes from the same parts."""
        trials = self.study.get_trials(deepcopy=False)
        bars = attribution_of(self.study.user_attrs).get(str(number))
        for trial in trials:
            form = int(trial.user_attrs.get("repeats", trial.number))
            if bars and trial.user_attrs.get(FORM_OF) == number and "speed" in trials[form].user_attrs:
                self._keep(form, self._on_schedule(form, number, bars))

    def _run(self, values: Mapping[str, Any], attributes: Mapping[str, Any]) -> int:
        """Train a set-up as a trial of its own; return the trial that has the answer, which an equal plan repeats."""
        given = {path: value for path, value in values.items() if value is not None}
        number = self.run_given(given, attributes)
        return int(self.study.get_trials(deepcopy=False)[number].user_attrs.get("repeats", number))

    def _schedule_of(self, trial: FrozenTrial) -> list[str]:
        """Return how the schedule is named among a trial's parts; it may be two words or more."""
        parts = self._parts(BoostConfig.from_dict(trial.user_attrs["config"]))
        return [name for part in parts if part.kind == "schedule" for name in part.name.split(_BESIDE)]

    def _parts(self, config: BoostConfig) -> list[Part]:
        plans = self.file.plans
        return parts_of(plans.resolve(config, "O1"), plans.resolve(self._plain, "O1"))

    def _set_up_of(self, trial: FrozenTrial) -> tuple[BoostConfig, dict[str, Any]]:
        """Return a trial's configuration, and in what it differs from the ground; its runtime is stated, too."""
        config = BoostConfig.from_dict(trial.user_attrs["config"])
        ground, leaves = self._ground.leaves(), config.leaves()
        stated = [path for path in describe_parameters() if leaves[path] != ground[path]]
        return config, {path: leaves[path] for path in [*self.file.set_up.runtime, *stated]}

    def _least_useful(self, parts: Sequence[Part], now: _Needed) -> Part:
        def needed(part: Part) -> float:
            """Return the time without a part as far as it is known without training."""
            without = part.taken_out(now.values, self._plain)
            try:
                return (self._same_length(without, now) if part.kind == "time" else self._expected(without)).time
            except ConfigError:
                return math.inf

        return min(parts, key=needed)

    def _same_length(self, values: Mapping[str, Any], now: _Needed) -> _Needed:
        (without, whole), (within, _) = self._timed(values), self._timed(now.values)
        # Both are relative to O0, whose own scatter they share; without the part, it may be O0 itself.
        spread = max(map(_spread, (without, within)))
        return replace(now, time=whole.ratio * max(now.length, 1.0), spread=spread, freedom=30)

    def _timed(self, values: Mapping[str, Any]) -> tuple[SpeedMeasured, SpeedMeasured]:
        """Return the time of a step and of a whole run of a set-up."""
        plan = self.file.plans.resolve(self._ground.with_values(values), "O1")
        step = self.times.measured(plan)
        return step, total_time(plan, step, self.file.study.budget_steps, share_of_today=self.file.share_of_today)

    def _needed_at(
        self, values: Mapping[str, Any], length: float, spread: float = math.nan, freedom: int = 30, runs: Runs = ()
    ) -> _Needed:
        # A set-up without a part may need longer than any is trained.
        ratio = self._timed({**values, _LENGTH: min(length, 1.0)})[1].ratio * max(length, 1.0)
        return _Needed(ratio, spread, length, freedom, values, runs)

    def _expected(self, values: Mapping[str, Any], sure: float = LIKELY, shortest: float = _SHORTEST) -> _Needed:
        """Return what the regression expects a set-up to need, with a probability: at least a share of its length."""
        standing = standing_now(self.study, self.file)
        lengths = np.geomspace(float(values.get(_LENGTH, 1.0)) * shortest, 1.0, 32)
        found = standing.model.probability([{**values, _LENGTH: length} for length in lengths])
        able = np.flatnonzero(found >= sure)
        return self._needed_at(values, float(lengths[able[0]]) if len(able) else 1.0)

    def _needed(self, values: Mapping[str, Any], part: Part, now: _Needed, number: int) -> _Needed:
        """Return what a set-up without a part needs to be as good as with it, from runs at three lengths."""
        middle = self._expected(values).length
        lengths = sorted({round(min(middle * stretch, 1.0), 4) for stretch in _STRETCHES})
        runs: list[tuple[float, float]] = []
        for length in lengths:
            end_if_over(self.deadline)
            attributes = {"n_seeds": _SEEDS, "purpose": f"trial {number} without {part.name}"}
            runs += self._runs(self._run({**values, _LENGTH: length}, attributes), length)
        self._measured.append(runs)
        lines = parallel_lines(self._measured)
        if lines is None or not now.runs or not runs:  # no length in reach makes a difference
            is_enough = len(runs) > 2 and mean_of(runs).deficit <= allowed_drop_of(self.study.user_attrs)
            return self._needed_at(values, lengths[0] if is_enough else lengths[-1], runs=runs)
        longer, spread = lines.apart(mean_of(now.runs), mean_of(runs))
        return self._needed_at(values, now.length * math.exp(longer), spread, lines.freedom, runs)

    def _runs(self, number: int, length: float) -> Runs:
        """Return a trial's runs that came to an end."""
        return [(math.log(length), deficit) for deficit in self._deficits(number) if math.isfinite(deficit)]

    def _deficits(self, number: int) -> tuple[float, ...]:
        """Return a trial's deficits; none of one that failed."""
        if self.study.get_trials(deepcopy=False)[number].user_attrs.get("baseline"):
            return (0.0,)
        tried = standing_now(self.study, self.file).tried
        return tried[number].deficits if number in tried else ()


def _time_of(trial: FrozenTrial) -> float:
    """Return the total time of a trial's run relative to the baseline's."""
    return float(trial.user_attrs["speed"]["ratio"])


def _spread(step: SpeedMeasured) -> float:
    """Return the standard error of the logarithm of a relative time."""
    return math.log(step.high / step.low) / 3.92 if step.high > step.low > 0.0 else 0.0


def _bar(part: Part, needed: _Needed, now: _Needed) -> GainPart:
    factor = needed.time / now.time
    margin = _student(0.975, needed.freedom) * needed.spread
    if not margin < WIDEST:  # NaN, too
        return GainPart(part.name, factor, note="its runs do not bound the factor")
    return GainPart(part.name, factor, factor * math.exp(-margin), factor * math.exp(margin))


def _is_idle(bar: GainPart) -> bool:
    """Return whether a factor was measured and is not surely above 1, at `_GAIN_LEVEL`."""
    if not math.isfinite(bar.low):
        return False
    deviation = math.log(bar.factor / bar.low) / _student(0.975, 30)
    return math.log(bar.factor) <= _student(_GAIN_LEVEL, 30) * deviation


def _student(probability: float, freedom: int) -> float:
    """Return the quantile of Student's distribution."""
    from scipy.special import stdtrit  # type: ignore[import-untyped]  # scipy ships no types; here for a quick start

    return float(stdtrit(freedom, probability))


def attribution_of(attributes: Mapping[str, Any]) -> dict[str, tuple[GainPart, ...]]:
    """Return what a study keeps of its attributions among its attributes: the trial's number as text -> its parts."""
    stored: Mapping[str, Any] = attributes.get(_ATTRIBUTION, {})
    return {number: tuple(read_record(GainPart, bar) for bar in row) for number, row in stored.items()}


def told_apart(bars: Sequence[GainPart]) -> tuple[GainPart, ...]:
    """Return the parts as readers see them: those of which the runs say next to nothing share the schedule's bar.

    The task's own schedule has none where it adds nothing.
    """
    if not bars:
        return ()
    schedule, *others = bars
    unsure = [bar for bar in others if bar.effect in ("unsure", "unmeasured")]
    vague = [bar for bar in unsure if not bar.high / bar.low < _VAGUE]  # NaN, too
    names = [bar.part for bar in (schedule, *vague) if bar.part != _NO_SCHEDULE]
    factor = math.prod(bar.factor for bar in (schedule, *vague))
    note = schedule.note or (_SCATTERED if vague else "")
    joint = replace(schedule, part=_BESIDE.join(names) or _NO_SCHEDULE, factor=factor, note=note)
    is_shown = bool(names) or abs(factor - 1.0) >= _NO_FACTOR
    return (*([joint] if is_shown else []), *(bar for bar in others if bar not in vague))


def is_explained(study: optuna.Study, number: int) -> bool:
    """Return whether a trial has been taken apart, without a time limit that cut it short."""
    known = attribution_of(study.user_attrs).get(str(number), ())
    return bool(known) and known[0].note != _CUT
