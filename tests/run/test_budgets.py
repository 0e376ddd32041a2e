"""What was spent is said in the same words wherever a run is shown."""

from __future__ import annotations

import json
import re

import pytest

from fedstill.audit.report import audit
from fedstill.bundles.export import export_card
from fedstill.bundles.loading import load
from fedstill.config.tables import Privacy
from fedstill.core.accounting import Ledger
from fedstill.report.page import build_page
from fedstill.run.budgets import budget_words, client_budgets
from fedstill.run.loop import run
from fedstill.run.show import Shown
from tests.conftest import tiny_config


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    private = {"client": {"clip": 1.0, "noise": 2.0}}
    return run(tiny_config(privacy=private), tmp_path_factory.mktemp("spent") / "run")


def test_the_words_are_on_the_console_the_page_the_card_and_in_the_audit(done, capsys):
    (words,) = budget_words(done.summary["privacy"])
    spent = Ledger().gaussian(2.0, steps=2).epsilon(1e-5)
    assert words.startswith(f"client-level differential privacy: epsilon {spent:.3g} at delta 1e-05; it covers the models")
    Shown().finished(done.summary)
    assert words in capsys.readouterr().out
    page = build_page([done.folder]).read_text()
    data = json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', page)[1])
    assert data["runs"][0]["privacy"] == [words]
    assert words.split(";")[0] in export_card(load(done.folder), {})
    found = audit(done.folder, attacks=())
    assert found.private
    assert found.words == [words]


def test_ledgers_of_clients_are_carried_from_line_to_line():
    both = Privacy.model_validate({"sample": {"noise": 1.0}, "reports": {"noise": 2.0}})
    first = client_budgets(both, {"a": 1.0, "b": 1.5}, None)
    later = client_budgets(both, {"a": 2.0}, {"privacy": first})
    assert later["sample"]["clients"] == {"a": 2.0, "b": 1.5}
    assert (later["sample"]["epsilon"], later["sample"]["delta"]) == (2.0, 1e-5)
    assert client_budgets(both, {}, {"privacy": later}) == later  # nobody took part
    assert "weights and reports" in later["sample"]["covers"]
    assert "those who know the seed" in later["sample"]["covers"]
    assert client_budgets(Privacy(), {"a": 1.0}, None) == {}
    secret = Privacy.model_validate({"sample": {"noise": 1.0, "secret": True}})
    assert "seed" not in client_budgets(secret, {"a": 1.0}, None)["sample"]["covers"]
