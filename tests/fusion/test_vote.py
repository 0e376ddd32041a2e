"""The knowledge vote, on cases worked by hand."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedstill.fusion.vote import Gate, knowledge_vote
from fedstill.fusion.weightings import WeightingContext, make_weighting

DRAGON, FROG, CAT = 0, 1, 2
# KDCL, Figure 2: four sources, gate 0.9. The fourth is not confident; the third is, but of another class than the consensus.
FIGURE_2 = torch.tensor([[[0.95, 0.03, 0.02]], [[0.91, 0.04, 0.05]], [[0.05, 0.92, 0.03]], [[0.40, 0.35, 0.25]]])


def test_figure_2():
    vote = knowledge_vote(FIGURE_2, 0.9)
    assert vote.consensus.tolist() == [DRAGON]
    assert vote.supporters.tolist() == [[True, True, False, False]]
    assert vote.support.tolist() == [2.0]
    torch.testing.assert_close(vote.knowledge, torch.tensor([[0.93, 0.035, 0.035]]))
    torch.testing.assert_close(vote.quality, torch.tensor([2 * 0.93]))


def test_filtered_sources_have_no_voice():
    # with the fourth source's 0.99 of the frog below a gate of 0.995 it must not tip the sums
    q = torch.tensor([[[0.996, 0.004]], [[0.01, 0.99]], [[0.01, 0.99]]])
    vote = knowledge_vote(q, 0.995)
    assert vote.consensus.tolist() == [0]
    assert vote.support.tolist() == [1.0]


def test_the_gate_itself_is_high_enough_in_kdcl_but_not_in_kd3a():
    q = torch.tensor([[[0.75, 0.25]]])
    assert knowledge_vote(q, 0.75).support.tolist() == [1.0]  # only those below the gate are filtered out
    assert knowledge_vote(q, 0.75, variant="kd3a").support.tolist() == [0.0]  # conf > gate in the code


def test_nobody_confident_counts_nothing():
    q = torch.tensor([[[0.6, 0.4]], [[0.5, 0.5]]])
    for variant in ("kdcl", "kd3a"):
        vote = knowledge_vote(q, 0.9, variant=variant)
        assert vote.support.tolist() == [0.0]
        assert vote.quality.tolist() == [0.0]
    torch.testing.assert_close(knowledge_vote(q, 0.9).knowledge, torch.tensor([[0.55, 0.45]]))


def test_a_consensus_that_is_everybodys_second_choice_has_no_supporters():
    # six sources, each sure (0.8) of a class of its own, all giving 0.2 to class 0: its sum 1.2 beats every 0.8
    q = torch.zeros(6, 1, 7)
    q[:, 0, 0] = 0.2
    q[torch.arange(6), 0, torch.arange(1, 7)] = 0.8
    vote = knowledge_vote(q, 0.8)
    assert vote.consensus.tolist() == [0]
    assert vote.support.tolist() == [0.0]
    assert vote.quality.tolist() == [0.0]


def test_kd3a_sums_the_confidence_of_those_who_chose_a_class():
    # 0.9 for class 0 against 0.85 + 0.8 for class 1; the silent fourth source is below the gate
    q = torch.tensor([[[0.9, 0.1]], [[0.15, 0.85]], [[0.2, 0.8]], [[0.7, 0.3]]])
    vote = knowledge_vote(q, 0.75, variant="kd3a")
    assert vote.consensus.tolist() == [1]
    assert vote.supporters.tolist() == [[False, True, True, False]]
    torch.testing.assert_close(vote.quality, torch.tensor([0.85 + 0.8]))  # m * score of the consensus class
    assert vote.hard().tolist() == [[0.0, 1.0]]


def test_kd3a_without_a_confident_source_asks_all_but_does_not_count():
    q = torch.tensor([[[0.6, 0.4]], [[0.3, 0.7]], [[0.45, 0.55]]])
    vote = knowledge_vote(q, 0.9, variant="kd3a")
    assert vote.consensus.tolist() == [1]  # 0.7 + 0.55 against 0.6
    assert vote.support.tolist() == [0.0]


def by_hand(q: torch.Tensor, gate: float, members: list[int]) -> float:
    """Eq. 2's summand for one sample, by loops."""
    heard = [q[k] for k in members if float(q[k].max()) >= gate]
    if not heard:
        return 0.0
    consensus = int(torch.stack(heard).sum(0).argmax())
    supporters = [p for p in heard if float(p[consensus]) >= gate]
    return float(torch.stack(supporters).mean(0).max()) * len(supporters) if supporters else 0.0


