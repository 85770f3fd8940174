"""Metrics: a name, a torchmetrics object or a function, over the evaluation batches, with its direction.

``accuracy``, ``loss`` and ``bits_per_byte`` are summed here, on the device and without waiting for it, because every
study needs one of them and torchmetrics takes a second to import. Everything else is torchmetrics' own arithmetic,
built when the first outputs show how many classes there are. Outputs are logits unless the loss says otherwise; they
are turned into probabilities here and not by torchmetrics, which decides batch by batch from the range of the values
and would mix scales. Where the loss does not say, the range of all outputs of an evaluation decides.
"""

from __future__ import annotations

import copy
import difflib
import functools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from workbench.core.batch import TARGET_KEYS, batch_size_of, parts_by_name, target_key, tensor_of, tensors_of, widened
from workbench.core.signatures import why_not_called

Direction = Literal["maximize", "minimize"]
OutputKind = Literal["logits", "probabilities", "log_probabilities"]

METRIC_NAMES: Mapping[str, Direction] = {
    "accuracy": "maximize",
    "auroc": "maximize",
    "average_precision": "maximize",
    "bits_per_byte": "minimize",
    "f1": "maximize",
    "loss": "minimize",
    "mae": "minimize",
    "mse": "minimize",
    "precision": "maximize",
    "r2": "maximize",
    "recall": "maximize",
    "rmse": "minimize",
}
"""Names known here, each with the direction that is better."""


class MetricError(ValueError):
    """A metric is unknown, or does not fit what it is given; the message names it, the rule and what it got."""


_METHODS = ("update", "compute", "reset")
_ALIASES = {"acc": "accuracy", "auc": "auroc", "bpb": "bits_per_byte", "f1_score": "f1"}


class MetricAccumulator(Protocol):
    """A metric while it is being accumulated over the evaluation batches.

    ``update`` takes what the metric needs, the outputs for a batch or its mean loss, and the batch; ``compute`` waits
    for the device once.
    """

    needs: Literal["outputs", "loss"] = "outputs"

    def update(self, value: Any, batch: Any) -> None: ...  # noqa: D102

    def compute(self) -> float: ...  # noqa: D102


@dataclass(frozen=True)
class MetricRule:
    """A task's metric, checked: canonical name, or that of a class or a function, direction, and how to begin it."""

    name: str
    higher_is_better: bool
    create: Callable[[], MetricAccumulator]


def metric_rule(metric: Any, direction: Direction | None, loss: Any) -> MetricRule:
    """Return the rule behind a task's ``metric`` and ``direction``, None where the metric itself knows it.

    A metric is one of ``METRIC_NAMES``, the name of a torchmetrics class that needs no argument, an object with
    ``update(outputs, targets)``, ``compute()`` and ``reset()``, or a function of all outputs and targets of an
    evaluation. The task's loss shows whether outputs are logits.
    """
    if direction not in (None, "maximize", "minimize"):
        raise MetricError(f"`direction` must be 'maximize' or 'minimize', got {direction!r}")
    name, known, create = _resolved(metric, loss)
    if name in METRIC_NAMES and direction not in (None, METRIC_NAMES[name]):
        raise MetricError(f"`direction` of metric {name!r} is {METRIC_NAMES[name]!r}, got {direction!r}; leave it out")
    higher = known if direction is None else direction == "maximize"
    if higher is None:
        raise MetricError(
            f"metric {name} does not say which direction is better; give direction='maximize' or 'minimize' beside it"
        )
    return MetricRule(name, higher, create)


def new_accumulator(metric: Any, loss: Any) -> MetricAccumulator:
    """Begin to accumulate a metric whose direction does not matter; without a loss, the outputs say what they are."""
    return _resolved(metric, loss)[2]()


