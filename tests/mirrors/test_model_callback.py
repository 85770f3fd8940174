"""A callback that mirrors what a Model trains."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from tests.kit.chains import assert_same_bits
from tests.mirrors.fake_mirror import FakeMirror, values_of
from workbench.mindspore.callbacks import Callback, RunContext
from workbench.mindspore.mirror_callback import MirrorCallback
from workbench.nn import Model
from workbench.training.trace_buffer import TraceBuffer


def batches() -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(4, 8, 3, generator=generator)
    return [(x, x.sum(1, keepdim=True)) for x in features]


def model() -> Model:
    torch.manual_seed(0)
    network = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1, fused=True)
    return Model(network, nn.MSELoss(), optimizer, metrics={"mse"})


class Losses(Callback):
    """Keeps the loss of every step."""

    def __init__(self) -> None:
        self.losses: list[float] = []

    def on_train_step_end(self, run_context: RunContext) -> None:
        outcome = run_context.original_args().outcome
        assert outcome is not None
        self.losses.append(outcome.loss.item())


def test_every_step_and_every_evaluation_of_a_fit_is_mirrored() -> None:
    mirror, losses, trained = FakeMirror(), Losses(), model()
    trained.fit(3, batches(), batches(), callbacks=[MirrorCallback(mirror, name="first"), losses])
    assert values_of(mirror.points, "training/loss") == list(enumerate(losses.losses))
    assert [norm > 0.0 for _, norm in values_of(mirror.points, "gradient/norm")] == [True] * 12
    assert [rate for _, rate in values_of(mirror.points, "training/learning_rate")] == [0.1] * 12
    assert len(values_of(mirror.points, "evaluation/mse")) == 3
    assert [run.name for run in mirror.runs] == ["first"]
    assert mirror.summaries[0]["metric"] == pytest.approx(trained.eval(batches())["mse"])
    assert (mirror.summaries[0]["state"], mirror.summaries[0]["steps"]) == ("finished", 12)


def test_it_trains_to_the_same_weights_and_leaves_nothing_behind() -> None:
    mirrored, plain = model(), model()
    mirrored.train(2, batches(), callbacks=MirrorCallback(FakeMirror()))
    plain.train(2, batches())
    boosted = mirrored.boosted
    assert boosted is not None
    assert (boosted.observer, boosted.graph_observer, boosted.events) == (None, None, None)
    assert_same_bits(mirrored.predict_network, plain.predict_network)


def test_a_training_that_an_exception_ends_is_told_as_interrupted() -> None:
    class Breaks(Callback):
        def on_train_step_end(self, run_context: RunContext) -> None:
            if run_context.original_args().cur_step_num == 3:
                raise KeyError("enough")

    mirror = FakeMirror()
    with pytest.raises(KeyError):
        model().train(2, batches(), callbacks=[MirrorCallback(mirror), Breaks()])
    told = {name: mirror.summaries[0][name] for name in ("state", "message", "steps")}
    assert told == {"state": "interrupted", "message": "KeyError: 'enough'", "steps": 3}


def test_a_training_that_is_recorded_already_is_left_to_its_recorder() -> None:
    trained = model()
    assert trained.boosted is not None
    TraceBuffer(trained.boosted)
    with pytest.raises(RuntimeError, match="recorded already"):
        trained.train(1, batches(), callbacks=MirrorCallback(FakeMirror()))


def test_numbers_stay_on_the_device_until_a_block_is_due(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    drained: list[int] = []
    drain = TraceBuffer.drain

    def counted(self: TraceBuffer) -> object:
        block = drain(self)
        drained.append(len(block[0]))
        return block

    monkeypatch.setattr(TraceBuffer, "drain", counted)
    monkeypatch.setattr(TraceBuffer, "due", lambda self: False)
    model().train(5, batches(), callbacks=MirrorCallback(FakeMirror()))
    assert drained == [20]
