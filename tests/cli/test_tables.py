"""Names in the command line's lists are whole, on a narrow terminal and in a pipe: they are there to be copied."""

from __future__ import annotations

import pytest
from rich.console import Console

from fedstill.algorithms import algorithms
from fedstill.cli import listing, reproduce, tables
from fedstill.config.presets import presets
from fedstill.reproduce import STUDIES

LISTS = {
    "studies": (lambda: reproduce.reproduce(list_=True), STUDIES.names),
    "systems": (lambda: listing.algorithms(cite=None, as_json=False), algorithms),
    "presets": (listing.presets, presets),
}


@pytest.mark.parametrize("terminal", [True, False])
@pytest.mark.parametrize("kind", LISTS)
def test_every_name_is_whole(kind: str, terminal: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    console = Console(width=80, force_terminal=terminal, color_system=None, highlight=False)
    monkeypatch.setattr(tables, "console", console)
    monkeypatch.setattr(tables, "remark", lambda text: console.print(text, soft_wrap=True, markup=False))
    show, names = LISTS[kind]
    show()
    said = capsys.readouterr().out
    assert "…" not in said
    firsts = {line.strip("│ ").split(" ")[0] for line in said.splitlines() if line.strip("│ ")}
    assert firsts >= set(names())
    if terminal:
        assert all(len(line) <= 80 for line in said.splitlines())
    else:  # a line each, under the title and the heads
        assert len(said.splitlines()) == 2 + len(list(names()))
