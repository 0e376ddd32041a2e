"""Every system can be cited."""

from __future__ import annotations

from typer.testing import CliRunner

from fedstill.algorithms import algorithms
from fedstill.cli import app
from fedstill.cli.bibtex import bibtex, entries


def test_every_system_has_an_entry_with_the_facts_of_its_paper():
    found = entries()
    assert set(found) == set(algorithms())
    for name, kind in algorithms().items():
        surname = kind.paper.removeprefix("after ").replace(",", " ").split()[0]
        assert f"{surname}," in found[name], f"{name}: {kind.paper}"
        assert found[name].count("{") == found[name].count("}")
        year = "".join(c for c in kind.paper if c.isdigit())[:4]
        assert f"{{{year}}}" in found[name], f"{name}: {kind.paper}"


def test_all_papers_once_each():
    keys = [line for line in bibtex("all").splitlines() if line.startswith("@")]
    assert len(keys) == len(set(keys)) >= 20


def test_the_command_prints_the_entries():
    result = CliRunner().invoke(app, ["algorithms", "--bibtex", "feddf, fedd3a"])
    assert result.exit_code == 0
    assert result.output.count("@") == 2
    assert "Ensemble Distillation" in result.output
