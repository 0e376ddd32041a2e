"""The Flower engine: the same run as in one process, whatever carries the messages."""

from __future__ import annotations

import contextlib
import json
import math
import re
import runpy
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

pytest.importorskip("flwr", reason="the extra fedstill[flower] is not installed")

from fedstill.core.errors import FedstillError
from fedstill.core.message import Message
from fedstill.engine.flower.client import client_app
from fedstill.engine.flower.records import QUIET, from_records, to_records
from fedstill.engine.flower.server import Flower
from fedstill.run.configuration import configuration
from fedstill.run.federation import run_on
from fedstill.run.loop import run
from fedstill.task import Task
from fedstill.task.sites import NodeTask, RosterTask, Site
from tests.conftest import tiny_config
from tests.engine.localgrid import LocalGrid, context

from flwr.app import ArrayRecord, ConfigRecord, MetricRecord, RecordDict  # isort: skip
from flwr.app import Message as FlowerMessage  # isort: skip

DOMAINS = ["embedded:mnist", "embedded:optdigits"]
SYSTEMS = {
    "fedavg": {},
    "feddf": {"distillation": {"steps": 4}},
    "fedd3a": {},
    "moon": {},  # keeps each client's last model as private state
}


def config(name="feddf", **changes):
    data = {"domains": DOMAINS, "server": "embedded:rotated", **changes.pop("data", {})}
    return tiny_config(algorithm={"name": name, **SYSTEMS.get(name, {})}, data=data, **changes)


def over(grid, config, out, *, resume=False, nodes=2, patience=1.0):
    return run_on(grid, config, out, resume=resume, nodes=nodes, patience=patience, listeners=[])


def shares(*numbers, **more):
    return [{"partition-id": n, "num-partitions": 2, **more} for n in numbers]


def same(one, other, tolerance=0.0):
    assert one.keys() == other.keys()
    for name in one:
        torch.testing.assert_close(one[name], other[name], rtol=0, atol=tolerance)


# -- messages -----------------------------------------------------------------------------------------------------------------

KINDS = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.uint8, torch.bool]


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.dictionaries(
        st.text(st.characters(codec="ascii", categories=["L", "N"]), min_size=1, max_size=8).map(lambda n: f"model/{n}"),
        st.tuples(st.sampled_from(KINDS), st.lists(st.integers(0, 3), max_size=3)),
        max_size=4,
    ),
    st.dictionaries(
        st.text(min_size=1, max_size=8),
        st.one_of(st.integers(-(2**63), 2**63 - 1), st.floats(allow_nan=False), st.text(max_size=8), st.booleans()),
        max_size=4,
    ),
)
def test_messages_cross_without_loss(shapes, values):
    tensors = {name: (torch.rand(shape) * 3).to(kind) for name, (kind, shape) in shapes.items()}
    found = from_records(RecordDict.inflate(*_deflated(to_records(Message(tensors, values)))))
    assert list(found.tensors) == list(tensors)
    assert found.values == values
    assert [type(v) for v in found.values.values()] == [type(v) for v in values.values()]
    for name, tensor in tensors.items():
        assert found.tensors[name].dtype == tensor.dtype
        assert torch.equal(found.tensors[name], tensor)


def _deflated(records):
    """The records as bytes, and their parts likewise: what goes over the wire."""
    children = records.children
    return records.deflate(), children and {key: type(child).inflate(*_deflated(child)) for key, child in children.items()}


def test_nonsense_is_refused_not_executed():
    for records in (RecordDict(), RecordDict({"tensors": ConfigRecord(), "values": ConfigRecord()})):
        with pytest.raises(FedstillError, match="not a message"):
            from_records(records)


def test_telemetry_is_off_unless_the_user_turned_it_on():
    import os

    assert all(os.environ.get(name) is not None for name in QUIET)


