"""Contracts: the same questions asked of every method in the catalogue.

A method is applied the way a user does it, through a configuration, to a small residual network. Methods that need
several ranks are asked on as many processes, every one of which makes the same checks.
"""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.optim import SGD, AdamW, Optimizer

from tests.kit.twins import assert_same, pickled
from tests.network_families import Block, Net
from tests.ranks import Ranks
from workbench.config import BoostConfig
from workbench.core import distributed as ranks
from workbench.methods.dim_reduce.pca_files import save_pca_matrix
from workbench.methods.protocol import Description, Method
from workbench.methods.registry import METHODS
from workbench.training import Boosted, apply

PACKAGE = Path(__file__).parents[2] / "workbench" / "methods"
BY_NAME = {row.name: row for row in METHODS}
ROWS = [pytest.param(row, id=row.name) for row in METHODS]
SWITCHED = [pytest.param(row, id=row.name) for row in METHODS if not row.section_class]
#: Rows with an optimizer: every one with SGD, and those that act on an optimizer's groups, state or step with AdamW.
TRAINED = [
    pytest.param(row, optimizer, id=f"{row.name}-{optimizer}")
    for row in METHODS
    for optimizer in ("sgd", "adamw")
    if optimizer == "sgd" or row.name in {"less_bn", "grad_centralization", "grad_freeze", "adasum"}
]
N_STEPS = 7


def configured(row: Description, optimizer: str = "sgd", frozen: tuple[str, ...] = ()) -> Boosted:
    """Return a freshly built network and optimizer under one method; always the same bits."""
    torch.manual_seed(0)
    net = Net(nn.Sequential(Block(), Block(), Block()))
    for name, parameter in net.named_parameters():
        parameter.requires_grad_(not name.startswith(frozen or ("-",)))
    with torch.no_grad():  # a mean that centralization changes: torch's initial weights average out
        for parameter in net.parameters():
            parameter.add_(0.05)
    made: Optimizer = (
        SGD(net.parameters(), lr=0.05, momentum=0.9, weight_decay=0.01, fused=True)
        if optimizer == "sgd"
        else AdamW(net.parameters(), lr=0.01, fused=True)
    )
    # Short and often frozen, so that a few steps see every kind of step.
    short = {"grad_freeze.param_groups": 3, "grad_freeze.freeze_p": 0.5, "grad_freeze.total_steps": 50}
    values = {**short, **row.enabled_by, "loss_scale.kind": "dynamic"}
    with tempfile.TemporaryDirectory() as folder:
        if row.name == "dim_reduce":
            values |= {"dim_reduce.n_components": 3, "dim_reduce.pca_mat_path": str(pca_matrix(net, Path(folder)))}
        boosted = apply(BoostConfig().with_values(values), net, made, 2 * N_STEPS, level="O0")
    if ranks.world_size() > 1:
        boosted.distribute()
    return boosted


def pca_matrix(net: nn.Module, folder: Path) -> Path:
    """Write three orthonormal directions in the space of the weights that are trained."""
    n_weights = sum(parameter.numel() for parameter in net.parameters() if parameter.requires_grad)
    directions, _ = np.linalg.qr(np.random.default_rng(0).standard_normal((n_weights, 3)))
    return save_pca_matrix(folder / "pca.npy", np.ascontiguousarray(directions.T))


