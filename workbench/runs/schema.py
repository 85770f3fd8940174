"""What the columns of a run mean, and in which unit they are.

One description serves JSON lines, Parquet files, DataFrames and documentation. Besides the fixed columns, methods add
float columns under a name with a dot, such as ``time.forward``; they may appear late in a run, and are NaN on steps
without a value. Each method of the registry describes what it records (`Description.columns`).
"""

from __future__ import annotations

from dataclasses import dataclass

from workbench.methods.registry import METHODS

SCHEMA_VERSION = 1
"""Grows when an older reader would misread a run; stored in ``environment.json``."""


@dataclass(frozen=True, slots=True)
class ColumnInfo:
    """Documentation of one column."""

    kind: str  # "int64", "float64", "bool", "str", "list of float64" or "list of histograms"
    unit: str  # as an axis title shows it; empty for names and truth values, "1" when dimensionless
    description: str  # what the number means and when it is missing, one sentence
    mirror: str = ""  # name in TensorBoard and MLflow of a fixed column that is shown there
    repeats: bool = False  # whether neighbouring steps mostly have the same number, which Parquet then keeps once


def _number(unit: str, description: str, mirror: str = "", *, repeats: bool = False) -> ColumnInfo:
    return ColumnInfo("float64", unit, description, mirror, repeats)


COLUMNS: dict[str, ColumnInfo] = {
    "step": ColumnInfo("int64", "micro-batches", "Micro-batch index, counted from 0."),
    "seconds": _number("s", "Time since the run began when the step was dispatched."),
    "step_ms": _number("ms", "Wall-clock time of the step.", "time/step_ms"),
    "loss": _number("1", "Unscaled loss of this micro-batch, the mean over ranks.", "training/loss"),
    "loss_scale": _number("1", "Scale of the backward pass, 1 without.", "loss_scale/scale", repeats=True),
    "loss_scale_after": _number("1", "Scale after the update rule ran.", repeats=True),
    "overflow": ColumnInfo("bool", "", "A gradient of this window was inf or NaN; false where no window ended."),
    "skipped": ColumnInfo("bool", "", "The optimizer update was dropped because of an overflow."),
    "accumulated": ColumnInfo("int64", "micro-batches", "Micro-batches in the gradient when the step ended."),
    "grad_norm": _number("1", "Global L2 norm of the unscaled gradient; NaN where no update was due.", "gradient/norm"),
    "grad_amax": _number(
        "1", "Largest |unscaled gradient| of the finite tensors; NaN where no update was due.", "gradient/largest"
    ),
    "underflow_share": _number(
        "1",
        "Share of non-zero gradient elements below the smallest float16 number at the scale in use, 0 to 1; what a "
        "float16 gradient has already lost is zero and not among them.",
        "loss_scale/underflow_share",
    ),
    "group_scales": ColumnInfo("list of float64", "1", "Loss scale per group; empty without group scales."),
    "frozen_groups": ColumnInfo("int64", "groups", "Leading parameter groups frozen.", "freezing/frozen_groups"),
    "learning_rate": _number("1", "Learning rate of the first group.", "training/learning_rate", repeats=True),
    "samples": ColumnInfo("int64", "samples", "Number of samples in the micro-batch, those of all ranks together."),
    "memory_bytes": ColumnInfo(
        "int64", "bytes", "Allocated on the device; on a CPU resident set size, 0.1 s old at most.", "memory/bytes"
    ),
    "grad_exponents": ColumnInfo(
        "list of histograms",
        "elements",
        "Unscaled gradients counted per binary exponent: one {group, lowest, counts, zeros, nonfinite} per parameter "
        "group, counts[i] for 2**(lowest+i) <= abs(g) < 2**(lowest+i+1); empty except on every k-th step.",
    ),
}
"""Fixed columns of ``Run.steps``, in their order; the fields of ``records.StepRecord``."""

EVENT_COLUMNS: dict[str, ColumnInfo] = {
    "step": ColumnInfo("int64", "micro-batches", "Micro-batch index, counted from 0, at which it happened."),
    "kind": ColumnInfo("str", "", "What happened; one of the words of records.EventKind."),
    "subject": ColumnInfo("str", "", "Whom it happened to: leaf modules joined by commas, a metric's name, or empty."),
    "value": _number("", "Number that belongs to it, in the unit of its subject; NaN when there is none."),
    "message": ColumnInfo("str", "", "One sentence for a person."),
}
"""Columns of ``Run.events``, in their order; the fields of ``records.Event``."""


_DESCRIBED = {f"{one.name}.{name}": _number(*about) for one in METHODS for name, about in one.columns.items()}

METHOD_COLUMNS: dict[str, ColumnInfo] = {
    "time.": _number("ms", "Time of one part of the step, as the name says."),
    "amp.float16_grad_amax": _number(
        "1", "Largest |unscaled gradient| among those computed in float16; NaN without any and on steps that overflow."
    ),
    **_DESCRIBED,
    "thor.refreshed": _number("1", "1 on steps at which the Kronecker factors were recomputed."),
    "thor.damping": _number("1", "Damping in force, before its root is added to the factors' diagonals."),
    "offload.host_ms": _number("ms", "Time that Adam took on the host; NaN where no update was due."),
    "offload.transfer_ms": _number("ms", "Time that gradients travelled to the host; NaN where nothing travels."),
    "offload.hidden_share": _number(
        "1", "Share of transfer and host time that the step did not wait for, 0 to 1; NaN where nothing travels."
    ),
    "online.auc": _number(
        "1", "Area under the ROC curve of the last window, each record predicted before it was trained on; 0 to 1."
    ),
    "online.log_loss": _number(
        "nats", "Mean log loss of the last window, each record predicted before it was trained on."
    ),
    "online.rejected": _number("records", "Records that could not be trained on, since the run began."),
    "online.queue_depth": _number("batches", "Batches that the reader was ahead after the step."),
    "online.wait_ms": _number("ms", "Time the step waited for its batch."),
    "online.records_per_second": _number("records / s", "Records trained on since the last such figure, per second."),
    "online.table_rows": _number("rows", "Rows in use over all growing embedding tables."),
    "online.table_evictions": _number("rows", "Rows of growing tables given from one id to another, since the start."),
}
"""Method columns by name; a key that ends with a dot stands for every column that starts with it.

Area, log loss, records per second and the figures of tables are NaN except on every k-th step.
"""

NAMED_LIKE = f"named like `{next(iter(_DESCRIBED), 'time.forward')}`"
"""How a method's column must be named, for messages about one that is not."""


def column_info(name: str) -> ColumnInfo:
    """Return the documentation of a step column, fixed or added by a method; an unknown method's says only that.

    Raises:
        KeyError: When the name is neither a fixed column nor has the dot of a method column.
    """
    if name in COLUMNS:
        return COLUMNS[name]
    if not is_method_column(name):
        raise KeyError(f"unknown step column {name!r}; fixed columns are {', '.join(COLUMNS)}")
    method = name.partition(".")[0]
    undocumented = ColumnInfo("float64", "", f"Recorded by {method}; NaN on steps without it.")
    return METHOD_COLUMNS.get(name) or METHOD_COLUMNS.get(f"{method}.") or undocumented


def is_method_column(name: str) -> bool:
    """Return whether a method may record a column of this name: two or more non-empty parts joined by dots."""
    parts = name.split(".")
    return len(parts) >= 2 and all(parts)
