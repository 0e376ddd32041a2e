"""A round's last phase: what is delivered and carried on is the same on every engine, after a resume, and without a judge."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from fedstill.algorithm import Client, Ends, Reply, Round, Server
from fedstill.algorithms import create
from fedstill.core.errors import FedstillError
from fedstill.core.message import Message, State
from fedstill.engine.exchange import JUDGE
from fedstill.engine.inprocess import InProcess
from fedstill.fusion.line import Past, held_share
from fedstill.run.checkpoint import load_checkpoint
from fedstill.run.judging import CARRIED, DELIVERED, JUDGED, _mean, _snapshot, delivered, settle
from fedstill.run.listener import Listener
from fedstill.run.loop import Result, drive, run
from fedstill.task import Task

DISTIL = {"steps": 12, "batch_size": 16, "optimizer": {"name": "adam", "lr": 0.01}}

FULL = {"full_rounds": 1}  # clients train on all of their samples in the last round


def tree(line: Any, **changes: Any) -> dict[str, Any]:
    algorithm = {"name": "feddf", "distillation": DISTIL, **({"line": line} if line is not None else {})}
    return {"data": {"server": "embedded:blended"}, "clients": {"per_domain": 2}, "algorithm": algorithm, **changes}


def same(one: State, other: State) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[key], other[key]) for key in one)


def model(result: Result) -> State:
    return delivered(result.server).models["mlp"]


def test_the_judge_is_the_best_that_the_task_offers(tiny: Any, tmp_path: Path) -> None:
    for data, wanted in (({}, "clients"), ({"validation": 0.2}, "server")):
        line = run(tiny(**tree(None, rounds=1, data={"server": "embedded:blended", **data})), tmp_path / wanted).history[0]
        assert line["line"]["judge"] == wanted
        scores = line["line"]["scores"]["mlp"]
        assert len(scores) == 3
        assert scores[[0.0, 0.5, 1.0].index(line["line"]["delivered"]["mlp"])] == max(scores)
        assert line["seconds"]["judge"] > 0


def test_what_clients_hold_out_is_never_trained_on(tiny: Any) -> None:
    asked, silent = create(Task(tiny(**tree(None)))), create(Task(tiny(**tree(False))))
    assert held_share(asked, 1) == 0.1
    assert held_share(silent, 1) == 0.0
    assert held_share(create(Task(tiny())), 1) == 0.0  # FedAvg distils nothing, and trains on everything
    client = Client.of(asked.task, "optdigits-0", 1, validation=held_share(asked, 1))
    whole = asked.task.data_of("optdigits-0")
    assert client.held is not None
    assert len(client.held) == round(0.1 * len(whole))
    rows = lambda samples: {bytes(row.numpy().tobytes()) for row in samples.x}
    assert len(client.data) == len(whole)  # as many steps as without a judge: others take the place of those held out
    assert not rows(client.data) & rows(client.held)
    assert rows(client.data) | rows(client.held) == rows(whole)
    assert (client.data.counts(10) - whole.counts(10)).abs().max() <= 1  # of the same classes
    again = Client.of(asked.task, "optdigits-0", 2, validation=0.1)
    assert rows(again.held) == rows(client.held)  # no model has seen them
    other = create(Task(tiny(**tree(None, clients={"per_domain": 2, "validation_drawn": "round"})))).task
    first, second = (Client.of(other, "optdigits-0", number, validation=0.1).held for number in (1, 2))
    assert rows(first) != rows(second)


def test_without_a_judge_the_student_is_the_papers_own(tiny: Any, tmp_path: Path) -> None:
    paper = run(tiny(**tree(False)), tmp_path / "paper")
    plain = run(tiny(**tree({"judge": "none", "carry": 1.0})), tmp_path / "plain")
    assert same(model(paper), model(plain))
    assert "line" not in paper.history[0]
    average = run(tiny(**tree({"judge": "none", "carry": 0.0})), tmp_path / "average")
    fedavg = run(tiny(**{**tree(False), "algorithm": {"name": "fedavg"}}), tmp_path / "fedavg")
    assert same(model(average), model(fedavg))  # carrying the average on is FedAvg, bit for bit


def test_the_history_has_both_and_the_accuracy_of_what_is_delivered(tiny: Any, tmp_path: Path) -> None:
    result = run(tiny(**tree({"carry": 1.0})), tmp_path)
    last = result.history[-1]
    assert last["line"]["carried"] == {"mlp": 1.0}
    algorithm = create(result.task)
    assert algorithm.evaluate(delivered(result.server)).mean == last["accuracy"]
    if last["line"]["delivered"]["mlp"] != 1.0:
        assert not same(result.server.models["mlp"], model(result))
    import safetensors.torch

    assert same(safetensors.torch.load_file(tmp_path / "model.safetensors"), model(result))


def test_workers_and_flower_choose_the_same_points(tiny: Any, tmp_path: Path) -> None:
    config = tree({**FULL, "tolerance": 0.0, "carry": "delivered"}, rounds=3)
    here = run(tiny(**config), tmp_path / "here")
    workers = run(tiny(**config, engine={"workers": 2}), tmp_path / "workers")
    results = [workers]
    flwr = pytest.importorskip("flwr", reason="the extra fedstill[flower] is not installed")
    assert flwr
    from fedstill.engine.flower.client import client_app
    from fedstill.run.federation import run_on
    from tests.engine.localgrid import LocalGrid

    settings = tiny(**config)
    grid = LocalGrid(client_app(), [{"partition-id": i, "num-partitions": 4} for i in range(4)])
    results.append(run_on(grid, settings, tmp_path / "flower", resume=False, nodes=4, patience=10, listeners=[]))
    for result in results:
        assert [line["line"] for line in result.history] == [line["line"] for line in here.history]
        assert same(model(result), model(here))
        assert [line["bytes_up"] for line in result.history] == [line["bytes_up"] for line in here.history]


class Watched(InProcess):
    """Notes the phases of each round."""

    def exchange(self, round: int, phase: str, messages: Any) -> Any:
        self.__dict__.setdefault("phases", []).append((round, phase))
        return super().exchange(round, phase, messages)


def test_in_the_last_round_clients_train_on_everything_and_nobody_judges(tiny: Any, tmp_path: Path) -> None:
    config = tiny(**tree({**FULL, "window": 2}, rounds=4))
    algorithm = create(Task(config))
    assert [held_share(algorithm, number) for number in (1, 2, 3, 4)] == [0.1, 0.1, 0.1, 0.0]
    engine = Watched(algorithm, tmp_path)
    result = drive(algorithm, engine, tmp_path)
    assert [number for number, phase in engine.phases if phase == JUDGE] == [1, 2, 3]
    *_, second, third, last = (line["line"] for line in result.history)
    assert last["judge"] == "clients"
    assert last["scores"] == {}
    assert last["judged_in"] == {"mlp": [2, 3]}
    for place in ("scores", "past"):  # the points, and the points averaged with the round before
        scored = lambda line, place=place: line["past"]["mlp"]["scores"] if place == "past" else line["scores"]["mlp"]
        gains = [[score - line["scores"]["mlp"][0] for score in scored(line)] for line in (second, third)]
        least = [min(pair) for pair in zip(*gains, strict=True)]
        found = last["past"]["mlp"]["scores"] if place == "past" else last["cautious_scores"]["mlp"]
        assert [score - last["cautious_scores"]["mlp"][0] for score in found] == pytest.approx(least, abs=3e-5)
        if place == "scores":
            assert last["delivered"]["mlp"] == last["points"][least.index(max(least))]
    assert [number for number, _ in result.server.values[JUDGED]["mlp"]] == [2, 3]
    assert "judged_in" not in third


def test_a_single_round_is_judged_and_the_default_judges_to_the_end(tiny: Any, tmp_path: Path) -> None:
    one = run(tiny(**tree(FULL, rounds=1)), tmp_path / "one")
    old = run(tiny(**tree(None, rounds=2)), tmp_path / "old")
    first = run(tiny(**tree(None, rounds=1)), tmp_path / "first")
    assert same(model(one), model(first))
    assert all(len(line["line"]["scores"]["mlp"]) == 3 for line in (*one.history, *old.history))
    assert JUDGED not in old.server.values


def test_in_a_full_round_a_client_has_the_samples_of_one_without_a_judge(tiny: Any) -> None:
    algorithm = create(Task(tiny(**tree(FULL))))
    plain, held = (Client.of(algorithm.task, "mnist-0", 2, validation=share) for share in (0.0, 0.1))
    turn = Client.of(algorithm.task, "mnist-0", 2, validation=held_share(algorithm, 2))
    assert turn.held is None
    assert torch.equal(turn.data.x, plain.data.x)
    assert not torch.equal(turn.data.x, held.data.x)


def test_without_any_verdict_a_full_round_delivers_the_average(tiny: Any, tmp_path: Path) -> None:
    algorithm = create(Task(tiny(**tree(FULL))))
    average = algorithm.task.networks.initial("mlp")
    student = {name: tensor + 1 for name, tensor in average.items()}
    for values, wanted in (({}, average), ({JUDGED: {"mlp": [[1, [0.1, 0.2, 0.3]]]}}, student)):
        context = Round(2, 2, 0)
        context.offer({"mlp": average}, {"mlp": student})
        server = Server({"mlp": student}, {}, values)
        assert same(
            delivered(settle(algorithm, InProcess(algorithm, tmp_path), server, [], context).server).models["mlp"], wanted
        )
    context = Round(2, 2, 0)  # verdicts on other candidates say nothing about these
    context.offer({"mlp": average}, {"mlp": student}, plain={"mlp": average})
    settled = settle(algorithm, InProcess(algorithm, tmp_path), server, [], context)
    assert same(delivered(settled.server).models["mlp"], average)


class Cut(Exception):
    """The machine goes down."""


@pytest.mark.parametrize("place", [(2, JUDGE, 2), (3, "train", 2)])  # while clients judge, and in the round that nobody judges
def test_a_run_cut_off_resumes_to_the_same_bits(tiny: Any, tmp_path: Path, place: tuple[int, str, int]) -> None:
    config = tiny(**tree(FULL, rounds=3))
    whole = run(config, tmp_path / "whole")
    algorithm = create(Task(config))

    class Failing(InProcess):
        def exchange(self, round: int, phase: str, messages: Any) -> Any:
            for number, outcome in enumerate(super().exchange(round, phase, messages)):
                if (round, phase, number) == place:
                    raise Cut
                yield outcome

    out = tmp_path / "cut"
    out.mkdir()
    with pytest.raises(Cut):
        drive(algorithm, Failing(algorithm, out), out)
    resumed = run(config, out, resume=True)
    assert resumed.history[-1]["line"]["judged_in"] == {"mlp": [1, 2]}
    assert same(model(resumed), model(whole))
    assert [line["line"] for line in resumed.history] == [line["line"] for line in whole.history]


class Warned(Listener):
    """Keeps the warnings."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def warn(self, text: str) -> None:
        self.texts.append(text)


