"""Random numbers of a thread's own: the numbers that the process's generators would give, and nothing else moved."""

from __future__ import annotations

import contextlib
import pickle
import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from workbench.core.own_generators import RandomStream, cpu_generator, own_generators

ONES = torch.ones(4, 6)
SEQUENCES = torch.ones(1, 2, 4, 8)
DRAWS: dict[str, Callable[[], Any]] = {
    "alpha_dropout": lambda: F.alpha_dropout(ONES, 0.3, training=True),
    "attention": lambda: F.scaled_dot_product_attention(SEQUENCES, SEQUENCES, SEQUENCES, dropout_p=0.3),
    "bernoulli": lambda: torch.bernoulli(0.4 * ONES),
    "bernoulli_": lambda: ONES.clone().bernoulli_(0.4),
    "bernoulli_ of tensor": lambda: ONES.clone().bernoulli_(0.4 * ONES),
    "bfloat16": lambda: torch.randn(5, dtype=torch.bfloat16),
    "binomial": lambda: torch.binomial(9 * ONES, 0.4 * ONES),
    "cauchy_": lambda: ONES.clone().cauchy_(),
    "complex": lambda: torch.randn(5, dtype=torch.complex64),
    "dirichlet": lambda: torch.distributions.Dirichlet(torch.ones(5)).sample(),
    "dropout": lambda: F.dropout(ONES, 0.3),
    "dropout2d": lambda: F.dropout2d(torch.ones(2, 3, 4, 4)),
    "exponential_": lambda: ONES.clone().exponential_(),
    "gamma": lambda: torch.distributions.Gamma(2.0, 3.0).sample(torch.Size([4])),
    "geometric_": lambda: ONES.clone().geometric_(0.4),
    "init": lambda: nn.init.trunc_normal_(torch.empty(4, 4)),
    "layer": lambda: nn.Linear(3, 4).weight,
    "log_normal_": lambda: ONES.clone().log_normal_(),
    "lstm": lambda: nn.LSTM(4, 4, 2, dropout=0.5)(torch.ones(3, 2, 4))[0],
    "multinomial": lambda: torch.multinomial(torch.rand(6), 3),
    "native_dropout": lambda: torch.native_dropout(ONES, 0.4, train=True)[0],
    "normal": lambda: torch.normal(0.0, 1.0, (3,)),
    "normal of mean": lambda: torch.normal(ONES, 2.0),
    "normal of deviation": lambda: torch.normal(1.0, ONES),
    "normal of both": lambda: torch.normal(ONES, ONES, out=torch.empty(4, 6)),
    "numpy": lambda: torch.from_numpy(np.random.normal(size=3)),  # noqa: NPY002
    "numpy sample": lambda: torch.tensor(np.random.sample(3)),  # noqa: NPY002
    "numpy shuffle": lambda: torch.from_numpy(np.random.permutation(5)),  # noqa: NPY002
    "poisson": lambda: torch.poisson(3 * ONES),
    "python": lambda: torch.tensor([random.random(), random.gauss(0, 1), random.randint(0, 99)]),
    "python sample": lambda: torch.tensor(random.sample(range(9), 4)),
    "rand_like": lambda: torch.rand_like(ONES),
    "randint": lambda: torch.randint(0, 99, (5,)),
    "randn into": lambda: torch.randn(4, 6, out=torch.empty(4, 6)),
    "random_": lambda: torch.empty(5, dtype=torch.int64).random_(),
    "random_ to": lambda: torch.empty(5, dtype=torch.int64).random_(99),
    "random_ from": lambda: torch.empty(5, dtype=torch.int64).random_(9, 99),
    "randperm": lambda: torch.randperm(7),
    "rrelu": lambda: F.rrelu(-ONES, training=True),
    "rrelu_": lambda: F.rrelu(-ONES, training=True, inplace=True),
    "seed": lambda: torch.tensor(torch.initial_seed()),
    "uniform_": lambda: ONES.clone().uniform_(),
}


def seed_all(seed: int) -> None:
    torch.manual_seed(seed)
    np.random.seed(seed)  # noqa: NPY002
    random.seed(seed)


def states() -> tuple[bytes, bytes, Any]:
    return cpu_generator().get_state().numpy().tobytes(), pickle.dumps(np.random.get_state()), random.getstate()  # noqa: NPY002


@pytest.mark.parametrize("name", DRAWS)
def test_a_draw_is_that_of_the_process_s_generators_which_stay_where_they_are(name: str) -> None:
    seed_all(5)
    wanted: Tensor = DRAWS[name]()
    went_to = states()
    seed_all(6)
    stays = states()
    with own_generators():
        assert states() == stays, "they begin as copies"
        seed_all(5)
        found = DRAWS[name]()
        assert states() == went_to
    assert torch.equal(found, wanted)
    assert states() == stays


def test_a_recomputed_forward_pass_draws_the_same_dropout_masks() -> None:
    layer = nn.Sequential(nn.Linear(16, 16), nn.Dropout(0.5))

    def gradient(*, recomputed: bool) -> Tensor:
        x = torch.ones(4, 16, requires_grad=True)
        torch.manual_seed(1)
        y = checkpoint(layer, x, use_reentrant=False) if recomputed else layer(x)
        assert isinstance(y, Tensor)
        (found,) = torch.autograd.grad(y.square().sum(), x)
        return found

    wanted = gradient(recomputed=False)
    with own_generators():
        assert torch.equal(gradient(recomputed=True), wanted)


def test_a_generator_that_is_named_is_used() -> None:
    wanted = torch.rand(3, generator=torch.Generator().manual_seed(2))
    with own_generators():
        assert torch.equal(torch.rand(3, generator=torch.Generator().manual_seed(2)), wanted)


def test_a_block_inside_another_and_other_threads_have_their_own() -> None:
    seed_all(1)
    with own_generators(), ThreadPoolExecutor(1) as other:
        outer = states()
        with own_generators():
            seed_all(2)
            inner = states()
            assert other.submit(states).result() == outer, "the process's, of which the outer block's are copies"
            assert states() == inner
        assert states() == outer
    with own_generators(), pytest.raises(KeyError), own_generators():
        raise KeyError
    assert states() == outer


@pytest.mark.parametrize("around", [contextlib.nullcontext, own_generators], ids=["process", "thread"])
def test_a_stream_goes_on_where_it_ended_and_what_is_around_it_too(
    around: Callable[[], contextlib.AbstractContextManager[None]],
) -> None:
    def drawn(times: int = 1) -> list[Any]:
        return [(torch.rand(2).tolist(), np.random.rand(2).tolist(), random.gauss(0, 1)) for _ in range(times)]  # noqa: NPY002

    with around():
        seed_all(5)
        of_stream = drawn(3)
        seed_all(6)
        of_others = drawn(3)
        seed_all(6)
        stream, found, others = RandomStream(5), [], []
        for _ in range(2):
            with stream.active():
                found += drawn()
            others += drawn()
        with contextlib.suppress(KeyError), stream.active():
            found += drawn()
            raise KeyError
        others += drawn()
    assert (found, others) == (of_stream, of_others)


def test_a_function_of_these_modules_can_still_be_pickled() -> None:
    with own_generators():
        pass
    for function in (np.random.normal, np.random.seed, random.shuffle, random.random):
        assert pickle.loads(pickle.dumps(function)) is function
