"""Group scales in training: marks, borders, calibration, attribution, and a net that no single scale can train."""

from __future__ import annotations

import copy
import itertools
import math
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam

from tests.golden_files import golden_paths, load_npz
from tests.golden_networks import assert_trajectory, build_loss, build_optimizer, golden_batch, load_initial_weights
from tests.kit.chains import assert_same_bits
from tests.scaling.host_reads import forbid_host_reads
from workbench import train
from workbench.config import BoostConfig
from workbench.loss_scale import FixedLossScaleUpdateCell
from workbench.loss_scale.scaler import LossScaling
from workbench.methods.loss_scale_group.method import GroupLossScaleManager
from workbench.methods.loss_scale_group.scale_borders import maximal_units
from workbench.methods.loss_scale_group.scaling import GroupLossScaling, joined_units
from workbench.mindspore.train_step_cells import (
    BoostTrainOneStepWithLossScaleCell,
    TrainOneStepWithLossScaleCell,
    WithLossCell,
)
from workbench.tasks import load_task
from workbench.training import apply
from workbench.training.boosted import Boosted
from workbench.training.precision import Precision
from workbench.training.trace_buffer import TraceBuffer

CPU = torch.device("cpu")


class MarkedNet(nn.Module):
    """Dense layers with marks between the groups; what the forward pass does is written as in the recordings."""

    def __init__(self, dims: list[int], amp: GroupLossScaleManager, written: str) -> None:
        super().__init__()
        for number, (n_in, n_out) in enumerate(itertools.pairwise(dims), start=1):
            self.add_module(f"fc{number}", nn.Linear(n_in, n_out))
        self.amp = amp
        self.written = written

    def forward(self, x: Tensor) -> Tensor:
        for word in self.written.split():  # "amp(x,0,1) fc1 relu ..."
            if word.startswith("amp"):
                x = self.amp(x, *map(int, re.findall(r"\d+", word)))
            else:
                x = torch.relu(x) if word == "relu" else self.get_submodule(word)(x)
        return x


MARKS = "amp(x,0,1) fc1 relu amp(x,1,2) fc2 relu fc3 amp(x,2,3)"


def marked_net(init: Any = 64.0, dims: list[int] | None = None, written: str = MARKS, **options: Any) -> MarkedNet:
    manager = GroupLossScaleManager(init, [], **options)
    net = MarkedNet(dims or [4, 6, 5, 3], manager, written)
    named = dict(net.named_parameters())
    manager.loss_scale_groups = [
        [p for n, p in named.items() if n.startswith("fc1") is first] for first in (True, False)
    ]
    return net


def boosted_with(net: nn.Module, scaling: LossScaling, rate: float = 1e-12, **options: Any) -> Boosted:
    return Boosted(net, SGD(net.parameters(), lr=rate, fused=True), loss_scaling=scaling, **options)


# -- recorded training ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", golden_paths("group_loss_scale_train_*.npz"), ids=lambda path: path.stem)
def test_golden_training_with_marks(path: Path) -> None:
    meta, arrays = load_npz(path)
    dims, written = meta["net"]["dims"], meta["net"]["amp"]
    net = marked_net(meta["init_loss_scale"], dims, written, minimum=2.0**-126, unscale_with="updated")
    net.amp.loss_scale_groups = meta["groups"]
    net.double()
    load_initial_weights(_WithoutManager(net), arrays)
    optimizer = build_optimizer(meta, net.parameters(), fused=True)
    boosted = Boosted(net, optimizer, loss_scaling=GroupLossScaling.from_manager(net.amp, net))
    named, criterion = dict(net.named_parameters()), build_loss(meta["loss"])
    for step, flags in enumerate(meta["layer_overflow"]):
        x, y = golden_batch(arrays, step)
        loss = criterion(net(x), y)
        boosted.backward(loss)
        for flag, group in zip(flags, meta["groups"], strict=True):
            if flag:  # the recorded flags were set by hand
                named[group[0]].grad.fill_(math.inf)
        outcome = boosted.step()
        assert outcome.loss.item() == pytest.approx(meta["losses"][step], rel=1e-4)
        assert bool(outcome.overflow) is bool(meta["returned_overflow_count"][step])
        assert net.amp.overflow_count.item() == meta["returned_overflow_count"][step]
        assert outcome.loss_scale_after.item() == pytest.approx(meta["returned_scale"][step], rel=1e-6)
        assert net.amp.dynamic_loss_scale.tolist() == pytest.approx(meta["dynamic_loss_scale_after"][step], rel=1e-6)
        assert_trajectory(_WithoutManager(net), arrays, step + 1)


