"""What a Model can do, RecModel can do on a stream: levels, loss scales, accumulation, sparse gradients; telemetry."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.kit.callbacks import AtStepEnd
from tests.kit.chains import assert_same_bits, chain
from tests.kit.configurations import accumulating, freezing
from tests.online.recommender import Recommender, new_recommender, stream
from workbench.core.records import EventKind
from workbench.nn import DynamicLossScaleManager, Model
from workbench.online import OnlineCheckpoints, PageHinkley, Prequential
from workbench.optim.embeddings import EvictingEmbedding
from workbench.rec import RecModel
from workbench.runs import RunRecorder, column_info, read_run


def clicks(n: int) -> list[tuple[Tensor, Tensor]]:
    draw = torch.Generator().manual_seed(4)
    return [(x, (x.sum(1, keepdim=True) > 0).float()) for x in torch.randn(n, 8, 3, generator=draw)]


@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param({}, id="O0"),
        pytest.param({"boost_level": "O1", "boost_config_dict": freezing(3, steps=30)}, id="O1 with freezing"),
        pytest.param({"boost_config_dict": accumulating(2)}, id="accumulation"),
        pytest.param({"amp_level": "O2", "loss_scale_manager": DynamicLossScaleManager(1024, 2, 5)}, id="float16"),
        pytest.param({"amp_level": "O3"}, id="O3"),
    ],
)
def test_a_stream_has_the_bits_of_a_models_epoch(arguments: dict[str, Any]) -> None:
    def new(kind: type[Model]) -> Any:
        network = chain(n_in=3, n_out=1)
        optimizer = torch.optim.SGD(network.parameters(), 0.3, 0.9, fused=True)
        return kind(network, nn.BCEWithLogitsLoss(), optimizer, **arguments)

    one, other = new(Model), new(RecModel)
    one.train(1, clicks(24))
    summary = other.online_train(iter(clicks(24)), prequential=Prequential(100, every=3), queue_size=2)
    assert summary.n_steps == 24
    assert_same_bits(one.predict_network, other.predict_network)
    assert not torch.equal(one.predict_network[0].weight, chain(n_in=3, n_out=1)[0].weight)


def test_a_stream_is_trained_on_with_smoothed_labels_where_the_configuration_asks_for_it() -> None:
    def trained(smoothing: float, kind: type[Model]) -> nn.Linear:
        torch.manual_seed(4)
        network = nn.Linear(3, 2)
        settings = {"boost": {"mode": "disable_all"}, "regularization": {"label_smoothing": smoothing}}
        optimizer = torch.optim.SGD(network.parameters(), 0.3, fused=True)
        model = kind(network, nn.CrossEntropyLoss(), optimizer, boost_level="O1", boost_config_dict=settings)
        data = [(x, (x.sum(1) > 0).long()) for x in torch.randn(8, 6, 3, generator=torch.Generator().manual_seed(1))]
        if isinstance(model, RecModel):
            model.online_train(iter(data))
        else:
            model.train(1, data)
        return network

    smooth, same, sharp = trained(0.2, Model), trained(0.2, RecModel), trained(0.0, RecModel)
    assert_same_bits(smooth, same)
    assert not torch.equal(smooth.weight, sharp.weight)


@pytest.mark.parametrize("sparse", [False, True], ids=["dense gradients", "sparse gradients"])
def test_float16_with_a_dynamic_scale_skips_what_overflows(sparse: bool, tmp_path: Path) -> None:
    manager = DynamicLossScaleManager(2.0**30, 2, 1000)
    recorder = RunRecorder.create(tmp_path, {}, {})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # plain SGD on sparse gradients has no fused kernel
        model = new_recommender(sparse, amp_level="O2", loss_scale_manager=manager)
        look = AtStepEnd(lambda state: bool(state.net_outputs.overflow))
        model.online_train(stream(seed=1, start=0, n=40), look, recorder=recorder, record_gradients=True)
    recorder.finish({})
    steps = read_run(recorder.path).steps
    assert steps["overflow"].iloc[0]
    assert not steps["overflow"].iloc[-1]
    assert steps["loss_scale"].iloc[-1] < 2.0**30
    assert steps["grad_norm"].iloc[-1] > 0
    assert look.values == steps["overflow"].tolist()
    assert all(bool(weight.isfinite().all()) for weight in model.predict_network.parameters())


def test_sparse_gradients_have_the_bits_of_a_loop_by_hand() -> None:
    model = new_recommender(sparse=True)
    twin = Recommender(sparse=True)
    twin.load_state_dict(model.predict_network.state_dict())
    optimizer = torch.optim.SGD(twin.parameters(), lr=0.1)
    torch.manual_seed(8)
    for inputs, label in stream(seed=1, start=0, n=20):
        optimizer.zero_grad()
        F.binary_cross_entropy_with_logits(twin(inputs), label).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    torch.manual_seed(8)
    model.online_train(stream(seed=1, start=0, n=20))
    assert_same_bits(model.predict_network, twin)


def test_a_run_directory_keeps_the_figures_and_the_drift(tmp_path: Path) -> None:
    def drifting() -> Iterator[Any]:
        for number, ((ids, numbers), _) in enumerate(stream(seed=1, start=0, n=700)):
            is_odd = ids[:, 0] % 2 == 1
            yield (ids, numbers), (is_odd if number < 350 else ~is_odd).float()

    recorder = RunRecorder.create(tmp_path, {}, {})
    model = new_recommender()
    summary = model.online_train(
        drifting(), prequential=Prequential(800, every=20), drift=PageHinkley(), recorder=recorder
    )
    recorder.finish({"metric": summary.auc})
    run = read_run(recorder.path)
    assert len(run.steps) == 700
    aucs = run.steps.set_index("step")["online.auc"].dropna()
    assert aucs.index.tolist() == list(range(19, 700, 20))
    assert aucs[339] > 0.9
    assert aucs[399] < 0.6
    assert aucs[699] > 0.9
    drift = run.events[run.events["kind"] == EventKind.DRIFT]
    assert len(drift) == summary.n_drifts == 1
    assert 350 <= drift["step"].iloc[0] < 370
    assert "log loss of new records has risen" in drift["message"].iloc[0]
    for name in [name for name in run.steps.columns if name.startswith("online.")]:
        assert column_info(name).unit
        assert name != "online.auc" or "predicted before" in column_info(name).description
    assert {"online.log_loss", "online.rejected", "online.queue_depth", "online.wait_ms"} <= set(run.steps.columns)
    assert run.steps["online.records_per_second"].dropna().gt(0).all()
    assert model.boosted.observer is None
    assert model.boosted.events is None


def test_an_exception_loses_no_step_of_the_record(tmp_path: Path) -> None:
    failing = AtStepEnd(lambda state: 1 / (7 - state.cur_step_num))
    recorder = RunRecorder.create(tmp_path, {}, {})
    with recorder, pytest.raises(ZeroDivisionError):
        new_recommender().online_train(stream(seed=1, start=0), failing, recorder=recorder)
    assert read_run(recorder.path).steps["step"].tolist() == list(range(7))


def test_what_lies_behind_a_checkpoint_is_recorded_before_it(tmp_path: Path) -> None:
    recorder = RunRecorder.create(tmp_path, {}, {}, run_id="run")
    saved: list[int] = []

    class Watched(OnlineCheckpoints):
        def save(self, state: Any, n_steps: int, *, wait: bool = False) -> None:
            assert recorder.n_steps == n_steps  # a kill from here on loses nothing that will not come again
            saved.append(n_steps)
            super().save(state, n_steps, wait=True)

    new_recommender().online_train(
        stream(seed=1, start=0, n=25), checkpoints=Watched(tmp_path / "c", every_steps=10), recorder=recorder
    )
    assert saved == [10, 20, 25]
    recorder.close()


def test_the_size_of_growing_tables_is_recorded() -> None:
    network = nn.Sequential(EvictingEmbedding(48, 1), nn.Flatten(0))
    look = AtStepEnd(lambda state: dict(state.online))
    model = RecModel(network, nn.BCEWithLogitsLoss(), torch.optim.SGD(network.parameters(), 0.1))
    batch = torch.arange(4), torch.ones(4)
    model.online_train(iter([batch] * 101), look)
    assert "online.table_rows" not in look.values[98]
    assert look.values[99]["online.table_rows"] == 4
    assert look.values[99]["online.table_evictions"] == 0


@pytest.mark.long
def test_memory_stays_flat(tmp_path: Path) -> None:
    def weigh(state: Any) -> int:
        if state.cur_step_num % 1000:
            return 0
        gc.collect()
        return psutil.Process().memory_info().rss

    weighed = AtStepEnd(weigh)
    new_recommender().online_train(
        stream(seed=1, start=0, n=5000),
        weighed,
        queue_size=2,
        prequential=Prequential(),
        drift=PageHinkley(),
        recorder=RunRecorder.create(tmp_path, {}, {}),
    )
    sizes = [size for size in weighed.values if size]
    assert sizes[-1] - sizes[1] < 8 << 20
