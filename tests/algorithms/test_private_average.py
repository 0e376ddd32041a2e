"""Client-level differential privacy: clipping and noise by construction, epsilon by other accountants, what is refused."""

from __future__ import annotations

import contextlib
import math
from dataclasses import replace

import pytest
import torch
from dp_accounting import ComposedDpEvent, GaussianDpEvent, PoissonSampledDpEvent, SelfComposedDpEvent
from dp_accounting.rdp import RdpAccountant
from opacus.accountants import RDPAccountant
from scipy import stats

from fedstill.algorithm import Reply, Round, Server
from fedstill.algorithms import algorithms, create, private_average
from fedstill.core.accounting import ORDERS, SPENT
from fedstill.core.errors import FedstillError
from fedstill.core.message import Message
from fedstill.fusion.clipping import clipped_to, next_clip, norm_of, sum_noise
from fedstill.run.budgets import budget_words
from fedstill.run.loop import drive, run, sample_independently
from fedstill.task import Task
from tests.algorithms.test_secure_average import Losing
from tests.conftest import tiny_config

TINY = {"clip": 1.0, "noise": 1e-9}  # next to no noise: sums can be checked


def private(options=TINY, **changes):
    given = changes.pop("privacy", {})
    return tiny_config(privacy={"client": options, **given}, **changes)


def pieces(**changes):
    """A system, its first state, and a function that makes the reply of a client whose update has this norm."""
    algorithm = create(Task(private(**changes)))
    server = algorithm.start()

    def reply(client, norm, seed=0):
        name = algorithm.task.clients[client].prototype
        rng = torch.Generator().manual_seed(seed)
        update = {key: torch.randn(t.shape, generator=rng, dtype=torch.float64) for key, t in server.models[name].items()}
        scale = norm / norm_of(update)
        model = {key: t.double() + scale * update[key] for key, t in server.models[name].items()}
        return Reply(client, "", name, 7, lambda: Message.of(model=model, samples=7))

    return algorithm, server, reply


def flat(state):
    return torch.cat([state[name].double().flatten() for name in sorted(state)])


# -- clipping and sums -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("norm", [0.2, 1.0, 30.0])
def test_adding_a_client_changes_the_sum_by_its_norm_and_at_most_by_clip(norm):
    _, server, reply = pieces(clients={"per_domain": 2})
    others = [reply("optdigits-0", 5.0, 1), reply("mnist-0", 0.4, 2)]
    without = private_average.clipped_sums(server, others).updates["mlp"]
    with_one = private_average.clipped_sums(server, [*others, reply("mnist-1", norm, 3)]).updates["mlp"]
    distance = float((flat(with_one) - flat(without)).norm())
    assert distance == pytest.approx(min(norm, 1.0), rel=1e-9)  # the bound is attained, whoever the others are
    assert distance <= 1.0 + 1e-9


def test_the_update_is_the_sum_of_clipped_ones_over_the_expected_number(tmp_path):
    """McMahan et al., Algorithm 1, by hand: weights are equal whatever the numbers of samples, and q N = 0.5 * 4."""
    algorithm, server, reply = pieces(clients={"per_domain": 2, "fraction": 0.5})
    long, short = reply("optdigits-0", 8.0, 1), reply("mnist-0", 0.5, 2)
    after = algorithm.fuse(server, [long, short], Round(1, 2, 0))
    before = flat(server.models["mlp"])
    expected = before + ((flat(long.model) - before) / 8 + (flat(short.model) - before)) / 2
    torch.testing.assert_close(flat(after.models["mlp"]), expected, rtol=0, atol=1e-7)


def test_noise_has_the_stated_deviation():
    """z C / (q N) = 2 * 3 / (0.5 * 4) = 3, normal, and independent from round to round."""
    algorithm, server, _ = pieces(
        options={"clip": 3.0, "noise": 2.0}, clients={"per_domain": 2, "fraction": 0.5}, model={"options": {"hidden": [256]}}
    )
    draws = []
    for number in (1, 2):
        after = algorithm.fuse(server, [], Round(number, 2, 0))  # a round with nobody is noise
        draws.append(flat(after.models["mlp"]) - flat(server.models["mlp"]))
    for draw in draws:
        assert len(draw) > 10_000
        assert float(draw.std()) == pytest.approx(3.0, rel=4 / math.sqrt(2 * len(draw)))
        assert stats.kstest(draw.numpy() / 3.0, "norm").pvalue > 0.01
    assert abs(float(torch.corrcoef(torch.stack(draws))[0, 1])) < 4 / math.sqrt(len(draws[0]))


