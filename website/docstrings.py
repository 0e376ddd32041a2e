"""Docstrings as Markdown: roles become code, doctests and literal blocks become fenced code."""

from __future__ import annotations

import re
from typing import Any

import griffe

__all__ = ["MarkdownDocstrings", "as_markdown"]


def as_markdown(text: str) -> str:
    """A docstring of ours as Markdown.

    >>> as_markdown("See :class:`~fedstill.core.message.Message`.\\n\\n>>> 1 + 1\\n2\\n").splitlines()
    ['See `Message`.', '', '```pycon', '>>> 1 + 1', '2', '```']
    """
    text = re.sub(r":\w+:`~(?:[\w.]+\.)?(\w+)`", r"`\1`", text)
    text = re.sub(r":\w+:`([^`]+)`", r"`\1`", text)
    lines: list[str] = []
    fenced = ""
    source = text.splitlines()
    for i, line in enumerate(source):
        if line.startswith(">>> ") and not fenced:
            lines += [*([""] if lines and lines[-1] else []), "```pycon"]
            fenced = "doctest"
        elif fenced == "doctest" and not line.strip():
            lines.append("```")
            fenced = ""
        elif fenced == "literal" and line.strip() and not line.startswith("    "):
            while lines and not lines[-1]:
                lines.pop()
            lines += ["```", ""]
            fenced = ""
        elif not fenced and line.startswith("    ") and i and not source[i - 1].strip():
            lines.append("```text")
            fenced = "literal"
        if line.strip() == "::":  # introduces a literal block and is no text itself
            continue
        lines.append(line[4:] if fenced == "literal" else re.sub(r"::$", ":", line) if not fenced else line)
    return "\n".join([*lines, *(["```"] if fenced else [])])


class MarkdownDocstrings(griffe.Extension):
    """Every docstring, before it is rendered."""

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        """Once for each module, class, function and attribute."""
        if obj.docstring is not None:
            obj.docstring.value = as_markdown(obj.docstring.value)
