import json

import pytest

from fedstill.core.errors import FedstillError
from fedstill.report.runs import find_runs, load_run
from tests.report.runfolders import write_comparison, write_run


def test_a_whole_run_has_no_problem(tmp_path):
    run = load_run(write_run(tmp_path, "feddf", seed=3, rounds=5))
    assert run.problems == []
    assert (run.algorithm, run.seed, len(run.history), run.finished) == ("feddf", 3, 5, True)
    assert len(run.clients) == 6
    assert len(run.classes) == 10


def test_finds_each_run_once_in_natural_order(tmp_path):
    write_comparison(tmp_path / "cmp", algorithms=("feddf",), seeds=(0, 2, 10), rounds=2)
    write_run(tmp_path / "single", rounds=2)
    (tmp_path / "cmp" / "config.toml").write_text("rounds = 2\n")
    found = find_runs([tmp_path / "cmp", tmp_path / "single", tmp_path / "cmp" / "feddf"])
    assert [str(p.relative_to(tmp_path)) for p in found] == [
        "cmp/feddf/seed0",
        "cmp/feddf/seed2",
        "cmp/feddf/seed10",
        "single",
    ]


def test_a_folder_that_is_not_there_is_a_clear_line(tmp_path):
    with pytest.raises(FedstillError, match="no such folder"):
        find_runs([tmp_path / "nowhere"])


def test_an_interrupted_run_says_how_far_it_came(tmp_path):
    write_run(tmp_path, rounds=8)
    (tmp_path / "summary.json").unlink()
    lines = (tmp_path / "history.jsonl").read_text().splitlines()
    (tmp_path / "history.jsonl").write_text("\n".join(lines[:3]) + "\n" + lines[3][:40])
    run = load_run(tmp_path)
    assert not run.finished
    assert run.final_accuracy == json.loads(lines[2])["accuracy"]
    assert run.best_accuracy == max(json.loads(line)["accuracy"] for line in lines[:3])
    told = "\n".join(run.problems)
    assert "summary.json is missing" in told
    assert "skipped 1 damaged line (4)" in told
    assert "3 of 8 rounds" in told


def test_damaged_files_are_named(tmp_path):
    write_run(tmp_path)
    (tmp_path / "config.toml").write_text("seed = = 1")
    (tmp_path / "summary.json").write_bytes(b"\xff\xfe{")
    (tmp_path / "clients.json").write_text("[1, 2]")
    run = load_run(tmp_path)
    assert [p.split(" ")[0] for p in run.problems] == ["config.toml", "summary.json", "clients.json"]
    assert len(run.history) == 8


@pytest.mark.parametrize(
    "line", ["[]", '{"round": "1"}', '{"accuracy": 1}', "null", '{"round": true}', '{"round": 1', "[" * 100_000]
)
def test_lines_that_are_no_round_are_skipped(tmp_path, line):
    (tmp_path / "history.jsonl").write_text(line + "\n" + '{"round": 2, "accuracy": 0.25}\n')
    run = load_run(tmp_path)
    assert [x["round"] for x in run.history] == [2]
    assert any("damaged line (1)" in p for p in run.problems)


def test_values_of_the_wrong_shape_are_left_out_and_named(tmp_path):
    bad = {
        "round": 1,
        "accuracy": float("nan"),
        "domains": [1],
        "seconds": {"train": "x"},
        "dropped": 3,
        "weights": None,
    }
    (tmp_path / "history.jsonl").write_text(json.dumps(bad) + "\n")
    run = load_run(tmp_path)
    line = run.history[0]
    assert line["accuracy"] is None
    assert line["domains"] == {}
    assert line["seconds"] == {}
    assert line["dropped"] == []
    told = "\n".join(run.problems)
    for name in ("accuracy", "domains", "seconds.train", "dropped"):
        assert f"'{name}'" in told


def test_a_distillation_of_one_student_need_not_name_it(tmp_path):
    (tmp_path / "history.jsonl").write_text('{"round": 1, "accuracy": 0.5, "distillation": {"steps": 9, "first": 2.0}}\n')
    run = load_run(tmp_path)
    assert run.history[0]["distillation"] == {"student": {"steps": 9, "first": 2.0}}
    assert not any("distillation" in problem for problem in run.problems)


