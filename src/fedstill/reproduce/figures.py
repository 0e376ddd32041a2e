"""A study's figure as a PNG, in the paper's axes: curves over rounds, lines over a setting, or bars."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from fedstill.reproduce.plan import Cell
from fedstill.run.history import Line

__all__ = ["Curve", "draw"]

Curve = tuple[str, str, str, Sequence[Sequence[Line]]]  # panel, row, column, a history per seed


def draw(
    path: Path, figure: Mapping[str, str], cells: Sequence[Cell], curves: Sequence[Curve], panels: Sequence[str] = ("",)
) -> None:
    """One panel beside the other. The paper's points, where its text gives them, are hollow markers.

    ``figure`` has ``kind`` (curves, lines or bars), ``x`` and ``y``.
    """
    # slow: imports all of matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    sheet = Figure(figsize=(max(5.0, 4.2 * len(panels)), 3.8), layout="constrained")
    FigureCanvasAgg(sheet)
    for axis, panel in zip(sheet.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
        if figure["kind"] == "curves":
            _curves(axis, [one for one in curves if one[0] == panel])
        else:
            mine = {c.column: c for c in cells if c.column == panel or c.column.startswith(f"{panel} ") or not panel}
            _lines(axis, [c for c in cells if c.column in mine], panel, figure["kind"])
        axis.set_title(panel, fontsize=10)
        axis.set_xlabel(figure.get("x", "communication round"), fontsize=9)
        axis.set_ylabel(figure.get("y", "test accuracy"), fontsize=9)
        axis.tick_params(labelsize=8)
        axis.grid(alpha=0.3)
        if axis.get_legend_handles_labels()[0]:
            axis.legend(fontsize=7)
    path.parent.mkdir(parents=True, exist_ok=True)
    sheet.savefig(path, dpi=110)


def _curves(axis: Any, curves: Sequence[Curve]) -> None:
    """The mean over seeds at every evaluated round."""
    for _, row, column, histories in curves:
        by_round: dict[int, list[float]] = {}
        for history in histories:
            for line in history:
                found = line.get("accuracy")
                if found is not None:
                    by_round.setdefault(line["round"], []).append(found)
        means = [fmean(values) for values in by_round.values()]
        axis.plot(list(by_round), means, marker="o", markersize=3, label=f"{row} {column}".strip())


def _lines(axis: Any, cells: Sequence[Cell], panel: str, kind: str) -> None:
    """The mean over seeds of every column, in the order of the table; lines with the deviation over seeds."""
    columns = list(dict.fromkeys(c.column for c in cells))
    rows = list(dict.fromkeys(c.row for c in cells))
    for number, row in enumerate(rows):
        mine = {c.column: c for c in cells if c.row == row}
        ours = [(i, [v for v in mine[c].ours if v is not None]) for i, c in enumerate(columns) if c in mine]
        points = [(i, fmean(values)) for i, values in ours if values]
        colour = f"C{number % 10}"
        if points and kind == "bars":
            width = 0.8 / len(rows)
            axis.bar([i + (number - (len(rows) - 1) / 2) * width for i, _ in points], [y for _, y in points], width, label=row)
        elif points:
            spread = [stdev(values) if len(values) > 1 else 0.0 for _, values in ours if values]
            x, y = zip(*points, strict=True)
            axis.errorbar(x, y, spread, marker="o", markersize=4, capsize=2, color=colour, label=row)
        published = [(i, mine[c].paper) for i, c in enumerate(columns) if c in mine and mine[c].paper]
        if published:
            values = [found.value for _, found in published if found is not None]
            axis.plot([i for i, _ in published], values, "s", mfc="none", color=colour, label=f"{row} (paper)")
    axis.set_xticks(range(len(columns)), [c.removeprefix(panel).strip() for c in columns], rotation=30 if len(columns) > 4 else 0)
