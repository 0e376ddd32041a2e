"""The frame of pages without scripts: those of ``fedstill evaluate`` and ``fedstill audit``."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from importlib import resources

from fedstill.core.version import __version__

__all__ = ["page_shell", "row"]

STYLE = """
table { min-width: 0; margin: 0.3rem 0 1.2rem; }
"""


def page_shell(title: str, body: str, style: str = "") -> str:
    """A self-contained page with this title and body (HTML).

    >>> "<title>a &lt;b&gt;</title>" in page_shell("a <b>", "<p>text</p>")
    True
    """
    title = escape(title)
    style = (resources.files("fedstill.report") / "page.css").read_text(encoding="utf-8") + STYLE + style
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; img-src data:; style-src 'unsafe-inline'">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<link rel="icon" href="data:,">
<title>{title}</title>
<style>
{style}</style>
</head>
<body>
<header><h1>{title}</h1></header>
<main>
{body}
</main>
<footer><p>Made by fedstill {__version__}. This page is self-contained: it loads nothing.</p></footer>
</body>
</html>
"""


def row(kind: str, cells: list[str], texts: Sequence[int] = ()) -> str:
    """A table's row of ``th`` or ``td`` cells; those at the places ``texts`` have the class ``text``.

    >>> row("td", ["a<b", "1"], texts=[0])
    '<tr><td class="text">a&lt;b</td><td>1</td></tr>\\n'
    """
    marks = [' class="text"' if place in texts else "" for place in range(len(cells))]
    return f"<tr>{''.join(f'<{kind}{mark}>{escape(cell)}</{kind}>' for mark, cell in zip(marks, cells, strict=True))}</tr>\n"
