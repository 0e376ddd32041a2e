"""FedD3A end to end on two tiny domains: Eq. 6 to 8 with real clients, personal models, its settings, and the ceiling."""

from __future__ import annotations

import pytest
import torch

from fedstill.algorithm import Client, Reply, Round
from fedstill.algorithms import create
from fedstill.core.errors import FedstillError
from fedstill.core.message import Message
from fedstill.data.samples import Samples
from fedstill.engine.memory import Memory
from fedstill.engine.turn import client_turn
from fedstill.fusion.ensemble import ensemble_table
from fedstill.fusion.screening import fault
from fedstill.fusion.weightings.projection import proximity, soft_weights
from fedstill.run.configuration import configuration
from fedstill.run.listener import Listener
from fedstill.run.loop import run
from fedstill.task import Task
from fedstill.training.fit import fit


def fedd3a(tiny, **changes):
    algorithm = {"name": "fedd3a", "distillation": {"batch_size": 32, "epochs": 1}, **changes.pop("algorithm", {})}
    return tiny(data={"server": "embedded:rotated", **changes.pop("data", {})}, algorithm=algorithm, **changes)


def replies_of(algorithm, server, number=1, memories=None):
    context = Round(number, 2, 0)
    found = []
    for name, info in algorithm.task.clients.items():
        client = Client.of(algorithm.task, name, number, (memories or {}).get(name))
        message = algorithm.train(algorithm.instruct(server, name, context), client)
        if memories is not None:
            memories[name] = client.memory
        found.append(Reply(name, info.domain, info.prototype, len(client.data), lambda message=message: message))
    return found


