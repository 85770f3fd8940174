"""LessBN: which BatchNorms go under either rule, what happens to their function, and the recorded training runs."""

from __future__ import annotations

import copy
import operator
import threading
import time
import warnings
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.golden_files import golden_paths, load_json, load_npz
from tests.golden_networks import assert_training, build_network, build_optimizer, load_initial_weights, plain_list
from tests.network_families import (
    DENSENETS,
    RESNETS,
    SMALL_MOBILENET,
    Block,
    DenseNet,
    MobileNetV2,
    Net,
    PreActivationNet,
    ResNet,
    build_family_member,
    learned,
)
from workbench.methods.less_bn.batch_norm_folding import ChannelAffine
from workbench.methods.less_bn.method import LessBN, LessBNReport, reduce_batch_norms_
from workbench.methods.less_bn.network_graph import read_graph
from workbench.nn import WithLossCell

WIDTHS = (4, 6, 8, 10)


def removed_records() -> list[Any]:
    cases = []
    for path in golden_paths("lessbn_removed*.json"):
        data = load_json(path)
        networks = data["networks"]
        for name, record in networks.items():
            cases.append(pytest.param(name, record, record["removed"], id=f"{path.stem}-{name}"))
        for key, record in data.get("other_optimizers", {}).items():
            name = key.split("|")[0]
            if name in networks:  # the optimizer does not enter the rule; the recorded list must be the same one
                cases.append(pytest.param(name, networks[name], record["removed"], id=f"{path.stem}-{key}"))
    return cases