# -- the same run ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SYSTEMS)
def test_the_weights_are_those_of_one_process(name, tmp_path):
    setup = config(name)
    here = run(setup, tmp_path / "here")
    there = over(LocalGrid(client_app(), shares(1, 0)), setup, tmp_path / "there")
    same(here.server.models["mlp"], there.server.models["mlp"])
    assert [line["accuracy"] for line in here.history] == [line["accuracy"] for line in there.history]
    assert [line["bytes_up"] for line in here.history] == [line["bytes_up"] for line in there.history]


@pytest.mark.parametrize("lost", [0, 1])
def test_a_secure_sum_over_flower_is_the_plain_one_though_a_node_is_lost(lost, tmp_path):
    pytest.importorskip("cryptography")
    setup = config("moon", clients={"per_domain": 2, "timeout": 0.5}, privacy={"secure": {"threshold": 0.5}}, rounds=2)
    plain = setup.model_copy(update={"privacy": type(setup.privacy)()})
    kind = {True: "model", False: "masked"}
    nodes = [{"partition-id": n, "num-partitions": 4} for n in range(4)]

    def learned(config, folder):
        def spoil(node, message, reply):
            gone = (
                lost
                and node == 102
                and message.metadata.message_type == "train"
                and kind[config is plain] in from_records(reply.content).groups()
            )
            return None if gone else reply

        return over(LocalGrid(client_app(), nodes, spoil), config, tmp_path / folder, nodes=4)

    safe, open_ = learned(setup, "safe"), learned(plain, "plain")
    same(safe.server.models["mlp"], open_.server.models["mlp"], 1e-6)
    assert [line["secure"]["summed"] for line in safe.history] == [4 - lost] * 2


def test_nodes_with_data_of_their_own_learn_the_same_and_judge_it_themselves(tmp_path):
    # named like the partition's clients, the nodes draw the same random numbers
    nodes = [{"data": source, "domain": source[9:], "client": f"{source[9:]}-0"} for source in DOMAINS]
    here = run(config("fedd3a"), tmp_path / "here")
    there = over(LocalGrid(client_app(), nodes), config("fedd3a", data={"domains": []}), tmp_path / "there")
    same(here.server.models["mlp"], there.server.models["mlp"])
    assert [line["domains"] for line in there.history] == [line["domains"] for line in here.history]
    assert there.summary["final_accuracy"] == pytest.approx(here.summary["final_accuracy"])
    assert there.history[0]["measured_by"] == "clients"
    assert all(client["counts"] is None for client in json.loads((tmp_path / "there/clients.json").read_text())["clients"])


def test_noised_sums_are_the_same_here_and_there(tmp_path):
    changes = {"privacy": {"client": {"clip": 0.5, "noise": 0.2, "adaptive": {}}}, "clients": {"fraction": 0.7}, "rounds": 3}
    here = run(config("fedavgm", **changes), tmp_path / "here")
    there = over(LocalGrid(client_app(), shares(0, 1)), config("fedavgm", **changes), tmp_path / "there")
    same(here.server.models["mlp"], there.server.models["mlp"])
    assert [line["privacy"] for line in there.history] == [line["privacy"] for line in here.history]


def test_masked_votes_are_the_same_here_and_there(tmp_path):
    pytest.importorskip("cryptography")
    votes = {"sigma": 0.5, "sigma_threshold": 0.5, "threshold": 2.0}
    setup = config("feddf", clients={"per_domain": 2}, privacy={"votes": votes, "secure": {}}, rounds=1)
    options = {"distillation": {"steps": 4, "start": "previous"}, "line": False}
    setup = setup.model_copy(update={"algorithm": {"name": "feddf", **options}})
    here = run(setup, tmp_path / "here")
    nodes = [{"partition-id": n, "num-partitions": 4} for n in range(4)]
    there = over(LocalGrid(client_app(), nodes), setup, tmp_path / "there", nodes=4)
    same(here.server.models["mlp"], there.server.models["mlp"])
    assert here.history[0]["votes"] == there.history[0]["votes"]
    assert here.history[0]["votes"]["answered"] > 0


