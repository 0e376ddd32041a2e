"""The documentation's examples run, and the list of options is the code's own."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from fedstill.algorithms import algorithms
from fedstill.cli.reference import reference
from fedstill.config.tables import Config
from fedstill.core.options import descriptions, table_in
from fedstill.fusion.weightings import options_kind, weightings
from fedstill.run.configuration import resolve

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
FOLLOWED = ("extending.md",)  # pages whose files belong together: a test of their own follows them


def blocks(language):
    pattern = re.compile(rf"^```{language}\n(.*?)^```", re.MULTILINE | re.DOTALL)
    return [
        pytest.param(text, id=f"{page.stem}-{i}")
        for page in PAGES
        if page.name not in FOLLOWED
        for i, text in enumerate(pattern.findall(page.read_text()))
    ]


@pytest.mark.parametrize("text", blocks("toml"))
def test_toml_examples_are_valid_configurations(text):
    import tomllib

    tree = tomllib.loads(text)
    if "data" in tree:
        resolve(tree)


@pytest.mark.parametrize("text", blocks("python"))
def test_python_examples_run(text, tmp_path, monkeypatch):
    if "fedstill.engine.flower.strategies" in text or "engine.loopback" in text:
        pytest.importorskip("flwr", reason="the extra fedstill[flower] is not installed")
    monkeypatch.chdir(tmp_path)
    exec(compile(text, "example", "exec"), {"__name__": "example"})


def test_configuration_page_lists_every_option():
    page = (ROOT / "docs" / "configuration.md").read_text()
    assert page.split("<!-- options -->")[1].strip() == reference().strip(), "run: python -m fedstill.cli.reference"


def tables(kind):
    """A table of options and all that it holds."""
    inner = [table_in(field.annotation) for field in kind.model_fields.values()]
    return {kind}.union(*(tables(found) for found in inner if found is not None))


def test_every_option_is_described_where_it_stands():
    roots = [Config, *(kind.Options for kind in algorithms().values()), *filter(None, map(options_kind, weightings()))]
    found = set().union(*map(tables, roots))
    assert len(found) > 30, "tables are no longer found"
    missing = [
        f"{kind.__module__}.{kind.__name__}.{n}" for kind in found for n in kind.model_fields if not descriptions(kind).get(n)
    ]
    assert not missing, f"no string below: {', '.join(sorted(missing))}"


def test_links_between_pages_lead_somewhere():
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#]+?)(?:#[^)]*)?\)", page.read_text()):
            if "://" not in target:
                assert (page.parent / target).exists(), f"{page.name} links to {target}"
