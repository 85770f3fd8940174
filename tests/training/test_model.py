"""Model: the same bits as the loops it replaces, metrics as scikit-learn has them, and every argument in effect."""

from __future__ import annotations

import copy
import itertools
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from sklearn import metrics as oracle
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import SGD
from torch.utils.data import DataLoader, DistributedSampler, IterableDataset, TensorDataset
from torchmetrics.classification import MulticlassF1Score

from tests.kit.callbacks import AtStepEnd, Noting
from tests.kit.chains import assert_same_bits, chain
from tests.kit.configurations import freezing
from tests.scaling.host_reads import forbid_host_reads
from workbench.config import BoostConfig, ConfigError
from workbench.methods.loss_scale_group.method import GroupLossScaleManager
from workbench.mindspore.callbacks import Callback
from workbench.nn import DynamicLossScaleManager, DynamicLossScaleUpdateCell, FixedLossScaleManager, Model
from workbench.tasks.digits import ResNet
from workbench.training import BoostStep, apply

CE = nn.CrossEntropyLoss()
FREEZING = freezing(3)


def network(seed: int = 0) -> nn.Sequential:
    return chain(n_out=3, seed=seed)


def momentum(module: nn.Module) -> SGD:
    return SGD(module.parameters(), lr=0.1, momentum=0.9, fused=True)


def batches(n: int = 4) -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(1)
    sizes = (8, 5, 8, 1)[:n]
    return [(torch.randn(k, 4, generator=generator), torch.randint(3, (k,), generator=generator)) for k in sizes]


def trained_by_hand(
    net: nn.Module, epochs: int, data: list[Any] | None = None, compute_loss: Callable[[Any], Tensor] | None = None
) -> list[float]:
    """The plain loop of every tutorial."""
    optimizer, losses = momentum(net), []
    for batch in (data or batches()) * epochs:
        loss = compute_loss(batch) if compute_loss else F.cross_entropy(net(batch[0]), batch[1])
        losses.append(loss.item())
        torch.autograd.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
    return losses


def make(**arguments: Any) -> Model:
    net = network()
    return Model(**{"network": net, "loss_fn": CE, "optimizer": momentum(net), **arguments})


def outputs() -> AtStepEnd:
    return AtStepEnd(lambda state: state.net_outputs)


# Training


def test_training_has_the_bits_of_a_loop_written_by_hand() -> None:
    ours, by_hand, losses = network(), network(), AtStepEnd(lambda state: state.outcome.loss.item())
    Model(ours, CE, momentum(ours)).train(3, batches(), losses)
    expected = trained_by_hand(by_hand, 3)
    assert losses.values == expected
    assert_same_bits(ours, by_hand)


