"""Read again what a loop was trained on before, in the order that it had.

A loader has no position that could be set. What was trained on is read again and left out, and where a loader draws its
order from the process's generators, these have to be as they were then.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

import torch

from workbench.core.own_generators import kept_generators
from workbench.training.generator_states import generator_states, generators_of, restore_generators


class DataOrder:
    """Random generators as they were when the first epoch began, and when the present one did.

    The first ones seed the processes of a loader that keeps them, the present ones order its epoch. Of the epochs in
    between only the number of batches matters.
    """

    def __init__(self) -> None:
        self._begun: dict[int, dict[str, Any]] = {}  # by the number of the epoch
        self._reads_again = False

    def epoch_begins(self, loader: Any, epoch: int, device: torch.device) -> None:
        """Note the generators before a loader is iterated; where it is read again, put them back to what was noted."""
        if isinstance(loader, list | tuple):
            return  # it draws nothing
        own = generators_of(loader)
        if not self._reads_again:
            now = {**generator_states(device), "own": [generator.get_state() for generator in own]}
            self._begun = {number: state for number, state in self._begun.items() if number == 0 < epoch} | {epoch: now}
        elif (then := self._begun.get(epoch)) is not None:
            restore_generators(then, device)
            for generator, state in zip(own, then["own"], strict=False):
                generator.set_state(state.cpu())

    def leave_out(self, batches: Iterator[Any], n: int, device: torch.device) -> None:
        """Read the first n batches again; afterwards the process's generators are as they were before."""
        self._reads_again = True
        try:
            with kept_generators(device):
                next(islice(batches, n, n), None)
        finally:
            self._reads_again = False

    def state_dict(self) -> dict[int, Any]:
        """Return the states of the generators by the number of the epoch that they began; empty before the first."""
        return dict(self._begun)

    def load_state_dict(self, state: Mapping[int, Any]) -> None:
        """Read again as where ``state_dict`` was taken."""
        self._begun = dict(state)
