"""Gradient freezing: train only the later layers in a share of the steps.

Read ``method.py`` first: `freeze_index_sequence` says which layers rest at which step. ``freeze_optimizer.py`` makes an
optimizer train one group per step; ``group_arguments.py`` checks what a user may write.
"""

from workbench.methods.protocol import Description, alone

DESCRIPTION = Description(
    name="grad_freeze",
    title="Gradient freezing",
    summary="Leaves out the backward pass and the update of leading layers in a share of the steps.",
    section="grad_freeze",
    switch="boost.grad_freeze",
    enabled_by=alone(boost__grad_freeze=True),
    acts="workbench.methods.grad_freeze.method:FreezingMethod",
    paper='Brock, Lim, Ritchie, Weston, "FreezeOut: Accelerate Training by Progressively Freezing Layers", '
    "NIPS 2017 workshop on optimization, arXiv:1706.04983",
    schedules_groups=True,
    updates="grad_freeze.total_steps",
    first_space={
        "boost.grad_freeze": True,
        "grad_freeze.freeze_type": True,
        "grad_freeze.freeze_p": {"low": 0.3, "high": 0.9},
    },
    tried_on=lambda network: {
        "boost.grad_freeze": [False, True],
        "grad_freeze.freeze_p": {"low": 0.4, "high": 0.9},
        "grad_freeze.param_groups": [max(min(network.layers_left, 8), 2)],
        "grad_freeze.total_steps": [65536],  # fitted to each run's updates where its length differs
    },
    torch_lacks="torch has no schedule that freezes layers",
)
