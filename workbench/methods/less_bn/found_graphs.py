"""How LessBN comes to a network's graph: by a call with example inputs, else by torch.fx, else by a call with noise."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import nn

from workbench.methods.less_bn.network_graph import NetworkGraph, TraceError, read_graph, record_graph
from workbench.methods.less_bn.trial import Call, caller, copy_of, noise_call


@dataclass(frozen=True)
class FoundGraphs:
    """What could be found out about a network."""

    graphs: tuple[NetworkGraph, ...] = ()  # of evaluation and, if possible, of training
    call: Call | None = None  # how to call it; None when it was traced
    reason: str = ""  # what failed before


def find_graphs(model: nn.Module, rests: Mapping[str, tuple[str, ...]], example_inputs: Any) -> FoundGraphs:
    """Record the model on its example inputs, else trace it, else record it on noise.

    ``rests`` names, by BatchNorm, the children that a call of it runs after it has normalised.
    """
    reasons: list[str] = []
    for way in ("example", "trace", "noise") if example_inputs is not None else ("trace", "noise"):
        call = None if way == "trace" else noise_call(model) if way == "noise" else caller(example_inputs)
        if call is None and way == "noise":
            break
        try:
            graphs = _graphs(model, rests, call)
        except TraceError as error:
            reasons.append(str(error))
        else:
            return FoundGraphs(graphs, call, reasons[0] if reasons and example_inputs is not None else "")
    reasons.append("pass `example_inputs` that run, which show what the network does")
    return FoundGraphs(reason="; ".join(reasons))


def _graphs(model: nn.Module, rests: Mapping[str, tuple[str, ...]], call: Call | None) -> tuple[NetworkGraph, ...]:
    graph = partial(read_graph, model) if call is None else partial(record_graph, copy_of(model), call)
    graphs = [graph(training=False, followed_by=rests)]
    with contextlib.suppress(TraceError):  # without it nothing is folded
        graphs.append(graph(training=True, followed_by=rests))
    return tuple(graphs)
