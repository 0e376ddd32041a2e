"""A site's features in a few numbers: what is described can be drawn again, and what is broken is refused."""

from __future__ import annotations

import pytest
import torch

from fedstill.core.errors import FedstillError
from fedstill.data.samples import Samples
from fedstill.local.reports.coverage import coverage, covered
from fedstill.local.reports.moments import Moments, clipped, moments_of
from fedstill.local.reports.statistics import Gaussians, Statistics, described, site_statistics, statistics_fault
from fedstill.models import build


def features(n: int = 4000) -> torch.Tensor:
    """Correlated, in three dimensions: the second is twice the first, the third is its own."""
    rng = torch.Generator().manual_seed(0)
    first, third = torch.randn(n, generator=rng), torch.randn(n, generator=rng)
    return torch.stack([first + 5, 2 * first - 1, 0.5 * third], 1)


@pytest.mark.parametrize(("covariance", "rank"), [("full", 16), ("low-rank", 1), ("low-rank", 3), ("diagonal", 16)])
def test_what_is_drawn_has_the_described_moments(covariance: str, rank: int) -> None:
    z = features()
    found = described(z, None, Statistics(covariance=covariance, rank=rank, per_class=False))
    drawn, labels = found.draw(20_000, torch.Generator().manual_seed(1))
    assert labels.unique().tolist() == [-1]
    assert torch.allclose(drawn.mean(0), z.mean(0), atol=0.05)
    assert torch.allclose(drawn.var(0), z.var(0), rtol=0.06)  # variances are kept whole, however few directions are
    cross = torch.corrcoef(drawn.T)[0, 1].item()
    assert cross == pytest.approx(0.0 if covariance == "diagonal" else 1.0, abs=0.03)


def test_classes_are_described_apart_and_small_ones_not_at_all() -> None:
    z = torch.cat([torch.zeros(30, 2), torch.full((20, 2), 8.0), torch.full((9, 2), 99.0)])
    y = torch.cat([torch.zeros(30), torch.ones(20), torch.full((9,), 2)]).long()
    found = described(z, y, Statistics())
    assert found.labels.tolist() == [0, 1]
    assert found.counts.tolist() == [30, 20]
    drawn, labels = found.draw(5000, torch.Generator().manual_seed(0))
    assert torch.equal(drawn[:, 0], 8.0 * labels)
    assert labels.double().mean().item() == pytest.approx(0.4, abs=0.03)  # in proportion to the counts


def test_features_behind_a_relu_stay_above_zero() -> None:
    z = torch.rand(50, 3) * torch.tensor([1.0, 0.01, 5.0])
    for positive, sample in ((True, z), (False, z - 1)):
        found = described(sample, None, Statistics(per_class=False))
        assert found.floor is positive
        assert bool((found.draw(500, torch.Generator().manual_seed(0))[0] >= 0).all()) is positive


@pytest.mark.parametrize("width", [3, 40])
@pytest.mark.parametrize("covariance", ["low-rank", "diagonal"])
def test_features_drawn_in_pieces_are_those_of_one_draw(covariance: str, width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    z = torch.rand(60, width, generator=torch.Generator().manual_seed(0))
    found = described(z, torch.arange(60) % 2, Statistics(covariance=covariance))
    for size in (10_007, 12_345):
        drawn, labels = found.draw(size, torch.Generator().manual_seed(1))
        monkeypatch.setattr("fedstill.local.reports.statistics.PIECE", 2000)
        pieces, same = found.draw(size, torch.Generator().manual_seed(1))
        monkeypatch.undo()
        assert torch.equal(labels, same)
        assert torch.allclose(drawn, pieces, rtol=0, atol=1e-6)


def test_a_state_survives_the_wire() -> None:
    found = described(features(40), torch.arange(40) % 2, Statistics(rank=2))
    again = Gaussians.of(found.state())
    one, other = (each.draw(7, torch.Generator().manual_seed(3)) for each in (found, again))
    assert torch.equal(one[0], other[0])
    assert torch.equal(one[1], other[1])


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"means": torch.zeros(2, 4)}, "of width 4, expected 3"),
        ({"variances": torch.full((2, 3), -1.0)}, "negative variances"),
        ({"counts": torch.tensor([9000, 1])}, "count 9001 samples, and it has 40"),
        ({"counts": torch.tensor([0, 1])}, "count 1 samples"),
        ({"counts": torch.tensor([], dtype=torch.long)}, "describe nothing"),
        ({"labels": torch.tensor([0, 7])}, "classes that do not exist"),
        ({"factors": torch.zeros(2, 5, 4)}, "do not fit each other"),
        ({"clip": torch.tensor(0.0)}, "not a number above zero"),
        ({"coverage": torch.tensor(1.5)}, "a coverage outside of 0 to 1"),
        ({"coverage": torch.tensor([0.1, 0.1])}, "a coverage outside of 0 to 1"),
    ],
)
def test_broken_statistics_are_refused(change: dict[str, torch.Tensor], reason: str) -> None:
    good = described(features(40), torch.arange(40) % 2, Statistics()).state()
    assert statistics_fault(good, 3, 2, 40) is None
    assert reason in (statistics_fault({**good, **change}, 3, 2, 40) or "")
    assert statistics_fault({k: v for k, v in good.items() if k != "means"}, 3, 2, 40) == "its statistics have no means"


