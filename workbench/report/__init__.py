"""Reports: results as pages and tables, drawn from plain records."""

from __future__ import annotations

from workbench.report.run_report import folder_page_html, overlay_html, run_report_html
from workbench.report.sources import Sources, read_sources
from workbench.report.study_report import study_report_html, write_report, write_study_report

__all__ = [
    "Sources",
    "folder_page_html",
    "overlay_html",
    "read_sources",
    "run_report_html",
    "study_report_html",
    "write_report",
    "write_study_report",
]
