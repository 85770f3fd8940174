"""How the gradient of one layer is preconditioned: ``G^-1 dW A^-1``, block by block."""

from __future__ import annotations

import torch
from torch import Tensor

from workbench.optim.thor.factor_blocks import FactorBlocks
from workbench.optim.thor.thor_layers import FactoredLayer


class LayerPlan:
    """How one layer's gradient is preconditioned: views and buffers, made once.

    Slices of matrices are written in place by the matrix product itself, so the blocks cost no copies.
    """

    def __init__(self, layer: FactoredLayer, blocks: FactorBlocks) -> None:
        left = blocks.views(layer.g, blocks.inverses) if layer.kind != "embedding" else []
        right = blocks.views(layer.a if layer.a >= 0 else layer.g, blocks.inverses)
        weight = layer.weight
        self.row_scale = layer.row_scale
        self.shape, self.dtype = (len(weight), weight[0].numel()), right[0][2].dtype
        self.between = torch.empty(self.shape, dtype=self.dtype, device=weight.device)
        self.flat = torch.empty_like(self.between)
        # The update reads weight and gradient side by side in memory, so both must lie there in the same order.
        self.is_plain = weight.is_contiguous() and weight.dtype == self.dtype
        self.result = self.flat.view(weight.shape) if self.is_plain else torch.empty_like(weight, requires_grad=False)
        self.left = [(inverse, begin, end, self.between[begin:end]) for begin, end, inverse in left]
        self.right = [(self.between[:, begin:end], inverse, self.flat[:, begin:end]) for begin, end, inverse in right]
        self.only_left = left[0][2] if len(left) == 1 else None

    def __call__(self, gradient: Tensor) -> Tensor:
        """Return the preconditioned gradient, in memory that the next call overwrites."""
        matrix = gradient.reshape(self.shape)
        if matrix.dtype != self.dtype:
            matrix = matrix.to(self.dtype)
        if self.row_scale is not None:
            torch.mul(matrix, self.row_scale[:, None], out=self.between)
        elif self.only_left is not None:
            torch.mm(self.only_left, matrix, out=self.between)
        else:
            for inverse, begin, end, target in self.left:
                torch.mm(inverse, matrix[begin:end], out=target)
        for part, inverse, target in self.right:
            torch.mm(part, inverse, out=target)
        if not self.is_plain:
            self.result.copy_(self.flat.view(self.result.shape))
        return self.result
