"""What a network computes in evaluation stays: subclasses, weights read elsewhere, random choices, checkpoints."""

from __future__ import annotations

import contextlib
import copy
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations
from torch.optim import SGD

from tests.kit.twins import through_file
from tests.network_families import Block, DenseNet, Net, ResNet, learned
from tests.ranks import Ranks
from workbench.core import distributed as ranks
from workbench.methods.less_bn.acting import LessBNMethod
from workbench.methods.less_bn.batch_norm_folding import ChannelAffine
from workbench.methods.less_bn.method import LessBN, LessBNReport, reduce_batch_norms_
from workbench.training import AutoBoost, Boosted, apply

ONLY_LESS_BN = {
    "boost": {"mode": "manual", "less_bn": True, "grad_freeze": False},
    "less_bn": {"fn_flag": False},
    "amp": {"level": "O0"},
}
X = torch.randn(2, 3, 12, 12, generator=torch.Generator().manual_seed(5))


class NormAct(nn.BatchNorm2d):
    """BatchNorm, dropout and activation in one module, as in timm."""

    def __init__(self, width: int, act: type[nn.Module] = nn.ReLU, drop: float = 0.0) -> None:
        super().__init__(width)
        self.drop = nn.Dropout(drop) if drop else nn.Identity()
        self.act = act()

    def forward(self, input: Tensor) -> Tensor:  # torch's name
        y = F.batch_norm(
            input, self.running_mean, self.running_var, self.weight, self.bias, self.training, self.momentum, self.eps
        )
        return self.act(self.drop(y))


class NormThenRelu(nn.BatchNorm2d):
    """An activation that is no module: nothing shows what comes after the norm."""

    def forward(self, input: Tensor) -> Tensor:
        return F.relu(super().forward(input))


class Logged(nn.BatchNorm2d):
    """A forward of its own that computes the same."""

    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input)


class StandardizedConv(nn.Conv2d):
    """Convolution with weight standardisation."""

    def forward(self, input: Tensor) -> Tensor:
        deviation, mean = torch.std_mean(self.weight, (1, 2, 3), keepdim=True)
        return self._conv_forward(input, (self.weight - mean) / deviation, self.bias)


def change_of(model: nn.Module, *inputs: Any, **options: Any) -> tuple[float, LessBNReport]:
    """Reduce a model and return the largest change of its evaluation output, relative to the largest output."""
    inputs, training = inputs or (X,), model.training
    with torch.no_grad():
        before = model.eval()(*inputs)
        model.train(training)
        report = reduce_batch_norms_(model, **options)
        after = model.eval()(*inputs)
    return float((after - before).abs().max() / before.abs().max()), report


def test_a_norm_with_activation_is_split_and_only_its_norm_goes() -> None:
    net = learned(Net(Block(lambda width: NormAct(width, drop=0.1))))
    change, report = change_of(net)
    assert change < 1e-5
    assert report.removed == report.split == report.folded == ("block.bn1",)
    assert [type(part) for part in net.block.bn1] == [nn.Identity, nn.Dropout, nn.ReLU]
    assert [name for name, _ in net.block.bn1.named_children()] == ["norm", "drop", "act"]


def test_trained_parts_behind_a_split_norm_keep_their_names() -> None:
    net = learned(Net(Block(lambda width: NormAct(width, act=nn.PReLU), StandardizedConv)))
    change, report = change_of(net)
    assert change < 1e-5
    assert report.split == report.affine == ("block.bn1",)
    assert {"block.bn1.act.weight", "block.bn1.norm.scale"} <= set(net.state_dict())


class ReadsConvolution(Block):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + F.conv2d(x, self.conv1.weight, padding=1)


class AsksForForm(Block):
    def forward(self, x: Tensor) -> Tensor:
        y = self.conv1(x.to(self.conv1.weight.dtype))
        return x + self.bn2(self.conv2(self.bn1(y.view(y.shape)))) if y.dim() else y


class Slimmed(Block):
    def forward(self, x: Tensor) -> Tensor:
        penalty = sum(norm.weight.abs().sum() for norm in (self.bn1, self.bn2))
        return super().forward(x) + 1e-3 * penalty


class SlimmedInTraining(Block):
    def forward(self, x: Tensor) -> Tensor:
        y = super().forward(x)
        return y + 1e-3 * self.bn1.weight.abs().sum() if self.training else y


class ReadsStatistics(Block):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * self.bn1.running_var.mean()


def penalised(model: nn.Module) -> Tensor:
    return model(X).square().mean() + model.block.bn1.weight.abs().sum()


