"""A Model's training that was interrupted ends as if it had not been: weights, losses and evaluations, bit for bit."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from tests.kit.callbacks import AtStepEnd, StopAt
from tests.kit.chains import assert_same_bits, chain
from tests.training.test_resuming import CONFIGS, NOTHING
from workbench.mindspore.callbacks import Callback, RunContext, loss_of
from workbench.nn import DynamicLossScaleManager, Model
from workbench.training.checkpoint_folder import CheckpointFolder
from workbench.training.resuming import ResumeError

EPOCHS, BATCHES = 3, 8


def samples() -> TensorDataset:
    generator = torch.Generator().manual_seed(1)
    return TensorDataset(torch.randn(32, 4, generator=generator), torch.randint(3, (32,), generator=generator))


class Stream(IterableDataset[Any]):
    """Noisy batches without a length, drawn from torch's generator while they are read."""

    def __iter__(self) -> Iterator[Any]:
        for x, y in DataLoader(samples(), 4):
            yield x + 0.1 * torch.randn(x.shape), y


def shuffled() -> DataLoader[Any]:
    return DataLoader(samples(), 4, shuffle=True)


def own_generator() -> DataLoader[Any]:
    return DataLoader(samples(), 4, shuffle=True, generator=torch.Generator().manual_seed(3))


def listed() -> list[tuple[Tensor, Tensor]]:
    return [(x, y) for x, y in DataLoader(samples(), 4)]


class Seen(Callback):
    """Notes each loss and what each evaluation found."""

    def __init__(self) -> None:
        self.losses: dict[int, float] = {}
        self.evaluations: dict[int, dict[str, float]] = {}

    def on_train_step_end(self, run_context: RunContext) -> None:
        state = run_context.original_args()
        self.losses[state.cur_step_num] = float(loss_of(state.net_outputs))

    def on_train_epoch_end(self, run_context: RunContext) -> None:
        state = run_context.original_args()
        if not run_context.get_stop_requested():
            self.evaluations[state.cur_epoch_num] = dict(state.eval_results)


def new_model(config: dict[str, Any], **options: Any) -> tuple[Model, nn.Module]:
    torch.manual_seed(0)
    network = nn.Sequential(nn.Dropout(0.2), chain(8, n_out=3, seed=0))
    optimizer = SGD(network.parameters(), lr=0.1, momentum=0.9, fused=True)
    options = {"metrics": {"acc", "loss"}, "boost_level": "O1", "boost_config_dict": config} | options
    return Model(network, nn.CrossEntropyLoss(), optimizer, **options), network


def fit(
    config: dict[str, Any], data: Any, seen: Seen, *callbacks: Callback, epochs: int = EPOCHS, **options: Any
) -> nn.Module:
    model, network = new_model(config)
    model.fit(epochs, data, listed(), callbacks=[seen, *callbacks], **options)
    return network


class KilledError(Exception):
    """Stands for the end of the process."""


class DieAt(StopAt):
    """Ends with an error after a step."""

    def step_end(self, run_context: RunContext) -> None:
        if run_context.original_args().cur_step_num == self.step:
            raise KilledError