def quietly(model: nn.Module, **options: Any) -> LessBNReport:
    """Reduce a model for which "had no effect" is a right answer."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "less_bn had no effect")
        return reduce_batch_norms_(model, **options)


def norm_names(model: nn.Module) -> list[str]:
    return [name for name, module in model.named_modules() if isinstance(module, nn.BatchNorm2d)]


@pytest.mark.parametrize(("name", "record", "removed"), removed_records())
def test_reference_rule_gives_the_golden_lists(name: str, record: dict[str, Any], removed: list[str]) -> None:
    model = build_family_member(name, record)
    if model is None:
        pytest.skip(f"no builder for the network family of {name!r}")
    if norm_names(model) != record["all_bn"]:
        pytest.skip(f"{name!r} ({record.get('description')}) could not be rebuilt from its record")
    report = quietly(model, match="reference")
    assert list(report.removed) == removed
    assert list(report.kept) == [norm for norm in record["all_bn"] if norm not in removed]
    assert norm_names(model) == list(report.kept)


@pytest.mark.parametrize("path", golden_paths("lessbn_train_*.npz"), ids=lambda path: path.stem)
@pytest.mark.parametrize("match", ["structure", "reference"])
def test_golden_training_runs_are_reproduced(path: Path, match: str) -> None:
    meta, arrays = load_npz(path)
    net = build_network(meta["net"])
    load_initial_weights(net, arrays)
    if meta["less_bn"]:
        report = quietly(net, match=match)
        if match == "structure" and set(report.removed) > set(meta["removed_bn"]):
            pytest.skip("there the reference's rule overlooks BatchNorms that can be spared: documented difference")
        assert sorted(report.removed) == sorted(meta["removed_bn"])
        assert sorted(report.kept) == sorted(meta["kept_bn"])
    gone = tuple(f"traj/{name}." for name in meta["removed_bn"])
    for key in [key for key in arrays if key.startswith(gone)]:
        rows = arrays.pop(key)  # the recorded run keeps them in its list without ever changing them
        np.testing.assert_array_equal(rows, np.broadcast_to(rows[0], rows.shape))
    assert_training(net, build_optimizer(meta, plain_list(net)), meta, arrays)


# By the reference's rule: the golden lists, and the smallest that they lack.
@pytest.mark.parametrize(("depth", "match"), [(18, "structure"), (34, "reference"), (50, "structure")])
def test_resnets_keep_the_stem_and_the_last_norm_of_each_block(depth: int, match: Any) -> None:
    kind, blocks = RESNETS[depth]
    report = reduce_batch_norms_(ResNet(kind, blocks, WIDTHS), match=match)
    last = "bn2" if kind == "basic" else "bn3"
    assert set(report.kept) == {"bn1"} | {f"layer{s + 1}.{i}.{last}" for s, n in enumerate(blocks) for i in range(n)}
    assert report.reason == ""


def test_densenets_lose_the_first_norm_of_all_layers_but_the_first_of_a_block() -> None:
    blocks = DENSENETS[121]
    report = reduce_batch_norms_(DenseNet(blocks, 2, 4))
    later = [f"denseblock{b}.denselayer{i}" for b, n in enumerate(blocks, start=1) for i in range(2, n + 1)]
    assert list(report.removed) == [f"features.{layer}.norm1" for layer in later]


@pytest.mark.parametrize("match", ["structure", "reference"])
@pytest.mark.parametrize(
    "settings",
    [
        [(1, 8, 1, 1), (6, 8, 2, 2), (4, 12, 3, 2), (2, 16, 1, 1)],
        [(1, 8, 1, 1), (6, 12, 1, 2), (6, 16, 1, 2), (6, 24, 1, 1)],  # no skip at all: one block per row
        [(1, 8, 2, 1), (3, 12, 4, 2), (6, 16, 1, 1)],
    ],
    ids=["mixed", "no skip", "two blocks without expansion"],
)
def test_mobilenets_lose_the_expansion_norms(settings: list[tuple[int, ...]], match: str) -> None:
    report = reduce_batch_norms_(MobileNetV2(settings, stem=12, last=16), match=match)
    expanded = [t != 1 for t, _, n, _ in settings for _ in range(n)]
    expected = [f"features.{index}.conv.0.1" for index, has in enumerate(expanded, start=1) if has]
    assert list(report.removed) == expected


def test_reference_rule_also_takes_the_head_norm_after_a_skip() -> None:
    names = norm_names(MobileNetV2(SMALL_MOBILENET, stem=8, last=16))
    by_reference = reduce_batch_norms_(MobileNetV2(SMALL_MOBILENET, stem=8, last=16), match="reference").removed
    by_structure = reduce_batch_norms_(MobileNetV2(SMALL_MOBILENET, stem=8, last=16)).removed
    assert len(names) == 22
    assert len(by_reference) == 7
    assert set(by_reference) - set(by_structure) == {"features.8.1"}


@pytest.mark.parametrize(("concat", "expected"), [("pairwise", 8), ("new first", 8), ("list", 2)])
def test_reference_rule_also_takes_max_pool_transitions(concat: str, expected: int) -> None:
    model = DenseNet((3, 4, 2), 8, 16, concat=concat, transition_pool="max")
    report = reduce_batch_norms_(model, match="reference")
    assert len(report.removed) == expected
    assert {"features.transition1.norm", "features.transition2.norm"} <= set(report.removed)


def test_reference_rule_repeats_the_accidents_of_operand_order() -> None:
    # With branch + input, the chain "BatchNorm, convolution" of one argument goes on in the other, which is a sum.
    report = reduce_batch_norms_(MobileNetV2(stem=8, last=16, input_first=False), match="reference")
    assert "features.6.conv.3" in report.removed
    assert "features.3.conv.0.1" in report.kept


def test_reference_rule_needs_convolutions_without_bias() -> None:
    model = ResNet("basic", (2, 2), (4, 6))
    block = model.get_submodule("layer2.1")
    block.conv1 = nn.Conv2d(6, 6, 3, padding=1)  # in MindSpore the bias is an operation of its own
    assert "layer2.1.bn1" not in reduce_batch_norms_(copy.deepcopy(model), match="reference").removed
    assert "layer2.1.bn1" in reduce_batch_norms_(model).removed


def add_in_place(one: Tensor, other: Tensor) -> Tensor:
    one += other
    return one


def test_structure_does_not_see_how_the_sum_is_written() -> None:
    usual = reduce_batch_norms_(ResNet("basic", (2, 2), (4, 6)))
    assert len(usual.removed) == 5
    for addition in (operator.add, operator.iadd, torch.add, Tensor.add, Tensor.add_, add_in_place):
        for first in (False, True):
            net = ResNet("basic", (2, 2), (4, 6), addition=addition, identity_first=first)
            assert reduce_batch_norms_(net) == usual, (addition, first)


def test_structure_does_not_see_how_features_are_concatenated_or_skips_added() -> None:
    usual = reduce_batch_norms_(DenseNet((3, 4, 2), 8, 16))
    assert len(usual.removed) == 6
    for concat, pool in (("pairwise", "average"), ("new first", "max"), ("list", "max")):
        assert reduce_batch_norms_(DenseNet((3, 4, 2), 8, 16, concat=concat, transition_pool=pool)) == usual
    one, other = (MobileNetV2(SMALL_MOBILENET, stem=8, last=16, input_first=first) for first in (True, False))
    assert reduce_batch_norms_(one) == reduce_batch_norms_(other)


def test_pre_activation_blocks_keep_the_first_norm_of_the_path_and_the_last_of_each_branch() -> None:
    report = reduce_batch_norms_(PreActivationNet((4, 4, 6, 6)))
    # Block 2 widens: its bn1 feeds the shortcut as well, so it lies before the fork and stays.
    assert report.removed == ("blocks.1.bn1", "blocks.3.bn1")


def test_grouped_bottlenecks_are_treated_like_plain_ones() -> None:
    grouped = reduce_batch_norms_(ResNet("bottleneck", (1, 2), (8, 8), groups=4))
    assert grouped == reduce_batch_norms_(ResNet("bottleneck", (1, 2), (8, 8)))


class LongBranch(nn.Module):
    """One residual branch of seven convolutions behind a stem."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4))
        self.branch = nn.Sequential(*[nn.Sequential(nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4)) for _ in range(7)])

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        return self.branch(x) + x


