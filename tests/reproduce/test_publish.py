"""The kept results and the pages made from them."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedstill.core.errors import FedstillError
from fedstill.core.files import to_json
from fedstill.reproduce.claims import Claim, judge
from fedstill.reproduce.pages import PageTable, filled, page_table
from fedstill.reproduce.publish import keep, kept, rebuild, studies_page, with_claims

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


def _record(folder: Path, name: str, cells: dict[tuple[str, str], list[float]], columns: str, more: str = "") -> None:
    listed = [{"row": row, "column": column, "ours": ours, "paper": None} for (row, column), ours in cells.items()]
    said = f"fedstill reproduce {name} --scale small --seeds 0,1 --data DATA --columns {columns}{more}"
    record = {"study": name, "scale": "small", "seeds": [0, 1], "command": said, "minutes": 1.0, "runs": 2, "cells": listed}
    (folder / name).mkdir(parents=True)
    (folder / name / "cells.json").write_text(to_json(record))


def test_what_was_kept_before_stays_where_a_new_record_has_nothing(tmp_path):
    """Columns of a study may be run at different commits; each cell remembers its own."""
    _record(tmp_path / "one", "mine", {("A", "x"): [0.1, 0.2], ("A", "y"): [0.3, 0.4]}, "x,y")
    _record(tmp_path / "two", "mine", {("A", "y"): [0.5, 0.6]}, "y")
    data = tmp_path / "data"
    keep(tmp_path / "one", data, "HEAD")
    first = kept(data)["mine"]["commit"]
    keep(tmp_path / "two", data, "HEAD~1")
    found = kept(data)["mine"]
    assert {(c["row"], c["column"]): (c["ours"], c["commit"] == first) for c in found["cells"]} == {
        ("A", "x"): ([0.1, 0.2], True),
        ("A", "y"): ([0.5, 0.6], False),
    }
    assert (found["runs"], found["minutes"]) == (4, 2.0)
    assert f"kept at commits {first}, {found['commit']}." in studies_page(kept(data))
    assert found["command"] == "fedstill reproduce mine --scale small --seeds 0,1 --data DATA"
    keep(tmp_path / "one", data, "HEAD")  # nothing of the others is left
    assert (kept(data)["mine"]["runs"], kept(data)["mine"]["minutes"]) == (2, 1.0)


def test_records_of_other_settings_are_no_rows_of_the_same_table(tmp_path):
    data = tmp_path / "data"
    _record(tmp_path / "one", "mine", {("A", "x"): [0.1, 0.2], ("A", "y"): [0.3, 0.4]}, "x,y", " --set engine.threads=1")
    _record(tmp_path / "two", "mine", {("A", "y"): [0.5, 0.6]}, "y", " --set rounds=2")
    keep(tmp_path / "one", data)
    with pytest.raises(FedstillError, match="kept with no settings, and the new record has rounds=2"):
        keep(tmp_path / "two", data)
    with pytest.raises(FedstillError, match="has no records"):
        keep(tmp_path, data / "nothing")
    with pytest.raises(FedstillError, match="no commit 'typo'"):
        keep(tmp_path / "one", data, "typo")


def test_a_table_of_a_page_has_means_differences_and_what_was_never_reached():
    cells = [
        {"row": "A", "column": "pool x", "ours": [0.5, 0.6]},
        {"row": "A", "column": "pool y", "ours": [0.7, 0.8]},
        {"row": "B", "column": "pool x", "ours": [0.6, 0.7]},
        {"row": "B", "column": "pool y", "ours": [0.9, 1.0]},
        {"row": "A", "column": "rounds", "ours": [3.0, None]},
    ]
    record = {"cells": cells, "seeds": [0, 1], "commit": "abc"}
    table = page_table(record, PageTable("s", "pool", against="A", mean=True, names={"B": "ours"}))
    assert table.splitlines() == [
        "| | x | y | mean |",
        "|---|---|---|---|",
        "| A | .550 ± .050 | .750 ± .050 | .650 ± .050 |",
        "| ours | .650 ± .050 (+10.0) | .950 ± .050 (+20.0) | .800 ± .050 (+15.0) |",
        "",
        "Seeds 0, 1; commit abc.",
    ]
    assert "| A | 3, - |" in page_table(record, PageTable("s", ["rounds"], digits=0))
    with pytest.raises(FedstillError, match="has no row or column"):
        page_table(record, PageTable("s", "nothing"))
    with pytest.raises(FedstillError, match="has no row 'a' for differences"):
        page_table(record, PageTable("s", "pool", against="a"))  # it would be a table without differences
    for mark in ('study = "s", againts = "A"', "study = s"):
        with pytest.raises(FedstillError, match="mark cannot be read"):
            filled(f"<!-- table: {mark} -->\n<!-- end of table -->", {"s": record})


def test_kept_results_name_their_commit():
    assert all(
        record["commit"] and record["command"].startswith("fedstill reproduce")
        for record in kept(ROOT / "docs/results/data").values()
    )