class _WithoutManager(nn.Module):
    """The recorded tensors are the layers' only."""

    def __init__(self, net: MarkedNet) -> None:
        super().__init__()
        for name, layer in net.named_children():
            if name.startswith("fc"):
                self.add_module(name, layer)


def test_by_default_gradients_are_divided_by_the_scale_they_carry() -> None:
    torch.manual_seed(0)
    net = marked_net()
    plain = copy.deepcopy(net)
    plain.amp.loss_scale_groups = []
    optimizer = SGD(plain.parameters(), lr=0.1)
    boosted = boosted_with(net, GroupLossScaling.from_manager(net.amp, net), rate=0.1)
    x, y = torch.randn(8, 4), torch.randn(8, 3)
    for _ in range(3):
        boosted.backward(nn.functional.mse_loss(net(x), y))
        boosted.step()
        optimizer.zero_grad()
        nn.functional.mse_loss(plain(x), y).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    for (name, here), there in zip(net.named_parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(here, there, msg=name)
    assert net.amp.group_scales.tolist() == pytest.approx([64 * 2 ** (3 / 1000)] * 2)


# -- borders ----------------------------------------------------------------------------------------------------------


class Pair(NamedTuple):
    first: Tensor
    second: Tensor


class Branch(nn.Module):
    """Takes and returns nested structures; works in place on what it makes."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)
        self.act = nn.ReLU(inplace=True)

    def forward(self, batch: dict[str, Any], *, extra: Tensor) -> Pair:
        return Pair(self.act(self.a(batch["x"][0] + extra)), self.b(batch["x"][1]))


class Awkward(nn.Module):
    """A loose parameter, a list of modules, a module called twice, structures across borders."""

    def __init__(self) -> None:
        super().__init__()
        self.position = nn.Parameter(torch.randn(4))
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))
        self.branch = Branch()
        self.norm = nn.LayerNorm(4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.layers[0](x + self.position)
        y = self.layers[0](torch.tanh(x))
        pair = self.branch({"x": (x, y)}, extra=self.position)
        z = self.layers[1](pair.first) + self.layers[2](pair.second)
        out: Tensor = self.norm(z)
        loss: Tensor = out.square().mean() + z.abs().mean()
        return loss


GROUPS: list[list[str]] = [["layers.0", "norm"], ["layers.1", "branch.b"], ["layers.2", "branch.a"]]


def awkward() -> Awkward:
    torch.manual_seed(0)
    return Awkward()


def bordered(net: nn.Module, init: Any, groups: Any, **options: Any) -> GroupLossScaling:
    return GroupLossScaling.from_manager(GroupLossScaleManager(init, groups, **options), net)


def test_borders_change_no_gradient_but_its_scale() -> None:
    plain, net = awkward(), awkward()
    x = torch.randn(5, 4)
    expected = dict(plain.named_parameters())
    plain(x).backward()
    scaling = bordered(net, [2.0**40, 2.0**-30, 2.0**7], GROUPS)
    loss = scaling.seed(net(x))
    loss.backward()  # type: ignore[no-untyped-call]
    scales = dict.fromkeys(expected, 1.0)
    for number, names in enumerate(GROUPS):
        for name in scales:
            if name.rpartition(".")[0] in names:
                scales[name] = scaling.manager.group_scales[number].item()
    assert scales["position"] == 1.0
    for name, parameter in net.named_parameters():
        torch.testing.assert_close(parameter.grad, expected[name].grad * scales[name], rtol=1e-5, atol=0.0, msg=name)
    found = torch.zeros(())
    scaling.unscale_(list(net.parameters()), found)
    assert not found
    for name, parameter in net.named_parameters():
        torch.testing.assert_close(parameter.grad, expected[name].grad, rtol=1e-5, atol=1e-30, msg=name)


def test_units_are_the_largest_modules_of_one_group_that_are_called() -> None:
    net = awkward()
    everything = dict.fromkeys(net.parameters(), 0)
    assert maximal_units(net, everything) == {"": 0}
    layers = {p: 0 for n, p in net.named_parameters() if n.startswith(("layers", "branch"))}
    # The ModuleList is never called, so its members are the units; the branch is one.
    assert maximal_units(net, layers) == {"layers.0": 0, "layers.1": 0, "layers.2": 0, "branch": 0}


def test_removing_the_borders_restores_the_model() -> None:
    net = awkward()
    before = {name: (len(m._forward_hooks), len(m._forward_pre_hooks)) for name, m in net.named_modules()}
    scaling = bordered(net, 8.0, GROUPS)
    assert any(m._forward_hooks for m in net.modules())
    scaling.remove()
    assert {name: (len(m._forward_hooks), len(m._forward_pre_hooks)) for name, m in net.named_modules()} == before


def test_a_copy_of_the_model_has_borders_of_its_own_and_the_same_output() -> None:
    net = awkward()
    scaling = bordered(net, 8.0, GROUPS)
    twin = copy.deepcopy(net)
    x = torch.randn(3, 4)
    assert twin(x).item() == net(x).item()
    twin(torch.full((3, 4), math.nan)).backward()
    assert not scaling.borders.received.any()  # what happens to the copy is none of the original's business


def test_a_gradient_between_modules_may_have_any_size() -> None:
    # It is about 2**-125 between the factors; no loss scale that the last layer bears would lift that into float16.
    first, second = nn.Linear(4, 4), nn.Linear(4, 1)

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = first, second

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.second(self.first(x) * 2.0**-60 * 2.0**60)
            return out

    net = Net()
    scaling = bordered(net, [2.0**70, 2.0**65], [["first"], ["second"]])
    with torch.autocast("cpu", torch.float16):
        y = net(torch.ones(2, 4))
    (y.sum() * 2.0**-65).backward()
    scaling.unscale_(list(net.parameters()), torch.zeros(()))
    expected = second.weight.detach().reshape(-1, 1).expand(4, 4) * 2 * 2.0**-65
    torch.testing.assert_close(first.weight.grad, expected, rtol=2e-3, atol=0.0)


# -- what is wrong ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("groups", "words"),
    [
        ([], "has no groups; assign `loss_scale_groups`"),
        ([["0.weight"], ["1", "0.bias"]], r"group 1 \(0\) of `loss_scale_groups` holds no whole module"),
    ],
    ids=["none", "parts of a module"],
)
def test_groups_that_cannot_be_trained_are_refused(groups: list[list[str]], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        bordered(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1)), 8.0, groups)


def test_a_tied_weight_across_groups_is_refused_and_inside_one_it_is_not() -> None:
    net = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2))
    net[2].weight = net[0].weight
    with pytest.raises(ValueError, match=r"parameter 0\.weight is used by several modules with different loss scales"):
        bordered(net, 8.0, [["0"], ["2.bias"]])
    scaling = bordered(net, 8.0, [[*net.parameters()]])
    loss = scaling.seed(net(torch.ones(1, 2)).sum())
    loss.backward()  # type: ignore[no-untyped-call]


class Tied(nn.Module):
    """A head that uses the embedding's weight itself."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.body = nn.Embedding(5, 4), nn.Linear(4, 4)

    def forward(self, index: Tensor) -> Tensor:
        return nn.functional.linear(self.body(self.embed(index)), self.embed.weight)


def test_a_weight_used_outside_its_module_is_found_before_it_does_harm() -> None:
    net = Tied()
    scaling = bordered(net, 8.0, [["embed"], ["body"]])
    with pytest.raises(RuntimeError, match=r"embed\.weight belongs to group 1 \(embed\).*in group 1.*and in no group"):
        scaling.seed(net(torch.tensor([0, 1])).sum())


def test_marks_that_do_not_fit_the_groups_are_found_before_they_do_harm() -> None:
    net = marked_net()
    net.amp.loss_scale_groups = [["fc1", "fc2"], ["fc3"]]
    scaling = GroupLossScaling.from_manager(net.amp, net)
    with pytest.raises(RuntimeError, match=r"fc2\.\w+ belongs to group 1 \(fc1, fc2\), but .* in group 2 \(fc3\)"):
        scaling.seed(net(torch.ones(1, 4)).sum())


def test_a_compiled_model_is_refused_with_a_sentence() -> None:
    net = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
    scaling = bordered(net, 8.0, [["0"], ["1"]])
    compiled = torch.compile(net, backend="aot_eager")
    with pytest.raises(RuntimeError, match=r"do not work with torch\.compile.*train without it"):
        scaling.seed(compiled(torch.ones(1, 2)).sum())
    grouped = {"boost": {"mode": "manual", "loss_scale_group": True}, "loss_scale": {"kind": "dynamic"}}
    with pytest.raises(RuntimeError, match=r"do not work with torch\.compile.*train without it"):
        apply(grouped, torch.compile(net, backend="eager"), SGD(net.parameters(), lr=0.1), level="O0")  # type: ignore[arg-type]
    torch.compiler.reset()


def test_a_loose_parameter_named_in_a_group_keeps_scale_one_with_a_warning() -> None:
    with pytest.warns(UserWarning, match="position: used by a module that also holds parameters of other groups"):
        bordered(awkward(), 8.0, [["layers", "branch", "position"], ["norm"]])


# -- overflow ---------------------------------------------------------------------------------------------------------


def chain(n: int = 3) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Linear(4, 4) for _ in range(n)))


