"""What `digits-resnet` comes to under a configuration, and how long it takes: a surface through real runs.

The final error's logarithm is a Gaussian process over optimizer, length, batch, rate and the rest, with scales fitted
once to the runs of `result/runs.csv`; that of tuned plain goes through the runs that `studies/fastest` keeps. A step's
time is a product of factors.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel

from workbench.config import BoostConfig

FOLDER = Path(__file__).resolve().parent
COLUMNS = (
    *("optimizer", "length", "batch", "lr", "aux_lr", "warmup", "smoothing", "decay", "until", "less_bn", "freeze_p"),
    *("metric", "seconds", "seed"),
)
OPTIMIZERS = ("AdamW", "Muon", "SGD")
STEPS = 180

_MIDDLE_RATE = {"AdamW": 0.003, "Muon": 0.0274, "SGD": 0.0707}
_PLAIN_RUNS = FOLDER.parent / "fastest" / "digits-resnet" / "result" / "trials.csv"
_FLOOR = 0.006  # added to an error before its logarithm: 450 images tell no smaller ones apart
_FAILED = 0.5  # an error above says nothing about the others
_LENGTHS = [1.84, 5.15, 10.7, 1.79, 1.87, 1.36, 50.0, 50.0, 50.0, 9.97, 1.24, 0.997, 48.7]
_CONTIGUOUS = 1.15  # times the step of channels_last
_PLAIN_STEPS = {1.0: 1.0, 2.0: 1.4, 4.0: 2.2}  # of the task's own optimizer, by batch factor


class Surface:
    """Means over seeds, by configuration."""

    def __init__(self) -> None:
        runs = pd.read_csv(FOLDER / "result" / "runs.csv")
        given, plans = runs[runs.optimizer == "task"], runs[runs.optimizer != "task"]
        self.given_metric = float(given.metric.mean())
        self.given_step = float(given.seconds.mean()) / STEPS
        rows = [_row(row) for row in plans.to_dict("records")]
        errors = np.array([_log_error(metric) for metric in plans.metric])
        kept = errors < math.log(_FAILED)
        kernel = ConstantKernel(1.69) * RBF(_LENGTHS) + WhiteKernel(0.098)
        self._process = _fitted(kernel, np.array(rows)[kept], errors[kept])
        steps = plans.seconds / (STEPS * plans.length / plans.batch)
        switches = np.array([_switches(row) for row in plans.to_dict("records")])
        self._factors = np.linalg.lstsq(switches, np.log(steps / self.given_step), rcond=None)[0]
        plain = pd.read_csv(_PLAIN_RUNS).query("state == 'complete' and `optimizer.name`.isna()", engine="python")
        plain = plain[plain["schedule.length"].notna() & np.isfinite(plain.metric_deficit)]
        places = np.c_[np.log2(plain["schedule.length"]), np.log2(plain["optimizer.lr"].fillna(0.05) / 0.1)]
        errors = np.array([_log_error(self.given_metric - deficit) for deficit in plain.metric_deficit])
        self._plain = _fitted(ConstantKernel(2.59) * RBF([1.63, 4.48]) + WhiteKernel(0.065), places, errors)

    def metric(self, config: BoostConfig) -> float:
        """Return the mean of the final accuracy."""
        row = _from(config)
        if row["optimizer"] != "task":
            return _metric(float(self._process.predict([_row(row)])[0]))
        if row["length"] == 1.0 and row["lr"] is None:
            return self.given_metric
        place = [math.log2(row["length"]), math.log2((row["lr"] or 0.05) / 0.1)]
        return _metric(float(self._plain.predict([place])[0]))

    def step_ratio(self, config: BoostConfig) -> float:
        """Return the time of a forward pass and its share of the update, relative to today's."""
        row, layout = _from(config), config.leaves()["runtime.memory_format"]
        if row["optimizer"] == "task":
            return _PLAIN_STEPS.get(row["batch"], 1.0) * (0.92 if layout == "channels_last" else 1.0)
        ratio = math.exp(float(np.dot(_switches(row), self._factors)))
        return ratio * (1.0 if layout == "channels_last" else _CONTIGUOUS)

    def time(self, config: BoostConfig) -> float:
        """Return the time of a whole run, relative to today's."""
        row = _from(config)
        return float(row["length"] / row["batch"] * self.step_ratio(config))


def _fitted(kernel: Any, places: np.ndarray, errors: np.ndarray) -> GaussianProcessRegressor:
    return GaussianProcessRegressor(kernel, optimizer=None, normalize_y=True).fit(places, errors)


def _log_error(metric: float) -> float:
    return math.log(max(1.0 - metric, 0.0) + _FLOOR)


def _metric(log_error: float) -> float:
    return 1.0 + _FLOOR - math.exp(log_error)


def _from(config: BoostConfig) -> dict[str, Any]:
    leaves = config.leaves()
    averages, grows = leaves["regularization.weight_average"] == "ema", leaves["curriculum.kind"] != "none"
    return {
        "optimizer": leaves["optimizer.name"] or "task",
        "length": leaves["schedule.length"],
        "batch": leaves["batch.factor"],
        "lr": leaves["optimizer.lr"],
        "aux_lr": leaves["optimizer.aux_lr"],
        "warmup": leaves["schedule.warmup"],
        "smoothing": leaves["regularization.label_smoothing"],
        "decay": leaves["regularization.decay"] if averages else None,
        "until": leaves["curriculum.until"] if grows else None,
        "less_bn": leaves["boost.less_bn"],
        "freeze_p": leaves["grad_freeze.freeze_p"] if leaves["boost.grad_freeze"] else None,
    }


def _row(run: Mapping[str, Any]) -> list[float]:
    """Return a plan as a point in which distances count alike."""

    def told(name: str, otherwise: float) -> float:
        value = run[name]
        return otherwise if value is None or (isinstance(value, float) and math.isnan(value)) else float(value)

    name, batch = str(run["optimizer"]), float(run["batch"])
    rate = told("lr", _MIDDLE_RATE[name]) / math.sqrt(batch) / _MIDDLE_RATE[name]
    decay, until, freeze_p = told("decay", 0.0), told("until", 0.0), told("freeze_p", 0.0)
    return [
        *(1.5 * (name == one) for one in OPTIMIZERS),
        math.log2(float(run["length"])),
        math.log2(batch),
        math.log2(rate) / 2.0,
        math.log2(told("aux_lr", 0.0055) / 0.0055) / 2.0 if name == "Muon" else 0.0,
        math.log2(max(told("warmup", 0.03), 0.01) / 0.1) / 2.0,
        8.0 * told("smoothing", 0.0),
        6.0 * (decay - 0.8) + 0.3 if decay else 0.0,
        2.0 * until + 0.2 if until else 0.0,
        0.7 * told("less_bn", 0.0),
        1.5 * freeze_p,
    ]


def _switches(run: Mapping[str, Any]) -> list[float]:
    def is_on(name: str) -> bool:
        value = run[name]
        return value is not None and not (isinstance(value, float) and math.isnan(value))

    name, batch = run["optimizer"], run["batch"]
    on = [batch == 1.0, batch == 2.0, batch == 4.0, name == "Muon", name == "AdamW"]
    return [float(one) for one in (*on, is_on("until"), bool(run["less_bn"]), is_on("freeze_p"), is_on("decay"))]
