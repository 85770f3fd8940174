"""What the process that started this one tells about ranks: the environment variables of ``torchrun``.

Read without torch, so that a command knows whether it is the one to print before it imports anything.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass


class RankEnvironmentError(ValueError):
    """The environment variables of torchrun are there and contradict each other."""


@dataclass(frozen=True, slots=True)
class RankEnvironment:
    """One of several ranks, as torchrun started it."""

    rank: int
    world_size: int
    local_rank: int  # among those of this machine; chooses the accelerator
    host: str  # where the ranks meet
    port: int
    store_is_served: bool  # by the launcher; otherwise rank 0 serves it
    attempt: int  # earlier starts: torchrun restarts all ranks when one fails


def rank_environment(variables: Mapping[str, str] | None = None) -> RankEnvironment | None:
    """Return this process's place among the ranks; None when it trains alone."""
    env = os.environ if variables is None else variables
    if not env.get("WORLD_SIZE"):
        return None
    world_size = _number(env, "WORLD_SIZE", at_least=1)
    if world_size == 1:
        return None
    rank = _number(env, "RANK", at_least=0)
    if rank >= world_size:
        raise RankEnvironmentError(f"RANK must be below WORLD_SIZE ({world_size}), got {rank}")
    if not env.get("MASTER_ADDR"):
        raise RankEnvironmentError("MASTER_ADDR must name the machine where the ranks meet; torchrun sets it")
    return RankEnvironment(
        rank=rank,
        world_size=world_size,
        local_rank=_number(env, "LOCAL_RANK", at_least=0),
        host=env["MASTER_ADDR"],
        port=_number(env, "MASTER_PORT", at_least=1),
        store_is_served=env.get("TORCHELASTIC_USE_AGENT_STORE") == "True",
        attempt=_number(env, "TORCHELASTIC_RESTART_COUNT", at_least=0) if "TORCHELASTIC_RESTART_COUNT" in env else 0,
    )


def is_first_rank() -> bool:
    """Return whether this process is the one that prints and records: rank 0, or the only one."""
    try:
        here = rank_environment()
    except RankEnvironmentError:
        return True  # joining says what is wrong
    return here is None or here.rank == 0


def _number(env: Mapping[str, str], name: str, *, at_least: int) -> int:
    text = env.get(name, "")
    try:
        number = int(text)
    except ValueError:
        number = at_least - 1
    if number < at_least:
        raise RankEnvironmentError(
            f"{name} must be a whole number, {at_least} or more, where WORLD_SIZE is set, got {text!r}; start the "
            "ranks with torchrun, or unset WORLD_SIZE to train alone"
        )
    return number
