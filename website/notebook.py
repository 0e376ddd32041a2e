"""A notebook as a page: its text, its code, and what the code printed and drew when it was last run."""

from __future__ import annotations

import json
import re
from typing import Any

__all__ = ["notebook_markdown"]


def notebook_markdown(content: bytes) -> str:
    """The page of a notebook.

    >>> cells = [{"cell_type": "markdown", "source": ["# Hello"]}]
    >>> notebook_markdown(json.dumps({"cells": cells}).encode())
    '# Hello\\n'
    """
    cells = json.loads(content)["cells"]
    return "\n\n".join(part for cell in cells for part in parts_of(cell)).strip() + "\n"


def parts_of(cell: dict[str, Any]) -> list[str]:
    """A cell's Markdown, or its code and outputs."""
    source = "".join(cell["source"])
    if cell["cell_type"] == "markdown":
        return [source]
    return [f"```python\n{source}\n```", *filter(None, map(shown, cell["outputs"]))]


def shown(output: dict[str, Any]) -> str:
    """What an output looks like: a picture, else text."""
    data = output.get("data", {})
    if "image/png" in data:
        return f'<img class="output" alt="What the code above drew" src="data:image/png;base64,{joined(data["image/png"])}">'
    text = joined(output.get("text") or data.get("text/plain") or "")
    text = re.sub(r"\x1b\[[0-9;]*m", "", text).rstrip()
    if "text/html" in data and text.startswith("<"):  # only the name of an object that notebooks draw, such as a progress bar
        return ""
    return f"```text {{ .output }}\n{text}\n```" if text else ""


def joined(text: str | list[str]) -> str:
    """Notebooks keep text as a list of lines."""
    return (text if isinstance(text, str) else "".join(text)).replace("\r", "")
