"""A progress bar in a notebook: one output that is replaced in place. It needs no package besides the notebook's own."""

from __future__ import annotations

import html
import sys
import time
from typing import Any

__all__ = ["NotebookBar", "in_notebook"]

OFTEN = 0.2  # seconds between redraws


def in_notebook() -> bool:
    """Whether this process is the kernel of a notebook."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return getattr(shell, "kernel", None) is not None


class NotebookBar:
    """The rounds, the step of the round in progress, and a note."""

    def __init__(self, name: str, total: int):
        self.name, self.total = name, total
        self.done, self.step, self.note = 0, "", ""
        self.drawn = 0.0
        self.handle: Any = None

    def update(self, *, done: int | None = None, step: str | None = None, note: str | None = None, now: bool = False) -> None:
        """Change what is shown. Redraws that follow too fast are skipped, unless ``now`` is set."""
        self.done = self.done if done is None else done
        self.step = self.step if step is None else step
        self.note = self.note if note is None else note
        if now or time.monotonic() - self.drawn >= OFTEN:
            self._draw()

    def _draw(self) -> None:
        from IPython.display import HTML, display  # optional: present in a notebook

        self.drawn = time.monotonic()
        words = "  ".join(html.escape(text) for text in (self.name, f"{self.done}/{self.total}", self.step, self.note) if text)
        shown = HTML(f'<progress value="{self.done}" max="{self.total}"></progress> <code>{words}</code>')  # type: ignore[no-untyped-call]
        if self.handle is None:
            self.handle = display(shown, display_id=True)  # type: ignore[no-untyped-call]
        else:
            self.handle.update(shown)
