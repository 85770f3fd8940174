"""AdaSum: combine the updates of several ranks by their angles instead of their mean."""

from workbench.methods.protocol import Description, alone

DESCRIPTION = Description(
    name="adasum",
    title="AdaSum",
    summary="Combines the updates of several servers: agreement is averaged, independence is added.",
    section="common",
    switch="boost.adasum",
    enabled_by=alone(boost__adasum=True, common__device_number=1),
    acts="workbench.methods.adasum.acting:AdaSumMethod",
    paper='Maleki et al., "Scaling Distributed Training with Adaptive Summation", MLSys 2021, arXiv:2006.02924',
    n_ranks=2,
    torch_lacks="torch.distributed averages gradients, and adds them in no other way",
)
