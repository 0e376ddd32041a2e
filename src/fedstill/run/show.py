"""The progress of a run: bars on a terminal and in a notebook, lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from fedstill.core.console import console, counted, duration, elapsed, megabytes, remark
from fedstill.run.budgets import budget_words
from fedstill.run.clients import client_records
from fedstill.run.effort import effort_of
from fedstill.run.history import Line, Summary
from fedstill.run.holdings import who_holds_what
from fedstill.run.listener import Listener
from fedstill.run.notebook import NotebookBar, in_notebook
from fedstill.run.pulse import Pulse

if TYPE_CHECKING:  # slow: brings torch
    from fedstill.task import Task

__all__ = ["Shown", "votes_in_words"]

LONG = 30.0  # a run expected to take at least this many seconds announces it


class Shown(Listener):
    """Draws a run on the console. ``name`` precedes its lines if several runs follow each other."""

    def __init__(self, name: str = "", who: bool = True):
        self.name, self.who = name, who
        self.total = self.done = self.begun = 0  # rounds: all, finished, finished before this start
        self.step = ""
        self.expected: float | None = None  # seconds
        self.clock = self.ended = time.monotonic()  # when the rounds began, when the last one ended
        self.pulse = Pulse(self._still)
        self.bars: Progress | None = None
        self.picture: NotebookBar | None = None
        if console.is_terminal:
            self.bars = Progress(
                SpinnerColumn(),
                TextColumn("{task.description}"),
                BarColumn(bar_width=30),
                MofNCompleteColumn(),
                TimeElapsedColumn(),
                TextColumn("{task.fields[left]}"),
                TextColumn("{task.fields[note]}"),
                console=console,
                transient=True,
            )

    def preparing(self) -> None:
        """Print nothing yet, unless reading takes long."""
        self.step = "reading the data"
        self.pulse.start()

    def started(self, task: Task, rounds_done: int) -> None:
        """Print what each client holds, and the expected time if it is long."""
        config = task.config
        self.total, self.done, self.begun = config.rounds, rounds_done, rounds_done
        if self.who:
            held = who_holds_what(client_records(task))
            if held is not None:
                console.print(held)
            pool = f", pool of {len(task.pool)} from {', '.join(task.pool.domains)}" if task.pool else ""
            console.print(
                f"{config.algorithm['name']} · {', '.join(task.networks.prototypes)} · {counted(len(task.clients), 'client')} · "
                f"{counted(config.rounds, 'round')} · seed {config.seed}{pool}"
            )
        if rounds_done:
            console.print(f"resuming after round {rounds_done}")
        effort = effort_of(task, config.rounds - rounds_done) if task.measurable and rounds_done < config.rounds else None
        self.expected = effort.seconds if effort is not None else None
        if effort is not None and self.expected is not None and self.expected >= LONG:
            console.print(f"{self._prefix}{effort}", soft_wrap=True)
        self.clock = self.ended = time.monotonic()
        self.pulse.start()
        if self.bars:
            self._start_bars()
            name, left = self.name or "rounds", self._left()
            self.bars.update(self.rounds, description=name, total=config.rounds, completed=rounds_done, left=left, visible=True)
        elif in_notebook():
            self.picture = NotebookBar(self.name or config.algorithm["name"], config.rounds)
            self.picture.update(done=rounds_done, now=True)

    def _start_bars(self) -> None:
        """Show the bars; that of the rounds stays hidden until there are rounds."""
        if self.bars and not self.bars.live.is_started:
            self.bars.start()
            self.rounds = self.bars.add_task("", total=None, note="", left="", visible=False)
            self.inner = self.bars.add_task("", total=None, note="", left="")

    def progress(self, what: str, done: int, of: int) -> None:
        """Move the inner bar."""
        self.step = f"{what} {done}/{of}"
        if self.bars:
            self._start_bars()  # features of a frozen network are computed before the first round
            self.bars.update(self.inner, description=f"  {what}", completed=done, total=of)
            if self.total:
                self.bars.update(self.rounds, left=self._left())
        elif self.picture:
            self.picture.update(step=self.step, note=self._left())

    def round(self, line: Line) -> None:
        """Print one line per round, or advance the outer bar."""
        text = said_of(line)
        self.done, self.ended = line["round"], time.monotonic()
        if self.bars:
            self.bars.update(self.rounds, completed=line["round"], note=text, left=self._left())
        elif self.picture:
            self.picture.update(done=line["round"], step="", note=f"{text}  {self._left()}".strip(), now=True)
        elif text:
            console.print(f"{self._prefix}round {line['round']:>3}/{self.total}  {text}", soft_wrap=True)
            self.pulse.touch()

    def warn(self, text: str) -> None:
        """Print a warning on its own line."""
        console.print("[yellow]warning:[/] ", end="")
        console.print(text, soft_wrap=True, markup=False)

    def finished(self, summary: Summary) -> None:
        """Clear the bars and print the result."""
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
        if "votes" in summary:
            remark(votes_in_words(summary["votes"]))
        for text in budget_words(summary.get("privacy")):
            remark(text)

    def kept(self, folder: Path) -> None:
        """Print that there was nothing to do."""
        console.print(f"{self.name}: already there", soft_wrap=True)

    def closed(self) -> None:
        """Remove the bars."""
        self.pulse.stop()
        if self.bars and self.bars.live.is_started:
            self.bars.stop()

    @property
    def _prefix(self) -> str:
        return f"{self.name}  " if self.name else ""

    def _still(self) -> None:
        """Print that the run is still working, after a while without output."""
        if self.picture or (self.bars and self.bars.live.is_started):
            return
        where = f"round {self.done + 1:>3}/{self.total}  " if self.total else ""
        after = f"{elapsed(time.monotonic() - self.clock)} so far"
        console.print(f"{self._prefix}{where}{self.step or 'at work'}, {after}  {self._left()}".rstrip(), soft_wrap=True)

    def _left(self) -> str:
        """The remaining time: estimated from the finished rounds or, before the first has ended, from the timed steps."""
        now, here = time.monotonic(), self.done - self.begun
        if here > 0:
            left = (self.total - self.done) * (self.ended - self.clock) / here - (now - self.ended)
        elif self.expected is not None:
            left = self.expected - (now - self.clock)
        else:
            return ""
        return f"about {duration(left)} left" if self.done < self.total and left >= 1 else ""


def votes_in_words(votes: Mapping[str, Any]) -> str:
    """What private votes spent, and what that covers.

    >>> votes_in_words({"asked": 9, "answered": 5, "epsilon": 2.5, "epsilon_each": 0.5, "delta": 1e-05, "covers": "it covers x"})
    'private votes: 5 of 9 asked samples answered, epsilon 2.5 in all (0.5 per answer) at delta 1e-05; it covers x'
    """
    each = f" ({votes['epsilon_each']:.3g} per answer)" if votes["epsilon_each"] is not None else ""
    return (
        f"private votes: {votes['answered']:,} of {votes['asked']:,} asked samples answered, epsilon "
        f"{votes['epsilon']:.3g} in all{each} at delta {votes['delta']:g}; {votes['covers']}"
    )


def said_of(line: Line) -> str:
    """A round in words; empty if it was not evaluated.

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
