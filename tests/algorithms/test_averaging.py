"""FedAvg, FedProx, FedAvgM and MOON against numbers that a reader can check by hand."""

from __future__ import annotations

import pytest
import torch

from fedstill.algorithm import Client, Reply, Round, Server
from fedstill.algorithms import algorithms, create
from fedstill.algorithms.fedavgm import momentum_step
from fedstill.core.errors import FedstillError
from fedstill.core.message import Message
from fedstill.fusion.merges import average, by_examples, uniform, weighted_sum
from fedstill.local.update import local_update
from fedstill.models.statistics import recalibrate
from fedstill.run.loop import run, sample_clients
from fedstill.task import Task
from fedstill.training.fit import Batch
from fedstill.training.schedules import learning_rate


def reply(value, samples, client="a", prototype="mlp"):
    model = {"w": torch.tensor([float(value)]), "count": torch.tensor(samples)}
    return Reply(client, "d", prototype, samples, lambda: Message.of(model=model, samples=samples))


def test_fedavg_weighs_by_examples_or_all_alike():
    replies = [reply(1.0, 10), reply(4.0, 30)]
    assert average(replies, by_examples)["w"].item() == 0.25 * 1 + 0.75 * 4
    assert average(replies, uniform)["w"].item() == 2.5
    assert average(replies)["count"].dtype == torch.int64
    assert average(replies)["count"].item() == 25


def test_the_sum_keeps_types_and_is_exact_for_equal_states():
    state = {"h": torch.randn(5, dtype=torch.float16), "f": torch.randn(5), "n": torch.tensor([7, 9])}
    merged = weighted_sum([state] * 3, [1 / 3] * 3)
    assert all(merged[k].dtype == t.dtype and torch.equal(merged[k], t) for k, t in state.items())


def test_heavy_ball_and_ema_momentum_over_two_rounds():
    # the average is always one below the model: d = 1 each round
    def rounds(form):
        w, v = {"w": torch.tensor([0.0])}, {}
        for _ in range(2):
            w, v = momentum_step(w, {"w": w["w"] - 1}, v, 0.5, form, {"w"})
        return w["w"].item()

    assert rounds("heavy-ball") == -(1 + 1.5)  # v1 = 1, v2 = .5 + 1
    assert rounds("ema") == -(0.5 + 0.75)  # v1 = .5, v2 = .25 + .5


def test_momentum_leaves_buffers_to_the_average():
    after, kept = momentum_step(
        {"w": torch.ones(1), "b": torch.ones(1)}, {"w": torch.zeros(1), "b": torch.full((1,), 5.0)}, {}, 0.3, "heavy-ball", {"w"}
    )
    assert after["b"].item() == 5
    assert set(kept) == {"w"}


def test_fedavgm_with_beta_zero_is_fedavg(tiny, tmp_path):
    plain = run(tiny(algorithm={"name": "fedavg"}), tmp_path / "a").server.models["mlp"]
    zero = run(tiny(algorithm={"name": "fedavgm", "beta": 0.0}), tmp_path / "b").server.models["mlp"]
    some = run(tiny(algorithm={"name": "fedavgm", "beta": 0.4}), tmp_path / "c").server.models["mlp"]
    assert all(torch.allclose(plain[k], zero[k], atol=1e-6) for k in plain)
    assert not all(torch.allclose(plain[k], some[k], atol=1e-6) for k in plain)


def test_fedprox_with_mu_zero_is_fedavg_and_a_large_mu_holds_clients_back(tiny, tmp_path):
    def moved(name, **options):
        task = Task(tiny(rounds=1, algorithm={"name": name, **options}, local={"optimizer": {"lr": 0.05}}))
        start = task.networks.initial("mlp")
        end = run(task.config, tmp_path / f"{name}{options}").server.models["mlp"]
        return sum(float((end[k] - start[k]).square().sum()) for k in start)

    free = moved("fedavg")
    assert moved("fedprox", mu=0.0) == pytest.approx(free, rel=1e-4)
    assert moved("fedprox", mu=10.0) < 0.5 * free


