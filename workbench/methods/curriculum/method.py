"""Inputs that grow: images of lower resolution, or token sequences cut behind their first tokens.

For the share ``until`` of its forward passes a run goes through ``stages`` sizes below the full one: stage i (from 0)
has the relative size ``start + (1 - start) * i / stages``, each for equally many passes. With ``until`` = 1 and one
stage a whole run is at one size: so the time of a stage is measured.

A *batch* is a tensor, or tuples, lists, named tuples and mappings of them. Images are its 4-D floating-point tensors
``[samples, channels, height, width]``; every other tensor of three or more axes that ends in the height and width of
the first of them is a map that belongs to it, such as a segmentation's labels. Tokens are its 2-D tensors of integers
or truth values ``[samples, length]`` of the length of the first of them, unless something else of two or more axes
comes before: integers beside sound or features are masks, transcripts or categories.

Tan and Le, "EfficientNetV2", ICML 2021, arXiv:2104.00298, section 4 (images); Li et al., "The Stability-Efficiency
Dilemma: Investigating Sequence Length Warmup for Training GPT Models", NeurIPS 2022, arXiv:2108.06084 (tokens).
"""

from __future__ import annotations

import contextlib
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from workbench.config import BoostConfig
from workbench.core.batch import mapped, tensors_of
from workbench.core.evaluation_mode import evaluation_mode
from workbench.core.warning import warn
from workbench.methods.curriculum.section import CurriculumSection
from workbench.methods.protocol import FirstBatch, Method

Kind = Literal["resolution", "sequence"]
Call = Callable[[nn.Module, Any], Any]  # computes the loss of a batch, as ``call(network, batch)``
_MANY = 10**6  # passes of a run in which every stage has some
PROBED = (0.5, 0.75)  # relative sizes that a network is tried with where no configuration says which are wanted


def size_at(full: int, relative: float) -> int:
    """Return the whole size nearest to a share of the full one that networks are likely to take.

    Networks halve their inputs several times. So a size is a multiple of the largest power of two that divides the full
    size and is no more than a quarter of it: of 8 for 32, of 32 for 224.
    """
    if relative >= 1:
        return full
    step = 1
    while full % (2 * step) == 0 and 8 * step <= full:
        step *= 2
    return min(max(int(full * relative / step + 0.5), 1) * step, full)


def stage_of(pass_index: int, passes: int, until: float, stages: int) -> int:
    """Return the stage of a forward pass, both counted from 0; ``stages`` is that of full size."""
    return bisect_right(_borders(passes, until, stages), pass_index)


def stages_of(section: CurriculumSection, passes: int) -> list[tuple[float, float]]:
    """Return the relative size of each stage that has a pass, and its share of the passes; the shares add up to 1."""
    if section.kind == "none":
        return [(1.0, 1.0)]
    borders = [0, *_borders(passes, section.until, section.stages), passes]
    shares = [(end - begin) / passes for begin, end in pairwise(borders)]
    sizes = [_relative(stage, section.start, section.stages) for stage in range(section.stages + 1)]
    return [(size, share) for size, share in zip(sizes, shares, strict=True) if share > 0]


def growing(
    batches: Iterable[Any], passes: int, kind: Kind, *, start: float = 0.5, until: float = 0.5, stages: int = 2
) -> Iterator[Any]:
    """Yield batches whose inputs grow to their full size over so many passes; warn once where none can be smaller."""
    warned = False
    for index, batch in enumerate(batches):
        relative = _relative(stage_of(min(index, passes - 1), passes, until, stages), start, stages)
        smaller = _at_size(batch, relative, kind)
        if smaller is None and not warned:
            warned = True
            warn(f"the curriculum had no effect: {_nothing_to_shrink(kind)}")
        yield batch if smaller is None else smaller


def resized_images(batch: Any, relative: float) -> Any:
    """Return a batch with its images, and the maps that belong to them, at another height and width; None without any.

    Floating-point values are averaged (bilinear with antialiasing), of others that at the new pixel's middle is taken.
    """
    image = _image_in(batch)
    if image is None:
        return None
    full = (image.shape[2], image.shape[3])
    wanted = (size_at(full[0], relative), size_at(full[1], relative))
    return mapped(batch, lambda one: _resized(one, wanted) if one.ndim > 2 and tuple(one.shape[-2:]) == full else one)


def shortened(batch: Any, relative: float) -> Any:
    """Return a batch with the first tokens of each sequence, targets included; None where it holds no tokens."""
    tokens = _tokens_in(batch)
    if tokens is None:
        return None
    full = tokens.shape[1]
    kept = size_at(full, relative)
    return mapped(batch, lambda one: one[:, :kept].contiguous() if _are_tokens(one) and one.shape[1] == full else one)


def accepted_sizes(call: Call, network: nn.Module, batch: Any, kind: Kind, sizes: Sequence[float]) -> list[float]:
    """Return the relative sizes of a batch's inputs, given at full size, that a network takes, found by trying them.

    In evaluation mode and without gradients; weights, statistics, modes and random generators are as before afterwards.
    """
    devices = {value.device for value in network.parameters()}
    accepted = []
    with evaluation_mode([network], *devices):
        for relative in sizes:
            smaller = _at_size(batch, relative, kind)
            if smaller is not None:
                with contextlib.suppress(Exception):  # any module of the user's may refuse a size in its own way
                    call(network, smaller)
                    accepted.append(relative)
    return accepted


