"""Parameters of one group that have always been updated together, so that one count of steps serves all of them.

Where every parameter has a gradient at every step, as usual, a parameter group is one cohort and a step costs one call
of a kernel per group. Where some lack one (frozen layers, branches not taken) the cohort splits there, once; it need
never be joined again, since its halves have counted differently from then on.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from typing import Any

import torch
from torch import Tensor

from workbench.core import kernels

__all__ = ["Cohort", "form_cohorts", "take_gradients"]


class Cohort:
    """Some parameters, the options they share and their optimizer state as lists that a kernel takes.

    Args:
        group: Their parameter group; options are read from it at every step.
        parameters: At least one, all of one dtype.
        decays: Whether the group's weight decay applies to them.
        steps: Steps taken so far, 0-dimensional, float32; owned by this cohort.
        first: First moments, one per parameter; empty before the first step.
        second: Second moments, likewise.
        bucket: Number of the bucket in which they travel to the host; None for those that live there.
    """

    __slots__ = (
        "bucket",
        "decays",
        "first",
        "group",
        "is_contiguous",
        "lists",
        "parameters",
        "second",
        "steps",
        "strides",
    )

    def __init__(
        self,
        group: dict[str, Any],
        parameters: list[Tensor],
        decays: bool,
        steps: Tensor,
        first: list[Tensor],
        second: list[Tensor],
        bucket: int | None = None,
    ) -> None:
        self.group = group
        self.parameters = parameters
        self.decays = decays
        self.steps = steps
        self.first = first
        self.second = second
        self.bucket = bucket
        self.lists: kernels.Lasting | None = None  # what the last step went through
        self.strides = [parameter.stride() for parameter in parameters]
        self.is_contiguous = all(parameter.is_contiguous() for parameter in parameters)

    def split(self, chosen: Sequence[bool]) -> tuple[Cohort, Cohort]:
        """Return the chosen parameters and the others as cohorts of their own, each with its own count."""
        return self._part(chosen, True), self._part(chosen, False)

    def _part(self, chosen: Sequence[bool], wanted: bool) -> Cohort:
        def those(items: list[Tensor]) -> list[Tensor]:
            return [item for item, flag in zip(items, chosen, strict=True) if flag is wanted]

        first, second = (those(self.first), those(self.second)) if self.first else ([], [])
        return Cohort(self.group, those(self.parameters), self.decays, self.steps.clone(), first, second, self.bucket)


def form_cohorts(
    groups: Sequence[dict[str, Any]],
    state: dict[Tensor, dict[str, Any]],
    decays: Callable[[dict[str, Any], int], bool],
    bucket_of: Callable[[Tensor], int | None],
) -> list[Cohort]:
    """Divide parameter groups into cohorts: those of one group, dtype, bucket, decay and count of steps.

    The state of parameters that have one then refers to the count of their cohort.

    Args:
        groups: Parameter groups.
        state: State by parameter, with ``step``, ``exp_avg`` and ``exp_avg_sq``.
        decays: Whether a group's decay applies to the parameter at an index.
        bucket_of: The bucket in which a parameter travels, if any.

    Returns:
        The cohorts, those that travel in the order of their buckets.
    """
    cohorts = []
    for group in groups:
        gathered: dict[Any, list[Tensor]] = {}
        for index, parameter in enumerate(group["params"]):
            steps = float(state[parameter]["step"]) if parameter in state else None
            key = parameter.dtype, bucket_of(parameter), decays(group, index), steps
            gathered.setdefault(key, []).append(parameter)
        for (_, bucket, decayed, steps), members in gathered.items():
            born = steps is not None
            count = torch.tensor(steps or 0.0, dtype=torch.float32, device="cpu")
            first = [state[parameter]["exp_avg"] for parameter in members] if born else []
            second = [state[parameter]["exp_avg_sq"] for parameter in members] if born else []
            cohorts.append(Cohort(group, members, decayed, count, first, second, bucket))
            if born:
                share_count(cohorts[-1], state)
    return sorted(cohorts, key=lambda cohort: -1 if cohort.bucket is None else cohort.bucket)


def share_count(cohort: Cohort, state: dict[Tensor, dict[str, Any]]) -> None:
    """Let the state of every parameter of a cohort refer to the cohort's count."""
    for parameter in cohort.parameters:
        state[parameter]["step"] = cohort.steps


def take_gradients(
    cohorts: list[Cohort], state: dict[Tensor, dict[str, Any]], travelling: Container[Tensor] = ()
) -> list[tuple[Cohort, list[Tensor]]]:
    """Return the cohorts that have gradients, with them; a cohort of which only some have is split in place.

    Args:
        cohorts: Changed where one is split.
        state: State by parameter.
        travelling: Parameters of buckets that have gradients, which may have left the device already.

    Returns:
        Pairs of a cohort and its gradients; no gradients are listed for those that travel.
    """
    work: list[tuple[Cohort, list[Tensor]]] = []
    for index in range(len(cohorts)):
        cohort = cohorts[index]
        if cohort.bucket is None:
            gradients = [gradient for parameter in cohort.parameters if (gradient := parameter.grad) is not None]
            n_present = len(gradients)
        else:
            gradients = []
            n_present = sum(parameter in travelling for parameter in cohort.parameters)
        if not n_present:
            continue
        if n_present < len(cohort.parameters):
            there = [p.grad is not None if cohort.bucket is None else p in travelling for p in cohort.parameters]
            cohort, rest = cohort.split(there)
            cohorts[index] = cohort
            cohorts.append(rest)
            for part in (cohort, rest):
                if part.first:
                    share_count(part, state)
        work.append((cohort, gradients))
    return work
