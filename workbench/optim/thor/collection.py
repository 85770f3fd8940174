"""Which layers THOR preconditions, and what it counts of their inputs and output gradients.

Two conventions. ``"default"``: covariances in the sense of K-FAC. With rows x of a layer's input and dy of its output
gradient (the loss being a mean over N terms), ``A = mean(x x^T)`` and ``G = N sum(dy dy^T)``, so that ``A (x) G`` is
the empirical Fisher matrix up to the independence that K-FAC assumes. A term of the loss is a row of Linear and
Embedding, an image of Conv2d; a loss over fewer terms sees its layers damped more.

``"mindspore"``: what MindSpore 2.7 forms (``mindspore/python/mindspore/nn/layer/thor_layer.py``, observed from
outside): A of a dense layer divided by its width instead of the rows, means over the batch before the products of a
convolution, SAME patches whatever its padding.

Formats. A factor is the sum of ``rows @ rows.T``. Whatever the layer, rows of A are ``[inputs, samples]`` and those of
G ``[outputs, samples]``; a sample is

* Linear: one of the leading positions of ``[..., inputs]``;
* Conv2d: what the kernel sees at one position of one image, so ``inputs = channels * kernel height * kernel width``;
* Embedding: a token; its A is diagonal, so only ``counts``, shape ``[inputs]``, are kept.

Layers are seen through *taps*: hooks that are on a module only for the steps that refresh its factors. The forward hook
hangs a hook on the output tensor, which the backward pass calls with the gradient. The input is the one that autograd
keeps for the weight's gradient anyway, and goes with the graph.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.hooks import RemovableHandle

from workbench.core.torch_internals import remove_forward_hooks
from workbench.core.wrapped_model import plain_name
from workbench.optim.thor.matrices import FactorBlocks

Convention = Literal["default", "mindspore"]
LayerKind = Literal["linear", "conv", "embedding"]

_SHORT_RUN = 16  # floats; below, a copy row by row is mostly overhead


class Tally(NamedTuple):
    """What was added to a layer's factors since its last refresh; the host knows it without asking the device."""

    calls: int = 0  # how often the layer took part in a backward pass
    a_rows: int = 0  # what the sum of A is divided by
    g_rows: int = 0  # rows of output gradient there were
    g_used: int = 0  # rows of output gradient in the sum
    terms: int = 0  # of the loss that they belong to


