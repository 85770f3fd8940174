"""Metrics: the right number over uneven batches, the right direction, and clear refusals."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from sklearn import metrics as oracle
from torch import Tensor, nn
from torch.nn import functional as F
from torchmetrics import MeanMetric
from torchmetrics.classification import BinaryF1Score, MulticlassF1Score

from workbench.core.metrics import METRIC_NAMES, MetricError, metric_rule, new_accumulator

CE = nn.CrossEntropyLoss()


def measured(metric: Any, loss: Any, outputs: Tensor, targets: Tensor, sizes: tuple[int, ...] = (7, 1, 12)) -> float:
    accumulator = metric_rule(metric, None, loss).create()
    for out, y in zip(outputs.split(sizes), targets.split(sizes), strict=True):
        accumulator.update(out, (out, y))
    return accumulator.compute()


@pytest.fixture
def classes() -> tuple[Tensor, Tensor]:
    return torch.randn(20, 4), torch.randint(0, 4, (20,))


@pytest.fixture
def yes_no() -> tuple[Tensor, Tensor]:
    # The middle batch of one lies within [0, 1], where torchmetrics alone would take it for a probability and rank its
    # 0.9 above the positive sample's sigmoid(1.0) = 0.73.
    logits, targets = torch.randn(20) * 3, torch.randint(0, 2, (20,))
    logits[0], targets[0] = 1.0, 1
    logits[7], targets[7] = 0.9, 0
    return logits, targets


@pytest.mark.parametrize("ignored", [-100, 255])
def test_accuracy_of_tokens_leaves_out_those_that_the_criterion_ignores(ignored: int) -> None:
    outputs, targets = torch.zeros(2, 3, 4), torch.zeros(2, 4, dtype=torch.long)  # class 0 is predicted everywhere
    targets[0, 0], targets[1, :2] = 1, ignored
    criterion = nn.CrossEntropyLoss(ignore_index=ignored)
    assert measured("accuracy", criterion, outputs, targets, (1, 1)) == pytest.approx(5 / 6)


def test_accuracy_says_where_it_looks_for_the_classes_of_tokens() -> None:
    logits, targets = torch.randn(2, 5, 4), torch.zeros(2, 5, dtype=torch.long)
    with pytest.raises(MetricError, match=r"in the second dimension, got outputs \[1, 5, 4\].*movedim\(-1, 1\)"):
        measured("accuracy", lambda model, batch: model, logits, targets, (1, 1))
    with pytest.raises(MetricError, match="needs outputs"):
        measured("accuracy", CE, torch.randn(2, 4, 6), targets, (1, 1))


@pytest.mark.parametrize(
    ("loss", "shift"), [(nn.BCEWithLogitsLoss(), 0.0), (nn.BCELoss(), 0.5)], ids=["logits", "probabilities"]
)
def test_accuracy_of_one_output_is_cut_where_the_loss_says(loss: nn.Module, shift: float) -> None:
    outputs = torch.tensor([[-0.2], [0.3], [0.1], [-0.4]]) + shift
    assert measured("acc", loss, outputs, torch.tensor([0, 1, 0, 0]), (3, 1)) == 0.75


@pytest.mark.parametrize("targets", [torch.tensor([1.5, 0.2, 1.0]), torch.tensor([-1, 1, 1])], ids=["real", "signs"])
def test_accuracy_of_one_output_refuses_targets_that_are_no_classes(targets: Tensor) -> None:
    with pytest.raises(MetricError, match="needs targets 0 and 1 where there is one output per target"):
        measured("accuracy", nn.MSELoss(), torch.randn(3, 1), targets.unsqueeze(1), (2, 1))


@pytest.mark.parametrize("loss", [nn.MSELoss(), lambda model, batch: model(batch[0]).mean()], ids=["mse", "function"])
def test_all_outputs_say_whether_they_are_probabilities_where_the_loss_does_not(loss: Any) -> None:
    targets = torch.tensor([0, 1, 0, 0])
    probabilities = torch.tensor([0.3, 0.8, 0.6, 0.1])
    logits = torch.tensor([0.3, 0.8, 0.6, -0.1])  # the first batch alone lies within [0, 1], as probabilities do
    for outputs, right, precision in ((probabilities, 0.75, 0.5), (logits, 0.5, 1 / 3)):
        assert measured("accuracy", loss, outputs, targets, (3, 1)) == right
        assert measured("precision", loss, outputs[:, None], targets, (3, 1)) == pytest.approx(precision)


def test_auroc_of_classes_takes_rows_that_sum_to_one_for_probabilities() -> None:
    targets, outputs = torch.arange(60) % 3, (3 * torch.randn(60, 3)).softmax(1)
    expected = oracle.roc_auc_score(targets, outputs, multi_class="ovr")
    assert measured("auroc", lambda model, batch: model(batch), outputs, targets, (30, 30)) == pytest.approx(expected)


@pytest.mark.parametrize("shape", ["[n]", "[n, 1]", "[n, 2]"])
def test_auroc_of_two_classes_agrees_with_scikit_learn(yes_no: tuple[Tensor, Tensor], shape: str) -> None:
    logits, targets = yes_no
    outputs = {"[n]": logits, "[n, 1]": logits[:, None], "[n, 2]": torch.stack([torch.zeros(20), logits], 1)}[shape]
    loss = CE if shape == "[n, 2]" else nn.BCEWithLogitsLoss()
    assert measured("auroc", loss, outputs, targets) == pytest.approx(oracle.roc_auc_score(targets, logits))


def test_metrics_of_many_classes_count_samples_not_batches_as_scikit_learn(classes: tuple[Tensor, Tensor]) -> None:
    outputs, targets = classes
    accuracy = oracle.accuracy_score(targets, outputs.argmax(1))
    auroc = oracle.roc_auc_score(targets, outputs.softmax(1), multi_class="ovr")
    f1 = oracle.f1_score(targets, outputs.argmax(1), average="macro")
    assert measured("accuracy", CE, outputs, targets) == pytest.approx(accuracy)
    assert measured("auc", CE, outputs, targets) == pytest.approx(auroc)
    assert measured("f1", CE, outputs, targets) == pytest.approx(f1)
    assert measured("f1", nn.NLLLoss(), outputs.log_softmax(1), targets) == pytest.approx(f1)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("mse", oracle.mean_squared_error),
        ("rmse", oracle.root_mean_squared_error),
        ("mae", oracle.mean_absolute_error),
        ("r2", oracle.r2_score),
    ],
)
def test_regression_metrics_agree_with_scikit_learn(name: str, expected: Any) -> None:
    targets = torch.randn(20)
    outputs = targets + 0.3 * torch.randn(20)
    assert measured(name, nn.MSELoss(), outputs[:, None], targets) == pytest.approx(
        expected(targets, outputs), rel=1e-5
    )


@pytest.mark.parametrize(("name", "unit"), [("loss", 1.0), ("bits_per_byte", math.log(2))])
def test_the_mean_loss_is_weighted_by_batch_size(name: str, unit: float) -> None:
    accumulator = metric_rule(name, None, F.cross_entropy).create()
    assert accumulator.needs == "loss"
    for loss, size in ((1.0, 3), (5.0, 1)):
        accumulator.update(torch.tensor(loss), (torch.ones(size), torch.ones(size)))
    assert accumulator.compute() == pytest.approx(2.0 / unit)


@pytest.mark.parametrize("name", METRIC_NAMES)
def test_a_known_name_knows_its_direction_and_refuses_the_other(name: str) -> None:
    right = METRIC_NAMES[name]
    wrong = "minimize" if right == "maximize" else "maximize"
    assert metric_rule(name, None, CE).higher_is_better == (right == "maximize")
    assert metric_rule(name, right, CE).name == name
    with pytest.raises(MetricError, match=rf"`direction` of metric '{name}' is '{right}', got '{wrong}'"):
        metric_rule(name, wrong, CE)  # type: ignore[arg-type]


def test_a_torchmetrics_object_is_copied_for_every_evaluation(classes: tuple[Tensor, Tensor]) -> None:
    outputs, targets = classes
    metric = MulticlassF1Score(num_classes=4)
    expected = oracle.f1_score(targets, outputs.argmax(1), average="macro")
    assert measured(metric, CE, outputs, targets) == pytest.approx(expected)
    assert measured(metric, CE, outputs, targets) == pytest.approx(expected)
    assert metric.update_count == 0


def test_a_metric_of_the_user_s_computes_in_32_bits_whatever_the_model_does() -> None:
    class Similarity(MeanMetric):
        higher_is_better = True

        def update(self, outputs: Tensor, targets: Tensor) -> None:
            assert outputs.dtype == torch.float32
            super().update((outputs @ outputs.T).diagonal())

    outputs = torch.randn(20, 4).to(torch.bfloat16)
    with torch.autocast("cpu", torch.bfloat16):
        found = measured(Similarity(), CE, outputs, torch.zeros(20))
    assert found == pytest.approx(outputs.float().square().sum(1).mean().item(), rel=1e-6)


def test_a_function_is_given_all_outputs_and_targets_of_an_evaluation_at_once(classes: tuple[Tensor, Tensor]) -> None:
    def median_score(outputs: Tensor, targets: Tensor) -> Tensor:  # no mean over batches
        assert outputs.dtype == torch.float32
        return outputs.gather(1, targets[:, None]).median()

    outputs, targets = classes[0].to(torch.bfloat16), classes[1]
    rule = metric_rule(median_score, "maximize", CE)
    assert (rule.name, rule.higher_is_better) == ("median_score", True)
    for _ in range(2):  # evaluations share nothing
        accumulator = rule.create()
        for part, y in zip(outputs.split((7, 1, 12)), targets.split((7, 1, 12)), strict=True):
            accumulator.update(part, (part, y))
        assert accumulator.compute() == float(median_score(outputs.float(), targets))
    with pytest.raises(MetricError, match="'median_score' has seen no batch"):
        rule.create().compute()
    with pytest.raises(MetricError, match="needs tensors of outputs and targets, got list and Tensor"):
        rule.create().update([outputs], (outputs, targets))
    accumulator = rule.create()
    accumulator.update(outputs, (outputs, targets))
    with pytest.raises(MetricError, match=r"targets of two have shapes .*; give an object with update"):
        accumulator.update(outputs[:, :2], (outputs, targets))
    assert metric_rule(nn.L1Loss(), "minimize", CE).name == "L1Loss"


def test_of_several_numbers_the_first_is_the_metric() -> None:
    class MeanPrecision(MeanMetric):
        higher_is_better = True

        def update(self, outputs: Tensor, targets: Tensor) -> None:
            super().update((outputs == targets).float())

        def compute(self) -> dict[str, Tensor]:  # as torchmetrics' MeanAveragePrecision
            return {"map": super().compute(), "map_50": torch.zeros(2)}

    outputs = torch.arange(4)
    assert measured(MeanPrecision(), None, outputs, outputs.clamp(max=2), (2, 2)) == 0.75


def test_a_torchmetrics_class_may_be_named_and_a_direction_completes_one_without() -> None:
    rule = metric_rule("BinaryF1Score", None, CE)
    assert (rule.name, rule.higher_is_better) == ("BinaryF1Score", True)
    assert metric_rule(MeanMetric(), "minimize", CE).higher_is_better is False


def test_outputs_may_be_an_object_with_logits(classes: tuple[Tensor, Tensor]) -> None:
    outputs, targets = classes
    accumulator = metric_rule("accuracy", None, CE).create()
    accumulator.update(SimpleNamespace(logits=outputs), {"input_ids": outputs, "labels": targets})
    assert accumulator.compute() == pytest.approx(oracle.accuracy_score(targets, outputs.argmax(1)))


@pytest.mark.parametrize(
    ("metric", "direction", "words"),
    [
        ("acuracy", None, "did you mean 'accuracy'"),
        ("MulticlassF1Score", None, "needs arguments .* give the object instead"),
        (BinaryF1Score, None, r"got the class BinaryF1Score; write BinaryF1Score\("),
        (MeanMetric(), None, "does not say which direction is better"),
        (len, None, "such as torchmetrics', got builtin_function_or_method"),
        (F.l1_loss, None, "l1_loss does not say which direction is better; give direction='maximize' or"),
        ("accuracy", "up", "`direction` must be 'maximize' or 'minimize', got 'up'"),
    ],
    ids=["misspelt", "needs arguments", "class", "no direction", "unfit function", "function", "bad direction"],
)
def test_a_metric_that_cannot_work_is_refused(metric: Any, direction: Any, words: str) -> None:
    with pytest.raises(MetricError, match=words):
        metric_rule(metric, direction, CE)


@pytest.mark.parametrize("name", ["accuracy", "auroc", "mse"])
def test_outputs_that_do_not_fit_the_targets_are_refused(name: str) -> None:
    with pytest.raises(MetricError, match=rf"metric '{name}' needs outputs .* got \[4, 3\] and \[4, 5\]"):
        measured(name, CE, torch.ones(4, 3), torch.ones(4, 5), (4,))


@pytest.mark.parametrize("name", ["accuracy", "auroc", "loss"])
def test_a_metric_without_batches_is_an_error_and_not_a_number(name: str) -> None:
    with pytest.raises(MetricError, match="has seen no batch"):
        metric_rule(name, None, CE).create().compute()


def test_targets_that_are_missing_are_asked_for() -> None:
    with pytest.raises(MetricError, match="evaluation batches must be pairs"):
        metric_rule("accuracy", None, CE).create().update(torch.ones(2, 2), torch.ones(2, 2))


@pytest.mark.parametrize("name", ["accuracy", "f1", "auroc"])
def test_one_hot_targets_are_the_classes_they_mark(name: str, classes: tuple[Tensor, Tensor]) -> None:
    outputs, targets = classes
    assert measured(name, CE, outputs, F.one_hot(targets, 4).float()) == measured(name, CE, outputs, targets)


def test_many_labels_per_sample_are_not_taken_for_one_hot_targets() -> None:
    with pytest.raises(MetricError, match="metric 'accuracy' needs outputs"):
        measured("accuracy", nn.BCEWithLogitsLoss(), torch.ones(4, 3), torch.ones(4, 3), (4,))


def test_a_metric_can_be_measured_whose_direction_is_not_asked_for_or_not_known() -> None:
    for metric, targets, expected in (("mse", [0.0, 0.0], 5.0), (MeanMetric(), [3.0, 1.0], 1.5)):
        accumulator = new_accumulator(metric, None)  # the second argument of MeanMetric is a weight
        accumulator.update(torch.tensor([1.0, 3.0]), (torch.zeros(2), torch.tensor(targets)))
        assert accumulator.compute() == expected
    with pytest.raises(MetricError, match="did you mean 'accuracy'"):
        new_accumulator("acuracy", None)
