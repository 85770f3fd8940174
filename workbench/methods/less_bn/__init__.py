"""LessBN: remove the BatchNorms that the network can spare, and normalise the head of a classifier."""

from workbench.methods.protocol import Description, alone

DESCRIPTION = Description(
    name="less_bn",
    title="LessBN",
    summary="Removes the BatchNorms that the network can spare, and may normalise its head.",
    section="less_bn",
    switch="boost.less_bn",
    enabled_by=alone(boost__less_bn=True, less_bn__fn_flag=True, less_bn__gc_flag=False),
    acts="workbench.methods.less_bn.acting:LessBNMethod",
    paper="Brock, De, Smith, "
    '"Characterizing Signal Propagation to Close the Performance Gap in Unnormalized ResNets", '
    "ICLR 2021, arXiv:2101.08692",
    first_space={"boost.less_bn": True},
    tried_on=lambda network: {"boost.less_bn": [False, True]},
    torch_lacks="torch removes no BatchNorms",
)
