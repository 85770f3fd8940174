"""How the same arithmetic is carried out: compiler, memory format, threads, precision of products, loading."""

from workbench.methods.protocol import Description

DESCRIPTION = Description(
    name="runtime",
    title="Runtime",
    summary="Carries the same training out differently: compiled, in another memory format, with batches read ahead.",
    section="runtime",
    switch="runtime.memory_format",
    enabled_by={"boost.mode": "disable_all", "runtime.memory_format": "channels_last"},
    acts="workbench.methods.runtime.method:RuntimeMethod",
    paper='Ansel et al., "PyTorch 2: Faster Machine Learning Through Dynamic Python Bytecode Transformation and Graph '
    'Compilation", ASPLOS 2024, doi:10.1145/3620665.3640366',
    section_class="workbench.methods.runtime.section:RuntimeSection",
)
