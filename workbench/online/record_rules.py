"""Which records of a batch can be trained on, judged from the batch alone.

A record is a row: entry ``i`` of every tensor of a batch. A record is poisoned when one of its numbers is NaN, infinite
or out of range; a whole batch is when it is not built like the first one.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor

from workbench.core.arguments import checked_count
from workbench.core.batch import entries_of, mapped

Path: TypeAlias = tuple[int | str, ...]

_LABELS: frozenset[Path] = frozenset({(1,), ("label",), ("labels",)})


@dataclass(frozen=True)
class RecordRules:
    """What is checked, and how much of it is too much.

    Args:
        label_range: Least and greatest label, both allowed; None for what the criterion takes: 0 to 1 under binary
            cross entropy, any finite one otherwise. The label is the second item of a pair, or what stands under
            ``label`` or ``labels``.
        id_range: Least and greatest whole number anywhere but in the label; None for any.
        max_abs: Greatest absolute value of a floating-point number other than the label; None for any finite one.
        min_rows: A batch with fewer good records is rejected as a whole, for example 2 for BatchNorm.
        limit_count: Rejected records that are too many; None for no such limit.
        limit_share: Share of rejected records among the last ``limit_window`` that is too much, in (0, 1].
        limit_window: Records over which the share is taken, at least 1; below that many nothing is too much.
        report_seconds: Least time between two events of the same reason, seconds.
    """

    label_range: tuple[float, float] | None = None
    id_range: tuple[int, int] | None = None
    max_abs: float | None = None
    min_rows: int = 1
    limit_count: int | None = None
    limit_share: float = 0.5
    limit_window: int = 1000
    report_seconds: float = 10.0

    def __post_init__(self) -> None:
        for name, span in (("label_range", self.label_range), ("id_range", self.id_range)):
            if span is not None and not span[0] <= span[1]:
                raise ValueError(f"`{name}` must be (least, greatest), got {span}")
        if self.max_abs is not None and not self.max_abs > 0:
            raise ValueError(f"`max_abs` must be greater than 0, got {self.max_abs}")
        checked_count("min_rows", self.min_rows)
        checked_count("limit_window", self.limit_window)
        if self.limit_count is not None:
            checked_count("limit_count", self.limit_count, 0)
        if not 0 < self.limit_share <= 1:
            raise ValueError(f"`limit_share` must lie in (0, 1], got {self.limit_share}")
        if not self.report_seconds >= 0:
            raise ValueError(f"`report_seconds` must be at least 0, got {self.report_seconds}")


@dataclass(frozen=True)
class BatchForm:
    """How the batches of a stream are built."""

    parts: tuple[tuple[Path, tuple[int, ...], torch.dtype], ...]  # place of each tensor, size of its records, its dtype
    by_rows: bool  # whether all tensors have one entry per record, so that records can be taken out one by one


@dataclass(frozen=True)
class Verdict:
    """What is wrong with a batch."""

    n_records: int
    whole: str = ""  # why none of it can be used; empty when some can
    bad: Tensor | None = None  # which records cannot, bool, shape ``[n_records]``, on the CPU; None when all can
    reasons: Mapping[str, int] | None = None  # number of records per reason; the first that applies counts


def _named_tensors(batch: Any, path: Path = ()) -> Iterator[tuple[Path, Tensor]]:
    """Yield the tensors of a batch with their places, which begin with path."""
    if isinstance(batch, Tensor):
        yield path, batch
        return
    for place, part in (entries_of(batch) or {}).items():
        # A mapping's key 1 is no second item, which would be the label.
        yield from _named_tensors(part, (*path, str(place) if isinstance(batch, Mapping) else place))


def select_rows(batch: Any, keep: Tensor) -> Any:
    """Return a batch of those of its records that ``keep``, bool ``[n_records]``, names; containers keep their kind."""
    return mapped(batch, lambda tensor: tensor[keep.to(tensor.device)])


def form_of(batch: Any) -> BatchForm | None:
    """Return how a batch is built; None when there is no tensor in it."""
    tensors = list(_named_tensors(batch))
    if not tensors:
        return None
    parts = tuple((path, tuple(tensor.shape[1:]), tensor.dtype) for path, tensor in tensors)
    lengths = {len(tensor) if tensor.ndim else -1 for _, tensor in tensors}
    return BatchForm(parts, by_rows=len(lengths) == 1 and -1 not in lengths)


def judge(batch: Any, form: BatchForm, rules: RecordRules) -> Verdict:
    """Return what is wrong with a batch of a stream whose batches have this form.

    The values of tensors that lie on an accelerator are not looked at: every look would wait for the device.
    """
    tensors = list(_named_tensors(batch))
    n_records = max((tensor.shape[0] for _, tensor in tensors if tensor.ndim), default=1)
    if unlike := _wrong_form(tensors, form):
        return Verdict(n_records, whole=unlike)
    if n_records == 0:
        return Verdict(0, whole="no record")
    bad = torch.zeros(n_records, dtype=torch.bool)
    reasons: dict[str, int] = {}
    for path, tensor in tensors:
        if tensor.device.type != "cpu":
            continue
        for reason, wrong in _faults(path, tensor, rules):
            if not wrong.any():
                continue
            if not form.by_rows:
                return Verdict(n_records, whole=reason)
            found = wrong.flatten(1).any(1) if wrong.ndim > 1 else wrong
            if n_new := int((found & ~bad).sum()):
                reasons[reason] = reasons.get(reason, 0) + n_new
            bad |= found
    if not reasons:
        return Verdict(n_records)
    if n_records - int(bad.sum()) < rules.min_rows:
        return Verdict(n_records, whole=max(reasons, key=lambda reason: reasons[reason]))
    return Verdict(n_records, bad=bad, reasons=reasons)


def _wrong_form(tensors: list[tuple[Path, Tensor]], form: BatchForm) -> str:
    if len(tensors) != len(form.parts):
        return "wrong structure"
    rows = -1
    for (known, size, dtype), (path, tensor) in zip(form.parts, tensors, strict=True):
        if path != known:
            return "wrong structure"
        shape = tensor.shape
        if shape[1:] != size or (form.by_rows and not shape):
            return "wrong shape"
        if tensor.dtype != dtype:
            return "wrong dtype"
        if form.by_rows and rows not in (-1, shape[0]):
            return "unequal numbers of rows"
        rows = shape[0] if shape else rows
    return ""


def _faults(path: Path, tensor: Tensor, rules: RecordRules) -> Iterator[tuple[str, Tensor]]:
    """Yield reasons with the entries they may concern, bool, of the tensor's shape."""
    is_label = path in _LABELS
    is_whole = not (tensor.is_floating_point() or tensor.is_complex() or tensor.dtype == torch.bool)
    span = rules.label_range if is_label else rules.id_range if is_whole else None
    if span is not None and tensor.numel():
        low, high = torch.aminmax(tensor)  # NaN if there is one anywhere
        if span[0] <= low.item() and high.item() <= span[1]:
            span = None
            if is_label:
                return
    if tensor.is_floating_point():
        # One sum per tensor settles the usual case; a sum may overflow where no entry does, hence the exact look.
        if not math.isfinite(tensor.sum().item()):
            yield "not finite", ~torch.isfinite(tensor)
        if rules.max_abs is not None and not is_label:
            yield "too large", tensor.abs() > rules.max_abs
    if span is not None:
        yield "label out of range" if is_label else "id out of range", (tensor < span[0]) | (tensor > span[1])