@pytest.mark.parametrize(
    ("name", "data"),
    [
        *((name, shuffled) for name in CONFIGS),
        *(("nothing", data) for data in (own_generator, listed, Stream)),
        *(("set-up", data) for data in (own_generator, listed)),  # whose schedule needs the length of the run
    ],
)
def test_a_stopped_fit_goes_on_with_the_same_bits(name: str, data: Any, tmp_path: Path) -> None:
    whole, cut = Seen(), Seen()
    wanted = fit(CONFIGS[name], data(), whole)
    n_steps = len(whole.losses)
    for step in (2, n_steps // 2, n_steps - 1):  # in the first epoch, near the middle, in the last one
        fit(CONFIGS[name], data(), cut, StopAt(step), resume=tmp_path)
    torch.manual_seed(99)
    found = fit(CONFIGS[name], data(), cut, resume=tmp_path)
    assert cut.losses == whole.losses
    assert cut.evaluations == whole.evaluations
    assert_same_bits(found, wanted)


@pytest.mark.parametrize(("name", "data"), [("nothing", shuffled), ("nothing", own_generator), ("set-up", shuffled)])
def test_checkpoints_of_earlier_versions_kept_the_generators_elsewhere(name: str, data: Any, tmp_path: Path) -> None:
    whole, cut = Seen(), Seen()
    wanted = fit(CONFIGS[name], data(), whole)
    fit(CONFIGS[name], data(), cut, StopAt(len(whole.losses) // 2), resume=tmp_path)
    (path,) = tmp_path.glob("checkpoint-*.pt")
    state = torch.load(path, weights_only=True)
    begun = state["boosted"].pop("data")
    state["epochs"] = [begun.get(number, begun[0]) for number in range(max(begun) + 1)]
    torch.save(state, path)
    torch.manual_seed(99)
    found = fit(CONFIGS[name], data(), cut, resume=tmp_path)
    assert cut.losses == whole.losses
    assert_same_bits(found, wanted)


@pytest.mark.parametrize("died_at", [7, BATCHES + 1])
def test_a_killed_training_goes_on_from_its_last_checkpoint(died_at: int, tmp_path: Path) -> None:
    whole, first, second = Seen(), Seen(), Seen()
    wanted = fit(NOTHING, shuffled(), whole)
    with pytest.raises(KilledError):
        fit(NOTHING, shuffled(), first, DieAt(died_at), resume=CheckpointFolder(tmp_path, 4))
    found = fit(NOTHING, shuffled(), second, resume=CheckpointFolder(tmp_path, 4))
    assert 1 < min(second.losses) <= died_at, "a slow disk may leave the last checkpoint out"
    assert {**first.losses, **second.losses} == whole.losses
    assert {**first.evaluations, **second.evaluations} == whole.evaluations
    assert_same_bits(found, wanted)


def test_a_training_that_ended_is_not_trained_again_and_goes_on_with_more_epochs(tmp_path: Path) -> None:
    whole, first, again, more = Seen(), Seen(), Seen(), Seen()
    wanted = fit(NOTHING, shuffled(), whole)
    fit(NOTHING, shuffled(), first, epochs=2, checkpoint_every=5, resume=tmp_path)
    fit(NOTHING, shuffled(), again, epochs=2, resume=tmp_path)
    assert not again.losses
    found = fit(NOTHING, shuffled(), more, resume=tmp_path)
    assert {**first.losses, **more.losses} == whole.losses
    assert_same_bits(found, wanted)


def test_scale_manager_scheduler_and_criterion_go_on_too(tmp_path: Path) -> None:
    class Temperature(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.tensor(1.0))

        def forward(self, output: Tensor, label: Tensor) -> Tensor:
            return nn.functional.cross_entropy(output * self.scale, label)

    def train(folder: Path, *callbacks: Callback) -> tuple[nn.Module, float, float]:
        torch.manual_seed(0)
        network, criterion = chain(8, n_out=3, seed=0), Temperature()
        optimizer = SGD([*network.parameters(), *criterion.parameters()], lr=0.1, momentum=0.9, fused=True)
        manager = DynamicLossScaleManager(init_loss_scale=4.0, scale_window=3)
        model = Model(network, criterion, optimizer, loss_scale_manager=manager)
        scheduler = StepLR(model.optimizer, 5, 0.5)
        step = AtStepEnd(lambda _: scheduler.step())
        checkpoints = CheckpointFolder(folder, 4, also={"scheduler": scheduler})
        model.train(2, shuffled(), [step, *callbacks], resume=checkpoints)
        return network, float(criterion.scale.detach()), float(model.boosted.loss_scale)

    wanted = train(tmp_path / "whole")
    train(tmp_path / "cut", StopAt(7))
    found = train(tmp_path / "cut")
    assert found[1:] == wanted[1:]
    assert_same_bits(found[0], wanted[0])


def test_another_training_s_checkpoints_are_refused(tmp_path: Path) -> None:
    fit(NOTHING, shuffled(), Seen(), StopAt(3), resume=tmp_path)
    with pytest.raises(ResumeError, match="belong to a run with another `config`"):
        fit(CONFIGS["accumulation"], shuffled(), Seen(), resume=tmp_path)
    with pytest.raises(ResumeError, match="another `batches`: it was 8, and is 4"):
        fit(NOTHING, listed()[:4], Seen(), resume=tmp_path)
    wide = nn.Sequential(nn.Dropout(0.2), chain(16, n_out=3, seed=0))
    sgd = SGD(wide.parameters(), lr=0.1)
    other = Model(wide, nn.CrossEntropyLoss(), sgd, boost_level="O1", boost_config_dict=NOTHING)
    fit(NOTHING, shuffled(), Seen(), StopAt(3), resume=tmp_path / "plain")
    with pytest.raises(ResumeError, match="do not fit this network and optimizer"):
        other.train(1, shuffled(), resume=tmp_path / "plain")
    model, _ = new_model(NOTHING)
    with pytest.raises(ValueError, match="`checkpoint_every` needs a folder"):
        model.train(1, shuffled(), checkpoint_every=3)
    with pytest.raises(ValueError, match="which says it itself"):
        model.train(1, shuffled(), checkpoint_every=3, resume=CheckpointFolder(tmp_path))
    with pytest.raises(ValueError, match="`checkpoint_every` must be"):
        model.train(1, shuffled(), checkpoint_every=0, resume=tmp_path)
    with pytest.raises(TypeError, match="`resume` must be the path of a folder"):
        model.train(1, shuffled(), resume=True)  # type: ignore[arg-type]
