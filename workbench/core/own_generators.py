"""Separate random numbers for a thread, where torch, numpy and Python keep one generator for the whole process.

Inside `own_generators` a thread draws from generators that no other thread sees: a notebook's cell that draws or seeds
while a panel trains changes no bit of the training, and the training changes none of the cell's numbers. What is drawn
is what the process's generators would give from the same state.

torch has no such switch, so three things are put in place when the first thread asks, and stay: kernels of the CPU's
random operations that choose the generator and call the original ones (``torch.library``; a draw costs some 10
microseconds more from then on), the generator that the functions of ``torch.random`` use, and the functions of the
modules ``random`` and ``numpy.random``. Swapping the *states* between two steps would be simpler; but another thread
draws and seeds in the middle of a step, too, which would change the step's numbers, and be undone after it. A separate
process would need tasks that can be pickled, and what a notebook's cell makes seldom can.

A `RandomStream` is the same for a part of a thread's work, such as reading the batches of an epoch.

Not covered: generators of accelerators, and functions that were taken out of ``random`` or ``numpy.random`` by name
before a thread first asked (``from random import random``), which draw from the process's generators.
"""

from __future__ import annotations

import contextlib
import functools
import random
import threading
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

# Random operations with a kernel for the CPU: all others are made of these. Each takes a `generator`.
_OPERATIONS = (
    "_sample_dirichlet",
    "_standard_gamma",
    "bernoulli.out",
    "bernoulli_.Tensor",
    "bernoulli_.float",
    "binomial",
    "cauchy_",
    "exponential_",
    "geometric_",
    "log_normal_",
    "multinomial",
    "multinomial.out",
    "normal.Tensor_Tensor",
    "normal.Tensor_Tensor_out",
    "normal.Tensor_float",
    "normal.Tensor_float_out",
    "normal.float_Tensor",
    "normal.float_Tensor_out",
    "normal_",
    "poisson",
    "random_",
    "random_.from",
    "random_.to",
    "randperm.generator_out",
    "rrelu_with_noise",
    "rrelu_with_noise.out",
    "rrelu_with_noise_",
    "uniform_",
)
# Functions of numpy.random that are not methods of its one generator, and the methods that they call.
_NUMPY_NAMES = {"seed": "seed", "sample": "random_sample", "ranf": "random_sample"}


@dataclass(frozen=True, slots=True)
class _Generators:
    torch: torch.Generator
    numpy: np.random.RandomState
    python: random.Random
    bits: np.random.MT19937  # of numpy's

    @classmethod
    def new(cls) -> _Generators:
        bits = np.random.MT19937()
        return cls(torch.Generator(), np.random.RandomState(bits), random.Random(), bits)

    def again(self) -> _Generators:
        """Return them as numpy puts a generator in place: without the second number that a normal draw keeps."""
        return _Generators(self.torch, np.random.RandomState(self.bits), self.python, self.bits)


class _Own(threading.local):
    generators: _Generators | None = None


_own = _Own()
_lock = threading.Lock()
_libraries: list[torch.library.Library] = []  # none or one: torch forgets the kernels of a library without references


def cpu_generator() -> torch.Generator:
    """Return the CPU generator that this thread draws from: its own, or the process's."""
    own = _own.generators
    return torch.default_generator if own is None else own.torch


@contextlib.contextmanager
def own_generators() -> Iterator[None]:
    """Draw from this thread's own generators in the block; they begin as copies of those it drew from before."""
    guard_generators()
    before = _own.generators
    _own.generators = _copies()
    try:
        yield
    finally:
        _own.generators = before


@contextlib.contextmanager
def kept_generators(*devices: torch.device) -> Iterator[None]:
    """Put Python's, numpy's and torch's generators back afterwards, those of accelerators of one kind included."""
    python, numpy = random.getstate(), np.random.get_state()  # noqa: NPY002  # models of the user's draw from them
    others = [device for device in devices if device.type != "cpu"]
    kind = others[0].type if others else "cpu"
    try:
        with torch.random.fork_rng(others, device_type=kind):
            yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)  # noqa: NPY002


def seed_generators(seed: int, device: torch.device | None = None) -> None:
    """Seed Python's, numpy's and torch's generators that this thread draws from, with that of an accelerator if given.

    ``torch.manual_seed`` would seed every accelerator.
    """
    cpu_generator().manual_seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002
    random.seed(seed)
    if device is not None and device.type != "cpu":
        state = torch.Generator(device).manual_seed(seed).get_state()
        torch.get_device_module(device).set_rng_state(state, device)


