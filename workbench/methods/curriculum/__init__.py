"""Smaller inputs first: images of lower resolution, or shorter token sequences, growing to their full size."""

from workbench.methods.protocol import Description

DESCRIPTION = Description(
    name="curriculum",
    title="Curriculum",
    summary="Begins with images of lower resolution, or shorter token sequences, that grow to their full size.",
    section="curriculum",
    switch="curriculum.kind",
    enabled_by={"boost.mode": "disable_all", "curriculum.kind": "resolution"},
    acts="workbench.methods.curriculum.method:CurriculumMethod",
    paper='Tan and Le, "EfficientNetV2: Smaller Models and Faster Training", ICML 2021, arXiv:2104.00298',
    section_class="workbench.methods.curriculum.section:CurriculumSection",
    torch_lacks="torch feeds a network what the loader makes",
)