class FactoredLayer:
    """One layer with its factors."""

    def __init__(self, name: str, module: nn.Module, kind: LayerKind) -> None:
        self.name = name
        self.module = module
        self.kind = kind
        self.weight = weight = cast("nn.Parameter", module.weight)  # that find_layers met
        #: Shape of the weight as a matrix: output and input size; an embedding's output is its features.
        self.outputs = weight.shape[1] if kind == "embedding" else weight.shape[0]
        self.inputs = weight.shape[0] if kind == "embedding" else weight[0].numel()
        self.a = self.g = -1  # numbers of its factors; an embedding has no block for A
        self.counts: Tensor | None = None  # an embedding's A: a diagonal of token counts
        self.row_scale: Tensor | None = None  # ... and the inverse of it that is in force
        self.tally = Tally()

    @property
    def numbers(self) -> list[int]:
        """Numbers of its factors, A before G, as far as they have blocks."""
        return [factor for factor in (self.a, self.g) if factor >= 0]

    def clear(self, blocks: FactorBlocks) -> None:
        """Start counting from 0."""
        self.tally = Tally()
        for factor in self.numbers:
            blocks.clear(factor)
        if self.counts is not None:
            self.counts.zero_()

    def collect(
        self, inputs: Tensor, gradient: Tensor, blocks: FactorBlocks, convention: Convention, max_rows: int | None
    ) -> None:
        """Add one backward pass through the layer, of at most ``max_rows`` rows, evenly spread; None takes all."""
        dtype = next(iter(blocks.factors.values())).dtype
        gradient = gradient.to(dtype)
        if self.kind == "embedding":
            counted = self._collect_embedding(inputs, gradient, blocks)
        elif self.kind == "linear":
            most = max_rows if convention == "default" else None
            counted = self._collect_linear(inputs.to(dtype), gradient, blocks, most)
            if convention == "mindspore":  # as upstream: a dense layer's A is divided by its width
                counted = counted._replace(a_rows=self.inputs)
        else:
            if inputs.dim() == 3:
                inputs, gradient = inputs[None], gradient[None]
            if convention == "mindspore":
                counted = self._collect_mean_image(inputs.to(dtype), gradient, blocks)
            else:
                counted = self._collect_patches(inputs.to(dtype), gradient, blocks, max_rows)
        self.tally = Tally(*(before + now for before, now in zip(self.tally, counted, strict=True)))

    def _collect_linear(self, inputs: Tensor, gradient: Tensor, blocks: FactorBlocks, max_rows: int | None) -> Tally:
        rows, leaving = inputs.reshape(-1, self.inputs), gradient.reshape(-1, self.outputs)
        n = len(rows)
        if max_rows is not None and n > max_rows:
            every = -(-n // max_rows)
            begin = sampling_offset(every, n)
            rows, leaving = rows[begin::every], leaving[begin::every]
        blocks.add(self.a, rows.T)
        blocks.add(self.g, leaving.T)
        return Tally(1, len(rows), n, len(leaving), n)

    def _collect_patches(self, images: Tensor, gradient: Tensor, blocks: FactorBlocks, max_rows: int | None) -> Tally:
        module: Any = self.module  # a Conv2d, whose pairs torch declares as of any length
        n, _, down, across = gradient.shape
        every = 1 if max_rows is None else spacing(n, down, across, max_rows)
        mode = "constant" if module.padding_mode == "zeros" else module.padding_mode
        # torch keeps the amounts ready for F.pad, also those of padding="same".
        padding = tuple(module._reversed_padding_repeated_twice)
        seen = patches(images, module.kernel_size, module.stride, module.dilation, padding, mode, every)
        leaving = gradient[:, :, sampling_offset(every, down) :: every, sampling_offset(every, across) :: every]
        # The order of the columns does not matter to their products: the one that lies in memory is taken.
        rows = (seen.permute(0, 1, 2, 4, 5, 3) if seen.stride(3) == 1 else seen).reshape(self.inputs, -1)
        blocks.add(self.a, rows)
        blocks.add(self.g, leaving.transpose(0, 1).reshape(self.outputs, -1))
        return Tally(1, rows.shape[1], n * down * across, rows.shape[1], n)

    def _collect_mean_image(self, images: Tensor, gradient: Tensor, blocks: FactorBlocks) -> Tally:
        kernel, stride = cast("Any", self.module).kernel_size, cast("Any", self.module).stride
        # As upstream: means over the batch come before the products, and the padding is SAME whatever the layer's is.
        image = images.mean(0, keepdim=True)
        top, bottom = same_padding(image.shape[2], kernel[0], stride[0])
        left, right = same_padding(image.shape[3], kernel[1], stride[1])
        rows = patches(image, kernel, stride, padding=(left, right, top, bottom)).reshape(self.inputs, -1)
        leaving = gradient.mean(0).flatten(1)
        blocks.add(self.a, rows)
        blocks.add(self.g, leaving)
        return Tally(1, rows.shape[1], leaving.shape[1], leaving.shape[1], len(images))

    def _collect_embedding(self, tokens: Tensor, gradient: Tensor, blocks: FactorBlocks) -> Tally:
        assert self.counts is not None
        flat = tokens.reshape(-1)
        n = len(flat)
        self.counts.index_add_(0, flat, torch.ones_like(flat, dtype=self.counts.dtype))
        blocks.add(self.g, gradient.reshape(-1, self.outputs).T)
        return Tally(1, n, n, n, n)

    def coefficients(self, convention: Convention, batch_size: int) -> tuple[float, float]:
        """Return what the sums of A and G are multiplied by; 0 when nothing was collected."""
        tally = self.tally
        if tally.calls == 0:
            return 0.0, 0.0
        if convention == "default":
            return 1 / tally.a_rows, tally.terms * tally.g_rows / tally.g_used
        a = 1 / batch_size if self.kind == "embedding" else 1 / tally.a_rows
        return a, batch_size**2 / tally.g_rows

    def norms(self, convention: Convention) -> tuple[float, float]:
        """Return the reference's a_norm and g_norm of a convolution, the positions in its factors; (1, 1) otherwise."""
        if convention == "default" or self.kind != "conv" or self.tally.calls == 0:
            return 1.0, 1.0
        return self.tally.a_rows / self.tally.calls, self.tally.g_rows / self.tally.calls


class Tap:
    """Hands a module's inputs and output gradients, both detached, to a receiver in the backward pass.

    Its copies do nothing: a copied module must not report to the original's optimizer, and a copied optimizer makes its
    own taps.
    """

    def __init__(self, module: nn.Module, receive: Callable[[Tensor, Tensor], None]) -> None:
        self._receive: Callable[[Tensor, Tensor], None] | None = receive
        # What copying or unpickling a module left behind goes.
        remove_forward_hooks(module, lambda hook: isinstance(hook, Tap) and hook._receive is None)
        self._handle: RemovableHandle | None = module.register_forward_hook(self, with_kwargs=True)

    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], output: Any) -> None:
        """Hang a hook on the output of a forward pass that will train the module's weight."""
        if self._receive is None or not torch.is_grad_enabled():
            return
        if not isinstance(output, Tensor) or not output.requires_grad or not module.weight.requires_grad:
            return
        inputs = (args[0] if args else kwargs["input"]).detach()

        def arrive(gradient: Tensor) -> None:
            if self._receive is not None:  # it may have been taken off in between
                with torch.no_grad(), torch.autocast(gradient.device.type, enabled=False):
                    self._receive(inputs, gradient.detach())

        output.register_hook(arrive)  # type: ignore[no-untyped-call]  # torch has no types there

    def remove(self) -> None:
        """Remove the tap."""
        if self._handle is not None:
            self._handle.remove()
        self._receive = self._handle = None

    def __getstate__(self) -> dict[str, Any]:
        return {"_receive": None, "_handle": None}


