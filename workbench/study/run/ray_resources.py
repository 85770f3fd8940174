"""What one process of a trial needs of a Ray cluster: ``"GPU=1"``, ``"CPU=2, GPU=0.5"``, ``"NPU=1"``, ``"a100=1"``.

Ray knows CPU, accelerators and memory (bytes); any other name is a resource given to a node with ``ray start``. Two
trials that ask for half a GPU share one, each seeing all of it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from workbench.study.errors import StudyError

_ACCELERATORS = ("GPU", "NPU", "TPU", "HPU", "neuron_cores")
_NAMES = ("CPU", "memory", *_ACCELERATORS)
_PAIR = re.compile(r"\s*([A-Za-z_][A-Za-z0-9_.:/-]*)\s*=\s*(.*?)\s*")
_SMALLEST = 0.0001  # Ray counts in such units
_EXAMPLE = 'write it like "GPU=1" or "CPU=2, GPU=0.5"'


@dataclass(frozen=True, slots=True)
class TrialResources:
    """Resources of one process of a trial: name -> amount, above 0; CPU is always among them."""

    amounts: Mapping[str, float]

    @property
    def options(self) -> dict[str, Any]:
        """The resources as options of ``ray.remote``."""
        others = dict(self.amounts)
        own = {"num_cpus": others.pop("CPU"), "num_gpus": others.pop("GPU", 0.0), "memory": others.pop("memory", None)}
        return {**own, "resources": others}

    def room(self, node: Mapping[str, float]) -> int:
        """Return how many such processes fit on a node with these resources.

        Example:
            >>> parse_resources("GPU=0.5").room({"CPU": 8.0, "GPU": 2.0})
            4
        """
        return int(min(node.get(name, 0.0) / amount + 1e-9 for name, amount in self.amounts.items()))

    def shares_accelerator(self) -> bool:
        """Return whether less than a whole accelerator is asked for."""
        return any(0.0 < self.amounts.get(name, 0.0) < 1.0 for name in _ACCELERATORS)

    def __str__(self) -> str:
        return ", ".join(f"{name}={amount:g}" for name, amount in self.amounts.items())


def parse_resources(text: str) -> TrialResources:
    """Read ``NAME=AMOUNT`` pairs, separated by commas; without CPU one CPU is added.

    Example:
        >>> str(parse_resources("GPU=0.5"))
        'CPU=1, GPU=0.5'
    """
    amounts: dict[str, float] = {}
    for pair in filter(str.strip, text.split(",")):
        name, amount = _pair(pair)
        if name in amounts:
            raise StudyError(f"--resources-per-trial names {name} twice")
        amounts[name] = amount
    if not amounts:
        raise StudyError(f"--resources-per-trial names nothing; {_EXAMPLE}")
    return TrialResources({"CPU": amounts.pop("CPU", 1.0), **amounts})


def _pair(text: str) -> tuple[str, float]:
    found = _PAIR.fullmatch(text)
    if found is None:
        raise StudyError(f"--resources-per-trial: {text.strip()!r} is not NAME=AMOUNT; {_EXAMPLE}")
    name, number = found.groups()
    known = next((one for one in _NAMES if one.lower() == name.lower()), name)
    if known != name:
        raise StudyError(f"--resources-per-trial: Ray has no resource {name!r}; did you mean {known}={number}?")
    try:
        amount = float(number)
    except ValueError:
        amount = math.nan
    rule = "" if _SMALLEST <= amount < math.inf else f"the amount of {name} must be a number of at least {_SMALLEST}"
    if amount > 1.0 and not rule and not amount.is_integer() and name != "CPU":
        rule = f"{name} above 1 must be a whole number, as Ray wants it"
    if rule:
        raise StudyError(f"--resources-per-trial: {rule}, got {number!r}")
    return name, amount