def test_moon_contrasts_from_a_client_s_second_round_on(tiny, tmp_path):
    first = run(tiny(rounds=1, algorithm={"name": "moon", "mu": 5.0}), tmp_path / "a").server.models["mlp"]
    plain = run(tiny(rounds=1), tmp_path / "b").server.models["mlp"]
    assert all(torch.equal(first[k], plain[k]) for k in plain)  # nothing to contrast with yet
    second = run(tiny(rounds=2, algorithm={"name": "moon", "mu": 5.0}), tmp_path / "c").server.models["mlp"]
    other = run(tiny(rounds=2), tmp_path / "d").server.models["mlp"]
    assert not all(torch.equal(second[k], other[k]) for k in other)


def test_prototypes_are_averaged_apart_and_one_without_clients_carries_on(tiny):
    config = tiny(model={"clients": ["mlp", "lenet"]}, data={"image_size": 16})
    config = config.model_copy(update={"model": config.model.model_copy(update={"options": {}})})
    algorithm = create(Task(config))
    server = algorithm.start()
    moved = {k: t + 1 for k, t in server.models["mlp"].items()}
    told = Reply("optdigits-0", "optdigits", "mlp", 5, lambda: Message.of(model=moved, samples=5))
    after = algorithm.fuse(server, [told], Round(1, 1, 0))
    assert all(torch.allclose(after.models["mlp"][k], moved[k]) for k in moved)
    assert after.models["lenet"] is server.models["lenet"]


def test_state_survives_its_own_message():
    server = Server({"a/b": {"w|x": torch.ones(2)}}, {"m": {"v": torch.zeros(1, dtype=torch.int32)}}, {"list": [1, None, "x"]})
    again = Server.from_message(Message.from_bytes(server.to_message().to_bytes()))
    assert again.models["a/b"]["w|x"].tolist() == [1, 1]
    assert again.parts["m"]["v"].dtype == torch.int32
    assert again.values == server.values


def test_sampling_is_a_pure_function_of_seed_and_round():
    ids = [str(i) for i in range(50)]
    draws = [tuple(sample_clients(ids, 8, 0, r)) for r in range(1, 30)]
    assert draws == [tuple(sample_clients(ids, 8, 0, r)) for r in range(1, 30)]
    assert len(set(draws)) > 25
    assert set().union(*draws) == set(ids)


@pytest.mark.parametrize("policy", ["average", "recalibrate", "local"])
def test_batchnorm_policies(tiny, tmp_path, policy):
    changes = {"data": {"holdout": 0.3}, "clients": {"per_domain": 1}}
    config = tiny(rounds=2, model={"buffers": policy}, **changes)
    config = config.model_copy(update={"model": config.model.model_copy(update={"name": "cnn-small", "options": {}})})
    result = run(config, tmp_path / policy)
    state = result.server.models["cnn-small"]
    counters = [t for k, t in state.items() if k.endswith("num_batches_tracked")]
    assert counters
    assert all(t.dtype == torch.int64 for t in counters)
    sent = result.history[0]["bytes_up"]
    full = sum(t.numel() * t.element_size() for t in state.values())
    assert (sent < 2 * full) == (policy == "local")  # statistics stay at home
    assert all(torch.isfinite(t).all() for t in state.values() if t.is_floating_point())


def test_every_system_says_what_it_is():
    for name, kind in algorithms().items():
        assert kind.title
        assert kind.paper
        assert kind.__doc__, name


def test_recalibrated_statistics_are_those_of_the_weights_after_the_momentum_step(tiny, tmp_path):
    changes = {"data": {"holdout": 0.3}, "model": {"name": "cnn-small", "buffers": "recalibrate", "options": {}}}
    done = run(tiny(algorithm={"name": "fedavgm", "beta": 0.9}, rounds=3, **changes), tmp_path)
    state = done.server.models["cnn-small"]
    again = recalibrate(done.task.networks.load("cnn-small", state), done.task.statistics_data).state_dict()
    torch.testing.assert_close(again["body.2.running_var"], state["body.2.running_var"])


