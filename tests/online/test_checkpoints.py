"""Checkpoints: training resumed from one has the bits of training never interrupted, wherever it was killed."""

from __future__ import annotations

import hashlib
import json
import random
import threading
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector

from tests.kit.callbacks import AtStepEnd, StopAt
from tests.kit.chains import assert_same_bits
from tests.kit.configurations import accumulating
from tests.kit.processes import kill, start, wait_until
from tests.online.recommender import BATCH, Recommender, new_recommender, stream
from tests.ranks import Ranks
from workbench.core import distributed as ranks
from workbench.mindspore.callbacks import Callback, RunContext
from workbench.online import OnlineCheckpoints, PageHinkley, Prequential
from workbench.rec import RecModel
from workbench.runs import RunRecorder, read_run
from workbench.training import load_checkpoint, save_checkpoint
from workbench.training.checkpoint_folder import copied_to_host


def opened(start: int) -> Iterator[Any]:
    return stream(seed=2, start=start)


def assert_same(one: RecModel, other: RecModel) -> None:
    assert_same_bits(one.predict_network, other.predict_network)


def trained_to(
    step: int, folder: Path, *, data: Any = opened, resume: bool = False, queue_size: int = 0, **options: Any
) -> Any:
    model, judged, drift = new_recommender(**options), Prequential(200, every=7), PageHinkley(warm_up=10, threshold=4.0)
    summary = model.online_train(
        data,
        StopAt(step),
        prequential=judged,
        drift=drift,
        checkpoints=OnlineCheckpoints(folder, every_steps=5),
        resume=resume,
        queue_size=queue_size,
    )
    return model, summary, drift.state_dict()


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return trained_to(30, tmp_path_factory.mktemp("whole"))


@pytest.mark.parametrize(("cut", "queue_size"), [(1, 0), (5, 3), (12, 0), (12, 3)])
def test_resumed_training_has_the_bits_of_training_that_was_not_interrupted(
    cut: int, queue_size: int, tmp_path: Path, uninterrupted: Any
) -> None:
    whole, expected, drift = uninterrupted
    trained_to(cut, tmp_path / "cut", queue_size=queue_size)
    torch.manual_seed(99)  # the generators come from the checkpoint
    resumed, summary, drift_after = trained_to(30, tmp_path / "cut", resume=True, queue_size=queue_size)
    assert_same(whole, resumed)
    assert summary.n_steps == 30 - cut
    for figure in ("auc", "log_loss", "n_records", "n_drifts"):
        assert getattr(summary, figure) == getattr(expected, figure)
    assert drift_after == drift


def test_a_half_full_accumulation_window_is_resumed(tmp_path: Path) -> None:
    config = accumulating(4)
    whole, _, _ = trained_to(12, tmp_path / "whole", boost_config_dict=config)
    trained_to(6, tmp_path / "cut", boost_config_dict=config)
    resumed, _, _ = trained_to(12, tmp_path / "cut", resume=True, boost_config_dict=config)
    assert_same(whole, resumed)


def test_without_an_opener_what_was_trained_on_is_read_again_and_dropped(tmp_path: Path) -> None:
    data = list(stream(seed=2, start=0, n=7))

    def train(step: int, folder: Path, dataset: Any, resume: bool = False) -> tuple[RecModel, list[int]]:
        model, look = new_recommender(), AtStepEnd(lambda state: state.cur_epoch_num)
        model.online_train(dataset, [look, StopAt(step)], checkpoints=OnlineCheckpoints(folder), resume=resume)
        return model, look.values

    whole, epochs = train(20, tmp_path / "whole", data)
    _, before = train(9, tmp_path / "cut", data)
    resumed, after = train(20, tmp_path / "cut", data, resume=True)
    assert_same(whole, resumed)
    assert before + after == epochs
    exact, _ = train(7, tmp_path / "once", iter(data))
    again, none = train(20, tmp_path / "once", iter(data), resume=True)
    assert_same(exact, again)
    assert none == []


def test_rejected_batches_are_part_of_the_place_in_the_stream(tmp_path: Path) -> None:
    def hurt(start: int) -> Iterator[Any]:
        for number, ((ids, numbers), labels) in enumerate(stream(seed=2, start=start), start):
            yield (ids, numbers.clone().fill_(torch.nan) if number % 3 == 1 else numbers), labels

    whole, expected, _ = trained_to(20, tmp_path / "whole", data=hurt)
    for cut in (1, 2, 3):
        trained_to(cut, tmp_path / str(cut), data=hurt)
        resumed, summary, _ = trained_to(20, tmp_path / str(cut), data=hurt, resume=True)
        assert_same(whole, resumed)
        assert summary.n_rejected == expected.n_rejected == 160


