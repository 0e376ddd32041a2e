"""Pictures of how a system's round flows, from lines that can be read as they are.

A line is ``who: what``; an arrow with what travels stands between two boxes of different owners: ``-> weights``.
"""

from __future__ import annotations

from html import escape
from itertools import pairwise
from textwrap import wrap

__all__ = ["flow_svg"]

WIDTH, LINE, PAD, GAP = 300, 19, 11, 44  # of a box: its width, a line of text, its padding, the room for an arrow
LEFT, RIGHT = 10, 350  # where the columns begin: clients on the left, the server on the right


def flow_svg(text: str) -> str:
    """The picture of a flow. Boxes of the clients stand on the left, of the server on the right, one below the other.

    >>> "Train" in flow_svg("clients: Train\\n-> weights\\nserver: Average")
    True
    """
    boxes, labels = parsed(text)
    parts, top, places = [], 34, []
    for who, what in boxes:
        lines = wrap(what, 41)
        height = len(lines) * LINE + 2 * PAD
        x = LEFT if who == "clients" else RIGHT
        parts.append(f'<rect class="{who}" x="{x}" y="{top}" width="{WIDTH}" height="{height}" rx="6"/>')
        for i, line in enumerate(lines):
            y = top + PAD + 14 + i * LINE
            parts.append(f'<text x="{x + WIDTH / 2}" y="{y}" text-anchor="middle">{escape(line)}</text>')
        places.append((x, top, height))
        top += height + GAP
    for ((x, y, height), (x2, y2, _)), label in zip(pairwise(places), labels, strict=True):
        parts += arrow(x, y + height, x2, y2, label)
    heads = "".join(
        f'<text class="owner" x="{x + WIDTH / 2}" y="20" text-anchor="middle">{name}</text>'
        for name, x in (("clients", LEFT), ("server", RIGHT))
    )
    said = escape("; then ".join(f"{who}: {what}" for who, what in boxes), quote=True)
    marker = (
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" orient="auto">'
        '<path d="M0,0 L8,4 L0,8 z"/></marker></defs>'
    )
    return (
        f'<div class="flow"><svg role="img" aria-label="{said}" viewBox="0 0 660 {top - GAP + 12}" '
        f'xmlns="http://www.w3.org/2000/svg">{marker}{heads}{"".join(parts)}</svg></div>\n'
    )


def parsed(text: str) -> tuple[list[tuple[str, str]], list[str]]:
    """The boxes and the labels of the arrows between them."""
    boxes: list[tuple[str, str]] = []
    labels: list[str] = []
    for line in filter(None, map(str.strip, text.splitlines())):
        if line.startswith("->"):
            labels += [""] * (len(boxes) - 1 - len(labels)) + [line[2:].strip()]
            continue
        who, what = line.split(":", 1)
        if who not in ("clients", "server"):
            raise ValueError(f"a flow has boxes of 'clients' and 'server', not of '{who}'")
        labels += [""] * (len(boxes) - 1 - len(labels))
        boxes.append((who, what.strip()))
    return boxes, labels + [""] * (len(boxes) - 1 - len(labels))


def arrow(x: int, y: int, x2: int, y2: int, label: str) -> list[str]:
    """An arrow from the middle of one box's bottom to the middle of the next one's top, with its label."""
    start, end = x + WIDTH / 2, x2 + WIDTH / 2
    middle = (y + y2) / 2
    path = f"M{start},{y} L{start},{middle} L{end},{middle} L{end},{y2 - 2}"
    parts = [f'<path class="arrow" d="{path}" marker-end="url(#tip)"/>']
    if label:
        where = (start + end) / 2 if start != end else start + 8
        anchor = "middle" if start != end else "start"
        parts.append(f'<text class="label" x="{where}" y="{middle - 6}" text-anchor="{anchor}">{escape(label)}</text>')
    return parts
