"""Gradient accumulation: one update for the mean gradient of several micro-batches."""

from workbench.methods.protocol import Description, alone

DESCRIPTION = Description(
    name="grad_accumulation",
    title="Gradient accumulation",
    summary="Averages the gradients of several micro-batches and applies them in one update.",
    section="grad_accumulation",
    switch="boost.grad_accumulation",
    enabled_by=alone(boost__grad_accumulation=True, grad_accumulation__grad_accumulation_step=3),
    acts="workbench.methods.grad_accumulation.method:AccumulationMethod",
    paper='Goyal et al., "Accurate, Large Minibatch SGD: Training ImageNet in 1 Hour", 2017, arXiv:1706.02677',
    micro_batches="grad_accumulation.grad_accumulation_step",
)
