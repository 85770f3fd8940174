"""What a training run is asked for, as one value that can be pickled: the arguments of training, declared once.

`workbench.train`, comparisons, panels and jobs of a study build one; `workbench.training.run.run_task` carries it out.
Where it trains and who watches (folders, devices, callbacks) is given separately.
"""

from __future__ import annotations

from dataclasses import dataclass

from workbench.config.boost_config import BoostConfig


@dataclass(frozen=True, slots=True)
class RunRequest:
    """One training run.

    Args:
        config: What is trained.
        level: Its boost level.
        seed: Seed of weights, data order and data split.
        steps: The loader's batches that the task is trained for today, on each rank. A schedule may take a share of
            them, and a batch factor may regroup them into fewer or more forward passes (micro-batches).
        evaluate_every: Loader batches between two evaluations; None evaluates at the end only.
        run_id: Name of the run directory; empty makes one from the time.
        exponents_every: Updates between two histograms of the gradients' exponents; 0 for none.
    """

    config: BoostConfig
    level: str = "O0"
    seed: int = 0
    steps: int = 300
    evaluate_every: int | None = None
    run_id: str = ""
    exponents_every: int = 0
