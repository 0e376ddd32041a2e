"""The kept results and the pages made from them."""

from __future__ import annotations

from pathlib import Path

from fedstill.reproduce.claims import Claim, judge
from fedstill.reproduce.publish import kept, rebuild, studies_page, with_claims

ROOT = Path(__file__).parents[2]


def test_the_pages_are_those_of_the_kept_results():
    """If this fails, run `make results`."""
    for path, text in rebuild(ROOT).items():
        assert path.read_text() == text, path


def test_a_record_is_on_the_page_with_how_to_repeat_it():
    cells = [{"row": "A", "column": "x", "ours": [0.25], "paper": None}]
    record = {
        "scale": "tiny",
        "seeds": [0, 1],
        "runs": 2,
        "minutes": 1.5,
        "commit": "abc",
        "command": "fedstill x",
        "cells": cells,
    }
    page = studies_page({"mine": record})
    assert "0.250 (1)" in page
    assert "$ fedstill x" in page
    assert "tiny scale, seeds 0, 1, 2 runs, 1.5 minutes of runs, kept at commit abc." in page


def test_claims_are_counted_by_paper():
    shown = {
        "scale": "tiny",
        "cells": [{"row": r, "column": "x", "ours": v} for r, v in (("A", [0.9, 0.91]), ("B", [0.1, 0.11]))],
    }
    found = [judge(Claim("FedMA", "", "s", pairs), shown) for pairs in ((("A", "B"),), (("B", "A"),))]
    table = "| | systems | claims shown |\n|---|---|---|\n| averaging | FedAvg, FedMA | - |\n"
    assert "| averaging | FedAvg, FedMA | FedMA 1 of 2 (tiny) |" in with_claims(table, found, {"s": shown})


def test_kept_results_name_their_commit():
    assert all(
        record["commit"] and record["command"].startswith("fedstill reproduce")
        for record in kept(ROOT / "docs/results/data").values()
    )