def test_a_run_that_grows_after_its_full_round_says_what_its_verdicts_are_worth(tiny: Any, tmp_path: Path) -> None:
    run(tiny(**tree(FULL, rounds=2)), tmp_path)
    heard = Warned()
    grown = run(tiny(**tree(FULL, rounds=4)), tmp_path, resume=True, listeners=[heard])
    assert any("clients have trained on the samples that they hold out" in text for text in heard.texts)
    assert ["judged_in" in line["line"] for line in grown.history] == [False, True, False, True]
    old, silent = tree(None), Warned()
    run(tiny(**old, rounds=1), tmp_path / "old")
    run(tiny(**old, rounds=2), tmp_path / "old", resume=True, listeners=[silent])
    assert not any("hold out" in text for text in silent.texts)


def test_false_and_missing_verdicts_are_named_and_do_not_stop_the_round(tiny: Any, tmp_path: Path) -> None:
    config = tiny(**tree(None, rounds=1, clients={"per_domain": 2, "validation": 0.1}))
    algorithm = create(Task(config))

    class Lying(InProcess):
        def exchange(self, round: int, phase: str, messages: Any) -> Any:
            for outcome in super().exchange(round, phase, messages):
                if phase == JUDGE and outcome.client == "mnist-0":
                    message = outcome.read().with_parts(samples=10**6)
                    outcome = type(outcome)(outcome.client, lambda message=message: message, nbytes=outcome.nbytes)
                if phase == JUDGE and outcome.client == "mnist-1":
                    outcome = type(outcome)(outcome.client, reason="no reply within 1 s")
                yield outcome

    tmp_path.mkdir(exist_ok=True)
    line = drive(algorithm, Lying(algorithm, tmp_path), tmp_path).history[0]
    assert set(line["line"]["faults"]) == {"mnist-0", "mnist-1"}
    assert line["clients"] == ["optdigits-0", "optdigits-1", "mnist-0", "mnist-1"]  # their models were fused all the same


