"""Configurations that many tests train under."""

from __future__ import annotations

from typing import Any


def accumulating(steps: int) -> dict[str, Any]:
    """Return a configuration that adds up so many micro-batches, and does nothing else."""
    switches = {"less_bn": False, "grad_freeze": False, "grad_accumulation": steps > 1}
    return {"boost": {"mode": "manual", **switches}, "grad_accumulation": {"grad_accumulation_step": steps}}


def freezing(groups: int, *, p: float = 0.5, kind: int = 1, steps: int = 12, accumulate: int = 1) -> dict[str, Any]:
    """Return a configuration that freezes layers in so many groups, and does nothing else but add up micro-batches."""
    config = accumulating(accumulate)
    section = {"param_groups": groups, "freeze_type": kind, "freeze_p": p, "total_steps": steps}
    return {**config, "boost": config["boost"] | {"grad_freeze": True}, "grad_freeze": section}