class Joint(nn.Module):
    """Takes several inputs and returns the loss itself."""

    def __init__(self) -> None:
        super().__init__()
        self.body = network()

    def forward(self, x: Tensor, offset: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(self.body(x + offset), y)


@pytest.mark.parametrize("kind", [tuple, list, dict])
def test_without_a_criterion_the_network_gets_all_items_and_returns_the_loss(kind: type) -> None:
    ours, by_hand = Joint(), Joint()
    triples = [(x, torch.full((1,), 0.5), y) for x, y in batches()]
    data = [dict(zip(("x", "offset", "y"), items, strict=True)) if kind is dict else kind(items) for items in triples]
    Model(ours, optimizer=momentum(ours)).train(2, data)
    trained_by_hand(by_hand, 2, triples, lambda items: by_hand(*items))
    assert_same_bits(ours, by_hand)


def test_what_was_frozen_is_frozen_again_when_training_goes_on() -> None:
    trains = Noting("on_train_step_begin", lambda state: next(state.network.parameters()).requires_grad)
    model = make(boost_config_dict=freezing(3, kind=0, p=0.0))
    for _ in range(2):
        model.train(1, batches(), trains)
    assert trains.values == [False] * 8


def test_training_called_again_goes_on_and_resumes_from_the_state_of_the_boosted_pair() -> None:
    straight, resumed = network(), network(seed=5)
    Model(straight, CE, momentum(straight), boost_config_dict=FREEZING).train(3, batches())
    first = network()
    model = Model(first, CE, momentum(first), boost_config_dict=FREEZING)
    model.train(1, batches())
    assert all(parameter.requires_grad for parameter in first.parameters())  # as before training
    second = Model(resumed, CE, momentum(resumed), boost_config_dict=FREEZING)
    second.boosted.load_state_dict(copy.deepcopy(model.boosted.state_dict()))
    for later in (model, second):
        later.train(3, batches(), initial_epoch=1)
    assert_same_bits(straight, first)
    assert_same_bits(straight, resumed)


def test_a_scheduler_on_the_optimizer_is_stepped_by_a_callback() -> None:
    ours, by_hand = network(), network()
    model = Model(ours, CE, momentum(ours))
    scheduler = torch.optim.lr_scheduler.ExponentialLR(model.optimizer, 0.5)
    model.train(1, batches(), Noting("on_train_step_end", lambda _: scheduler.step()))
    optimizer = momentum(by_hand)
    theirs = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    for x, y in batches():
        optimizer.zero_grad()
        torch.autograd.backward(F.cross_entropy(by_hand(x), y))
        optimizer.step()
        theirs.step()
    assert_same_bits(ours, by_hand)


def test_a_sampler_learns_which_epoch_it_is() -> None:
    x = torch.arange(12.0).reshape(12, 1)
    sampler = DistributedSampler(TensorDataset(x, x), num_replicas=2, rank=0, shuffle=True, seed=3)  # type: ignore[var-annotated]
    loader = DataLoader(TensorDataset(x, x), batch_size=3, sampler=sampler)
    seen = AtStepEnd(lambda state: state.train_dataset_element[0].flatten().tolist())
    net = nn.Linear(1, 1)
    Model(net, nn.MSELoss(), SGD(net.parameters(), lr=1e-4)).train(2, loader, seen)
    sampler.set_epoch(1)
    first, second = seen.values[:2], seen.values[2:]
    assert list(itertools.chain(*second)) == [float(index) for index in sampler]
    assert first != second


@pytest.mark.long
def test_a_compiled_network_trains_as_the_plain_one_does() -> None:
    plain, compiled = network(), network()
    Model(plain, CE, momentum(plain), boost_config_dict=FREEZING).train(2, batches())
    wrapped: Any = torch.compile(compiled, backend="eager")
    model = Model(wrapped, CE, momentum(compiled), {"acc"}, boost_config_dict=FREEZING)
    model.train(2, batches())
    assert_same_bits(plain, compiled)
    assert model.eval(batches()) == Model(plain, CE, metrics={"acc"}).eval(batches())


# Boosting


def test_freezing_at_level_o1_needs_an_optimizer_and_nothing_else() -> None:
    ours, theirs = network(), network()
    frozen = AtStepEnd(lambda state: state.outcome.frozen_groups)
    weights = [
        Noting(f"on_train_step_{moment}", lambda _: ours[0].weight.detach().clone()) for moment in ("begin", "end")
    ]
    model = Model(ours, CE, momentum(ours), boost_level="O1", boost_config_dict=FREEZING)
    model.train(3, batches(), [frozen, *weights])
    unmoved = list(map(torch.equal, weights[0].values, weights[1].values))
    assert unmoved == [n > 0 for n in frozen.values]
    assert {True, False} == set(unmoved)
    boosted = apply(FREEZING, theirs, momentum(theirs), level="O1")
    for x, y in batches() * 3:
        boosted.backward(F.cross_entropy(boosted.model(x), y))
        boosted.step()
    assert_same_bits(ours, theirs)


def convolutional() -> ResNet:
    torch.manual_seed(0)
    return ResNet(widths=(4, 8), n_blocks=2)


def test_level_o1_changes_the_network_that_is_evaluated_and_used_to_predict() -> None:
    net = convolutional()
    config = {"grad_freeze": {"param_groups": 3}}
    model = Model(net, CE, momentum(net), {"acc"}, boost_level="O1", boost_config_dict=config)
    assert model.boosted.plan.in_effect() == ("less_bn", "grad_freeze")
    data = [(torch.randn(4, 1, 8, 8), torch.tensor([0, 1, 2, 0]))]
    model.train(1, data)
    assert model.eval(data)["acc"] == (model.predict(data[0][0]).argmax(1) == data[0][1]).float().mean().item()
    assert model.predict_network is net


def test_an_evaluation_network_of_its_own_is_prepared_as_the_network_was() -> None:
    net, apart = convolutional(), convolutional()
    config = {"less_bn": {"fn_flag": False}, "grad_freeze": {"param_groups": 3}}
    model = Model(net, CE, momentum(net), {"acc"}, apart, boost_level="O1", boost_config_dict=config)
    assert sorted(apart.state_dict()) == sorted(net.state_dict())
    assert model.eval_network is apart


# Mixed precision and loss scale


def test_float16_with_a_dynamic_scale_has_the_bits_of_torchs_gradient_scaler() -> None:
    ours, theirs, steps = network(), network(), outputs()
    manager = DynamicLossScaleManager(init_loss_scale=2.0**24, scale_factor=2, scale_window=3)
    model = Model(ours, CE, momentum(ours), amp_level="O2", loss_scale_manager=manager)
    model.train(8, batches(), steps)
    optimizer = SGD(theirs.parameters(), lr=0.1, momentum=0.9)  # not fused: torch skips on the host
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**24, growth_factor=2, backoff_factor=0.5, growth_interval=3)
    scales = []
    for x, y in batches() * 8:
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.float16):
            loss = F.cross_entropy(theirs(x), y)
        torch.autograd.backward(scaler.scale(loss))
        scaler.step(optimizer)
        scaler.update()
        scales.append(scaler.get_scale())
    assert_same_bits(ours, theirs)
    assert [step.loss_scale.item() for step in steps.values] == scales
    assert {bool(step.overflow) for step in steps.values} == {True, False}
    assert all(isinstance(step, BoostStep) for step in steps.values)


