"""Every way in which online training ends: in good order, with the callbacks told and no thread left behind."""

from __future__ import annotations

import math
import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from tests.kit.callbacks import AtStepEnd
from tests.kit.processes import wait_until
from workbench.mindspore.callbacks import Callback, RunContext
from workbench.online import OnlineCheckpoints, PageHinkley, Prequential, RecordRules, SnapshotPublisher, feed
from workbench.rec import RecModel

Batch = tuple[Tensor, Tensor]


class Listener(Callback):
    """Notes the names of the moments, and does something at the end of a step."""

    def __init__(self, at_step: int = 0, do: Callable[[RunContext], object] = lambda context: None) -> None:
        self.names: list[str] = []
        self.at_step, self.do = at_step, do

    def __exit__(self, *_: object) -> None:
        self.names.append("exit")

    def step_end(self, run_context: RunContext) -> None:
        self.names.append("step_end")
        if run_context.original_args().cur_step_num == self.at_step:
            self.do(run_context)

    def epoch_end(self, run_context: RunContext) -> None:
        self.names.append("epoch_end")

    def end(self, run_context: RunContext) -> None:
        self.names.append("end")


IN_GOOD_ORDER = ["step_end", "epoch_end", "end", "exit"]


def new_model() -> RecModel:
    network = nn.Linear(3, 1)
    return RecModel(network, nn.MSELoss(), torch.optim.SGD(network.parameters(), lr=0.01, fused=True))


def batches(n: int) -> Iterator[Batch]:
    for k in range(n):
        yield torch.full((2, 3), float(k)), torch.ones(2, 1)


def press_ctrl_c(*_: object) -> None:
    os.kill(os.getpid(), signal.SIGINT)


def held(n: int, until: threading.Event) -> Iterator[Batch]:
    yield from batches(n)
    assert until.wait(60)
    yield from batches(1)


