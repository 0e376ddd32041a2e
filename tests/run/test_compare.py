"""Comparisons: what cannot be run is said before anything is, and the same call can be made again."""

from __future__ import annotations

import pytest

import fedstill
from fedstill.core.errors import FedstillError
from fedstill.run.compare import complete, folder_of, plan
from fedstill.run.listener import Listener
from tests.conftest import tiny_tree


class Told(Listener):
    """What a listener was told, in order."""

    def __init__(self, said):
        self.said = said

    def started(self, task, rounds_done):
        self.said.append(("started", rounds_done))

    def finished(self, summary):
        self.said.append(("finished", summary["rounds"]))

    def kept(self, folder):
        self.said.append(("kept", folder.name))

    def closed(self):
        self.said.append("closed")


def test_a_folder_of_another_run_is_told_before_the_first_one_trains(tiny, tmp_path):
    complete(tiny(rounds=1, seed=0, algorithm={"name": "fedprox", "mu": 0.5}), folder_of(tmp_path, "fedprox", 0), Listener())
    with pytest.raises(FedstillError, match=r"fedprox/seed0 holds a run of another configuration"):
        plan(tiny_tree(rounds=1), ["fedavg", "fedprox"], [0], tmp_path)
    assert not (tmp_path / "fedavg").exists()


def test_a_comparison_of_a_tree_can_be_repeated(tmp_path):
    said = []
    for rounds in (1, 1, 2):  # the third goes on where the first ended
        runs = fedstill.compare(tiny_tree(rounds=rounds), ["fedavg"], seeds=[3], out=tmp_path, listener=lambda one: Told(said))
    assert said == [
        *(("started", 0), ("finished", 1), "closed"),
        *(("kept", "seed3"), "closed"),
        *(("started", 1), ("finished", 2), "closed"),
    ]
    assert [(run.algorithm, run.seed, len(run.history)) for run in runs] == [("fedavg", 3, 2)]
