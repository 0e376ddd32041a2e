"""Progress of long work."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from fedstill.core.console import console, remark
from fedstill.run.pulse import alive

__all__ = ["progress"]


@contextmanager
def progress(first: str = "preparing") -> Iterator[Callable[[str, int, int], None]]:
    """Bars on a terminal; elsewhere one line per quarter, and one after a long silence. ``first`` precedes the first step."""
    if not console.is_terminal:
        said: dict[str, int] = {}
        step, shown = first, ""

        def line(what: str, done: int, of: int) -> None:
            nonlocal step, shown
            step = f"{what} {done}/{of}"
            quarter = 4 * done // max(1, of)
            if quarter > said.get(what, 0):
                said[what] = quarter
                console.print(step)
                shown = step
                pulse.touch()

        with alive(remark, lambda: step if step != shown else "still working") as pulse:
            yield line
        return
    columns = (TextColumn("{task.description}"), BarColumn(bar_width=30), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as bars:
        tasks: dict[str, int] = {}

        def bar(what: str, done: int, of: int) -> None:
            if what not in tasks:
                tasks[what] = bars.add_task(what, total=of)
            bars.update(tasks[what], completed=done, total=of)  # type: ignore[arg-type]

        yield bar
