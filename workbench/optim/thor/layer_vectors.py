"""THOR's numbers per layer and per factor, and the way from one to the other.

Two formats, of one dtype on the device of the factors:

* *over layers*, shape ``[layers]``: one number for each layer that has Kronecker factors;
* *over factors*, shape ``[factors]``: A before G of the first layer, of the second, and so on; an embedding has G only.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from workbench.core import devices

if TYPE_CHECKING:
    from workbench.optim.thor.collection import FactoredLayer


class LayerVectors:
    """Numbers the factors of some layers, in ``layer.a`` and ``layer.g``, and converts vectors between both formats.

    ``sizes`` are the rows of each factor; ``inputs`` and ``outputs``, over layers, those of A and G.
    """

    def __init__(self, layers: Sequence[FactoredLayer], device: torch.device, dtype: torch.dtype) -> None:
        self._device, self._dtype = device, dtype
        self.sizes: list[int] = []
        layer_of: list[int] = []
        place: list[int] = []  # in the vectors over layers of A and of G, one behind the other
        for i, layer in enumerate(layers):
            if layer.kind != "embedding":
                layer.a = len(self.sizes)
                self.sizes.append(layer.inputs)
                place.append(i)
            layer.g = len(self.sizes)
            self.sizes.append(layer.outputs)
            place.append(len(layers) + i)
            layer_of += [i] * len(layer.numbers)
        self._layer_of, self._place = devices.tensor_on(device, layer_of), devices.tensor_on(device, place)
        self._a = torch.tensor([layer.a for layer in layers], device=device)
        self._g = torch.tensor([layer.g for layer in layers], device=device)
        self._has_a = self._a >= 0
        widths = [float(layer.inputs) for layer in layers], [float(layer.outputs) for layer in layers]
        self.inputs, self.outputs = self.over_layers(*widths)

    def over_layers(self, *rows: list[float]) -> Tensor:
        """Return vectors over layers as the rows of one tensor; they travel together, and the host does not wait."""
        return devices.tensor_on(self._device, rows, self._dtype)

    def of_factors(self, a: Tensor, g: Tensor) -> Tensor:
        """Return one vector over factors from two over layers, one for A and one for G."""
        return torch.cat((a, g)).index_select(0, self._place)

    def repeated(self, layers: Tensor) -> Tensor:
        """Return a vector over factors that has for each the number of its layer."""
        return layers.index_select(0, self._layer_of)

    def of_layers(self, factors: Tensor) -> tuple[Tensor, Tensor]:
        """Return two vectors over layers from one over factors: of A, 1 where a layer has none, and of G."""
        return torch.where(self._has_a, factors[self._a], torch.ones_like(self.inputs)), factors[self._g]