def by_hand_kd3a(q: torch.Tensor, gate: float, members: list[int]) -> float:
    """KD3A's ``m * score`` of the winning class for one sample, by loops."""
    heard = [q[k] for k in members if float(q[k].max()) > gate]
    scores = torch.zeros(q.shape[1])
    for p in heard:
        scores[int(p.argmax())] += p.max()
    return float(scores.max()) if heard else 0.0


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 5), st.integers(2, 4), st.floats(0.3, 0.95), st.integers(0, 10_000))
def test_subsets_vote_as_if_alone(sources: int, classes: int, gate: float, seed: int):
    rng = torch.Generator().manual_seed(seed)
    q = (3 * torch.randn(sources, 6, classes, generator=rng)).softmax(2)
    members = torch.rand(4, sources, generator=rng) < 0.6
    found = knowledge_vote(q, gate, members=members).quality
    for subset, row in zip(members, found, strict=True):
        inside = [k for k in range(sources) if subset[k]]
        expected = [by_hand(q[:, i], gate, inside) for i in range(6)]
        torch.testing.assert_close(row, torch.tensor(expected), atol=1e-5, rtol=1e-5)
    code = knowledge_vote(q, gate, variant="kd3a", members=members).quality
    for subset, row in zip(members, code, strict=True):
        inside = [k for k in range(sources) if subset[k]]
        expected = [by_hand_kd3a(q[:, i], gate, inside) for i in range(6)]
        torch.testing.assert_close(row, torch.tensor(expected), atol=1e-5, rtol=1e-5)
    alone = knowledge_vote(q, gate)
    together = knowledge_vote(q, gate, members=torch.ones(1, sources, dtype=torch.bool))
    assert torch.equal(alone.knowledge, together.knowledge[0])
    torch.testing.assert_close(alone.knowledge.sum(1), torch.ones(6))


def test_gate_schedules():
    paper = Gate(start=0.8, end=0.95)
    assert [round(paper.at(r, 80), 4) for r in (1, 80)] == [0.8, 0.95]
    assert paper.at(1, 1) == 0.8
    code = Gate(start=0.9, end=0.95, reach=False)
    assert code.at(100, 100) == pytest.approx(0.9 + 0.05 * 99 / 100)


def test_weighting_vote_shows_supporters_and_skips_the_unsure():
    q = torch.cat([FIGURE_2, torch.tensor([0.4, 0.3, 0.3]).expand(4, 1, 3)], 1)
    scene = WeightingContext([None] * 4, torch.Generator(), options={"gate": {"start": 0.9, "end": 0.9}})  # type: ignore[list-item]
    ballot = make_weighting("vote", scene).vote(q.log())  # type: ignore[union-attr]
    torch.testing.assert_close(ballot.weights, torch.tensor([[0.5, 0.5, 0, 0], [0.25] * 4]))
    torch.testing.assert_close(ballot.targets[0], torch.tensor([0.93, 0.035, 0.035]))
    assert ballot.sample_weight.tolist() == [1.0, 0.0]
    counted = WeightingContext([None] * 4, torch.Generator(), options={"gate": {"start": 0.9, "end": 0.9}, "count": "support"})  # type: ignore[list-item]
    assert make_weighting("vote", counted).vote(q.log()).sample_weight.tolist() == [2.0, 0.0]  # type: ignore[union-attr]