@pytest.mark.parametrize("name", ["moon", "dafkd"])
def test_private_training_is_the_same_here_and_there(name, tmp_path):
    """Steps, noise and ledgers, which the nodes keep in their private state."""
    pytest.importorskip("opacus", reason="the extra fedstill[privacy] is not installed")
    options = {"distillation": {"steps": 4}, "source": {"kind": "generator", "size": 32}} if name == "dafkd" else {}
    setup = config(name, privacy={"sample": {"noise": 1.0, "epsilon": 50.0}})
    setup = setup.model_copy(update={"algorithm": {**setup.algorithm, **options}})
    here = run(setup, tmp_path / "here")
    there = over(LocalGrid(client_app(), shares(1, 0)), setup, tmp_path / "there")
    same(here.server.models["mlp"], there.server.models["mlp"])
    epsilons = [line["privacy"]["sample"]["clients"] for line in there.history]
    assert epsilons == [line["privacy"]["sample"]["clients"] for line in here.history]
    assert all(0 < epsilons[0][client] < epsilon for client, epsilon in epsilons[-1].items())


def test_a_server_with_test_data_uses_it(tmp_path):
    nodes = [{"data": source, "domain": source[9:]} for source in DOMAINS]
    setup = config("fedavg", data={"domains": ["embedded:rotated"]}, rounds=1)
    there = over(LocalGrid(client_app(), nodes), setup, tmp_path)
    assert list(there.history[0]["domains"]) == ["rotated"]


@pytest.mark.parametrize("name", ["fedd3a", "fedma", "dafkd", "dafkd, secure", "fedgen", "fedmd"])
def test_systems_that_send_more_or_less_than_a_model_run_on_nodes_of_their_own(name, tmp_path):
    name, _, secure = name.partition(", ")
    preset = configuration("demo", [f"algorithm.name={name}", *(["algorithm.secure=true"] if secure else [])])
    nodes = [{"data": source, "domain": source[9:], "public": "embedded:rotated"} for source in DOMAINS]
    student = {"clients": ["mlp", "cnn-small"], "student": "mlp", "options": {}} if name == "fedd3a" else {}
    setup = tiny_config(
        algorithm=preset.algorithm,
        data={"domains": [], "server": "embedded:rotated", "image_size": 16},
        model={"name": "mlp", **student} if name == "fedd3a" else {"name": "cnn-small", "options": {}, "norm": "none"},
        rounds=2 if name == "fedma" else 1,
    )
    result = over(LocalGrid(client_app(), nodes), setup, tmp_path)
    assert result.history[0]["clients"] == ["mnist", "optdigits"]
    assert not result.history[0]["dropped"]


def test_resume_goes_on_from_the_checkpoint_with_private_state(tmp_path):
    setup = config("moon", rounds=3)
    whole = run(setup, tmp_path / "whole")
    nodes = shares(0, 1, memory=str(tmp_path / "memory"))

    def dies(node, message, reply):
        if message.metadata.group_id == "2":
            raise KeyboardInterrupt
        return reply

    with pytest.raises(KeyboardInterrupt):
        over(LocalGrid(client_app(), nodes, dies), setup, tmp_path / "cut")
    again = over(LocalGrid(client_app(), nodes), setup, tmp_path / "cut", resume=True)
    assert [line["round"] for line in again.history] == [1, 2, 3]
    same(whole.server.models["mlp"], again.server.models["mlp"])


def test_private_state_stays_in_the_context(tmp_path):
    grid = LocalGrid(client_app(), shares(0, 1))
    over(grid, config("moon"), tmp_path)
    for here in grid.contexts.values():
        assert any("previous" in name for record in here.state.array_records.values() for name in record)


# -- trouble -------------------------------------------------------------------------------------------------------------------


