"""Toy: a method that uses every hook once, and averages weights for evaluation."""

from workbench.methods.protocol import Description

__all__ = ["DESCRIPTION"]

DESCRIPTION = Description(
    name="toy",
    title="Toy",
    summary="Averages weights for evaluation and touches everything else a method may touch.",
    section="toy",
    switch="toy.enabled",
    enabled_by={"boost.mode": "disable_all", "toy.enabled": True},
    acts="tests.kit.toy_method.acting:ToyMethod",
    paper="none; it shows how a method is added",
    section_class="tests.kit.toy_method.section:ToySection",
)