def test_never_more_than_two_norms_in_a_row_go() -> None:
    report = reduce_batch_norms_(LongBranch())
    assert report.kept == ("stem.1", "branch.0.1", "branch.3.1", "branch.6.1")


class SqueezeBlock(Block):
    """Residual block whose branch ends in a squeeze-and-excitation gate."""

    def __init__(self) -> None:
        super().__init__()
        self.squeeze, self.excite = nn.Conv2d(4, 2, 1), nn.Conv2d(2, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        y = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        gate = torch.sigmoid(self.excite(F.relu(self.squeeze(y.mean((2, 3), keepdim=True)))))
        return F.relu(x + y * gate)


class Pyramid(nn.Module):
    """Feature pyramid: the addition joins two levels, not a branch and its shortcut."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU())
        self.down = SqueezeBlock()
        self.lateral = nn.Sequential(nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4))

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        deep = F.max_pool2d(self.down(x), 2)
        return F.interpolate(deep, scale_factor=2.0) + self.lateral(x)


def test_gates_inside_a_branch_do_not_hide_its_last_norm() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4), SqueezeBlock())
    report = reduce_batch_norms_(model)
    assert report.removed == ("2.bn1",)
    assert type(model[2].bn1) is nn.Identity


def test_feature_pyramid_additions_remove_nothing_of_their_own() -> None:
    assert reduce_batch_norms_(Pyramid()).removed == ("down.bn1",)


def plain_chain() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 4, 3), nn.BatchNorm2d(4), nn.ReLU()
    )


@pytest.mark.parametrize(
    ("model", "match"),
    [(plain_chain(), "reference"), (nn.Linear(3, 2), "structure"), (nn.BatchNorm2d(3), "structure")],
    ids=["chain", "linear", "norm"],
)
def test_models_without_a_removable_norm_warn_once_and_stay(model: nn.Module, match: Any) -> None:
    before = norm_names(model)
    with pytest.warns(UserWarning, match="less_bn had no effect") as caught:
        report = reduce_batch_norms_(model, match=match)
    assert len(caught) == 1
    assert caught[0].filename == __file__
    assert report.removed == ()
    assert norm_names(model) == before
    with pytest.raises(ValueError, match=r'`less_bn_match` must be "structure" or "reference", got \'names\''):
        reduce_batch_norms_(model, match="names")  # type: ignore[arg-type]


class Meanwhile(nn.Module):
    """A layer, before which something else happens."""

    def __init__(self, do: Callable[[], object]) -> None:
        super().__init__()
        self.do, self.layer = do, nn.Linear(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        self.do()
        return self.layer(x)


def test_networks_that_two_threads_trace_at_once_leave_module_calls_as_they_were() -> None:
    begun, before = threading.Semaphore(0), nn.Module.__call__

    def slowly(seconds: float) -> None:
        begun.release()
        time.sleep(seconds)

    reading: list[Future[Any]] = []
    with ThreadPoolExecutor() as pool:
        for seconds in (0.2, 0.4):
            reading.append(pool.submit(read_graph, Meanwhile(partial(slowly, seconds))))
            assert begun.acquire(timeout=10.0)
    assert [one.exception() for one in reading] == [None, None]
    assert nn.Module.__call__ is before


def test_another_thread_may_call_its_model_while_a_network_is_traced() -> None:
    traced, called = threading.Event(), threading.Event()

    def wait() -> None:
        traced.set()
        called.wait(30)

    with ThreadPoolExecutor() as pool:
        reading = pool.submit(read_graph, Meanwhile(wait))
        try:
            assert traced.wait(30)
            assert nn.Sequential(nn.Linear(2, 3), nn.ReLU())(torch.ones(1, 2)).shape == (1, 3)
        finally:
            called.set()
    assert reading.exception() is None


def test_fresh_networks_keep_their_other_weights() -> None:
    model = ResNet("basic", (2, 2), (4, 6))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    report = reduce_batch_norms_(model)
    after = model.state_dict()
    assert set(before) - set(after) == {name for name in before if name.rpartition(".")[0] in report.removed}
    for name, value in after.items():
        torch.testing.assert_close(value, before[name], rtol=0, atol=0)
    assert report.folded == ()


@pytest.mark.parametrize("match", ["structure", "reference"])
@pytest.mark.parametrize(
    "build",
    [
        lambda: ResNet("basic", (2, 2), (4, 6)),
        lambda: ResNet("bottleneck", (2, 2), (4, 6), addition=add_in_place),
        lambda: MobileNetV2(SMALL_MOBILENET, stem=8, last=16),
        lambda: DenseNet((3, 2), 4, 8, concat="pairwise"),
        PreActivationNet,
    ],
    ids=["basic", "bottleneck", "mobilenet", "densenet", "pre-activation"],
)
def test_trained_networks_keep_their_evaluation_output_traced_or_recorded(
    build: Callable[[], nn.Module], match: Any
) -> None:
    model = learned(build())
    recorded, x = copy.deepcopy(model).train(), torch.randn(3, 3, 32, 32)
    before = model(x)
    report = quietly(model, match=match)
    torch.testing.assert_close(model(x), before, rtol=1e-4, atol=1e-4)
    assert set(report.folded) | set(report.affine) == set(report.removed)
    for name in report.affine:
        assert isinstance(model.get_submodule(name), ChannelAffine)
    for name in report.folded:
        assert type(model.get_submodule(name)) is nn.Identity
    assert quietly(recorded, match=match, example_inputs=x) == report


def test_norms_before_a_convolution_become_a_channel_affine_that_is_frozen_where_they_were() -> None:
    for frozen in (False, True):
        model = learned(DenseNet((3, 2), 4, 8))
        for norm in (m for m in model.modules() if isinstance(m, nn.BatchNorm2d)):
            norm.requires_grad_(not frozen)
        report = reduce_batch_norms_(model)
        assert report.folded == ()
        assert set(report.affine) == set(report.removed)
        for name in report.affine:
            parameters = dict(model.get_submodule(name).named_parameters())
            assert set(parameters) == {"scale", "shift"}
            assert all(p.requires_grad is not frozen for p in parameters.values())


def test_a_module_called_twice_goes_only_if_both_calls_may() -> None:
    class Shared(Block):
        def forward(self, x: Tensor) -> Tensor:
            return self.bn1(self.conv2(F.relu(self.bn1(self.conv1(x))))) + x

    assert quietly(Net(Shared())).removed == ()


def test_a_norm_registered_under_two_names_is_replaced_under_both() -> None:
    model = ResNet("basic", (1, 1), (4, 6))
    model.alias = model.get_submodule("layer1.0.bn1")
    reduce_batch_norms_(model)
    assert type(model.alias) is nn.Identity
    assert model.alias is model.get_submodule("layer1.0.bn1")


def test_subclasses_and_optional_arguments_are_understood() -> None:
    class OwnConv(nn.Conv2d):
        pass

    class OwnNorm(nn.BatchNorm2d):
        pass

    class Optional(Net):
        def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
            if mask is not None:
                x = x * mask
            return super().forward(x)

    report = reduce_batch_norms_(Optional(Block(OwnNorm, OwnConv)))
    assert report.removed == ("block.bn1",)


class Branching(nn.Module):
    """A body under a forward whose control flow depends on data, and which no single image of noise fits."""

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body

    def forward(self, x: Tensor, sign: Tensor) -> Tensor:
        if sign.mean() > 0:
            return self.body(x)
        return self.body(-x)


class UntraceableBlock(nn.Module):
    """Basic block that itself depends on data; the shortcut is registered first."""

    def __init__(self, cin: int, width: int, stride: int) -> None:
        super().__init__()
        if cin != width or stride != 1:
            self.shortcut = nn.Sequential(nn.Conv2d(cin, width, 1, stride, bias=False), nn.BatchNorm2d(width))
        self.conv1, self.bn1 = nn.Conv2d(cin, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width)
        self.conv2, self.bn2 = nn.Conv2d(width, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width)

    def forward(self, x: Tensor) -> Tensor:
        y = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        if y.abs().max() > 1e6:
            y = y.clamp(-1, 1)
        return F.relu(y + (self.shortcut(x) if hasattr(self, "shortcut") else x))


def untraceable_net() -> nn.Sequential:
    return nn.Sequential(
        nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU()),
        UntraceableBlock(4, 4, 1),
        UntraceableBlock(4, 6, 2),
    )


@pytest.mark.parametrize(
    "example",
    [
        torch.ones(2, 3, 8, 8),
        (torch.ones(2, 3, 8, 8),),
        {"input": torch.ones(2, 3, 8, 8)},
        lambda net: net(torch.ones(2, 3, 8, 8)).sum(),
        None,
    ],
    ids=["tensor", "tuple", "mapping", "function", "noise"],
)
def test_a_recorded_call_shows_the_graph_of_a_model_that_cannot_be_traced(example: Any) -> None:
    model = untraceable_net()
    model[1].bn2.eval()
    report = reduce_batch_norms_(model, example_inputs=example)
    assert report.removed == ("1.bn1", "2.shortcut.1", "2.bn1")
    assert [model.training, model[1].bn2.training, model[2].bn2.training] == [True, False, True]
    assert int(model[1].bn2.num_batches_tracked) == 0  # the calls left no trace in the statistics


def test_a_network_whose_graph_nothing_shows_stays_and_hears_what_to_pass() -> None:
    trained = Branching(learned(ResNet("basic", (2, 2), (4, 6))))
    x = torch.randn(3, 3, 32, 32), torch.ones(1)
    before = trained.eval()(*x)
    with pytest.warns(UserWarning, match="cannot trace Branching.* pass `example_inputs`") as caught:
        report = reduce_batch_norms_(trained)
    assert len(caught) == 1
    assert report.removed == ()
    assert len(report.kept) == sum(isinstance(module, nn.BatchNorm2d) for module in trained.modules())
    assert torch.equal(trained(*x), before)


def test_a_lazy_norm_stays() -> None:
    model = ResNet("basic", (1, 2), (4, 6))
    model.get_submodule("layer2.1").bn1 = nn.LazyBatchNorm2d()
    with pytest.warns(UserWarning, match=r"left layer2\.1\.bn1 alone: it has no parameters before the first batch"):
        report = reduce_batch_norms_(model)
    assert "layer2.1.bn1" in report.kept


def test_example_inputs_that_do_not_run_are_reported() -> None:
    with pytest.warns(UserWarning, match="example inputs did not run"):
        report = reduce_batch_norms_(ResNet("basic", (1, 2), (4, 6)), example_inputs=torch.ones(2, 5, 8, 8))
    assert "layer2.1.bn1" in report.removed  # the trace does without them


def test_untraceable_trained_networks_keep_their_evaluation_output() -> None:
    for model in (untraceable_net(), Branching(ResNet("bottleneck", (1, 2), (4, 6))), Branching(untraceable_net())):
        body = model.body if isinstance(model, Branching) else model
        learned(body)
        x = (torch.randn(3, 3, 32, 32), torch.ones(1))[: 2 if isinstance(model, Branching) else 1]
        reduced = copy.deepcopy(model).eval()
        assert reduce_batch_norms_(reduced, example_inputs=x).removed
        torch.testing.assert_close(reduced(*x), model.eval()(*x), rtol=1e-4, atol=1e-4)


def test_norms_without_running_statistics_go_only_while_unlearned() -> None:
    def build() -> nn.Module:
        model = ResNet("basic", (1, 2), (4, 6))
        model.get_submodule("layer2.1").bn1 = nn.BatchNorm2d(6, track_running_stats=False)
        return model

    assert "layer2.1.bn1" in reduce_batch_norms_(build()).removed
    with pytest.warns(UserWarning, match=r"left layer2\.1\.bn1 alone: it keeps no running statistics"):
        report = reduce_batch_norms_(learned(build()))
    assert "layer2.1.bn1" in report.kept


def test_wrapper_hands_its_arguments_on() -> None:
    model = LessBN(WithLossCell(ResNet("basic", (1, 1), (4, 6)), nn.CrossEntropyLoss()))
    loss = model(torch.randn(4, 3, 32, 32), label=torch.tensor([0, 1, 2, 3]))
    assert loss.shape == ()
    assert model.report.removed == ("backbone.layer1.0.bn1", "backbone.layer2.0.bn1", "backbone.layer2.0.downsample.1")
    assert isinstance(model.network, WithLossCell)


def test_wrapping_twice_does_nothing_and_says_nothing() -> None:
    net = ResNet("basic", (1, 1), (4, 6))
    head = net.fc
    net.bn1.eval()
    assert LessBN(net).training
    assert net.fc is head  # left alone by default
    assert not net.bn1.training  # parts in evaluation stay there
    first = LessBN(net, True)
    names = [name for name, _ in net.named_modules()]
    head = net.fc
    second = LessBN(net, True)
    third = LessBN(first, True)
    with pytest.warns(UserWarning, match="already applied"):
        again = reduce_batch_norms_(net)
    assert (again.removed, list(again.kept)) == ((), norm_names(net))
    assert net.fc is head
    assert [name for name, _ in net.named_modules()] == names
    assert second.report == first.report == third.report
    assert first.report.heads == ("fc",)


def test_wrapper_survives_deepcopy_and_state_dict() -> None:
    model = LessBN(ResNet("basic", (1, 1), (4, 6)), True).eval()
    x = torch.randn(2, 3, 32, 32)
    twin = copy.deepcopy(model)
    assert twin.report == model.report
    torch.testing.assert_close(twin(x), model(x), rtol=0, atol=0)
    other = LessBN(ResNet("basic", (1, 1), (4, 6)), True).eval()
    other.load_state_dict(model.state_dict())
    torch.testing.assert_close(other(x), model(x), rtol=0, atol=0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        LessBN(twin.network)  # the copy is known to be reduced
