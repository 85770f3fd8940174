"""Per-group loss scales: one dynamic scale for each group of parameters."""

from workbench.methods.protocol import Description, alone

DESCRIPTION = Description(
    name="loss_scale_group",
    title="Group loss scale",
    summary="Gives groups of layers whose gradients differ in size loss scales of their own.",
    section="loss_scale",
    switch="boost.loss_scale_group",
    enabled_by=alone(boost__loss_scale_group=True, amp__level="O2", amp__dtype="float16"),
    acts="workbench.methods.loss_scale_group.scaling:GroupLossScaleMethod",
    paper='Zhao et al., "Adaptive Loss Scaling for Mixed Precision Training", 2019, arXiv:1910.12385',
    torch_lacks="torch's GradScaler has one scale",
)
