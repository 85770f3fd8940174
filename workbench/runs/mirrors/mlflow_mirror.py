"""Runs in MLflow: an experiment per task or study, parameters, tags, metrics, artifacts.

Everything goes through ``MlflowClient`` with its own address, so that the program's global MLflow state, an active run
among it, stays as it is.
"""

from __future__ import annotations

import contextlib
import functools
import json
import logging
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from workbench.core.credentials import hide_passwords
from workbench.core.records import Event
from workbench.core.text import first_line
from workbench.runs.mirrors.mirror import Mirror, MirroredRun, MirrorError, require, summary_numbers
from workbench.runs.mirrors.selection import Point

if TYPE_CHECKING:
    from mlflow import MlflowClient

_RUN, _STARTED, _COMPLETE = "workbench.run", "workbench.started", "workbench.complete"
_METRICS_AT_ONCE = 1000  # what MLflow's log_batch takes in one call
_PARAMETERS_AT_ONCE = 100
_LONGEST_VALUE = 500  # what the oldest stores in use take
_MOST_EVENTS = 10_000
_NOT_IN_A_NAME = re.compile(r"[^\w.\-/: ]")  # a metric's, which a user may call "F1 (macro)"
_STATUS = {"diverged": "FAILED", "interrupted": "KILLED", "stopped": "KILLED"}


class MlflowMirror(Mirror):
    """Mirror runs to an MLflow tracking server or store.

    Args:
        uri: Tracking URI, ``http://...`` or ``sqlite:////path/mlflow.db``; None for MLflow's own choice (the variable
            ``MLFLOW_TRACKING_URI``, else ``mlflow.db`` in the working directory).
        experiment: Name of the experiment; None for that of the study, or else of the task.

    Example:
        >>> print(MlflowMirror("https://me:secret@tracking.example"))
        MLflow at https://me:***@tracking.example
    """

    most_points: ClassVar[int] = 2_000  # a point costs a row per number in its database

    def __init__(self, uri: str | None = None, experiment: str | None = None) -> None:
        self.uri = uri
        self.experiment = experiment
        self._run_id = ""
        self._events: list[str] = []

    def __str__(self) -> str:
        return f"MLflow at {hide_passwords(self.uri)}" if self.uri else "MLflow"

    def check(self) -> None:
        """Raise MirrorError when MLflow is not installed."""
        with _quiet():
            require("mlflow", "MLflow")

    def has(self, run: MirroredRun) -> bool:
        """Return whether the run is there, by the tags that this mirror gives its runs."""
        with self._plain_errors(), _quiet():
            found = self._find(run)
        return found is not None and found.data.tags.get(_COMPLETE) == "yes"

    def _begin(self, run: MirroredRun) -> None:
        self.check()
        self._events = []
        with self._plain_errors(), _quiet():
            left = self._find(run)
            if left is not None:
                self._client.delete_run(left.info.run_id)
            experiment, began, name = self._experiment_id(run), round(run.started * 1e3), run.name.rpartition("/")[2]
            created = self._client.create_run(experiment, start_time=began, tags=_tags(run), run_name=name)
            self._run_id = created.info.run_id
            self._send_parameters(run.parameters)
            self._client.log_dict(self._run_id, dict(run.config), "boost_config.json")
            self._client.log_dict(self._run_id, dict(run.environment), "environment.json")

    def _write(self, points: Sequence[Point], events: Sequence[Event]) -> None:
        for event in events[: _MOST_EVENTS - len(self._events)]:
            self._events.append(f"step {event.step}\t{event.kind}\t{event.subject}\t{event.message}")
        with _quiet_logs():
            self._send_metrics([(point.step, self._run.started + point.seconds, point.values) for point in points])

    def finish(self, summary: Mapping[str, Any]) -> None:
        """Send the results and end the MLflow run."""
        end = self._when(-1)
        state = str(summary.get("state", ""))
        client = self._client
        with _quiet_logs():
            self._send_metrics([(int(summary.get("steps") or 0), end, summary_numbers(summary))])
            for name in ("state", "in_effect", "message", "metric_name"):
                if summary.get(name):
                    client.set_tag(self._run_id, name, hide_passwords(str(summary[name]))[:_LONGEST_VALUE])
            if self._events:
                client.log_text(self._run_id, "\n".join(self._events) + "\n", "events.txt")
            client.log_dict(self._run_id, dict(summary), "summary.json")
            client.set_tag(self._run_id, _COMPLETE, "yes" if state else "no")
            client.set_terminated(self._run_id, _STATUS.get(state, "FINISHED" if state else "KILLED"), round(end * 1e3))

    @functools.cached_property
    def _client(self) -> MlflowClient:
        from mlflow import MlflowClient

        return MlflowClient(tracking_uri=self.uri)

    def _experiment_name(self, run: MirroredRun) -> str:
        group = run.name.rpartition("/")[0]
        return self.experiment or group or str(run.environment.get("task") or "workbench")

    def _experiment_id(self, run: MirroredRun) -> str:
        name = self._experiment_name(run)
        found = self._client.get_experiment_by_name(name)
        if found is None:
            return str(self._client.create_experiment(name, artifact_location=_artifacts_beside(self.uri)))
        if found.lifecycle_stage != "active":
            raise MirrorError(f"the MLflow experiment {name!r} is deleted; restore it or name another one")
        return str(found.experiment_id)

    def _find(self, run: MirroredRun) -> Any:
        experiment = self._client.get_experiment_by_name(self._experiment_name(run))
        if experiment is None:
            return None
        # By a time, in which no quote ends the filter, as it might in a name.
        started = str(run.environment.get("started", ""))
        found = self._client.search_runs([experiment.experiment_id], f"tags.`{_STARTED}` = '{started}'")
        return next((one for one in found if one.data.tags.get(_RUN) == run.name), None)

    def _send_parameters(self, parameters: Mapping[str, Any]) -> None:
        from mlflow.entities import Param

        shown = {name: value if isinstance(value, str) else json.dumps(value) for name, value in parameters.items()}
        rows = [Param(name, value[:_LONGEST_VALUE]) for name, value in shown.items()]
        for at in range(0, len(rows), _PARAMETERS_AT_ONCE):
            self._client.log_batch(self._run_id, params=rows[at : at + _PARAMETERS_AT_ONCE])

    def _send_metrics(self, rows: Sequence[tuple[int, float, Mapping[str, float]]]) -> None:
        from mlflow.entities import Metric

        metrics = [
            Metric(_NOT_IN_A_NAME.sub("_", name), value, round(when * 1e3), step)
            for step, when, values in rows
            for name, value in values.items()
        ]
        for at in range(0, len(metrics), _METRICS_AT_ONCE):
            self._client.log_batch(self._run_id, metrics=metrics[at : at + _METRICS_AT_ONCE])

    @contextlib.contextmanager
    def _plain_errors(self) -> Iterator[None]:
        """Turn what keeps MLflow from being opened into a MirrorError; each store's library raises its own class."""
        try:
            yield
        except MirrorError:
            raise
        except Exception as error:
            raise MirrorError(f"{self} cannot be opened: {hide_passwords(first_line(error))}") from None


