"""The page without a browser: its data, its size, its tolerance, what it would load."""

import json
import re
import tempfile
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedstill.core.errors import FedstillError
from fedstill.report import by_class
from fedstill.report.page import build_page, page_data
from fedstill.report.pictures import measures, what_is_wrong
from fedstill.report.runs import load_run
from tests.report.runfolders import grey_png, png, write_comparison, write_run


def data_of(page) -> dict:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page.read_text())
    return json.loads(found[1])


def test_the_data_are_those_of_the_history(tmp_path):
    page = build_page([write_comparison(tmp_path, rounds=6)])
    assert page == tmp_path / "report.html"
    data = data_of(page)
    assert len(data["runs"]) == 9
    for method in data["methods"]:
        for run in (data["runs"][place] for place in method["runs"]):
            folder = tmp_path / method["label"] / f"seed{run['seed']}"
            lines = [json.loads(line) for line in (folder / "history.jsonl").read_text().splitlines()]
            assert run["round"] == [line["round"] for line in lines]
            assert run["accuracy"] == [line["accuracy"] for line in lines]
            assert run["down"] == [line["bytes_down"] for line in lines]
            for name in lines[0]["domains"]:
                assert run["domains"][name] == [line["domains"][name] for line in lines]
            if method["label"] != "fedavg":
                assert run["merged"] == [line["merged_accuracy"] for line in lines]
                assert run["ensemble"] == [line["ensemble_accuracy"] for line in lines]
            assert len(run["dropped"]) == sum(len(line["dropped"]) for line in lines)
            assert run["config"] == (folder / "config.toml").read_text()


def test_the_page_names_nothing_to_load(tmp_path):
    text = build_page([write_run(tmp_path, "dafkd")]).read_text()
    assert not re.search(r'(src|href)="(?!#|data:)', text)
    assert "@import" not in text
    assert "url(" not in text
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', text)[1]
    assert "default-src 'none'" in policy
    assert "connect-src" not in policy


def test_names_cannot_break_out_of_the_page(tmp_path):
    evil = "</script><script>alert(1)</script>{{plotly}}"
    write_run(tmp_path, evil)
    text = build_page([tmp_path]).read_text()
    assert "<script>alert" not in text
    assert data_of(tmp_path / "report.html")["methods"][0]["label"] == evil
    assert len(re.findall(r'id="plotly"', text)) == 1


def test_two_hundred_rounds_of_ten_runs_build_fast_and_stay_small(tmp_path):
    for k in range(10):
        folder = write_run(tmp_path / f"r{k}", ["fedavg", "feddf", "fedd3a", "dafkd", "kdcl"][k % 5], seed=k, rounds=200)
        (folder / "figures").mkdir()
        for f in range(3):
            (folder / "figures" / f"f{f}.png").write_bytes(png(400, seed=f))
    began = time.perf_counter()
    page = build_page([tmp_path])
    assert time.perf_counter() - began < 5
    assert page.stat().st_size < 6_000_000
    assert "left out" in data_of(page)["imagesNote"], "pictures beyond the budget are named, not silently dropped"


def test_many_clients_are_cut_with_a_note(tmp_path):
    run = load_run(write_run(tmp_path, rounds=3))
    for line in run.history:
        line["weights"] = {f"c{k}": k / 4950 for k in range(100)}
    run.clients[:] = [{"id": f"c{k}", "domain": "d", "counts": [1, 2]} for k in range(500)]
    data = page_data([run])
    assert list(data["runs"][0]["courses"]["weights"]) == [f"c{k}" for k in range(76, 100)]
    assert "24 of 100" in data["runs"][0]["coursesNote"]
    assert (data["partitions"][0]["of"], len(data["partitions"][0]["clients"])) == (500, 120)