@pytest.mark.parametrize("drop", [True, False])
def test_an_overflow_is_dropped_or_applied_as_the_manager_says(drop: bool) -> None:
    net, steps = network(), outputs()
    before = copy.deepcopy(net)
    manager = FixedLossScaleManager(2.0**127, drop_overflow_update=drop)
    Model(net, nn.MSELoss(), momentum(net), loss_scale_manager=manager).train(
        1, [(torch.randn(8, 4), torch.full((8, 3), 1e3))], steps
    )
    if drop:
        assert bool(steps.values[0].overflow)
        assert_same_bits(net, before)
    else:
        assert not all(value.isfinite().all() for value in net.parameters())


def test_the_configuration_of_the_scale_gives_way_to_the_manager() -> None:
    config = {"loss_scale": {"kind": "fixed", "init": 8.0}}
    assert make(boost_config_dict=config).boosted.loss_scale.item() == 8.0
    model = make(loss_scale_manager=DynamicLossScaleManager(64.0), boost_config_dict=config)
    assert model.boosted.loss_scale.item() == 64.0
    assert model.boosted.loss_scaling.adapts


def test_group_scales_come_from_their_manager_and_are_divided_out() -> None:
    ours, by_hand, steps = network(), network(), outputs()
    manager = GroupLossScaleManager([4096.0, 16.0], [["0", "2"], ["30"]], growth_window=100)
    config = {"boost": {"mode": "manual", "loss_scale_group": True, "less_bn": False, "grad_freeze": False}}
    model = Model(ours, CE, momentum(ours), boost_level="O1", loss_scale_manager=manager, boost_config_dict=config)
    model.train(2, batches(), steps)
    trained_by_hand(by_hand, 2)
    assert_same_bits(ours, by_hand)  # powers of two cost no bit
    assert model.boosted.loss_scaling.group_scales.tolist() == [4096.0, 16.0]
    assert steps.values[-1].loss_scale.item() == 4096.0