def why_not_smaller(call: Call, network: nn.Module, batch: Any, kind: Kind, sizes: Sequence[float] = PROBED) -> str:
    """Return why a network cannot be trained with inputs of these sizes, found as by `accepted_sizes`; else empty.

    Two samples are tried, and the batch where these alone have no loss: a large network may compute on a CPU here.
    """
    smaller = {relative: _at_size(batch, relative, kind) for relative in sizes}
    if None in smaller.values():
        return _nothing_to_shrink(kind)
    accepted = accepted_sizes(call, network, _two_samples(batch, kind), kind, [1.0, *sizes])
    if 1.0 not in accepted:
        accepted = accepted_sizes(call, network, batch, kind, [1.0, *sizes])
    if 1.0 not in accepted:
        return "the loss of a batch cannot be computed in evaluation mode, so that other sizes cannot be tried"
    refused = [relative for relative in sizes if relative not in accepted]
    if not refused:
        return ""
    taken = ", ".join(_shape(smaller.get(relative, batch), kind) for relative in sorted(accepted))
    return f"the loss can be computed with inputs of {taken}, but not of {_shape(smaller[refused[0]], kind)}"


class CurriculumMethod(Method):
    """Lets the inputs grow; whether the network takes them is known beforehand."""

    needs_shapes = False

    @staticmethod
    def reasons(
        network: nn.Module, criterion: Any, example_inputs: Any, config: BoostConfig | None
    ) -> Mapping[str, str]:
        """Return why inputs cannot be smaller, of the kind and at the sizes that are asked for."""
        wanted: dict[Kind, Sequence[float]] = {"resolution": PROBED, "sequence": PROBED}
        if config is not None:
            section = config.part(CurriculumSection)
            sizes = [size for size, _ in stages_of(section, _MANY) if size < 1]
            wanted = {} if section.kind == "none" else {section.kind: sizes}
        if not wanted or not isinstance(example_inputs, FirstBatch):
            return {}
        loss, batch = example_inputs.loss, example_inputs.first()
        return {f"no_{kind}": why_not_smaller(loss, network, batch, kind, sizes) for kind, sizes in wanted.items()}

    def batches(self, batches: Iterable[Any], passes: int) -> Iterable[Any]:
        """Make early batches smaller."""
        section = self.config.part(CurriculumSection)
        if section.kind == "none":
            return batches
        return growing(batches, passes, section.kind, start=section.start, until=section.until, stages=section.stages)


def _borders(passes: int, until: float, stages: int) -> list[int]:
    """Return the pass at which each stage ends."""
    return [round(until * passes * (stage + 1) / stages) for stage in range(stages)]


def _relative(stage: int, start: float, stages: int) -> float:
    return 1.0 if stage >= stages else start + (1.0 - start) * stage / stages


def _resized(image: Tensor, wanted: tuple[int, int]) -> Tensor:
    if not image.is_floating_point():
        rows, columns = (
            ((torch.arange(new, device=image.device) + 0.5) * old / new).long()
            for new, old in zip(wanted, image.shape[-2:], strict=True)
        )
        return image[..., rows[:, None], columns]
    planes = image if image.ndim == 4 else image.reshape(-1, 1, *image.shape[-2:])
    wide = planes.float() if image.dtype in (torch.float16, torch.bfloat16) else planes
    small = F.interpolate(wide, size=wanted, mode="bilinear", antialias=True).to(image.dtype)
    return small if image.ndim == 4 else small.reshape(*image.shape[:-2], *wanted)


def _image_in(batch: Any) -> Tensor | None:
    return next((one for one in tensors_of(batch) if one.ndim == 4 and one.is_floating_point()), None)


def _tokens_in(batch: Any) -> Tensor | None:
    first = next((one for one in tensors_of(batch) if one.ndim > 1), None)
    return first if first is not None and _are_tokens(first) else None


def _are_tokens(tensor: Tensor) -> bool:
    return tensor.ndim == 2 and not tensor.is_floating_point() and not tensor.is_complex()


def _nothing_to_shrink(kind: Kind) -> str:
    if kind == "resolution":
        return "the batches hold no images (4-D floating-point tensors)"
    return "the batches hold no token sequences (2-D integer tensors as first input)"


def _two_samples(batch: Any, kind: Kind) -> Any:
    n_samples = len(_inputs_in(batch, kind))
    return mapped(batch, lambda one: one[:2] if one.ndim and len(one) == n_samples else one)


def _inputs_in(batch: Any, kind: Kind) -> Tensor:
    found = _image_in(batch) if kind == "resolution" else _tokens_in(batch)
    assert found is not None, "asked of batches that could be shrunk"
    return found


def _shape(batch: Any, kind: Kind) -> str:
    found = _inputs_in(batch, kind)
    return f"{found.shape[2]} x {found.shape[3]}" if kind == "resolution" else f"length {found.shape[1]}"


def _at_size(batch: Any, relative: float, kind: Kind) -> Any:
    """Return a batch with its inputs at a relative size; None where it is to be smaller and holds no such inputs."""
    if relative == 1:
        return batch
    return resized_images(batch, relative) if kind == "resolution" else shortened(batch, relative)
