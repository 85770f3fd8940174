"""Names of version 0.6; everything is defined in :mod:`workbench.report.dim_reduce_report`."""

from workbench.report.dim_reduce_report import write_dim_reduce_report

__all__ = ["write_dim_reduce_report"]
