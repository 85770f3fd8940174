"""What each framework's own arguments carry of a set-up, and what they leave with a reason."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from workbench.config import BoostConfig
from workbench.integrations import accelerate, lightning, mindspore_model, torch_loop, transformers
from workbench.integrations.carried import Carried, Sorting, choices, learning_rate

CARRIED: dict[str, Callable[..., Carried]] = {
    "torch": torch_loop.carried,
    "transformers": transformers.carried,
    "lightning": lightning.carried,
    "accelerate": accelerate.carried,
    "mindspore": mindspore_model.carried,
}
# What a user calls for the arguments themselves; a warning names what they leave.
ARGUMENTS: dict[str, Callable[..., dict[str, Any]]] = {
    "transformers": transformers.training_arguments,
    "lightning": lightning.trainer_arguments,
    "accelerate": accelerate.accelerator_arguments,
}
NO_METHODS = {"boost.mode": "manual", "boost.less_bn": False, "boost.grad_freeze": False}
O2, SMOOTHED = {"amp.level": "O2"}, {"regularization.label_smoothing": 0.1}
BFLOAT16 = O2 | {"amp.dtype": "bfloat16"}
ACCUMULATED = {"boost.grad_accumulation": True, "grad_accumulation.grad_accumulation_step": 4}
RULE = {"loss_scale.init": 1024.0, "loss_scale.factor": 4.0, "loss_scale.window": 50}
SGD = {"optimizer.name": "SGD", "optimizer.lr": 0.1, "optimizer.momentum": 0.9}
SCALER, LOADER = "torch.amp.GradScaler", "torch.utils.data.DataLoader"
LINEAR, ROOT = ({"batch.factor": 4, "batch.lr_rule": rule} for rule in ("linear", "sqrt"))
ADAMW = {"optimizer.name": "AdamW", "optimizer.betas": [0.8, 0.9]}
FIXED = {"loss_scale.kind": "fixed", "loss_scale.drop_overflow_update": False}
MUON = {"optimizer.name": "Muon"}


def config_of(set_up: dict[str, Any]) -> BoostConfig:
    return BoostConfig().with_values(NO_METHODS | set_up)


@pytest.mark.parametrize("framework", CARRIED)
def test_nothing_chosen_asks_for_nothing(framework: str) -> None:
    answer = CARRIED[framework](config_of({}))
    assert (dict(answer.arguments), dict(answer.left)) == ({}, {})


@pytest.mark.parametrize(
    ("framework", "set_up", "arguments"),
    [
        ("torch", BFLOAT16, {"torch.autocast": {"dtype": "torch.bfloat16"}}),
        ("torch", O2 | RULE, {
            "torch.autocast": {"dtype": "torch.float16"},
            SCALER: {"init_scale": 1024.0, "growth_factor": 4.0, "backoff_factor": 0.25, "growth_interval": 50},
        }),
        ("torch", {"loss_scale.kind": "fixed", "loss_scale.init": 128.0}, {
            SCALER: {"init_scale": 128.0}, f"{SCALER}.update": {"new_scale": 128.0},
        }),
        ("torch", ADAMW | LINEAR, {  # torch's own rate follows the batch
            "torch.optim.AdamW": {"betas": (0.8, 0.9), "lr": 0.004, "fused": True}, LOADER: {"batch_size": "4 x"},
        }),
        ("torch", ROOT | {"optimizer.lr": 0.5}, {  # another rate of today's optimizer
            "optimizer.param_groups": {"lr": 1.0}, LOADER: {"batch_size": "4 x"},
        }),
        ("torch", ROOT | {"batch.factor": 0.25, "runtime.data": "prefetch"}, {  # today's rate, whatever it is
            "optimizer.param_groups": {"lr": "0.5 x"}, LOADER: {"batch_size": "0.25 x", "num_workers": 1},
        }),
        ("torch", {"runtime.data": "resident"}, {LOADER: {"dataset": "kept"}}),
        ("torch", ROOT | {"optimizer.lr_factor": 1.5}, {  # today's rates, whatever they are
            "optimizer.param_groups": {"lr": "3 x"}, LOADER: {"batch_size": "4 x"},
        }),
        ("torch", {"optimizer.lr": 0.5, "optimizer.lr_factor": 1.5}, {"optimizer.param_groups": {"lr": 0.75}}),
        ("torch", {"runtime.compile": "default", "runtime.cuda_graph": True}, {
            "torch.compile": {"mode": "reduce-overhead"},
        }),
        ("lightning", BFLOAT16, {"precision": "bf16-mixed"}),
        ("lightning", O2, {"precision": "16-mixed"}),
        ("lightning", BFLOAT16 | {"amp.level": "O3"}, {"precision": "bf16-true"}),
        ("lightning", {"runtime.cudnn_benchmark": True}, {"benchmark": True}),
        ("lightning", ACCUMULATED, {"accumulate_grad_batches": 4}),
        ("transformers", BFLOAT16, {"bf16": True}),
        ("transformers", O2, {"fp16": True}),
        ("transformers", {"runtime.compile": "max-autotune"}, {
            "torch_compile": True, "torch_compile_mode": "max-autotune",
        }),
        ("transformers", ACCUMULATED, {"gradient_accumulation_steps": 4}),
        ("transformers", SMOOTHED, {"label_smoothing_factor": 0.1}),
        ("transformers", {"optimizer.lr": 0.01, "optimizer.betas": [0.8, 0.9]}, {
            "learning_rate": 0.01, "adam_beta1": 0.8, "adam_beta2": 0.9,
        }),
        ("transformers", SGD | {"optimizer.nesterov": True}, {
            "optim": "sgd", "learning_rate": 0.1, "weight_decay": 0.0, "optim_args": "momentum=0.9,nesterov=true",
        }),
        ("transformers", {"runtime.data": "prefetch"}, {"dataloader_num_workers": 1}),
        ("accelerate", ACCUMULATED | O2 | {"runtime.compile": "default"}, {
            "mixed_precision": "fp16", "gradient_accumulation_steps": 4, "dynamo_backend": "inductor",
        }),
        ("mindspore", O2 | RULE | SGD | {"schedule.shape": "cosine", "schedule.final": 0.1}, {
            "amp.DynamicLossScaleManager": {"init_loss_scale": 1024.0, "scale_factor": 4.0, "scale_window": 50},
            "Model": {"amp_level": "O2"},
            "nn.Momentum": {"learning_rate": 0.1, "momentum": 0.9},
            "list of learning rates": {"shape": "cosine", "warmup": 0.1, "final": 0.1},
        }),
        ("mindspore", {"boost.grad_freeze": True}, {
            "Model": {"boost_level": "O1", "boost_config_dict": "the exported file"},
        }),
        ("mindspore", {"optimizer.name": "SGD"}, {"nn.SGD": {"learning_rate": 0.001}}),
        ("mindspore", {"optimizer.lr_factor": 1.5}, {"your optimizer": {"learning_rate": "1.5 x"}}),
        ("mindspore", ADAMW | ROOT, {
            "nn.AdamWeightDecay": {
                "eps": 1e-8, "weight_decay": 0.01, "beta1": 0.8, "beta2": 0.9, "learning_rate": 0.002,
            },
            "Dataset.batch": {"batch_size": "4 x"},
        }),
        ("mindspore", FIXED | {"loss_scale.init": 8.0}, {
            "amp.FixedLossScaleManager": {"loss_scale": 8.0, "drop_overflow_update": False},
        }),
        ("mindspore", BFLOAT16, {"amp.auto_mixed_precision": {"amp_level": "O2", "dtype": "ms.bfloat16"}}),
    ],
)  # fmt: skip
def test_what_is_native_needs_nothing_of_ours(
    framework: str, set_up: dict[str, Any], arguments: dict[str, Any]
) -> None:
    config = config_of(set_up)
    answer = CARRIED[framework](config)
    assert (dict(answer.arguments), dict(answer.left)) == (arguments, {})
    assert set(answer.carriers) == set(choices(config.resolve("O1")))
    if framework in ARGUMENTS:
        assert ARGUMENTS[framework](config) == arguments  # a warning would be an error


@pytest.mark.parametrize(
    ("framework", "set_up", "path", "why"),
    [
        ("torch", {"boost.less_bn": True}, "boost.less_bn", "removes no BatchNorms"),
        ("torch", {"boost.grad_freeze": True}, "boost.grad_freeze", "freezes layers"),
        ("torch", MUON | {"optimizer.lr": 0.1}, "optimizer.lr", "kernels of convolutions"),
        ("torch", {"optimizer.name": "thor"}, "optimizer.name", "torch.optim has no thor"),
        ("torch", MUON | ROOT, "batch.lr_rule", "the optimizer"),
        ("torch", {"amp.level": "O3"}, "amp.level", "inputs and outputs cast"),
        ("torch", {"amp.level": "auto"}, "amp.level", "the device decides"),
        ("torch", O2 | {"amp.keep_batchnorm_fp32": False}, "amp.keep_batchnorm_fp32", "in float32"),
        ("torch", O2 | {"loss_scale.minimum": 8.0}, "loss_scale.minimum", "no bounds"),
        ("torch", FIXED, "loss_scale.kind", "always skips"),
        ("torch", {"curriculum.kind": "resolution"}, "curriculum.kind", "what the loader makes"),
        ("lightning", {"optimizer.name": "AdamW", "optimizer.lr": 0.01}, "optimizer.lr", "configure_optimizers"),
        ("lightning", {"schedule.length": 0.5}, "schedule.length", "configure_optimizers"),
        ("lightning", {"batch.factor": 2.0}, "batch.factor", "train_dataloader"),
        ("lightning", {"curriculum.kind": "resolution"}, "curriculum.kind", "as the loader makes them"),
        ("lightning", SMOOTHED, "regularization.label_smoothing", "criterion"),
        ("lightning", {"regularization.weight_average": "ema"}, "regularization.weight_average", "no argument"),
        ("lightning", {"runtime.compile": "default"}, "runtime.compile", "torch.compile"),
        ("lightning", O2 | {"loss_scale.window": 50}, "loss_scale.window", "2000 updates"),
        ("lightning", O2 | {"loss_scale.kind": "fixed"}, "amp.level", "loss scale dynamic, not fixed"),
        ("lightning", {"loss_scale.kind": "dynamic"}, "loss_scale.kind", "GradScaler"),
        ("lightning", {"amp.level": "O3", "amp.keep_batchnorm_fp32": True}, "amp.level", "no exception for BatchNorm"),
        ("lightning", {"amp.level": "auto"}, "amp.level", "the device decides"),
        ("lightning", {"boost.less_bn": True}, "boost.less_bn", "Lightning's Trainer has no argument for it"),
        ("transformers", O2 | {"loss_scale.init": 1024.0}, "amp.level", "dynamic loss scale"),
        ("transformers", O2 | {"loss_scale.kind": "fixed"}, "loss_scale.kind", "loss scale"),
        ("transformers", BFLOAT16 | {"amp.level": "O3"}, "amp.level", "casts no weights"),
        ("transformers", {"amp.level": "auto"}, "amp.level", "depends on the device"),
        ("transformers", MUON, "optimizer.name", "no optimizer Muon"),
        ("transformers", {"boost.grad_freeze": True}, "boost.grad_freeze", "no argument"),
        ("transformers", {"curriculum.kind": "sequence"}, "curriculum.kind", "no argument"),
        ("transformers", {"runtime.threads": 2}, "runtime.threads", "torch.set_num_threads"),
        ("accelerate", {"amp.level": "O3"}, "amp.level", "Accelerate has autocast"),
        ("accelerate", {"optimizer.lr": 0.1}, "optimizer.lr", "it belongs to your loop"),
        ("accelerate", {"curriculum.kind": "sequence"}, "curriculum.kind", "Accelerate has no argument for it"),
        ("mindspore", MUON, "optimizer.name", "no such optimizer"),
        ("mindspore", {"optimizer.name": "thor", "optimizer.damping": 0.2}, "optimizer.damping", "no such optimizer"),
        ("mindspore", {"regularization.weight_average": "ema"}, "regularization.weight_average", "as they are"),
        ("mindspore", {"runtime.compile": "default"}, "runtime.compile", "by itself"),
        ("mindspore", O2 | {"loss_scale.minimum": 4.0}, "loss_scale.minimum", "floor of 1"),
        ("mindspore", {"amp.level": "auto"}, "amp.level", "the device decides"),
    ],
)
def test_what_is_left_says_why(framework: str, set_up: dict[str, Any], path: str, why: str) -> None:
    config = config_of(set_up)
    answer = CARRIED[framework](config)
    assert why in answer.left[path]
    assert not answer.is_whole
    assert {*answer.carriers, *answer.left} == set(choices(config.resolve("O1")))
    if framework in {"lightning", "transformers"}:
        with pytest.warns(UserWarning, match=f"{path}.*{why}"):
            ARGUMENTS[framework](config)


def test_the_quickstart_s_answer_is_all_torch_s() -> None:
    config = BoostConfig.from_json(Path(__file__).parents[2] / "studies/quickstart/published/boost_config.o1.json")
    answer = torch_loop.carried(config)
    assert answer.is_whole
    assert set(answer.carriers) == set(choices(config.resolve("O1")))


MERGED = BFLOAT16 | {"optimizer.name": "AdamW", "optimizer.lr": 0.01, "batch.factor": 4.0, "batch.lr_rule": "sqrt"}


def test_choices_are_what_differs_from_training_as_given() -> None:
    made = choices(config_of(MERGED).resolve("O1"))
    assert {"optimizer.lr": 0.01, "batch.factor": 4.0, "amp.dtype": "bfloat16"}.items() <= made.items()
    assert not any(path.startswith(("boost.", "loss_scale.", "runtime.")) for path in made)


def test_every_choice_goes_somewhere() -> None:
    sorting = Sorting("Loops", config_of(MERGED).resolve("O1"))
    sorting.carry("amp.level", "amp.dtype", "amp.keep_batchnorm_fp32", bf16=True)
    sorting.carry("regularization.label_smoothing", smoothing=sorting.value("regularization.label_smoothing"))
    sorting.leave("Loops has one batch size", "batch")
    carried = sorting.done()
    assert carried.arguments == {"bf16": True, "smoothing": 0.0}
    assert carried.carriers["amp.dtype"] == ("bf16",)
    assert "regularization.label_smoothing" not in carried.carriers, "it was not chosen"
    assert carried.left["batch.factor"] == "Loops has one batch size"
    assert carried.left["optimizer.name"] == "Loops has no argument for it"


@pytest.mark.parametrize("own", [None, 0.5])
def test_the_rate_follows_the_batch(own: float | None) -> None:
    assert learning_rate(config_of(MERGED), own) == pytest.approx(0.02)
    assert learning_rate(BoostConfig(), own) == own