class RandomStream:
    """Random numbers of a part of the work, which goes on where it ended last, whatever was drawn in between.

    Args:
        seed: What its generators are seeded with, >= 0.
    """

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._of_thread: _Generators | None = None  # in a thread with generators of its own
        self._of_process: _Swapped | None = None  # elsewhere

    def active(self) -> contextlib.AbstractContextManager[None]:
        """Return a block that draws from the stream's generators, and afterwards from those of before as they were.

        A batch is read in such a block. So numpy's generator is swapped and not its state, which takes a hundred times
        as long; the second number that ``np.random.normal`` keeps for its next call is dropped at both ends.
        """
        return self._in_process() if _own.generators is None else self._in_thread(_own.generators)

    @contextlib.contextmanager
    def _in_thread(self, outside: _Generators) -> Iterator[None]:
        try:
            if self._of_thread is None:
                _own.generators = self._of_thread = _Generators.new()
                seed_generators(self._seed)
            else:
                _own.generators = self._of_thread.again()
            yield
        finally:
            _own.generators = outside.again()

    @contextlib.contextmanager
    def _in_process(self) -> Iterator[None]:
        outside = _Swapped.now()
        try:
            if self._of_process is None:
                np.random.set_bit_generator(np.random.MT19937())  # type: ignore[attr-defined]
                seed_generators(self._seed)
            else:
                self._of_process.put_back()
            yield
        finally:
            self._of_process = _Swapped.now()
            outside.put_back()


@dataclass(frozen=True, slots=True)
class _Swapped:
    """The process's generators as they were: states, but for numpy's, which is the generator itself."""

    torch: Tensor
    numpy: Any
    python: Any

    @classmethod
    def now(cls) -> _Swapped:
        return cls(torch.get_rng_state(), np.random.get_bit_generator(), random.getstate())  # type: ignore[attr-defined]

    def put_back(self) -> None:
        torch.set_rng_state(self.torch)
        np.random.set_bit_generator(self.numpy)  # type: ignore[attr-defined]
        random.setstate(self.python)


def guard_generators() -> None:
    """Put in place what `own_generators` needs; only the first call does anything."""
    with _lock:
        if _libraries:
            return
        library: Any = torch.library.Library("aten", "IMPL")  # type: ignore[no-untyped-call]  # torch has no types there
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # torch says that a kernel is replaced
            for name in _OPERATIONS:
                library.impl(name, _choosing(torch.library.get_kernel(f"aten::{name}", "CPU")), "CPU", with_keyset=True)
        torch.random.default_generator = _ThreadsGenerator()  # type: ignore[assignment, attr-defined]  # stands for one
        for name in dir(random):
            if getattr(getattr(random, name), "__self__", None) is _PYTHON:
                _replace(random, name, name, lambda own: own.python)
        for name in np.random.__all__:
            if getattr(getattr(np.random, name), "__self__", None) is _NUMPY or name in _NUMPY_NAMES:
                _replace(np.random, name, _NUMPY_NAMES.get(name, name), lambda own: own.numpy)
        _libraries.append(library)


_PYTHON: random.Random = random.random.__self__  # type: ignore[attr-defined]  # a method of the process's generator
_NUMPY: np.random.RandomState = np.random.rand.__self__  # type: ignore[attr-defined]


def _copies() -> _Generators:
    copies = _Generators.new()
    copies.torch.set_state(cpu_generator().get_state())
    copies.numpy.set_state(np.random.get_state())  # noqa: NPY002  # whichever this thread draws from
    copies.python.setstate(random.getstate())
    return copies


def _choosing(kernel: Any) -> Callable[..., Any]:
    """Return a kernel that draws from the calling thread's generator where the caller names none."""
    original = kernel.call_boxed

    def draw(keys: Any, *arguments: Any, generator: torch.Generator | None = None, **options: Any) -> Any:
        if generator is None and _own.generators is not None:
            generator = _own.generators.torch
        return original(keys, *arguments, generator=generator, **options)

    return draw


class _ThreadsGenerator:
    """Stands for the process's CPU generator in ``torch.random``, whose functions seed, save and restore it."""

    def __getattr__(self, name: str) -> Any:
        return getattr(cpu_generator(), name)


def _replace(module: Any, name: str, method: str, of: Callable[[_Generators], Any]) -> None:
    """Let a module's function draw from the calling thread's generator."""
    original = getattr(module, name)

    @functools.wraps(original)
    def draw(*arguments: Any, **options: Any) -> Any:
        own = _own.generators
        return (original if own is None else getattr(of(own), method))(*arguments, **options)

    draw.__module__, draw.__qualname__ = module.__name__, name  # pickled by name, which every process has
    setattr(module, name, draw)
