"""Smoothed labels and averaged weights: what is trained on, what is evaluated, and what is left alone."""

from __future__ import annotations

import copy
import functools
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations
from torch.optim import SGD

import workbench
from tests.kit.runs import train_and_watch
from tests.kit.tasks import task_of
from tests.kit.twins import assert_same, through_file
from tests.scaling.host_reads import forbid_host_reads
from workbench.config import BoostConfig
from workbench.methods.regularization.method import decay_at, smoothed, why_no_smoothing
from workbench.training import Boosted, apply

EMA = {"boost": {"mode": "disable_all"}, "regularization": {"weight_average": "ema", "decay": 0.5}}
SMOOTH = {"boost": {"mode": "disable_all"}, "regularization": {"label_smoothing": 0.2}}


def batches(n: int = 8) -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(n, 16, 4, generator=generator)
    return [(x, (x.sum(1) > 0).long()) for x in inputs]


def network(dtype: torch.dtype = torch.float32) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 2)).to(dtype)


def step(boosted: Boosted, batch: tuple[Tensor, Tensor], factor: float = 1.0) -> None:
    with boosted.autocast():
        loss = factor * F.cross_entropy(boosted.model(batch[0]), batch[1])
    boosted.backward(loss)
    boosted.step()


def boosted_with(config: dict[str, Any], model: nn.Module) -> Boosted:
    return apply(config, model, SGD(model.parameters(), lr=0.5, momentum=0.9, fused=True), level="O0")


def trained(model: nn.Module) -> Boosted:
    boosted = boosted_with(EMA, model)
    for batch in batches():
        step(boosted, batch)
    return boosted


def state(model: nn.Module) -> list[Tensor]:
    return [value.detach().clone() for value in model.state_dict().values()]


# Labels


class Weighted(nn.CrossEntropyLoss):
    def forward(self, input: Tensor, target: Tensor) -> Tensor:  # torch's name
        return 2 * super().forward(input, target)


@pytest.mark.parametrize(
    ("criterion", "reason"),
    [
        (nn.CrossEntropyLoss(), ""),
        (F.cross_entropy, ""),
        (functools.partial(F.cross_entropy, ignore_index=-1), ""),
        (None, "no criterion is known whose labels it could smooth; pass `criterion`"),
        (nn.BCEWithLogitsLoss(), "BCEWithLogitsLoss has no `label_smoothing` to set"),
        (F.mse_loss, "mse_loss has no `label_smoothing` to set"),
        (Weighted(), "Weighted has a forward of its own"),
        (lambda model, batch: model(batch).sum(), "the loss is a function (model, batch); labels of "),
    ],
)
def test_a_criterion_says_whether_its_labels_can_be_smoothed(criterion: Any, reason: str) -> None:
    found = why_no_smoothing(criterion)
    assert found.startswith(reason)
    assert bool(found) == bool(reason)


@pytest.mark.parametrize("form", ["module", "function", "partial"])
def test_smoothing_is_torchs_own_and_leaves_the_given_criterion_as_it_is(form: str) -> None:
    weight = torch.tensor([1.0, 3.0])
    given: Any = {
        "module": nn.CrossEntropyLoss(weight=weight),
        "function": F.cross_entropy,
        "partial": functools.partial(F.cross_entropy, weight=weight),
    }[form]
    scores, labels = torch.randn(5, 2, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 1, 1, 0, 1])
    before = given(scores, labels)
    wanted = F.cross_entropy(scores, labels, None if form == "function" else weight, label_smoothing=0.3)
    assert torch.equal(smoothed(given, 0.3)(scores, labels), wanted)
    assert torch.equal(given(scores, labels), before)
    assert not torch.equal(before, wanted)


def test_training_sees_smoothed_labels_and_the_evaluation_does_not() -> None:
    smooth, steps = train_and_watch(
        task_of(network, batches(), evaluate=batches(3)), BoostConfig.from_dict(SMOOTH), steps=40
    )
    model, by_hand = network(), []
    optimizer = SGD(model.parameters(), lr=0.1, fused=True)
    for x, y in batches() * 5:
        loss = F.cross_entropy(model(x), y, label_smoothing=0.2)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        by_hand.append(loss.item())
    assert [record.loss for record in steps] == by_hand
    model.eval()
    with torch.no_grad():
        plain = torch.stack([F.cross_entropy(model(x), y) for x, y in batches(3)]).mean()
    assert smooth.metric == pytest.approx(plain.item(), rel=1e-6)


