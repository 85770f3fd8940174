"""The Task itself: how its loss is called, what its fields must be, what its functions must return."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from workbench.core.batch import inputs_and_target, mapped
from workbench.methods.batch.method import concatenated
from workbench.tasks import Task, TaskError
from workbench.tasks.criterion import is_criterion

X, Y = torch.randn(6, 3), torch.randint(0, 2, (6,))


def model_loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    return F.cross_entropy(model(batch[0]), batch[1])


def own_criterion(output: Tensor, target: Tensor) -> Tensor:
    return F.cross_entropy(output, target)


class ModelLoss(nn.Module):
    """A loss of model and batch that keeps something, as a teacher is kept."""

    def forward(self, model: nn.Module, batch: Any) -> Tensor:
        return model_loss(model, batch)


def small_task(**changes: Any) -> Task:
    fields: dict[str, Any] = {
        "name": "small",
        "model": lambda: nn.Linear(3, 2),
        "loss": nn.CrossEntropyLoss(),
        "optimizer": lambda named: torch.optim.SGD(named, lr=0.1),
        "train": [(X, Y)],
        "evaluate": [(X, Y)],
        "metric": "accuracy",
    }
    return Task(**(fields | changes))


@pytest.mark.parametrize(
    ("loss", "criterion"),
    [
        (nn.CrossEntropyLoss(), True),
        (F.cross_entropy, True),
        (functools.partial(F.cross_entropy, label_smoothing=0.0), True),
        (functools.partial(functools.partial(nn.CrossEntropyLoss())), True),
        (model_loss, False),
        (lambda m, b: m(b[0]).sum() * 0 + model_loss(m, b), False),
        (functools.partial(model_loss), False),
        (ModelLoss(), False),
    ],
    ids=[
        *("module", "functional", "partial functional", "partial module"),
        *("function", "lambda", "partial function", "module of a model"),
    ],
)
def test_modules_and_functionals_are_criteria_and_others_see_model_and_batch(loss: Any, criterion: bool) -> None:
    assert is_criterion(loss) is criterion
    task = small_task(loss=loss)
    model = task.new_model()
    torch.testing.assert_close(task.compute_loss(model, (X, Y)), F.cross_entropy(model(X), Y))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"name": " "}, "`name` must be a non-empty text"),
        ({"model": nn.Linear(3, 2)}, "`model` must be a function that returns a fresh model, got a model"),
        ({"model": 3}, "`model` must be a function, got 3"),
        ({"loss": nn.CrossEntropyLoss}, r"got the class CrossEntropyLoss; write CrossEntropyLoss\(\)"),
        ({"loss": own_criterion}, "looks like a criterion; wrap it in an nn.Module"),
        ({"loss": lambda model: 0}, r"`loss` must take two arguments \(model, batch\)"),
        ({"loss": "mse"}, "`loss` must be a criterion or a function"),
        ({"loss": None}, r"`loss` must be a criterion or a function \(model, batch\), got None"),
        ({"optimizer": torch.optim.SGD([nn.Parameter(X)], lr=0.1)}, "`optimizer` must be a function of the named"),
        ({"scheduler": 3}, "`scheduler` must be a function, got 3"),
        ({"train": iter([(X, Y)])}, "`train` must be iterable again"),
        ({"evaluate": 3}, "`evaluate` must be a re-iterable"),
        ({"metric": None}, "must be a name .accuracy, .*, and is missing"),
        ({"metric": "acuracy"}, "did you mean 'accuracy'"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else None,
)
def test_a_field_that_cannot_work_is_refused_where_the_task_is_written(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(TaskError, match=words) as caught:
        small_task(**changes)
    assert "\n" not in str(caught.value)


class SharpnessAware(torch.optim.SGD):
    """An optimizer that cannot do without a closure."""

    def step(self, closure: Any) -> Any:  # type: ignore[override]
        raise NotImplementedError


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model": lambda: None}, r"`model\(\)` must return an nn.Module, got NoneType"),
        ({"model": lambda: torch.nn.LazyLinear(2)}, "lazy layers, whose sizes the first batch decides"),
        ({"optimizer": lambda: None}, "which it does not take"),
        (
            {"optimizer": lambda named: torch.optim.SGD([one for one in named if one.ndim > 1])},
            "pairs of name and parameter, and takes them for parameters",
        ),
        ({"optimizer": list}, "must return a torch.optim.Optimizer, got list"),
        ({"optimizer": lambda named: 2 * [torch.optim.SGD(named, lr=0.1)]}, "takes one loss and one optimizer"),
        ({"optimizer": lambda named: torch.optim.LBFGS([one for _, one in named])}, "LBFGS computes the loss several"),
        ({"optimizer": SharpnessAware}, "SharpnessAware computes the loss several"),
        ({"scheduler": lambda optimizer, steps: None}, r"must return an object with step\(\), got NoneType"),
        (
            {"scheduler": lambda optimizer: None},
            "with the optimizer and the number of updates, and stepped after every",
        ),
    ],
    ids=[
        "model",
        "lazy model",
        "no argument",
        "pairs",
        "optimizer",
        "two optimizers",
        "LBFGS",
        "closure",
        "scheduler",
        "one argument",
    ],
)
def test_a_function_that_returns_the_wrong_thing_is_named(changes: dict[str, Any], words: str) -> None:
    task = small_task(**changes)
    with pytest.raises(TaskError, match=words):
        task.new_scheduler(task.new_optimizer(task.new_model()), 10)


def test_one_model_for_all_runs_is_refused() -> None:
    """Each run would go on with what those before it have learned."""
    net = nn.Linear(3, 2)
    task = small_task(model=lambda: net)
    task.new_model()
    with pytest.raises(TaskError, match="returns the same model again, which has been trained by then"):
        task.new_model()


@pytest.mark.parametrize(
    ("changes", "batch", "words"),
    [
        ({}, {"x": X}, r"every batch must be a pair \(x, y\), a longer tuple or .*, got a dict of 'x'"),
        ({}, (X,), "got a tuple of 1"),
        ({"loss": nn.CrossEntropyLoss(reduction="none")}, (X, Y), r"got a tensor of shape \[6\]; average it"),
        ({"loss": lambda model, batch: 1.0}, (X, Y), "must be a scalar tensor, got float"),
        (
            {"loss": lambda model, batch: {"loss": model(batch[0]).mean()}},
            (X, Y),
            "got a dict of 'loss'; return the one tensor that is to be minimised",
        ),
    ],
    ids=["mapping", "single", "unreduced", "number", "named"],
)
def test_a_loss_that_does_not_fit_is_named(changes: dict[str, Any], batch: Any, words: str) -> None:
    task = small_task(**changes)
    with pytest.raises(TaskError, match=words):
        task.compute_loss(task.new_model(), batch)


@pytest.mark.parametrize(("metric", "needs"), [("accuracy", "outputs"), ("loss", "loss")])
def test_an_evaluation_feeds_the_metric_what_it_needs(metric: str, needs: str) -> None:
    task = small_task(metric=metric, evaluate=[(X[:4], Y[:4]), (X[4:], Y[4:])])
    model = task.new_model()
    accumulator = task.new_metric()
    with torch.no_grad():
        for batch in task.evaluation_batches(0):
            task.update_metric(accumulator, model, batch)
    expected = F.cross_entropy(model(X), Y) if metric == "loss" else (model(X).argmax(1) == Y).float().mean()
    assert accumulator.needs == needs
    assert accumulator.compute() == pytest.approx(expected.item(), rel=1e-5)
    assert task.higher_is_better == (metric == "accuracy")
    assert task.metric_name == metric


def test_a_model_of_named_inputs_is_called_with_a_mapping() -> None:
    class Sum(nn.Module):
        def forward(self, x: Tensor, labels: Tensor) -> Tensor:
            return x + labels

    task = small_task(loss=lambda model, batch: model(**batch).mean())
    assert torch.equal(task.predict(Sum(), {"x": X[:, 0], "labels": Y}), X[:, 0] + Y)


class Slope(nn.Linear):
    """A model that answers with a derivative, as of an energy."""

    def forward(self, x: Tensor) -> Tensor:
        x = x.detach().requires_grad_()
        return torch.autograd.grad(super().forward(x).square().sum(), x, create_graph=True)[0]


@pytest.mark.parametrize("metric", ["loss", "accuracy"])
def test_what_differentiates_by_itself_is_evaluated_too(metric: str) -> None:
    task = small_task(model=lambda: Slope(3, 3), loss=model_loss, metric=metric)
    model, accumulator = task.new_model(), task.new_metric()
    with torch.no_grad():
        task.update_metric(accumulator, model, (X, Y))
    slopes = model(X)
    expected = F.cross_entropy(slopes, Y) if metric == "loss" else (slopes.argmax(1) == Y).float().mean()
    assert accumulator.compute() == pytest.approx(expected.item(), rel=1e-5)


@dataclasses.dataclass
class Weighted:
    x: Tensor
    weight: Tensor
    target: Tensor


@dataclasses.dataclass
class Named:
    input: Tensor
    labels: Tensor


class Weighing(nn.Linear):
    def forward(self, x: Tensor, weight: Tensor) -> Tensor:
        return super().forward(x) * weight


@pytest.mark.parametrize(
    "batch",
    [(X, X[:, :1], Y), {"x": X, "weight": X[:, :1], "labels": Y}, Weighted(X, X[:, :1], Y)],
    ids=lambda batch: type(batch).__name__,
)
def test_a_criterion_takes_batches_of_several_inputs(batch: Any) -> None:
    task = small_task(metric="accuracy", train=[batch], evaluate=[batch])
    model = Weighing(X.shape[1], 3)
    scores = model(X, X[:, :1])
    assert torch.equal(task.compute_loss(model, batch), nn.CrossEntropyLoss()(scores, Y))
    assert torch.equal(task.predict(model, batch), scores)
    metric = task.new_metric()
    task.update_metric(metric, model, batch)
    assert metric.compute() == pytest.approx(float((scores.argmax(1) == Y).float().mean()))
    other = mapped(batch, lambda tensor: tensor + 1)
    assert type(other) is type(batch)
    assert small_task(train=[other], evaluate=[other]).data_digest() != task.data_digest()
    assert task.batch_size_of(concatenated([batch, other])) == 2 * len(X)


@pytest.mark.parametrize(
    ("batch", "call"),
    [((X, X[:, :1], Y), r"batch\[0\], batch\[1\]"), ({"x": X, "weight": X[:, :1], "labels": Y}, "x, weight")],
    ids=["tuple", "mapping"],
)
def test_a_criterion_s_batch_that_a_model_does_not_take_says_how_it_is_called(batch: Any, call: str) -> None:
    class Breaking(Weighing):
        def forward(self, x: Tensor, weight: Tensor) -> Tensor:
            raise TypeError("of its own")

    task = small_task(metric="accuracy", train=[batch], evaluate=[batch])
    with pytest.raises(TaskError, match=rf"called as model\({call}\), which it does not take .*write a function loss"):
        task.compute_loss(nn.Linear(X.shape[1], 3), batch)
    with pytest.raises(TypeError, match="of its own"):
        task.compute_loss(Breaking(X.shape[1], 3), batch)


class Tagged(NamedTuple):
    x: Tensor
    weight: Tensor
    labels: Tensor
    note: Tensor


def test_a_named_tuple_is_taken_apart_by_name() -> None:
    """Beside a criterion its inputs keep their order, since a model may call them otherwise."""
    batch = Tagged(X, torch.full((len(X), 1), 2.0), Y, Y + 7)
    model = Weighing(3, 2)
    expected = model(X, batch.weight)
    inputs = inputs_and_target(batch)
    assert inputs == ((batch.x, batch.weight, batch.note), {}, batch.labels)
    task = small_task(loss=lambda model, batch: model(X, batch.weight).sum())
    assert torch.equal(task.predict(model, batch), expected)
    accumulator = task.new_metric()
    task.update_metric(accumulator, model, batch)
    assert accumulator.compute() == pytest.approx(float((expected.argmax(1) == Y).float().mean()))
    assert task.what_is_compared(model, batch) == ""
    other = small_task(loss=lambda model, batch: model(X).sum())  # its model takes one argument of another name
    assert torch.equal(other.predict(net := other.new_model(), batch), net(X))


@pytest.mark.parametrize("batch", [{"input": X, "labels": Y}, Named(X, Y)], ids=lambda batch: type(batch).__name__)
def test_beside_a_loss_that_is_a_function_a_metric_finds_inputs_and_target_by_name(batch: Any) -> None:
    task = small_task(loss=lambda model, batch: model(X).sum())
    model, accumulator = task.new_model(), task.new_metric()
    task.update_metric(accumulator, model, batch)
    assert accumulator.compute() == pytest.approx(float((model(X).argmax(1) == Y).float().mean()))


@pytest.mark.parametrize(
    ("model", "batch", "place"),
    [(nn.Linear(3, 2), (X, Y, X > 0), "second"), (Weighing(3, 2), (X, X[:, :1], Y), "last")],
    ids=["one input", "two inputs"],
)
def test_beside_a_loss_that_is_a_function_the_model_says_which_items_are_its_inputs(
    model: nn.Module, batch: tuple[Tensor, ...], place: str
) -> None:
    """Of images, labels and masks the target is the second, of users, items and ratings the last."""
    task = small_task(loss=lambda model, batch: model(X).sum())
    accumulator = task.new_metric()
    task.update_metric(accumulator, model, batch)
    expected = model(X, X[:, :1]) if isinstance(model, Weighing) else model(X)
    assert accumulator.compute() == pytest.approx(float((expected.argmax(1) == Y).float().mean()))
    assert task.what_is_compared(model, batch).endswith(f"let the target be the {place}.")


@pytest.mark.parametrize(
    ("batch", "words"),
    [
        (
            (X, Y),
            r"needs model\(batch\[0\]\), .*'weight'\); let a batch be a mapping or a named tuple with",
        ),
        (
            {"image": X, "y": Y},
            r"needs model\(\*\*batch\), .* 'x'\); name its arguments after the parts of the batch \(image, y\), or",
        ),
    ],
    ids=["items", "names"],
)
def test_a_call_that_a_metric_needs_and_a_model_does_not_take_is_named(batch: Any, words: str) -> None:
    task = small_task(loss=lambda model, batch: model(X).sum())
    with pytest.raises(TaskError, match=words):
        task.predict(Weighing(3, 2), batch)


def test_a_nested_tensor_is_refused_with_a_way_out() -> None:
    ragged = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged)
    with pytest.raises(TaskError, match=r"got a nested tensor; pad it: torch\.nested\.to_padded_tensor"):
        small_task().batch_size_of((ragged, Y))


@pytest.mark.parametrize(("seed", "start"), [(-1, 0), (True, 0), (0.0, 0), (0, -1), (0, 1.5)])
def test_a_seed_or_start_that_is_none_is_refused(seed: Any, start: Any) -> None:
    with pytest.raises(TaskError, match=r"`(seed|start)` must be a"):
        small_task().batches(seed, start)


def test_a_digest_of_unhashed_data_changes_with_the_data() -> None:
    other, digest = [(X + 1, Y)], small_task().data_digest()
    assert len({digest, *(small_task(**{name: other}).data_digest() for name in ("train", "evaluate"))}) == 3
    assert small_task().data_digest() == digest
    assert small_task(data_hash="v1").data_digest() == "v1"


@pytest.mark.parametrize(
    "make",
    [
        Tensor.to_sparse,
        lambda x: x.numpy().copy(),
        lambda x: x.numpy()[0, 0],
        lambda x: torch.nested.as_nested_tensor([x, x[:2]], layout=torch.jagged),
    ],
    ids=["sparse", "array", "number of numpy", "nested"],
)
def test_a_digest_looks_into_what_is_no_plain_tensor(make: Callable[[Tensor], Any]) -> None:
    first, same, other = (small_task(train=[(make(x), Y)]).data_digest() for x in (X, X, X + 1))
    assert first == same
    assert first != other


def test_a_changed_copy_is_checked_again() -> None:
    with pytest.raises(TaskError, match="`name` must be"):
        dataclasses.replace(small_task(), name="")
    assert not dataclasses.replace(small_task(), metric="loss").higher_is_better