def test_what_distillation_kept_is_a_word_and_no_problem(tmp_path):
    line = {"round": 1, "distillation": {"mlp": {"steps": 9, "kept": "merged"}}}
    (tmp_path / "history.jsonl").write_text(json.dumps(line) + "\n")
    run = load_run(tmp_path)
    assert run.history[0]["distillation"] == {"mlp": {"steps": 9}}
    assert not any("distillation" in problem for problem in run.problems)


def test_a_repeated_round_counts_once_and_the_later_line_stands(tmp_path):
    lines = [
        {"round": 1, "accuracy": 0.1},
        {"round": 2, "accuracy": 0.2},
        {"round": 2, "accuracy": 0.3},
        {"round": 5, "accuracy": 0.4},
    ]
    (tmp_path / "history.jsonl").write_text("".join(json.dumps(x) + "\n" for x in lines))
    run = load_run(tmp_path)
    assert [x["accuracy"] for x in run.history] == [0.1, 0.3, 0.4]
    assert any("2 rounds missing (3, 4)" in p for p in run.problems)


def test_a_summary_that_disagrees_with_the_history_is_told(tmp_path):
    write_run(tmp_path)
    said = json.loads((tmp_path / "summary.json").read_text())
    (tmp_path / "summary.json").write_text(json.dumps(said | {"final_accuracy": 0.99}))
    assert any("0.9900" in p for p in load_run(tmp_path).problems)


def test_rounds_to_a_target_the_summary_does_not_know_come_from_the_history(tmp_path):
    run = load_run(write_run(tmp_path, targets=()))
    first = next(x["round"] for x in run.history if x["accuracy"] >= 0.4)
    assert run.rounds_to("0.4") == first
    assert run.rounds_to("1.1") is None


def test_a_line_of_the_wrong_shape_is_left_out_and_named(tmp_path):
    good = {"judge": "pool", "points": [0.0, 1.0], "scores": {"a": [0.5, 0.6], "b": [0.5]}, "delivered": {"a": 1.0, "b": "x"}}
    good["past"] = {"a": {"rounds": 2, "delivered": 0.5}, "b": {"rounds": "x", "delivered": 7}, "c": 7}
    lines = [{"round": 1, "line": good}, {"round": 2, "line": {"points": [1.0, 0.0]}}, {"round": 3, "line": 7, "accuracy": 70.0}]
    (tmp_path / "history.jsonl").write_text("".join(json.dumps(x) + "\n" for x in lines))
    run = load_run(tmp_path)
    empty = {"carried": {}, "snapshots": {}, "faults": {}}
    empty["past"] = {"a": {"rounds": 2, "delivered": 0.5}, "b": {"rounds": 0, "delivered": None}}
    assert run.history[0]["line"] == good | {"scores": {"a": [0.5, 0.6]}, "delivered": {"a": 1.0}} | empty
    assert [line["line"] for line in run.history[1:]] == [None, None]
    assert any("'line' is not usable in 2 rounds (2, 3)" in p for p in run.problems)
    assert run.history[2]["accuracy"] is None, "an accuracy is from 0 to 1"


def test_maps_that_are_no_points_are_told(tmp_path):
    write_run(tmp_path, "fedvirtual", rounds=2)
    assert load_run(tmp_path).feature_map["domains"].keys() == {"mnist", "optdigits", "blended"}
    for points in ([[1, 2, 3]], [[1, float("nan")]], [["1", 2]], [7], "x", None):
        (tmp_path / "features.json").write_text(json.dumps({"domains": {"d": {"real": points, "virtual": []}}}))
        run = load_run(tmp_path)
        assert run.feature_map is None
        assert any("features.json is damaged" in p for p in run.problems)


def test_tables_that_are_no_squares_of_counts_are_told(tmp_path):
    write_run(tmp_path, rounds=2)
    assert load_run(tmp_path).confusion["domains"].keys() == {"mnist", "optdigits", "blended"}
    for table in ([[1, 2]], [[1, -1], [0, 1]], [[1, 0.5], [0, 1]], "x"):
        (tmp_path / "confusion.json").write_text(json.dumps({"classes": ["a", "b"], "domains": {"d": table}}))
        run = load_run(tmp_path)
        assert run.confusion is None
        assert any("confusion.json is damaged" in p for p in run.problems)
