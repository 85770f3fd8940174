"""Adam with moments kept in bfloat16, rounded up or down at random so that they are right on average.

A second moment moves by a thousandth of its value per step (beta2 = 0.999), a bfloat16 knows steps of 1/128 to 1/256:
rounding to the nearest would leave it where it is for good. Rounding up with the probability of the part cut off has
the right expectation: Gupta et al., "Deep Learning with Limited Numerical Precision", ICML 2015, arXiv:1502.02551,
section 3. To the bits of a float32 a number of 16 random bits is added and the lower 16 bits are cut off.

Random numbers for every element and step would cost more than Adam. A table holds each 16-bit number once, shuffled;
each piece of memory reads on from a random place in it. The place is uniform and so, exactly, is what an element gets;
elements of one piece share a draw, successive steps do not.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from workbench.core import kernels
from workbench.optim.adam_offload.host_adam import adam_step_, kernel_settings

__all__ = ["RoundedAdam", "round_stochastically_"]

_VALUES = 2**16  # as many as the bits cut off can have; also the largest piece, so that one table serves it
_UPPER_BITS = -(2**16)  # mask


def round_stochastically_(values: Tensor, noise: Tensor, target: Tensor) -> None:
    """Write float32 values to a bfloat16 tensor, each rounded to one of its two neighbours at random.

    Args:
        values: Float32, contiguous, 1-D; changed.
        noise: Int32, uniform in [0, 65536), same shape.
        target: Bfloat16, same shape.
    """
    bits = values.view(torch.int32)
    bits.add_(noise).bitwise_and_(_UPPER_BITS)
    target.copy_(values)  # exact now


class RoundedAdam:
    """Steps of Adam on bfloat16 moments, piece by piece in the cache.

    Args:
        seed: Seed of the rounding.
    """

    def __init__(self, seed: int = 0) -> None:
        self.generator = torch.Generator().manual_seed(seed)
        shuffled = torch.randperm(_VALUES, generator=torch.Generator().manual_seed(0), device="cpu").to(torch.int32)
        self._table = torch.cat([shuffled, shuffled])  # read on past the end
        self._first = torch.empty(_VALUES, device="cpu")
        self._second = torch.empty(_VALUES, device="cpu")

    def step_(
        self,
        weights: Sequence[Tensor],
        gradients: Sequence[Tensor],
        first: Sequence[Tensor],
        second: Sequence[Tensor],
        *,
        rate: float,
        betas: tuple[float, float],
        eps: float,
        weight_decay: float = 0.0,
        loss_scale: float = 1.0,
        nesterov: bool = False,
        before: kernels.Lasting | None = None,
    ) -> kernels.Lasting | None:
        """Update weights and moments in place, see :func:`~workbench.optim.adam_offload.host_adam.adam_step_`.

        Args:
            weights: Float32, dense.
            gradients: Laid out as the weights.
            first: Bfloat16, laid out as the weights.
            second: Likewise.
            rate: See there, as all others.
            betas: See there.
            eps: See there.
            weight_decay: See there.
            loss_scale: See there.
            nesterov: See there.
            before: See there.

        Returns:
            See there.
        """
        if loss_scale == 1.0 and not nesterov:
            lists = kernels.adam_lists(weights, gradients, first, second, torch.bfloat16, before=before)
            if lists is not None:
                pieces = sum(-(-length // _VALUES) for length in lists.weights.lengths)
                places = torch.randint(_VALUES, (2 * pieces,), generator=self.generator, device="cpu")
                settings = kernel_settings(rate, betas, eps, weight_decay)
                kernels.adam_rounded_(lists, settings, table=self._table, places=places, piece=_VALUES)
                return lists.lasting
        for weight, gradient, m, v in zip(weights, gradients, first, second, strict=True):
            flat = [_in_memory_order(tensor) for tensor in (weight, gradient, m, v)]
            cut = (torch.split(tensor, _VALUES) for tensor in flat)
            for w_piece, g_piece, m_piece, v_piece in zip(*cut, strict=True):
                n = w_piece.numel()
                one, two = self._first[:n], self._second[:n]
                one.copy_(m_piece)
                two.copy_(v_piece)
                adam_step_(
                    [w_piece],
                    [g_piece],
                    [one],
                    [two],
                    rate=rate,
                    betas=betas,
                    eps=eps,
                    weight_decay=weight_decay,
                    loss_scale=loss_scale,
                    nesterov=nesterov,
                )
                for values, target in ((one, m_piece), (two, v_piece)):
                    place = int(torch.randint(_VALUES, (), generator=self.generator, device="cpu"))
                    round_stochastically_(values, self._table[place : place + n], target)
        return None


def _in_memory_order(tensor: Tensor) -> Tensor:
    return tensor.detach().as_strided((tensor.numel(),), (1,))
