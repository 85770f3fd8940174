"""Which choices of a set-up plain torch has a counterpart for, in a training loop without this package."""

from __future__ import annotations

import inspect
from typing import Any

import torch

from workbench.config import BoostConfig
from workbench.integrations.carried import ACCUMULATION, FORMATS, RATES, Carried, Sorting, learning_rate, rate_factor
from workbench.methods.registry import METHODS

_OPTIMIZERS = ("SGD", "Adam", "AdamW", "RMSprop", "Adagrad")  # of ours with these names, torch's own are built
_MUON = "torch.optim.Muon takes no kernels of convolutions, and leaves every parameter that is no matrix to another"
_SMOOTHING = "label_smoothing"
_LOADER = "torch.utils.data.DataLoader"


def carried(config: BoostConfig, *, level: str = "O1") -> Carried:
    """Return what of a set-up a plain torch loop can say, and why it cannot say the rest.

    Arguments are calls of torch by name, each with its keyword arguments. ``GradScaler`` has our rule of the dynamic
    loss scale but for its bounds: it falls below 1 where ours stays there. ``LambdaLR`` takes the course of the rate as
    a function, and ``DataLoader`` stands for whatever loads the batches: larger ones, or fewer, or of kept samples.
    A ConfigError is `BoostConfig.resolve`'s.
    """
    sorting = Sorting("torch", config.resolve(level))
    _precision(sorting)
    _loss_scale(sorting)
    _runtime(sorting)
    _optimizer(sorting, config)
    _course(sorting)
    sorting.take("regularization.label_smoothing", lambda share: {"torch.nn.CrossEntropyLoss": {_SMOOTHING: share}})
    average = {"torch.optim.swa_utils.AveragedModel": {"decay": sorting.value("regularization.decay")}}
    sorting.take("regularization.weight_average", lambda _: average, "regularization.decay")
    times, switch = ACCUMULATION
    sorting.take(times, lambda n: {"Tensor.backward": {"times": n}}, switch)
    for method in METHODS:
        if method.torch_lacks:
            sorting.leave(method.torch_lacks, method.switch, method.section)
    return sorting.done()


def _precision(sorting: Sorting) -> None:
    low, dtype = sorting.value("amp.level"), sorting.value("amp.dtype")
    if low == "O2" and sorting.value("amp.keep_batchnorm_fp32"):
        sorting.carry(*FORMATS, **{"torch.autocast": {"dtype": f"torch.{dtype}"}})
    sorting.leave(
        {
            "O2": "torch.autocast leaves BatchNorm's weights in float32",
            "O3": "a model with weights of low precision needs its inputs and outputs cast",
            "auto": "the device decides what amp.level auto means; name O2 or O3",
        }.get(low, ""),
        "amp",
    )


def _loss_scale(sorting: Sorting) -> None:
    init, kind = sorting.value("loss_scale.init"), sorting.value("loss_scale.kind")
    if kind == "dynamic":
        factor, window = sorting.value("loss_scale.factor"), sorting.value("loss_scale.window")
        rule = {"init_scale": init, "growth_factor": factor, "backoff_factor": 1.0 / factor, "growth_interval": window}
        paths = [f"loss_scale.{name}" for name in ("kind", "init", "factor", "window")]
        sorting.carry(*paths, **{"torch.amp.GradScaler": rule})
    elif kind == "fixed" and sorting.value("loss_scale.drop_overflow_update"):
        call = {"torch.amp.GradScaler": {"init_scale": init}, "torch.amp.GradScaler.update": {"new_scale": init}}
        sorting.carry("loss_scale.kind", "loss_scale.init", **call)
    elif kind == "fixed":
        sorting.leave("torch's GradScaler always skips an update that overflowed", "loss_scale")
    sorting.leave("torch's GradScaler has no bounds, and never gives up", "loss_scale")


def _runtime(sorting: Sorting) -> None:
    mode = sorting.value("runtime.compile")
    if sorting.is_chosen("runtime.cuda_graph"):
        compiled = {"backend": "cudagraphs"} if mode == "off" else {"mode": "reduce-overhead"}
        sorting.carry("runtime.compile", "runtime.cuda_graph", **{"torch.compile": compiled})
    elif mode != "off":
        sorting.carry("runtime.compile", **{"torch.compile": {"mode": mode}})
    calls: dict[str, tuple[str, str]] = {
        "runtime.memory_format": ("Module.to", "memory_format"),
        "runtime.matmul_precision": ("torch.set_float32_matmul_precision", "precision"),
        "runtime.cudnn_benchmark": ("torch.backends.cudnn", "benchmark"),
        "runtime.threads": ("torch.set_num_threads", "int"),
    }
    for path, (call, argument) in calls.items():
        if sorting.is_chosen(path):
            sorting.carry(path, **{call: {argument: sorting.value(path)}})


def _optimizer(sorting: Sorting, config: BoostConfig) -> None:
    """Carry the optimizer and what multiplies its rate."""
    name, fields = sorting.value("optimizer.name"), sorting.hyper_parameters()
    if name not in (None, *_OPTIMIZERS) or "aux_lr" in fields:
        sorting.leave(_MUON if name in (None, "Muon") else f"torch.optim has no {name} of this kind", "optimizer")
        sorting.leave("the rate that follows is that of the optimizer", "batch.lr_rule")
        return
    options = {one: sorting.value(f"optimizer.{one}") for one in fields}
    call = "optimizer.param_groups" if name is None else f"torch.optim.{name}"
    takes = {} if name is None else inspect.signature(getattr(torch.optim, name)).parameters
    own = takes["lr"].default if takes else None
    if sorting.is_chosen(*RATES[1:]):  # whatever the rate is
        rate = learning_rate(config, own)
        options["lr"] = f"{rate_factor(config):g} x" if rate is None else rate
    if "fused" in takes:
        options["fused"] = True
    if options or name is not None:
        sorting.carry("optimizer.name", *(f"optimizer.{one}" for one in fields), *RATES, **{call: options})


def _course(sorting: Sorting) -> None:
    """Carry the size and number of the batches, and the course of the rate over the updates."""
    loader: dict[str, Any] = {}  # one call, for two choices
    if sorting.is_chosen("batch.factor"):
        loader["batch_size"] = f"{sorting.value('batch.factor'):g} x"
        sorting.carry("batch.factor", **{_LOADER: loader})
    if sorting.value("runtime.data") == "prefetch":
        loader["num_workers"] = 1
        sorting.carry("runtime.data", **{_LOADER: loader})
    elif sorting.value("runtime.data") == "resident":
        loader["dataset"] = "kept"
        sorting.carry("runtime.data", **{_LOADER: loader})
    sorting.take("schedule.length", lambda share: {"number of updates": {"times": share}})
    sorting.carry_course("torch.optim.lr_scheduler.LambdaLR")