def test_a_broken_reply_costs_itself_and_is_named(tmp_path):
    def spoil(node, message, reply):
        if message.metadata.message_type != "train":
            return reply
        if node == 101:
            found = from_records(reply.content)
            bad = {name: t * math.nan for name, t in found.tensors.items()}
            records = to_records(Message(bad, found.values))
            records["fedstill"] = reply.content["fedstill"]
            return FlowerMessage(records, reply_to=message)
        if node == 102:
            return FlowerMessage(RecordDict({"x": ConfigRecord()}), reply_to=message)
        return None if node == 103 else reply

    setup = config("fedavg", clients={"per_domain": 2, "timeout": 0.5}, rounds=1)
    result = over(LocalGrid(client_app(), shares(0, 1, 2, 3), spoil), setup, tmp_path, nodes=4)
    reasons = {d["client"]: d["reason"] for d in result.history[0]["dropped"]}
    assert result.history[0]["clients"] == ["mnist-0"]
    assert "not finite" in reasons["mnist-1"]
    assert "not a reply" in reasons["optdigits-0"]
    assert reasons["optdigits-1"] == "no reply within 0.5 s"


def test_a_node_that_leaves_is_named_and_may_come_back_as_another(tmp_path):
    grid = LocalGrid(client_app(), shares(0, 1))
    away = grid.contexts[101]

    def leaves(node, message, reply):
        if message.metadata.group_id == "1" and node == 101:
            grid.contexts.pop(101)
        if message.metadata.group_id == "2" and node == 100:
            grid.contexts[205] = context(205, away.node_config)
        return reply

    grid.spoil = leaves
    result = over(grid, config("fedavg", rounds=3), tmp_path)
    assert [line["clients"] for line in result.history] == [["mnist-0", "optdigits-0"], ["mnist-0"], ["mnist-0", "optdigits-0"]]
    assert result.history[1]["dropped"] == [{"client": "optdigits-0", "reason": "its node is not connected"}]


@pytest.mark.parametrize(
    ("nodes", "text"),
    [
        ([{}], "this node has no data"),
        ([{"data": "/nowhere/at/all"}], "no such folder or file: /nowhere/at/all"),
        ([{"data": DOMAINS[0], "domain": "a"}, {"partition-id": 0}], "either all nodes bring their own data or none"),
        ([{"data": DOMAINS[0], "model": "os:getcwd"}], "a model that the server does not know"),
    ],
)
def test_what_is_wrong_with_the_nodes_is_one_line(nodes, text, tmp_path):
    with pytest.raises(FedstillError, match=text):
        over(LocalGrid(client_app(), nodes), config("fedavg"), tmp_path, nodes=len(nodes), patience=0.1)


class Crowd(LocalGrid):
    """Counts the messages that are under way at the same time."""

    most = 0

    def push_messages(self, messages):
        numbers = super().push_messages(messages)
        self.most = max(self.most, len(self.waiting))
        return numbers


def test_no_more_nodes_work_at_once_than_the_machine_can_bear(tmp_path, caplog):
    found = []
    caplog.set_level("INFO", logger="flwr")
    for at_once, most in ((0, 2), (1, 1)):
        grid = Crowd(client_app(), shares(0, 1))
        found.append(
            run_on(
                grid,
                config("fedavg", rounds=1),
                tmp_path / str(at_once),
                resume=False,
                nodes=2,
                patience=5.0,
                listeners=[],
                at_once=at_once,
            )
        )
        assert grid.most == most
    same(found[0].server.models["mlp"], found[1].server.models["mlp"])
    assert found[0].history[0]["clients"] == found[1].history[0]["clients"]
    assert [r.getMessage() for r in caplog.records if "ready" in r.getMessage()][-1] == "2 of 2 nodes are ready"


def test_a_silent_node_holds_its_place_only_for_a_while():
    silent = LocalGrid(client_app(), shares(0, 1), lambda node, message, reply: None if node == 100 else reply)
    engine = Flower(silent, config("fedavg"), "run", at_once=1)
    asked = {node: RecordDict({"fedstill": ConfigRecord({"config": "{}"})}) for node in (100, 101)}
    with contextlib.closing(engine):
        found = {node: (reply, reason) for node, reply, reason in engine._send(asked, "query", "0", 60.0, 0.1)}
    assert found[100] == (None, "no reply within 0.1 s")
    assert found[101][0] is not None


