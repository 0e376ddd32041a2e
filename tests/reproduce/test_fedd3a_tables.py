"""The studies of FedD3A at a size for tests."""

from __future__ import annotations

from fedstill.reproduce import Plan, published, reproduce, studies


def test_table_2_shows_that_subspaces_classify_better_than_means(tmp_path):
    cells = reproduce("fedd3a-table2", Plan(tmp_path, seeds=(0, 1))).cells
    prototype, projection = ({c.row: c for c in cells}[row] for row in ("prototype", "projection"))
    assert projection.paper.value == 0.907
    assert all(ours > other for ours, other in zip(projection.ours, prototype.ours, strict=True))
    assert "0.693 ± 0.005" in (tmp_path / "table.md").read_text()


def test_table_1_has_the_papers_rows(tmp_path):
    tiny = ("data.limit=60", "data.test_limit=30", "data.image_size=8", "local.epochs=1")
    quick = Plan(tmp_path, sets=tiny, only=("ceiling", "fedd3a-soft"))
    cells = reproduce("fedd3a-table1", quick).cells
    assert {c.row for c in cells} == {"Ceiling", "FedD3A-soft"}
    assert {c.column for c in cells} == {"mnist", "optdigits", "rotated", "Avg"}
    assert {c.row: c.paper.value for c in cells if c.column == "Avg"} == {"Ceiling": 0.445, "FedD3A-soft": 0.439}


def test_the_papers_averages_are_those_of_their_columns():
    names = ("infograph", "painting", "quickdraw", "real", "sketch")
    for row in ("Ceiling", "Avg", "Random", "FedD3A-onehot", "FedD3A-soft"):
        mean = sum(published("fedd3a-table1", row, name).value for name in names) / 5
        assert abs(mean - published("fedd3a-table1", row, "Avg").value) < 0.0011
    assert {"fedd3a-table1", "fedd3a-table2"} <= set(studies())