def test_targets_are_eq_7_under_the_backbone_that_was_sent(tiny):
    algorithm = create(Task(fedd3a(tiny)))
    task, server = algorithm.task, algorithm.start()
    replies = replies_of(algorithm, server)
    samples = task.pool.samples.take(slice(0, 20))
    teachers = algorithm.teachers(server, replies, Round(1, 2, 0))
    weighting = algorithm.weighting(server, teachers, Round(1, 2, 0))
    table = ensemble_table(teachers, samples, weighting, space=algorithm.options.ensemble)

    network = task.networks.load("mlp", server.models["mlp"]).eval()
    with torch.no_grad():
        z = network.features(network.normalise(samples.x))
        alpha = soft_weights(proximity(z, [reply.part("projection") for reply in replies]))  # Eq. 6
        spoken = []
        for reply in replies:
            teacher = task.networks.load("mlp", reply.model).eval()
            spoken.append(teacher(teacher.normalise(samples.x)).softmax(1))
    wanted = sum(alpha[:, [k]] * spoken[k] for k in range(len(replies)))  # Eq. 7
    torch.testing.assert_close(table.targets, wanted, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(table.weights, alpha, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("weighting", ["soft", "onehot", "projection", "avg", "random"])
def test_every_strategy_of_table_1_runs(tiny, tmp_path, weighting):
    result = run(fedd3a(tiny, rounds=1, algorithm={"weighting": weighting}), tmp_path)
    weights = result.history[0]["weights"]
    assert sum(weights.values()) == pytest.approx(1, abs=1e-4)
    if weighting == "avg":
        assert set(weights.values()) == {0.5}
    assert ("projection" in result.history[0]) == (weighting in ("soft", "onehot", "projection"))


def test_the_history_says_what_the_matrices_cost(tiny, tmp_path):
    whole = run(fedd3a(tiny, rounds=1), tmp_path / "whole").history[0]
    small = run(fedd3a(tiny, rounds=1, algorithm={"weighting_options": {"rank": 4}}), tmp_path / "small").history[0]
    assert whole["projection"]["bytes"] == 2 * 16 * 16 * 4
    assert whole["projection"]["saved"] == 0
    assert small["projection"] == {
        "bytes": 2 * (16 + 1) * 4 * 4,
        "of_model": pytest.approx(small["projection"]["bytes"] / (2 * 4 * ((64 + 1) * 16 + 17 * 10)), rel=1e-3),
        "saved": 2 * 16 * 16 * 4 - 2 * 17 * 4 * 4,
    }
    assert whole["bytes_up"] - small["bytes_up"] == small["projection"]["saved"]
    config = fedd3a(tiny, rounds=1, engine={"workers": 1}, algorithm={"weighting_options": {"rank": 4}})
    assert run(config, tmp_path / "worker").history[0]["projection"] == small["projection"]  # tensors come back in another order


def test_defaults_are_the_papers_and_survive_a_partial_table(tiny):
    algorithm = create(Task(fedd3a(tiny, rounds=30, algorithm={"distillation": {"direction": "reverse"}})))
    options = algorithm.options.distillation
    assert (options.direction, options.epochs, options.batch_size, options.optimizer.name) == ("reverse", 1, 256, "sgd")
    assert algorithm.distillation(Round(1, 30, 0)).optimizer.lr == pytest.approx(0.01)
    assert algorithm.distillation(Round(30, 30, 0)).optimizer.lr == pytest.approx(1e-4)


def test_a_mistake_in_the_options_is_one_line(tiny):
    with pytest.raises(
        FedstillError, match=r"unknown key 'algorithm.weighting_options.rnk'; did you mean 'algorithm.weighting_options.rank'\?"
    ):
        fedd3a(tiny, algorithm={"weighting_options": {"rnk": 3}})
    with pytest.raises(FedstillError, match="unknown key 'algorithm.weighting_options.rnk'"):
        tiny(
            data={"server": "embedded:rotated"},
            algorithm={"name": "feddf", "weighting": "soft", "weighting_options": {"rnk": 3}},
        )


def test_other_weightings_bring_their_own_options(tiny):
    options = fedd3a(tiny, algorithm={"weighting": "trimmed-mean", "weighting_options": {"trim": 0.3}}).algorithm
    assert options["weighting_options"] == {"trim": 0.3}
    assert fedd3a(tiny).algorithm["weighting_options"]["alpha"] == 0.01  # a run's config.toml says everything


def test_a_reply_without_a_usable_matrix_is_dropped_with_the_reason(tiny):
    algorithm = create(Task(fedd3a(tiny)))
    server = algorithm.start()
    good = Message.of(model=algorithm.task.networks.initial("mlp"), samples=1)
    assert algorithm.screen(server, "mnist-0", good) == "no 'projection' in the reply"
    narrow = good.with_parts(projection={"matrix": torch.zeros(3, 3)})
    assert "is (3, 3), expected (16, 16)" in str(algorithm.screen(server, "mnist-0", narrow))
    other = good.with_parts(projection={"what": torch.zeros(16, 16)})
    assert algorithm.screen(server, "mnist-0", other) == "not a projection: what"
    half = good.with_parts(projection={"vectors": torch.zeros(16, 4), "values": torch.zeros(3)})
    assert "expected (16, 3)" in str(algorithm.screen(server, "mnist-0", half))
    assert algorithm.screen(server, "mnist-0", good.with_parts(projection={"matrix": torch.zeros(16, 16)})) is None


def test_the_pool_may_be_a_clients_own_domain(tiny, tmp_path):
    result = run(fedd3a(tiny, data={"server": "embedded:mnist"}, rounds=1), tmp_path)
    assert list(result.history[0]["weights_by_domain"]) == ["mnist"]
    assert result.task.clients["mnist-0"].samples == len(result.task.pool)  # Figure 5: completely the same data


PERSONAL = {"clients": ["mlp", "cnn-small"], "student": "cnn-small", "options": {}}


def personal(tiny, name="fedd3a", **changes):
    tree = fedd3a(tiny, model={"name": "cnn-small"}, algorithm={"name": name}, **changes)
    return tree.model_copy(update={"model": tree.model.model_copy(update=PERSONAL)})


@pytest.mark.parametrize("name", ["fedd3a", "feddf"])
def test_clients_keep_their_own_models_and_the_server_one_public_one(tiny, name):
    algorithm = create(Task(personal(tiny, name)))
    task, server = algorithm.task, algorithm.start()
    assert list(server.models) == ["cnn-small"]
    memories: dict[str, Message] = {}
    replies = replies_of(algorithm, server, 1, memories)
    assert [reply.prototype for reply in replies] == ["mlp", "cnn-small"]
    for reply in replies:
        assert reply.model.keys() == task.networks.get(reply.prototype).state_dict().keys()
        kept = memories[reply.client].group("personal")
        assert all(torch.equal(kept[key], tensor) for key, tensor in reply.model.items())
    after = algorithm.fuse(server, replies, Round(1, 2, 0))
    assert list(after.models) == ["cnn-small"]
    statistics = after.models["cnn-small"]["body.2.running_mean"]  # from the pool: nobody else has any for this model
    assert not torch.equal(statistics, server.models["cnn-small"]["body.2.running_mean"])
    start = algorithm.merge(server, replies, Round(1, 2, 0))["cnn-small"]
    assert all(torch.equal(start[key], tensor) for key, tensor in server.models["cnn-small"].items())


def test_a_personal_model_goes_on_from_itself(tiny):
    # with next to no learning rate the second round returns what the first one kept, not the initial or the global model
    algorithm = create(Task(personal(tiny)))
    memories: dict[str, Message] = {}
    first = replies_of(algorithm, algorithm.start(), 1, memories)
    slow = create(Task(personal(tiny, local={"optimizer": {"lr": 1e-12}})))
    second = replies_of(slow, slow.start(), 2, memories)
    torch.testing.assert_close(second[0].model["head.weight"], first[0].model["head.weight"])
    assert not torch.allclose(first[0].model["head.weight"], algorithm.task.networks.initial("mlp")["head.weight"], atol=1e-4)


def test_the_global_model_teaches_the_personal_ones(tiny):
    taught = create(Task(personal_with(tiny, 50.0)))
    alone = create(Task(personal_with(tiny, 0.0)))
    server = taught.start()
    one, other = replies_of(taught, server)[0].model, replies_of(alone, server)[0].model
    x = taught.task.data_of("optdigits-0").x
    student = taught.task.networks.load("cnn-small", server.models["cnn-small"], role="global").eval()
    gaps = []
    for state in (one, other):
        net = taught.task.networks.load("mlp", state).eval()
        with torch.no_grad():
            gaps.append(float((net(net.normalise(x)).softmax(1) - student(student.normalise(x)).softmax(1)).abs().mean()))
    assert gaps[0] < gaps[1]


def personal_with(tiny, weight):
    config = personal(tiny)
    table = {**config.algorithm, "personal": {"weight": weight, "temperature": 1.0}}
    return config.model_copy(update={"algorithm": table})


class Stop(Listener):
    """Ctrl-C after the first round."""

    def round(self, line):
        if line["round"] == 1:
            raise KeyboardInterrupt


def test_personal_runs_resume_exactly(tiny, tmp_path):
    config = personal(tiny)
    whole = run(config, tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        run(config, tmp_path / "parts", listeners=[Stop()])
    done = run(config, tmp_path / "parts", resume=True)
    kept = sorted((tmp_path / "whole" / "clients").rglob("*.safetensors"))
    assert kept
    for path in [*kept, tmp_path / "whole" / "model.safetensors"]:
        other = tmp_path / "parts" / path.relative_to(tmp_path / "whole")
        assert path.read_bytes() == other.read_bytes()
    assert len(done.history) == 2
    assert whole.history[-1]["personal_accuracy"].keys() == whole.task.clients.keys()


def test_a_model_that_diverged_once_is_not_gone_on_from(tiny, tmp_path):
    config = personal(tiny)
    hot = config.local.optimizer.model_copy(update={"lr": 1e30})
    config = config.model_copy(update={"rounds": 3, "local": config.local.model_copy(update={"optimizer": hot})})
    algorithm, memory = create(Task(config)), Memory(tmp_path)
    server, [client, *_] = algorithm.start(), algorithm.task.clients
    first = client_turn(algorithm, client, 1, "train", algorithm.instruct(server, client, Round(1, 3, 0)), memory)
    assert fault(first, ["model"], None)
    assert not memory.read(client, 2).group("personal")  # so that a second try starts where the first did


@pytest.mark.parametrize("weighting", ["counts", "discriminator", "examples", "median"])
def test_other_weightings_of_the_common_set_work(weighting, tiny, tmp_path):
    done = run(fedd3a(tiny, algorithm={"weighting": weighting}, rounds=1), tmp_path / "a")
    assert "projection" not in done.history[0]


def test_clients_with_statistics_of_their_own_cannot_be_compared(tiny):
    with pytest.raises(FedstillError, match="model.buffers = 'local'"):
        create(Task(fedd3a(tiny, model={"name": "cnn-small", "buffers": "local"})))


def test_terms_about_the_global_weights_need_the_servers_own_structure(tiny):
    config = personal(tiny)
    table = {**config.algorithm, "proximal": 0.1}
    with pytest.raises(FedstillError, match="proximal, contrastive"):
        create(Task(config.model_copy(update={"algorithm": table})))


def test_the_papers_settings_are_presets():
    silo, device = configuration("cross-silo"), configuration("cross-device", ["clients.partition.alpha=1.0"])
    assert (silo.clients.per_domain, silo.rounds, silo.local.batch_size) == (1, 30, 256)
    assert (device.clients.per_domain, device.clients.per_round, device.clients.partition.alpha) == (5, 5, 1.0)
    assert configuration("personal").model.student == "resnet50"
    assert configuration("cross-silo", ["algorithm.name=fedprox"]).algorithm["mu"] == 0.1


def test_the_ceiling_is_plain_training_on_the_union(tiny, tmp_path):
    config = tiny(rounds=1, algorithm={"name": "ceiling"})
    result = run(config, tmp_path)
    assert result.history[0]["pooled_samples"] == 240
    assert result.history[0]["bytes_up"] < 100
    task = Task(config)
    shares = [task.data_of(client) for client in task.clients]
    union = Samples(torch.cat([s.x for s in shares]), torch.cat([s.y for s in shares]))
    network = task.networks.load("mlp", task.networks.initial("mlp"))
    fit(network, union, config.local, rng=Round(1, 1, config.seed).rng("fit"), lr=config.local.optimizer.lr)
    torch.testing.assert_close(result.server.models["mlp"], dict(network.state_dict()))
