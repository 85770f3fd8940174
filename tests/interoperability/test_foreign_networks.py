"""LessBN on networks that are not ours: timm and transformers, built from configurations, with random weights.

Every BatchNorm gets statistics, a scale and a shift, as if the network had been trained; its function in evaluation has
to stay. How many BatchNorms go is recorded here, so that a change of the rules is seen.
"""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.optim import SGD

from workbench.methods.less_bn.method import LessBNReport, reduce_batch_norms_
from workbench.training import apply

pytestmark = pytest.mark.slow  # importing timm and transformers takes seconds

ONLY_LESS_BN = {
    "boost": {"mode": "manual", "less_bn": True, "grad_freeze": False},
    "less_bn": {"fn_flag": False},
    "amp": {"level": "O0"},
}

# Network -> BatchNorms, removed ones, those of them that belonged to a module with an activation.
TIMM = {
    "convnext_atto": (0, 0, 0),
    "cs3darknet_s": (32, 9, 9),
    "cspresnet50": (55, 26, 26),
    "densenet121": (121, 54, 54),
    "dla46_c": (48, 27, 0),
    "dpn48b": (54, 20, 20),
    "ese_vovnet19b_slim": (19, 0, 0),
    "ghostnet_050": (80, 0, 0),
    "hrnet_w18_small": (91, 33, 0),
    "mixnet_s": (49, 4, 4),
    "mobilenetv2_035": (52, 16, 16),
    "mobilenetv3_small_050": (34, 10, 10),
    "mobilenetv4_conv_small_035": (46, 12, 12),
    "mobilevit_xxs": (32, 5, 5),
    "nf_regnet_b0": (0, 0, 0),
    "regnety_002": (44, 30, 26),
    "regnetz_005": (65, 34, 34),
    "repvgg_a0": (61, 0, 0),
    "repvit_m0_9": (108, 26, 0),
    "res2net50_14w_8s": (149, 0, 0),
    "resnest14d": (23, 12, 0),
    "resnet10t": (14, 7, 0),
    "resnetv2_18": (17, 4, 4),
    "rexnet_100": (62, 22, 12),
    "selecsls42": (41, 0, 0),
    "skresnet18": (36, 27, 16),
    "starnet_s1": (36, 0, 0),
    "test_efficientnet": (13, 2, 2),
    "tf_efficientnet_lite0": (49, 15, 15),
    "tresnet_m": (60, 38, 35),
}
# Of each way it may end, and of each kind of network with it: no BatchNorm, none removed, all without an activation or
# some or none of them, plain, dense, inverted and pre-activated blocks, attention. The others are `long`.
CHOSEN = {
    "convnext_atto", "cs3darknet_s", "dla46_c", "mobilenetv2_035", "mobilevit_xxs", "regnety_002", "repvgg_a0",
    "resnet10t", "resnetv2_18", "skresnet18", "starnet_s1", "test_efficientnet",
}  # fmt: skip

WIDTHS = {"embedding_size": 8, "hidden_sizes": [8, 16, 24, 32]}
# Model, configuration, BatchNorms, removed ones.
TRANSFORMERS: dict[str, tuple[str, dict[str, Any], int, int]] = {
    "BERT": (
        "BertForSequenceClassification",
        {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16},
        0,
        0,
    ),
    "ConvNext": ("ConvNextForImageClassification", {"hidden_sizes": [8, 16, 24, 32], "depths": [1, 1, 1, 1]}, 0, 0),
    "EfficientNet": (
        "EfficientNetForImageClassification",
        {"width_coefficient": 0.25, "depth_coefficient": 0.4, "hidden_dim": 320},
        31,
        5,
    ),
    "Levit": (
        "LevitForImageClassification",
        {"image_size": 64, "hidden_sizes": [16, 24, 32], "num_attention_heads": [2, 2, 2], "depths": [1, 1, 1],
         "key_dim": [8, 8, 8]},
        27,
        0,
    ),
    "MobileNetV1": (
        "MobileNetV1ForImageClassification",
        {"depth_multiplier": 0.25, "classifier_dropout_prob": 0.0},
        27,
        0,
    ),
    "MobileNetV2": ("MobileNetV2ForImageClassification", {"depth_multiplier": 0.35}, 52, 16),
    "MobileViT": (
        "MobileViTForImageClassification",
        {"image_size": 64, "hidden_sizes": [16, 24, 32], "neck_hidden_sizes": [8, 8, 16, 16, 16, 16, 32],
         "num_attention_heads": 2},
        32,
        5,
    ),
    "RegNet": ("RegNetForImageClassification", {**WIDTHS, "depths": [1, 2, 2, 1], "groups_width": 4}, 23, 16),
    "ResNet": ("ResNetForImageClassification", {**WIDTHS, "depths": [2, 2, 2, 2], "layer_type": "basic"}, 20, 11),
    "SegFormer": (
        "SegformerForSemanticSegmentation",
        {"hidden_sizes": [8, 16, 24, 32], "depths": [1] * 4, "num_attention_heads": [1] * 4, "decoder_hidden_size": 16},
        1,
        0,
    ),
}  # fmt: skip