def test_a_server_without_labelled_data_cannot_judge(tiny: Any, tmp_path: Path) -> None:
    with pytest.raises(FedstillError, match="set data.validation"):
        run(tiny(**tree({"judge": "server"}, rounds=1)), tmp_path)


def test_the_pool_judges_by_samples_that_nobody_learned_from(tiny: Any, tmp_path: Path) -> None:
    line = run(tiny(**tree({"judge": "pool"}, rounds=1)), tmp_path).history[0]["line"]
    assert line["judge"] == "pool"
    assert all(0 < score <= 1 for score in line["scores"]["mlp"])
    algorithm = create(Task(tiny(**tree({"judge": "pool"}, rounds=1))))
    replies = [Reply(c, "d", "mlp", 1, lambda: Message.of(model=algorithm.task.networks.initial("mlp"))) for c in "ab"]
    context = Round(1, 1, 0)
    algorithm.fuse(algorithm.start(), replies, context)
    held, targets = context.ends["mlp"].held
    pool = algorithm.task.pool.samples
    assert len(held) == len(targets) == round(0.1 * len(pool))
    assert context.notes["distillation"]["mlp"]["steps"] == DISTIL["steps"]


@pytest.mark.parametrize("judge", ["clients", "pool", "server"])
def test_a_mean_with_the_rounds_before_is_judged_and_delivered_if_it_is_best(tiny: Any, tmp_path: Path, judge: str) -> None:
    data = {"server": "embedded:blended", **({"validation": 0.2} if judge == "server" else {})}
    config = tiny(**tree({"judge": judge, "past": 2}, rounds=4, data=data))
    taken: list[State] = []

    class Kept(Listener):
        def round(self, line: Any) -> None:
            _, server = load_checkpoint(tmp_path / "run" / "checkpoint") or (0, Server({}))
            carried.append(server.models["mlp"])
            taken.append(delivered(server).models["mlp"])

    carried: list[State] = []
    history = run(config, tmp_path / "run", listeners=[Kept()]).history
    assert "past" not in history[0]["line"]  # there is no round before the first
    for number, line in enumerate(history[1:], 1):
        found = line["line"]["past"]["mlp"]
        assert (found["rounds"], found["points"]) == (min(number, 2) + 1, [0.0, 0.5])
        best = max(line["line"]["scores"]["mlp"])
        assert (found["delivered"] is not None) == (max(found["scores"]) > best)
        if found["delivered"] is not None and found["delivered"] == line["line"]["carried"]["mlp"]:
            states = carried[max(0, number - 2) : number + 1]
            for key in ("fc0.weight", "head.bias") if "fc0.weight" in states[0] else list(states[0]):
                mean = torch.stack([state[key].double() for state in states]).mean(0)
                assert torch.allclose(taken[number][key].double(), mean, atol=1e-6)