def test_any_number_by_client_has_its_course_and_a_distillation_its_losses(tmp_path):
    run = load_run(write_run(tmp_path, "fedavg", rounds=2))
    for line in run.history:
        line["votes"] = {"mnist-0": line["round"], "blended-1": 0.5}
        line["worst"] = {"not a client": 3}
        line["distillation"] = {"cnn": {"steps": 10, "first": 0.5, "last": 1.23456789e-7}}
        line["generator_loss"] = 2.5
    shown = page_data([run])["runs"][0]
    assert shown["courses"] == {"votes": {"mnist-0": [1, 2], "blended-1": [0.5, 0.5]}}
    assert shown["losses"] == {"distillation, first step": [0.5, 0.5], "distillation, last step": [1.2346e-7] * 2} | {
        "generator loss": [2.5, 2.5]
    }


def test_what_the_accuracy_is_of_is_passed_on(tmp_path):
    run = load_run(write_run(tmp_path, "kdcl", rounds=1))
    run.history[0]["accuracy_of"] = "the mean over the clients"
    assert page_data([run])["methods"][0]["accuracyOf"] == "the mean over the clients"


def test_weights_by_domain_are_averaged_over_rounds(tmp_path):
    run = load_run(write_run(tmp_path, rounds=3))
    for r, line in enumerate(run.history):
        line["weights_by_domain"] = {"pool": {"a": 0.1 * r, "b": 1 - 0.1 * r}}
    tables = page_data([run])["runs"][0]["weightsByDomain"]
    assert tables == {"mean": {"pool": {"a": 0.1, "b": 0.9}}, "last": {"pool": {"a": 0.2, "b": 0.8}}}


def test_what_a_judge_chose_is_shown_by_prototype(tmp_path):
    run = load_run(write_run(tmp_path, "dafkd", rounds=3))
    run.history[1].pop("line")
    shown = page_data([run])["runs"][0]
    lines = [line["line"] for line in run.history if "line" in line]
    assert shown["line"]["round"] == [1, 3]
    assert shown["line"]["judge"] == "clients"
    assert shown["line"]["prototypes"]["cnn"]["scores"] == [line["scores"]["cnn"] for line in lines]
    assert shown["line"]["prototypes"]["cnn"]["carried"] == [1.0, 1.0]
    scores = lines[0]["scores"]["cnn"]
    assert shown["carried"][0] == round(100 * (scores[-1] - scores[0]), 2)
    gain = run.history[1]["accuracy"] - run.history[1]["merged_accuracy"]
    assert shown["carried"][1] == shown["gained"][1] == round(100 * gain, 2), "nobody judged: the test data say"


