"""What a client sends besides weights: the contract, and the built-in reports, one per file."""

from fedstill.local.reports.contract import REPORTS, Report, after_training, make_report, report

__all__ = ["REPORTS", "Report", "after_training", "make_report", "report"]
