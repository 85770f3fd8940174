"""The methods in the order in which they act, each with the reason for its place.

The only file that sees every method. Descriptions alone are imported, so reading the list loads no torch. A new method
is a folder next to this file and a line below.
"""

from __future__ import annotations

from workbench.methods import (
    adasum,
    batch,
    curriculum,
    dim_reduce,
    grad_accumulation,
    grad_centralization,
    grad_freeze,
    less_bn,
    loss_scale_group,
    regularization,
    runtime,
    schedule,
)
from workbench.methods.protocol import Description

METHODS: tuple[Description, ...] = (
    schedule.DESCRIPTION,  # decides how many batches there are, which the others may only regroup
    batch.DESCRIPTION,  # regroups the loader's batches, and changes rates before anything wraps the optimizer
    curriculum.DESCRIPTION,  # resizes what is fed to the network, so the batches must have their number of samples
    less_bn.DESCRIPTION,  # replaces modules and may create parameters: whatever lists parameters comes later
    grad_centralization.DESCRIPTION,  # splits the optimizer's groups, and freezing must find the final ones
    grad_freeze.DESCRIPTION,  # wraps the optimizer, so it needs the one that will really step
    grad_accumulation.DESCRIPTION,  # gradients add up before anything looks at them
    loss_scale_group.DESCRIPTION,  # unscales a window's gradients before an update sees them
    adasum.DESCRIPTION,  # combines what the servers' optimizers changed, so it comes after them
    regularization.DESCRIPTION,  # averages the weights that an update has left
    dim_reduce.DESCRIPTION,  # replaces the optimizer, which the others would process for nothing: it runs alone
    runtime.DESCRIPTION,  # compiles and lays out what all the others have made of model and batches
)
