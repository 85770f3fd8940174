"""Batch size: several of the loader's batches in one forward pass, or each cut into parts with an update each."""

from workbench.methods.protocol import Description

DESCRIPTION = Description(
    name="batch",
    title="Batch",
    summary="Concatenates the loader's batches into one forward pass, or cuts each into parts with an update each.",
    section="batch",
    switch="batch.factor",
    enabled_by={"boost.mode": "disable_all", "batch.factor": 2.0},
    acts="workbench.methods.batch.method:BatchMethod",
    paper='McCandlish et al., "An Empirical Model of Large-Batch Training", 2018, arXiv:1812.06162',
    section_class="workbench.methods.batch.section:BatchSection",
)