def _resolved(metric: Any, loss: Any) -> tuple[str, bool | None, Callable[[], MetricAccumulator]]:
    """Return name, whether higher is better (None where it is not stated) and how to begin."""
    if isinstance(metric, str):
        name = _ALIASES.get(metric.strip().lower(), metric.strip().lower())
        if name in METRIC_NAMES:
            one_hot, ignored = what_targets_are(loss)
            create = functools.partial(_creator, name, one_hot=one_hot, ignored=ignored)
            if (name == "accuracy" or name in _CLASSIFICATION) and not says_its_kind(loss):
                return name, True, lambda: _EitherKind(create("logits")(), create("probabilities")())
            return name, METRIC_NAMES[name] == "maximize", create(output_kind(loss))
        metric = _torchmetrics_by_name(metric.strip())
    if isinstance(metric, type):
        raise MetricError(
            f"`metric` must be a name or an object, got the class {metric.__name__}; write {metric.__name__}(...)"
        )
    higher = getattr(metric, "higher_is_better", None)
    known = higher if isinstance(higher, bool) else None
    if all(callable(getattr(metric, method, None)) for method in _METHODS):
        return type(metric).__name__, known, functools.partial(_GivenMetric, metric)
    if is_function(metric):
        name = getattr(metric, "__name__", type(metric).__name__)
        return name, known, lambda: _GivenMetric(_OfAllOutputs(metric, name))
    raise MetricError(
        f"`metric` must be a name ({', '.join(METRIC_NAMES)}), a function of all outputs and targets, or an object "
        "with update(outputs, targets), compute() and reset(), such as torchmetrics', "
        f"{'and is missing' if metric is None else f'got {type(metric).__name__}'}"
    )


def what_targets_are(loss: Any) -> tuple[bool, int]:
    """Return whether floating-point targets shaped like the outputs are one class each, and the one that is ignored.

    Beside any other loss than cross entropy such targets are many labels.
    """
    ignored = getattr(loss, "ignore_index", None)
    is_cross_entropy = isinstance(loss, nn.CrossEntropyLoss) or loss is F.cross_entropy
    return is_cross_entropy, -100 if ignored is None else ignored


def is_function(metric: Any) -> bool:
    """Return whether a metric is a function of all outputs and targets, and no object that is given each batch."""
    has_methods = any(hasattr(metric, method) for method in _METHODS)
    return callable(metric) and not has_methods and not why_not_called(metric, None, None)


def output_kind(loss: Any) -> OutputKind:
    """Return what the model's outputs are, judged by the criterion; logits when that is unclear."""
    if isinstance(loss, nn.BCELoss) or loss is F.binary_cross_entropy:
        return "probabilities"
    if isinstance(loss, nn.NLLLoss) or loss is F.nll_loss:
        return "log_probabilities"
    return "logits"


_KNOWN_KINDS = (
    *(nn.BCELoss, nn.BCEWithLogitsLoss, nn.CrossEntropyLoss, nn.NLLLoss),
    *(nn.MultiLabelSoftMarginLoss, nn.MultiMarginLoss, nn.SoftMarginLoss),
)
_KNOWN_FUNCTIONS = (F.binary_cross_entropy, F.binary_cross_entropy_with_logits, F.cross_entropy, F.nll_loss)


def says_its_kind(loss: Any) -> bool:
    """Return whether a loss takes logits, or probabilities, and nothing else; a squared error or the user's may not."""
    return isinstance(loss, _KNOWN_KINDS) or loss in _KNOWN_FUNCTIONS


class _EitherKind(MetricAccumulator):
    """One metric read both ways, of logits and of probabilities: as the latter where all outputs could be those.

    Logits that all lie in [0, 1] would all mean the same class. A sigmoid's outputs, cut at 0, did, whatever they were.
    """

    def __init__(self, of_logits: MetricAccumulator, of_probabilities: MetricAccumulator) -> None:
        self._of_logits, self._of_probabilities = of_logits, of_probabilities
        self._could_be: list[Tensor] = []

    def update(self, value: Any, batch: Any) -> None:
        self._of_logits.update(value, batch)
        self._of_probabilities.update(value, batch)
        outputs = _outputs_and_targets(value, batch, one_hot=False)[0]
        could_be = ((outputs >= 0) & (outputs <= 1)).all()
        if outputs.ndim == 2 and outputs.shape[1] > 1:
            could_be &= ((outputs.float().sum(dim=1) - 1).abs() < 0.05).all()  # as bfloat16 rounds many classes
        self._could_be.append(could_be)

    def compute(self) -> float:
        if self._could_be and bool(torch.stack(self._could_be).all()):
            return self._of_probabilities.compute()
        return self._of_logits.compute()


