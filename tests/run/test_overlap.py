"""A round ends while the clients of the next one already train: the same bits, history in order, and a crash loses no more."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fedstill.algorithms import create
from fedstill.algorithms.fedavg import FedAvg
from fedstill.config.tables import Config
from fedstill.engine.inprocess import InProcess
from fedstill.run import loop
from fedstill.run.history import read_history
from fedstill.run.listener import Listener
from fedstill.task import Task

Save = Callable[..., Path]


class Crash(Exception):
    """What stops a run in these tests."""


@pytest.fixture
def settings(tiny: Callable[..., Config]) -> Config:
    """MOON, whose clients have private states: a resume that reads a wrong one shows."""
    return tiny(
        rounds=4,
        clients={"per_domain": 2},
        algorithm={"name": "moon"},
        engine={"workers": 2},
        local={"epochs": 1},
    )


def figures(history: list[Any]) -> list[Any]:
    return [{name: value for name, value in line.items() if name != "seconds"} for line in history]


def saving(monkeypatch: pytest.MonkeyPatch, before: Callable[[int], None]) -> None:
    """Do something before each checkpoint."""
    save: Save = loop.save_checkpoint

    def saved(folder: Path, number: int, server: Any) -> Path:
        before(number)
        return save(folder, number, server)

    monkeypatch.setattr(loop, "save_checkpoint", saved)


def wait_for(folder: Path, number: int, count: int) -> None:
    """Until so many clients have kept the state of a round."""
    for _ in range(1200):
        if len(list(folder.glob(f"clients/*/{number}-*"))) >= count:
            return
        time.sleep(0.05)
    raise AssertionError(f"no client of round {number} has trained")


def test_a_crash_in_the_overlap_loses_one_round_and_resumes_bit_for_bit(
    settings: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Told(Listener):
        rounds: list[int] = []

        def round(self, line: Any) -> None:
            self.rounds.append(line["round"])

    alone = settings.model_copy(update={"engine": settings.engine.model_copy(update={"workers": 0})})
    whole = loop.run(alone, tmp_path / "whole", listeners=[Told()])
    assert Told.rounds == [1, 2, 3, 4]

    out = tmp_path / "crashed"
    with monkeypatch.context() as patched:

        def crash(number: int) -> None:
            if number < settings.rounds:
                wait_for(out, number + 1, 4)  # all clients of the next round have trained before this round has ended
            if number == 3:
                raise Crash

        saving(patched, crash)
        with pytest.raises(Crash):
            loop.run(settings, out)
    assert [line["round"] for line in read_history(out / "history.jsonl")] == [1, 2, 3]
    checkpoints = sorted((out / "checkpoint").iterdir())
    assert [path.name[:12] for path in checkpoints] == ["round-000001", "round-000002"]
    checkpoints[1].write_bytes(b"damaged")  # the private states before the other one are still there
    resumed = loop.run(settings, out, resume=True)
    assert figures(resumed.history) == figures(whole.history)
    assert figures(read_history(out / "history.jsonl")) == figures(whole.history)
    assert (out / "model.safetensors").read_bytes() == (tmp_path / "whole" / "model.safetensors").read_bytes()


class Broken(FedAvg):
    """A server that fails in its second round, before any message is sent."""

    name = "broken"

    def instruct(self, server: Any, client: str, round: Any) -> Any:
        if round.number == 2:
            raise Crash
        return super().instruct(server, client, round)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_failure_of_the_next_round_does_not_cost_the_last(workers: int, tiny: Callable[..., Config], tmp_path: Path) -> None:
    config = tiny(algorithm={"name": "tests.run.test_overlap:Broken"}, engine={"workers": workers})
    with pytest.raises(Crash):
        loop.run(config, tmp_path)
    assert [line["round"] for line in read_history(tmp_path / "history.jsonl")] == [1]
    assert len(list((tmp_path / "checkpoint").iterdir())) == 1


def test_a_failure_while_clients_train_ends_them(settings: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The outcomes are never asked for: nobody else would stop the workers."""
    algorithm = create(Task(settings))
    engine = InProcess(algorithm, tmp_path, workers=2, threads=1)

    def fail(number: int) -> None:
        raise Crash

    saving(monkeypatch, fail)
    with pytest.raises(Crash):
        loop.drive(algorithm, engine, tmp_path)
    training = engine._training
    assert training is not None
    assert training._waiting
    engine.close()
    assert not any(thread.is_alive() for thread in training._threads)
    assert all(worker.process is None for worker in engine.workers)