def batch(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(step * ranks.world_size() + ranks.rank())
    return torch.randn(6, 3, 5, 5, generator=generator), torch.randint(0, 5, (6,), generator=generator)


def loss_of(boosted: Boosted, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(boosted.model(x), y)


def train(boosted: Boosted, first: int, last: int) -> list[float]:
    losses = []
    for step in range(first, last):
        x, y = batch(step)
        with boosted.autocast():
            loss = loss_of(boosted, x, y)
        boosted.backward(loss)
        losses.append(float(boosted.step(partial(loss_of, boosted, x, y)).loss))
    return losses


def assert_same_in_use(one: Boosted, other: Boosted) -> None:
    """Compare the weights, and those with which an evaluation computes."""
    assert_same(one.model, other.model)
    used, wanted = (boosted.weights_to_use(boosted.model) for boosted in (one, other))
    assert all(torch.equal(used[name], value) for name, value in wanted.items())


def test_every_method_is_listed_once_and_has_a_card() -> None:
    assert sorted(path.parent.name for path in PACKAGE.glob("*/card.md")) == sorted(row.name for row in METHODS)


@pytest.mark.parametrize("row", ROWS)
def test_folder_and_test_bear_the_name(row: Description) -> None:
    assert row.acts.partition(":")[0].split(".")[1:3] == ["methods", row.name]
    assert (PACKAGE / row.name / "__init__.py").is_file()
    assert list(Path(__file__).parents[1].glob(f"*/test_{row.name}*.py")) or row.name == "loss_scale_group"
    assert issubclass(row.load(), Method)


@pytest.mark.parametrize("row", ROWS)
def test_its_values_put_it_and_nothing_else_into_effect(row: Description) -> None:
    plan = BoostConfig().with_values(row.enabled_by).resolve("O0", world_size=row.n_ranks)
    assert plan.in_effect() == (row.comes_with or row.name,)
    assert row.is_in_effect(plan)
    assert not plan.dropped
    assert not row.is_in_effect(BoostConfig().with_values({"boost.mode": "disable_all"}).resolve("O0"))


@pytest.mark.parametrize("row", ROWS)
def test_it_has_a_card_and_a_paper(row: Description) -> None:
    card = row.card()
    assert card.startswith("# ")
    for part in ("**What it does.**", "**When it helps.**", "**Usual values.**", "**Source.**"):
        assert part in card
    assert "annot be combined with" in card
    identifier = row.paper.rpartition(", ")[2]
    assert identifier.startswith(("arXiv:", "doi:"))
    assert identifier in card, "card and catalogue name the same paper"
    assert row.summary.endswith(".")
    assert len(row.summary) <= 120


Ask = Callable[..., None]


@pytest.fixture(scope="module")
def ask(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ask]:
    """Give a function that asks a question of a row, here or on as many ranks as it needs."""
    started: dict[int, Ranks] = {}

    def asking(question: Callable[..., None], row: Description, *args: Any) -> None:
        if row.n_ranks == 1:
            question(row.name, *args)
            return
        if row.n_ranks not in started:
            started[row.n_ranks] = Ranks(row.n_ranks, tmp_path_factory.mktemp("ranks"))
        started[row.n_ranks].run(question, row.name, *args)

    yield asking
    for group in started.values():
        group.close()


def it_changes_what_training_does(name: str) -> None:
    row = BY_NAME[name]
    plain = Description(**{**vars(row), "enabled_by": {**row.enabled_by, "boost.mode": "disable_all"}})
    mine, other = configured(row), configured(plain)
    train(mine, 0, N_STEPS)
    train(other, 0, N_STEPS)
    x, _ = batch(99)
    assert not torch.equal(mine.model(x), other.model(x))


@pytest.mark.parametrize("row", SWITCHED)
def test_it_changes_what_training_does(ask: Ask, row: Description) -> None:
    ask(it_changes_what_training_does, row)


def it_survives_deepcopy(name: str) -> None:
    boosted, copies = configured(BY_NAME[name]), []
    for step in range(N_STEPS):
        if step in (0, 4):
            twin = copy.deepcopy(boosted)
            copies.append((step, twin, copy.deepcopy(twin.model)))
        train(boosted, step, step + 1)
    for step, twin, at_copy in copies:
        assert_same(twin.model, at_copy)  # the original's training does not reach the copy
        train(twin, step, N_STEPS)
        assert_same_in_use(twin, boosted)


@pytest.mark.parametrize("row", ROWS)
def test_it_survives_deepcopy(ask: Ask, row: Description) -> None:
    ask(it_survives_deepcopy, row)


def it_learns_and_resumes_exactly(name: str, optimizer: str) -> None:
    row = BY_NAME[name]
    whole, saved, losses = configured(row, optimizer), {}, []
    before = {name: p.detach().clone() for name, p in whole.model.named_parameters()}
    same = copy.copy(whole)  # shares model and optimizer, and acts no second time
    stops = (2, 3, 5)  # inside a window of accumulation, at its end, with frozen steps before and behind
    for step in range(N_STEPS):
        if step in stops:
            saved[step] = pickled(whole.state_dict())
        losses += train(whole, step, step + 1)
    for stop in stops:
        resumed = configured(row, optimizer)
        resumed.load_state_dict(saved[stop])
        assert train(resumed, stop, N_STEPS) == losses[stop:], stop
        assert_same_in_use(resumed, same)
    assert all(0 < loss < 100 for loss in losses)
    whole.finish()
    assert [name for name, p in whole.model.named_parameters() if torch.equal(p, before[name])] == []
    assert all(p.requires_grad for p in whole.model.parameters())


@pytest.mark.parametrize(("row", "optimizer"), TRAINED)
def test_it_trains_all_layers_and_resumes_exactly_at_any_step(ask: Ask, row: Description, optimizer: str) -> None:
    ask(it_learns_and_resumes_exactly, row, optimizer)


def it_leaves_parameters_alone_that_the_user_froze(name: str) -> None:
    frozen = ("stem", "block.0", "block.1.conv1", "head")
    boosted = configured(BY_NAME[name], frozen=frozen)
    before = {name: p.detach().clone() for name, p in boosted.model.named_parameters() if name.startswith(frozen)}
    assert before
    train(boosted, 0, N_STEPS)
    boosted.finish()
    after: dict[str, Any] = dict(boosted.model.named_parameters())
    for name, value in before.items():
        assert not after[name].requires_grad, name
        assert torch.equal(after[name], value), name
    assert any(p.requires_grad for p in after.values())


@pytest.mark.parametrize("row", ROWS)
def test_it_leaves_parameters_alone_that_the_user_froze(ask: Ask, row: Description) -> None:
    ask(it_leaves_parameters_alone_that_the_user_froze, row)
