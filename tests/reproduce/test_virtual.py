"""The study of virtual features: every row is a valid run."""

from __future__ import annotations

from pathlib import Path

from fedstill.reproduce import Plan
from fedstill.reproduce.virtual import settings
from fedstill.run.configuration import resolve


def test_every_row_is_a_valid_run(tmp_path: Path) -> None:
    found = {(row, column): resolve(tree) for row, column, tree in settings(Plan(tmp_path, tmp_path))}
    assert len(found) == 4 * 12 + 2 * 6 + 8 + 3 + 4 * 5 + 2 * 9 + 4 + 2 * 2
    for (row, column), config in found.items():
        line = config.algorithm.get("line")
        assert bool(line) == row.endswith("judged"), row
        assert config.model.train == ("all" if column.startswith(("digits", "mnist")) else "head")
