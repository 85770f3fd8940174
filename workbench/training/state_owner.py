"""What a boosted state belongs to: under another set-up it is no resumption, even where it can be loaded."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from torch.optim import Optimizer

if TYPE_CHECKING:
    from workbench.training.boosted import Boosted


def set_up_of(boosted: Boosted, active: Optimizer) -> dict[str, str]:
    """Return what a state belongs to, in the words of a message; what changes the time alone is no part of it.

    ``active`` is the optimizer that steps, inside of the one that the pair shows.
    """
    groups, scaling = boosted.optimizer.param_groups, boosted.loss_scaling
    formats = {str(parameter.dtype) for group in groups for parameter in group["params"]}
    return {
        "the optimizer is": " over ".join(dict.fromkeys(type(one).__name__ for one in (boosted.optimizer, active))),
        "weights are": ", ".join(sorted(formats)),
        "methods with a state are": ", ".join(boosted.hooks),
        "the update is": type(boosted.update).__name__,
        "the loss scale and its rule are": f"{type(scaling).__name__}, {type(scaling.update_cell).__name__}",
        "the learning rate has": "a schedule" if boosted.course.has_schedule else "none",
        "forward passes for 100 batches are": str(boosted.methods.passes(100)),
    }


def refuse_another(then: Mapping[str, str] | None, now: Mapping[str, str]) -> None:
    """Raise RuntimeError where a state belongs to another set-up; earlier checkpoints (None) do not say."""
    if then is None:
        return
    if differs := next((name for name in now if then.get(name) != now[name]), None):
        raise RuntimeError(
            f"exact resumption needs the same set-up, but {differs}: {then.get(differs) or 'nothing'} before, and "
            f"{now[differs] or 'nothing'} here; boosted.model.load_state_dict() takes the weights alone"
        )
