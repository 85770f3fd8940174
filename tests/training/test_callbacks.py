"""Callbacks: called in the recorded order, able to stop a run at once, and silent where they should be."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.golden_files import golden_paths, load_json
from tests.kit.callbacks import OLD_NAMES, AtStepEnd, OldStyle, Recorder, Stop
from workbench.core import distributed as ranks
from workbench.mindspore.callbacks import Callback, CallbackParameters, LossMonitor, RunContext, TimeMonitor
from workbench.nn import Model


def batches_of(n: int) -> list[tuple[Tensor, Tensor]]:
    return [(torch.full((2, 3), float(k)), torch.ones(2, 1)) for k in range(n)]


BATCHES = batches_of(3)


def new_model(**arguments: Any) -> Model:
    network = nn.Linear(3, 1)
    return Model(network, nn.MSELoss(), torch.optim.SGD(network.parameters(), lr=0.01, fused=True), **arguments)


def golden_cases() -> list[Any]:
    """Return the recorded runs that an exception ended; the others never end there, because a stop is ignored."""
    recorded = [load_json(path)["cases"] for path in golden_paths("online_train_events*.json")]
    return [
        pytest.param(case, id=name)
        for cases in recorded
        for name, case in cases.items()
        if "raise_step" in case["options"] and case.get("events")
    ]


@pytest.mark.parametrize("case", golden_cases())
def test_events_come_in_the_recorded_order_until_an_exception(case: dict[str, Any]) -> None:
    where = {key: value for key, value in case["options"].items() if key.startswith("raise")}
    recorder = Recorder(**where)
    both = [OldStyle(recorder.events), recorder] if ["begin", None, None] in case["events"] else recorder
    batches = batches_of(case["batches_per_epoch"])
    with pytest.raises(Stop):
        new_model().train(10**6, batches, both, dataset_sink_mode=case["sink"], sink_size=case["sink_size"])
    assert recorder.events[: len(case["events"])] == case["events"]
    assert recorder.events[-len(case["last_events"]) :] == case["last_events"]
    assert len(recorder.events) == case["n_events"]


@pytest.mark.parametrize("method", ["train", "eval"])
def test_the_sink_flag_must_be_a_bool(method: str) -> None:
    arguments = (1, BATCHES) if method == "train" else (BATCHES,)
    with pytest.raises(TypeError, match="`dataset_sink_mode` must be a bool, got int"):
        getattr(new_model(metrics={"mse"}), method)(*arguments, dataset_sink_mode=1)


def test_a_stop_asked_for_in_a_step_ends_training_after_that_step() -> None:
    recorder = Recorder(stop_step=2)
    new_model().train(5, BATCHES, recorder)
    assert recorder.events == [
        ["__enter__", None, None],
        *[["on_train_begin", 0, 0], ["on_train_epoch_begin", 1, 0]],
        *[[f"on_train_step_{moment}", 1, step] for step in (1, 2) for moment in ("begin", "end")],
        *[["on_train_epoch_end", 1, 2], ["on_train_end", 1, 2]],
        ["__exit__", None, None],
    ]


def test_a_stop_asked_for_at_the_end_of_an_epoch_ends_training_there() -> None:
    recorder = Recorder(stop_epoch=2)
    new_model().train(5, BATCHES, recorder)
    assert recorder.events[-3:] == [["on_train_epoch_end", 2, 6], ["on_train_end", 2, 6], ["__exit__", None, None]]


def test_an_evaluation_has_one_epoch() -> None:
    recorder = Recorder()
    new_model(metrics={"mse"}).eval(BATCHES[:1], recorder)
    begins = [["on_eval_begin", 0, 0], ["on_eval_epoch_begin", 1, 0]]
    ends = [[f"on_eval_{moment}", 1, 1] for moment in ("step_begin", "step_end", "epoch_end", "end")]
    assert recorder.events == [["__enter__", None, None], *begins, *ends, ["__exit__", None, None]]


def test_fit_evaluates_before_the_epoch_ends() -> None:
    recorder = Recorder()
    new_model(metrics={"mse"}).fit(2, BATCHES[:1], BATCHES[:1], valid_frequency=2, callbacks=recorder)
    names = [event[0] for event in recorder.events]
    assert names.count("on_eval_begin") == 1
    assert names.index("on_eval_end") + 1 == len(names) - 1 - names[::-1].index("on_train_epoch_end")


def test_a_stop_asked_for_while_fit_evaluates_ends_the_training() -> None:
    class StopInEvaluation(Recorder):
        def on_eval_end(self, run_context: RunContext) -> None:
            run_context.request_stop()

    recorder = StopInEvaluation()
    new_model(metrics={"mse"}).fit(9, BATCHES, BATCHES, callbacks=recorder)
    assert recorder.events[-3:] == [["on_train_epoch_end", 1, 3], ["on_train_end", 1, 3], ["__exit__", None, None]]


def test_the_older_names_are_called_in_training_or_evaluation_and_hear_nothing_of_one_amid_the_other() -> None:
    model, training, evaluation, both = new_model(metrics={"mse"}), OldStyle(), OldStyle(), OldStyle()
    model.train(1, BATCHES[:1], training)
    model.eval(BATCHES[:1], evaluation)
    model.fit(1, BATCHES[:1], BATCHES, callbacks=both)
    assert training.events == evaluation.events == both.events == [[name, None, None] for name in OLD_NAMES]


def test_several_callbacks_are_called_in_their_order_moment_by_moment() -> None:
    told: list[str] = []

    class Named(Callback):
        def __init__(self, name: str) -> None:
            self.name = name

        def step_begin(self, run_context: RunContext) -> None:
            told.append(f"{self.name} begins")

        def step_end(self, run_context: RunContext) -> None:
            told.append(f"{self.name} ends")

        def __exit__(self, *_: object) -> None:
            told.append(f"{self.name} leaves")

    new_model().train(1, BATCHES[:1], [Named("first"), Named("second")])
    steps = ["first begins", "second begins", "first ends", "second ends"]
    assert told == [*steps, "second leaves", "first leaves"]


def test_a_callback_that_cannot_be_entered_lets_the_others_leave() -> None:
    class Broken(Callback):
        def __enter__(self) -> Broken:
            raise Stop

    recorder = Recorder()
    with pytest.raises(Stop):
        new_model().train(1, BATCHES, [recorder, Broken()])
    assert recorder.events == [["__enter__", None, None], ["__exit__", None, "Stop"]]


@pytest.mark.parametrize(
    ("callbacks", "words"),
    [
        (3, "a Callback or a list of them, got int"),
        ("print", "a Callback or a list of them, got str"),
        ([print], "Callback objects, got builtin_function_or_method; derive"),
        ([LossMonitor], r"got LossMonitor; write it with \(\)"),
    ],
    ids=["number", "text", "function", "class"],
)
def test_what_is_no_callback_is_refused(callbacks: Any, words: str) -> None:
    with pytest.raises(TypeError, match=f"`callbacks` must .*{words}"):
        new_model().train(1, BATCHES, callbacks)


def test_what_a_callback_sees_is_the_step(capsys: pytest.CaptureFixture[str]) -> None:
    def look(state: CallbackParameters) -> float:
        assert state.train_dataset_element[0] is BATCHES[state.cur_step_in_epoch - 1][0]
        assert state.net_outputs is state.outcome.loss
        assert (state.batch_num, state.epoch_num, state.mode) == (3, 2, "train")
        assert state.optimizer is model.optimizer
        return state.net_outputs.item()

    model, seen = new_model(), AtStepEnd(look)
    first = nn.functional.mse_loss(model.predict_network(BATCHES[0][0]), BATCHES[0][1]).item()
    model.train(2, BATCHES, [seen, LossMonitor(2)])
    assert seen.values[0] == first
    assert len(seen.values) == 6
    places = [(1, 2, 1), (2, 1, 3), (2, 3, 5)]
    printed = [f"epoch: {epoch} step: {step}, loss is {seen.values[k]}" for epoch, step, k in places]
    assert capsys.readouterr().out.splitlines() == printed


def test_the_loss_monitor_prints_what_fit_found(capsys: pytest.CaptureFixture[str]) -> None:
    model = new_model(metrics={"mse"})
    model.fit(2, BATCHES, BATCHES, valid_frequency=[2], callbacks=LossMonitor(100))
    assert capsys.readouterr().out == f"Eval result: epoch 2, metrics: {model.eval(BATCHES)}\n"


def test_a_loss_that_is_no_number_ends_training() -> None:
    bad = [*BATCHES[:1], (torch.full((2, 3), torch.nan), torch.ones(2, 1))]
    with pytest.raises(ValueError, match="epoch: 1 step: 2: the loss is nan, training cannot continue"):
        new_model().train(1, bad, LossMonitor())


def test_a_bad_loss_whose_step_was_skipped_does_not_end_training(capsys: pytest.CaptureFixture[str]) -> None:
    bad = [(torch.full((2, 3), torch.inf), torch.ones(2, 1)), *BATCHES]
    config = {"loss_scale": {"kind": "dynamic", "init": 8.0}}
    new_model(boost_config_dict=config).train(1, bad, LossMonitor())
    assert capsys.readouterr().out.startswith("epoch: 1 step: 1, loss is nan\nepoch: 1 step: 2, loss is ")


def test_the_time_monitor_divides_by_the_steps_there_were(capsys: pytest.CaptureFixture[str]) -> None:
    new_model().train(1, BATCHES, TimeMonitor())
    new_model().train(1, BATCHES, TimeMonitor(data_size=10))
    lines = capsys.readouterr().out.splitlines()
    for line, steps in zip(lines, (3, 10), strict=True):
        found = re.fullmatch(r"Train epoch time: +([0-9.]+) ms, per step time: +([0-9.]+) ms", line)
        assert found is not None, line
        assert float(found[1]) == pytest.approx(float(found[2]) * steps, abs=0.01)


def test_only_the_first_rank_prints(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranks, "rank", lambda: 1)
    new_model(metrics={"mse"}).fit(1, BATCHES, BATCHES, callbacks=[LossMonitor(), TimeMonitor()])
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (lambda: LossMonitor(0), ValueError, "`per_print_times` must be at least 1, got 0"),
        (lambda: LossMonitor(1.5), TypeError, "`per_print_times` must be a whole number, got 1.5"),  # type: ignore[arg-type]
        (lambda: TimeMonitor(0), ValueError, "`data_size` must be at least 1, got 0"),
        (lambda: TimeMonitor(True), TypeError, "`data_size` must be a whole number, got True"),
    ],
    ids=["zero", "fraction", "no steps", "bool"],
)
def test_numbers_that_make_no_sense_are_refused(make: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        make()
