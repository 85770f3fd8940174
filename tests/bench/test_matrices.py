"""The benchmarks of matrices and rows at tiny sizes: they find what they promise, and refuse sides that differ."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest
import torch

from workbench.bench import Finding, Request
from workbench.bench.questions import adasum as adasum_bench
from workbench.bench.questions import dim_reduce as dim_reduce_bench
from workbench.bench.questions import online as online_bench
from workbench.bench.questions import pca as pca_bench
from workbench.bench.questions import thor as thor_bench
from workbench.methods.dim_reduce.method import flat_vector

REQUEST = Request(1, device=torch.device("cpu"), threads=(1,))


def adasum() -> list[Finding]:
    return adasum_bench.measure(REQUEST, sizes=(500,), tensors=5, bucket=0)


def pca() -> list[Finding]:
    return pca_bench.measure(REQUEST, snapshots=6, weights=3000, components=3)


def dim_reduce() -> list[Finding]:
    return dim_reduce_bench.measure(REQUEST, widths=(8, 16, 4), components=3, batches=(4,))


THOR = ("step, ResNet-8", "step, MLP", "refresh, 10 layers", "refresh, 5 layers")
ADASUM = [f"{side} / formula in {place} memory" for place in ("kept", "new") for side in ("ours", "limit")]


def thor() -> list[Finding]:
    request = Request(1, peers=True, device=torch.device("cpu"), threads=(1,))
    return thor_bench.measure(request, image=8, images=2, width=16, rows=4, frequencies=(2,))


def online() -> list[Finding]:
    return online_bench.measure(REQUEST, rows=200, dim=4, records=4, ids=3)


@pytest.mark.parametrize(
    ("measure", "beginnings"),
    [
        (adasum, [f"AdaSum of 500 in 5, 1 thread: {line}" for line in ADASUM]),
        (pca, ["PCA of 6 x 3,000", "PCA of 6 x 3,000", "PCA of 6 x 3,000, 3 components: memory"]),
        (dim_reduce, ["DimReduce step", "DimReduce step"]),
        (thor, [f"THOR {line}" for line in THOR for _ in range(3)]),
        (online, ["online step, 200 x 4", "online step, 200 x 4", "online step, hashed"]),
    ],
    ids=["adasum", "pca", "dim_reduce", "thor", "online"],
)
def test_every_line_is_measured(measure: Callable[[], list[Finding]], beginnings: Sequence[str]) -> None:
    found = measure()
    for finding, beginning in zip(found, beginnings, strict=True):
        assert finding.what.startswith(beginning)
        if finding.verdict == "absent":
            assert "kfac_pytorch" in finding.what or "SOAP" in finding.what
            continue
        assert finding.estimate is not None, finding
        assert 0 < finding.estimate.low <= finding.estimate.high


def wrong_pca(snapshots: object, n_components: int, **_: object) -> object:
    class Found:
        components = np.eye(n_components, 3000)

    return Found()


def wrong_adagrad(table: torch.Tensor) -> Callable[..., object]:
    return lambda rows, weights, gradient: table.index_copy_(0, rows, weights - gradient)


@pytest.mark.parametrize(
    ("module", "name", "wrong", "measure"),
    [
        (adasum_bench, "adasum_sets_", lambda ours, theirs: None, adasum),
        (pca_bench, "principal_components", wrong_pca, pca),
        (dim_reduce_bench, "flat_vector", lambda *given: 2 * flat_vector(*given), dim_reduce),
        (online_bench, "_adagrad_rows", wrong_adagrad, online),
    ],
    ids=["adasum", "pca", "dim_reduce", "online"],
)
def test_a_side_that_computes_something_else_is_not_timed(
    module: object,
    name: str,
    wrong: object,
    measure: Callable[[], list[Finding]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, name, wrong)
    assert measure()[0].verdict == "differs"


def test_the_angle_between_subspaces() -> None:
    plane = np.eye(2, 5)
    turned = plane.copy()
    turned[1] = [0, np.cos(0.3), 0, np.sin(0.3), 0]
    assert pca_bench.subspace_angle(plane, plane[::-1]) == pytest.approx(0.0, abs=1e-12)
    assert pca_bench.subspace_angle(plane, turned) == pytest.approx(0.3)
    assert pca_bench.subspace_angle(plane, np.eye(2, 5, 3)) == pytest.approx(np.pi / 2)


@pytest.mark.long
def test_adasum_joins_four_ranks() -> None:
    found = adasum_bench.measure(REQUEST, sizes=(), tensors=5, bucket=4000)
    assert [finding.what.rpartition(": ")[2] for finding in found] == ["ours / all_reduce", "bytes sent / ring"]
    sent = found[1].estimate
    assert sent is not None
    assert 1.0 < sent.value < 1.1  # three products per tensor weigh more beside so small a bucket
