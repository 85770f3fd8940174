"""Whose head LessBN normalises: classifiers that lost a BatchNorm; every other network keeps its last layers."""

from __future__ import annotations

import copy
import functools
import logging
import re
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.network_families import ResNet
from workbench.methods.less_bn.full_normalization import CommonHeadLastFN, is_classification, smallest_multiplier
from workbench.methods.less_bn.method import LessBN
from workbench.mindspore.train_step_cells import WithLossCell
from workbench.training import Boosted, apply

LESS_BN_ONLY = {"boost": {"mode": "manual", "less_bn": True, "grad_freeze": False}}


class Features(nn.Module):
    """A stem and a residual block, which loses its first BatchNorm; pooled to ``[batch, width]``."""

    def __init__(self, width: int = 6) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU())
        self.conv1, self.bn1 = nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width)
        self.conv2, self.bn2 = nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width)

    def maps(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        return F.relu(x + self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x))))))

    def forward(self, x: Tensor) -> Tensor:
        return self.maps(x).mean((2, 3))


class Net(nn.Module):
    """Features and one Linear."""

    def __init__(self, outputs: int = 4) -> None:
        super().__init__()
        self.features, self.fc = Features(), nn.Linear(6, outputs)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.features(x))


class Detector(Net):
    """Scores of classes and the four numbers of a box."""

    def __init__(self) -> None:
        super().__init__()
        self.box = nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Any:
        features = self.features(x)
        return self.fc(features), self.box(features)


class Segmenter(Net):
    """A map of scores, gated by what a Linear makes of the pooled channels (squeeze and excitation)."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.classify = nn.Linear(6, 6), nn.Conv2d(6, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        maps = self.features.maps(x)
        gate = torch.sigmoid(self.gate(maps.mean((2, 3))))
        return self.classify(maps * gate[:, :, None, None])


class Siamese(Net):
    """The same Linear, called once per view."""

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.features(x)) + self.fc(self.features(x.flip(-1)))


class Tied(Net):
    """A Linear whose weight is also an embedding's."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(4, 6)
        self.fc.weight = self.embedding.weight


def boosted(net: nn.Module, criterion: Any = None, **options: Any) -> Boosted:
    config = LESS_BN_ONLY | options.pop("config", {})
    return apply(config, net, torch.optim.SGD(net.parameters(), lr=0.1, fused=True), criterion=criterion, **options)


def linear_layers(net: nn.Module) -> dict[str, nn.Linear]:
    return {name: module for name, module in net.named_modules() if type(module) is nn.Linear}


