"""A comparison is fair: what a file says of training reaches every system that has the option, and the rest is said."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from fedstill.cli import app
from fedstill.core.errors import FedstillError
from fedstill.run.compare import plan
from fedstill.run.configuration import resolve, resolve_each, resolved
from tests.conftest import tiny_tree

POOL = {"server": "embedded:blended"}


def sites(**algorithm):
    return {**tiny_tree(data=POOL), "algorithm": {"name": "fedd3a", **algorithm}}


def test_a_budget_written_for_one_system_reaches_every_other_that_has_it(tmp_path):
    tree = sites(distillation={"epochs": 4, "batch_size": 16, "optimizer": {"lr": 0.003}}, source={"size": 99})
    plans = plan(tree, ["fedavg", "feddf", "fedd3a", "dafkd"], [0], tmp_path)
    options = {one.algorithm: one.config.algorithm for one in plans}
    for name in ("feddf", "fedd3a", "dafkd"):
        learned = options[name]["distillation"]
        assert (learned["epochs"], learned["batch_size"], learned["optimizer"]["lr"]) == (4, 16, 0.003)
        assert options[name]["source"]["size"] == 99
    assert options["feddf"]["distillation"]["optimizer"]["name"] == "adam"  # what is not said stays each system's own
    assert options["fedd3a"]["distillation"]["optimizer"]["name"] == "sgd"
    assert {one.algorithm: one.note for one in plans} == {
        "fedavg": "fedavg: does not use distillation, source",
        "feddf": None,
        "fedd3a": None,
        "dafkd": None,
    }


def test_what_makes_a_system_what_it_is_stays_with_it():
    tree = sites(weighting="soft", merge="uniform", ensemble="probabilities", source={"kind": "data", "size": 77})
    found = resolved(tree, ["algorithm.name=feddf"])
    own = found.config.algorithm
    assert (own["weighting"], own["merge"], own["ensemble"], own["source"]["size"]) == ("uniform", "examples", "logits", 77)
    assert found.note == "feddf: uses its own weighting, merge, ensemble, source.kind, not fedd3a's"
    assert resolve(tree, ["algorithm.name=dafkd"]).algorithm["source"]["kind"] == "generator"
    by_hand = resolve(tree, ["algorithm.name=feddf", "algorithm.weighting=soft"])  # unless it is asked for
    assert by_hand.algorithm["weighting"] == "soft"


def test_two_options_of_one_name_are_not_one():
    tree = {**tiny_tree(), "algorithm": {"name": "fedprox", "mu": 0.5}}
    found = resolved(tree, ["algorithm.name=moon"])
    assert found.config.algorithm["mu"] != 0.5
    assert found.note == "moon: uses its own mu, not fedprox's"


def test_a_table_for_one_system_wins_over_what_is_shared():
    tree = {**sites(distillation={"epochs": 4}), "for": {"feddf": {"algorithm": {"distillation": {"steps": 7}}}}}
    assert resolve(tree, ["algorithm.name=feddf"]).algorithm["distillation"]["steps"] == 7
    assert not resolve(tree, ["algorithm.name=feddf"]).algorithm["distillation"].get("epochs")
    assert resolve(tree).algorithm["distillation"]["epochs"] == 4


def test_a_setting_that_only_some_have_works_for_those():
    settings = ["algorithm.weighting_options.alpha=0.3", "algorithm.weighting=soft", "algorithm.distillation.steps=30"]
    fedavg, feddf, fedd3a = resolve_each(sites(), ["fedavg", "feddf", "fedd3a"], settings)
    for one in (feddf, fedd3a):
        assert one.config.algorithm["distillation"]["steps"] == 30
        assert one.config.algorithm["weighting_options"]["alpha"] == 0.3
        assert one.note is None
    assert fedavg.note == "fedavg: does not use weighting_options.alpha, weighting, distillation.steps"


def test_a_value_that_only_some_take_works_for_those():
    fedavgm, fedma = resolve_each(tiny_tree(), ["fedavgm", "fedma"], ["algorithm.form=ema"])
    assert fedavgm.config.algorithm["form"] == "ema"
    assert (fedma.config.algorithm["form"], fedma.note) == ("layers", "fedma: does not use form = ema")


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        (["algorithm.distilation.steps=3"], "unknown key 'algorithm.distilation'"),  # a mistake for all of them
        (["algorithm.distillation.steps=-3"], "algorithm.distillation.steps = -3"),
        (["rounds=0"], "rounds = 0"),
    ],
)
def test_what_no_system_takes_is_a_mistake(settings, text):
    with pytest.raises(FedstillError, match=text.replace(".", r"\.")):
        resolve_each(sites(), ["fedavg", "feddf"], settings)


def test_a_mistake_in_the_file_is_one_for_every_system():
    with pytest.raises(
        FedstillError, match=r"unknown key 'algorithm.distillation.epoch'; did you mean 'algorithm.distillation.epochs'"
    ):
        resolve(sites(distillation={"epoch": 4}), ["algorithm.name=feddf"])


def test_a_table_that_names_no_system_is_for_all_that_have_its_options():
    tree = {**tiny_tree(data=POOL), "algorithm": {"distillation": {"steps": 9}, "ensemble": "probabilities"}}
    fedavg, feddf = resolve_each(tree, ["fedavg", "feddf"])
    assert fedavg.note == "fedavg: does not use distillation, ensemble"
    assert (feddf.config.algorithm["distillation"]["steps"], feddf.config.algorithm["ensemble"]) == (9, "probabilities")
    with pytest.raises(FedstillError, match="unknown key 'algorithm.distil'"):
        resolve_each({**tree, "algorithm": {"distil": {}}}, ["fedavg", "feddf"])


def test_a_run_of_another_system_has_the_same_rule_and_says_it(tmp_path):
    import tomli_w

    path = tmp_path / "sites.toml"
    path.write_text(tomli_w.dumps(sites(distillation={"steps": 3}, weighting="soft")))
    arguments = ["run", str(path), "--set", "algorithm.name=feddf", "--set", "rounds=1", "--out", str(tmp_path / "run")]
    said = CliRunner().invoke(app, arguments, catch_exceptions=False).output
    assert said.startswith("feddf: uses its own weighting, not fedd3a's\n")
    assert '"steps": 3' in (tmp_path / "run" / "history.jsonl").read_text()


def test_steps_that_a_user_asks_for_win_over_the_preset_s_epochs(tmp_path):
    settings = ["algorithm.name=feddf", "algorithm.distillation.steps=30"]
    from fedstill.run.configuration import configuration

    found = configuration("demo", settings).algorithm["distillation"]
    assert found["steps"] == 30
    assert not found.get("epochs")
    assert configuration("demo", [*settings, "algorithm.distillation.epochs=2"]).algorithm["distillation"]["epochs"] == 2
    assert configuration("demo", ["local.steps=3", "local.epochs=2"]).local.steps == 3
    assert resolve(tiny_tree(local={"steps": 9}), ["local.epochs=2"]).local.steps is None
