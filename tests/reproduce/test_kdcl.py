"""The studies of KDCL: what they choose and how rounds are counted (their runs need real data)."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedstill.core.errors import FedstillError
from fedstill.reproduce import Plan, Run, kdcl, published, studies
from fedstill.reproduce.kdcl import DIGITS, PACS, SYSTEMS, targets, tree_of, wanted, weight_of
from fedstill.run.configuration import resolve
from fedstill.run.history import rounds_to


def test_systems_and_targets_are_chosen_apart():
    plan = Plan(Path("x"), only=("kdcl", "svhn"))
    assert wanted(plan, ["KD3A", "KDCL"]) == ["KDCL"]
    assert wanted(plan, DIGITS) == ["svhn"]
    assert wanted(Plan(Path("x"), only=("kdcl",)), DIGITS) == list(DIGITS)
    with pytest.raises(FedstillError, match="unknown system or target of --only 'kdlc'; did you mean 'kdcl'?"):
        wanted(Plan(Path("x"), only=("svhn", "kdlc")), DIGITS)  # it would mean all systems


def test_every_configuration_is_valid_and_leaves_the_target_out():
    for scale in ("reduced", "small", "paper"):
        plan = Plan(Path("x"), data=Path("data"), scale=scale)
        for target in (*DIGITS, *PACS):
            for system in SYSTEMS:
                config = resolve(tree_of(plan, target, system))
                if config.algorithm["name"] == "shot":
                    assert config.algorithm["source_rounds"] == config.rounds
                assert config.data.target == target
                assert target not in config.data.domains
                assert len(config.data.domains) == 3


def test_photographs_from_scratch_are_targets_of_the_papers_scale_or_by_name():
    assert targets(Plan(Path("x"))) == list(DIGITS)
    assert targets(Plan(Path("x"), only=("pacs/photo", "kdcl"))) == ["pacs/photo"]
    assert targets(Plan(Path("x"), columns=("pacs/photo", "svhn"))) == ["svhn", "pacs/photo"]
    assert targets(Plan(Path("x"), scale="paper")) == [*DIGITS, *PACS]


def test_rounds_to_kd3as_accuracy_need_its_runs_whatever_is_chosen(monkeypatch):
    histories = {"kd3a": [0.5, 0.7, 0.6], "kdcl": [0.4, 0.65, 0.8]}

    def ran(plan, name, tree):
        found = histories[tree["algorithm"]["name"]]
        history = [{"round": r, "accuracy": a} for r, a in enumerate(found, 1)]
        return [Run(Path("x"), {"final_accuracy": found[-1]}, history)]

    monkeypatch.setattr(kdcl, "runs_of", ran)
    cells = kdcl.table2(Plan(Path("x"), data=Path("data"), only=("kdcl", "svhn")))
    assert {c.row: c.ours for c in cells if c.column == "svhn"} == {"KD3A": (2,), "KDCL": (2,)}
    assert {c.row for c in cells} == {"KD3A", "KDCL"}


def test_rounds_to_an_accuracy():
    history = [{"round": 1, "accuracy": 0.3}, {"round": 2, "accuracy": None}, {"round": 3, "accuracy": 0.5}]
    assert rounds_to(history, 0.4) == 3
    assert rounds_to(history, 0.6) is None
    assert rounds_to(history[1:2], 0.0) is None  # a round that was not evaluated reached nothing
    assert weight_of(Run(Path("x"), {}, [{"clients": ["a", "b"]}]), "a") == 0.5
    assert weight_of(Run(Path("x"), {}, [{"clients": ["a", "b"], "weights": {"a": 0.1}}]), "a") == 0.1


def test_the_papers_figures_are_marked_as_another_data_set():
    figure = published("kdcl-table1", "KDCL", "Clipart")
    assert figure is not None
    assert (figure.value, figure.note) == (0.742, "DomainNet")
    assert {"kdcl-table1", "kdcl-table2", "kdcl-poison"} <= set(studies())