def images(count: int = 5, seed: int = 0) -> Tensor:
    return torch.randn(count, 3, 8, 8, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize(
    ("make", "criterion", "reason"),
    [
        (functools.partial(Net, 1), nn.MSELoss(), "MSELoss is not known to be a classification"),
        (functools.partial(ResNet, "basic", (1, 1), (4, 8), n_classes=2), F.l1_loss, "l1_loss is not known"),
        (Net, nn.BCEWithLogitsLoss(), "BCEWithLogitsLoss is not known"),
        (Net, lambda model, batch: F.cross_entropy(model(batch[0]), batch[1]), "<lambda> is not known"),
        (functools.partial(Net, 1), nn.CrossEntropyLoss(), "`fc` has a single output"),
        (Detector, nn.CrossEntropyLoss(), "2 layers feed the output"),
        (Segmenter, nn.CrossEntropyLoss(), r"the output comes from `classify` \(Conv2d\), not from a Linear"),
        (Siamese, nn.CrossEntropyLoss(), "the output comes from an operation"),
        (Tied, nn.CrossEntropyLoss(), "`fc` shares its weight with another layer"),
    ],
    ids=[
        *("regression", "resnet_regression", "labels", "function_of_the_model", "one_output"),
        *("detector", "segmentation", "siamese", "tied"),
    ],
)
def test_a_network_that_is_no_plain_classifier_keeps_its_last_layers(make: Any, criterion: Any, reason: str) -> None:
    net = make()
    x = images(2)
    net(x)  # learned statistics: what remains must be what it was
    before, layers = copy.deepcopy(net).eval(), linear_layers(net)
    made = boosted(net, criterion)
    assert linear_layers(net) == layers
    assert re.search(reason, made.notes[0])
    assert made.notes[0].startswith("head not normalised: ")
    with torch.no_grad():
        torch.testing.assert_close(net.eval()(x), before(x), rtol=1e-5, atol=1e-5)


def test_the_head_of_a_classifier_that_lost_a_norm_is_normalised_and_told_of(
    caplog: pytest.LogCaptureFixture,
) -> None:
    net = Net()
    weight = net.fc.weight.detach().clone()
    with caplog.at_level(logging.INFO, "workbench"):
        made = boosted(net, nn.CrossEntropyLoss(label_smoothing=0.1))
    assert isinstance(net.fc, CommonHeadLastFN)
    assert torch.equal(net.fc.weight, weight)
    assert net.fc.multiplier.item() == pytest.approx(smallest_multiplier(4))
    assert made.notes == ("head `fc` normalised",)
    assert "head `fc` normalised" in repr(made)
    assert caplog.messages == ["head `fc` normalised"]
    held = {parameter for group in made.optimizer.param_groups for parameter in group["params"]}
    assert set(net.parameters()) == held


def test_without_a_criterion_the_head_stays_and_a_sentence_says_what_to_pass(caplog: pytest.LogCaptureFixture) -> None:
    net = Net()
    (note,) = boosted(net).notes
    assert type(net.fc) is nn.Linear
    assert note == "head not normalised: without a criterion it is not known to be a classifier; pass `criterion`"
    assert caplog.messages == [note]


@pytest.mark.parametrize("criterion", [nn.CrossEntropyLoss(), nn.MSELoss()], ids=["classification", "regression"])
def test_a_network_with_loss_says_itself_what_it_is(criterion: nn.Module) -> None:
    net = Net()
    boosted(WithLossCell(net, criterion))
    assert isinstance(net.fc, CommonHeadLastFN) == isinstance(criterion, nn.CrossEntropyLoss)


def test_a_classifier_that_keeps_its_batch_norms_keeps_its_head() -> None:
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 3))
    x = images()
    before = copy.deepcopy(net).eval()(x)
    with pytest.warns(UserWarning, match="less_bn had no effect"):
        made = boosted(net, nn.CrossEntropyLoss())
    assert made.notes == ()
    assert torch.equal(net.eval()(x), before)


def test_with_scope_head_it_is_normalised_whatever_the_criterion_and_nothing_says_no_effect() -> None:
    net = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3))
    made = boosted(net, nn.MSELoss(), config={"compatibility": {"fn_scope": "head"}})  # a warning would be an error
    assert made.notes == ("head `2` normalised",)
    assert net[2].multiplier.item() == 1.0  # the reference's


def test_by_hand_less_bn_normalises_a_last_linear_or_says_why_not() -> None:
    assert LessBN(Net(), fn_flag=True).report.heads == ("fc",)
    with pytest.warns(UserWarning, match="head not normalised: 2 layers feed the output"):
        assert LessBN(Detector(), fn_flag=True).report.heads == ()


class DataDependent(Net):
    """A forward of two inputs that torch.fx cannot trace; its parts can be."""

    def forward(self, x: Tensor, sign: Tensor) -> Tensor:  # type: ignore[override]
        return super().forward(x) if sign.sum() > 0 else super().forward(-x)


def test_a_network_out_of_reach_of_the_graph_stays_as_it_is() -> None:
    net = DataDependent()
    with pytest.warns(UserWarning, match="less_bn had no effect: torch.fx cannot trace"):
        made = boosted(net, nn.CrossEntropyLoss())
    assert made.notes == ()
    assert type(net.fc) is nn.Linear


