"""Markdown with text from others: names of bundles, sites and classes are shown literally and never interpreted."""

from __future__ import annotations

import re
from collections.abc import Sequence

__all__ = ["plain", "table", "with_article"]


def plain(text: object, longest: int = 200) -> str:
    """Untrusted text as Markdown that shows it literally.

    >>> print(plain("site|<b>*a*</b>" + chr(10) + "# owned [x](y)"))
    site\\|&lt;b&gt;\\*a\\*&lt;/b&gt; \\# owned \\[x\\](y)
    """
    words = " ".join("".join(c if c.isprintable() else " " for c in str(text)).split())
    words = words if len(words) <= longest else words[: longest - 3] + "..."
    words = words.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return re.sub(r"([\\`*_{}\[\]#|~])", r"\\\1", words)


def with_article(name: str) -> str:
    """Untrusted text with its indefinite article, as Markdown.

    >>> with_article("efficientnet-lite0"), with_article("resnet-8"), with_article("mlp"), with_article("unet")
    ('an efficientnet-lite0', 'a resnet-8', 'an mlp', 'a unet')
    """
    return f"{'an' if name.lower().startswith(('a', 'e', 'i', 'o', 'mlp')) else 'a'} {plain(name)}"


def table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> list[str]:
    """The lines of a table; cells are untrusted text.

    >>> table(["who", "n"], [["a|b", 3]])
    ['| who | n |', '|---|---|', '| a\\\\|b | 3 |']
    """
    body = ["| " + " | ".join(plain(cell) for cell in row) + " |" for row in rows]
    return ["| " + " | ".join(map(plain, head)) + " |", "|---" * len(head) + "|", *body]