def _tags(run: MirroredRun) -> dict[str, str]:
    environment = run.environment
    device = environment.get("device")
    facts = {
        "task": environment.get("task"),
        "level": environment.get("level"),
        "device": (device.get("name") or device.get("type")) if isinstance(device, Mapping) else device,
        "data_hash": environment.get("data_hash"),
        "mlflow.source.name": "boost-workbench",
        "mlflow.note.content": f"Recorded by the Boost Workbench in the run directory `{run.name}`.",
    }
    versions = environment.get("versions")
    if isinstance(versions, Mapping):
        facts |= {f"version.{name}": version for name, version in versions.items()}
    ours = {_RUN: run.name, _STARTED: str(environment.get("started", "")), _COMPLETE: "no"}
    return {name: str(value)[:_LONGEST_VALUE] for name, value in facts.items() if value} | ours


def _artifacts_beside(uri: str | None) -> str | None:
    """Return where artifacts of a SQLite store go: beside it, where MLflow would take the working directory."""
    scheme, found, path = (uri or "").partition("sqlite:///")
    return None if scheme or not found else (Path(path).resolve().parent / "mlartifacts").as_uri()


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Silence MLflow's logs and its libraries' warnings in the whole process: not for the thread that sends blocks."""
    with _quiet_logs(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@contextlib.contextmanager
def _quiet_logs() -> Iterator[None]:
    logger = logging.getLogger("mlflow")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)