def test_every_architecture_is_noised_and_has_its_own_divisor():
    changes = {"clients": {"per_domain": 2, "fraction": 0.5}, "model": {"clients": ["mlp", "lenet"]}, "data": {"image_size": 16}}
    algorithm, server, reply = pieces(options={"clip": 1.0, "noise": 0.5}, **changes)
    names = {client: about.prototype for client, about in algorithm.task.clients.items()}
    mine = next(client for client, name in names.items() if name == "lenet")
    after = algorithm.fuse(server, [reply(mine, 9.0)], Round(1, 1, 0))
    assert private_average.expected(algorithm.task, "lenet") == 1.0
    for name in ("mlp", "lenet"):  # also the one without a client in this round
        change = flat(after.models[name]) - flat(server.models[name])
        assert float(change.std()) == pytest.approx(0.5, rel=0.15)


# -- adaptive clipping ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("z", "sigma"), [(1.0, 0.6), (0.5, 5.0), (3.0, 4.0)])
def test_theorem_1_sums_and_counts_together_cost_what_the_noise_says(z, sigma):
    """Andrew et al., Theorem 1: an update of norm C over z_Delta C, and a count of +-1/2 over sigma_b, are 1/z together."""
    assert math.hypot(1 / sum_noise(z, sigma), 0.5 / sigma) == pytest.approx(1 / z)
    theirs = ComposedDpEvent([GaussianDpEvent(sum_noise(z, sigma)), GaussianDpEvent(2 * sigma)])
    both = [RdpAccountant(ORDERS).compose(event).get_epsilon(1e-5) for event in (theirs, GaussianDpEvent(z))]
    assert both[0] == pytest.approx(both[1])


def test_the_norm_follows_the_quantile():
    """Andrew et al., Algorithm 1, without noise: C settles where a part gamma of the norms is below it."""
    norms = torch.linspace(0.1, 10, 100)
    for quantile in (0.3, 0.5, 0.9):
        clip = 0.1
        for _ in range(300):
            clip = next_clip(clip, float((norms <= clip).float().mean()), quantile, 0.2)
        assert float((norms <= clip).float().mean()) == pytest.approx(quantile, abs=0.03)


def test_a_round_of_adaptive_clipping_by_hand():
    """Two of three updates are below C = 1, q N = 4: b = 1/2 + (1/2 + 1/2 - 1/2) / 4 = 0.625, C <- exp(-0.2 (0.625 - 0.5))."""
    options = {"clip": 1.0, "noise": 1e-9, "adaptive": {"count_noise": 1e-9}}
    algorithm, server, reply = pieces(options=options, clients={"per_domain": 2})
    round = Round(1, 2, 0)
    after = algorithm.fuse(server, [reply("optdigits-0", 5.0), reply("mnist-0", 0.5), reply("mnist-1", 0.9)], round)
    assert after.values["client_level"]["clip"] == pytest.approx(math.exp(-0.2 * 0.125))
    assert round.notes["privacy"]["client"]["clipped"] == 1
    options = {"clip": 1.0, "noise": 3.0, "adaptive": {}}
    algorithm, server, _ = pieces(options=options, clients={"per_domain": 2}, model={"options": {"hidden": [256]}})
    change = flat(algorithm.fuse(server, [], round).models["mlp"]) - flat(server.models["mlp"])
    assert float(change.std()) == pytest.approx(sum_noise(3.0, 3.0) / 4, rel=0.03)  # z_Delta C / (q N)


# -- epsilon -------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("noise", "fraction"), [(0.6, 0.2), (1.3, 0.5), (1.0, 1.0), (4.0, 0.05)])
@pytest.mark.parametrize("adaptive", [None, {"count_noise": 2.5}])
def test_the_spent_epsilon_is_that_of_other_accountants(noise, fraction, adaptive):
    """The larger of Opacus' for the whole noise and dp-accounting's for its two parts on the same sampled clients."""
    options = {"clip": 1.0, "noise": noise, "delta": 1e-4, **({"adaptive": adaptive} if adaptive else {})}
    algorithm, server, _ = pieces(options=options, clients={"per_domain": 2, "fraction": fraction}, rounds=3)
    for number in range(1, 4):
        round = Round(number, 3, 0)
        server = algorithm.fuse(server, [], round)
        opacus = RDPAccountant()
        opacus.history = [(noise, fraction, number)]
        mine = round.notes["privacy"]["client"]["epsilon"]
        parts = [GaussianDpEvent(sum_noise(noise, 2.5)), GaussianDpEvent(5.0)] if adaptive else [GaussianDpEvent(noise)]
        event = PoissonSampledDpEvent(fraction, ComposedDpEvent(parts)) if fraction < 1 else ComposedDpEvent(parts)
        theirs = RdpAccountant().compose(SelfComposedDpEvent(event, number)).get_epsilon(1e-4)
        larger = max(theirs, opacus.get_epsilon(1e-4))
        assert mine == pytest.approx(larger, rel=1e-3)
        assert mine >= larger * (1 - 1e-9)  # the two parts are one noise except for rounding