@dataclass(frozen=True, slots=True)
class FirstOrder:
    """A parameter (its dotted name) whose gradient is used as it is, and why, in a few words."""

    name: str
    reason: str


def find_layers(
    network: nn.Module, trained: Collection[nn.Parameter]
) -> tuple[list[FactoredLayer], list[nn.Parameter], list[FirstOrder]]:
    """Sort the trained parameters of a network by how they are treated, in its order.

    They are weights of layers with Kronecker factors, parameters of LayerNorms, or used as they are for some reason.
    """
    wanted = {id(p) for p in trained}
    uses = Counter(id(p) for module in network.modules() for p in module.parameters(recurse=False))
    layers: list[FactoredLayer] = []
    normalizations: list[nn.Parameter] = []
    first_order: list[FirstOrder] = []
    seen: set[int] = set()
    inside_attention = {
        id(child) for m in network.modules() if isinstance(m, nn.MultiheadAttention) for child in m.modules()
    }
    for path, module in network.named_modules():
        for key, parameter in module.named_parameters(recurse=False):
            if id(parameter) in seen or id(parameter) not in wanted:
                continue
            seen.add(id(parameter))
            name = plain_name(f"{path}.{key}" if path else key)
            if type(module).forward is nn.LayerNorm.forward:
                normalizations.append(parameter)
                continue
            reason = _why_first_order(module, key, parameter, uses, id(module) in inside_attention)
            if reason:
                first_order.append(FirstOrder(name, reason))
            else:
                layers.append(FactoredLayer(plain_name(path), module, _kind_of(module)))
    return layers, normalizations, first_order


def _why_first_order(
    module: nn.Module, key: str, parameter: nn.Parameter, uses: dict[int, int], in_attention: bool
) -> str:
    """Return why a parameter has no factors; empty when it has."""
    if key == "bias":
        return "bias"
    if type(module).forward not in (nn.Linear.forward, nn.Conv2d.forward, nn.Embedding.forward) or key != "weight":
        return f"parameter of a {type(module).__name__}"
    if parameter.is_complex():
        return "complex weight"
    if "forward" in vars(module):
        return "its module's forward was replaced"
    if in_attention:
        return "MultiheadAttention uses it without calling its layer"
    if uses[id(parameter)] > 1:
        return "shared by several layers"
    if isinstance(module, nn.Conv2d) and module.groups > 1:
        return "grouped convolution"
    if isinstance(module, nn.Embedding) and (module.max_norm is not None or module.scale_grad_by_freq):
        return "embedding with max_norm or scale_grad_by_freq"
    return ""


def _kind_of(module: nn.Module) -> LayerKind:
    if isinstance(module, nn.Conv2d):
        return "conv"
    return "embedding" if isinstance(module, nn.Embedding) else "linear"


# What a convolution's kernel sees


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
    if images.shape[3] < _SHORT_RUN:  # measured: 2 to 10 times faster for maps of 2 to 8, slower from 32 on
        images = images.permute(1, 2, 3, 0).contiguous().permute(3, 0, 1, 2)
    n, channels, height, width = images.shape
    down = (height - dilation[0] * (kernel[0] - 1) - 1) // stride[0] + 1
    across = (width - dilation[1] * (kernel[1] - 1) - 1) // stride[1] + 1
    begin = sampling_offset(every, down), sampling_offset(every, across)
    down, across = _kept(down, every), _kept(across, every)
    images = images[:, :, begin[0] * stride[0] :, begin[1] * stride[1] :]
    of_image, of_channel, of_row, of_column = images.stride()
    in_kernel = of_row * dilation[0], of_column * dilation[1]
    between = of_row * stride[0] * every, of_column * stride[1] * every
    return images.as_strided((channels, *kernel, n, down, across), (of_channel, *in_kernel, of_image, *between))


def sampling_offset(every: int, positions: int) -> int:
    """Return the first position kept when only every so many are: the middle of the first lot, if there is one."""
    return min((every - 1) // 2, positions - 1)


def spacing(n: int, down: int, across: int, max_rows: int) -> int:
    """Return the smallest spacing that leaves no more than ``max_rows`` positions of n images, if there is one."""
    every = 1
    while every < max(down, across) and n * _kept(down, every) * _kept(across, every) > max_rows:
        every += 1
    return every


def _kept(positions: int, every: int) -> int:
    return -(-(positions - sampling_offset(every, positions)) // every)
