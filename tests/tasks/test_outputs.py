"""Models that return dictionaries, tuples or objects: which part is the prediction, and what is said without a word."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torchmetrics import MeanMetric

from workbench.tasks import Task, TaskError
from workbench.training.evaluation import evaluate
from workbench.training.precision import Precision


class Pair(NamedTuple):
    logits: Tensor
    aux: Tensor


@dataclass
class Answer:
    scores: Tensor


class ModelOutput(OrderedDict[str, Any]):
    """Like Hugging Face's: a dictionary whose keys are attributes, too."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None


SHAPES: dict[str, Any] = {
    "dict": lambda logits: {"out": logits, "aux": logits.sum()},
    "tuple": lambda logits: (logits, logits.sum()),
    "list": lambda logits: [None, logits],
    "named": lambda logits: Pair(logits, logits.sum()),
    "object": Answer,
    "hugging": lambda logits: ModelOutput(loss=None, logits=logits),
    "nested": lambda logits: ({"deep": [logits]}, 1),
    "tensor": lambda logits: logits,
}
X = torch.randn(12, 3, generator=torch.Generator().manual_seed(0))
Y = (X.sum(dim=1) > 0).long()


class Net(nn.Module):
    """A dense layer whose logits are wrapped up."""

    def __init__(self, shape: str) -> None:
        super().__init__()
        self.layer, self.shape = nn.Linear(3, 2), shape

    def forward(self, x: Tensor) -> Any:
        """Return the logits in the shape asked for."""
        return SHAPES[self.shape](self.layer(x))


def task_of(shape: str, outputs: Any = None, **changes: Any) -> Task:
    fields: dict[str, Any] = {
        "name": "wrapped",
        "model": lambda: Net(shape),
        "loss": nn.CrossEntropyLoss(),
        "optimizer": lambda named: torch.optim.SGD([p for _, p in named], lr=0.1),
        "train": [(X, Y)],
        "evaluate": [(X, Y)],
        "metric": "accuracy",
        "outputs": outputs,
    }
    return Task(**(fields | changes))


@pytest.mark.parametrize(
    ("shape", "outputs"),
    [
        ("dict", "out"),
        ("tuple", 0),
        ("list", -1),
        ("named", "logits"),
        ("named", 0),
        ("object", "scores"),
        ("hugging", "logits"),
        ("nested", lambda returned: returned[0]["deep"][0]),
        ("tensor", None),
        ("tensor", 0),
        ("tensor", "logits"),
    ],
)
def test_loss_and_metric_see_the_part_that_outputs_names(shape: str, outputs: Any) -> None:
    task, net = task_of(shape, outputs), Net(shape)
    logits = net.layer(X)
    assert torch.equal(task.compute_loss(net, (X, Y)), F.cross_entropy(logits, Y))
    assert torch.equal(task.predict(net, (X, Y)), logits)
    metric = task.new_metric()
    task.update_metric(metric, net, (X, Y))
    assert metric.compute() == pytest.approx(float((logits.argmax(dim=1) == Y).float().mean()))


@pytest.mark.parametrize(
    ("shape", "told"),
    [
        ("dict", ("a dict of 'out', 'aux'", "'out'")),
        ("tuple", ("a tuple of 2", "0")),
        ("list", ("a list of 2", "1")),
        ("hugging", ("a ModelOutput of 'loss', 'logits'", "'logits'")),
        ("object", ("Answer", "lambda returned: returned.logits")),
    ],
)
@pytest.mark.parametrize(
    "loss", [nn.CrossEntropyLoss(), nn.MSELoss(), F.l1_loss, nn.NLLLoss()], ids=["ce", "mse", "l1", "nll"]
)
def test_without_it_a_sentence_names_what_came_and_how_to_mend_it(shape: str, told: tuple[str, str], loss: Any) -> None:
    task, (what, example) = task_of(shape, loss=loss), told
    with pytest.raises(TaskError) as caught:
        task.compute_loss(Net(shape), (X, Y))
    assert str(caught.value) == (
        f"task 'wrapped': the loss needs a tensor, but the model returns {what}; say in the Task which part is the "
        f"prediction, for example outputs={example}"
    )


