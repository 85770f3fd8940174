"""Which parameters of a network are hidden matrices.

Muon moves matrices that map one hidden representation to the next. Tables of embeddings look like matrices but are
lists of rows, and the layer that makes the outputs gains nothing (Jordan 2024), so both are left to AdamW, with biases,
scales, and kernels that are vectors.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.conv import _ConvNd

__all__ = ["is_matrix", "parameter_groups"]

_NORMALIZATIONS = (nn.LayerNorm, nn.RMSNorm, nn.GroupNorm, _NormBase)


def is_matrix(parameter: Tensor) -> bool:
    """Return whether a parameter, its trailing axes taken together, has at least two rows and columns.

    A kernel ``[out, in, height, width]`` counts as ``[out, in * height * width]``.
    """
    return parameter.dim() >= 2 and parameter.shape[0] > 1 and parameter[0].numel() > 1


def parameter_groups(network: nn.Module) -> list[dict[str, Any]]:
    """Split a network's parameters into hidden matrices and the rest.

    Hidden matrices are weights of linear, convolutional, recurrent and attention layers, and of modules of the user's
    own whose parameter is called "weight..."; not those of normalizations, of modules whose class is named after
    embeddings, of convolutions in groups, of the last linear or convolutional layer in the order of registration, and
    nothing that is tied to one of these. Parameters that do not require gradients are taken along: they may later.

    Returns:
        At most two groups of named parameters with the option ``matrices``, true in the first; empty ones are left out.
    """
    layers = [module for module in network.modules() if isinstance(module, nn.Linear | _ConvNd)]
    outputs = set(layers[-1:])
    hidden: set[nn.Parameter] = set()
    others: set[nn.Parameter] = set()
    for module in network.modules():
        fits = module not in outputs and not isinstance(module, _NORMALIZATIONS) and not _is_embedding(module)
        for name, parameter in module.named_parameters(recurse=False):
            is_hidden = fits and "weight" in name and is_matrix(parameter) and getattr(module, "groups", 1) == 1
            (hidden if is_hidden else others).add(parameter)
    named = list(network.named_parameters())
    matrices = [(name, one) for name, one in named if one in hidden and one not in others]
    rest = [(name, one) for name, one in named if one in others]
    split = ({"params": matrices, "matrices": True}, {"params": rest, "matrices": False})
    return [group for group in split if group["params"]]


def _is_embedding(module: nn.Module) -> bool:
    return "embedding" in type(module).__name__.lower()
