import json
import statistics
from dataclasses import replace

import pytest
from rich.console import Console

from fedstill.report.runs import load_run, load_runs
from fedstill.report.tables import columns, labels, latex, markdown, rich_table, summarise
from tests.report.runfolders import write_comparison, write_run


def cells(text: str) -> dict[str, dict[str, str]]:
    head, _, *lines = [[c.strip() for c in line.strip("|\n").split(" | ")] for line in text.splitlines()]
    return {line[0].strip(): dict(zip(head, line, strict=True)) for line in lines}


def test_mean_and_deviation_over_seeds_are_those_of_the_summaries(tmp_path):
    write_comparison(tmp_path)
    rows = summarise(load_runs([tmp_path]))
    assert [row.label for row in rows] == ["fedavg", "fedd3a", "feddf"]
    for row in rows:
        said = [json.loads((tmp_path / row.label / f"seed{s}" / "summary.json").read_text()) for s in range(3)]
        final = [s["final_accuracy"] for s in said]
        assert row.accuracy.mean == pytest.approx(statistics.mean(final))
        assert row.accuracy.std == pytest.approx(statistics.stdev(final))
        assert row.bytes_total.mean == pytest.approx(statistics.mean(s["bytes_total"] for s in said))
        assert row.seeds == [0, 1, 2]


def test_best_of_each_column_is_marked_once(tmp_path):
    write_comparison(tmp_path)
    table = cells(markdown(summarise(load_runs([tmp_path]))))
    assert table["fedd3a"]["accuracy %"].startswith("**")
    assert not table["fedavg"]["accuracy %"].startswith("**")
    assert table["fedavg"]["seconds"].startswith("**"), "fewest seconds are best"
    assert table["fedavg"]["MB"].startswith("**")
    assert table["feddf"]["MB"].startswith("**"), "a tie marks both"
    assert table["fedavg"]["seeds"] == "3"


def test_where_all_are_equal_none_is_marked(tmp_path):
    for name in ("a", "b"):
        write_run(tmp_path / name, name)
    table = cells(markdown(summarise(load_runs([tmp_path]))))
    assert not any(row["MB"].startswith("**") for row in table.values())


def test_a_target_reached_by_some_seeds_only_does_not_win(tmp_path):
    fast = load_run(write_run(tmp_path / "a", "fast"))
    slow = load_run(write_run(tmp_path / "b", "slow"))
    runs = [
        replace(fast, summary=fast.summary | {"rounds_to": {"0.5": 2}}),
        replace(fast, summary=fast.summary | {"rounds_to": {"0.5": None}, "seed": 1}),
        replace(slow, summary=slow.summary | {"rounds_to": {"0.5": 5}}),
    ]
    table = cells(markdown(summarise(runs)))
    assert table["fast"]["rounds to 50 %"] == "2 (1/2)"
    assert table["slow"]["rounds to 50 %"] == "**5**"


def test_a_target_never_reached_is_a_dash_and_bytes_count_until_it(tmp_path):
    run = load_run(write_run(tmp_path / "a", "feddf", targets=(0.5, 0.99)))
    table = cells(markdown(summarise([run])))["feddf"]
    assert table["rounds to 99 %"] == "-"
    assert table["MB to 99 %"] == "-"
    reached = run.summary["rounds_to"]["0.5"]
    sent = sum(line["bytes_down"] + line["bytes_up"] for line in run.history if line["round"] <= reached)
    assert table["MB to 50 %"] == f"{sent / 1e6:.1f}"


def test_of_many_targets_the_telling_ones_are_shown(tmp_path):
    for name, reached in {"a": [1, 2, 5, None], "b": [1, 3, None, None]}.items():
        write_run(tmp_path / name, name)
        said = json.loads((tmp_path / name / "summary.json").read_text())
        said["rounds_to"] = dict(zip(["0.5", "0.6", "0.7", "0.8"], reached, strict=True))
        (tmp_path / name / "summary.json").write_text(json.dumps(said))
    shown = [c.title for c in columns(summarise(load_runs([tmp_path])))]
    assert [title for title in shown if "rounds" in title] == ["rounds to 60 %", "rounds to 70 %"]


def test_settings_tell_apart_runs_of_one_algorithm(tmp_path):
    for seed in (0, 1):
        write_run(tmp_path / f"cool{seed}", "feddf", seed, model={"name": "cnn", "width": 1.0})
        write_run(tmp_path / f"warm{seed}", "feddf", seed, model={"name": "cnn", "width": 4.0})
    runs = load_runs([tmp_path])
    assert labels(runs) == ["feddf (model.width=1.0)"] * 2 + ["feddf (model.width=4.0)"] * 2
    assert [len(row.runs) for row in summarise(runs)] == [2, 2]


def test_no_runs_no_summary_no_history(tmp_path):
    (tmp_path / "config.toml").write_text('seed = 1\nrounds = 3\n[algorithm]\nname = "kdcl"\n')
    rows = summarise([load_run(tmp_path)])
    assert markdown(rows) == "| method | seeds |\n|---|---:|\n| kdcl | 1 (1 unfinished) |\n"
    assert latex([]).startswith(r"\begin{tabular}")


def test_a_run_that_has_just_begun_does_not_win_for_spending_least(tmp_path):
    write_run(tmp_path / "a", "feddf", rounds=8)
    (write_run(tmp_path / "b", "dafkd", rounds=2) / "summary.json").unlink()
    table = cells(markdown(summarise(load_runs([tmp_path]))))
    assert table["feddf"]["MB"].startswith("**")
    assert not table["dafkd"]["MB"].startswith("**")
    assert table["dafkd"]["seeds"] == "1 (1 unfinished)"


def test_rounds_that_were_not_evaluated_are_passed_over(tmp_path):
    run = load_run(write_run(tmp_path, "feddf", rounds=4))
    final, domains = run.history[2]["accuracy"], run.history[2]["domains"]
    run.history[3].update(accuracy=None, domains={})
    row = summarise([replace(run, summary={})])[0]
    assert row.accuracy.mean == final
    assert {name: found.mean for name, found in row.domains.items()} == domains


def test_the_engine_does_not_tell_methods_apart(tmp_path):
    for workers in (0, 2):
        write_run(tmp_path / str(workers), "feddf", workers, engine={"workers": workers}, evaluation={"every": workers})
    assert labels(load_runs([tmp_path])) == ["feddf", "feddf"]


def test_latex_escapes_and_marks(tmp_path):
    write_comparison(tmp_path, algorithms=("fed_avg", "feddf"))
    text = latex(summarise(load_runs([tmp_path])))
    assert r"fed\_avg" in text
    assert r"accuracy \%" in text
    assert text.count(r"\textbf{") >= 2
    assert r"$\pm$" in text
    assert len({line.count("&") for line in text.splitlines() if line.endswith(r"\\")}) == 1


def test_terminal_table_has_the_same_cells(tmp_path):
    write_comparison(tmp_path, seeds=(0,))
    rows = summarise(load_runs([tmp_path]))
    console = Console(width=300, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(rich_table(rows))
    shown = console.export_text()
    for row in rows:
        for column in columns(rows):
            assert column.cell(row) in shown