def test_the_newest_are_kept_and_the_others_go(tmp_path: Path) -> None:
    model = new_recommender()
    checkpoints = OnlineCheckpoints(tmp_path / "new", every_steps=2, keep=2)
    assert checkpoints.newest() is None
    assert checkpoints.newest_step() == 0

    class Wait(StopAt):
        def step_begin(self, run_context: RunContext) -> None:
            checkpoints.close()  # a slow disk would skip some

    model.online_train(opened, Wait(9), checkpoints=checkpoints)
    names = [path.name for path in sorted((tmp_path / "new").iterdir())]
    assert names == ["checkpoint-000000000008.pt", "checkpoint-000000000009.pt"]
    assert checkpoints.newest_step() == 9
    other = new_recommender()
    load_checkpoint(tmp_path / "new" / names[1], other.boosted)  # it is a checkpoint like any other
    assert_same(model, other)


def _resumed_without_the_newest_of_one_rank(folder: Path) -> tuple[int, bool, list[float]]:
    own = folder / f"rank-{ranks.rank()}"
    trained_to(12, own)
    if ranks.rank() == 1:
        max(own.glob("checkpoint-*.pt")).unlink()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # rank 1 says that it passes over a file
        model, summary, _ = trained_to(20, own, resume=True)
    weights = parameters_to_vector(model.predict_network.parameters())
    return summary.n_steps, 15 in OnlineCheckpoints(own).steps(), weights.tolist()


@pytest.mark.slow
def test_ranks_go_on_from_the_newest_checkpoint_that_all_have(pair: Ranks, tmp_path: Path) -> None:
    one, other = pair.run(_resumed_without_the_newest_of_one_rank, tmp_path)
    assert one == other
    assert one[0] == 10  # from 10 on, not from the 12 of rank 0
    assert one[1]  # the checkpoint at 15 was not skipped, however slow the disk


def test_what_a_user_adds_is_kept_too(tmp_path: Path) -> None:
    def train(step: int, folder: Path, resume: bool = False) -> tuple[RecModel, float]:
        model = new_recommender()
        scheduler = torch.optim.lr_scheduler.ExponentialLR(model.optimizer, 0.9)
        schedule = AtStepEnd(lambda state: scheduler.step())
        checkpoints = OnlineCheckpoints(folder, also={"scheduler": scheduler})
        model.online_train(opened, [schedule, StopAt(step)], checkpoints=checkpoints, resume=resume)
        return model, scheduler.get_last_lr()[0]

    whole, rate = train(12, tmp_path / "whole")
    train(5, tmp_path / "cut")
    resumed, rate_after = train(12, tmp_path / "cut", resume=True)
    assert rate_after == rate
    assert_same(whole, resumed)


def test_a_step_does_not_wait_for_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    release, saved = threading.Event(), list[int]()
    save = torch.save

    def slow_save(state: Any, path: Any) -> None:
        saved.append(state["boosted"]["step_index"])
        release.wait(10)
        save(state, path)

    monkeypatch.setattr(torch, "save", slow_save)
    releasing = AtStepEnd(lambda state: state.cur_step_num == 20 and release.set())
    checkpoints = OnlineCheckpoints(tmp_path, 3, keep=9)
    new_recommender().online_train(opened, [releasing, StopAt(25)], checkpoints=checkpoints)
    assert saved[0] == 3
    assert 20 <= saved[1] <= 25  # those in between were put off, not queued
    state = torch.load(tmp_path / "checkpoint-000000000003.pt", weights_only=True)
    assert state["boosted"]["step_index"] == 3  # copied before the next step