@pytest.mark.parametrize("system", ["dafkd", "fedftg", "fedbe"])
def test_systems_that_make_their_state_anew_have_a_past_too(tiny: Any, tmp_path: Path, system: str) -> None:
    config = tree(None, rounds=2)
    config["algorithm"] = {"name": system}
    if system != "fedftg":
        config["algorithm"]["distillation"] = DISTIL
    if system != "fedbe":
        config["algorithm"]["generator"] = {"kind": "mlp-conditional", "noise_dim": 8}
    assert run(tiny(**config), tmp_path).history[1]["line"]["past"]["mlp"]["rounds"] == 2


def test_a_mean_replaces_the_points_only_where_it_is_better(tiny: Any, tmp_path: Path) -> None:
    """The average knows nothing, the student everything: hand-made weights whose mean with the round before is known."""
    ends = Ends({"w": torch.zeros(1)}, {"w": torch.ones(1)})
    past = Past({"w": torch.tensor([4.0])}, 1, [0.0, 0.5])
    parts: dict[str, State] = {}
    assert _mean("net", ends, past, [0.6, 0.7], 0.7, parts)["delivered"] is None
    assert not parts
    assert _mean("net", ends, past, [0.6, 0.8], 0.7, parts)["delivered"] == 0.5
    assert parts[DELIVERED + "net"]["w"].item() == 2.25  # (0.5 + 4) / 2


def test_without_the_past_nothing_of_it_is_kept_or_sent(tiny: Any, tmp_path: Path) -> None:
    without = run(tiny(**tree({"past": 0}, rounds=2)), tmp_path / "without")
    having = run(tiny(**tree(None, rounds=2)), tmp_path / "having")
    assert not any(name.startswith(CARRIED) for name in without.server.parts)
    assert all("past" not in line["line"] for line in without.history)
    size = sum(tensor.numel() * tensor.element_size() for tensor in model(without).values())
    more = [a["bytes_down"] - b["bytes_down"] for a, b in zip(having.history, without.history, strict=True)]
    assert more[0] < size / 10  # in the first round there is nothing to send
    assert 4 * size <= more[1] < 4.4 * size  # one model more for each of four clients


def test_every_architecture_has_points_of_its_own(tiny: Any, tmp_path: Path) -> None:
    config = tree(None, rounds=1, model={"clients": ["mlp", "cnn-small"], "options": {}})
    line = run(tiny(**config), tmp_path).history[0]["line"]
    assert set(line["delivered"]) == {"mlp", "cnn-small"}


