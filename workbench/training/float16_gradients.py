"""Which gradients are computed in float16 under autocast: only these can overflow."""

from __future__ import annotations

from torch import Tensor, nn


def float16_gradient_parameters(loss: Tensor) -> list[nn.Parameter]:
    """Return the parameters whose gradients are computed in float16 under autocast; only these can overflow.

    They come back through the cast by which the parameter of a linear or convolutional layer went in. The walk takes
    milliseconds for thousands of nodes, and finds nothing where ``torch.compile`` hides it.
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
                if node.name().startswith("ToCopyBackward"):
                    through_cast[leaf] = None
                else:
                    directly.add(leaf)
            elif source not in seen:
                seen.add(source)
                waiting.append(source)
    return [leaf for leaf in through_cast if leaf not in directly and isinstance(leaf, nn.Parameter)]
