"""LessBN in training: the network is reduced, the optimizer follows, and the head may be normalised."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, Literal

from torch import nn
from torch.optim import Optimizer

from workbench.core.torch_internals import BatchNorm
from workbench.core.warning import warn
from workbench.methods.less_bn.full_normalization import NEEDS_CRITERION, HeadRule
from workbench.methods.less_bn.method import REPORT_ATTRIBUTE, LessBNReport, reduce_batch_norms_
from workbench.methods.parameter_groups import named_trainable_parameters, rebuild_optimizer, split_into_chunks
from workbench.methods.protocol import Method, Preparation

_log = logging.getLogger("workbench")


class LessBNMethod(Method):
    """Removes BatchNorms before training; see :mod:`workbench.methods.less_bn.method`."""

    splits_gradients = True
    refuses_ddp = (  # which lists its parameters when it is made
        "LessBN replaces modules, and a DistributedDataParallel that exists already would not notice; apply() to "
        "the plain model first and call boosted.distribute() then"
    )

    @staticmethod
    def counts(network: nn.Module) -> Mapping[str, int]:
        """Return how many BatchNorms there were before the network was reduced, and how many of them went."""
        report: LessBNReport | None = getattr(network, REPORT_ATTRIBUTE, None)
        if report is None:
            return {}
        removed = len(report.removed)
        return {"batch_norms": removed + len(report.kept), "removable": removed, "removable_by_reference": removed}

    @staticmethod
    def foreseen(
        network: nn.Module,
        new_network: Callable[[], nn.Module],
        untrained: Collection[str],
        call: Callable[[nn.Module], None] | None,
    ) -> Mapping[str, int]:
        """Return how many BatchNorms would go by either rule, and how many layers would be left."""
        norms = sum(isinstance(module, BatchNorm) for module in network.modules())
        if not norms:
            return {}

        def reduced(network: nn.Module, match: Literal["reference", "structure"]) -> tuple[int, int]:
            before = [name for name, _ in named_trainable_parameters(network)]
            trained = dict.fromkeys((name for name in before if name not in untrained), 0)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # that none is removed is an answer here
                report = reduce_batch_norms_(network, match=match, example_inputs=call)
            left = [
                name
                for name, _ in named_trainable_parameters(network)
                if (name in trained if name in before else _group_beside(name, before, trained) is not None)
            ]
            return len(report.removed), len(split_into_chunks(left))

        counts = dict(zip(("removable", "layers_left"), reduced(network, "structure"), strict=True))
        by_reference = reduced(new_network(), "reference")
        counts |= zip(("removable_by_reference", "layers_left_by_reference"), by_reference, strict=True)
        return {"batch_norms": norms, **counts}

    def reshape(self, preparation: Preparation) -> None:
        """Reduce the network, let the optimizer follow, and find out what is left to freeze."""
        config, model = self.config, preparation.model
        rules = config.compatibility
        before = dict(model.named_parameters())
        head = HeadRule(rules.fn_scope, rules.fn_bias, preparation.criterion) if config.less_bn.fn_flag else None
        report = reduce_batch_norms_(
            model, match=rules.less_bn_match, example_inputs=preparation.example_inputs, head=head
        )
        if report.head_note:
            preparation.notes.append(report.head_note)
        if report.head_reason and rules.fn_scope != "classifier":  # asked for by name
            warn(report.head_note)
        elif report.head_note:
            _log.log(logging.WARNING if report.head_reason == NEEDS_CRITERION else logging.INFO, report.head_note)
        preparation.optimizer = _following(preparation.optimizer, before, dict(model.named_parameters()))
        preparation.warned.add("less_bn")
        preparation.plan = preparation.look_again(preparation)

    def prepare_evaluation(self, model: nn.Module, example_inputs: Any) -> None:
        """Reduce BatchNorms as in training; the head stays as it is."""
        if getattr(model, REPORT_ATTRIBUTE, None) is None:  # not processed for training
            reduce_batch_norms_(model, match=self.config.compatibility.less_bn_match, example_inputs=example_inputs)


def _following(
    optimizer: Optimizer, before: Mapping[str, nn.Parameter], after: Mapping[str, nn.Parameter]
) -> Optimizer:
    """Return an optimizer over the network's parameters after a change; the same object when nothing changed.

    The successor of a parameter is the one that now bears its name; a parameter without predecessor joins the group of
    its nearest neighbours, and is left out where the optimizer trains none of them. What never belonged to the network
    stays, a group that lost all is gone.
    """
    name_of = {id(parameter): name for name, parameter in before.items()}
    kept = {id(parameter) for parameter in after.values()}
    waiting = {name: parameter for name, parameter in after.items() if id(parameter) not in name_of}  # for a group

    def is_gone(parameter: nn.Parameter) -> bool:
        return id(parameter) in name_of and id(parameter) not in kept

    def successors(parameter: nn.Parameter) -> Iterator[nn.Parameter]:
        """Give the parameter that now bears the name of one that is gone, and new ones of its module."""
        name = name_of[id(parameter)]
        if name in waiting:
            new = [other for other in waiting if other not in before and _module(other) == _module(name)]
            yield from map(waiting.pop, [name, *new])

    groups = [{**group, "params": []} for group in optimizer.param_groups]
    group_of: dict[str, int] = {}
    changed = False
    for index, group in enumerate(optimizer.param_groups):
        changed = changed or any(map(is_gone, group["params"]))
        members = [new for one in group["params"] for new in (successors(one) if is_gone(one) else (one,))]
        groups[index]["params"] = members
        groups[index].pop("param_names", None)
        group_of |= {name_of[id(one)]: index for one in group["params"] if id(one) in name_of}
    for name, parameter in waiting.items():
        beside = _group_beside(name, before, group_of)
        if beside is not None:
            groups[beside]["params"].append(parameter)
            changed = True
    groups = [group for group in groups if group["params"]]
    return rebuild_optimizer(optimizer, groups) if changed else optimizer


def _group_beside(name: str, before: Collection[str], group_of: Mapping[str, int]) -> int | None:
    """Return the group of the parameters nearest to a new one: in the smallest module around it that had any."""
    place = name
    while place:
        place = _module(place)
        if beside := [other for other in before if not place or other.startswith(f"{place}.")]:
            return next((group_of[other] for other in beside if other in group_of), None)
    return None


def _module(name: str) -> str:
    return name.rpartition(".")[0]
