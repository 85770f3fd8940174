"""DimReduce: train in the subspace that the principal components of earlier weights span."""

from workbench.methods.protocol import Description, alone

DESCRIPTION = Description(
    name="dim_reduce",
    title="DimReduce",
    summary="Takes quasi-Newton steps in the space that earlier weights moved in, each tried on its own batch.",
    section="dim_reduce",
    switch="boost.dim_reduce",
    enabled_by=alone(boost__dim_reduce=True, dim_reduce__weight_load_dir="snapshots"),
    acts="workbench.methods.dim_reduce.acting:DimReduceMethod",
    paper="Li, Tan, Huang, Tao, Liu, Huang, "
    '"Low Dimensional Trajectory Hypothesis is True: DNNs Can Be Trained in Tiny Subspaces", '
    "IEEE TPAMI 2022, doi:10.1109/TPAMI.2022.3178101, arXiv:2103.11154",
    snapshot_folder="dim_reduce.weight_load_dir",
)