def test_group_scales_without_a_manager_are_found() -> None:
    config = {"boost": {"mode": "manual", "loss_scale_group": True}, "loss_scale": {"groups": 2}}
    model = make(amp_level="O2", boost_config_dict=config)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # this little network may well need one group only
        model.train(1, batches())
    assert model.boosted.loss_scaling.group_scales is not None


def test_training_waits_for_nothing_on_the_device() -> None:
    model = make(loss_scale_manager=DynamicLossScaleManager(8.0), boost_config_dict=FREEZING)
    data = batches()
    model.train(2, data)  # whatever is built once
    with forbid_host_reads():
        model.train(3, data, Callback())


@pytest.mark.parametrize(
    ("level", "keep", "dtype"),
    [
        ("O2", None, torch.float32),
        ("O2", False, torch.float16),
        ("O3", None, torch.float16),
        ("O3", True, torch.float32),
    ],
)
def test_batch_norm_has_the_format_of_the_level_or_of_the_argument(
    level: str, keep: bool | None, dtype: torch.dtype
) -> None:
    net = convolutional()
    model = Model(net, CE, momentum(net), amp_level=level, keep_batchnorm_fp32=keep)
    assert net.bn1.weight.dtype == dtype
    assert model.predict(torch.randn(2, 1, 8, 8)).dtype == torch.float32


def test_precision_is_in_effect_without_an_optimizer_too() -> None:
    net, x = network(), torch.randn(4, 4)
    with torch.autocast("cpu", torch.float16), torch.no_grad():
        expected = net(x)
    found = Model(net, CE, amp_level="O2").predict(x)
    assert expected.dtype == torch.float16
    assert torch.equal(found, expected.float())
    Model(net, CE, amp_level="O3")
    assert net[0].weight.dtype == torch.float16


def test_an_evaluation_network_of_its_own_computes_in_the_same_precision() -> None:
    net, apart = network(), Judge(network(), "loss pred label")
    Model(net, CE, momentum(net), {"acc"}, apart, amp_level="O3")
    assert next(apart.parameters()).dtype == torch.float16


def test_automatic_precision_is_none_on_a_cpu() -> None:
    assert make(amp_level="auto").boosted.precision.level == "O0"


# Evaluation


@pytest.fixture
def judged() -> tuple[nn.Sequential, Tensor, Tensor]:
    """A network with all its logits and targets, over uneven batches."""
    net = network()
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.mul_(3)
        return net, torch.cat([net(x) for x, _ in batches()]), torch.cat([y for _, y in batches()])


def test_metrics_count_every_sample_once(judged: tuple[nn.Sequential, Tensor, Tensor]) -> None:
    net, logits, targets = judged
    result = Model(net, CE, metrics={"acc", "auc", "loss"}).eval(batches())
    auc = oracle.roc_auc_score(targets, logits.softmax(1), multi_class="ovr")
    assert list(result) == ["acc", "auc", "loss"]
    assert result["acc"] == oracle.accuracy_score(targets, logits.argmax(1))
    assert result["auc"] == pytest.approx(auc)
    assert result["loss"] == pytest.approx(F.cross_entropy(logits, targets).item())


def test_metrics_may_be_objects_and_have_names_of_their_own(judged: tuple[nn.Sequential, Tensor, Tensor]) -> None:
    net, logits, targets = judged
    f1 = oracle.f1_score(targets, logits.argmax(1), average="macro")
    metric = MulticlassF1Score(num_classes=3)
    by_list = Model(net, CE, metrics=["accuracy", metric])
    by_name = Model(net, CE, metrics={"mine": metric, "other": "f1"})
    for _ in range(2):  # nothing is carried over from one evaluation to the next
        assert by_list.eval(batches())["MulticlassF1Score"] == pytest.approx(f1)
        assert by_name.eval(batches()) == pytest.approx({"mine": f1, "other": f1})


