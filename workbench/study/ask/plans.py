"""What a configuration means in a study: on its ranks and network, and with the study as the source of a subspace.

DimReduce needs weights that were recorded earlier. A candidate that names none is trained from those the study records
itself (``warm_up.py``), so here it is resolved as if it named a folder, always the same one: plans that are equal stay
equal over seeds and machines. The real folder is put in when the plan is trained.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from workbench.config import BoostConfig, Facts, NetworkFacts, Plan, requested_switches

__all__ = ["RECORDED_BY_STUDY", "StudyPlans", "explicit_config", "needs_warm_up"]

RECORDED_BY_STUDY = "(recorded by the study)"  # stands for the folder of weight snapshots


@dataclass(frozen=True, slots=True)
class StudyPlans:
    """Resolves configurations as a study trains them: over so many ranks, on a network of which so much is known."""

    ranks: int = 1
    network: NetworkFacts | None = None  # None also in studies begun before 0.7

    def resolve(self, config: BoostConfig, level: str) -> Plan:
        """Return what is in effect."""
        if requested_switches(config, level)["dim_reduce"]:
            config = self.with_subspace(config)
        return config.resolve(level, self.ranks, self.network)

    def facts(self, level: str) -> Facts:
        """Return what a configuration meets here at a level."""
        return Facts(level, self.ranks, self.network)

    @staticmethod
    def with_subspace(config: BoostConfig) -> BoostConfig:
        """Return a configuration that names a source of DimReduce's subspace: the study, where it names none itself."""
        if config.dim_reduce.pca_mat_path is not None or config.dim_reduce.weight_load_dir is not None:
            return config
        return config.with_values({"dim_reduce.weight_load_dir": RECORDED_BY_STUDY})


def needs_warm_up(plan: Plan) -> bool:
    """Return whether a plan is trained from weight snapshots that the study records."""
    return plan.dim_reduce and plan.config.dim_reduce.weight_load_dir == RECORDED_BY_STUDY


def explicit_config(plan: Plan, snapshots: Path | None = None) -> BoostConfig:
    """Return the same plan without what it drops, so that a study does not warn of the same thing at every trial.

    With DimReduce that is the section optimizer, too: the columns of the subspace follow the order in which the
    optimizer holds the parameters. A plan in need of a warm-up gets the folder of snapshots.
    """
    config = plan.explicit_config()
    if plan.dim_reduce:
        config = config.model_copy(update={"optimizer": None})
    if snapshots is None or not needs_warm_up(plan):
        return config
    return config.with_values({"dim_reduce.weight_load_dir": str(snapshots.absolute())})