def test_how_much_of_a_site_is_covered_tells_good_descriptions_from_bad_ones() -> None:
    rng = torch.Generator().manual_seed(0)
    z = torch.randn(400, 2, generator=rng) @ torch.randn(2, 64, generator=rng)  # two directions of 64
    told = {}
    for covariance in ("diagonal", "low-rank", "full"):
        found = described(z, None, Statistics(covariance=covariance, per_class=False, rank=4))
        told[covariance] = covered(z, found.draw(400, torch.Generator().manual_seed(1))[0], torch.Generator().manual_seed(2))
    assert told["diagonal"] < 0.1
    assert told["low-rank"] == pytest.approx(1 - 2**-5, abs=0.03)  # what the same distribution covers (Naeem et al.)
    assert told["full"] == pytest.approx(1 - 2**-5, abs=0.03)
    assert coverage(z, z[:0]) == coverage(z[:1], z) == 0.0


def test_rare_classes_are_described_together_without_a_label() -> None:
    z, y = torch.arange(36.0).view(18, 2), torch.arange(18) % 3  # six samples of each class
    together = described(z, y, Statistics(min_samples=10))
    assert together.labels.tolist() == [-1]
    assert together.counts.tolist() == [18]
    assert torch.allclose(together.means[0], z.mean(0))
    assert len(described(z, y, Statistics(min_samples=10, rare="leave")).counts) == 0
    assert described(z, y, Statistics(min_samples=6)).labels.tolist() == [0, 1, 2]


def test_a_class_of_several_kinds_is_several_gaussians() -> None:
    rng = torch.Generator().manual_seed(0)
    z = torch.cat([centre + 0.1 * torch.randn(40, 2, generator=rng) for centre in (0.0, 5.0, 10.0)])
    one, three = (described(z, torch.zeros(120, dtype=torch.long), Statistics(components=k)) for k in (1, 3))
    assert three.labels.tolist() == [0, 0, 0]
    assert three.counts.tolist() == [40, 40, 40]
    assert sorted(three.means[:, 0].round().tolist()) == [0, 5, 10]
    drawn, _ = three.draw(3000, rng)
    nearest = (drawn[:, :1] - torch.tensor([0.0, 5.0, 10.0])).abs().amin(1)
    assert float(nearest.max()) < 1
    assert len(one.counts) == 1
    # no component of a handful of samples leaves the site
    few = described(z[:45], torch.zeros(45, dtype=torch.long), Statistics(components=3))
    assert few.counts.min() >= 10


@pytest.mark.parametrize("length", [0.1, 2.0, 1e6])
@pytest.mark.parametrize("diagonal", [False, True])
def test_one_sample_changes_the_clipped_sums_by_no_more_than_the_norm_allows(length: float, diagonal: bool) -> None:
    clip, z, y = 2.0, 5 * features(41).double(), torch.arange(41) % 3
    z[-1] *= length / z[-1].norm()
    fewer, more = (moments_of(clipped(z[:n], clip), y[:n], diagonal) for n in (40, 41))
    for name, bound in (("counts", 1.0), ("sums", clip), ("seconds", clip**2)):
        change = getattr(more, name) - getattr(fewer, name)
        assert float(change.norm()) <= bound * (1 + 1e-9), name
        assert not change[torch.arange(3) != y[-1]].any(), "other classes do not change"
        if length >= clip:
            assert float(change.norm()) >= bound * (0.5 if name == "seconds" and diagonal else 1 - 1e-9), "the bound is reached"


@pytest.mark.parametrize(("covariance", "rank"), [("full", 16), ("low-rank", 2), ("diagonal", 16)])
@pytest.mark.parametrize("per_class", [True, False])
def test_a_mechanism_that_does_nothing_changes_nothing(covariance: str, rank: int, per_class: bool) -> None:
    z, y = features(60), torch.tensor([0] * 30 + [1] * 20 + [2] * 5 + [3] * 5)
    options = Statistics(covariance=covariance, rank=rank, per_class=per_class, clip=4.0)
    plain, released = described(z, y, options), described(z, y, options, lambda moments, clip: moments)
    assert released.labels.tolist() == plain.labels.tolist() == ([0, 1, -1] if per_class else [-1])
    assert released.counts.tolist() == plain.counts.tolist()
    spread = lambda found: torch.diag_embed(found.variances) + found.factors.mT @ found.factors
    assert torch.allclose(released.means, plain.means, atol=1e-6)
    assert torch.allclose(spread(released), spread(plain), atol=1e-5)
    assert float(plain.means.norm(dim=1).max()) <= 4.0 < float(z.mean(0).norm())


def test_what_leaves_a_site_is_made_of_what_the_mechanism_returned() -> None:
    seen: list[float] = []

    def fewer(moments: Moments, clip: float) -> Moments:
        seen.append(clip)
        return Moments(moments.labels, moments.counts - 7, 0 * moments.sums, moments.seconds)

    network = build("mlp", classes=2, shape=(1, 1, 3), hidden=[4], seed=0)
    samples, options = Samples(torch.rand(30, 1, 1, 3), torch.arange(30) % 2), Statistics(clip=0.5, min_samples=8)
    found = site_statistics(network, samples, options, torch.Generator().manual_seed(0), fewer)
    assert seen == [0.5]
    assert found["counts"].tolist() == [8, 8]
    assert not found["means"].any()
    assert not bool(found["floor"])
    assert "coverage" not in found
    assert float(found["clip"]) == 0.5
    assert statistics_fault(found, 4, 2, 30) is None
    none = described(samples.x.flatten(1), samples.y, Statistics(clip=0.5, min_samples=16, rare="leave"), fewer)
    assert none.counts.shape == (0,)
    assert none.factors.shape == (0, 3, 3)
    with pytest.raises(FedstillError, match="bounded norm"):
        described(samples.x.flatten(1), samples.y, Statistics(), fewer)