def scaled_chain(
    init: Any, n: int = 3, accumulation_steps: int = 1, **options: Any
) -> tuple[nn.Sequential, GroupLossScaling, Boosted]:
    """Return a chain of which each layer is a group, its scales, and both under SGD."""
    net = chain(n)
    scaling = bordered(net, init, [[str(layer)] for layer in range(n)], **options)
    optimizer = SGD(net.parameters(), lr=1e-6, momentum=0.9, fused=True)
    return net, scaling, Boosted(net, optimizer, loss_scaling=scaling, accumulation_steps=accumulation_steps)


@contextmanager
def overflow_at(net: nn.Sequential, index: int) -> Iterator[None]:
    """Make the backward pass of one module end in inf: its weight's gradient, and what it hands on."""

    def spoil(module: nn.Module, grad_input: Any, grad_output: Any) -> Any:
        return tuple(g * math.inf if g is not None else None for g in grad_input)

    weight = net[index].weight
    assert isinstance(weight, nn.Parameter)
    handles = [weight.register_hook(lambda gradient: gradient * math.inf)]  # type: ignore[no-untyped-call]
    if index:  # the first one hands nothing on
        handles.append(net[index].register_full_backward_hook(spoil))
    yield
    for handle in handles:
        handle.remove()


@pytest.mark.parametrize(
    ("at", "expected"), [(0, [32.0, 64.0, 64.0]), (1, [64.0, 32.0, 64.0]), (2, [64.0, 64.0, 32.0])]
)
@pytest.mark.parametrize("n_steps", [1, 2])
def test_only_the_group_where_an_overflow_arose_loses_scale(at: int, expected: list[float], n_steps: int) -> None:
    rule = {"reduce_ratio": 0.5, "growth_ratio": 2.0, "growth_window": 2}
    net, scaling, boosted = scaled_chain(64.0, accumulation_steps=n_steps, **rule)
    before = copy.deepcopy(net.state_dict())
    for micro in range(n_steps):
        with overflow_at(net, at) if micro == 0 else nullcontext():
            boosted.backward(net(torch.ones(2, 4)).sum())
        outcome = boosted.step()
    assert bool(outcome.overflow)
    assert scaling.manager.group_scales.tolist() == expected
    assert scaling.manager.overflow_status.tolist() == [group == at for group in range(3)]
    for name, value in net.state_dict().items():
        assert torch.equal(value, before[name])
    # Groups before the one that broke only received it: they have not counted the step, those behind it have.
    assert scaling.manager.finite_steps.tolist() == [int(group > at) for group in range(3)]


