"""How many of torch's operations a piece of work takes, which no busy machine can change.

Of sides that should do the same this tells which does more of them, where times are too noisy to.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode

from workbench.bench import Estimate, Finding


def compared_operations(title: str, ours: int, base: int, of_what: str = "") -> Finding:
    """Return our count as a multiple of the base's."""
    return Finding(title, "x", Estimate.exact(ours / base), note=f"{ours} against {base}{of_what}, counted")


def operations_of(work: Callable[[], object], *, warm_up: int = 2) -> Counter[str]:
    """Return how often each operation is done, forward, backward and update, whatever its size.

    Views touch no number and are not counted, nor are kernels that torch knows nothing of. State is made in the calls
    that warm up.
    """
    for _ in range(warm_up):
        work()
    with _Counting() as counting:
        work()
    return counting.operations


class _Counting(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.operations = Counter[str]()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not func.is_view:
            self.operations[str(func)] += 1
        return func(*args, **(kwargs or {}))