def norms_of(model: nn.Module) -> dict[str, _BatchNorm]:
    return {name: module for name, module in model.named_modules() if isinstance(module, _BatchNorm)}


def learn_statistics(model: nn.Module) -> None:
    generator = torch.Generator().manual_seed(1)
    for norm in norms_of(model).values():
        tensors = (norm.weight, norm.bias, norm.running_mean, norm.running_var)
        for tensor, (low, high) in zip(tensors, [(0.5, 1.5), (-0.3, 0.3), (-0.3, 0.3), (0.5, 1.5)], strict=True):
            tensor.data.uniform_(low, high, generator=generator)
        norm.num_batches_tracked.fill_(10)


def output_of(model: nn.Module, inputs: dict[str, Tensor] | Tensor) -> Tensor:
    result: Any = model(**inputs) if isinstance(inputs, dict) else model(inputs)
    output: Tensor = result if isinstance(result, Tensor) else result.logits
    return output


def keep_function_and_train(model: nn.Module, inputs: dict[str, Tensor] | Tensor, **options: Any) -> LessBNReport:
    """Apply LessBN, compare the evaluation output before and after, make a training step; return the report."""
    learn_statistics(model)
    norms = list(norms_of(model))
    with torch.no_grad():
        before = output_of(model.eval(), inputs)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "less_bn had no effect")
        boosted = apply(ONLY_LESS_BN, model, SGD(model.parameters(), lr=1e-3), **options)
    report: LessBNReport = model.less_bn_report  # type: ignore[assignment]
    with torch.no_grad():
        after = output_of(model.eval(), inputs)
    assert float((after - before).abs().max()) <= 1e-5 * float(before.abs().max())
    assert report.left_alone == {}
    assert sorted(report.removed + report.kept) == sorted(norms)
    assert sorted(report.folded + report.affine) == sorted(report.removed)
    assert list(norms_of(model)) == list(report.kept)
    model.train()
    weights = [parameter.detach().clone() for parameter in model.parameters()]
    boosted.backward(output_of(model, inputs).square().mean())
    assert boosted.step().applied
    assert all(bool(parameter.isfinite().all()) for parameter in model.parameters())
    moved = [not torch.equal(old, new) for old, new in zip(weights, model.parameters(), strict=True)]
    assert any(moved)  # gains that begin at zero hold others back for a step
    return report


@pytest.mark.parametrize("name", [pytest.param(one, marks=[pytest.mark.long] * (one not in CHOSEN)) for one in TIMM])
def test_a_network_of_timm_keeps_its_function_and_trains(name: str) -> None:
    timm = pytest.importorskip("timm", reason="pip install boost-workbench[networks] brings timm")
    report = keep_function_and_train(timm.create_model(name, num_classes=10), torch.randn(2, 3, 64, 64))
    assert (len(report.removed + report.kept), len(report.removed), len(report.split)) == TIMM[name]


def transformer(name: str) -> nn.Module:
    transformers = pytest.importorskip("transformers", reason="pip install boost-workbench[test] brings transformers")
    kind = getattr(transformers, TRANSFORMERS[name][0])
    model: nn.Module = kind(kind.config_class(**TRANSFORMERS[name][1]))
    for parameter in model.parameters():
        if parameter.ndim > 2:  # a convolution; as they come, signals vanish, and with them what could differ
            nn.init.kaiming_normal_(parameter, nonlinearity="relu")
    return model


@pytest.mark.parametrize("name", TRANSFORMERS)
def test_a_network_of_transformers_keeps_its_function_and_trains(name: str) -> None:
    model = transformer(name)
    inputs = (
        {"input_ids": torch.randint(1, 100, (2, 7))} if name == "BERT" else {"pixel_values": torch.randn(2, 3, 64, 64)}
    )
    report = keep_function_and_train(model, inputs, example_inputs=inputs)
    assert (len(report.removed + report.kept), len(report.removed)) == TRANSFORMERS[name][2:]


def test_optional_arguments_need_no_example_inputs_where_an_image_is_enough() -> None:
    with_inputs, without = transformer("MobileNetV2"), transformer("MobileNetV2")
    report = reduce_batch_norms_(with_inputs, example_inputs={"pixel_values": torch.randn(2, 3, 64, 64)})
    assert reduce_batch_norms_(without) == report
    assert len(report.removed) == 16
