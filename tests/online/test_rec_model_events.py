"""RecModel's callbacks: the recorded order, and every way in which training ends."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import IterableDataset

from tests.golden_files import golden_paths, load_json
from tests.kit.callbacks import OLD_NAMES, OldStyle, Recorder, Stop
from workbench.rec import RecModel

Batch = tuple[Tensor, Tensor]


def new_model(**arguments: Any) -> RecModel:
    network = nn.Linear(3, 1)
    return RecModel(network, nn.MSELoss(), torch.optim.SGD(network.parameters(), lr=0.01, fused=True), **arguments)


def finite(n: int = 3) -> list[Batch]:
    return [(torch.full((2, 3), float(k)), torch.ones(2, 1)) for k in range(n)]


def endless() -> Iterator[Batch]:
    while True:
        yield from finite()


class Limited(IterableDataset[Batch]):
    """A dataset that does not say how long it is."""

    def __init__(self, n: int) -> None:
        self.n = n

    def __iter__(self) -> Iterator[Batch]:
        return iter(finite(self.n))


def dataset_of(case: dict[str, Any]) -> Any:
    """Return what the recorded run was given, by its kind."""
    if case["kind"] == "unbounded":
        return endless()
    if case["kind"] == "iter_limited":
        return Limited(case["batches_per_epoch"])
    return finite(case["batches_per_epoch"])


def golden_cases() -> list[Any]:
    recorded = [load_json(path)["cases"] for path in golden_paths("online_train_events*.json")]
    return [pytest.param(case, id=name) for cases in recorded for name, case in cases.items()]


def until_stopped(case: dict[str, Any]) -> list[list[Any]]:
    """Return the recorded events up to the request to stop, which the reference ignores; all if it is not there."""
    step, epoch = (case["options"].get(key) for key in ("stop_step", "stop_epoch"))
    events: list[list[Any]] = case["events"]
    for end, (name, its_epoch, its_step) in enumerate(events, start=1):
        if [name, its_step] == ["on_train_step_end", step] or [name, its_epoch] == ["on_train_epoch_end", epoch]:
            return events[:end]
    return events


def ends_by_exception(case: dict[str, Any]) -> bool:
    """Whether the callback's exception ends training: it is told to, and no request to stop comes before."""
    is_first = "events" not in case or len(until_stopped(case)) == len(case["events"])
    return "raise_step" in case["options"] and is_first


@pytest.mark.parametrize("case", golden_cases())
def test_events_come_in_the_recorded_order(case: dict[str, Any]) -> None:
    options = {key: value for key, value in case["options"].items() if key != "sink"}
    recorder = Recorder(**options)
    is_legacy = any(event[0] == "begin" for event in case.get("events", []))
    callbacks: Any = [OldStyle(recorder.events), recorder] if is_legacy else recorder
    sink = case.get("sink", options.get("sink", False))
    model = new_model()
    before = [weight.clone() for weight in model.predict_network.parameters()]

    def train() -> None:
        model.online_train(dataset_of(case), callbacks, dataset_sink_mode=sink, sink_size=case.get("sink_size", 1))

    if case["ended"].startswith("EXC "):
        assert case["ended"].startswith("EXC TypeError:")
        with pytest.raises(TypeError):
            train()
        assert recorder.events == case["events"]
    elif ends_by_exception(case):
        with pytest.raises(Stop):
            train()
        if "events" in case:  # the first of them, and the last
            assert recorder.events[: len(case["events"])] == case["events"]
            assert recorder.events[-len(case["last_events"]) :] == case["last_events"]
            assert len(recorder.events) == case["n_events"]
        else:  # the reference hangs before its first step
            assert recorder.events[-1] == ["__exit__", None, "Stop"]
            assert recorder.events[-2] == ["on_train_step_end", 1, options["raise_step"]]
    else:  # a stop is ignored there, so only the beginning is recorded; here it happens
        train()
        if "events" in case:
            expected = until_stopped(case)
            assert recorder.events[: len(expected)] == expected
        names = [name for name, *_ in recorder.events if name not in OLD_NAMES]
        steps = options.get("stop_step", 0) or case.get("batches_per_epoch", 3) * options["stop_epoch"]
        assert names.count("on_train_step_end") == steps
        assert names[-4:] == ["on_train_step_end", "on_train_epoch_end", "on_train_end", "__exit__"]
        assert recorder.events[-1] == ["__exit__", None, None]
    changed = any(
        not torch.equal(old, new) for old, new in zip(before, model.predict_network.parameters(), strict=True)
    )
    assert changed is case.get("weights_changed", True)