def test_a_checkpoint_that_cannot_be_written_is_a_warning(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    checkpoints = OnlineCheckpoints(tmp_path / "file", every_steps=1)
    checkpoints.save({"format": 1}, 1)
    with pytest.warns(RuntimeWarning, match="a checkpoint could not be written"):
        checkpoints.close()
    with pytest.raises(OSError, match="File exists"):
        checkpoints.save({"format": 1}, 1, wait=True)


def test_another_setup_is_refused(tmp_path: Path) -> None:
    model, checkpoints = new_recommender(), OnlineCheckpoints(tmp_path)
    model.online_train(opened, StopAt(2), checkpoints=checkpoints)
    with pytest.raises(ValueError, match="no state of `prequential`"):
        model.online_train(opened, checkpoints=checkpoints, resume=True, prequential=Prequential())
    save_checkpoint(tmp_path / "checkpoint-000000000003.pt", model.boosted)
    with pytest.raises(ValueError, match="not written by online training"):
        model.online_train(opened, checkpoints=checkpoints, resume=True)


def test_a_copy_shares_nothing() -> None:
    weight = torch.zeros(2)
    own = {"counts": [1]}
    copy = copied_to_host({"a": [weight, (weight, 3)], "own": own})
    weight += 1
    own["counts"].append(2)  # as a scheduler's, whose state is its own dictionary
    assert copy["a"][0].tolist() == copy["a"][1][0].tolist() == [0, 0]
    assert copy["own"] == {"counts": [1]}
    state = torch.nn.BatchNorm1d(2).state_dict()
    assert copied_to_host(state)._metadata == state._metadata  # type: ignore[attr-defined]


class Counting(nn.Module):
    """A recommender that counts, in a buffer, how often it was trained on each batch."""

    def __init__(self, steps: int) -> None:
        super().__init__()
        self.inner = Recommender()
        self.register_buffer("counts", torch.zeros(steps, dtype=torch.int64))

    def forward(self, batch: tuple[Any, Tensor]) -> Tensor:
        inputs, number = batch
        self.counts[number[0]] += 1
        return self.inner(inputs)


class Begun(Callback):
    """Says when the first step is over, and takes its time, so that there is something to interrupt."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def step_end(self, run_context: RunContext) -> None:
        (self.folder / "begun").touch()
        time.sleep(0.001)


def train_to_the_end(folder: Path, steps: int) -> None:
    """Train on a stream, resuming what an earlier process left, and write down what became of it."""

    def numbered(start: int) -> Iterator[Any]:
        for number, (inputs, label) in enumerate(stream(seed=3, start=start, n=steps), start):
            yield (inputs, torch.full((BATCH,), number)), label

    torch.manual_seed(7)
    network = Counting(steps)
    optimizer = torch.optim.Adam(network.parameters(), lr=0.01, fused=True)
    judged, drift = Prequential(500, every=13), PageHinkley(warm_up=20, threshold=5.0)
    checkpoints = OnlineCheckpoints(folder / "kept", every_steps=10)
    summary = RecModel(network, nn.BCEWithLogitsLoss(), optimizer).online_train(
        numbered, Begun(folder), queue_size=4, prequential=judged, drift=drift, checkpoints=checkpoints, resume=True
    )
    content = b"".join(tensor.numpy().tobytes() for tensor in network.state_dict().values())
    answer = {
        "weights": hashlib.sha256(content).hexdigest(),
        "counts": network.counts.tolist(),
        "trained": summary.n_records,
        "auc": summary.auc,
        "log_loss": summary.log_loss,
        "drift": drift.state_dict(),
    }
    (folder / "answer.json").write_text(json.dumps(answer))


def killed_and_resumed(folder: Path, steps: int, kills: int) -> tuple[dict[str, Any], int]:
    """Train in a process that is killed at random moments, so many times, and let the last one finish."""
    folder.mkdir()
    draw, n_killed = random.Random(1), 0
    while True:
        (folder / "begun").unlink(missing_ok=True)
        process = start(train_to_the_end, folder, steps)
        if n_killed < kills:
            wait_until((folder / "begun").exists)
            process.join(draw.uniform(0.0, 0.5))
            if process.is_alive():
                kill(process)
                n_killed += 1
                continue
        process.join(120)
        assert process.exitcode == 0
        return json.loads((folder / "answer.json").read_text()), n_killed


@pytest.mark.long
def test_killed_at_random_moments_it_trains_on_every_record_exactly_once(tmp_path: Path) -> None:
    whole, _ = killed_and_resumed(tmp_path / "whole", 400, kills=0)
    resumed, n_killed = killed_and_resumed(tmp_path / "killed", 400, kills=3)
    assert n_killed >= 2
    assert resumed == whole
    assert whole["trained"] == 400 * 16
    # What the weights know of the stream: each record was counted when it was trained on, in a buffer of the model.
    assert whole["counts"] == [1] * 400


def test_batches_rejected_behind_the_last_step_count_once_and_the_clock_goes_on(tmp_path: Path) -> None:
    batches = list(stream(seed=2, start=0, n=6))
    (ids, numbers), labels = batches[3]
    batches[3] = (ids, numbers.clone().fill_(torch.nan)), labels

    def train(n: int, recorder: RunRecorder, resume: bool = False) -> int:
        kept = OnlineCheckpoints(tmp_path / "checkpoints", every_steps=100)
        with recorder:
            summary = new_recommender().online_train(
                lambda start: iter(batches[start:n]), checkpoints=kept, resume=resume, recorder=recorder
            )
        return summary.n_rejected

    recorder = RunRecorder.create(tmp_path, {}, {}, "run")
    assert train(4, recorder) == BATCH
    assert train(6, RunRecorder.reopen(recorder.path), resume=True) == BATCH
    run = read_run(recorder.path)
    assert run.steps["step"].tolist() == list(range(5))
    assert run.steps["seconds"].is_monotonic_increasing
