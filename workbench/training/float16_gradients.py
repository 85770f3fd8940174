"""Which parameters' gradients are computed in float16? Under autocast not all are, and only these can overflow.

Autocast runs linear and convolutional layers in float16 and normalisations, embeddings and losses in float32. The
autograd graph knows: a parameter that was cast on its way in gets its gradient back through that cast, so the
gradient was a float16 before. What such a gradient exceeds is 65504; the others may be as large as they like.
"""

from __future__ import annotations

from torch import Tensor, nn

__all__ = ["float16_gradient_parameters"]

_CAST = "ToCopyBackward"


def float16_gradient_parameters(loss: Tensor) -> list[nn.Parameter]:
    """Return the parameters that a loss under float16 autocast uses through a cast only, each once.

    Walks the graph in Python (milliseconds for thousands of nodes), so it is a thing to do once per kind of step.
    Nothing is found where ``torch.compile`` hides the graph.
    """
    through_cast: dict[Tensor, None] = {}
    directly: set[Tensor] = set()
    waiting = [] if loss.grad_fn is None else [loss.grad_fn]
    seen = set(waiting)
    while waiting:
        node = waiting.pop()
        for source, _ in node.next_functions:
            if source is None:
                continue
            leaf = getattr(source, "variable", None)  # only AccumulateGrad has one
            if leaf is not None:
                if node.name().startswith(_CAST):
                    through_cast[leaf] = None
                else:
                    directly.add(leaf)
            elif source not in seen:
                seen.add(source)
                waiting.append(source)
    return [leaf for leaf in through_cast if leaf not in directly and isinstance(leaf, nn.Parameter)]