def test_a_loss_of_model_and_batch_keeps_its_labels_and_says_so() -> None:
    def own(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        return F.cross_entropy(model(batch[0]), batch[1])

    task = task_of(network, batches(), loss=own)
    with pytest.warns(UserWarning, match=r"section regularization is not in effect because the loss is a function"):
        result = workbench.train(task, BoostConfig.from_dict(SMOOTH), level="O0", steps=4, out=None)
    assert result.plan.in_effect() == ()


def test_the_average_acts_where_only_the_labels_cannot_be_smoothed() -> None:
    both = BoostConfig.from_dict({**EMA, "regularization": {"weight_average": "ema", "label_smoothing": 0.1}})
    model = network()
    with pytest.warns(UserWarning, match=r"`regularization.label_smoothing` is not in effect because MSELoss has no"):
        boosted = apply(both, model, SGD(model.parameters(), lr=0.1), criterion=nn.MSELoss(), level="O0")
    assert boosted.plan.in_effect() == ("regularization",)
    assert "regularization.label_smoothing" not in boosted.plan.parameters_in_effect()


# Weights


def test_the_average_is_the_formula_over_parameters_and_statistics() -> None:
    model = network()
    boosted = boosted_with(EMA, model)
    wanted = {name: value.double() for name, value in model.state_dict().items()}
    for t, batch in enumerate(batches()):
        step(boosted, batch)
        keep = min(0.5, (1 + t) / (10 + t))
        assert keep == decay_at(t, 0.5)
        for name, value in model.state_dict().items():
            wanted[name] = keep * wanted[name] + (1 - keep) * value.double()
    as_trained = state(model)
    for pair in (boosted, copy.deepcopy(boosted)):
        with pair.evaluating():
            for name, value in pair.model.state_dict().items():
                if value.is_floating_point():
                    torch.testing.assert_close(value.double(), wanted[name], rtol=1e-5, atol=1e-6)
                else:
                    assert int(value) == 8  # the model's own number of batches
        assert all(torch.equal(one, other) for one, other in zip(state(pair.model), as_trained, strict=True))


class Masked(nn.Module):
    """Has buffers of every kind: a mask that has no average, one expanded in memory, statistics, a counter."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mask", torch.triu(torch.full((6, 6), float("-inf")), 1))
        self.inner = network()
        self.register_buffer("offset", torch.ones(1).expand(2), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.inner[2](torch.softmax(self.inner[:2](x) @ self.mask.exp(), -1)) + self.offset


def test_buffers_other_than_statistics_are_the_models_own() -> None:
    model = Masked()
    boosted = trained(model)
    own = {name: value.clone() for name, value in model.state_dict().items()}
    with boosted.evaluating():
        assert torch.equal(model.mask, own["mask"])
        assert torch.equal(model.offset, torch.ones(2))
        assert not torch.equal(model.inner[1].running_mean, own["inner.1.running_mean"])
    used = boosted.weights_to_use(model)
    assert all(value.isfinite().all() for name, value in used.items() if name != "mask")
    assert torch.equal(used["mask"], own["mask"])


class OfGraph(nn.Module):
    """A graph's convolution, whose neighbourhoods are a sparse buffer."""

    def __init__(self, neighbours: Tensor) -> None:
        super().__init__()
        self.register_buffer("neighbours", neighbours)
        self.inner = network()

    def forward(self, x: Tensor) -> Tensor:
        return torch.sparse.mm(self.neighbours, self.inner(x))


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta state")
@pytest.mark.filterwarnings("ignore:Sparse invariant checks are implicitly disabled")
@pytest.mark.parametrize("layout", [torch.sparse_coo, torch.sparse_csr])
def test_sparse_buffers_are_the_models_own(layout: torch.layout) -> None:
    dense = 0.5 * torch.eye(16) + 0.5 * torch.eye(16).roll(1, 0)
    models: list[OfGraph] = []

    def model() -> nn.Module:
        models.append(OfGraph(dense.to_sparse(layout=layout)))
        return models[-1]

    result, _ = train_and_watch(task_of(model, batches()), BoostConfig.from_dict(EMA), steps=8)
    assert 0.0 < result.metric < 0.69, "it learns"
    for one in models:
        assert one.neighbours.layout == layout
        assert torch.equal(one.neighbours.to_dense(), dense)


class Odd(nn.Module):
    """Has a parameter of whole numbers, a complex one, one that two layers share, and one computed of two others."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.calls = nn.Parameter(torch.tensor([3, 4]), requires_grad=False)
        self.wave = nn.Parameter(torch.randn(4, dtype=torch.complex64))
        self.first, self.last = parametrizations.weight_norm(nn.Linear(4, 4)), nn.Linear(4, 2)
        self.tied = nn.Linear(4, 4)
        self.tied.bias = self.first.bias

    def forward(self, x: Tensor) -> Tensor:
        waves = torch.fft.ifft(torch.fft.fft(self.first(x)) * self.wave).real
        return self.last(self.tied(waves))  # type: ignore[no-any-return]


def test_weights_of_every_kind_are_averaged_evaluated_and_resumed() -> None:
    model, x = Odd(), batches(1)[0][0]
    boosted = apply(EMA, model, SGD(model.parameters(), lr=0.1), level="O0")
    wanted = {name: value.detach().clone() for name, value in model.named_parameters()}
    saved = {}
    for t, batch in enumerate(batches()):
        if t == 4:
            saved = copy.deepcopy(boosted.state_dict())
        step(boosted, batch)
        for name, value in model.named_parameters():
            if name != "calls":
                wanted[name].lerp_(value.detach(), 1 - decay_at(t, 0.5))
    twin = Odd()
    resumed = apply(EMA, twin, SGD(twin.parameters(), lr=0.1), level="O0")
    resumed.load_state_dict(saved)
    for batch in batches()[4:]:
        step(resumed, batch)
    assert_same(twin, model)
    expected = torch.func.functional_call(model, wanted, (x,), tie_weights=True)
    for pair in (boosted, resumed):
        as_trained = state(pair.model)
        with pair.evaluating():
            torch.testing.assert_close(pair.model(x), expected)
            assert pair.model.calls.tolist() == [3, 4]
        assert all(torch.equal(one, other) for one, other in zip(state(pair.model), as_trained, strict=True))
    assert not torch.allclose(model(x), expected)


def test_an_earlier_checkpoint_with_averages_of_all_buffers_still_loads() -> None:
    model = Masked()
    boosted = trained(model)
    earlier = copy.deepcopy(boosted.state_dict())
    kept = earlier["methods"]["regularization"]
    n, buffers = len(list(model.parameters())), [torch.full((6, 6), torch.nan), torch.ones(2)]
    statistics = kept["averages"][n:]
    kept["averages"] = [*kept["averages"][:n], *buffers, *statistics]  # a module's own buffers before its children's
    twin = Masked()
    resumed = boosted_with(EMA, twin)
    resumed.load_state_dict(earlier)
    with boosted.evaluating(), resumed.evaluating():
        assert_same(twin, model)


def test_before_the_first_update_the_weights_themselves_are_evaluated() -> None:
    model = network()
    boosted = boosted_with(EMA, model)
    before = state(model)
    with boosted.evaluating():
        assert all(map(torch.equal, state(model), before))


def test_what_is_left_in_the_model_stays_until_training_goes_on_even_from_a_file() -> None:
    boosted = trained(network())
    with boosted.evaluating():
        average = state(boosted.model)
    boosted.leave_weights_to_use(boosted.model)
    resumed = boosted_with(EMA, network())
    resumed.load_state_dict(through_file(boosted.state_dict()))
    for one in (boosted, resumed):
        assert all(map(torch.equal, state(one.model), average))
        step(one, batches()[0])
        weights = state(one.model)
        with one.evaluating():
            assert not torch.equal(state(one.model)[0], weights[0])
        assert all(map(torch.equal, state(one.model), weights))


def test_an_update_that_overflowed_leaves_the_average_as_it_is() -> None:
    model = network()
    boosted = boosted_with({**EMA, "loss_scale": {"kind": "dynamic", "init": 1024.0}}, model)
    step(boosted, batches()[0])
    with boosted.evaluating():
        before = [parameter.detach().clone() for parameter in model.parameters()]
    step(boosted, batches()[1], factor=float("inf"))
    with boosted.evaluating():
        assert all(torch.equal(one, other) for one, other in zip(model.parameters(), before, strict=True))


def test_the_average_makes_no_host_wait_for_an_accelerators_flag() -> None:
    from workbench.methods.regularization.method import WeightAverage
    from workbench.methods.weight_update import CompleteWindow

    class OnAnAccelerator(Tensor):
        is_cpu = False

    def window(flag: float) -> CompleteWindow:
        found = torch.tensor(flag).as_subclass(OnAnAccelerator)
        return CompleteWindow(0, SGD(model.parameters()), torch.zeros(()), found, torch.ones(()), None, None)

    model = network()
    twins = [WeightAverage(model, 0.5) for _ in range(2)]
    for twin in twins:
        twin.before_update(window(0.0))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(1.0)
    with forbid_host_reads():
        twins[0].after_update(window(1.0))
        twins[1].after_update(window(0.0))
    averages = [twin.state_dict()["averages"] for twin in twins]
    for skipped, moved, value in zip(*averages, model.parameters(), strict=False):
        torch.testing.assert_close(skipped, value - 1.0)
        torch.testing.assert_close(moved, value - decay_at(0, 0.5))


def test_half_precision_weights_are_averaged_in_float32() -> None:
    model = nn.Linear(4, 2).to(torch.bfloat16)
    boosted = apply(EMA, model, SGD(model.parameters(), lr=1e-2), level="O0")
    for _ in range(3):
        loss = boosted.model(torch.ones(2, 4, dtype=torch.bfloat16)).float().sum()
        boosted.backward(loss)
        boosted.step()
    averages = boosted.state_dict()["methods"]["regularization"]["averages"]
    assert {average.dtype for average in averages} == {torch.float32}
    with boosted.evaluating():
        assert model.weight.dtype == torch.bfloat16
