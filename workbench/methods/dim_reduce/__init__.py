"""DimReduce: train in the subspace that the principal components of earlier weights span."""
