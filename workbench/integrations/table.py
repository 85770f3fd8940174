"""Which part of a set-up each framework's own arguments carry, and which needs this package, as a table.

Each row is asked of every framework's ``carried``, with one choice alone, so that the table cannot say otherwise than
the code.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from workbench.config import SWITCHES, BoostConfig
from workbench.integrations import accelerate, lightning, mindspore_model, torch_loop, transformers
from workbench.integrations.carried import Carried
from workbench.methods.registry import METHODS

_FRAMEWORKS: Mapping[str, Callable[..., Carried]] = {
    "torch, a plain loop": torch_loop.carried,
    "Hugging Face's Trainer": transformers.carried,
    "Lightning": lightning.carried,
    "Accelerate": accelerate.carried,
    "MindSpore": mindspore_model.carried,
}
_O2 = {"amp.level": "O2"}
_BY_SHAPE = {"runtime.memory_format": "channels_last", "runtime.convolution": "by_shape"}
ROWS: Mapping[str, tuple[str, Mapping[str, Any]]] = {  # what it is -> its config path, and what chooses it
    "bfloat16 (amp O2)": ("amp.level", _O2 | {"amp.dtype": "bfloat16"}),
    "float16 with torch's own loss scale": ("amp.level", _O2),
    "weights cast (amp O3)": ("amp.level", {"amp.level": "O3", "amp.dtype": "bfloat16"}),
    "another rule of the dynamic loss scale": ("loss_scale.window", _O2 | {"loss_scale.window": 100}),
    "bounds of the loss scale": ("loss_scale.minimum", _O2 | {"loss_scale.minimum": 0.5}),
    "a fixed loss scale": ("loss_scale.kind", {"loss_scale.kind": "fixed", "loss_scale.init": 128.0}),
    "torch.compile": ("runtime.compile", {"runtime.compile": "default"}),
    "channels_last": ("runtime.memory_format", {"runtime.memory_format": "channels_last"}),
    "convolutions by shape": ("runtime.convolution", _BY_SHAPE),
    "fast float32 products": ("runtime.matmul_precision", {"runtime.matmul_precision": "high"}),
    "cuDNN benchmark": ("runtime.cudnn_benchmark", {"runtime.cudnn_benchmark": True}),
    "CUDA graph": ("runtime.cuda_graph", {"runtime.cuda_graph": True}),
    "threads": ("runtime.threads", {"runtime.threads": 1}),
    "samples kept in memory": ("runtime.data", {"runtime.data": "resident"}),
    "batches read ahead": ("runtime.data", {"runtime.data": "prefetch"}),
    "AdamW": ("optimizer.name", {"optimizer.name": "AdamW", "optimizer.lr": 0.01}),
    "SGD": ("optimizer.name", {"optimizer.name": "SGD", "optimizer.lr": 0.1, "optimizer.momentum": 0.9}),
    "Muon": ("optimizer.name", {"optimizer.name": "Muon"}),
    "Schedule-Free AdamW": ("optimizer.name", {"optimizer.name": "ScheduleFreeAdamW"}),
    "thor": ("optimizer.name", {"optimizer.name": "thor"}),
    "adam_offload": ("optimizer.name", {"optimizer.name": "adam_offload"}),
    "another rate of today's optimizer": ("optimizer.lr", {"optimizer.lr": 0.01}),
    "all rates of today's optimizer, multiplied": ("optimizer.lr_factor", {"optimizer.lr_factor": 2.0}),
    "a shorter run": ("schedule.length", {"schedule.length": 0.5}),
    "a shorter run, linear": ("schedule.shape", {"schedule.length": 0.5, "schedule.shape": "linear"}),
    "cosine": ("schedule.shape", {"schedule.shape": "cosine"}),
    "warm-up, stable, decay": ("schedule.shape", {"schedule.shape": "warmup_stable_decay"}),
    "larger batches": ("batch.factor", {"batch.factor": 4.0}),
    "smaller batches": ("batch.factor", {"batch.factor": 0.5}),
    "a rate that follows the batch": ("batch.lr_rule", {"batch.factor": 4.0, "batch.lr_rule": "sqrt"}),
    "inputs that grow": ("curriculum.kind", {"curriculum.kind": "resolution"}),
    "label smoothing": ("regularization.label_smoothing", {"regularization.label_smoothing": 0.1}),
    "an average of the weights": ("regularization.weight_average", {"regularization.weight_average": "ema"}),
    **{
        method.title: (method.switch, method.enabled_by)
        for method in METHODS
        if method.switch.startswith("boost.") and method.n_ranks == 1
    },
}
_NOTHING = BoostConfig().with_values({"boost.mode": "manual"} | {f"boost.{name}": False for name in SWITCHES})


def table() -> str:
    """Return a table in Markdown: per part of a set-up what of each framework carries it, ``us`` where nothing does.

    Of MindSpore, in which this package does not run, "–" says that nothing carries a part.
    """
    lines = [f"| part of a set-up | {' | '.join(_FRAMEWORKS)} |", f"| --- |{' --- |' * len(_FRAMEWORKS)}"]
    for title, (path, values) in ROWS.items():
        config = _NOTHING.with_values(dict(values))
        cells = [_cell(name, carried(config), path) for name, carried in _FRAMEWORKS.items()]
        lines.append(f"| {title} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _cell(framework: str, answer: Carried, path: str) -> str:
    if path in answer.carriers:
        return ", ".join(f"`{name}`" for name in answer.carriers[path])
    return "–" if framework == "MindSpore" else "us"
