"""Whose BatchNorm statistics speak in a vote."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from fedstill.algorithm import Round
from fedstill.algorithms.kd3a import KD3AOptions
from fedstill.algorithms.kdcl import KDCLOptions
from fedstill.data.samples import Samples
from fedstill.fusion.ensemble import ensemble_table
from fedstill.fusion.vote_norm import voters
from fedstill.fusion.weightings import WeightingContext, make_weighting
from fedstill.models.predict import predict_logits
from tests.algorithms.adaptation import algorithm_of, exchange, tiny
from tests.fusion.speakers import Linear, pool, teach

SHIFTED = Samples(pool().x * 3 + 5)  # another domain than that of the running statistics, which are 0 and 1


def rng() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def by_hand(network: Linear, x: Tensor) -> Tensor:
    """``head((x - mean) / sqrt(var + eps))`` with the statistics of ``x`` itself."""
    return network.head((x - x.mean(0)) / (x.var(0, unbiased=False) + network.norm.eps).sqrt())


def test_a_voter_is_normalised_by_the_pool_and_left_as_it_was():
    network = Linear(4, 3, batch_norm=True)
    before = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    predict = voters("pool", rng(), batch_size=64)
    assert predict is not None
    torch.testing.assert_close(predict(0, network, SHIFTED), by_hand(network, SHIFTED.x), atol=1e-5, rtol=1e-4)
    assert all(torch.equal(tensor, before[name]) for name, tensor in network.state_dict().items())
    assert voters("own", rng()) is None


def test_batches_are_even_so_that_no_small_rest_speaks_for_itself():
    network = Linear(4, 3, batch_norm=True)
    seen: list[int] = []
    network.norm.register_forward_hook(lambda module, x, y: seen.append(len(x[0])))
    predict = voters("pool", rng(), batch_size=39)
    assert predict is not None
    predict(0, network, SHIFTED)
    assert seen == [20, 20]  # not 39 and 1


def test_without_batchnorm_there_is_nothing_to_choose():
    network = Linear(4, 3)
    predict = voters("pool", rng())
    assert predict is not None
    assert torch.equal(predict(0, network, SHIFTED), predict_logits(network, SHIFTED))


@pytest.mark.parametrize("name", ["vote", "median", "trimmed-mean", "spectral"])
@pytest.mark.parametrize("norm", [None, "pool", "own"])
def test_every_vote_takes_it_and_the_pool_speaks_by_default(name: str, norm: str | None):
    networks = [Linear(4, 3, seed, batch_norm=True).eval() for seed in range(3)]
    options = {} if norm is None else {"vote_norm": norm}
    weighting = make_weighting(name, WeightingContext(teach(networks), rng(), options=options))
    found = ensemble_table(teach(networks), SHIFTED, weighting, batch_size=64)
    logits = [n(SHIFTED.x) if norm == "own" else by_hand(n, SHIFTED.x) for n in networks]
    expected = weighting.vote(torch.stack(logits))
    torch.testing.assert_close(found.targets, expected.targets, atol=1e-4, rtol=1e-3)
    torch.testing.assert_close(found.weights, expected.weights, atol=1e-4, rtol=1e-3)


def test_kdcl_measures_contributions_by_the_statistics_that_it_names():
    server = None
    found = {}
    for norm in ("pool", "own"):
        algorithm = algorithm_of(tiny("kdcl", epochs=3, contributions={"gate": {"start": 0.0, "end": 0.0}}, vote_norm=norm))
        server = server or algorithm.start()
        round = Round(1, 2, 0)
        algorithm.merge(server, exchange(algorithm, server, round, {}), round)
        found[norm] = round.notes["merge_weights"]
        assert algorithm.settings["vote_norm"] == norm  # what is taught is what is measured
    assert found["pool"] != found["own"]


def test_kd3a_and_kdcl_use_the_same_words():
    assert KDCLOptions().vote_norm == KD3AOptions().vote_norm == "pool"
    assert KD3AOptions(preset="paper").vote_norm == "own"
    assert [KD3AOptions(vote_norm=word).vote_norm for word in ("batch", "running")] == ["pool", "own"]  # the words it had
