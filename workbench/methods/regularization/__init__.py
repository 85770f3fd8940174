"""Regularization: smoothed labels, and a running average of the weights to evaluate with."""

from workbench.methods.protocol import Description

DESCRIPTION = Description(
    name="regularization",
    title="Regularization",
    summary="Smooths the labels of a cross entropy, and evaluates with a running average of the weights.",
    section="regularization",
    switch="regularization.weight_average",
    enabled_by={"boost.mode": "disable_all", "regularization.weight_average": "ema"},
    acts="workbench.methods.regularization.method:RegularizationMethod",
    paper='Morales-Brotons et al., "Exponential Moving Average of Weights in Deep Learning: Dynamics and Benefits", '
    "TMLR 2024, arXiv:2411.18704",
    section_class="workbench.methods.regularization.section:RegularizationSection",
)
