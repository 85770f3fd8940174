"""What a configuration means in a study: on its ranks and network, and with the study as the source of snapshots.

A candidate that needs weights recorded earlier and names none is trained from those the study records itself
(``warm_up.py``). Here it is resolved as if it named a folder, always the same one, so that equal plans stay equal over
seeds and machines; the real folder is put in when the plan is trained.
"""

from __future__ import annotations

from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path

from workbench.config import BoostConfig, Facts, NetworkFacts, Plan, describe_parameters, requested_switches
from workbench.methods.registry import METHODS

RECORDED_BY_STUDY = "(recorded by the study)"  # stands for the folder of weight snapshots
FROM_SNAPSHOTS = tuple(method for method in METHODS if method.snapshot_folder)


@dataclass(frozen=True, slots=True)
class StudyPlans:
    """Resolves configurations as a study trains them: on its ranks, with what is known of its network."""

    ranks: int = 1
    network: NetworkFacts | None = None  # None also in studies begun before 0.7

    def resolve(self, config: BoostConfig, level: str) -> Plan:
        """Return what is in effect under a configuration."""
        requested = requested_switches(config, level)
        if any(requested[method.name] for method in FROM_SNAPSHOTS):
            config = self.with_subspace(config)
        return config.resolve(level, self.ranks, self.network)

    def facts(self, level: str) -> Facts:
        """Return what a configuration meets here at a level."""
        return Facts(level, self.ranks, self.network)

    @staticmethod
    def with_subspace(config: BoostConfig) -> BoostConfig:
        """Return the configuration with the study as its source of weight snapshots, unless it names one already."""
        infos, facts = describe_parameters(), Facts()
        lacking = [method for method in FROM_SNAPSHOTS if infos[method.switch].needs.why_not(config, facts)]
        return config.with_values({one.snapshot_folder: RECORDED_BY_STUDY for one in lacking}) if lacking else config


def needs_warm_up(plan: Plan) -> bool:
    """Return whether a plan is trained from weight snapshots that the study records."""
    return bool(_recorded_here(plan))


def explicit_config(plan: Plan, snapshots: Path | None = None) -> BoostConfig:
    """Return the same plan without what it drops, so that a study does not warn of the same thing at every trial.

    A method that makes its own steps drops the section ``optimizer``, too: the columns of a subspace follow the order
    in which the optimizer holds the parameters. A plan that needs a warm-up gets the folder of snapshots.
    """
    config = plan.explicit_config()
    if config.optimizer is not None and plan.why_not("optimizer.name"):
        config = config.model_copy(update={"optimizer": None})
    if snapshots is None:
        return config
    return config.with_values(dict.fromkeys(_recorded_here(plan), str(snapshots.absolute())))


def _recorded_here(plan: Plan) -> list[str]:
    placed = [one for one in FROM_SNAPSHOTS if attrgetter(one.snapshot_folder)(plan.config) == RECORDED_BY_STUDY]
    return [method.snapshot_folder for method in placed if method.is_in_effect(plan)]
