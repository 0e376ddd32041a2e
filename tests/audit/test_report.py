"""The audit of a run and of a bundle, on real files."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

import fedstill
from fedstill.audit.items import Item, group_items, run_items
from fedstill.audit.report import audit, write_audit
from fedstill.bundles.pack import pack
from fedstill.cli import app
from fedstill.core.errors import FedstillError
from fedstill.report.runs import load_run

DIGITS = "embedded:optdigits"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    tree = {
        "rounds": 2,
        "data": {"domains": [DIGITS], "limit": 80, "test_limit": 40},
        "clients": {"per_domain": 2},
        "model": {"name": "mlp"},
        "algorithm": {"name": "fedavg"},
    }
    return fedstill.run(tree, tmp_path_factory.mktemp("audit") / "run").folder


def test_the_items_of_a_run_add_up_to_the_bytes_that_were_sent(run: Path) -> None:
    found = load_run(run)
    items = run_items(found)
    assert {(i.site, i.what, i.times) for i in items} == {
        (f"optdigits-{k}", what, 2) for k in (0, 1) for what in ("model", "loss", "samples")
    }
    for line in found.history:  # the values' names and punctuation are the difference
        assert 0 <= line["bytes_up"] - sum(line["sent"].values()) < 100
    assert "reconstructed" in next(i for i in items if i.what == "model").risk


def test_the_audit_of_a_run_is_written_as_json_and_as_a_page(run: Path, tmp_path: Path) -> None:
    found = audit(run, samples=20, shadows=2, epochs=1)
    page = write_audit(found, tmp_path / "out").read_text()
    told = json.loads((tmp_path / "out" / "audit.json").read_text())
    assert told["private"] is False
    assert "not private" in told["privacy"][0]
    assert [one["attack"] for one in told["membership"]] == ["loss", "likelihood ratio"]
    assert all(0 <= one["auc"] <= 1 for one in told["membership"])
    assert told["inversion"][0]["similarity"] > 0.99  # an mlp's first layer is linear
    assert page.count("data:image/png") == 2
    assert "Not private" in page
    assert "not private:" not in page  # the heading says so
    assert "<script" not in page


def test_equal_items_of_the_sites_are_one_row_and_words_are_aligned_left(run: Path, tmp_path: Path) -> None:
    page = write_audit(audit(run, attacks=()), tmp_path / "out").read_text()
    assert page.count("<td") == 5 * 3  # model, loss and samples
    assert page.count('<td class="text">each of 2 sites</td><td class="text">model</td><td>2</td>') == 1
    assert '<th class="text">what it can reveal</th>' in page
    told = json.loads((tmp_path / "out" / "audit.json").read_text())
    assert len(told["items"]) == 2 * 3
    shown = CliRunner().invoke(app, ["audit", str(run), "--attacks", "none", "--out", str(tmp_path / "out")]).output
    assert shown.count("each of 2 sites") == 3
    assert "optdigits-0" not in shown


def test_sites_that_sent_something_else_are_named() -> None:
    items = [Item(site, "model", 2, 40) for site in ("a", "b", "c", "d")] + [Item("e", "label_counts", 2, 40)]
    assert [group.cells[:2] for group in group_items(items)] == [["a, b, c and 1 more", "model"], ["e", "label counts"]]


def test_the_folder_of_a_bundles_audit_is_said() -> None:
    said = " ".join(CliRunner().invoke(app, ["audit", "--help"], terminal_width=300, color=False).output.split())
    assert "RUN/audit" in said
    assert "NAME-audit" in said


def test_a_run_with_privacy_is_attacked_beside_one_without(run: Path, tmp_path: Path) -> None:
    pytest.importorskip("opacus", reason="the extra fedstill[privacy] is not installed")
    tree = {
        "rounds": 1,
        "data": {"domains": [DIGITS], "limit": 80, "test_limit": 40},
        "clients": {"per_domain": 2},
        "model": {"name": "mlp"},
        "algorithm": {"name": "fedavg"},
        "local": {"steps": 1},
        "privacy": {"sample": {"noise": 5.0}},
    }
    private = fedstill.run(tree, tmp_path / "private")
    asked = ["audit", str(run), "--beside", str(private.folder), "--attacks", "membership", "--shadows", "0", "--samples", "20"]
    told = CliRunner().invoke(app, [*asked, "--out", str(tmp_path / "out")])
    assert told.exit_code == 0, told.output
    models = [one["model"] for one in json.loads((tmp_path / "out" / "audit.json").read_text())["membership"]]
    epsilon = private.summary["privacy"]["sample"]["epsilon"]
    assert models == ["the final model of run (no privacy)", f"the final model of private (epsilon {epsilon:.3g} a sample)"]
    [inverted] = audit(private.folder, attacks=["inversion"]).inverted
    assert inverted.method.endswith("noised gradient")
    assert inverted.similarity < 0.6  # of the run without privacy above 0.99
    same = tmp_path / "copy"
    shutil.copytree(run, same)
    twice = audit(run, beside=[same], attacks=["membership"], shadows=2, samples=20, epochs=1).tested
    assert [[attack.auc for attack in one.attacks] for one in twice[:1]] == [[a.auc for a in one.attacks] for one in twice[1:]]


def test_an_older_run_has_items_without_sizes(run: Path, tmp_path: Path) -> None:
    shutil.copytree(run, tmp_path / "old")
    lines = [json.loads(line) for line in (tmp_path / "old" / "history.jsonl").read_text().splitlines()]
    kept = [{key: value for key, value in line.items() if key not in ("sent", "check")} for line in lines]
    (tmp_path / "old" / "history.jsonl").write_text("".join(json.dumps(line) + "\n" for line in kept))
    found = audit(tmp_path / "old", attacks=())
    assert {item.bytes_each for item in found.items} == {None}
    assert any("did not record" in note for note in found.notes)


def test_the_audit_of_a_bundle(tmp_path: Path) -> None:
    path = tmp_path / "site.fed"
    pack(path, model="mlp", data=f"{DIGITS}#train", epochs=1, describe=["projection"])
    told = CliRunner().invoke(app, ["audit", str(path), "--data", f"{DIGITS}#train", "--shadows", "0", "--samples", "50"])
    assert told.exit_code == 0, told.output
    assert "not private" in told.output
    found = json.loads((tmp_path / "site-audit" / "audit.json").read_text())
    assert {"model", "projection", "label_counts", "samples", "classes"} <= {item["item"] for item in found["items"]}
    assert [one["attack"] for one in found["membership"]] == ["loss"]
    assert found["inversion"]
    assert [item["item"] for item in found["items"]].count("model") == 1


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"path": "missing"}, "no such run or bundle"),
        ({"shadows": 3}, "come in pairs"),
        ({"data": "x"}, "a run has its own data"),
        ({"beside": ["x"], "attacks": ["inversion"]}, "compares membership attacks"),
        ({"beside": ["missing"]}, "missing has no config.toml"),
    ],
)
def test_bad_input_is_one_line(run: Path, options: dict[str, object], said: str) -> None:
    with pytest.raises(FedstillError, match=said):
        audit(**{"path": run, **options})  # type: ignore[arg-type]


def test_a_damaged_configuration_is_named(run: Path, tmp_path: Path) -> None:
    shutil.copytree(run, tmp_path / "damaged")
    (tmp_path / "damaged" / "config.toml").write_text("[[[")
    with pytest.raises(FedstillError, match=r"damaged/config\.toml: not TOML"):
        audit(run, beside=[tmp_path / "damaged"], attacks=["membership"], samples=20, shadows=0)


@pytest.mark.parametrize("text", ["[[[", "privacy = 1", None])
def test_a_run_whose_configuration_cannot_be_read_is_not_said_to_have_no_privacy(
    run: Path, tmp_path: Path, text: str | None
) -> None:
    shutil.copytree(run, tmp_path / "damaged")
    (tmp_path / "damaged" / "config.toml").unlink()
    if text is not None:
        (tmp_path / "damaged" / "config.toml").write_text(text)
    summary = json.loads((tmp_path / "damaged" / "summary.json").read_text())
    summary["privacy"] = {"sample": {"epsilon": 3.0, "delta": 1e-5}}
    (tmp_path / "damaged" / "summary.json").write_text(json.dumps(summary))
    found = audit(tmp_path / "damaged", attacks=())
    page = write_audit(found, tmp_path / "out").read_text()
    told = json.loads((tmp_path / "out" / "audit.json").read_text())
    assert told["private"] is None
    assert [words.split(":")[0] for words in told["privacy"]] == [
        "sample-level differential privacy",  # what the summary recorded is still said
        "not known whether it is private",
    ]
    assert "o privacy is set" not in page
    assert "Not known whether private" in page


def test_a_file_that_is_no_bundle_and_a_full_folder_are_refused(run: Path, tmp_path: Path) -> None:
    (tmp_path / "x.fed").write_bytes(b"\x80\x04K\x01.")  # a pickle
    with pytest.raises(FedstillError, match="not a bundle"):
        audit(tmp_path / "x.fed")
    with pytest.raises(FedstillError, match="holds other files"):
        write_audit(audit(run, attacks=()), tmp_path)