def test_a_budget_lasts_for_the_planned_rounds_and_no_longer(tmp_path):
    config = private({"clip": 1.0, "epsilon": 4.0}, clients={"per_domain": 2}, rounds=3)
    done = run(config, tmp_path / "run")
    spent = [line["privacy"]["client"]["epsilon"] for line in done.history]
    assert spent == sorted(spent)
    assert 0.99 * 4.0 < spent[-1] <= 4.0
    assert done.summary["privacy"] == done.history[-1]["privacy"]
    assert "client-level differential privacy: epsilon 4 at delta 1e-05" in budget_words(done.summary["privacy"])[0]
    with pytest.raises(FedstillError, match=r"round 4 would spend more than privacy.client.epsilon = 4"):
        run(config.model_copy(update={"rounds": 4}), tmp_path / "run", resume=True)


def test_clients_are_drawn_one_by_one():
    ids = [str(number) for number in range(200)]
    draws = [sample_independently(ids, 0.1, 0, number) for number in range(1, 201)]
    sizes = torch.tensor([float(len(draw)) for draw in draws])
    assert float(sizes.mean()) == pytest.approx(20, abs=4 * math.sqrt(18 / 200))  # binomial: 200 of 0.1
    assert float(sizes.var()) == pytest.approx(18, rel=4 * math.sqrt(2 / 200))
    assert draws[0] == sample_independently(ids, 0.1, 0, 1)
    assert sample_independently(ids, 1.0, 0, 1) == ids
    assert sample_independently(ids, 0.5, None, 1) != sample_independently(ids, 0.5, None, 1)


# -- whole runs ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["fedavg", "fedprox", "fedavgm", "moon"])
def test_a_resumed_run_is_the_same(name, tmp_path):
    options = {"clip": 0.5, "noise": 0.1, "adaptive": {}}
    config = private(options, algorithm={"name": name}, clients={"per_domain": 2, "fraction": 0.6}, rounds=3)
    once = run(config, tmp_path / "once")
    run(config.model_copy(update={"rounds": 1}), tmp_path / "parts")
    parts = run(config, tmp_path / "parts", resume=True)
    assert all(torch.equal(t, parts.server.models["mlp"][k]) for k, t in once.server.models["mlp"].items())
    assert [line["privacy"] for line in once.history] == [line["privacy"] for line in parts.history]
    assert once.server.values == parts.server.values


def test_noise_from_the_operating_system_is_another_every_time(tmp_path):
    one, other = (run(private({"clip": 1.0, "noise": 1.0, "secret": True}, rounds=1), tmp_path / n) for n in "ab")
    assert not torch.equal(flat(one.server.models["mlp"]), flat(other.server.models["mlp"]))
    assert "seed" not in one.history[0]["privacy"]["client"]["covers"]


def test_a_lost_client_adds_nothing_and_the_divisor_stays(tmp_path):
    algorithm = create(Task(private(rounds=1, clients={"per_domain": 2})))
    with contextlib.closing(Losing(algorithm, tmp_path).lose("train", ["mnist-1"])) as engine:
        done = drive(algorithm, engine, tmp_path)
    assert done.history[0]["dropped"] == [{"client": "mnist-1", "reason": "lost"}]
    assert set(done.history[0]["weights"].values()) == {0.25}


def test_nobody_in_a_round_and_everybody_lost(tmp_path):
    done = run(private({"clip": 1.0, "noise": 0.5}, clients={"fraction": 0.001}), tmp_path / "nobody")
    assert [line["clients"] for line in done.history] == [[], []]
    algorithm = create(Task(private(rounds=1)))
    with contextlib.closing(Losing(algorithm, tmp_path).lose("train", list(algorithm.task.clients))) as engine:
        with pytest.raises(FedstillError, match="0 usable replies"):
            drive(algorithm, engine, tmp_path / "lost")