def test_regression_is_measured_without_a_criterion_too() -> None:
    data = [(torch.randn(5, 4), torch.randn(5, 2)) for _ in range(3)]
    net = nn.Linear(4, 2)
    with torch.no_grad():
        expected = oracle.mean_squared_error(torch.cat([y for _, y in data]), torch.cat([net(x) for x, _ in data]))
    assert Model(net, nn.MSELoss(), metrics={"mse"}).eval(data)["mse"] == pytest.approx(expected, rel=1e-5)


class Judge(nn.Module):
    """An evaluation network: what it returns and in which order is the test's choice."""

    def __init__(self, body: nn.Module, order: str) -> None:
        super().__init__()
        self.body, self.order = body, order

    def forward(self, x: Tensor, y: Tensor) -> Any:
        prediction = self.body(x)
        found = {"loss": F.cross_entropy(prediction, y), "pred": prediction, "label": y, "more": x}
        parts = tuple(found[name] for name in self.order.split())
        return parts if len(parts) > 1 else parts[0]


@pytest.mark.parametrize(
    ("order", "indexes", "metrics"),
    [
        ("loss pred label", None, {"acc", "loss"}),
        ("label more pred loss", [3, 2, 0], {"acc", "loss"}),
        ("pred label", None, {"acc"}),
        ("loss", None, {"loss"}),
    ],
)
def test_an_evaluation_network_says_loss_prediction_and_label(
    judged: tuple[nn.Sequential, Tensor, Tensor], order: str, indexes: list[int] | None, metrics: set[str]
) -> None:
    net, logits, targets = judged
    result = Model(net, metrics=metrics, eval_network=Judge(net, order), eval_indexes=indexes).eval(batches())
    expected = {"acc": oracle.accuracy_score(targets, logits.argmax(1)), "loss": F.cross_entropy(logits, targets)}
    assert result == pytest.approx({name: float(expected[name]) for name in metrics})


def test_the_loss_is_measured_where_the_network_returns_it() -> None:
    net = Joint()
    data = [(x, torch.zeros(1), y) for x, y in batches()]
    with torch.no_grad():
        every = F.cross_entropy(torch.cat([net.body(x) for x, _, _ in data]), torch.cat([y for _, _, y in data]))
    assert Model(net, metrics={"loss"}).eval(data)["loss"] == pytest.approx(every.item())


class NoisyPairs:
    """Draws from the global generator while it is read, as augmentation does."""

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        for x, y in batches():
            yield x + torch.randn_like(x), y


def test_an_evaluation_leaves_no_trace_on_training() -> None:
    def trained(evaluate: bool) -> nn.Module:
        net = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 3))
        torch.manual_seed(0)
        for module in net.modules():
            if isinstance(module, nn.Linear):
                module.reset_parameters()
        model = Model(net, CE, momentum(net), metrics={"acc", "loss"})
        data = batches(3)
        model.fit(4, data, NoisyPairs() if evaluate else None)
        if evaluate:
            model.predict(data[0][0])
            assert net.training
        model.train(1, data)
        return net

    assert_same_bits(trained(evaluate=True), trained(evaluate=False))


def test_prediction_is_in_evaluation_mode_and_without_gradients() -> None:
    net = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5))
    x = torch.randn(3, 4)
    found = Model(net, nn.MSELoss()).predict(x)
    assert torch.equal(found, net[0](x))
    assert not found.requires_grad


def test_fit_hands_its_results_to_callbacks_in_the_epochs_that_are_due() -> None:
    seen = Noting("on_train_epoch_end", lambda state: dict(state.eval_results))
    model = make(metrics={"loss"})
    model.fit(4, batches(), batches(), valid_frequency=[1, 4], callbacks=seen)
    assert [bool(found) for found in seen.values] == [True, False, False, True]
    assert seen.values[-1] == model.eval(batches())


# Wrong input


