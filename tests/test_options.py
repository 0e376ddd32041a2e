"""Descriptions of options are read from the source of their tables, where there is one."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest

from fedstill.core.options import Part, descriptions


def test_a_table_within_a_function_has_descriptions() -> None:
    class Inner(Part):
        """A table with text
        that is not indented."""

        size: int = 1
        """Its size."""

    assert descriptions(Inner) == {"size": "Its size."}


def test_a_table_without_a_source_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    made = ModuleType("made")
    monkeypatch.setitem(sys.modules, "made", made)
    exec("from fedstill.core.options import Part\nclass Made(Part):\n    size: int = 1\n    'Its size.'", made.__dict__)
    assert descriptions(made.Made) == {}