class _Accuracy(MetricAccumulator):
    """Share of samples (or tokens, pixels) whose predicted class is the target; ``ignored`` targets do not count."""

    def __init__(self, kind: OutputKind, one_hot: bool, ignored: int) -> None:
        self._one_hot = one_hot
        self._ignored = ignored
        self._threshold = 0.5 if kind == "probabilities" else 0.0
        self._sums: Tensor | None = None  # correct ones, counted ones, and targets that are no class

    def update(self, value: Any, batch: Any) -> None:
        outputs, targets = _outputs_and_targets(value, batch, self._one_hot)
        foreign = torch.zeros_like(targets, dtype=torch.bool)
        if outputs.ndim > 1 and outputs.shape[1] > 1 and outputs[:, 0].shape == targets.shape:
            predicted = outputs.argmax(dim=1)
        elif _is_one_each(outputs, targets):
            predicted, targets = (outputs > self._threshold).reshape(-1), targets.reshape(-1)
            foreign = (targets != 0) & (targets != 1)
        elif outputs.ndim > 2 and outputs.shape[:-1] == targets.shape:  # as Hugging Face's models give them
            raise MetricError(
                f"metric 'accuracy' needs the classes in the second dimension, got outputs {list(outputs.shape)} with "
                f"targets {list(targets.shape)}; say in the Task outputs=lambda returned: "
                "returned.logits.movedim(-1, 1), or whatever the outputs are called"
            )
        else:
            raise _unfit("accuracy", "[n, classes] with targets [n], or one output per target", outputs, targets)
        counted = targets != self._ignored
        sums = torch.stack([((predicted == targets) & counted).sum(), counted.sum(), (foreign & counted).sum()])
        self._sums = sums if self._sums is None else self._sums + sums

    def compute(self) -> float:
        if self._sums is None:
            raise _unseen("accuracy")
        correct, counted, foreign = self._sums.tolist()
        if foreign:
            raise MetricError(
                f"metric 'accuracy' needs targets 0 and 1 where there is one output per target, got {foreign} others; "
                "for a regression use metric 'mse'"
            )
        return float(correct / max(counted, 1))


class _MeanLoss(MetricAccumulator):
    """Mean loss over the samples, in the loss's unit divided by ``unit``."""

    needs = "loss"

    def __init__(self, unit: float) -> None:
        self._unit = unit
        self._losses: list[Tensor] = []
        self._sizes: list[int] = []

    def update(self, value: Any, batch: Any) -> None:
        self._losses.append(value.detach())
        self._sizes.append(batch_size_of(batch))

    def compute(self) -> float:
        if not self._losses:
            raise _unseen("loss")
        losses = torch.stack([loss.float() for loss in self._losses]).tolist()  # one transfer, then exact sums
        total = math.fsum(loss * size for loss, size in zip(losses, self._sizes, strict=True))
        return total / sum(self._sizes) / self._unit


class _GivenMetric(MetricAccumulator):
    """A torchmetrics object of the user's, copied so that evaluations do not share state.

    It is given numbers of 32 bits, and computes outside of autocast, whatever the model computes in. What is no tensor,
    such as a list of boxes, reaches it as it is.
    """

    def __init__(self, metric: Any) -> None:
        self._metric = copy.deepcopy(metric)
        self._metric.reset()

    def update(self, value: Any, batch: Any) -> None:
        outputs, targets = value, _target_of(batch)
        if tensor_of(value) is not None:
            outputs, targets = _outputs_and_targets(value, batch, one_hot=False)
        first = next(tensors_of(outputs), None)
        if first is None:
            self._metric.update(outputs, targets)
            return
        if callable(getattr(self._metric, "to", None)):
            self._metric = self._metric.to(first.device)
        with torch.autocast(first.device.type, enabled=False):
            self._metric.update(widened(outputs), targets)

    def compute(self) -> float:
        return _as_number(self._metric.compute(), type(self._metric).__name__)