class Lengthless(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        return iter(batches())


def test_a_dataset_needs_no_length() -> None:
    model, lengths = make(), Noting("on_train_begin", lambda state: state.batch_num)
    model.train(1, DataLoader(Lengthless(), batch_size=None), lengths)
    model.train(1, batches(), lengths)
    assert lengths.values == [None, 4]


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"network": 3}, TypeError, "`network` must be a torch.nn.Module, got int"),
        ({"network": nn.Linear}, TypeError, "`network` must be a torch.nn.Module, got the class Linear"),
        ({"loss_fn": nn.MSELoss}, TypeError, r"`loss_fn` must be an object, got the class MSELoss; write MSELoss\(\)"),
        ({"loss_fn": "mse"}, TypeError, "`loss_fn` must be a criterion or None, got str"),
        ({"optimizer": "sgd"}, TypeError, "`optimizer` must be a torch.optim.Optimizer or None, got str"),
        ({"metrics": "acc"}, TypeError, "`metrics` must be a set, list or dict .*, got 'acc'"),
        ({"metrics": {1: "acc"}}, TypeError, "`metrics` must have texts as keys, got 1"),
        ({"metrics": {"acuracy"}}, ValueError, "`metrics`: .*did you mean 'accuracy'"),
        ({"metrics": [MulticlassF1Score]}, ValueError, "`metrics`: .*got the class MulticlassF1Score"),
        ({"metrics": ["acc", "acc"]}, ValueError, "`metrics` holds 'acc' twice"),
        ({"metrics": {"acc"}, "loss_fn": None}, ValueError, "`metrics` holds 'acc', which needs a prediction"),
        ({"eval_network": 3}, TypeError, "`eval_network` must be a torch.nn.Module or None, got int"),
        ({"eval_indexes": [0, 1, 2]}, ValueError, "`eval_indexes` says where .*there is none"),
        ({"eval_indexes": [0, 1], "eval_network": network()}, ValueError, "`eval_indexes` must be three positions"),
        ({"eval_indexes": [0, 1, -1], "eval_network": network()}, ValueError, "`eval_indexes` must be three positions"),
        ({"amp_level": "O1"}, ValueError, "`amp_level` must be one of 'O0', 'O2', 'O3', 'auto', got 'O1'"),
        ({"amp_level": 2}, TypeError, "`amp_level` must be a text, got 2"),
        ({"boost_level": "O3"}, ValueError, "`boost_level` must be one of 'O0', 'O1', 'O2', got 'O3'"),
        ({"boost_level": None}, TypeError, "`boost_level` must be a text, got None"),
        ({"loss_scale_manager": 128}, TypeError, "`loss_scale_manager` must be a FixedLossScaleManager.*, got int"),
        (
            {"loss_scale_manager": DynamicLossScaleUpdateCell(8.0, 2, 10)},
            TypeError,
            "`loss_scale_manager` must be a .*, got DynamicLossScaleUpdateCell",
        ),
        ({"keep_batchnorm_fp32": 1}, TypeError, "`keep_batchnorm_fp32` must be a bool or None, got int"),
        ({"boost_config_dict": 3}, TypeError, "`boost_config_dict` must be a BoostConfig or a dict or .*, got int"),
        ({"boost_config_dict": {"boost": {"mode": "Auto"}}}, ConfigError, "boost.mode"),
        (
            {
                "boost_config_dict": {"boost": {"mode": "manual", "loss_scale_group": True}},
                "loss_scale_manager": DynamicLossScaleManager(),
            },
            ValueError,
            "`loss_scale_manager` must be a GroupLossScaleManager when `boost.loss_scale_group` is on",
        ),
    ],
)
def test_an_argument_that_makes_no_sense_is_named(
    arguments: dict[str, Any], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words) as caught:
        make(**arguments)
    assert "\n" not in str(caught.value)


X, Y = batches()[0]


