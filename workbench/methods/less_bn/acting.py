"""LessBN in training: the network is reduced, the optimizer follows, and the head may be normalised."""

from __future__ import annotations

import logging
import warnings
from typing import Any

from torch import nn
from torch.nn.parallel import DistributedDataParallel

from workbench.methods.facts import facts_of
from workbench.methods.less_bn.full_normalization import NEEDS_CRITERION, HeadRule
from workbench.methods.less_bn.method import REPORT_ATTRIBUTE, reduce_batch_norms_
from workbench.methods.parameter_succession import follow_parameters
from workbench.methods.protocol import Method, Preparation

__all__ = ["LessBNMethod"]

_log = logging.getLogger("workbench")


class LessBNMethod(Method):
    """Removes BatchNorms before training; see :mod:`workbench.methods.less_bn.method`."""

    splits_gradients = True

    def refusal(self, model: nn.Module) -> str:
        """Refuse a DistributedDataParallel, which lists its parameters when it is made."""
        if not any(isinstance(module, DistributedDataParallel) for module in model.modules()):
            return ""
        return (
            "LessBN replaces modules, and a DistributedDataParallel that exists already would not notice; apply() to "
            "the plain model first and call boosted.distribute() then"
        )

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
        if report.head_reason and rules.fn_scope != "classifier":  # somebody asked for it by name
            warnings.warn(report.head_note, UserWarning, stacklevel=2)
        elif report.head_note:
            _log.log(logging.WARNING if report.head_reason == NEEDS_CRITERION else logging.INFO, report.head_note)
        if facts_of(model, preparation.optimizer).less_bn_acts(config):
            preparation.optimizer = follow_parameters(preparation.optimizer, before, dict(model.named_parameters()))
        preparation.plan = preparation.look_again(preparation)

    def prepare_evaluation(self, model: nn.Module, example_inputs: Any) -> None:
        """Reduce BatchNorms as in training; the head stays as it is."""
        if getattr(model, REPORT_ATTRIBUTE, None) is None:  # not processed for training
            reduce_batch_norms_(model, match=self.config.compatibility.less_bn_match, example_inputs=example_inputs)