def test_two_nodes_of_one_name(tmp_path, caplog):
    nodes = [{"data": DOMAINS[0], "domain": "a"}, {"data": DOMAINS[1], "domain": "a"}]
    result = over(LocalGrid(client_app(), nodes), config("fedavg", rounds=1), tmp_path, patience=0.1)
    assert result.history[0]["clients"] == ["a"]
    assert "another node is already called 'a'" in caplog.text


# -- tasks --------------------------------------------------------------------------------------------------------------------


def test_a_node_counts_its_labels_along_the_federations_classes():
    setup = config("fedavg")
    turned = NodeTask(setup, DOMAINS[0], "a", "a", classes=[str(d) for d in reversed(range(10))])
    plain = Task(setup).domains["mnist"].train
    assert torch.equal(9 - turned.domains["a"].train.y, plain.y)


def test_the_server_settles_one_shape_for_all():
    sites = [
        Site("b", "b", 5, ("x", "y"), (3, 10, 10), "mlp"),
        Site("a", "a", 5, ("x", "y"), (1, 8, 8)),
    ]
    task = RosterTask(tiny_config(data={"domains": [], "image_size": None, "channels": None}), sites)
    assert task.shape == (3, 8, 8)
    assert list(task.clients) == ["a", "b"]
    assert task.tests == {}


def test_classes_must_agree_or_are_joined():
    sites = [Site("a", "a", 5, ("x", "y"), (1, 8, 8)), Site("b", "b", 5, ("y", "z"), (1, 8, 8))]
    with pytest.raises(FedstillError, match="do not have the same classes"):
        RosterTask(tiny_config(data={"domains": []}), sites).classes  # noqa: B018
    assert RosterTask(tiny_config(data={"domains": [], "classes": "union"}), sites).classes == ("x", "y", "z")


def test_a_description_from_another_machine_is_checked():
    for text in ("{}", "[]", "nonsense", '{"client": "", "domain": "a", "samples": 1, "classes": [], "shape": []}'):
        with pytest.raises(FedstillError):
            Site.from_json(text)


# -- strategies ---------------------------------------------------------------------------------------------------------------


@pytest.fixture
def example():
    """The app in examples/flower, imported as Flower would."""
    folder = str(Path(__file__).parents[2] / "examples" / "flower")
    sys.path.insert(0, folder)
    yield
    sys.path.remove(folder)
    for name in [name for name in sys.modules if name.split(".")[0] == "digits"]:
        del sys.modules[name]


@pytest.mark.parametrize("kind", ["feddf", "fedd3a"])
def test_the_example_app_learns(example, kind, capsys):
    from digits.client_app import app as client
    from digits.server_app import app as server

    torch.manual_seed(0)
    grid = LocalGrid(client, shares(0, 1))
    server(grid, context(0, {}, {"num-server-rounds": 3, "strategy": kind}))
    scores = [float(found) for found in re.findall(r"'eval_acc': ([\d.]+)", capsys.readouterr().out)]
    assert len(scores) == 3
    assert scores[-1] > 0.6  # each client knows half of the digits


def net(seed=0):
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(4, 6), torch.nn.Tanh(), torch.nn.Linear(6, 3))


def reply_of(model, node, samples=10, **more):
    sent = FlowerMessage(RecordDict(), node, "train")
    records = {"arrays": ArrayRecord(model.state_dict()), "metrics": MetricRecord({"num-examples": samples, "loss": 1.0})}
    return FlowerMessage(RecordDict({**records, **more}), reply_to=sent)


def test_a_strategy_leaves_broken_replies_out():
    from fedstill.engine.flower.strategies import FedDF
    from fedstill.fusion.distillation.options import Distillation
    from fedstill.training.options import Optimizer

    good, bad = net(1), net(2)
    with torch.no_grad():
        bad[1].weight[0, 0] = math.nan
    other = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(4, 3))
    gentle = Distillation(steps=5, optimizer=Optimizer(name="sgd", lr=0.1))
    strategy = FedDF(net(), torch.rand(20, 1, 2, 2), distillation=gentle)
    arrays, _ = strategy.aggregate_train(1, [reply_of(bad, 2), reply_of(good, 3), reply_of(other, 4)])
    # one teacher, whose own weights are the average: it has nothing to learn from itself
    same(dict(arrays.to_torch_state_dict()), dict(good.state_dict()), 1e-6)


