"""Evaluation: what is measured on a batch, and with which networks."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from workbench.config import BoostConfig
from workbench.core import distributed as ranks
from workbench.core.batch import move_batch, widened
from workbench.core.evaluation_mode import evaluation_mode
from workbench.core.metrics import MetricAccumulator, MetricError, new_accumulator
from workbench.core.warning import warn
from workbench.mindspore.batch_calls import called_with, data_and_label
from workbench.mindspore.callbacks import RunContext
from workbench.training.apply import AutoBoost
from workbench.training.boosted import Boosted
from workbench.training.precision import Precision, cast_model_


def prepare_for_evaluation_(
    network: nn.Module,
    eval_network: nn.Module | None,
    boosted: Boosted | None,
    config: BoostConfig,
    level: str,
    device: torch.device,
) -> Precision:
    """Cast a network that is not trained, and do to an evaluation network of its own weights what was done to it."""
    if boosted is not None:
        precision = boosted.precision
    else:
        if config.resolve(level, world_size=ranks.world_size()).in_effect():
            warn("boosting has no effect without an optimizer; give Model an `optimizer` to train with it")
        amp, on = config.amp, device.type
        precision = Precision(config.effective_amp_level(on), amp.dtype, on, amp.keep_batchnorm_fp32)
        cast_model_(network, precision)
    if eval_network is not None and all(module is not network for module in eval_network.modules()):
        if boosted is not None and boosted.plan is not None and boosted.plan.less_bn:
            AutoBoost(level, config).network_auto_process_eval(eval_network)
        cast_model_(eval_network, precision)
    return precision


class Evaluator:
    """What is measured on a batch, and with which networks; arguments as in ``Model``."""

    def __init__(
        self,
        network: nn.Module,
        loss_fn: Callable[..., Tensor] | None,
        metrics: Any,
        eval_network: nn.Module | None = None,
        eval_indexes: Sequence[int] | None = None,
    ) -> None:
        self.network = network
        self.loss_fn = loss_fn
        self.eval_network = eval_network
        self.indexes = _checked_indexes(eval_indexes, eval_network)
        self.metrics = _by_name(metrics)
        try:
            accumulators = self.begin()
        except MetricError as error:
            raise ValueError(f"`metrics`: {error}") from None
        for name, accumulator in accumulators.items():  # what would fail in the first evaluation
            if accumulator.needs == "outputs" and loss_fn is None and eval_network is None:
                raise ValueError(
                    f"`metrics` holds {name!r}, which needs a prediction and a label; give `loss_fn`, or an "
                    "`eval_network` that returns (loss, prediction, label)"
                )

    def require_metrics(self, method: str) -> None:
        """Raise ValueError where there is nothing to measure; ``method`` is what was called."""
        if not self.metrics:
            raise ValueError(f"`metrics` is empty, and {method} needs at least one, for example metrics={{'acc'}}")

    def begin(self) -> dict[str, MetricAccumulator]:
        """Begin to accumulate all metrics, by the name of the result."""
        return {name: new_accumulator(metric, self.loss_fn) for name, metric in self.metrics.items()}

    def run(
        self,
        dataset: Iterable[Any],
        context: RunContext,
        device: torch.device,
        precision: Precision,
        weights_to_use: Callable[[], contextlib.AbstractContextManager[None]],
    ) -> dict[str, float]:
        """Measure a dataset, in evaluation mode and with the weights to use, and notify the callbacks of each batch."""
        state, measured = context.original_args(), self.begin()
        notify = state.list_callback.notify
        notify("on_eval_begin", context)
        state.cur_epoch_num = max(state.cur_epoch_num, 1)
        notify("on_eval_epoch_begin", context)
        modules = [m for m in (self.network, self.loss_fn, self.eval_network) if isinstance(m, nn.Module)]
        with weights_to_use(), evaluation_mode(modules, device):
            for batch in dataset:
                state.cur_step_num += 1
                state.cur_step_in_epoch += 1
                notify("on_eval_step_begin", context)
                with precision.autocast():
                    state.net_outputs = self.measure(move_batch(batch, device), measured)
                notify("on_eval_step_end", context)
                if context.get_stop_requested():
                    break
        if state.cur_step_num == 0:
            raise ValueError("`valid_dataset` held no batch; an iterator can be read only once, give a list")
        state.metrics = results = {name: accumulator.compute() for name, accumulator in measured.items()}
        notify("on_eval_epoch_end", context)
        notify("on_eval_end", context)
        return results

    def measure(self, batch: Any, measured: Mapping[str, MetricAccumulator]) -> Any:
        """Run the networks on one batch (on the device) and add it to the metrics that `begin` returned.

        Return what the evaluation network did, or ``(loss, prediction, label)``; no loss where no metric asks for it.
        """
        outputs: Any
        loss = prediction = label = None
        if self.eval_network is not None:
            outputs = widened(called_with(self.eval_network, batch))
            loss, prediction, label = self._chosen(outputs)
        elif self.loss_fn is None:
            outputs = loss = called_with(self.network, batch)
        else:
            data, label = data_and_label(batch)
            output = self.network(data)
            if any(accumulator.needs == "loss" for accumulator in measured.values()):
                loss = self.loss_fn(output, label)
            prediction = widened(output)
            outputs = (loss, prediction, label)
        for name, accumulator in measured.items():
            if accumulator.needs == "loss":
                accumulator.update(_mean_loss(loss, name), batch)
            elif prediction is None:
                raise ValueError(
                    f"metric {name!r} needs a prediction and a label, but `eval_network` returned a loss only; it must "
                    "return (loss, prediction, label)"
                )
            else:
                accumulator.update(prediction, (prediction, label))
        return outputs

    def _chosen(self, outputs: Any) -> tuple[Any, Any, Any]:
        """Return loss, prediction and label among the outputs of the evaluation network."""
        several = outputs if isinstance(outputs, (tuple, list)) else (outputs,)
        n = len(several)
        if self.indexes is not None and max(self.indexes) >= n:
            raise ValueError(
                f"`eval_indexes` must be positions in the {n} outputs of `eval_network`, got {list(self.indexes)}"
            )
        if self.indexes is None and n not in (1, 2, 3):
            raise ValueError(
                f"`eval_network` returned {n} outputs; say with `eval_indexes` where loss, prediction and label are"
            )
        # One output is the loss, two are prediction and label.
        places: Sequence[int | None] = self.indexes or {1: (0, None, None), 2: (None, 0, 1), 3: (0, 1, 2)}[n]
        loss, prediction, label = (None if place is None else several[place] for place in places)
        return loss, prediction, label


def _by_name(metrics: Any) -> dict[str, Any]:
    if metrics is None:
        return {}
    named: list[tuple[Any, Any]]
    if isinstance(metrics, Mapping):
        named = list(metrics.items())
    elif isinstance(metrics, (set, frozenset, list, tuple)):
        named = [(metric if isinstance(metric, str) else type(metric).__name__, metric) for metric in metrics]
        if isinstance(metrics, (set, frozenset)):
            named.sort(key=lambda pair: str(pair[0]))  # sets of texts come in another order in every process
    else:
        came = repr(metrics) if isinstance(metrics, str) else type(metrics).__name__
        raise TypeError(f"`metrics` must be a set, list or dict of names or torchmetrics objects, got {came}")
    for name, _ in named:
        if not isinstance(name, str):
            raise TypeError(f"`metrics` must have texts as keys, got {name!r}")
    names = [name for name, _ in named]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise ValueError(f"`metrics` holds {twice!r} twice; give a dict, so that each result has a name of its own")
    return dict(named)


def _checked_indexes(indexes: Any, eval_network: nn.Module | None) -> tuple[int, ...] | None:
    if indexes is None:
        return None
    if eval_network is None:
        raise ValueError("`eval_indexes` says where the outputs of `eval_network` are, and there is none; leave it out")
    whole = isinstance(indexes, (list, tuple)) and all(type(index) is int and index >= 0 for index in indexes)
    if not whole or len(indexes) != 3:
        raise ValueError(
            f"`eval_indexes` must be three positions, of loss, prediction and label, each at least 0, got {indexes!r}"
        )
    return tuple(indexes)


def _mean_loss(loss: Any, metric: str) -> Tensor:
    if not isinstance(loss, Tensor):
        came = "none" if loss is None else type(loss).__name__
        raise ValueError(
            f"metric {metric!r} needs a loss, got {came}; let `eval_network` return (loss, prediction, label) or a loss"
        )
    return loss.float().mean()
