"""DimReduce: train in the subspace that the principal components of earlier weights span."""

from workbench.methods.protocol import Description, alone

DESCRIPTION = Description(
    name="dim_reduce",
    title="DimReduce",
    summary="Takes quasi-Newton steps in the space that earlier weights moved in, each tried on its own batch.",
    section="dim_reduce",
    switch="boost.dim_reduce",
    enabled_by=alone(boost__dim_reduce=True, dim_reduce__pca_mat_path="pca_mat.npy"),
    acts="workbench.methods.dim_reduce.acting:DimReduceMethod",
    paper="Li, Tan, Huang, Tao, Liu, Huang, "
    '"Low Dimensional Trajectory Hypothesis is True: DNNs Can Be Trained in Tiny Subspaces", '
    "IEEE TPAMI 2022, doi:10.1109/TPAMI.2022.3178101, arXiv:2103.11154",
    snapshot_folder="dim_reduce.weight_load_dir",
    snapshots_above="dim_reduce.n_components",
    columns={
        "rho": ("1", "Share of the quasi-Newton step that was taken, 0 when DimReduce's search failed."),
        "trials": ("forward passes", "Step lengths that DimReduce tried, each one forward pass on the batch."),
        "condition": (
            "1",
            "Condition number of DimReduce's inverse Hessian in the subspace after the step; inf when rounding has "
            "made it indefinite.",
        ),
        "explained_variance": (
            "1",
            "Share of the weight snapshots' variance that DimReduce's components explain together, 0 to 1; on the "
            "first step only, NaN where it is unknown.",
        ),
    },
    exported_files=("pca_mat.{export}.npy", "pca_mat.{export}.json"),
    export_note="The subspace lies in pca_mat.{export}.npy next to this file. When you move the two, set "
    "dim_reduce.pca_mat_path to its new absolute path. Its columns follow the order of the optimizer's parameters, "
    "each flattened row by row. It belongs to the initial weights of this task with seed {seed}; other initial weights "
    "need snapshots of their own (snapshots.count, then dim_reduce.weight_load_dir in place of pca_mat_path).",
    torch_lacks="torch has no training in a subspace",
)