def test_gradients_outside_of_all_groups_and_missing_ones_are_unscaled_as_they_should() -> None:
    net = chain()
    scaling = bordered(net, 64.0, [["0"], ["1"]], reduce_ratio=0.5, growth_ratio=1.0)
    parameters = list(net.parameters())
    for parameter in parameters:
        parameter.grad = torch.full_like(parameter, 128.0)
    parameters[0].grad = None
    found_inf = torch.zeros(())
    scaling.unscale_(parameters, found_inf)
    assert found_inf.item() == 0.0
    scaling.after_window(found_inf > 0)
    carried = [64.0 if name.startswith(("0", "1")) else 1.0 for name, _ in net.named_parameters()]
    for parameter, scale in zip(parameters[1:], carried[1:], strict=True):
        assert parameter.grad.unique().tolist() == [128.0 / scale]
    for parameter in parameters:
        parameter.grad = torch.ones_like(parameter)
    parameters[-1].grad.view(-1)[0] = torch.inf
    scaling.unscale_(parameters, found_inf)
    scaling.after_window(found_inf > 0)
    assert found_inf.item() == 1.0
    assert scaling.manager.group_scales.tolist() == [32.0, 32.0]  # as nobody inside is to blame


def test_an_overflow_is_forgotten_before_the_next_step() -> None:
    net, scaling, boosted = scaled_chain(64.0, reduce_ratio=0.5, growth_ratio=1.0)
    for at, expected in ((2, [64.0, 64.0, 32.0]), (0, [32.0, 64.0, 32.0])):
        with overflow_at(net, at):
            boosted.backward(net(torch.ones(2, 4)).sum())
        boosted.step()
        assert scaling.manager.group_scales.tolist() == expected


def test_where_no_group_is_to_blame_all_scales_fall_to_their_floor() -> None:
    net, scaling, boosted = scaled_chain(4.0, reduce_ratio=0.5, minimum=1.0)
    for expected in (2.0, 1.0, 1.0):
        boosted.backward(net(torch.ones(2, 4)).sum() * math.nan)
        assert bool(boosted.step().overflow)
        assert scaling.manager.group_scales.tolist() == [expected] * 3