@pytest.fixture(autouse=True)
def no_thread_left_behind(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(feed, "_JOIN_SECONDS", 60.0)  # however late a busy machine gives the reader its turn
    before = threading.active_count()
    handler = signal.getsignal(signal.SIGINT)
    yield
    assert threading.active_count() == before
    assert signal.getsignal(signal.SIGINT) is handler


class Numbers(IterableDataset[Batch]):
    def __iter__(self) -> Iterator[Batch]:
        return batches(3)


def failing() -> Iterator[Batch]:
    yield from batches(3)
    raise OSError("the socket was closed")


def press_twice(context: RunContext) -> None:
    press_ctrl_c()
    press_ctrl_c()


def fail(error: BaseException) -> None:
    raise error


END = IN_GOOD_ORDER[1:]
ENDLESS = 10**9
# What is read, the step at whose end something is done, what that is, how training ends, and what follows the steps.
ENDINGS: dict[str, tuple[Any, int, Any, Any, int, list[str]]] = {
    "a generator ends where it ends": (lambda: batches(5), 0, None, "end of stream", 5, END),
    "a stop that was requested happens at once": (
        lambda: batches(ENDLESS), 3, RunContext.request_stop, "request", 3, END,
    ),
    "Ctrl-C waits for the step": (lambda: batches(ENDLESS), 3, press_ctrl_c, "interrupt", 3, END),
    "Ctrl-C pressed twice is an exception": (
        lambda: batches(ENDLESS), 2, press_twice, KeyboardInterrupt, 2, ["exit"],
    ),
    "an interrupt that a callback raises is a request": (
        lambda: batches(ENDLESS), 2, lambda _: fail(KeyboardInterrupt()), "interrupt", 2, ["end", "exit"],
    ),
    "an error while reading reaches the caller": (failing, 0, None, OSError, 3, ["exit"]),
    "an error of a callback reaches the caller": (
        lambda: batches(ENDLESS), 2, lambda _: fail(ZeroDivisionError()), ZeroDivisionError, 2, ["exit"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("queue_size", [0, 2])
@pytest.mark.parametrize("name", ENDINGS)
def test_an_ending(name: str, queue_size: int) -> None:
    stream, at_step, do, ended, n_steps, then = ENDINGS[name]
    listener, model = Listener(at_step, do), new_model()
    if isinstance(ended, str):
        summary = model.online_train(stream(), listener, queue_size=queue_size)
        assert (summary.ended_by, summary.n_steps, summary.n_records) == (ended, n_steps, 2 * n_steps)
    else:
        with pytest.raises(ended):
            model.online_train(stream(), listener, queue_size=queue_size)
    assert listener.names == ["step_end"] * n_steps + then


@pytest.mark.parametrize("queue_size", [0, 2])
def test_ctrl_c_ends_a_wait_for_data(queue_size: int) -> None:
    pressed = threading.Event()

    def press() -> None:
        press_ctrl_c()
        pressed.set()

    timer = threading.Timer(0.05, press)
    listener = Listener(2, lambda context: timer.start())
    summary = new_model().online_train(held(2, pressed), listener, queue_size=queue_size)
    timer.join()
    assert (summary.ended_by, summary.n_steps) == ("interrupt", 2)  # of three
    assert listener.names[-4:] == IN_GOOD_ORDER


def test_an_opener_is_read_once_from_the_beginning() -> None:
    opened: list[int] = []

    def stream(start: int) -> Iterable[Batch]:
        opened.append(start)
        return list(batches(4))[start:]

    assert new_model().online_train(stream, queue_size=2).n_steps == 4
    assert opened == [0]


@pytest.mark.parametrize(
    "dataset",
    [
        lambda: list(batches(3)),
        Numbers,
        lambda: DataLoader(Numbers(), batch_size=None),
        lambda: DataLoader(TensorDataset(torch.zeros(6, 3), torch.ones(6, 1)), batch_size=2),
    ],
    ids=["list", "iterable dataset", "loader of an iterable dataset", "loader of a table"],
)
def test_what_can_be_iterated_again_is_replayed_until_stopped(dataset: Callable[[], Any]) -> None:
    epochs: list[int] = []
    listener = Listener(7, RunContext.request_stop)
    listener.epoch_begin = lambda context: epochs.append(context.original_args().cur_epoch_num)  # type: ignore[method-assign]
    assert new_model().online_train(dataset(), listener, queue_size=2).n_steps == 7
    assert epochs == [1, 2, 3]
    assert listener.names.count("epoch_end") == 3


def test_a_dataset_whose_source_runs_dry_ends() -> None:
    source = batches(4)

    class Once(IterableDataset[Batch]):
        def __iter__(self) -> Iterator[Batch]:
            return iter(list(source))

    listener = Listener()
    assert new_model().online_train(Once(), listener).ended_by == "end of stream"
    assert listener.names == ["step_end"] * 4 + IN_GOOD_ORDER[1:]


def test_an_empty_generator_ends_and_an_empty_list_is_a_mistake() -> None:
    listener = Listener()
    assert new_model().online_train(iter(()), listener).n_steps == 0
    assert listener.names == ["end", "exit"]
    with pytest.raises(ValueError, match="`train_dataset` held no batch"):
        new_model().online_train([])


def test_a_stop_ends_the_wait_for_a_stream_that_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    spoken, timers, close = threading.Event(), list[threading.Timer](), feed.ReadAhead.close

    def stop_later(context: RunContext) -> None:
        timers.append(threading.Timer(0.05, context.request_stop))
        timers[0].start()

    def speak_and_close(reader: feed.ReadAhead) -> None:
        spoken.set()  # only now, when the trainer has given up its wait, does the read return
        close(reader)

    monkeypatch.setattr(feed.ReadAhead, "close", speak_and_close)
    stream = held(1, spoken)
    assert new_model().online_train(stream, Listener(1, stop_later), queue_size=2).ended_by == "request"
    timers[0].join()


def test_a_reader_that_hangs_is_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feed, "_JOIN_SECONDS", 0.1)
    release = threading.Event()

    def hanging() -> Iterator[Batch]:
        yield from batches(1)
        release.wait(20)

    with pytest.warns(RuntimeWarning, match="the reader is still waiting for its source"):
        new_model().online_train(hanging(), Listener(1, RunContext.request_stop), queue_size=1)
    release.set()
    wait_until(lambda: not any(thread.name == "workbench-reader" for thread in threading.enumerate()))


def test_the_reader_waits_for_the_trainer() -> None:
    read = 0

    def counted() -> Iterator[Batch]:
        nonlocal read
        for batch in batches(40):
            read += 1
            yield batch

    def slowly(state: Any) -> int:
        wait_until(lambda: read >= min(state.cur_step_num + 2, 40))  # it does read ahead
        time.sleep(0.002)
        assert state.online["online.queue_depth"] <= 3
        return read - state.cur_step_num

    ahead = AtStepEnd(slowly)
    new_model().online_train(counted(), ahead, queue_size=3)
    assert max(ahead.values) <= 4  # the queue, and the one in the reader's hand


def test_the_wait_for_a_slow_source_is_measured() -> None:
    look = AtStepEnd(lambda state: state.online["online.wait_ms"])

    def sleepy() -> Iterator[Batch]:
        for batch in batches(3):
            time.sleep(0.02)
            yield batch

    new_model().online_train(sleepy(), look)
    assert len(look.values) == 3
    assert all(20 <= wait < 20_000 for wait in look.values)


def test_training_goes_on_where_a_generator_was_left() -> None:
    stream = batches(6)
    model = new_model()
    model.online_train(stream, Listener(2, RunContext.request_stop))
    assert model.online_train(stream).n_steps == 4
    assert model.boosted.step_index == 6


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        pytest.param({"train_dataset": 3}, TypeError, "`train_dataset` must be an iterable", id="dataset"),
        pytest.param({"train_dataset": RecModel}, TypeError, "`train_dataset` must be an iterable", id="class"),
        pytest.param({"dataset_sink_mode": 1}, TypeError, "`dataset_sink_mode` must be a bool", id="sink mode"),
        pytest.param({"sink_size": 0}, ValueError, "`sink_size` must be -1 or at least 1", id="sink size"),
        pytest.param({"queue_size": -1}, ValueError, "`queue_size` must be at least 0", id="queue"),
        pytest.param({"queue_size": 2.0}, TypeError, "`queue_size` must be a whole number", id="queue kind"),
        pytest.param({"drift": object()}, ValueError, "give `prequential`, too", id="drift"),
        pytest.param({"resume": True}, ValueError, "`resume` needs `checkpoints`", id="resume"),
        pytest.param({"records": {}}, TypeError, "`records` must be RecordRules", id="records"),
        pytest.param({"callbacks": "x"}, TypeError, "`callbacks`", id="callbacks"),
        pytest.param({"train_dataset": lambda n: 3}, ValueError, "must return an iterable", id="opener"),
    ],
)
def test_an_argument_without_sense_is_named(arguments: dict[str, Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        new_model().online_train(**{"train_dataset": batches(1), **arguments})


@pytest.mark.parametrize(
    ("make", "name", "value"),
    [
        *((PageHinkley, *pair) for pair in (("threshold", 0.0), ("tolerance", -1.0), ("warm_up", 1), ("memory", 1.0))),
        *((Prequential, *pair) for pair in (("window", 1), ("every", 0))),
        *((SnapshotPublisher, *pair) for pair in (("every_seconds", None), ("every_steps", 0), ("every_seconds", 0.0))),
        *((SnapshotPublisher, *pair) for pair in (("full_every", -1), ("delta_rows", 0))),
        *((OnlineCheckpoints, *pair) for pair in (("every_steps", None), ("every_steps", 0), ("keep", 0))),
        *((RecordRules, *pair) for pair in (("label_range", (1, 0)), ("id_range", (1, 0)), ("max_abs", 0.0))),
        *((RecordRules, *pair) for pair in (("min_rows", 0), ("limit_count", -1), ("limit_share", 0.0))),
        *((RecordRules, *pair) for pair in (("limit_share", math.nan), ("limit_window", 0), ("report_seconds", -1.0))),
    ],
)
def test_a_parameter_out_of_range_is_named(make: Any, name: str, value: Any, tmp_path: Path) -> None:
    folder = [tmp_path] if make in (SnapshotPublisher, OnlineCheckpoints) else []
    with pytest.raises(ValueError, match=f"`{name}`"):
        make(*folder, **{name: value})


def test_training_needs_an_optimizer() -> None:
    with pytest.raises(ValueError, match="`optimizer` is None"):
        RecModel(nn.Linear(3, 1), nn.MSELoss()).online_train(batches(1))


def test_a_network_that_refuses_every_batch_is_at_fault() -> None:
    wrong = [(torch.zeros(2, 5), torch.ones(2, 1))] * 10
    with pytest.raises(RuntimeError, match="mat1 and mat2"):
        new_model().online_train(iter(wrong))
    with pytest.raises(RuntimeError, match="mat1 and mat2"):
        new_model().online_train(iter(wrong[:1]), records=None)
