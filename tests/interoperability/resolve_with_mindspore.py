"""Says how MindSpore's AutoBoost understands configuration files; run by an interpreter that has MindSpore.

The first line of the output is MindSpore's version. Then each line of the input is a request and each line of the
output its answer, both JSON. AutoBoost is one object for the life of a process, and mode manual changes a table of its
module, so every request is answered by a process of its own, a fork of this one.

Request: ``path`` of a JSON file, boost ``level``, ``attributes`` to report, and ``width``: 0, or the number of inputs
of a network that is prepared for training. Answer: ``switches``, ``attributes`` and ``training``, or ``error``.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import mindspore
from mindspore import nn
from mindspore.boost import AutoBoost, BoostTrainOneStepCell


def answer(request: dict[str, Any]) -> dict[str, Any]:
    with Path(request["path"]).open() as file:  # as MindSpore's documentation reads it, in the platform's encoding
        boost = AutoBoost(request["level"], json.load(file))
    return {
        "switches": boost.boost_config,
        "attributes": {name: getattr(boost, name) for name in request["attributes"]},
        "training": training(boost, request["width"]) if request["width"] else None,
    }


def training(boost: AutoBoost, width: int) -> dict[str, Any]:
    """Let AutoBoost prepare a network of width * 3 + 3 + 3 * 2 + 2 weights, and say what came out."""
    network = nn.SequentialCell([nn.Dense(width, 3), nn.ReLU(), nn.Dense(3, 2)])
    with_loss = nn.WithLossCell(network, nn.MSELoss())
    optimizer = nn.Momentum(network.trainable_params(), 0.1, 0.9)
    boosted, new_optimizer = boost.network_auto_process_train(with_loss, optimizer)
    cell = BoostTrainOneStepCell(boosted, new_optimizer, 1.0)
    return {
        "network": type(boosted).__name__,
        "head": [type(layer).__name__ for layer in network.cells()][-1],
        "optimizer": type(new_optimizer).__name__,
        "adasum": bool(getattr(new_optimizer, "adasum", False)),
        "freezing steps": len(cell.train_strategy) if cell.train_strategy is not None else 0,
        "freezing groups": len(cell.freeze_nets) if cell.freeze_nets is not None else 0,
        "micro-batches": cell.max_accumulation_step,
        "components": list(cell.dim_reduce.bk.shape) if cell.enable_dim_reduce else None,
    }


def answer_in_a_fork(request: dict[str, Any]) -> str:
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            text = json.dumps(answer(request))
        except Exception as error:
            text = json.dumps({"error": f"{type(error).__name__}: {error}"})
        with os.fdopen(writing, "w", encoding="utf-8") as pipe:
            pipe.write(text)
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, encoding="utf-8") as pipe:
        text = pipe.read()
    os.waitpid(child, 0)
    return text or json.dumps({"error": "the process ended without an answer"})


def main() -> None:
    mindspore.set_context(device_target="CPU")
    # MindSpore prints notes; what was standard output is kept for answers.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    print(json.dumps(mindspore.__version__), file=answers, flush=True)
    for line in sys.stdin:
        print(answer_in_a_fork(json.loads(line)), file=answers, flush=True)


if __name__ == "__main__":
    main()