def test_ranks_agree_where_an_overflow_arose() -> None:
    # Gradients were averaged: the inf that the other rank's last layer made is in every parameter here, too.
    net, scaling, _ = scaled_chain(8.0, reduce_ratio=0.5, growth_ratio=1.0)
    net(torch.ones(2, 4)).sum().backward()
    for parameter in net.parameters():
        parameter.grad.fill_(math.inf)

    def other_rank(flags: Tensor) -> None:
        theirs = torch.tensor([[1.0, 1.0, 0.0, 1.0], [1.0, 1.0, 1.0, 1.0], [1.0, 1.0, 1.0, 0.0]])
        flags.copy_(torch.maximum(flags, theirs))

    scaling.agree = other_rank
    found = torch.zeros(())
    scaling.unscale_(list(net.parameters()), found)
    scaling.after_window(found > 0)
    assert scaling.manager.group_scales.tolist() == [8.0, 8.0, 4.0]


# -- automatic groups -------------------------------------------------------------------------------------------------


class Head(nn.Module):
    def __init__(self, power: int) -> None:
        super().__init__()
        self.a, self.b, self.power = nn.Linear(4, 8), nn.Linear(8, 1), power

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.b(torch.tanh(self.a(x))).float() * 2.0**self.power
        return out


class BadlyScaled(nn.Module):
    """Three heads whose outputs, and so their gradients, differ by 2**22 each; forward all fits float16."""

    powers = (-22, 0, 22)

    def __init__(self) -> None:
        super().__init__()
        self.heads = nn.ModuleList(Head(power) for power in self.powers)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([head(x) for head in self.heads], dim=1)


def units_of_heads() -> Tensor:
    return torch.tensor([2.0**power for power in BadlyScaled.powers])


def badly_scaled_data() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(64, 4, generator=generator)
    return x, torch.tanh(x @ torch.randn(4, 3, generator=generator)) * units_of_heads()


def relative_errors(net: nn.Module) -> list[float]:
    """Mean squared error of each head over the mean square of its target: 1 is no better than nothing."""
    x, y = badly_scaled_data()
    with torch.no_grad():
        errors: list[float] = ((net(x) - y).square().mean(0) / y.square().mean(0)).tolist()
    return errors


def train_badly_scaled(
    scaling_of: Callable[[nn.Module], LossScaling], level: str = "O2", steps: int = 150
) -> tuple[list[float], int, Boosted]:
    """Return the relative errors after training, and how many steps overflowed."""
    torch.manual_seed(1)
    net = BadlyScaled()
    x, y = badly_scaled_data()
    # Adam does not mind the size of a gradient, as long as there is one; its eps must not either.
    optimizer = Adam(net.parameters(), lr=0.02, eps=1e-30, fused=True)
    boosted = Boosted(net, optimizer, loss_scaling=scaling_of(net), precision=Precision(level, "float16", "cpu"))
    overflows = 0
    for _ in range(steps):
        with boosted.autocast():
            loss = ((net(x) - y).square().mean(0) / units_of_heads()).sum()
        boosted.backward(loss)
        overflows += int(boosted.step().overflow)
    return relative_errors(net), overflows, boosted


def automatic(net: nn.Module, **rule: Any) -> GroupLossScaling:
    rule = {"kind": "dynamic", "groups": 3, "window": 50} | rule
    scaling = GroupLossScaling.from_config(BoostConfig.from_dict({"loss_scale": rule}), net, CPU)
    assert isinstance(scaling, GroupLossScaling)
    return scaling


def test_a_badly_scaled_net_trains_in_float16_with_automatic_group_scales() -> None:
    exact, _, _ = train_badly_scaled(lambda net: LossScaling(), level="O0")
    grouped, overflows, boosted = train_badly_scaled(automatic)
    assert max(exact) < 0.05
    assert grouped == pytest.approx(exact, rel=0.3)
    assert overflows <= 3
    scaling: Any = boosted.loss_scaling
    assert set(scaling.borders.units) == {"heads.0", "heads.1", "heads.2"}
    assert scaling.manager.group_scales.min() < 1.0 < scaling.manager.group_scales.max()


@pytest.mark.parametrize("power", range(-40, 41, 20))
def test_no_single_scale_trains_the_badly_scaled_net(power: int) -> None:
    scale = 2.0**power

    def fixed(net: nn.Module) -> LossScaling:
        return LossScaling(scale, FixedLossScaleUpdateCell(max(scale, 1.0)), drop_overflow_update=True)

    errors, overflows, _ = train_badly_scaled(fixed, steps=60)
    assert overflows == 60 or max(errors) > 0.5


