"""The adaptation systems keep all of their state where a checkpoint finds it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from fedstill.algorithm import Server
from fedstill.run.listener import Listener
from fedstill.run.loop import run
from tests.algorithms.adaptation import tiny

SYSTEMS = {
    "kdcl": {"contributions": {"gate": {"start": 0.0, "end": 0.1}}},
    "kd3a": {"contributions": {"gate": {"start": 0.0, "end": 0.1}, "variant": "kd3a", "method": "shapley"}},
    "shot": {"epochs": 1, "source_rounds": 2},
    "fada": {"sync_every": 2, "width": 8, "attended": 32},
}


class Stop(Listener):
    """Ends the run after its second round, as a kill would."""

    def round(self, line):
        if line["round"] == 2:
            raise KeyboardInterrupt


def same(one: Server, other: Server) -> bool:
    groups = ({**server.models, **server.parts} for server in (one, other))
    first, second = groups
    return first.keys() == second.keys() and all(
        torch.equal(tensor, second[group][name]) for group, state in first.items() for name, tensor in state.items()
    )


@pytest.mark.parametrize("name", SYSTEMS)
def test_a_resumed_run_ends_with_the_same_weights(name: str, tmp_path: Path):
    config = tiny(name, rounds=3, data={"limit": 64, "test_limit": 20}, **SYSTEMS[name])
    whole = run(config, tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        run(config, tmp_path / "parts", listeners=[Stop()])
    resumed = run(config, tmp_path / "parts", resume=True)
    assert [line["accuracy"] for line in resumed.history] == [line["accuracy"] for line in whole.history]
    assert [line.get("weights") for line in resumed.history] == [line.get("weights") for line in whole.history]
    assert same(whole.server, resumed.server)
