"""What a run shows while it works: progress bars on a terminal, plain lines elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from fedstill.cli.console import console, megabytes
from fedstill.cli.holdings import who_holds_what
from fedstill.run.clients import client_records
from fedstill.run.history import Line, Summary
from fedstill.run.listener import Listener

if TYPE_CHECKING:  # slow: brings torch
    from fedstill.task import Task

__all__ = ["Shown"]


class Shown(Listener):
    """Draws a run on the console. ``name`` stands before its lines where several runs follow each other."""

    def __init__(self, name: str = "", who: bool = True):
        self.name = name
        self.who = who
        self.total = 0
        self.bars: Progress | None = None
        if console.is_terminal:
            self.bars = Progress(
                SpinnerColumn(),
                TextColumn("{task.description}"),
                BarColumn(bar_width=30),
                MofNCompleteColumn(),
                TimeElapsedColumn(),
                TextColumn("{task.fields[note]}"),
                console=console,
                transient=True,
            )

    def started(self, task: Task, rounds_done: int) -> None:
        """Say who holds what."""
        config = task.config
        self.total = config.rounds
        if self.who:
            held = who_holds_what(client_records(task))
            if held is not None:
                console.print(held)
            pool = f", pool of {len(task.pool)} from {', '.join(task.pool.domains)}" if task.pool else ""
            console.print(
                f"{config.algorithm['name']} · {', '.join(task.networks.prototypes)} · {len(task.clients)} clients · "
                f"{config.rounds} rounds · seed {config.seed}{pool}"
            )
        if rounds_done:
            console.print(f"resuming after round {rounds_done}")
        if self.bars:
            self.bars.start()
            self.rounds = self.bars.add_task(f"{self.name or 'rounds'}", total=config.rounds, completed=rounds_done, note="")
            self.step = self.bars.add_task("", total=None, note="")

    def progress(self, what: str, done: int, of: int) -> None:
        """Move the inner bar."""
        if self.bars:
            self.bars.update(self.step, description=f"  {what}", completed=done, total=of)

    def round(self, line: Line) -> None:
        """A line a round, or a step of the outer bar."""
        text = said_of(line)
        if self.bars:
            self.bars.update(self.rounds, completed=line["round"], note=text)
        elif text:
            console.print(f"{self.name + '  ' if self.name else ''}round {line['round']:>3}/{self.total}  {text}", soft_wrap=True)

    def warn(self, text: str) -> None:
        """A warning in its own line."""
        console.print(f"[yellow]warning:[/] {text}", soft_wrap=True)

    def finished(self, summary: Summary) -> None:
        """Clear the bars and say the result."""
        self.closed()
        best = (
            f"best {summary['best_accuracy']:.3f} in round {summary['best_round']}" if summary["best_round"] else "no evaluation"
        )
        final = f"{summary['final_accuracy']:.3f}" if summary["final_accuracy"] is not None else "-"
        console.print(
            f"[bold]{self.name or summary['algorithm']}[/]: accuracy {final} ({best}), {megabytes(summary['bytes_total'])} sent, "
            f"{summary['seconds_total']:.1f} s",
            soft_wrap=True,
        )

    def kept(self, folder: Path) -> None:
        """Say that there was nothing to do."""
        console.print(f"{self.name}: already there", soft_wrap=True)

    def closed(self) -> None:
        """Take the bars away."""
        if self.bars and self.bars.live.is_started:
            self.bars.stop()


def said_of(line: Line) -> str:
    """A round in words; nothing where it was not evaluated.

    >>> said_of({"round": 1, "accuracy": 0.5, "seconds": {"train": 1.0}, "dropped": [{"client": "a-0", "reason": "late"}]})
    'accuracy 0.500  1.0 s  dropped a-0'
    """
    if line["accuracy"] is None:
        return ""
    text = f"accuracy {line['accuracy']:.3f}"
    ensemble = line.get("ensemble_accuracy")
    if ensemble is not None:
        text += f"  (merged {line['merged_accuracy']:.3f}, ensemble {ensemble:.3f})"
    text += f"  {sum(line['seconds'].values()):.1f} s"
    if line["dropped"]:
        text += f"  dropped {', '.join(d['client'] for d in line['dropped'])}"
    return text