class _OfAllOutputs:
    """A function of all outputs and targets of an evaluation, as an object that is given them batch by batch."""

    def __init__(self, function: Callable[[Tensor, Tensor], Any], name: str) -> None:
        self._function, self._name = function, name
        self.reset()

    def reset(self) -> None:
        self._seen: list[tuple[Tensor, Tensor]] = []

    def update(self, outputs: Any, targets: Any) -> None:
        if not (isinstance(outputs, Tensor) and isinstance(targets, Tensor)):
            kinds = f"{type(outputs).__name__} and {type(targets).__name__}"
            raise MetricError(
                f"metric {self._name!r} is a function, which needs tensors of outputs and targets, got {kinds}; "
                "give an object with update(outputs, targets), compute() and reset()"
            )
        first = self._seen[0] if self._seen else (outputs, targets)
        if (outputs.shape[1:], targets.shape[1:]) != (first[0].shape[1:], first[1].shape[1:]):
            both = " and ".join(f"{list(one.shape)}, {list(two.shape)}" for one, two in (first, (outputs, targets)))
            raise MetricError(
                f"metric {self._name!r} is a function, which needs the batches of an evaluation in one tensor, but "
                f"outputs and targets of two have shapes {both}; give an object with update(outputs, targets), "
                "compute() and reset()"
            )
        self._seen.append((outputs, targets))

    def compute(self) -> Any:
        if not self._seen:
            raise _unseen(self._name)
        outputs, targets = zip(*self._seen, strict=True)
        return self._function(torch.cat(outputs), torch.cat(targets))


class _NamedTorchmetric(MetricAccumulator):
    """A torchmetrics metric known by a short name, built from the shape of the first outputs."""

    def __init__(self, name: str, kind: OutputKind, one_hot: bool) -> None:
        self._name, self._kind, self._one_hot = name, kind, one_hot
        self._metric: Any = None

    def update(self, value: Any, batch: Any) -> None:
        regresses = self._name in _REGRESSION
        outputs, targets = _outputs_and_targets(value, batch, self._one_hot and not regresses)
        outputs, n_classes = outputs.float(), 2
        if regresses:
            if outputs.numel() != targets.numel():
                raise _unfit(self._name, "shaped like the targets", outputs, targets, gives=False)
            given, targets = outputs.reshape(-1), targets.float()
        elif outputs.ndim == 2 and outputs.shape[1] > 1 and targets.ndim == 1:
            # log-probabilities too: softmax of their logarithms gives the probabilities back
            given, n_classes = outputs if self._kind == "probabilities" else outputs.softmax(dim=1), outputs.shape[1]
            if n_classes == 2:  # class 1 is the positive one
                given = given[:, 1]
        elif _is_one_each(outputs, targets):
            given = (outputs.sigmoid() if self._kind == "logits" else outputs).reshape(-1)
        else:
            raise _unfit(self._name, "[n, classes] or [n] with targets [n]", outputs, targets)
        if self._metric is None:
            self._metric = _build_torchmetric(self._name, n_classes).to(outputs.device)
        self._metric.update(given, targets.reshape(-1) if regresses else targets.reshape(-1).long())

    def compute(self) -> float:
        if self._metric is None:
            raise _unseen(self._name)
        return _as_number(self._metric.compute(), self._name)


_REGRESSION = {"mae": "MeanAbsoluteError", "mse": "MeanSquaredError", "r2": "R2Score", "rmse": "MeanSquaredError"}
_CLASSIFICATION = {"auroc": "AUROC", "average_precision": "AveragePrecision", "f1": "F1Score"}
_CLASSIFICATION |= {"precision": "Precision", "recall": "Recall"}


