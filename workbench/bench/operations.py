"""How many of torch's operations a piece of work takes, which no busy machine can change."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode

__all__ = ["operations_of"]


def operations_of(work: Callable[[], object], *, warm_up: int = 2) -> Counter[str]:
    """Return how often each operation of torch is done, forward, backward and update, whatever its size.

    Views touch no number and are not counted.

    Args:
        work: What is counted. Kernels that torch knows nothing of are not.
        warm_up: Calls before it: state is made when it is first needed.
    """
    for _ in range(warm_up):
        work()
    counting = _Counting()
    with counting:
        work()
    return counting.operations


class _Counting(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.operations = Counter[str]()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not func.is_view:
            self.operations[str(func)] += 1
        return func(*args, **(kwargs or {}))