def test_a_linear_with_a_weight_norm_or_a_hook_is_left_alone() -> None:
    normed, hooked = Net(), Net()
    torch.nn.utils.parametrizations.weight_norm(normed.fc)
    hooked.fc.register_forward_hook(lambda module, inputs, output: output.clamp(-1, 1))
    for net in (normed, hooked):
        assert boosted(net, nn.CrossEntropyLoss()).notes == ("head not normalised: `fc` is not a plain Linear",)


Learned = tuple[Net, Tensor, Tensor]


@pytest.fixture(scope="module")
def learned() -> Learned:
    """A network that has learned to tell which quarter of an image is bright, images and labels; to be copied."""
    torch.manual_seed(0)
    labels = torch.arange(256) % 4
    x = 0.5 * images(256, seed=1)
    for label in range(4):
        row, column = 4 * (label // 2), 4 * (label % 2)
        x[labels == label, label % 3, row : row + 4, column : column + 4] += 1.5
    net = Net()
    optimizer = torch.optim.Adam(net.parameters(), lr=0.02)
    for _ in range(60):
        optimizer.zero_grad()
        F.cross_entropy(net(x), labels).backward()
        optimizer.step()
    return net.eval(), x, labels


def test_a_trained_head_keeps_its_predictions_and_the_size_of_its_scores(learned: Learned) -> None:
    net, x, labels = copy.deepcopy(learned)
    with torch.no_grad():
        before = net(x)
        assert (before.argmax(1) == labels).float().mean() > 0.9
        made = boosted(net, nn.CrossEntropyLoss(), example_inputs=(x[:32],))
        after = net(x)
    assert made.notes == ("head `fc` normalised",)
    assert (after.argmax(1) == before.argmax(1)).float().mean() >= 0.95
    assert 0.8 < (after.std() / before.std()).item() < 1.25


@pytest.mark.filterwarnings("ignore:less_bn goes by")
@pytest.mark.parametrize("example_inputs", [None, (torch.zeros(1, 2),)], ids=["none", "some_that_do_not_run"])
def test_a_trained_head_of_unknown_features_keeps_most_predictions(example_inputs: Any, learned: Learned) -> None:
    net, x, _ = copy.deepcopy(learned)
    with torch.no_grad():
        before = net(x)
        made = boosted(net, nn.CrossEntropyLoss(), example_inputs=example_inputs)
        after = net(x)
    assert made.notes == ("head `fc` normalised",)
    assert (after.argmax(1) == before.argmax(1)).float().mean() >= 0.9
    assert not net.training


def test_the_head_of_a_trained_network_loads_into_that_of_a_fresh_one(learned: Learned) -> None:
    old, fresh = copy.deepcopy(learned[0]), Net()
    boosted(old, nn.CrossEntropyLoss())
    boosted(fresh, nn.CrossEntropyLoss())
    fresh.fc.load_state_dict(old.fc.state_dict())
    x = torch.randn(3, 6)
    assert torch.equal(fresh.fc(x), old.fc(x))


@pytest.mark.parametrize("classes", [2, 10, 1000])
def test_with_the_smallest_multiplier_separated_classes_reach_the_probability(classes: int) -> None:
    # Class vectors as far apart as they can: a simplex, whose cosines are -1 / (C - 1).
    scores = torch.full((classes,), -1 / (classes - 1), dtype=torch.float64)
    scores[0] = 1.0
    assert torch.softmax(smallest_multiplier(classes) * scores, 0)[0].item() == pytest.approx(0.95)


def test_cross_entropy_is_a_classification_in_every_form_torch_has() -> None:
    class Mine(nn.CrossEntropyLoss):
        pass

    known = [nn.CrossEntropyLoss(), Mine(), F.cross_entropy, functools.partial(F.cross_entropy, label_smoothing=0.1)]
    assert all(map(is_classification, known))
    unknown = [None, nn.MSELoss(), nn.BCEWithLogitsLoss(), F.mse_loss, functools.partial(F.mse_loss), len]
    assert not any(map(is_classification, unknown))
