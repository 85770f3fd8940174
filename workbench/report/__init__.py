"""Reports: results as pages and tables, drawn from plain records."""

from __future__ import annotations

from workbench.report.sources import Sources, read_sources
from workbench.report.study_report import study_report_html, write_report, write_study_report

__all__ = ["Sources", "read_sources", "study_report_html", "write_report", "write_study_report"]
