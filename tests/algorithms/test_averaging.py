"""FedAvg, FedProx, FedAvgM and MOON against numbers that a reader can check by hand."""

from __future__ import annotations

import pytest
import torch

from fedstill.algorithm import Reply, Round, Server
from fedstill.algorithms import algorithms, create
from fedstill.algorithms.fedavgm import momentum_step
from fedstill.fusion.merge import average, by_examples, uniform, weighted_sum
from fedstill.fusion.norm import recalibrate
from fedstill.message import Message
from fedstill.run.loop import run, sample_clients
from fedstill.task import Task


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
        start = task.initial("mlp")
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
    again = recalibrate(done.task.load("cnn-small", state), done.task.statistics_data).state_dict()
    torch.testing.assert_close(again["body.2.running_var"], state["body.2.running_var"])
