"""Which choices of a set-up the arguments of Lightning's `Trainer` carry."""

from __future__ import annotations

from typing import Any

from workbench.config import BoostConfig, ConfigLike, read_config
from workbench.core.warning import warn
from workbench.integrations.carried import ACCUMULATION, FORMATS, Carried, Sorting

_PRECISIONS = {
    ("O2", "bfloat16"): "bf16-mixed",
    ("O2", "float16"): "16-mixed",
    ("O3", "bfloat16"): "bf16-true",
    ("O3", "float16"): "16-true",
}
_ELSEWHERE = {
    "optimizer": "the module's configure_optimizers makes the optimizer",
    "schedule": "the module's configure_optimizers makes the schedule, and `max_epochs` stands for its length",
    "batch": "the module's or datamodule's train_dataloader makes the batches",
    "curriculum": "Lightning gives a module the batches as the loader makes them",
    "regularization.label_smoothing": "the criterion that the module calls smooths its labels",
    "runtime.compile": "it is a call before the training: torch.compile(module)",
    "runtime.memory_format": "it is a call before the training: module.to(memory_format=torch.channels_last)",
    "runtime.convolution": "its layers are this package's",
    "runtime.matmul_precision": "it is a call before the training: torch.set_float32_matmul_precision(...)",
    "runtime.threads": "it is a call before the training: torch.set_num_threads(...)",
    "runtime.data": "the module's or datamodule's train_dataloader says how samples are read",
}


def carried(config: BoostConfig, *, level: str = "O1") -> Carried:
    """Return what of a set-up the arguments of ``lightning.Trainer`` carry, and why they do not carry the rest.

    ``precision="16-mixed"`` scales the loss with torch's own `GradScaler`: its first scale is 65536, halved at an
    overflow and doubled after 2000 updates without; any other rule is left, as are all choices of float16 on a CPU,
    where Lightning takes bfloat16 instead.
    A ConfigError is `BoostConfig.resolve`'s.
    """
    sorting = Sorting("Lightning's Trainer", config.resolve(level))
    low, kind = sorting.value("amp.level"), sorting.value("loss_scale.kind")
    precision = _PRECISIONS.get((low, sorting.value("amp.dtype")))
    if sorting.is_chosen("amp.keep_batchnorm_fp32") and sorting.value("amp.keep_batchnorm_fp32") != (low == "O2"):
        sorting.leave("Lightning's `precision` has no exception for BatchNorm", "amp")
        precision = None
    usual = "dynamic" if precision == "16-mixed" else "none"
    if precision is not None and kind == usual:
        sorting.carry(*FORMATS, "loss_scale.kind", precision=precision)
    elif precision is not None:
        sorting.leave(f"Lightning's precision={precision!r} means loss scale {usual}, not {kind}", "amp", "loss_scale")
    sorting.leave("the device decides what amp.level auto means; name O2 or O3", "amp")
    sorting.leave("Lightning's GradScaler has torch's own rule: 65536, times or by 2, 2000 updates", "loss_scale")
    micro_batches, switch = ACCUMULATION
    sorting.take(micro_batches, lambda n: {"accumulate_grad_batches": n}, switch)
    sorting.take("runtime.cudnn_benchmark", lambda _: {"benchmark": True})
    for path, why in _ELSEWHERE.items():
        sorting.leave(why, path)
    return sorting.done()


def trainer_arguments(config: ConfigLike, *, level: str = "O1") -> dict[str, Any]:
    """Return what ``lightning.Trainer(**...)`` takes of a set-up, with a warning that names what it cannot take.

    Without a warning they are the whole set-up, and nothing of this package is needed.

    Args:
        config: Configuration, dictionary, or path of a ``boost_config.json``.
        level: As for `carried`.

    Raises:
        ConfigError: When the configuration is not valid.

    Example:
        >>> trainer_arguments({"amp": {"level": "O2", "dtype": "bfloat16"}}, level="O0")
        {'precision': 'bf16-mixed'}
    """
    answer = carried(read_config(config), level=level)
    if not answer.is_whole:
        rest = "; ".join(f"{path} ({why})" for path, why in answer.left.items())
        warn(f"arguments of Lightning's Trainer do not carry {rest}")
    return dict(answer.arguments)
