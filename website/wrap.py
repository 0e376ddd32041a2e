"""Wrap the prose of Markdown pages at 120 characters: ``python website/wrap.py docs/data.md``. Code, tables, headings and
equations stay as they are."""

from __future__ import annotations

import re
import sys
import textwrap
from pathlib import Path

__all__ = ["wrapped"]

WIDTH = 120
FENCE = re.compile(r"\s*(```|~~~)")
KEPT = re.compile(r"\s*(\||#|<|!\[|\$\$|:::)")  # tables, headings, HTML, images, equations
ITEM = re.compile(r"(\s*(?:[*-]|\d+\.)\s+)")


def wrapped(text: str) -> str:
    """The page with every paragraph and list item wrapped that has a line above the width.

    >>> print(wrapped("* " + "word " * 30))
    * word word word word word word word word word word word word word word word word word word word word word word word
      word word word word word word word
    """
    out: list[str] = []
    block: list[str] = []
    fenced = False

    def close() -> None:
        if any(len(line) > WIDTH for line in block):
            found = ITEM.match(block[0])
            first = found[1] if found else re.match(r"\s*", block[0])[0]  # type: ignore[index]
            body = " ".join(line.strip() for line in [block[0][len(first) :], *block[1:]])
            filled = textwrap.TextWrapper(WIDTH, first, " " * len(first), break_long_words=False, break_on_hyphens=False)
            out.extend(filled.wrap(body))
        else:
            out.extend(block)
        block.clear()

    for line in text.split("\n"):
        if FENCE.match(line):
            close()
            fenced = not fenced
            out.append(line)
        elif fenced or not line.strip() or KEPT.match(line):
            close()
            out.append(line)
        else:
            if ITEM.match(line):
                close()
            block.append(line)
    close()
    return "\n".join(out)


if __name__ == "__main__":
    for name in sys.argv[1:]:
        page = Path(name)
        page.write_text(wrapped(page.read_text()))