def test_an_early_state_that_is_delivered_is_no_point_of_the_line(tmp_path):
    run = write_run(tmp_path, "dafkd", rounds=3)
    lines = [json.loads(line) for line in (run / "history.jsonl").read_text().splitlines()]
    for line, early in zip(lines, ({"scores": [0.9], "delivered": 0}, {"scores": [0.1], "delivered": None}, 7), strict=True):
        line["line"]["snapshots"] = {"cnn": early}
    (run / "history.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    shown = page_data([load_run(run)])["runs"][0]["line"]
    assert shown["early"] == 1
    assert shown["prototypes"]["cnn"]["delivered"] == [None, 0.5, 0.5]


def test_a_mean_with_the_rounds_before_is_shown_beside_the_points(tmp_path):
    run = write_run(tmp_path, "dafkd", rounds=3)
    lines = [json.loads(line) for line in (run / "history.jsonl").read_text().splitlines()]
    told = {"rounds": 2, "points": [0.0, 0.5], "scores": [0.4, 0.9]}
    for line, t in zip(lines[1:], (0.5, None), strict=True):
        line["line"]["past"] = {"cnn": {**told, "delivered": t}}
    (run / "history.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    shown = page_data([load_run(run)])["runs"][0]["line"]
    assert shown["averaged"] == 1
    assert shown["prototypes"]["cnn"]["averaged"] == [None, 0.5, None]
    assert shown["prototypes"]["cnn"]["delivered"] == [0.5, None, 0.5]


def test_a_round_that_nobody_judged_says_whose_verdicts_chose(tmp_path):
    run = write_run(tmp_path, "dafkd", rounds=3)
    lines = [json.loads(line) for line in (run / "history.jsonl").read_text().splitlines()]
    lines[2]["line"] |= {"scores": {}, "cautious_scores": {"cnn": [0.5] * 5}, "judged_in": {"cnn": [1, 2], "mlp": "x"}}
    (run / "history.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    shown = page_data([load_run(run)])["runs"][0]
    assert shown["line"]["unjudged"] == (
        "In round 3 clients trained on all of their data, so nobody could judge: the scores of rounds 1 to 2 chose the point."
    )
    assert shown["line"]["prototypes"]["cnn"]["scores"][2] is None
    assert shown["carried"][2] is None, "the test data do not stand in for the judge"
    assert shown["gained"][2] is not None
    lines[2]["line"]["judged_in"] = {}
    (run / "history.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert page_data([load_run(run)])["runs"][0]["line"]["unjudged"].endswith("nobody could judge: the average was delivered.")


def test_harm_is_said_of_what_is_carried_on_and_explained_where_the_system_leads(tmp_path):
    for name, gain, student in (("bold", 0.01, 0.04), ("plain", -0.02, None), ("meek", 0.02, -0.01)):
        for seed in (0, 1):
            run = write_run(tmp_path / name / str(seed), name, seed, rounds=2)
            lines = [json.loads(line) for line in (run / "history.jsonl").read_text().splitlines()]
            for line in lines:
                line |= {"accuracy": 0.8 + gain, "merged_accuracy": 0.8, "ensemble_accuracy": 0.85}
                if student is not None:
                    scores = {"cnn": [0.7, 0.7 + gain, 0.7 + student]}
                    chosen = {"delivered": {"cnn": 0.5}, "carried": {"cnn": 1.0}}
                    line["line"] = {"judge": "clients", "points": [0.0, 0.5, 1.0], "scores": scores, **chosen}
            (run / "history.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
            said = json.loads((run / "summary.json").read_text())
            (run / "summary.json").write_text(json.dumps(said | {"final_accuracy": lines[-1]["accuracy"]}))
    data = data_of(build_page([tmp_path]))
    told = {method["label"]: method["distilled"] for method in data["methods"]}
    assert {name: found["harm"] for name, found in told.items()} == {"bold": False, "plain": True, "meek": True}
    assert data["verdict"]["leader"] == "meek"
    assert told["meek"]["text"].endswith(data["verdict"]["why"])
    why = "meek leads although the model that it carries on is 1.0 points worse than the average"
    assert data["verdict"]["why"].startswith(why)
    assert "leads" not in told["plain"]["text"]


def test_how_well_virtual_features_cover_the_sites(tmp_path, monkeypatch):
    told = [
        [{"mnist-0": 0.52, "usps-0": 0.9}, {"mnist-0": 0.8, "usps-0": 0.9}],
        [{"mnist-0": 0.6}, {"mnist-0": 0.9, "usps-0": 7}],
    ]
    for seed, rounds in enumerate(told):
        run = write_run(tmp_path / str(seed), "fedvirtual", seed, rounds=2)
        lines = [json.loads(line) for line in (run / "history.jsonl").read_text().splitlines()]
        for line, covered in zip(lines, rounds, strict=True):
            line["statistics"] = {"bytes": 8, "coverage": covered}
        (run / "history.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    write_run(tmp_path / "other", "fedavg")
    found = data_of(build_page([tmp_path]))["coverages"]
    assert found["methods"] == ["fedvirtual"]
    assert [(c["id"], c["cells"]) for c in found["clients"]] == [("mnist-0", ["56 % → 85 %"]), ("usps-0", ["90 %"])]
    assert found["mean"] == ["73 % → 88 %"]
    monkeypatch.setattr("fedstill.report.coverages._MOST_CLIENTS", 1)
    found = data_of(build_page([tmp_path]))["coverages"]
    assert [c["id"] for c in found["clients"]] == ["mnist-0"], "the worst"
    assert found["note"] == "Only the 1 of 2 clients covered worst are shown."
    assert data_of(build_page([tmp_path / "other"]))["coverages"] is None


def test_a_system_shows_the_features_of_one_seed_and_the_page_stays_small(tmp_path, monkeypatch):
    for seed in (0, 1):
        write_run(tmp_path / str(seed), "fedvirtual", seed)
    write_run(tmp_path / "other", "feddf")
    data = data_of(build_page([tmp_path]))
    (found,) = data["featureMaps"]
    assert (data["methods"][found["method"]]["label"], found["seed"], found["explained"]) == ("fedvirtual", 0, 0.41)
    assert found["domains"] == json.loads((tmp_path / "0" / "features.json").read_text())["domains"]
    assert data["featureMapsNote"] == ""
    monkeypatch.setattr("fedstill.report.feature_maps._MOST_POINTS", 100)
    data = data_of(build_page([tmp_path]))
    assert data["featureMaps"] == []
    assert "1 system" in data["featureMapsNote"]


@pytest.mark.parametrize("broken", [7, {"coverage": 3}, {"coverage": {"mnist-0": "much"}}, {}])
def test_damaged_coverage_is_left_out(tmp_path, broken):
    run = write_run(tmp_path, "fedvirtual", rounds=1)
    line = json.loads((run / "history.jsonl").read_text())
    (run / "history.jsonl").write_text(json.dumps(line | {"statistics": broken}) + "\n")
    data = data_of(build_page([tmp_path]))
    assert data["coverages"] is None
    assert any("'statistics" in problem for problem in data["runs"][0]["problems"]) == bool(broken)


def test_what_is_taken_for_what_is_summed_over_seeds_and_kept_small(tmp_path, monkeypatch):
    for seed in (0, 1):
        write_run(tmp_path / str(seed), "feddf", seed)
    write_run(tmp_path / "other", "dafkd")
    data = data_of(build_page([tmp_path]))
    assert [(found["method"], found["seeds"]) for found in data["confusions"]] == [(0, 2), (1, 1)]
    tables = [json.loads((tmp_path / str(seed) / "confusion.json").read_text())["domains"] for seed in (0, 1)]
    for name, table in data["confusions"][0]["domains"].items():
        assert table[3][4] == sum(one[name][3][4] for one in tables)
    monkeypatch.setattr(by_class, "_MOST_CELLS", 300)
    data = data_of(build_page([tmp_path]))
    assert len(data["confusions"]) == 1
    assert "1 system" in data["confusionsNote"]


def sheet(image) -> bytes:
    """Eight rows of ten classes, as a run leaves them; ``image(row, class)`` is 16 x 16, from 0 to 1."""
    pixels = np.ones((8 * 18 + 2, 10 * 18 + 2))
    for row in range(8):
        for c in range(10):
            pixels[18 * row + 2 : 18 * row + 18, 18 * c + 2 : 18 * c + 18] = image(row, c)
    return grey_png((255 * pixels).astype(np.uint8))


def test_samples_say_when_they_are_noise():
    draw = np.random.default_rng(0)
    x, y = np.meshgrid(np.arange(16), np.arange(16))
    noise = {c: draw.uniform(size=(16, 16)) for c in range(10)}
    spot = lambda row, c: np.exp(-((x - c - 3 + row / 2) ** 2 + (y - 8 + row) ** 2) / 12)
    cases = {
        "": sheet(spot),
        "noise (neighbouring pixels correlate by": sheet(lambda row, c: draw.uniform(size=(16, 16))),
        "differ by 0.0 %": sheet(lambda row, c: noise[c]),
        "repeated (the images": sheet(lambda row, c: spot(0, c)),
        "flat (contrast 0.0 %)": sheet(lambda row, c: 0.5),
    }
    for said, data in cases.items():
        found = what_is_wrong(measures(data, 10), {})
        assert said in found
        assert bool(said) == bool(found)
    assert what_is_wrong(measures(cases[""], 10), {"label_agreement": 0.12}).startswith("not recognised")
    assert what_is_wrong(measures(cases["repeated (the images"], 7), {}) == "", "other columns: not known which are of a class"
    assert measures(b"no picture", 10) is None


def test_runs_with_the_same_partition_share_it(tmp_path):
    write_run(tmp_path / "a", "feddf", seed=1)
    write_run(tmp_path / "b", "dafkd", seed=1)
    write_run(tmp_path / "c", "feddf", seed=2)
    partitions = data_of(build_page([tmp_path]))["partitions"]
    assert [p["runs"] for p in partitions] == [["feddf, seed 1", "dafkd, seed 1"], ["feddf, seed 2"]]


@pytest.mark.parametrize(
    "lost", ["config.toml", "history.jsonl", "summary.json", "clients.json", "confusion.json", "features.json"]
)
@pytest.mark.parametrize("how", ["missing", "empty", "noise"])
def test_a_page_is_made_whatever_is_lost(tmp_path, lost, how):
    write_run(tmp_path, "fedvirtual")
    if how == "missing":
        (tmp_path / lost).unlink()
    else:
        (tmp_path / lost).write_bytes(b"" if how == "empty" else bytes(range(256)))
    run = data_of(build_page([tmp_path]))["runs"][0]
    told = any(lost in problem for problem in run["problems"])
    # An empty configuration is a valid one; these files are optional.
    optional = {("missing", name) for name in ("clients.json", "confusion.json", "features.json")}
    assert told or (how, lost) in optional | {("empty", "config.toml")}


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=4,
)
LINE_FIELDS = (
    *("round", "accuracy", "domains", "merged_accuracy", "bytes_up", "seconds", "clients", "dropped"),
    *("weights", "weights_by_domain", "losses", "prototypes", "ensemble_accuracy", "line", "generator"),
)
JUDGED = st.fixed_dictionaries(
    {"points": st.lists(st.floats(0, 1), max_size=3) | JSON},
    optional=dict.fromkeys(("judge", "scores", "delivered", "carried", "faults"), JSON | st.dictionaries(st.just("a"), JSON)),
)
POINTS = st.fixed_dictionaries({"real": st.just([[0.0, 1.0]]) | JSON, "virtual": st.just([]) | JSON}) | JSON
SUMMARY_FIELDS = (
    "algorithm",
    "seed",
    "final_accuracy",
    "best_accuracy",
    "rounds_to",
    "bytes_total",
    "versions",
    "command",
)
CLIENT_FIELDS = ("id", "domain", "prototype", "samples", "counts")


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.fixed_dictionaries({"round": st.integers(0, 9)}, optional=dict.fromkeys(LINE_FIELDS[1:], JSON) | {"line": JUDGED}),
        max_size=3,
    ),
    st.fixed_dictionaries({}, optional=dict.fromkeys(SUMMARY_FIELDS, JSON)),
    st.lists(st.fixed_dictionaries({"id": JSON}, optional=dict.fromkeys(CLIENT_FIELDS[1:], JSON)), max_size=2) | JSON,
    st.fixed_dictionaries({"classes": st.just(["a"]) | JSON, "domains": st.dictionaries(st.text(max_size=2), JSON)}) | JSON,
    st.fixed_dictionaries({"domains": st.dictionaries(st.text(max_size=2), POINTS)}, optional={"explained": JSON}) | JSON,
)
def test_a_page_is_made_whatever_the_fields_hold(lines, summary, clients, confusion, features):
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "history.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        (folder / "summary.json").write_text(json.dumps(summary))
        (folder / "clients.json").write_text(json.dumps(clients))
        (folder / "confusion.json").write_text(json.dumps(confusion))
        (folder / "features.json").write_text(json.dumps(features))
        assert len(data_of(build_page([folder]))["runs"]) == 1


def test_a_folder_without_runs_is_a_clear_line(tmp_path):
    with pytest.raises(FedstillError, match="no run"):
        build_page([tmp_path])


def test_the_page_of_several_folders_is_written_where_asked(tmp_path):
    write_run(tmp_path / "a")
    write_run(tmp_path / "b", "dafkd")
    page = build_page([tmp_path / "a", tmp_path / "b"], tmp_path / "new" / "all.html")
    assert page == tmp_path / "new" / "all.html"
    assert len(data_of(page)["methods"]) == 2
    with pytest.raises(FedstillError, match="cannot write"):
        build_page([tmp_path / "a"], tmp_path)
