"""``fedstill cache``: results that are kept on disk so that they need not be computed again."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from fedstill.core.console import console, megabytes
from fedstill.core.errors import FedstillError

if TYPE_CHECKING:  # slow: imports torch
    from fedstill.data.cache import Kept

__all__ = ["cache"]

KINDS = {"features": "frozen network's outputs", "data": "decoded data", "unfinished": "left by a stopped process"}


def cache(
    clear: Annotated[bool, typer.Option("--clear", help="Remove the listed files; they are made again when needed.")] = False,
    only: Annotated[str | None, typer.Option(metavar="|".join(KINDS), help="List or remove only one kind.")] = None,
) -> None:
    """Show the cache (FEDSTILL_CACHE, or ~/.cache/fedstill): decoded data and outputs of frozen networks."""
    from fedstill.data.cache import cache_folder, kept_in  # slow: imports torch
    from fedstill.data.cache import clear as clear_cache  # slow

    if only is not None and only not in KINDS:
        raise FedstillError(f"--only takes {', '.join(KINDS)}, not '{only}'")
    folder = cache_folder()
    found = clear_cache(folder, only) if clear else [kept for kept in kept_in(folder) if only in (None, kept.what)]
    if found and not clear:
        shown = Table("name", "what for", "files", "size", "last used", box=None, pad_edge=False)
        groups: dict[tuple[str, str], list[Kept]] = {}
        for kept in found:
            groups.setdefault((kept.name, kept.what), []).append(kept)
        for (name, what), files in groups.items():
            used = datetime.fromtimestamp(max(kept.used for kept in files)).strftime("%Y-%m-%d %H:%M")
            shown.add_row(name, KINDS[what], str(len(files)), megabytes(sum(kept.bytes for kept in files)), used)
        console.print(shown)
    done = "removed from" if clear else "in"
    total = megabytes(sum(kept.bytes for kept in found))
    console.print(f"{len(found)} files, {total}, {done} {folder}", soft_wrap=True, markup=False)