def test_nothing_that_was_delivered_before_stays_behind(tiny: Any, tmp_path: Path) -> None:
    result = run(tiny(**tree({"carry": 1.0}, rounds=3)), tmp_path)
    parts = [name for name in result.server.parts if name.startswith(DELIVERED)]
    assert len(parts) == (result.history[-1]["line"]["delivered"]["mlp"] != 1.0)


@pytest.mark.parametrize("judge", ["clients", "pool"])
def test_early_states_are_judged_and_delivered_where_they_are_best(tiny: Any, tmp_path: Path, judge: str) -> None:
    hot = {"steps": 9, "batch_size": 16, "optimizer": {"name": "adam", "lr": 0.3}}  # the longer, the worse
    config = tree({"judge": judge, "snapshots": 2, "points": [0.0, 1.0]}, rounds=2)
    config["algorithm"]["distillation"] = hot
    result = run(tiny(**config), tmp_path / "here")
    for line in result.history:
        found = line["line"]["snapshots"]["mlp"]
        assert len(found["scores"]) == 2
        best = max(line["line"]["scores"]["mlp"])
        assert (found["delivered"] is not None) == (max(found["scores"]) > best)
    workers = tiny(**{**config, "engine": {"workers": 1}})
    assert same(model(run(workers, tmp_path / "there")), model(result))


def test_a_snapshot_replaces_the_whole_line_only_where_it_is_better() -> None:
    early = [{"w": torch.tensor([1.0])}, {"w": torch.tensor([2.0])}]
    ends = Ends({"w": torch.zeros(1)}, {"w": torch.ones(1)}, None, early)
    parts: dict[str, State] = {}
    assert _snapshot("net", ends, [0.5, 0.7], 0.7, parts) == {"scores": [0.5, 0.7], "delivered": None}
    assert not parts
    assert _snapshot("net", ends, [0.5, 0.8], 0.7, parts)["delivered"] == 1
    assert parts[DELIVERED + "net"]["w"].item() == 2.0


def test_an_average_by_examples_is_judged_beside_a_systems_own(tiny: Any, tmp_path: Path) -> None:
    """FedRAD averages by its scores: where the judge finds the plain average better, that is delivered and carried on."""
    data, local = {"server": "embedded:blended", "validation": 0.2}, {"epochs": 20}
    config = tiny(**tree({"judge": "server"}, rounds=2, data=data, local=local))
    good = model(run(config, tmp_path / "run"))  # better than chance
    bad = {name: torch.zeros_like(tensor) for name, tensor in good.items()}  # knows nothing
    algorithm = create(Task(config))
    for plain, own, wanted in ((good, bad, True), (bad, good, False)):
        context = Round(1, 1, 0)
        context.offer({"mlp": own}, {"mlp": own}, plain={"mlp": plain})
        settled = settle(algorithm, InProcess(algorithm, tmp_path), Server({"mlp": own}), [], context)
        assert context.notes["line"]["plain"]["mlp"]["delivered"] == wanted
        assert same(settled.server.models["mlp"], good)
        assert same(delivered(settled.server).models["mlp"], good)


def test_unjudged_the_plain_average_stands_unless_a_systems_own_was_always_better(tiny: Any, tmp_path: Path) -> None:
    algorithm = create(Task(tiny(**tree({**FULL, "points": [0.0, 1.0]}))))
    own = algorithm.task.networks.initial("mlp")
    student, plain = ({name: tensor + by for name, tensor in own.items()} for by in (1, 2))
    once, always = [[1, [0.5, 0.4, 0.6]], [2, [0.7, 0.4, 0.6]]], [[1, [0.7, 0.4, 0.6]], [2, [0.7, 0.4, 0.6]]]
    for scores, wanted in ((once, plain), (always, own)):  # own average, student, plain average
        context = Round(2, 2, 0)
        context.offer({"mlp": own}, {"mlp": student}, plain={"mlp": plain})
        server = Server({"mlp": student}, {}, {JUDGED: {"mlp": scores}})
        settled = settle(algorithm, InProcess(algorithm, tmp_path), server, [], context)
        assert same(delivered(settled.server).models["mlp"], wanted)


def test_fedrad_offers_the_plain_average(tiny: Any, tmp_path: Path) -> None:
    config = tree(None, rounds=2)
    config["algorithm"]["name"] = "fedrad"
    here = run(tiny(**config), tmp_path / "here")
    assert all(0 <= line["line"]["plain"]["mlp"]["score"] <= 1 for line in here.history)
    there = run(tiny(**{**config, "engine": {"workers": 1}}), tmp_path / "there")
    assert same(model(there), model(here))