class Stopping(Losing):
    """An engine whose lost clients have spent a budget of their own."""

    def exchange(self, round, phase, messages):
        for outcome in super().exchange(round, phase, messages):
            yield replace(outcome, reason=SPENT) if outcome.reason == "lost" else outcome


def test_a_round_of_clients_that_have_stopped_is_one_of_noise_too(tmp_path):
    """Otherwise a round without noise would tell that nobody else took part."""
    algorithm = create(Task(private({"clip": 1.0, "noise": 0.5}, rounds=1)))
    before = algorithm.start().models["mlp"]
    with contextlib.closing(Stopping(algorithm, tmp_path).lose("train", list(algorithm.task.clients))) as engine:
        done = drive(algorithm, engine, tmp_path / "run")
    assert float((flat(done.server.models["mlp"]) - flat(before)).std()) == pytest.approx(0.25, rel=0.1)
    assert done.history[0]["privacy"]["client"]["epsilon"] > 0


def test_with_secure_sums_the_clients_clip(tmp_path):
    changes = {"clients": {"per_domain": 2}, "rounds": 1}
    for options in ({"clip": 0.05, "noise": 1e-9}, {"clip": 100.0, "noise": 1e-9}):
        plain = run(private(options, **changes), tmp_path / f"plain{options['clip']}")
        safe = run(private(options, privacy={"secure": {}}, **changes), tmp_path / f"safe{options['clip']}")
        torch.testing.assert_close(flat(safe.server.models["mlp"]), flat(plain.server.models["mlp"]), rtol=0, atol=1e-6)
        assert "sees the sum" in safe.history[0]["privacy"]["client"]["covers"]
    done = run(private(privacy={"secure": {}}, clients={"fraction": 0.001}, rounds=1), tmp_path / "nobody")
    assert done.history[0]["clients"] == []


# -- what is refused -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "changes", "words"),
    [
        ({"clip": 1.0}, {}, "set either noise or epsilon"),
        ({"clip": 1.0, "noise": 1.0, "epsilon": 1.0}, {}, "set either noise or epsilon"),
        ({"noise": 1.0}, {}, "missing key 'privacy.client.clip'"),
        ({"clip": 1.0, "noise": 0.0}, {}, "privacy.client.noise"),
        ({"clip": 1.0, "epsilon": 1.0, "delta": 1.0}, {}, "privacy.client.delta"),
        (TINY, {"clients": {"per_round": 1}}, "clients.fraction instead of clients.per_round"),
        (TINY, {"model": {"name": "cnn-small"}}, "BatchNorm statistics of 'cnn-small'.*model.norm = 'group'"),
        (TINY, {"algorithm": {"name": "fedavg", "calibrate": True}}, "calibrate"),
        (TINY, {"algorithm": {"name": "fedavg", "merge": "matched"}}, "merge = 'matched'"),
        (TINY, {"algorithm": {"name": "feddf"}, "data": {"holdout": 0.2}}, "use fedavg, fedavgm, fedprox, moon"),
        ({**TINY, "adaptive": {}}, {"privacy": {"secure": {}}}, "hides the norms"),
        ({"clip": 1.0, "noise": 2.0, "adaptive": {"count_noise": 1.0}}, {}, "must be above half of the noise, 1"),
        ({"clip": 1.0, "epsilon": 1e-9, "delta": 1e-300}, {}, "epsilon = 1e-09"),
    ],
)
def test_bad_input_is_one_line(options, changes, words):
    with pytest.raises(FedstillError, match=words) as found:
        create(Task(private(options, **changes))).start()
    assert "\n" not in str(found.value)


def test_a_group_normalised_network_is_taken():
    algorithm = create(Task(private(model={"name": "cnn-small", "norm": "group"})))
    assert isinstance(algorithm.start(), Server)
    assert [name for name, kind in algorithms().items() if kind.sums_models] == ["fedavg", "fedavgm", "fedprox", "moon"]


def test_clipping_keeps_what_is_short():
    update = {"a": torch.tensor([3.0, 0.0]), "b": torch.tensor([[4.0]])}
    assert all(torch.equal(t, update[k]) for k, t in clipped_to(update, 5.0).items())
    assert norm_of(clipped_to(update, 2.0)) == pytest.approx(2.0)
    assert norm_of(clipped_to({"a": torch.zeros(2)}, 1.0)) == 0