def test_the_metric_says_it_too_where_the_loss_is_a_function_of_the_model() -> None:
    task = task_of("tuple", loss=lambda model, batch: F.cross_entropy(model(batch[0])[0], batch[1]))
    with pytest.raises(TaskError, match="the metric accuracy needs a tensor, but the model returns a tuple of 2; say"):
        task.update_metric(task.new_metric(), Net("tuple"), (X, Y))


def test_the_metric_calls_the_model_with_what_it_takes_of_a_mapping() -> None:
    task = task_of("tuple", 0, loss=lambda model, batch: F.cross_entropy(model(batch["x"])[0], batch["labels"]))
    net, metric = Net("tuple"), task.new_metric()
    task.update_metric(metric, net, {"x": X, "labels": Y, "names": ["of", "samples"]})
    assert metric.compute() == pytest.approx(float((net(X)[0].argmax(dim=1) == Y).float().mean()))


def test_a_criterion_may_take_what_the_model_returns_as_it_is() -> None:
    class Both(nn.Module):
        def forward(self, returned: tuple[Tensor, Tensor], target: Tensor) -> Tensor:
            return F.cross_entropy(returned[0], target) + 0 * returned[1]

    assert task_of("tuple", loss=Both()).compute_loss(Net("tuple"), (X, Y)).ndim == 0


@pytest.mark.parametrize(
    ("shape", "outputs", "told"),
    [
        ("dict", "logits", "`outputs` is 'logits', but the model returns a dict of 'out', 'aux'"),
        ("tuple", 2, "`outputs` is 2, but the model returns a tuple of 2"),
        ("object", 0, "`outputs` is 0, but the model returns Answer"),
        ("object", "logits", "`outputs` is 'logits', but the model returns Answer"),
    ],
)
def test_a_part_that_is_not_there_is_told(shape: str, outputs: Any, told: str) -> None:
    with pytest.raises(TaskError, match=f"task 'wrapped': {told}"):
        task_of(shape, outputs).compute_loss(Net(shape), (X, Y))


def test_a_part_that_is_no_tensor_is_told() -> None:
    with pytest.raises(TaskError, match="the loss needs a tensor, but `outputs` gives a dict of 'deep'; name the part"):
        task_of("nested", 0).compute_loss(Net("nested"), (X, Y))


@pytest.mark.parametrize("outputs", [True, 1.5, ["logits"]])
def test_outputs_is_a_key_an_index_or_a_function(outputs: Any) -> None:
    with pytest.raises(TaskError, match="`outputs` must be a key, an index or a function of what the model returns"):
        task_of("dict", outputs)


class _MeanWidth(MeanMetric):
    higher_is_better = True

    def update(self, found: list[dict[str, Tensor]], wanted: list[dict[str, Tensor]]) -> None:
        for one, other in zip(found, wanted, strict=True):
            super().update(one["boxes"].sum() / other["boxes"].sum())


class _Detector(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, images: list[Tensor]) -> list[dict[str, Tensor]]:
        return [{"boxes": self.layer(image)} for image in images]


def test_a_metric_of_boxes_is_given_the_list_that_a_function_names() -> None:
    batch = ([torch.ones(4), torch.ones(4)], [{"boxes": torch.full((4,), 2.0)}, {"boxes": torch.full((4,), 4.0)}])
    task = task_of(
        "list",
        lambda boxes: boxes,
        model=_Detector,
        loss=lambda model, batch: torch.stack([one["boxes"].sum() for one in model(batch[0])]).mean(),
        train=[batch],
        evaluate=[batch],
        metric=_MeanWidth(),
    )
    model, where = task.new_model(), (torch.device("cpu"), Precision("O0", "float16", "cpu"))
    width = model(batch[0])[0]["boxes"].sum().item()
    assert evaluate(task, model, *where) == pytest.approx((width / 8 + width / 16) / 2)
    with pytest.raises(TaskError, match="the metric _MeanWidth needs a tensor, but the model returns a list of 2; say"):
        evaluate(replace(task, outputs=None), model, *where)
