"""The arithmetic of THOR: what is approximated, the blocks of a factor, and what a convolution's kernel sees.

The curvature of a layer with weight ``W`` (shape ``[out, in]``; a convolution's kernel is flattened to
``[out, channels * height * width]``) is taken as the Kronecker product of two covariances: ``A`` (``[in, in]``, of what
goes in) and ``G`` (``[out, out]``, of the gradient of what comes out). The natural gradient is then ``G^-1 dW A^-1``.
THOR keeps of A and G only the diagonal blocks of 128, so that a wide layer costs no more per weight than a narrow one.

Reference:
    Martens and Grosse, "Optimizing Neural Networks with Kronecker-factored Approximate Curvature", ICML 2015,
    arXiv:1503.05671, sections 3 and 6.3 (factored damping); Grosse and Martens, "A Kronecker-factored approximate
    Fisher matrix for convolution layers", ICML 2016, arXiv:1602.01407; Chen et al., "THOR, Trace-based Hardware-driven
    Layer-Oriented Natural Gradient Descent Computation", AAAI 2021 (blocks, stale inverses, trace rule).
"""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor
from torch.nn import functional as F

SHORT_RUN = 16  # floats; below, a copy row by row is mostly overhead


def block_ranges(size: int, block_size: int) -> list[tuple[int, int]]:
    """Cut ``range(size)`` into pairs (begin, end); the last block may be smaller.

    Example:
        >>> block_ranges(300, 128)
        [(0, 128), (128, 256), (256, 300)]
    """
    return [(begin, min(begin + block_size, size)) for begin in range(0, size, block_size)]


def root_inverse(root: Tensor) -> Tensor:
    """Return the inverses of lower triangular matrices, shape ``[..., n, n]``."""
    unit = torch.eye(root.shape[-1], dtype=root.dtype, device=root.device).expand_as(root)
    return cast("Tensor", torch.linalg.solve_triangular(root, unit, upper=False))


def same_padding(size: int, kernel: int, stride: int) -> tuple[int, int]:
    """Return how much SAME padding puts before and after an axis; the odd one goes to the end.

    Example:
        >>> same_padding(6, 3, 1), same_padding(6, 3, 2)
        ((1, 1), (0, 1))
    """
    positions = -(-size // stride)
    total = max(0, (positions - 1) * stride + kernel - size)
    return total // 2, total - total // 2


def patches(
    images: Tensor,
    kernel: tuple[int, int],
    stride: tuple[int, int] = (1, 1),
    dilation: tuple[int, int] = (1, 1),
    padding: tuple[int, int, int, int] = (0, 0, 0, 0),
    mode: str = "constant",
    every: int = 1,
) -> Tensor:
    """Return what a convolution's kernel sees at each position (im2col), as a view of the padded images.

    From images ``[n, channels, height, width]`` to ``[channels, kernel height, kernel width, n, positions down,
    positions across]``; pairs are (vertical, horizontal), ``padding`` and ``mode`` those of ``F.pad``. Only every so
    many positions are kept along both axes. Where they are few, images lie innermost in memory, in long runs.
    """
    if any(padding):
        images = F.pad(images, padding, mode=mode)
    if images.shape[3] < SHORT_RUN:  # measured: 2 to 10 times faster for maps of 2 to 8, slower from 32 on
        images = images.permute(1, 2, 3, 0).contiguous().permute(3, 0, 1, 2)
    n, channels, height, width = images.shape
    down = (height - dilation[0] * (kernel[0] - 1) - 1) // stride[0] + 1
    across = (width - dilation[1] * (kernel[1] - 1) - 1) // stride[1] + 1
    begin = sampling_offset(every, down), sampling_offset(every, across)
    down, across = -(-(down - begin[0]) // every), -(-(across - begin[1]) // every)
    images = images[:, :, begin[0] * stride[0] :, begin[1] * stride[1] :]
    of_image, of_channel, of_row, of_column = images.stride()
    in_kernel = of_row * dilation[0], of_column * dilation[1]
    between = of_row * stride[0] * every, of_column * stride[1] * every
    return images.as_strided((channels, *kernel, n, down, across), (of_channel, *in_kernel, of_image, *between))


def sampling_offset(every: int, positions: int) -> int:
    """Return the first position kept when only every so many are: the middle of the first lot, if there is one."""
    return min((every - 1) // 2, positions - 1)
