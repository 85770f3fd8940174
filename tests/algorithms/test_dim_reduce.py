"""DimReduce: the recorded steps, BFGS against its twin formula, laws of the step, exact resume, several ranks."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, distributed, multiprocessing, nn

from tests.golden_files import golden_paths, load_json, load_npz
from tests.golden_networks import build_loss, build_network, golden_batch, load_initial_weights
from tests.kit.processes import forkserver
from tests.ranks import leave_together
from workbench.methods.dim_reduce.components import component_rows
from workbench.methods.dim_reduce.method import DimReduce, sufficient_decrease, updated_curvature
from workbench.nn import WithLossCell

GRADIENT_ROUNDING = 5e-5  # of the length of a recorded gradient; other processors' tanh is another one
FLOAT32_ROUNDING = float(np.finfo(np.float32).eps)
HYPER: dict[str, Any] = {"rho": 0.55, "gamma": 0.9, "alpha": 0.05, "sigma": 0.4}


def golden_reducer(
    meta: dict[str, Any], arrays: dict[str, np.ndarray], learning_rate: float | None = None
) -> tuple[WithLossCell, DimReduce]:
    net = build_network(meta["net"])  # float64: the update amplifies rounding
    load_initial_weights(net, arrays)
    module = WithLossCell(net, build_loss(meta["loss"]))
    parameters = dict(net.named_parameters())
    weight = [parameters[name] for name in meta.get("parameter_order", parameters)]
    optimizer = None if learning_rate is None else torch.optim.SGD(weight, lr=learning_rate)
    options = {**meta["hyper"], "line_search_trials": 2, "arithmetic": "reference", "rank": 0, "rank_size": 1}
    return module, DimReduce(module, optimizer, weight, arrays["pca_mat"], meta["n_components"], **options)


def golden_step(
    module: WithLossCell,
    made: DimReduce,
    batch: tuple[Tensor, Tensor],
    sens: float,
    noise: torch.Generator | None = None,
) -> Tensor:
    loss = module(*batch)
    grads = torch.autograd.grad(loss * sens, made.weight)
    if noise is not None:
        grads = with_rounding(grads, noise)
    return made(loss, grads, made.weight, None, *batch, loss_scale=sens)


def with_rounding(grads: tuple[Tensor, ...], noise: torch.Generator) -> tuple[Tensor, ...]:
    """Add an error in a random direction, as long as the gradients of a recording may be off."""
    errors = [torch.randn(grad.shape, generator=noise, dtype=grad.dtype) for grad in grads]
    length = [torch.cat([part.reshape(-1) for part in parts]).norm() for parts in (grads, errors)]
    share = GRADIENT_ROUNDING * length[0] / length[1]
    return tuple(grad + share * error for grad, error in zip(grads, errors, strict=True))


def assert_near(found: Tensor, wanted: np.ndarray, tolerance: float, name: str, size: float = 1.0) -> None:
    """Compare a recorded vector or matrix within a share of its largest entry (of ``size`` at least)."""
    size = max(size, float(np.abs(wanted).max()))
    actual = found.detach().numpy().reshape(wanted.shape)
    np.testing.assert_allclose(actual, wanted, rtol=0, atol=tolerance * size, err_msg=name)


def set_recorded_state(made: DimReduce, meta: dict[str, Any], arrays: dict[str, np.ndarray], call: int) -> None:
    """Put the weights, and after the first call the state, to what was recorded before a call."""
    with torch.no_grad():
        for name, parameter in zip(meta["parameter_order"], made.weight, strict=True):
            parameter.copy_(torch.from_numpy(arrays[f"traj/{name}"][call]))
    if call == 0:
        return
    state = made.state_dict()
    momentum = [arrays[f"mom/{name}"][call - 1].ravel() for name in meta["parameter_order"]]
    recorded = {
        "inverse_hessian": arrays["bk"][call - 1],
        "previous_step": arrays["sk"][call - 1].ravel(),
        "previous_gradient": arrays["gk_last"][call - 1].ravel(),
        "momentum": np.concatenate(momentum),
    }
    made.load_state_dict(state | {name: torch.from_numpy(value).to(state[name]) for name, value in recorded.items()})


def quasi_newton(made: DimReduce, call: int) -> Callable[[Tensor], tuple[Tensor, Tensor]]:
    """Return inverse Hessian and direction of the coming step as functions of its gradient in the subspace."""
    state = {name: value.clone() for name, value in made.state_dict().items() if isinstance(value, Tensor)}

    def rule(gradient: Tensor) -> tuple[Tensor, Tensor]:
        curvature = state["inverse_hessian"]
        if call:
            curvature = updated_curvature(curvature, gradient - state["previous_gradient"], state["previous_step"])
        return curvature, -(curvature @ gradient)

    return rule


def assert_equal_up_to_condition(found: Tensor, wanted: Tensor, slope: Tensor, size: Tensor, name: str) -> None:
    """Compare the exact value of a function of gradients, in float64, with what float32 arithmetic recorded.

    ``slope`` is its derivative, which enlarges the rounding of the gradients that enter, whose length is ``size``.
    """
    condition = torch.linalg.matrix_norm(slope.reshape(found.numel(), -1), 2) * size + found.norm()
    terms = slope.shape[-1]  # every entry is a sum of so many products, after three others of the kind
    assert (found - wanted).norm() <= 4 * terms * FLOAT32_ROUNDING * condition, name


WHOLE_RUNS = golden_paths("dim_reduce_autoboost_*.npz")
SINGLE_STEPS = [path for path in golden_paths("dim_reduce_*.npz") if path not in WHOLE_RUNS]


@pytest.mark.parametrize("path", SINGLE_STEPS, ids=lambda path: path.stem)
def test_golden_steps_searches_and_state(path: Path) -> None:
    # Every step begins where the recorded one began. Where the curvature q is small, the update enlarges the rounding
    # of a gradient more than a hundredfold. So it is checked at the recorded gradient, up to the condition of the
    # formula there, and ours must be the same formula.
    meta, arrays = load_npz(path)
    module, made = golden_reducer(meta, arrays)
    for call in range(len(arrays["losses"])):
        set_recorded_state(made, meta, arrays, call)
        rule, before = quasi_newton(made, call), made.previous_gradient.norm()
        loss = golden_step(module, made, golden_batch(arrays, 0 if meta["fixed_batch"] else call), meta["sens"])
        np.testing.assert_allclose(loss.item(), arrays["losses"][call], rtol=1e-4)
        step = made.last_step
        if abs(step.slope) < 8 * FLOAT32_ROUNDING * abs(loss):
            continue  # converged: whether float32 losses show so small a decrease is chance
        assert step.found is meta["line_search_found"][call]
        assert step.trials == len(meta["trials_per_step"][call])
        assert step.rho == pytest.approx(meta["chosen_rho"][call])
        assert_near(step.gradient, arrays["gk"][call], 2e-4, "gk")
        recorded = {name: torch.from_numpy(arrays[name][call]).double() for name in ("gk", "dk", "bk", "gk_last", "sk")}
        gradient = recorded["gk"].reshape(-1)
        values, slopes = rule(gradient), torch.autograd.functional.jacobian(rule, gradient)
        size = gradient.norm() + before
        assert_equal_up_to_condition(values[1], recorded["dk"].reshape(-1), slopes[1], size, "dk")
        curvature, direction = rule(step.gradient)
        torch.testing.assert_close(step.direction, direction)
        if step.found:
            assert_equal_up_to_condition(values[0], recorded["bk"], slopes[0], size, "bk")
            torch.testing.assert_close(made.inverse_hessian, curvature)
            torch.testing.assert_close(made.previous_gradient, step.gradient)
            torch.testing.assert_close(made.previous_step, step.rho * direction)
            np.testing.assert_allclose(arrays["gk_last"][call], arrays["gk"][call], rtol=1e-6)
            np.testing.assert_allclose(arrays["sk"][call], step.rho * arrays["dk"][call], rtol=1e-6)
        else:
            kept = {"bk": made.inverse_hessian, "gk_last": made.previous_gradient, "sk": made.previous_step}
            for name, value in kept.items():
                assert_near(value, arrays[name][call], 1e-6, name)
        length = float(np.abs(arrays["gk"][call]).max())  # of the gradients whose projection is taken away
        momentum = torch.split(made.momentum, [p.numel() for p in made.weight])
        astray = step.rho * (made.components.T @ (step.direction - recorded["dk"].reshape(-1)).to(made.components))
        paths = torch.split(astray, [p.numel() for p in made.weight])
        for name, part, weight, off in zip(meta["parameter_order"], momentum, made.weight, paths, strict=True):
            assert_near(part, arrays[f"mom/{name}"][call], 5e-4, f"momentum of {name}", length)
            assert_near(weight - off.view_as(weight), arrays[f"traj/{name}"][call + 1], 2e-4, name)


@pytest.mark.parametrize("path", WHOLE_RUNS, ids=lambda path: path.stem)
def test_golden_training_with_the_optimizer_that_autoboost_puts_in(path: Path) -> None:
    # How far a run may be from the recorded one is seen in twins whose gradients are off as the recorded ones may be
    # (small-sample condition estimation: Kenney and Laub, SIAM J. Sci. Comput. 15(1), 1994).
    meta, arrays = load_npz(path)
    names = [key.removeprefix("traj/") for key in arrays if key.startswith("traj/")]

    def run(noise: torch.Generator | None) -> list[Tensor]:
        """Return losses, then the weights after every step, then the state at the end."""
        module, made = golden_reducer(meta, arrays, meta["autoboost_result"]["lr"])
        losses, weights = [], []
        for call in range(len(arrays["losses"])):
            losses.append(golden_step(module, made, golden_batch(arrays, call), 1.0, noise).detach())
            state = module.backbone.state_dict()
            weights += [state[name].clone() for name in names]
        return [*losses, *weights, made.inverse_hessian, made.previous_step, made.previous_gradient]

    steps = len(arrays["losses"])
    recorded = [*arrays["losses"], *(arrays[f"traj/{name}"][call + 1] for call in range(steps) for name in names)]
    recorded += [arrays["bk"], arrays["sk"], arrays["gk_last"]]
    plain = run(None)
    twins = [run(torch.Generator().manual_seed(seed)) for seed in range(4)]
    for index, (found, value) in enumerate(zip(plain, recorded, strict=True)):
        wanted = torch.as_tensor(value, dtype=torch.float64).reshape(found.shape)
        spread = max((twin[index] - found).norm() for twin in twins)
        assert (found - wanted).norm() <= spread + 1e-6 * wanted.norm(), index


@pytest.mark.parametrize("path", golden_paths("pca_files*.json"), ids=lambda path: path.stem)
def test_golden_rows_per_rank(path: Path) -> None:
    cases = load_json(path)["results"]["save_local_split_first_column"]["result"]
    for title, files in cases.items():
        rank_size, k = (int(part.partition("=")[2]) for part in title.split(","))
        first_column = np.arange(k) * 3.0 + 1
        for rank in range(rank_size):
            rows = component_rows(k, rank, rank_size, "reference")
            assert first_column[rows].tolist() == files[f"full_rank_{rank}.npy"]


@given(st.integers(0, 40), st.integers(1, 12))
def test_every_component_belongs_to_one_rank(k: int, rank_size: int) -> None:
    parts = [component_rows(k, rank, rank_size) for rank in range(rank_size)]
    assert [row for part in parts for row in range(k)[part]] == list(range(k))
    sizes = [part.stop - part.start for part in parts]
    assert max(sizes) - min(sizes) <= 1


vectors = st.tuples(st.integers(1, 6), st.integers(0, 10**6))


@given(vectors)
@settings(max_examples=25)
def test_the_update_is_the_inverse_of_the_hessians_bfgs_update(drawn: tuple[int, int]) -> None:
    k, seed = drawn
    generator = torch.Generator().manual_seed(seed)
    root, y, s = (torch.randn(*shape, generator=generator, dtype=torch.float64) for shape in ((k, k), (k,), (k,)))
    hessian = root @ root.T + torch.eye(k, dtype=torch.float64)
    y = y if y @ s > 0 else -y
    y = y if y @ s >= 0.05 else y + s
    q = y @ s
    found = updated_curvature(torch.linalg.inv(hessian), y, s)
    hs = hessian @ s
    wanted = torch.linalg.inv(hessian - torch.outer(hs, hs) / (s @ hs) + torch.outer(y, y) / q)
    torch.testing.assert_close(found, wanted, rtol=1e-6, atol=1e-8)
    torch.testing.assert_close(found @ y, s, rtol=1e-6, atol=1e-8)  # the secant equation
    torch.testing.assert_close(found, found.T)
    assert torch.linalg.eigvalsh(found).min() > 0


def test_without_curvature_the_inverse_hessian_stays_and_a_trial_must_fall_by_the_promised_share() -> None:
    before = torch.tensor([[2.0, 1.0], [1.0, 3.0]], dtype=torch.float64)
    for q in (0.0, -1.0, 1e-21, float("nan")):
        y, s = torch.tensor([q, 5.0], dtype=torch.float64), torch.tensor([1.0, 0.0], dtype=torch.float64)
        assert torch.equal(updated_curvature(before, y, s), before)
    loss, slope = torch.tensor(1.0), torch.tensor(-2.0)
    assert sufficient_decrease(torch.tensor(0.59), loss, slope, 0.5, 0.4)
    assert not sufficient_decrease(torch.tensor(0.6), loss, slope, 0.5, 0.4)
    assert not sufficient_decrease(torch.tensor(float("nan")), loss, slope, 0.5, 0.4)


class Bowl(nn.Module):
    """Quadratic loss (w - m)^T H (w - m) / 2 over two parameters of 3 + 2 entries."""

    def __init__(self, seed: int = 0, dtype: torch.dtype = torch.float64) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        root = torch.randn(5, 5, generator=generator, dtype=torch.float64)
        self.hessian = (root @ root.T + torch.eye(5, dtype=torch.float64)).to(dtype)
        self.minimum = torch.randn(5, generator=generator, dtype=torch.float64).to(dtype)
        self.a = nn.Parameter(torch.randn(3, 1, generator=generator, dtype=torch.float64).to(dtype))
        self.b = nn.Parameter(torch.randn(2, generator=generator, dtype=torch.float64).to(dtype))

    def forward(self) -> Tensor:
        away = self.flat() - self.minimum
        return away @ self.hessian @ away / 2

    def flat(self) -> Tensor:
        return torch.cat([self.a.reshape(-1), self.b])


def rows(k: int, seed: int = 1) -> np.ndarray:
    return np.linalg.qr(np.random.default_rng(seed).normal(size=(5, 5)))[0][:k]


def reducer(net: Bowl, k: int = 3, **changes: Any) -> DimReduce:
    options = {**HYPER, "rank": 0, "rank_size": 1, "pca_mat_local": rows(k), "n_components": k, **changes}
    return DimReduce(net, options.pop("optimizer", None), list(net.parameters()), **options)


def descend(net: Bowl, made: DimReduce, steps: int, loss_scale: float = 1.0) -> list[float]:
    losses = []
    for _ in range(steps):
        loss = net()
        grads = torch.autograd.grad(loss * loss_scale, made.weight)
        made(loss, grads, made.weight, None, loss_scale=loss_scale)
        losses.append(loss.item())
    return losses


@given(st.integers(0, 10**6), st.integers(1, 5), st.integers(1, 12))
@settings(max_examples=20)
def test_without_residual_it_stays_in_the_subspace_and_no_step_climbs(seed: int, k: int, trials: int) -> None:
    net = Bowl(seed)
    start = net.flat().detach()
    made = reducer(net, k, alpha=0.0, line_search_trials=trials)
    for _ in range(6):
        (before,) = descend(net, made, 1)
        step = made.last_step
        assert step.slope <= 0
        assert net().item() <= before
        if step.found:
            assert net() < before + HYPER["sigma"] * step.rho * step.slope + 1e-12
        else:
            assert (step.rho, step.trials) == (0.0, trials)
            assert net().item() == before
    moved = (net.flat() - start).detach().numpy()
    np.testing.assert_allclose(rows(k).T @ (rows(k) @ moved), moved, atol=1e-10)


@given(st.integers(0, 10**6), st.integers(1, 4))
@settings(max_examples=15)
def test_what_the_components_do_not_reach_follows_plain_momentum(seed: int, k: int) -> None:
    net = Bowl(seed)
    made = reducer(net, k, line_search_trials=12)
    outside = np.eye(5) - rows(k).T @ rows(k)
    momentum, position = np.zeros(5), outside @ net.flat().detach().numpy()
    for _ in range(5):
        gradient = torch.cat([g.reshape(-1) for g in torch.autograd.grad(net(), made.weight)]).numpy()
        descend(net, made, 1)
        momentum = HYPER["gamma"] * momentum + outside @ gradient
        position = position - HYPER["alpha"] * momentum
        np.testing.assert_allclose(outside @ net.flat().detach().numpy(), position, atol=1e-8)


@pytest.mark.parametrize("arithmetic", ["corrected", "reference"])
def test_only_the_reference_depends_on_the_loss_scale(arithmetic: Any) -> None:
    plain, scaled = Bowl(), Bowl()
    descend(plain, reducer(plain, arithmetic=arithmetic), 5)
    descend(scaled, reducer(scaled, arithmetic=arithmetic), 5, loss_scale=16.0)
    assert torch.equal(plain.flat(), scaled.flat()) is (arithmetic == "corrected")


def test_more_trials_find_the_step_where_two_fail() -> None:
    net = Bowl()
    net.hessian = net.hessian * 50
    made = reducer(net, line_search_trials=2, alpha=0.0)
    losses = descend(net, made, 4)
    assert not made.last_step.found
    assert len(set(losses)) == 1  # stalled
    made = reducer(net, line_search_trials=16, alpha=0.0)
    descend(net, made, 1)
    assert made.last_step.found
    assert made.last_step.rho == pytest.approx(0.55 ** (made.last_step.trials - 1))
    assert net() < losses[-1]


def test_a_failed_search_forgets_the_curvature_it_tried() -> None:
    net = Bowl()
    made = reducer(net, line_search_trials=16)
    descend(net, made, 3)
    before = made.state_dict()
    made.line_search_trials = 1
    made.step(net().detach(), [torch.full_like(p, 1e6) for p in made.weight], lambda: torch.tensor(float("nan")))
    for name in ("inverse_hessian", "previous_step", "previous_gradient"):
        assert torch.equal(made.state_dict()[name], before[name])
    assert not torch.equal(made.momentum, before["momentum"])


@pytest.mark.parametrize("arithmetic", ["corrected", "reference"])
def test_trials_leave_batch_norm_statistics_alone(arithmetic: Any) -> None:
    torch.manual_seed(0)
    net = WithLossCell(nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)), nn.functional.mse_loss)
    weight = list(net.parameters())
    n_weights = sum(p.numel() for p in weight)
    matrix = np.linalg.qr(np.random.default_rng(0).normal(size=(n_weights, 3)))[0].T
    made = DimReduce(net, None, weight, matrix, 3, **HYPER, rank=0, rank_size=1, arithmetic=arithmetic)
    x, y = torch.randn(8, 3), torch.randn(8, 2)
    loss = net(x, y)
    grads = torch.autograd.grad(loss, weight)
    after_forward = [buffer.clone() for buffer in net.buffers()]
    made(loss, grads, weight, None, x, y)
    kept = all(torch.equal(now, then) for now, then in zip(net.buffers(), after_forward, strict=True))
    assert kept is (arithmetic == "corrected")
    counter = [buffer for buffer in net.buffers() if not buffer.is_floating_point()]
    assert counter[0].item() == 1 + (0 if kept else made.last_step.trials)


def test_a_deep_copy_trains_on_its_own_and_shares_the_components() -> None:
    net = Bowl()
    made = reducer(net)
    descend(net, made, 2)
    twin = copy.deepcopy({"net": net, "dim_reduce": made})
    assert twin["dim_reduce"].components is made.components
    losses = descend(net, made, 3)
    assert descend(twin["net"], twin["dim_reduce"], 3) == losses


def test_an_optimizer_applies_the_same_step_and_gradients_are_left_alone() -> None:
    plain, stepped = Bowl(), Bowl()
    descend(plain, reducer(plain), 3)
    optimizer = torch.optim.SGD(stepped.parameters(), lr=1.0)
    calls: list[int] = []
    optimizer.register_step_post_hook(lambda *_: calls.append(1))
    stepped.a.grad = torch.ones_like(stepped.a)
    descend(stepped, reducer(stepped, optimizer=optimizer), 3)
    assert torch.equal(plain.flat(), stepped.flat())
    assert len(calls) == 3
    assert torch.equal(stepped.a.grad, torch.ones_like(stepped.a))
    assert stepped.b.grad is None


def test_clones_follow_and_a_missing_gradient_counts_as_zeros() -> None:
    net, other = Bowl(), Bowl()
    clones = [p.detach().clone() for p in net.parameters()]
    grad = torch.ones_like(net.a)
    made = reducer(net)
    made(net(), [grad, None], made.weight, clones)
    reducer(other).step(other(), [grad, torch.zeros_like(other.b)], other)
    for clone, parameter, wanted in zip(clones, net.parameters(), other.parameters(), strict=True):
        assert torch.equal(clone, parameter)
        assert torch.equal(parameter, wanted)


def test_a_row_of_zeros_is_never_moved_along() -> None:
    net, wider = Bowl(), Bowl()
    descend(net, reducer(net, 2), 5)
    descend(wider, reducer(wider, 3, pca_mat_local=np.concatenate([rows(2), np.zeros((1, 5))])), 5)
    torch.testing.assert_close(net.flat(), wider.flat(), rtol=1e-12, atol=1e-12)


def test_curvature_is_kept_in_float64_where_weights_are_float32() -> None:
    net = Bowl(5, torch.float32)
    made = reducer(net, line_search_trials=16)
    wanted, last_gradient, last_step = np.eye(3), np.zeros(3), np.zeros(3)
    for _ in range(12):
        descend(net, made, 1)
        step = made.last_step
        gradient = step.gradient.numpy()
        tried, y = wanted, gradient - last_gradient
        if (q := y @ last_step) > 1e-20:  # and 0 in the first step
            t = np.eye(3) - np.outer(y, last_step) / q
            tried = t.T @ wanted @ t + np.outer(last_step, last_step) / q
        if step.found:
            wanted, last_gradient, last_step = tried, gradient, -step.rho * (tried @ gradient)
    assert not np.array_equal(wanted, np.eye(3))
    np.testing.assert_allclose(made.inverse_hessian.numpy(), wanted, rtol=1e-9, atol=1e-12)
    assert all(parameter.dtype == torch.float32 for parameter in net.parameters())
    assert reducer(net, arithmetic="reference").inverse_hessian.dtype == torch.float32  # as upstream


def test_the_condition_says_how_far_the_inverse_hessian_is_stretched() -> None:
    made = reducer(Bowl())
    made.inverse_hessian = torch.diag(torch.tensor([2.0, 50.0, 5.0], dtype=torch.float64))
    assert made.condition() == pytest.approx(25.0)
    made.inverse_hessian[0, 0] = -1e-3  # what rounding may do in float32
    assert made.condition() == float("inf")


@pytest.mark.parametrize("where", ["a trial", "behind the line search"])
def test_an_interrupt_leaves_no_trial_in_the_weights(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> Any:
        raise KeyboardInterrupt

    net = Bowl()
    made = reducer(net)
    descend(net, made, 2)
    before = net.flat().clone()
    if where == "behind the line search":
        monkeypatch.setattr(made, "_subtract", interrupted)
    with pytest.raises(KeyboardInterrupt):
        made.step(net(), [torch.ones_like(p) for p in net.parameters()], interrupted if where == "a trial" else net)
    assert torch.equal(net.flat(), before)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"rho": float("nan")}, r"`rho` must lie in \(0, 1\), got nan"),
        ({"gamma": 1.0}, "`gamma` must lie"),
        ({"alpha": -0.1}, "`alpha` must be finite and at least 0"),
        ({"sigma": 1.5}, "`sigma` must lie"),
        ({"n_components": 0}, "`n_components` must be at least 1, got 0"),
        ({"line_search_trials": 0}, "`line_search_trials` must be at least 1"),
        ({"arithmetic": "exact"}, '`arithmetic` must be "corrected" or "reference"'),
        ({"rank": 2}, r"`rank` must lie in \[0, rank_size\), got rank 2 of 1"),
        ({"pca_mat_local": np.eye(3, 7)}, r"one column per weight \(5\), got shape \(3, 7\)"),
        ({"pca_mat_local": np.eye(2, 5)}, "must hold the 3 of 3 components that belong to rank 0 of 1 .*, got 2"),
        ({"pca_mat_local": np.full((3, 5), np.nan)}, "`pca_mat_local` must be finite"),
    ],
)
def test_bad_arguments_are_told_in_one_sentence(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        reducer(Bowl(), **changes)


def test_optimizers_that_would_change_the_step_are_refused() -> None:
    net = Bowl()
    for optimizer in (
        torch.optim.SGD(net.parameters(), lr=0.1),
        torch.optim.SGD(net.parameters(), lr=1.0, momentum=0.9),
        torch.optim.Adam(net.parameters(), lr=1.0),
    ):
        with pytest.raises(ValueError, match=r"`optimizer` must apply the step as it is: torch\.optim\.SGD with lr=1"):
            reducer(net, optimizer=optimizer)
    with pytest.raises(ValueError, match="must hold every weight that is trained, it lacks 1 of 2"):
        reducer(net, optimizer=torch.optim.SGD([net.a], lr=1.0))


def test_wrong_calls_are_told_in_one_sentence() -> None:
    net = Bowl()
    made = reducer(net)
    with pytest.raises(ValueError, match=r"one gradient per weight \(2\), got 1"):
        made.step(net(), [torch.ones(3, 1)], net)
    with pytest.raises(ValueError, match="`weight` must be the parameters that DimReduce was made with"):
        made(net(), [None, None], list(Bowl().parameters()), None)
    with pytest.raises(ValueError, match=r"inverse_hessian has shape \(2, 2\) there, \(3, 3\) here"):
        made.load_state_dict(reducer(net, 2).state_dict())
    with pytest.raises(TypeError, match="`line_search_trials` must be an integer"):
        reducer(net, line_search_trials=2.5)
    with pytest.raises(TypeError, match="`network` must be a torch"):
        DimReduce(lambda: None, None, made.weight, rows(3), 3, **HYPER, rank=0, rank_size=1)  # type: ignore[arg-type]
    with pytest.raises(RuntimeError, match=r"2 ranks need torch\.distributed"):
        reducer(net, rank_size=2, pca_mat_local=rows(3)[:2])


def descend_on_a_rank(rank: int, rank_size: int, k: int, folder: str, arithmetic: Any) -> None:
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=rank_size)
    net = Bowl()
    part = rows(k)[component_rows(k, rank, rank_size, arithmetic)]
    made = reducer(net, k, rank=rank, rank_size=rank_size, pca_mat_local=part, arithmetic=arithmetic)
    losses = descend(net, made, 6)
    torch.save((losses, net.flat().detach()), f"{folder}/{rank}.pt")
    leave_together()


@pytest.mark.parametrize(
    "rank_size", [pytest.param(2, marks=pytest.mark.slow), pytest.param(4, marks=pytest.mark.long)]
)
def test_several_ranks_take_the_steps_of_one(tmp_path: Path, rank_size: int) -> None:
    k = 5  # neither 2 nor 4 divides it: one rank has a row more
    arguments, method = (rank_size, k, str(tmp_path), "corrected"), forkserver().get_start_method()
    multiprocessing.start_processes(descend_on_a_rank, arguments, nprocs=rank_size, start_method=method)
    net = Bowl()
    losses = descend(net, reducer(net, k), 6)
    results = [torch.load(tmp_path / f"{rank}.pt", weights_only=True) for rank in range(rank_size)]
    for found, flat in results:
        np.testing.assert_allclose(found, losses, rtol=1e-9)
        torch.testing.assert_close(flat, net.flat().detach(), rtol=1e-9, atol=1e-12)
        assert torch.equal(flat, results[0][1])  # the same bits everywhere