@pytest.mark.parametrize(
    ("block", "example"),
    [
        (Block, penalised),
        *((block, one) for block in (Slimmed, SlimmedInTraining, ReadsStatistics) for one in (None, X)),
    ],
)
def test_a_norm_whose_tensors_the_model_or_its_loss_reads_is_left_alone(block: type[Block], example: Any) -> None:
    net = Net(block())
    with pytest.warns(UserWarning, match="reads its weight or statistics outside of its call"):
        report = reduce_batch_norms_(net, example_inputs=example)
    assert list(report.left_alone) == ["block.bn1"]
    (example(net.train()) if callable(example) else net.train()(X).sum()).backward()


def test_a_loss_that_takes_gradients_on_the_way_can_be_recorded() -> None:
    net = Net(Block())

    def gradient_penalty(model: nn.Module) -> Tensor:
        x = X.clone().requires_grad_()
        (gradient,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
        return gradient.square().mean()

    assert reduce_batch_norms_(net, example_inputs=gradient_penalty).reason == ""


class OtherWayInEvaluation(Block):
    """In evaluation the convolution is also read on its own; a trace in training does not see it."""

    def forward(self, x: Tensor) -> Tensor:
        first = self.conv1(x)
        y = x + self.bn2(self.conv2(self.bn1(first)))
        return y if self.training else y + first


class AuxiliaryInTraining(Block):
    def forward(self, x: Tensor) -> Tensor:
        first = self.conv1(x)
        y = x + self.bn2(self.conv2(self.bn1(first)))
        return y + first.square().mean() if self.training else y


def clamped(part: nn.Module) -> None:
    part.register_forward_hook(lambda module, args, output: output.clamp(max=1))


@pytest.mark.parametrize(
    ("make", "example"),
    [
        (lambda: Block(conv=StandardizedConv), None),
        (ReadsConvolution, None),
        (OtherWayInEvaluation, None),
        (OtherWayInEvaluation, X),
        (AuxiliaryInTraining, None),
        (AuxiliaryInTraining, X),
    ],
)
def test_nothing_is_folded_into_a_convolution_that_changes_its_weight_or_that_others_read(
    make: Callable[[], Block], example: Tensor | None
) -> None:
    change, report = change_of(learned(Net(make())).train(), example_inputs=example)
    assert change < 1e-5
    assert report.affine == report.removed == ("block.bn1",)


@pytest.mark.parametrize("alter", [parametrizations.weight_norm, clamped])
def test_nothing_is_folded_into_a_parametrized_or_hooked_convolution(alter: Callable[[nn.Module], Any]) -> None:
    net = learned(Net(Block()))
    alter(net.block.conv1)
    change, report = change_of(net)
    assert change < 1e-5
    assert report.affine == report.removed == ("block.bn1",)


@pytest.mark.parametrize("make", [lambda: Block(Logged), AsksForForm])
def test_a_subclass_that_computes_the_same_is_removed_and_a_shape_may_be_asked_for(make: Callable[[], Block]) -> None:
    change, report = change_of(learned(Net(make())))
    assert change < 1e-5
    assert (report.removed, report.split) == (("block.bn1",), ())


class AsksTheNorm(Block):
    """What a forward asks a module in Python no trace shows."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * self.bn1.num_features


class KnowsTheNorm(Block):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * (2 if isinstance(self.bn1, nn.BatchNorm2d) else 1)


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (AsksTheNorm, "without it the model fails"),
        (KnowsTheNorm, "without it the evaluation output changes by"),
        (lambda: Block(NormThenRelu), "a call of this NormThenRelu does something other"),
        (Block, "a call of this BatchNorm2d does something other"),
    ],
    ids=["asked", "known", "does more", "hooked"],
)
def test_a_norm_that_does_more_or_that_python_asks_for_is_left_alone(make: Callable[[], Block], why: str) -> None:
    net = learned(Net(make()))
    if make is Block:
        clamped(net.block.bn1)
    with pytest.warns(UserWarning, match=rf"left block\.bn1 alone: {why}"):
        change, report = change_of(net)
    assert change == 0
    assert report.removed == ()
    assert list(report.left_alone) == ["block.bn1"]
    assert "without changing what the network computes" in report.reason


class TwoBlocks(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = Block(), KnowsTheNorm()

    def forward(self, x: Tensor) -> Tensor:
        return self.two(self.one(x))


def test_only_what_fails_the_comparison_is_left_alone() -> None:
    with pytest.warns(UserWarning, match=r"left block\.two\.bn1 alone"):
        change, report = change_of(learned(Net(TwoBlocks())))
    assert change < 1e-5
    assert report.removed == ("block.one.bn1",)


class StochasticDepth(nn.Module):
    """Blocks that drop out by a coin of torch, numpy and Python."""

    def __init__(self, n_blocks: int = 9) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(n_blocks))

    def forward(self, x: Tensor) -> Tensor:
        for index, block in enumerate(self.blocks):
            coin = [lambda: torch.rand(1).item(), np.random.rand, random.random][index % 3]
            if self.training and coin() < 0.5:
                continue
            x = block(x)
        return x


def generator_states() -> list[Any]:
    kind, words, *rest = np.random.get_state()  # noqa: NPY002
    return [torch.get_rng_state().tolist(), kind, words.tolist(), rest, random.getstate()]


@pytest.mark.parametrize("example", [None, X], ids=["traced", "recorded"])
def test_random_depth_neither_draws_numbers_nor_decides(example: Tensor | None) -> None:
    for seed in range(2):
        torch.manual_seed(seed)
        net = learned(Net(StochasticDepth())).train()
        before = generator_states()
        report = reduce_batch_norms_(net, example_inputs=example)
        assert generator_states() == before
        assert report.removed == report.folded == tuple(f"block.blocks.{index}.bn1" for index in range(9))
        assert net.training


@pytest.mark.slow  # the compiler is loaded
def test_a_compiled_network_is_reduced_inside_its_wrapper() -> None:
    net = learned(Net(Block()))
    compiled = torch.compile(net, backend="eager")
    with torch.no_grad():
        before = compiled(X)
        model = LessBN(compiled)
        after = model(X)
    assert model.report.removed == ("block.bn1",)
    assert type(net.block.bn1) is nn.Identity
    torch.testing.assert_close(after, before, rtol=1e-5, atol=1e-5)
    assert LessBN(net).report == model.report


# Parts that are not trained


@pytest.mark.parametrize("by", ["requires_grad", "the optimizer"])
@pytest.mark.parametrize("build", [lambda: Net(Block()), lambda: DenseNet((3, 2), 4, 8)], ids=["folded", "affine"])
def test_a_frozen_body_computes_what_it_did_and_stays_as_it_is(build: Callable[[], nn.Module], by: str) -> None:
    torch.manual_seed(0)
    body, x = learned(build()), torch.randn(4, 3, 32, 32)
    before = body(x).detach()
    model = nn.Sequential(body, nn.ReLU(), nn.Linear(before.shape[1], 2))
    body.requires_grad_(by != "requires_grad")
    trained = model[2] if by == "the optimizer" else model
    held = set(trained.parameters())
    untrained = [name for name, parameter in model.named_parameters() if parameter not in held]
    foreseen = LessBNMethod.foreseen(copy.deepcopy(model), lambda: copy.deepcopy(model), untrained, None)
    tuned = apply(ONLY_LESS_BN, model, SGD(trained.parameters(), lr=0.1))
    assert len(body.less_bn_report.removed) == foreseen["removable"] > 0
    assert tuned.plan.network.layers == foreseen["layers_left"]
    reduced = body(x).detach()
    torch.testing.assert_close(reduced, before, rtol=1e-4, atol=1e-5)
    train(tuned, size=32)
    assert torch.equal(body(x), reduced)


def test_new_parameters_join_the_group_of_their_neighbours() -> None:
    model = nn.Sequential(learned(Net(Block())), nn.Linear(5, 2))
    groups = [{"params": model[0].parameters(), "lr": 0.001}, {"params": model[1].parameters()}]
    tuned = apply(ONLY_LESS_BN, model, SGD(groups, lr=0.1))
    rates = {id(p): group["lr"] for group in tuned.optimizer.param_groups for p in group["params"]}
    assert rates[id(model[0].block.conv1.bias)] == 0.001


def test_what_a_frozen_batch_norm_added_stays_frozen_in_the_layer_that_takes_it_up() -> None:
    net = learned(Net(Block()))
    net.block.bn1.requires_grad_(False)
    assert reduce_batch_norms_(net).folded == ("block.bn1",)
    assert net.block.conv1.weight.requires_grad
    assert not net.block.conv1.bias.requires_grad


# Checkpoints: which parameters there are depends on what the network had learned before.


def boosted(build: Callable[[], nn.Module], *, with_statistics: bool) -> Boosted:
    torch.manual_seed(int(with_statistics))
    net = learned(build(), 3) if with_statistics else build()
    return apply(ONLY_LESS_BN, net.train(), SGD(net.parameters(), lr=0.05))


def train(model: Boosted, steps: int = 2, size: int = 12) -> None:
    for step in range(steps):
        x = torch.randn(4, 3, size, size, generator=torch.Generator().manual_seed(step))
        model.backward(model.model(x).square().mean())
        model.step()


@pytest.mark.parametrize("saved_with_statistics", [True, False])
@pytest.mark.parametrize(
    "build",
    [
        lambda: Net(Block()),
        lambda: Net(Block(lambda width: NormAct(width, drop=0.1), StandardizedConv)),
        lambda: DenseNet((3, 2), 4, 8),
        lambda: ResNet("bottleneck", (2, 2), (4, 6)),
    ],
    ids=["folded", "affine in a split norm", "affine", "resnet"],
)
def test_weights_load_into_a_network_that_had_learned_otherwise(
    build: Callable[[], nn.Module], saved_with_statistics: bool
) -> None:
    source = boosted(build, with_statistics=saved_with_statistics)
    train(source, size=32)
    target = boosted(build, with_statistics=not saved_with_statistics)
    target.model.eval().load_state_dict(through_file(source.model.state_dict()))
    x = torch.randn(2, 3, 32, 32)
    torch.testing.assert_close(target.model.eval()(x), source.model.eval()(x), rtol=1e-5, atol=1e-6)
    twin = copy.deepcopy(boosted(build, with_statistics=not saved_with_statistics).model)  # copies load as well
    twin.eval().load_state_dict(source.model.state_dict())
    torch.testing.assert_close(twin.eval()(x), source.model.eval()(x), rtol=1e-5, atol=1e-6)


def test_a_network_for_evaluation_takes_the_weights_of_a_trained_one() -> None:
    source = boosted(lambda: Net(Block()), with_statistics=True)
    train(source)
    target = AutoBoost("O1", ONLY_LESS_BN).network_auto_process_eval(Net(Block()))
    target.eval().load_state_dict(source.model.state_dict())
    torch.testing.assert_close(target(X), source.model.eval()(X), rtol=1e-5, atol=1e-6)


def test_in_training_a_warning_tells_of_parameters_that_the_optimizer_does_not_know() -> None:
    source, target = (boosted(lambda: Net(Block()), with_statistics=learned) for learned in (True, False))
    with pytest.warns(UserWarning, match=r"the loaded weights add block\.conv1\.bias, which this network did not have"):
        target.model.load_state_dict(source.model.state_dict())
    train(target)


def test_exact_resumption_between_them_is_refused_with_a_sentence() -> None:
    source, target = (boosted(lambda: Net(Block()), with_statistics=learned) for learned in (True, False))
    with pytest.raises(RuntimeError, match=r"needs the same weights.*block\.conv1\.bias exist on one side only"):
        target.load_state_dict(source.state_dict())


def test_a_file_without_a_bias_that_always_was_there_is_still_incomplete() -> None:
    net = learned(Net(Block()))
    net.block.conv1 = nn.Conv2d(4, 4, 3, padding=1)
    reduce_batch_norms_(net)
    weights = net.state_dict()
    del weights["block.conv1.bias"]
    with pytest.raises(RuntimeError, match=r"Missing key.*block\.conv1\.bias"):
        net.load_state_dict(weights)


def test_a_whole_reduced_network_can_be_saved(tmp_path: Path) -> None:
    net = learned(DenseNet((3, 2), 4, 8))
    report = reduce_batch_norms_(net)
    torch.save(net, tmp_path / "net.pt")
    again = torch.load(tmp_path / "net.pt", weights_only=False)
    assert isinstance(again.get_submodule(report.affine[0]), ChannelAffine)
    again.load_state_dict(net.state_dict())
    x = torch.randn(2, 3, 32, 32)
    torch.testing.assert_close(again(x), net(x), rtol=0, atol=0)


# Several ranks


def distribute_different_models() -> str:
    net = Net(Block()) if ranks.rank() == 0 else Net(nn.Identity())
    model = apply(ONLY_LESS_BN | {"boost": {"mode": "disable_all"}}, net, SGD(net.parameters(), lr=0.1))
    with pytest.raises(RuntimeError) as refused:
        model.distribute()
    return str(refused.value)


def distribute_random_depth() -> list[str]:
    torch.manual_seed(ranks.rank())
    net = Net(StochasticDepth())
    model = apply(ONLY_LESS_BN, net, SGD(net.parameters(), lr=0.1))
    model.distribute()
    return [name for name, _ in model.model.named_parameters()]


@pytest.mark.slow
def test_ranks_with_different_models_are_told_so(pair: Ranks) -> None:
    for message in pair.run(distribute_different_models):
        assert message.startswith("distribute() needs the same model on every rank, but rank 0 has ")
        assert "block.conv1.weight [4, 4, 3, 3] (torch.float32) and head.weight [5, 4] (torch.float32)" in message


@pytest.mark.slow
def test_ranks_with_random_depth_keep_the_same_parameters(pair: Ranks) -> None:
    one, other = pair.run(distribute_random_depth)
    assert one == other


def test_one_auto_boost_reduces_a_network_whatever_another_had_to_offer() -> None:
    boost = AutoBoost("O1", ONLY_LESS_BN)
    for network, removed in ((nn.Linear(3, 2), ()), (Net(Block()), ("block.bn1",))):
        with pytest.warns(UserWarning, match="less_bn") if not removed else contextlib.nullcontext():
            boost.network_auto_process_train(network, SGD(network.parameters(), lr=0.1))
        assert network.less_bn_report.removed == removed
        assert boost.plan.less_bn == bool(removed)
