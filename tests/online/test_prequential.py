"""Prequential figures: exact against scikit-learn, over exactly the last records, and NaN where there is no answer."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from sklearn import metrics as oracle
from torch import Tensor, nn
from torch.nn import functional as F

from tests.kit.callbacks import AtStepEnd
from tests.scaling.host_reads import forbid_host_reads
from workbench.online import Prequential
from workbench.online.prequential import exact_auc
from workbench.rec import RecModel

RECORDS = st.lists(
    st.tuples(st.sampled_from([-2.0, -1.0, 0.0, 0.5, 0.5000001, 3.0]) | st.floats(-30, 30), st.booleans()), max_size=60
)


@settings(max_examples=50)
@given(RECORDS)
@example([(0.5, True), (0.5, False)])
@example([])
@example([(1.0, True)])
def test_the_area_is_scikit_learns(records: list[tuple[float, bool]]) -> None:
    scores = np.array([score for score, _ in records], dtype=np.float64)
    positive = np.array([label for _, label in records], dtype=np.bool_)
    area = exact_auc(scores.copy(), positive)
    if len(set(positive.tolist())) < 2:
        assert math.isnan(area)
    else:
        assert area == pytest.approx(oracle.roc_auc_score(positive, scores), abs=1e-12)
        assert exact_auc(-scores, positive) == pytest.approx(1 - area, abs=1e-12)


@settings(max_examples=30)
@given(st.lists(RECORDS, max_size=12), st.integers(2, 25))
def test_the_figures_are_those_of_exactly_the_last_records(steps: list[list[tuple[float, bool]]], window: int) -> None:
    judged = Prequential(window, every=1)
    everything: list[tuple[float, bool]] = []
    for number, records in enumerate(steps):
        judged.see(
            torch.tensor([s for s, _ in records], dtype=torch.float64), torch.tensor([float(y) for _, y in records])
        )
        everything += records
        if number % 3 == 0:
            judged.take_in()
    judged.take_in()
    last = everything[-window:]
    assert judged.n_seen == len(everything)
    if not last:
        assert math.isnan(judged.log_loss())
        return
    logits = torch.tensor([s for s, _ in last], dtype=torch.float64)
    labels = torch.tensor([y for _, y in last])
    expected = float(F.binary_cross_entropy_with_logits(logits, labels.double()))
    assert judged.log_loss() == pytest.approx(expected, rel=1e-9, abs=1e-12)
    if 0 < int(labels.sum()) < len(last):
        assert judged.auc() == pytest.approx(float(oracle.roc_auc_score(labels.numpy(), logits.numpy())), abs=1e-12)
    else:
        assert math.isnan(judged.auc())


@pytest.mark.parametrize("kind", ["logits", "probabilities", "log_probabilities"])
def test_predictions_of_any_kind_have_their_criterions_loss(kind: Any) -> None:
    logits, labels = torch.randn(40, 2, dtype=torch.float64), torch.randint(2, (40,))
    judged = Prequential(100)
    judged.kind = kind
    given = {"logits": logits, "probabilities": logits.softmax(1), "log_probabilities": logits.log_softmax(1)}[kind]
    judged.see(given, labels)
    assert judged.take_in() == [pytest.approx(float(F.cross_entropy(logits, labels)), rel=1e-9)]


def test_a_certain_probability_costs_what_torch_says() -> None:
    judged = Prequential(10)
    judged.kind = "probabilities"
    probabilities, labels = torch.tensor([0.0, 1.0, 1.0]), torch.tensor([1.0, 1.0, 0.0])
    judged.see(probabilities, labels)
    assert judged.take_in() == [pytest.approx(float(F.binary_cross_entropy(probabilities, labels)))]


def test_predictions_that_are_no_numbers_are_counted_and_left_out() -> None:
    judged = Prequential(10)
    judged.see(torch.tensor([0.0, math.nan, math.inf, 2.0]), torch.tensor([0.0, 1.0, 1.0, 1.0]))
    judged.see(torch.tensor([math.nan]), torch.tensor([1.0]))
    means = judged.take_in()
    assert means[0] == pytest.approx((math.log(2) + math.log1p(math.exp(-2))) / 2)
    assert math.isnan(means[1])
    assert (judged.n_seen, judged.n_nonfinite, judged.auc()) == (2, 3, 1.0)


def test_a_model_that_has_died_is_no_longer_judged_by_what_it_predicted_before() -> None:
    judged = Prequential(10)
    judged.see(torch.tensor([-2.0, 2.0] * 5), torch.tensor([0.0, 1.0] * 5))
    judged.see(torch.full((8,), math.nan), torch.ones(8))
    judged.take_in()
    assert judged.auc() == 1.0  # of the two that are left
    judged.see(torch.full((2,), math.inf), torch.ones(2))
    judged.take_in()
    assert math.isnan(judged.auc())
    assert math.isnan(judged.log_loss())


@pytest.mark.parametrize("shape", [(4, 3), (4, 1, 1), ()])
def test_other_shapes_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="predictions of shape"):
        Prequential().see(torch.zeros(shape), torch.zeros(4))
    with pytest.raises(ValueError, match="one label per prediction"):
        Prequential().see(torch.zeros(4), torch.zeros(3))


def test_nothing_waits_for_the_device_between_two_looks() -> None:
    judged = Prequential(100)
    with forbid_host_reads():
        judged.see(torch.randn(8, 1, requires_grad=True), torch.ones(8, 1))


def test_the_state_is_all_there_is() -> None:
    one, other = Prequential(50), Prequential(50)
    draw = torch.Generator().manual_seed(1)
    for step in range(9):
        scores, labels = torch.randn(9, generator=draw), (torch.rand(9, generator=draw) < 0.4).float()
        one.see(scores, labels)
        with pytest.raises(RuntimeError, match="call take_in"):
            one.state_dict()
        one.take_in()
        if step == 4:
            other.load_state_dict(one.state_dict())
        elif step > 4:
            other.see(scores, labels)
            other.take_in()
    assert (one.auc(), one.log_loss(), one.n_seen) == (other.auc(), other.log_loss(), other.n_seen)
    with pytest.raises(ValueError, match="`window` must be 50"):
        Prequential(51).load_state_dict(one.state_dict())


def test_a_step_is_judged_by_the_weights_before_its_update() -> None:
    network = nn.Linear(2, 1)
    x, y = torch.randn(30, 8, 2), (torch.rand(30, 8, 1) < 0.5).float()
    twin = nn.Linear(2, 1)
    twin.load_state_dict(network.state_dict())
    optimizer, predictions = torch.optim.SGD(twin.parameters(), lr=0.5, fused=True), []
    for a, b in zip(x, y, strict=True):
        optimizer.zero_grad()
        output = twin(a)
        predictions.append(output.detach())
        F.binary_cross_entropy_with_logits(output, b).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    look = AtStepEnd(lambda state: dict(state.online))
    model = RecModel(network, nn.BCEWithLogitsLoss(), torch.optim.SGD(network.parameters(), lr=0.5, fused=True))
    model.online_train(zip(x, y, strict=True), look, prequential=Prequential(80, every=10))
    assert "online.auc" not in look.values[8]
    for end in (10, 20, 30):
        scores, labels = torch.cat(predictions[end - 10 : end]).reshape(-1), y[end - 10 : end].reshape(-1)
        found = look.values[end - 1]
        assert found["online.auc"] == pytest.approx(oracle.roc_auc_score(labels, scores), abs=1e-12)
        expected = float(F.binary_cross_entropy_with_logits(scores.double(), labels.double()))
        assert found["online.log_loss"] == pytest.approx(expected, rel=1e-9)


def test_a_network_that_returns_its_loss_returns_what_is_to_be_judged_too() -> None:
    class WithLoss(nn.Module):
        def __init__(self, judged: bool) -> None:
            super().__init__()
            self.inner, self.judged = nn.Linear(2, 1), judged

        def forward(self, x: Tensor, y: Tensor) -> Any:
            output = self.inner(x)
            loss = F.binary_cross_entropy_with_logits(output, y)
            return (loss, output, y) if self.judged else loss

    batch = torch.randn(4, 2), torch.tensor([[0.0], [1.0], [0.0], [1.0]])
    for judged in (True, False):
        network = WithLoss(judged)
        model = RecModel(network, optimizer=torch.optim.SGD(network.parameters(), lr=0.1, fused=True))
        assert model.online_train(iter([batch] * 3)).n_steps == 3
        if judged:
            assert 0 <= model.online_train(iter([batch] * 3), prequential=Prequential(8)).auc <= 1
        else:
            with pytest.raises(ValueError, match="needs a prediction and a label"):
                model.online_train(iter([batch]), prequential=Prequential(8))
