"""Trains a small network with the file that a study wrote for MindSpore; run by an interpreter that has MindSpore.

Its argument is the file; the answer is one line of JSON: what took effect, and the loss before and after.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import nn


class Recorded(nn.Dense):
    """A dense layer that keeps the type of what it returns."""

    def construct(self, x: Any) -> Any:
        out = super().construct(x)
        self.formats = [*getattr(self, "formats", []), str(out.dtype)]
        return out


def main() -> None:
    ms.set_context(mode=ms.PYNATIVE_MODE, device_target="CPU")
    ms.set_seed(0)
    spec = importlib.util.spec_from_file_location("written", sys.argv[1])
    written = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(written)
    x = np.random.default_rng(0).normal(size=(64, 8)).astype(np.float32)
    y = x[:, :3].argmax(axis=1).astype(np.int32)
    network = nn.SequentialCell([Recorded(8, 16), nn.ReLU(), Recorded(16, 16), nn.ReLU(), Recorded(16, 3)])
    loss = getattr(written, "make_loss", nn.CrossEntropyLoss)()
    dataset = ms.dataset.NumpySlicesDataset({"x": x, "y": y}, shuffle=False).batch(16)
    model = written.make_model(network, loss)
    before = float(nn.CrossEntropyLoss()(network(ms.Tensor(x)).astype(ms.float32), ms.Tensor(y)).asnumpy())
    model.train(max(1, written.PASSES // 4), dataset, dataset_sink_mode=False)
    for cell in network.cells():
        cell.formats = []
    after = float(nn.CrossEntropyLoss()(network(ms.Tensor(x)).astype(ms.float32), ms.Tensor(y)).asnumpy())
    manager = written.make_loss_scale_manager()
    optimizer = written.make_optimizer(network)
    answer = {
        "before": before,
        "after": after,
        "formats": [cell.formats[-1] for cell in network.cells() if getattr(cell, "formats", None)],
        "manager": {} if manager is None else {name: manager.__dict__[name] for name in sorted(manager.__dict__)},
        "amp_level": model._amp_level,
        "boost_level": model._boost_level,
        "optimizer": type(optimizer).__name__,
        "rates": [
            float(rate) for rate in written.learning_rates(*[0.1] * (written.learning_rates.__defaults__ is None))
        ],
    }
    print(json.dumps(answer, default=str))


if __name__ == "__main__":
    main()