def test_fedd3a_trusts_the_client_whose_domain_it_is():
    from fedstill.engine.flower.strategies import FedD3A, projection

    def half(which):  # inputs that live in one half of the input space
        x = torch.zeros(40, 1, 2, 2)
        x[:, 0, which] = torch.rand(40, 2) + 0.5
        return x

    sent = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Identity(), torch.nn.Linear(4, 3))
    strategy = FedD3A(sent, half(0))
    strategy.sent = dict(sent.state_dict())
    messages = [
        strategy._read(reply_of(sent, n, projection=projection(sent, half(which))).content) for n, which in enumerate((0, 1))
    ]
    weights = strategy.weights(messages)
    assert weights.shape == (40, 2)
    assert (weights[:, 0] > weights[:, 1]).all()


def test_the_fedd3a_strategy_does_what_its_options_say():
    from fedstill.algorithms.fedd3a import FedD3AOptions
    from fedstill.engine.flower.strategies import FedD3A, projection

    sent, pool = net(), torch.rand(20, 1, 2, 2)
    strategy = FedD3A(sent, pool, options=FedD3AOptions(weighting="onehot", merge="examples"))
    strategy.sent, strategy.rounds = dict(sent.state_dict()), 10
    replies = [reply_of(sent, n, samples=n, projection=projection(sent, torch.rand(40, 1, 2, 2))) for n in (1, 3)]
    messages = [strategy._read(reply.content) for reply in replies]
    assert strategy.shares(messages) == [0.25, 0.75]
    assert set(strategy.weights(messages).unique().tolist()) <= {0.0, 1.0}
    assert strategy.learning(1).optimizer.lr == 0.01
    assert strategy.learning(10).optimizer.lr == pytest.approx(1e-4)
    with pytest.raises(FedstillError, match="'soft' or 'onehot'"):
        FedD3A(sent, pool, options=FedD3AOptions(weighting="avg"))


def test_batches_have_the_projection_of_the_whole():
    from fedstill.engine.flower.strategies import projection

    model, x = net(), torch.rand(70, 1, 2, 2)
    whole, parts = (projection(model, inputs).to_torch_state_dict()["matrix"] for inputs in (x, x.split(16)))
    torch.testing.assert_close(whole, parts)


def test_a_projection_of_another_shape_costs_its_own_reply():
    from fedstill.engine.flower.strategies import FedD3A, projection

    strategy = FedD3A(net(), torch.rand(20, 1, 2, 2))
    strategy.sent = dict(net().state_dict())
    good = reply_of(net(1), 2, projection=projection(net(), torch.rand(40, 1, 2, 2)))
    bad = reply_of(net(2), 3, projection=ArrayRecord({"matrix": torch.eye(5)}))
    assert [message.values["samples"] for _, message in strategy._sound([bad, good])] == [10]


def test_a_fedd3a_client_without_a_projection_is_told():
    from fedstill.engine.flower.strategies import FedD3A

    strategy = FedD3A(net(), torch.rand(5, 1, 2, 2))
    assert strategy.aggregate_train(1, [reply_of(net(1), 2)]) == (None, None)


def test_the_app_that_init_writes_is_complete(tmp_path):
    from fedstill.engine.flower.app import write_app

    folder = write_app(tmp_path / "app", config("fedavg"))
    with pytest.raises(FedstillError, match="not empty"):
        write_app(folder, config("fedavg"))
    found = runpy.run_path(str(folder / "federation" / "server_app.py"))
    found["app"](LocalGrid(client_app(), shares(0, 1)), context(0, {}, {"out": str(tmp_path / "out"), "nodes": 2}))
    assert (tmp_path / "out" / "summary.json").exists()
    assert "app" in runpy.run_path(str(folder / "federation" / "client_app.py"))
