"""Reports: results as pages and tables, drawn from plain records."""

from __future__ import annotations

from workbench.report.study_report import StudyReport, study_report_html, write_study_report

__all__ = ["StudyReport", "study_report_html", "write_study_report"]