def judged_by(order: str, *metrics: str, **arguments: Any) -> Callable[[], Any]:
    return lambda: make(metrics=set(metrics), eval_network=Judge(network(), order), **arguments).eval(batches())


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: make(optimizer=None).train(1, batches()), ValueError, "`optimizer` is None, and training needs one"),
        (lambda: make().eval(batches()), ValueError, "`metrics` is empty, and eval needs at least one"),
        (lambda: make().fit(1, batches(), batches()), ValueError, "`metrics` is empty, and fit needs at least one"),
        (lambda: make().train(0, batches()), ValueError, "`epoch` must be at least 1, got 0"),
        (lambda: make().train(1.5, batches()), TypeError, "`epoch` must be a whole number, got 1.5"),  # type: ignore[arg-type]
        (lambda: make().train(2, batches(), initial_epoch=2), ValueError, "`initial_epoch` must be less than `epoch`"),
        (lambda: make().train(1, X), TypeError, "`train_dataset` must be an iterable of batches, got Tensor"),
        (lambda: make().train(1, 3), TypeError, "`train_dataset` must be an iterable of batches, got int"),  # type: ignore[arg-type]
        (lambda: make().train(1, batches(), sink_size=0), ValueError, "`sink_size` must be -1 or at least 1, got 0"),
        (lambda: make().train(1, []), ValueError, "`train_dataset` held no batch in epoch 1"),
        (lambda: make().train(2, iter(batches())), ValueError, "`train_dataset` held no batch in epoch 2; an iterator"),
        (lambda: make().train(1, [(X, Y, Y)]), ValueError, r"every batch must be a pair \(data, label\), got 3 items"),
        (lambda: make().train(1, [X]), ValueError, "every batch must be a pair .*, got Tensor"),
        (
            lambda: make(loss_fn=nn.CrossEntropyLoss(reduction="none")).train(1, batches()),
            ValueError,
            r"`loss_fn` must return one number as the loss, got shape \[8\]; average it",
        ),
        (lambda: make(loss_fn=None).train(1, [X]), ValueError, r"`network` must return one number .* \[8, 3\]"),
        (
            lambda: make(loss_fn=lambda a, b: 3.0).train(1, batches()),
            TypeError,
            "`loss_fn` must return the loss as a tensor, got float",
        ),
        (lambda: make(metrics={"acc"}).eval([]), ValueError, "`valid_dataset` held no batch"),
        (lambda: make(metrics={"acc"}).eval(3), TypeError, "`valid_dataset` must be an iterable of batches, got int"),  # type: ignore[arg-type]
        (
            lambda: make(metrics={"acc"}).fit(1, batches(), batches(), valid_frequency=0),
            ValueError,
            "`valid_frequency` must be a number of epochs",
        ),
        (
            judged_by("loss", "acc"),
            ValueError,
            "metric 'acc' needs a prediction and a label, but `eval_network` returned a",
        ),
        (judged_by("pred label", "loss"), ValueError, "metric 'loss' needs a loss, got none"),
        (judged_by("loss pred label more", "acc"), ValueError, "`eval_network` returned 4 outputs; say with `eval_ind"),
        (
            judged_by("loss pred label", "acc", eval_indexes=[0, 1, 3]),
            ValueError,
            "`eval_indexes` must be positions in the 3 outputs",
        ),
    ],
)
def test_a_call_that_makes_no_sense_is_refused(call: Callable[[], Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words) as caught:
        call()
    assert "\n" not in str(caught.value)


def test_boosting_without_an_optimizer_is_told() -> None:
    with pytest.warns(UserWarning, match="boosting has no effect without an optimizer"):
        Model(convolutional(), CE, boost_level="O1")


def test_it_says_what_it_is() -> None:
    net = network()
    assert repr(Model(net, CE)) == "Model(Sequential, no optimizer)"
    scaled = make(amp_level="O2")
    assert repr(scaled) == "Model(Sequential, amp O2 float16 + dynamic loss scale)"
    assert scaled.boosted.loss_scale.item() == BoostConfig().loss_scale.init
    model = make(metrics={"acc"})
    assert model.eval_network is not None
    x, y = batches()[0]
    assert torch.equal(model.train_network(x, y), CE(model.predict_network(x), y))
    assert Model(net).eval_network is None
    assert Model(net).train_network is net
