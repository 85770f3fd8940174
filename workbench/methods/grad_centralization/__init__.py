"""Gradient centralization: subtract from each gradient its mean over the input dimensions."""

from workbench.methods.protocol import Description, alone

DESCRIPTION = Description(
    name="grad_centralization",
    title="Gradient centralization",
    summary="Subtracts from each gradient of a weight its mean per output unit, before every update.",
    section="less_bn",
    switch="less_bn.gc_flag",
    enabled_by=alone(boost__less_bn=True, less_bn__fn_flag=False, less_bn__gc_flag=True),
    acts="workbench.methods.grad_centralization.method:CentralizationMethod",
    paper='Yong, Huang, Hua, Zhang, "Gradient Centralization: A New Optimization Technique for Deep Neural '
    'Networks", ECCV 2020, arXiv:2004.01461',
    comes_with="less_bn",  # as in the reference, where it has no switch of its own
)
