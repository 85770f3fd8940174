"""The order in which the algorithms act on a network and its optimizer, each with its reason."""

from __future__ import annotations

__all__ = ["PROCESSING_ORDER", "STEP_ORDER"]

#: What happens once, before training (AutoBoost).
PROCESSING_ORDER: tuple[tuple[str, str], ...] = (
    ("less_bn", "it replaces modules and may create parameters, so everything that lists parameters comes later"),
    ("gradient_split_groups", "it only marks parameters, in the order the optimizer will see"),
    ("grad_centralization", "it splits the optimizer's groups, and freezing must find the final groups"),
    ("grad_freeze", "it wraps the optimizer, so it needs the optimizer that will really step"),
    ("dim_reduce", "it replaces the optimizer, which the others would process in vain: it runs alone"),
)

#: What happens in every step (Boosted).
STEP_ORDER: tuple[tuple[str, str], ...] = (
    ("grad_freeze", "the forward pass must already know which parameters need gradients, or activations are saved"),
    ("amp", "the forward pass runs in the level's number format"),
    ("loss_scale", "the loss is multiplied before the backward pass, so that small gradients survive it"),
    ("grad_accumulation", "the backward pass adds to .grad; only the last micro-batch of a window goes on"),
    ("ranks", "gradients are averaged once per window, before the overflow test, so that all ranks see the same"),
    ("overflow", "one pass unscales the window's gradients and tests them"),
    ("grad_centralization", "it acts on unscaled gradients, right before the update, as an optimizer hook"),
    ("optimizer", "the update is applied or, on overflow, skipped: decided on the device"),
    ("adasum", "it combines what the servers' optimizers changed, so it comes after them"),
    ("dim_reduce", "in the optimizer's place: it needs finite, unscaled gradients to measure curvature"),
    ("loss_scale_update", "the scale changes between windows only, so one window has one scale"),
)
