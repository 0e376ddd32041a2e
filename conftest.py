"""Doctests of modules that need an optional extra are collected only where it is installed; at the end, what was skipped."""

from collections import Counter
from importlib.util import find_spec

collect_ignore: list[str] = []
if find_spec("flwr") is None:
    collect_ignore += ["src/fedstill/engine/flower.py", "src/fedstill/engine/loopback.py", "src/fedstill/flower.py"]


def pytest_terminal_summary(terminalreporter):
    """Say once for each reason how many tests were skipped, and how to get them."""
    skipped = Counter(str(report.longrepr[2]).removeprefix("Skipped: ") for report in terminalreporter.stats.get("skipped", []))
    if not skipped:
        return
    terminalreporter.section("skipped, and how to get it")
    for reason, count in skipped.most_common():
        missing = "not installed" in reason or "could not import" in reason
        how = "; `make install` brings every Python package" if missing and "Chromium" not in reason else ""
        terminalreporter.line(f"{count} {'test' if count == 1 else 'tests'}: {reason}{how}")