def _build_torchmetric(name: str, n_classes: int) -> Any:
    from torchmetrics import classification, regression

    # As `accuracy` and `loss`: of several ranks each measures what it is given. torchmetrics would wait in compute()
    # for the other ranks, and where only the first one evaluates, for ever.
    alone = {"sync_on_compute": False}
    if name in _REGRESSION:
        root = {"squared": False} if name == "rmse" else {}
        return getattr(regression, _REGRESSION[name])(**root, **alone)
    if n_classes == 2:
        return getattr(classification, f"Binary{_CLASSIFICATION[name]}")(**alone)
    return getattr(classification, f"Multiclass{_CLASSIFICATION[name]}")(num_classes=n_classes, **alone)


def _creator(name: str, kind: OutputKind, *, one_hot: bool, ignored: int) -> Callable[[], MetricAccumulator]:
    if name == "accuracy":
        return functools.partial(_Accuracy, kind, one_hot, ignored)
    if name in ("loss", "bits_per_byte"):
        return functools.partial(_MeanLoss, 1.0 if name == "loss" else math.log(2.0))  # a loss in nats per byte
    return functools.partial(_NamedTorchmetric, name, kind, one_hot)


def _torchmetrics_by_name(name: str) -> Any:
    import torchmetrics
    from torchmetrics import classification, regression

    for module in (classification, regression, torchmetrics):
        found = getattr(module, name, None)
        if isinstance(found, type) and issubclass(found, torchmetrics.Metric):
            try:
                return found()
            except (TypeError, ValueError) as error:
                raise MetricError(
                    f"metric {name!r} needs arguments ({error}); give the object instead, such as {name}(...)"
                ) from error
    near = difflib.get_close_matches(name, [*METRIC_NAMES, *_ALIASES], n=1)
    hint = f"; did you mean {near[0]!r}?" if near else f"; known names: {', '.join(METRIC_NAMES)}"
    raise MetricError(f"`metric` must be a known name or a torchmetrics class, got {name!r}{hint}")


def _outputs_and_targets(outputs: Any, batch: Any, one_hot: bool) -> tuple[Tensor, Tensor]:
    """Return both as tensors; one-hot targets, which ``CrossEntropyLoss`` takes as probabilities, as classes."""
    values = tensor_of(outputs)
    if values is None:
        raise MetricError(f"the metric needs a tensor of outputs, the model returned {type(outputs).__name__}")
    target = _target_of(batch)
    if not isinstance(target, Tensor):
        raise MetricError(
            "the metric needs targets: evaluation batches must be pairs (x, y) or mappings with a tensor under one of "
            f"{', '.join(TARGET_KEYS)}; or use metric 'loss'"
        )
    if one_hot and target.is_floating_point() and values.ndim == 2 and values.shape == target.shape:
        target = target.argmax(dim=1) if target.shape[1] > 1 else target
    return values.detach(), target


def _target_of(batch: Any) -> Any:
    named = parts_by_name(batch)
    if (key := target_key(named)) is not None:
        return named[key]
    return batch[1] if isinstance(batch, list | tuple) and len(batch) >= 2 else None


def _is_one_each(outputs: Tensor, targets: Tensor) -> bool:
    return outputs.numel() == targets.numel() and (targets.ndim <= 1 or targets.shape[-1] == 1)


def _unfit(name: str, needed: str, outputs: Tensor, targets: Tensor, *, gives: bool = True) -> MetricError:
    shapes = f"got {list(outputs.shape)} and {list(targets.shape)}"
    instead = "; give a torchmetrics object, or use metric 'loss'" if gives else ""
    return MetricError(f"metric {name!r} needs outputs {needed}, {shapes}{instead}")


def _unseen(name: str) -> MetricError:
    return MetricError(f"metric {name!r} has seen no batch; `evaluate` must yield at least one")


def _as_number(value: Any, name: str) -> float:
    if isinstance(value, Mapping):  # MeanAveragePrecision's begins with ``map``
        value = next(iter(value.values()), None)
    if isinstance(value, Tensor) and value.numel() != 1:
        raise MetricError(
            f"metric {name} must be one number, got shape {list(value.shape)}; average it, e.g. average='macro'"
        )
    return float(value)
