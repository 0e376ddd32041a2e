"""Tables, figures and the report page, made from the files of runs."""

from fedstill.report.page import build_page
from fedstill.report.runs import Run, load_run, load_runs
from fedstill.report.tables import latex, markdown, rich_table, summarise

__all__ = ["Run", "build_page", "latex", "load_run", "load_runs", "markdown", "rich_table", "summarise"]