@pytest.mark.long
def test_the_study_s_configurations_show_the_same_from_the_command_line_down() -> None:
    study = Path(__file__).parents[2] / "studies" / "group_scale"
    task = load_task(f"{study / 'badly_scaled.py'}:task")
    errors = {
        name: train(task, study / "configs" / f"{name}.json", steps=150, device="cpu", out=None).metric
        for name in ("float32", "group", "dynamic")
    }
    assert errors["group"] == pytest.approx(errors["float32"], rel=0.1)
    assert errors["float32"] < 0.05
    assert errors["dynamic"] > 0.5


def test_the_first_window_is_an_ordinary_float32_step() -> None:
    torch.manual_seed(1)
    net = BadlyScaled()
    plain = copy.deepcopy(net)
    x, y = badly_scaled_data()
    for model, scaling, level in ((plain, LossScaling(), "O0"), (net, automatic(net), "O2")):
        precision = Precision(level, "float16", "cpu")
        boosted = boosted_with(model, scaling, 1e-8, accumulation_steps=2, precision=precision)
        for rows in (slice(32), slice(32, None)):
            with boosted.autocast():
                loss = (model(x[rows]) - y[rows]).square().mean()
            boosted.backward(loss)
            outcome = boosted.step()
        assert outcome.group_scales is None
    assert_same_bits(net, plain)
    assert boosted.loss_scaling.group_scales is not None


def test_a_window_that_overflows_float32_is_looked_at_again() -> None:
    net = BadlyScaled()
    boosted = boosted_with(net, automatic(net))
    x, _ = badly_scaled_data()
    boosted.backward(net(x).sum() * math.inf)
    assert bool(boosted.step().overflow)
    assert not boosted.loss_scaling.autocast_allowed
    boosted.backward(net(x).sum())
    assert not bool(boosted.step().overflow)
    assert boosted.loss_scaling.autocast_allowed


def test_floor_and_ceiling_are_relative_to_the_scale_that_was_found() -> None:
    net, rule = BadlyScaled(), {"init": 1024.0, "minimum": 256.0, "maximum": 2048.0}
    scaling = automatic(net, **rule)
    boosted = boosted_with(net, scaling)
    boosted.backward(net(badly_scaled_data()[0]).sum())
    boosted.step()
    manager = scaling.manager
    assert (manager.floors * 4).tolist() == manager.group_scales.tolist() == (manager.ceilings / 2).tolist()
    resumed = automatic(BadlyScaled(), **rule)
    resumed.load_state_dict(scaling.state_dict())
    assert resumed.minimum == scaling.minimum == manager.floors[0].item()


