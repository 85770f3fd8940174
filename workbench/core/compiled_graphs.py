"""How many graphs ``torch.compile`` keeps of one function before it falls back to eager execution."""

from __future__ import annotations

GRAPHS_BESIDE_TRAINING = 8  # torch's own default limit: room for evaluation, last batches and the like


def allow_one_graph_per_group(n_groups: int) -> None:
    """Raise ``torch.compile``'s recompile limit so that every group can keep its compiled step; never lower it.

    A compiled graph depends on ``requires_grad``; past the limit torch would silently fall back to eager execution.
    """
    import torch.compiler.config as settings

    # Two graphs per group: training mode and evaluation mode of the same module.
    settings.recompile_limit = max(settings.recompile_limit, 2 * n_groups + GRAPHS_BESIDE_TRAINING)
    settings.accumulated_recompile_limit = max(settings.accumulated_recompile_limit, 32 * settings.recompile_limit)
