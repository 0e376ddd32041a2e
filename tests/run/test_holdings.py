import io

from rich.console import Console

from fedstill.run.holdings import who_holds_what


def shown(holdings, classes):
    clients = [{"id": i, "domain": d, "prototype": "mlp", "samples": sum(c), "counts": c} for i, d, c in holdings]
    console = Console(width=100, record=True, file=io.StringIO())
    console.print(who_holds_what({"classes": classes, "clients": clients}))
    return console.export_text()


def test_one_row_a_client():
    text = shown([(f"m-{i}", "m", [10 * i, 5]) for i in range(3)], ["cat", "dog"])
    assert "2 classes" in text
    assert [line.split()[:3] for line in text.splitlines()[1:]] == [
        ["m-0", "m", "5"],
        ["m-1", "m", "15"],
        ["m-2", "m", "25"],
    ]


def test_clients_are_read_one_after_the_other():
    clients = ({"id": f"c{i}", "domain": "a", "prototype": "mlp", "samples": 1, "counts": [1, 0]} for i in range(100))
    table = who_holds_what({"classes": ["0", "1"], "clients": clients})
    assert table is not None
    assert [list(column.cells) for column in table.columns][:2] == [["a"], ["100"]]


def test_many_clients_are_summed_up_by_domain():
    text = shown([(f"c{i}", "ab"[i % 2], [i, 0, 1]) for i in range(100)], ["0", "1", "2"])
    rows = [line.split() for line in text.splitlines()]
    assert rows[0][-1] == "012"
    assert len(rows) == 3
    # Domain a has clients 0, 2, .., 98 with i + 1 samples each: 2450 + 50, from 1 to 99.
    assert rows[1][:7] == ["a", "50", "2,500", "1", "50", "99", "2.0"]


def test_clients_that_do_not_say_what_they_hold_make_no_table():
    client = {"id": "a", "domain": "a", "prototype": "mlp", "samples": 3, "counts": None}
    assert who_holds_what({"classes": ["0"], "clients": [client]}) is None