class Attention(nn.Module):
    """Multiplies matrices itself, so it must not be divided: between its layers the scale would be 1."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return torch.softmax(self.q(x) @ self.k(x).T, -1) @ x


def calibrated(net: nn.Module, loss_of: Callable[[nn.Module], Tensor]) -> GroupLossScaling:
    scaling = automatic(net)
    boosted = boosted_with(net, scaling)
    for _ in range(2):  # the second step checks what the first decided
        boosted.backward(loss_of(net))
        boosted.step()
    return scaling


class Attended(nn.Module):
    """An attention, whose gradients are tiny, beside a linear layer."""

    def __init__(self, attention: nn.Module) -> None:
        super().__init__()
        self.attention, self.head = attention, nn.Linear(4, 1)

    def forward(self, x: Tensor) -> Tensor:
        own = isinstance(self.attention, Attention)
        attended = self.attention(x) if own else self.attention(x, x, x)[0].square()
        out: Tensor = attended.mean() * 2.0**-50 + self.head(x).mean()
        return out


@pytest.mark.parametrize(
    ("attention", "shape"),
    [
        pytest.param(Attention, (3, 4), id="multiplies matrices itself"),
        pytest.param(lambda: nn.MultiheadAttention(4, 2), (3, 1, 4), id="uses its output weight itself"),
    ],
)
def test_an_attention_is_not_divided(attention: Callable[[], nn.Module], shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    scaling = calibrated(Attended(attention()), lambda net: net(torch.randn(shape)))
    assert scaling.borders.units == {"attention": 0, "head": 1}


def test_a_tied_head_makes_its_model_one_group() -> None:
    scaling = calibrated(Tied(), lambda net: net(torch.tensor([0, 1])).square().mean())
    assert scaling.borders.units == {"": 0}


def test_units_that_share_a_weight_are_one_part_and_one_used_outside_has_none() -> None:
    net = nn.Sequential(*(nn.Linear(2, 2) for _ in range(4)))
    net[1].weight = net[0].weight
    names = ["", "0", "1", "2", "3"]
    weights = [next(net[i].parameters()) for i in range(4)]
    regions: dict[Tensor, set[Any]] = {weights[0]: {1, 2}, weights[2]: {3}, weights[3]: {4, None}}
    assert joined_units(net, ["0", "1", "2", "3"], regions, names) == [["0", "1"], ["2"]]
    regions[weights[2]] = {3, 1}  # unit 0 uses a weight of unit 2
    assert joined_units(net, ["0", "1", "2"], regions, names) == [["0", "1", "2"]]


def test_frozen_layers_are_waited_for_and_join_a_neighbour_when_they_stay_frozen() -> None:
    net = chain()
    net[0].requires_grad_(False)
    scaling = automatic(net)
    boosted = boosted_with(net, scaling)
    windows = 0
    while not scaling.autocast_allowed:
        boosted.backward(net(torch.ones(2, 4)).sum())
        boosted.step()
        windows += 1
    assert windows == 8
    net[0].requires_grad_(True)
    boosted.backward(net(torch.ones(2, 4)).sum())
    assert not bool(boosted.step().overflow)


# -- state ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cut", [0, 1, 3, 4, 7])  # while groups are found, and later; between windows and within one
def test_training_resumed_or_copied_at_any_micro_batch_is_the_same(cut: int) -> None:
    def build() -> tuple[nn.Module, Boosted]:
        torch.manual_seed(1)
        net = BadlyScaled()
        optimizer, scaling = Adam(net.parameters(), lr=0.01, fused=True), automatic(net, groups=2, window=2)
        precision = Precision("O2", "float16", "cpu")
        return net, Boosted(net, optimizer, loss_scaling=scaling, accumulation_steps=2, precision=precision)

    def run(net: nn.Module, boosted: Boosted, steps: range) -> list[list[float] | None]:
        x, y = badly_scaled_data()
        scales = []
        for step in steps:
            with boosted.autocast():
                loss = ((net(x) - y) / units_of_heads()).square().mean() * (math.inf if step == 5 else 1.0)
            boosted.backward(loss)
            used = boosted.step().group_scales
            scales.append(None if used is None else used.tolist())
        return scales

    net, boosted = build()
    expected = run(net, boosted, range(10))
    first, interrupted = build()
    run(first, interrupted, range(cut))
    second, resumed = build()
    resumed.load_state_dict(copy.deepcopy(interrupted.state_dict()))
    copied = copy.deepcopy(interrupted)
    del interrupted.loss_scaling  # the copy has to go without
    for model, boosted in ((second, resumed), (copied.model, copied)):
        assert run(model, boosted, range(cut, 10)) == expected[cut:]
        assert_same_bits(model, net)


def test_what_was_seen_before_a_checkpoint_or_a_copy_decides_about_the_scales_too() -> None:
    def build() -> Boosted:
        torch.manual_seed(1)
        net = chain()
        net[0].requires_grad_(False)  # so that several windows are looked at
        return boosted_with(net, automatic(net))

    def scales_after(boosted: Boosted, windows: range) -> list[float]:
        for window in windows:
            boosted.backward(boosted.model(torch.ones(2, 4)).sum() * (1.0 if window == 0 else 2.0**-20))
            boosted.step()
        assert boosted.loss_scaling.autocast_allowed == (windows.stop == 8)
        return boosted.loss_scaling.manager.group_scales.tolist()

    whole, interrupted, resumed = build(), build(), build()
    expected = scales_after(whole, range(8))
    scales_after(interrupted, range(1))
    resumed.load_state_dict(copy.deepcopy(interrupted.state_dict()))
    assert scales_after(resumed, range(1, 8)) == scales_after(copy.deepcopy(interrupted), range(1, 8)) == expected


class UsedOutside(nn.Module):
    """A layer whose weight is also used beside it, where the scale is 1, and another one."""

    def __init__(self) -> None:
        super().__init__()
        self.front, self.head = nn.Linear(4, 4), nn.Linear(4, 1)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.front(x) * self.front.weight.sum())
        return out


def test_what_the_graph_showed_before_a_checkpoint_decides_about_the_borders_too() -> None:
    boosted, resumed = (boosted_with(net, automatic(net)) for net in (UsedOutside(), UsedOutside()))
    # The first one says nothing about scales, so the probe looks again.
    boosted.backward(boosted.model(torch.ones(2, 4)).sum() * math.inf)
    boosted.step()
    resumed.load_state_dict(copy.deepcopy(boosted.state_dict()))
    for frozen in [True] * 7 + [False]:
        resumed.model.front.requires_grad_(not frozen)
        resumed.backward(resumed.model(torch.ones(2, 4)).sum())
        resumed.step()
    assert resumed.loss_scaling.borders.units == {"head": 0}


def test_a_step_reads_nothing_from_the_device() -> None:
    net, _, boosted = scaled_chain(8.0)
    for _ in range(2):
        with forbid_host_reads():
            boosted.backward(net(torch.ones(2, 4)).sum())
            boosted.step()


def test_the_trace_records_every_groups_scale_and_what_happened_to_it() -> None:
    net, _, boosted = scaled_chain([8.0, 2.0, 4.0], reduce_ratio=0.5, growth_ratio=2.0, growth_window=2)
    trace = TraceBuffer(boosted, exponents_every=1)
    for step in range(4):
        with overflow_at(net, 1) if step else nullcontext():
            boosted.backward(net(torch.ones(2, 4)).sum())
        trace.record(boosted.step(), 2)
    records, events = trace.drain()
    assert [record.group_scales for record in records] == [(8, 2, 4), (8, 2, 4), (8, 1, 8), (8, 1, 8)]
    assert [record.overflow for record in records] == [False, True, True, True]
    assert [record.columns.get("loss_scale.at_floor") for record in records] == [None, None, 1.0, 1.0]
    told = [(event.step, event.kind.value, event.subject, event.value) for event in events if event.kind != "overflow"]
    assert told == [
        (1, "scale_down", "group 2 (1)", 1.0),
        (1, "scale_up", "group 3 (2)", 8.0),
        (2, "scale_floor", "", 8.0),
        (3, "scale_up", "group 3 (2)", 16.0),
    ]
    assert [event.subject for event in events if event.kind == "overflow"] == ["1, 0"] * 3


def test_the_trace_tells_which_groups_were_found_and_sees_float16_gradients_from_then_on() -> None:
    torch.manual_seed(1)
    net = BadlyScaled()
    boosted = boosted_with(net, automatic(net), precision=Precision("O2", "float16", "cpu"))
    trace = TraceBuffer(boosted)
    for _ in range(2):
        with boosted.autocast():
            loss = net(badly_scaled_data()[0]).sum()
        boosted.backward(loss)
        trace.record(boosted.step(), 64)
    records, events = trace.drain()
    assert ["amp.float16_grad_amax" in record.columns for record in records] == [False, True]
    found = records[1].group_scales
    assert records[0].group_scales == (1.0, 1.0, 1.0)
    assert [(e.step, e.kind.value, e.subject, e.value) for e in events] == [
        (0, "scale_up" if scale > 1 else "scale_down", f"group {k + 1} (heads.{k}.a, heads.{k}.b)", scale)
        for k, scale in enumerate(found)
    ]


def test_the_underflow_share_is_that_at_every_gradients_own_scale() -> None:
    net, _, boosted = scaled_chain([2.0**40, 1.0], 2)
    trace = TraceBuffer(boosted, exponents_every=1)
    boosted.backward(net(torch.ones(2, 4)).sum() * 2.0**-40)
    trace.record(boosted.step(), 2)
    ((record,), _) = trace.drain()
    assert record.underflow_share == 0.5  # all of the second layer, none of the first


def test_the_creeping_growth_of_the_references_rule_is_told_once_per_octave() -> None:
    net, _, boosted = scaled_chain(4.0, 1, growth_ratio=2.0 ** (1 / 8))
    trace = TraceBuffer(boosted)
    for _ in range(20):
        boosted.backward(net(torch.ones(2, 4)).sum())
        trace.record(boosted.step(), 2)
    _, events = trace.drain()
    assert [event.kind.value for event in events] == ["scale_up"] * 2


@pytest.mark.parametrize("cell", [TrainOneStepWithLossScaleCell, BoostTrainOneStepWithLossScaleCell])
def test_the_training_cells_take_a_manager(cell: Any) -> None:
    net = marked_net()
    step = cell(WithLossCell(net, nn.MSELoss()), SGD(net.parameters(), lr=0.1, fused=True), net.amp)
    _, overflow, scale = step(torch.ones(2, 4), torch.zeros(2, 3))
    assert not overflow
    assert scale.item() == pytest.approx(64 * 2 ** (1 / 1000))  # of the first group, after the update
    loss, overflow, scale = step(torch.full((2, 4), math.inf), torch.zeros(2, 3))
    assert overflow.dtype == torch.bool
    assert overflow
    assert not loss.isfinite()
    assert scale.item() == pytest.approx(64 * 2 ** (1 / 1000) / 2**0.5)
    assert net.amp.overflow_count.item() == 2  # the loss itself: none is to blame, so all fall


def test_without_a_dynamic_scale_there_are_no_groups() -> None:
    config = BoostConfig.from_dict({"loss_scale": {"kind": "none"}})
    scaling = GroupLossScaling.from_config(config, nn.Linear(1, 1), CPU)
    assert not isinstance(scaling, GroupLossScaling)
    assert scaling.is_unit