def perturbed(state, seed):
    rng = torch.Generator().manual_seed(seed)
    return {name: tensor + 0.3 * torch.randn(tensor.shape, generator=rng) for name, tensor in state.items()}


def test_moons_term_draws_to_the_global_model_and_away_from_the_previous_one(tiny):
    algorithm = create(Task(tiny(algorithm={"name": "moon", "mu": 3.0, "temperature": 0.25})))
    task, initial = algorithm.task, algorithm.task.networks.initial("mlp")
    received, previous, own = (perturbed(initial, seed) for seed in (1, 2, 3))
    client = Client.of(task, "mnist-0", 2, Message.of(previous=previous))
    [term] = algorithm.terms(Message.of(model=received), client)
    network = task.networks.load("mlp", own)
    x = network.normalise(client.data.x[:8])
    features = network.features(x)
    got = term(Batch(network, x, client.data.y[:8], features, network.head(features), 0, torch.Generator()))
    there, before = (
        task.networks.load("mlp", state, role=role).features(x) for state, role in ((received, "here"), (previous, "there"))
    )
    near, far = (torch.cosine_similarity(features, z).div(0.25).exp() for z in (there, before))
    assert float(got.detach()) == pytest.approx(3.0 * float(-(near / (near + far)).log().mean().detach()), rel=1e-4)


def test_clients_follow_the_schedule(tiny):
    schedule = {"kind": "cosine", "final": 0.01}
    config = tiny(rounds=4, local={"steps": 1, "batch_size": 500, "optimizer": {"lr": 0.1}, "schedule": schedule})
    task = Task(config)
    start = task.networks.initial("mlp")

    def moved(round):
        reply = local_update(Message.of(model=start), Client.of(task, "mnist-0", round, None))
        return float((reply.group("model")["head.weight"] - start["head.weight"]).norm())

    rates = [learning_rate(0.1, config.local.schedule, round, 4) for round in (1, 3)]
    assert rates[1] < 0.8 * rates[0]
    assert moved(3) / moved(1) == pytest.approx(rates[1] / rates[0], rel=1e-4)  # one step over all data


def test_a_prototype_whose_clients_were_all_dropped_takes_no_momentum_step(tiny):
    config = tiny(
        model={"clients": ["mlp", "lenet"]},
        data={"image_size": 16, "validation": 0.2},
        algorithm={"name": "fedavgm", "beta": 0.5, "drop_worst": {"factor": 3, "deviations": 0}},
        local={"epochs": 10},
    )
    algorithm = create(Task(config))
    server = algorithm.start()
    velocity = {name: torch.ones_like(tensor) for name, tensor in server.models["lenet"].items()}
    server = Server(server.models, {"velocity-lenet": velocity}, {})
    trained = local_update(Message.of(model=server.models["mlp"]), Client.of(algorithm.task, "optdigits-0", 1, None))
    silent = {name: torch.zeros_like(tensor) for name, tensor in server.models["lenet"].items()}
    said = [("optdigits-0", "optdigits", "mlp", trained), ("mnist-0", "mnist", "lenet", Message.of(model=silent, samples=9))]
    replies = [Reply(name, domain, kind, 9, lambda message=message: message) for name, domain, kind, message in said]
    round = Round(1, 1, 0)
    after = algorithm.fuse(server, replies, round)
    assert set(round.notes["worst"]) == {"mnist-0"}
    assert all(torch.equal(after.models["lenet"][k], server.models["lenet"][k]) for k in velocity)


def test_no_public_structure_where_the_server_has_none_of_its_own(tiny):
    with pytest.raises(FedstillError, match=r"remove model\.student"):
        create(Task(tiny(model={"clients": ["mlp", "lenet"], "student": "mlp"}, data={"image_size": 16})))


def test_a_rule_for_the_worst_is_refused_before_anybody_trains(tiny):
    with pytest.raises(FedstillError, match=r"set data\.validation"):
        create(Task(tiny(algorithm={"name": "fedavg", "drop_worst": {}})))
