"""The window of micro-batches that make one update; one micro-batch where nothing is accumulated."""

from __future__ import annotations

from collections.abc import Mapping

from workbench.core.arguments import checked_count


class AccumulationWindow:
    """Counts micro-batches and says when their gradients are to be applied.

    With ``n`` micro-batches per update; 1 or less switches accumulation off, as upstream.
    """

    def __init__(self, n: int) -> None:
        self.n_steps = max(1, checked_count("grad_accumulation_step", n, None, kind="an integer"))
        self.position = 0

    @property
    def weight(self) -> float:
        """Factor of each micro-batch's gradient (and loss, before its backward pass): 1 / N."""
        return 1.0 / self.n_steps

    @property
    def at_start(self) -> bool:
        """Whether no micro-batch is waiting for its update."""
        return self.position == 0

    def advance(self) -> bool:
        """Count one micro-batch; return whether it completed the window."""
        self.position = (self.position + 1) % self.n_steps
        return self.position == 0

    def reset(self) -> None:
        """Forget the micro-batches counted so far; the caller drops or applies their gradients."""
        self.position = 0

    def state_dict(self) -> dict[str, int]:
        """Return ``n_steps`` (micro-batches per update) and ``position`` (micro-batches counted so far)."""
        return {"n_steps": self.n_steps, "position": self.position}

    def load_state_dict(self, state_dict: Mapping[str, int]) -> None:
        """Continue within a window; a ValueError when its length was different."""
        if state_dict["n_steps"] != self.n_steps:
            raise ValueError(
                f"state_dict belongs to windows of {state_dict['n_steps']} micro-batches, this one has {self.n_steps}"
            )
        self.position = int(state_dict["position"])
