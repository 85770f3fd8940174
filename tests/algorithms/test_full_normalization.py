"""Full normalization: values and gradients, which layers are replaced, and a recorded training run."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F

from tests.golden_files import golden_paths, load_npz
from tests.golden_networks import assert_training, assert_trajectory, build_network, build_optimizer, plain_list
from workbench.methods.less_bn.full_normalization import (
    CommonHeadLastFN,
    FNScope,
    HeadRule,
    normalize_heads_,
    normalize_rows,
)
from workbench.methods.less_bn.network_graph import TraceError, read_graph


def replace_heads_(net: nn.Module, scope: Any = "head", bias: Any = "keep") -> tuple[tuple[str, ...], str]:
    try:
        graphs = [read_graph(net)]
    except TraceError:
        graphs = []
    return normalize_heads_(net, HeadRule(scope, bias), graphs=graphs)


def layer_cases() -> list[Any]:
    return [
        pytest.param(path, case, id=f"{path.stem}-{case['index']}")
        for path in golden_paths("fn_layer*.npz")
        for case in load_npz(path)[0]["cases"]
    ]


def replacement_cases() -> list[Any]:
    cases = []
    for path in golden_paths("fn_replacement*.npz"):
        for name, case in load_npz(path)[0]["cases"].items():
            if isinstance(case, dict) and "layers_before" in case:
                cases.append(pytest.param(path, name, case, id=f"{path.stem}-{name}"))
    return cases


def below(prefix: str, arrays: Mapping[str, np.ndarray]) -> dict[str, Tensor]:
    """Return the arrays whose names begin with a prefix, without it."""
    return {k.removeprefix(prefix): torch.from_numpy(v) for k, v in arrays.items() if k.startswith(prefix)}


@pytest.mark.parametrize(("path", "case"), layer_cases())
def test_layer_and_gradients_equal_golden(path: Path, case: dict[str, Any]) -> None:
    recorded = below(f"{case['index']}/", load_npz(path)[1])
    layer = CommonHeadLastFN(case["in_channels"], case["out_channels"], bias=case["has_bias"])
    assert [tuple(p.shape) for p in layer.parameters()] == [tuple(shape) for shape in case["shapes"]]
    layer.load_state_dict({name: recorded[name] for name in case["param_names"]})
    x = recorded["x"].requires_grad_()
    out = layer(x)
    torch.testing.assert_close(out, recorded["out"], rtol=1e-4, atol=1e-5)
    out.backward(recorded["dout"])
    torch.testing.assert_close(x.grad, recorded["dx"], rtol=1e-4, atol=1e-5)
    for name, parameter in layer.named_parameters():
        torch.testing.assert_close(parameter.grad, recorded[f"d_{name}"], rtol=1e-4, atol=1e-5)


class Middle(nn.Module):
    def __init__(self, shapes: Mapping[str, tuple[int, ...]], bias: bool) -> None:
        super().__init__()
        self.d1 = linear_of(shapes["mid.d1"], bias)
        self.d2 = linear_of(shapes["mid.d2"], bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.d2(F.relu(self.d1(x)))


class Nested(nn.Module):
    """Linear layers in three modules: at the top, in a child, in a Sequential."""

    def __init__(self, shapes: Mapping[str, tuple[int, ...]], bias: bool) -> None:
        super().__init__()
        self.inp = linear_of(shapes["inp"], bias)
        self.mid = Middle(shapes, bias)
        self.out = linear_of(shapes["out"], bias)
        self.seq = nn.Sequential(linear_of(shapes["seq.0"], bias), nn.ReLU(), linear_of(shapes["seq.2"], bias))

    def forward(self, x: Tensor) -> Tensor:
        return self.seq(F.relu(self.out(self.mid(F.relu(self.inp(x))))))


class LastRegisteredFirst(nn.Module):
    """The layer that runs last is registered first."""

    def __init__(self, shapes: Mapping[str, tuple[int, ...]], bias: bool) -> None:
        super().__init__()
        self.last = linear_of(shapes["last"], bias)
        self.first = linear_of(shapes["first"], bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(F.relu(self.first(x)))


def linear_of(shape: tuple[int, ...], bias: bool) -> nn.Linear:
    return nn.Linear(shape[1], shape[0], bias=bias)


def build_replacement_net(name: str, weights: Mapping[str, Tensor]) -> nn.Module | None:
    shapes = {key.rpartition(".")[0]: tuple(value.shape) for key, value in weights.items() if key.endswith("weight")}
    bias = any(key.endswith("bias") for key in weights)
    net: nn.Module
    if all(key.startswith("fc") for key in shapes):
        ordered = [shapes[f"fc{i + 1}"] for i in range(len(shapes))]
        net = build_network({"kind": "MLP", "dims": [ordered[0][1], *(shape[0] for shape in ordered)]}, torch.float32)
        if not bias:
            for index in range(len(shapes)):
                setattr(net, f"fc{index + 1}", linear_of(ordered[index], bias))
    elif name == "nested":
        net = Nested(shapes, bias)
    elif name == "registration_order":
        net = LastRegisteredFirst(shapes, bias)
    elif name == "sequential":
        net = nn.Sequential(linear_of(shapes["0"], bias), nn.ReLU(), linear_of(shapes["2"], bias))
    elif name == "sequential_in_sequential":
        inner = nn.Sequential(linear_of(shapes["1.0"], bias), linear_of(shapes["1.1"], bias))
        net = nn.Sequential(nn.Sequential(linear_of(shapes["0.0"], bias), nn.ReLU()), inner)
    else:
        return None
    net.load_state_dict(dict(weights))
    return net


@pytest.mark.parametrize(("path", "name", "case"), replacement_cases())
def test_every_module_scope_replaces_the_golden_layers(path: Path, name: str, case: dict[str, Any]) -> None:
    _, arrays = load_npz(path)
    weights = below(f"{name}/w/", arrays)
    net = build_replacement_net(name, weights)
    if net is None:
        pytest.skip(f"no builder for the recorded network {name!r}")
    x = torch.from_numpy(arrays[f"{name}/x"])
    before = net(x)
    rebuilt = np.allclose(before.detach().numpy(), arrays[f"{name}/out_before"], rtol=1e-4, atol=1e-5)
    original = copy.deepcopy(net)
    replaced, _ = replace_heads_(net, scope="every_module", bias="drop")
    assert sorted(replaced) == sorted(case["replaced_by_FN"])
    trainable = {parameter.split("_backbone.")[-1] for parameter in case["trainable_after"]}
    assert {parameter for parameter, _ in net.named_parameters()} == trainable
    for layer in replaced:
        torch.testing.assert_close(net.get_submodule(layer).weight, weights[f"{layer}.weight"], rtol=0, atol=0)
    if not rebuilt:
        pytest.skip(f"layers checked; the outputs of {name!r} are not, its forward could not be rebuilt")
    after = net(x)
    assert not torch.allclose(after, before)
    # The recorded network registers a new layer inside a sequential cell without using it; here it is really used.
    # With the old layers back in those places, the recorded output must come out.
    unused = [layer for layer in replaced if isinstance(net.get_submodule(layer.rpartition(".")[0]), nn.Sequential)]
    for layer in unused:
        net.set_submodule(layer, original.get_submodule(layer))
    torch.testing.assert_close(net(x), torch.from_numpy(arrays[f"{name}/out_after"]), rtol=1e-4, atol=1e-5)
    assert case["forward_changed"] == (len(unused) < len(replaced))


@pytest.mark.parametrize("path", golden_paths("fn_train*.npz"), ids=lambda path: path.stem)
def test_golden_training_with_a_normalized_head_is_reproduced(path: Path) -> None:
    meta, arrays = load_npz(path)
    net = build_network(meta["net"])
    initial = {k.removeprefix("dense_init/"): torch.from_numpy(v) for k, v in arrays.items() if "dense_init/" in k}
    absent, unknown = net.load_state_dict(initial, strict=False)  # statistics need not be recorded
    assert not unknown
    assert not {*absent} & {name for name, _ in net.named_parameters()}
    replace_heads_(net, bias="drop")
    assert_trajectory(net, arrays, 0)
    assert_training(net, build_optimizer(meta, plain_list(net)), meta, arrays)


ROWS = st.lists(st.tuples(*[st.floats(-1e3, 1e3, width=32)] * 3), min_size=1, max_size=4)


@given(ROWS, st.floats(0.5, 100))
@settings(max_examples=30)
def test_long_rows_become_unit_rows_whatever_their_length(values: list[tuple[float, ...]], factor: float) -> None:
    rows = torch.tensor(values, dtype=torch.float64)
    length = rows.norm(dim=-1)
    normalized = normalize_rows(rows)
    expected = rows / length.clamp_min(0.01).unsqueeze(-1)
    torch.testing.assert_close(normalized, expected, rtol=1e-9, atol=1e-12)
    long = length * min(factor, 1.0) >= 0.01
    torch.testing.assert_close(normalize_rows(rows * factor)[long], normalized[long], rtol=1e-9, atol=1e-12)


def test_gradient_of_long_rows_is_the_derivative() -> None:
    rows = torch.randn(4, 5, dtype=torch.float64).requires_grad_()
    assert torch.autograd.gradcheck(normalize_rows, rows)


def test_gradient_of_short_rows_is_the_recorded_one_and_finite_at_zero() -> None:
    rows = torch.tensor([[0.003, 0.004], [0.0, 0.0]], dtype=torch.float64, requires_grad=True)
    normalize_rows(rows).backward(torch.ones(2, 2, dtype=torch.float64))
    unit = torch.tensor([0.3, 0.4], dtype=torch.float64)
    expected = torch.stack([(1 - unit * 0.7) / 0.005, torch.full((2,), 1e4, dtype=torch.float64)])
    torch.testing.assert_close(rows.grad, expected)


def test_half_precision_rows_do_not_overflow_and_keep_their_type() -> None:
    rows = torch.full((2, 4), 3000.0, dtype=torch.float16)
    normalized = normalize_rows(rows)
    assert normalized.dtype == torch.float16
    torch.testing.assert_close(normalized, torch.full((2, 4), 0.5, dtype=torch.float16))


def test_scores_of_sequences_are_normalized_along_the_last_axis() -> None:
    layer = CommonHeadLastFN(5, 3, bias=True)
    x = torch.randn(2, 7, 5)
    torch.testing.assert_close(layer(x)[1, 4], layer(x[1, 4].unsqueeze(0))[0])


def test_head_scope_leaves_a_model_alone_whose_graph_is_out_of_reach() -> None:
    class Untraceable(LastRegisteredFirst):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) if x.sum() > 0 else super().forward(-x)

    net = Untraceable({"last": (2, 5), "first": (5, 4)}, True)
    assert replace_heads_(net) == ((), "what feeds the output is not known")
    assert type(net.last) is nn.Linear


@pytest.mark.parametrize("bias", ["keep", "drop"])
def test_replaced_head_computes_the_formula_with_copied_weights(bias: str) -> None:
    net = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3))
    original = net[2]
    x = torch.randn(6, 4)
    hidden = net[:2](x)
    expected = F.normalize(hidden, dim=-1) @ F.normalize(original.weight, dim=-1).T
    if bias == "keep":
        expected = expected + original.bias
    assert replace_heads_(net, bias=bias) == (("2",), "")
    torch.testing.assert_close(net(x), expected)
    head = net[2]
    assert head.weight is not original.weight
    assert head.is_full_normalization is True
    assert (head.bias is None) == (bias == "drop")
    assert head.multiplier.shape == (1,)


def test_a_second_call_changes_nothing_and_a_bare_linear_is_left_alone() -> None:
    net = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3))
    replace_heads_(net)
    head = net[2]
    assert replace_heads_(net) == ((), "")
    assert replace_heads_(net, scope="every_module") == ((), "")
    assert net[2] is head
    assert type(net[0]) is nn.Linear
    assert replace_heads_(nn.Linear(4, 3)) == ((), "the output comes from an operation, not from a Linear")


class Attending(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention, self.head = nn.MultiheadAttention(4, 2), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.attention(x, x, x)[0])


@pytest.mark.parametrize("scope", ["head", "every_module"])
def test_attention_keeps_its_output_projection(scope: FNScope) -> None:
    net = Attending()
    assert replace_heads_(net, scope=scope) == (("head",), "")
    net(torch.randn(5, 1, 4))


def test_a_transformer_layer_which_reads_its_weights_in_evaluation_keeps_its_linears() -> None:
    net = nn.Sequential(nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True), nn.Linear(4, 3))
    assert replace_heads_(net, scope="every_module", bias="drop") == (("1",), "")
    x = torch.randn(2, 5, 4)
    trained = net(x)
    with torch.no_grad():
        torch.testing.assert_close(net.eval()(x), trained)


def test_a_head_registered_under_two_names_is_replaced_under_both() -> None:
    net = LastRegisteredFirst({"last": (2, 5), "first": (5, 4)}, True)
    net.alias = net.last
    assert replace_heads_(net) == (("last",), "")
    assert net.alias is net.last  # which runs last, though it is registered first
    assert isinstance(net.alias, CommonHeadLastFN)
    assert type(net.first) is nn.Linear


def test_unknown_words_and_sizes_below_one_are_errors() -> None:
    with pytest.raises(ValueError, match='`fn_scope` must be "classifier", "every_module" or "head", got \'all\''):
        HeadRule("all")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match='`fn_bias` must be "keep" or "drop", got True'):
        HeadRule(bias=True)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="`in_features` must be at least 1"):
        CommonHeadLastFN(0, 3)
