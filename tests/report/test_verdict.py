"""The verdict on made-up systems: a clear winner, a tie, one seed, missing seeds; and the sentence that says why."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from scipy import stats

from fedstill.report.distilled import distilled
from fedstill.report.numbers import points
from fedstill.report.runs import Run
from fedstill.report.tables import summarise
from fedstill.report.verdict import paired, verdict


def system(name, accuracies, *, sent=1_000_000, seconds=10.0, rounds=None, seeds=None):
    """Runs of one system, a final accuracy a seed; ``rounds`` are fields of its rounds."""
    return [
        Run(
            Path(name) / f"seed{seed}",
            config={"seed": seed, "algorithm": {"name": name}},
            history=[
                {"round": r, "accuracy": accuracy, "seconds": {"train": seconds / len(lines)}, **line}
                for lines in [rounds or [{}]]
                for r, line in enumerate(lines, start=1)
            ],
            summary={"algorithm": name, "seed": seed, "final_accuracy": accuracy, "bytes_total": sent},
        )
        for seed, accuracy in zip(seeds or range(len(accuracies)), accuracies, strict=True)
    ]


def judged(*systems):
    return verdict(summarise([run for runs in systems for run in runs]))


BEST, GOOD, POOR = [0.85, 0.86, 0.84], [0.82, 0.83, 0.812], [0.70, 0.71, 0.70]


def test_the_interval_is_that_of_a_paired_t_test():
    rows = summarise([*system("a", BEST), *system("b", GOOD)])
    found = paired(rows[0], rows[1])
    expected = stats.ttest_rel(BEST, GOOD).confidence_interval(0.95)
    assert (found.mean - found.half, found.mean + found.half) == pytest.approx((expected.low, expected.high))
    assert found.seeds == [0, 1, 2]
    assert found.clear


def test_a_clear_winner_is_taken_and_its_cost_told():
    found = judged(system("a", GOOD), system("b", BEST, sent=2_000_000, seconds=25.0), system("c", POOR))
    assert (found.kind, found.leader) == ("winner", "b")
    assert found.headline == "Take b: 2.93 points more accurate than a, the next best."
    assert "95 % interval +2.65 to +3.22 points, 3 seeds, paired; all others are clearly behind too" in found.sure
    assert found.cost == "b sends 2.0 times as much as a (2.0 against 1.0 MB) and takes 2.5 times as long (25.0 against 10.0 s)."
    assert [d.over for d in found.differences] == ["a", "c"], "the next best first"
    assert found.line.startswith("take b: +2.93 points over a (95 % interval +2.65 to +3.22, 3 seeds); sends 2.0 times as much")
    assert "\n" not in found.line


def test_seeds_are_paired_so_that_what_all_share_does_not_count():
    """The seeds differ by twenty points, the systems by one in every seed."""
    found = judged(system("a", [0.60, 0.70, 0.80]), system("b", [0.61, 0.711, 0.81]))
    assert found.kind == "winner"


def test_a_tie_is_called_one_and_the_cheaper_named():
    found = judged(system("a", [0.80, 0.84, 0.82], sent=500_000), system("b", [0.83, 0.82, 0.83]), system("c", POOR))
    assert (found.kind, found.leader) == ("tie", "b")
    assert found.headline == "No clear winner between b and a."
    assert "More seeds may separate them." in found.sure
    assert "c is clearly behind b." in found.sure
    assert found.cost.startswith("The cheapest of them is a: it sends 0.50 times as much as b")
    assert found.line.startswith("no clear winner between b and a: +0.67 points over a (95 % interval −")
    assert found.line.endswith("the cheapest is a")


def test_equal_systems_are_a_tie_without_a_minus_before_zero():
    found = judged(system("a", GOOD), system("b", GOOD))
    assert found.kind == "tie"
    assert "0.00 points ahead" in found.sure
    assert "−0.00" not in found.sure


def with_samples(runs, *sizes):
    """The same runs, with so many test samples in each domain."""
    domains = {f"d{place}": [[size - 1, 1], [0, 0]] for place, size in enumerate(sizes)}
    return [replace(run, confusion={"classes": ["x", "y"], "domains": domains}) for run in runs]


def test_one_sample_more_is_no_winner_however_much_seeds_agree():
    ahead, behind = [81 / 84, 80 / 84, 79 / 84], [80 / 84, 79 / 84, 78 / 84]
    found = judged(with_samples(system("a", ahead), 28, 28, 28), with_samples(system("b", behind), 28, 28, 28))
    assert found.kind == "tie"
    assert "The test samples are too few to separate them." in found.sure
    assert "95 % interval −1.14 to +3.52, 3 seeds" in found.line
    found = judged(with_samples(system("a", ahead), 2800, 2800, 2800), with_samples(system("b", behind), 2800, 2800, 2800))
    assert found.kind == "winner", "of 8,400 samples they are a hundred"


def test_one_whose_seeds_differ_much_is_not_recommended_over_a_beaten_one():
    found = judged(system("a", BEST), system("b", GOOD, sent=900_000), system("c", [0.95, 0.55, 0.80], sent=10))
    assert found.headline == "No clear winner between a and c."
    assert "cheapest" not in found.cost + found.line
    assert "a sends" in found.cost


def test_one_seed_is_not_a_comparison():
    found = judged(system("a", [0.8]), system("b", [0.9]))
    assert (found.kind, found.headline) == ("one seed", "One seed: not a comparison.")
    assert found.line == "one seed: not a comparison (a 80.00 %, b 90.00 %)"
    assert found.differences == []
    assert found.why == ""


def test_no_seed_in_common_is_not_a_comparison():
    found = judged(system("a", [0.8, 0.8]), system("b", [0.9, 0.9], seeds=[5, 6]))
    assert found.headline == "No seed in common: not a comparison."


def test_with_missing_seeds_only_those_in_common_count():
    """b has but the hard seeds: its mean is lower, and it is better in each of them."""
    found = judged(system("a", [0.9, 0.70, 0.71]), system("b", [0.75, 0.761], seeds=[1, 2]))
    assert (found.kind, found.leader) == ("winner", "b")
    assert found.headline.startswith("Take b: 5.05 points")
    again = judged(system("a", [0.9, 0.80, 0.811]), system("b", [0.75, 0.76], seeds=[1, 2]))
    assert again.leader == "a"
    assert "a has 3 seeds, of which only some are shared with b (seeds 1, 2)." in again.sure


def test_a_system_with_one_seed_does_not_stop_the_others():
    found = judged(system("a", GOOD), system("b", BEST), system("c", [0.99]))
    assert (found.kind, found.leader) == ("winner", "b")
    assert "Not compared, because fewer than two seeds are shared with b: c." in found.sure


def test_unfinished_runs_are_left_out():
    cut = [replace(run, summary={}) for run in system("b", [0.99, 0.99])]
    found = judged(system("a", GOOD), system("c", POOR), cut)
    assert (found.kind, found.leader) == ("winner", "a")
    assert "2 unfinished runs left out." in found.sure
    assert judged(system("a", GOOD), cut).headline.startswith("No verdict yet")


def test_nothing_to_compare():
    assert judged(system("a", GOOD)).headline == ""
    other = [replace(run, history=[{"round": 1, "domains": {"y": 0.5}}]) for run in system("b", BEST)]
    mine = [replace(run, history=[{"round": 1, "domains": {"x": 0.5}}]) for run in system("a", GOOD)]
    assert judged(mine, other).headline == "Not a comparison: the systems were not tested on the same domains."


def line(accuracy, merged, ensemble=None, **more):
    return {"accuracy": accuracy, "merged_accuracy": merged, "ensemble_accuracy": ensemble, **more}


def judge(scores, delivered, carried):
    names = {"judge": "clients", "points": [0.0, 0.5, 1.0], "faults": {}}
    return {**names, "scores": {"mlp": scores}, "delivered": {"mlp": delivered}, "carried": {"mlp": carried}}


def test_why_the_ensemble_and_what_is_kept_of_it():
    rounds = [line(0.83, 0.80, 0.84), line(0.85, 0.82, 0.86)]
    assert judged(system("b", BEST, rounds=rounds), system("a", GOOD)).why == (
        "The ensemble of b is 4.0 points above the average of the clients' models, and the delivered model keeps 3.0 of them."
    )


def test_why_a_system_leads_although_its_distillation_costs_points():
    rounds = [line(0.83, 0.84, 0.86), line(0.85, 0.86, 0.88)]
    found = judged(system("b", BEST, rounds=rounds), system("a", GOOD))
    assert found.why.startswith("b leads although distillation costs it 1.0 points per round: the average of its clients")
    assert found.why.endswith("ends 3.9 points above a.")


def test_why_a_system_leads_although_what_it_carries_on_is_worse():
    rounds = [line(0.84, 0.83, 0.86, line=judge([0.80, 0.81, 0.79], 0.5, 1.0))]
    found = judged(system("b", BEST, rounds=rounds), system("a", GOOD))
    assert found.why == (
        "b leads although the model that it carries on is 1.0 points worse than the average, by its judge: it delivers another "
        "point of the line, 1.0 points above the average."
    )


def test_why_one_that_distils_nothing_leads():
    rounds = [line(0.81, 0.83)]
    assert judged(system("b", BEST), system("a", GOOD, rounds=rounds)).why == (
        "b does not distil, and the distillation of a costs 2.0 points per round."
    )


def test_why_by_domain_where_nothing_is_distilled():
    mine, its = [{"domains": {"x": 0.9, "y": 0.7}}], [{"domains": {"x": 0.8, "y": 0.7}}]
    found = judged(system("b", BEST, rounds=mine), system("a", GOOD, rounds=its))
    assert found.why == "b is furthest ahead of a on x: +10.0 points."


def test_harm_is_what_is_carried_on_and_the_judge_says_where_there_is_one():
    without = distilled(system("a", [0.8], rounds=[line(0.79, 0.80), line(0.80, 0.81), line(0.888, 0.9)]))
    assert without.harm
    assert without.text == "−1.07 points per round on average; worse after distillation in 3 of 3 rounds."
    # worse on the test data, not by the judge
    fine = distilled(system("a", [0.8], rounds=[line(0.79, 0.80, line=judge([0.70, 0.75, 0.72], 0.5, 1.0))]))
    assert not fine.harm
    assert fine.text == (
        "Delivered: −1.00 points per round against the average. Carried on, by the clients' scores: +2.00 points per round; "
        "worse than the average in 0 of 1 round."
    )
    # better on the test data, and what is carried on is worse by the judge
    assert distilled(system("a", [0.8], rounds=[line(0.82, 0.80, line=judge([0.70, 0.75, 0.69], 0.5, 1.0))])).harm
    assert distilled(system("a", [0.8], rounds=[line(0.80, 0.80)])) is None


def test_a_loss_that_may_be_chance_is_no_harm_and_is_said():
    """Two rounds in three lose a sample or two, the third wins as much: nobody is warned, and the figures stay."""
    scores = [[0.70, 0.69], [0.75, 0.74], [0.80, 0.815]] * 2
    found = distilled(system("a", [0.8], rounds=[line(0.81, 0.80, line=judge([s, s, t], 0.0, 1.0)) for s, t in scores]))
    assert not found.harm
    chance = "−0.17 points per round, which may be chance (95 % interval −1.52 to +1.19); worse than the average in 4"
    assert chance in found.text
    # a large loss, and then a small one in every round: the interval is wide, and still it is no chance
    losses = [line(0.4, 0.8), *[line(0.79, 0.8)] * 5]
    assert distilled(system("a", [0.8], rounds=losses)).harm
    # what is lost is less than is shown
    nothing = distilled(system("a", [0.8], rounds=[line(0.80001, 0.80002)] * 3))
    assert not nothing.harm
    assert nothing.text == "0.00 points per round on average; worse after distillation in 0 of 3 rounds."


def test_zero_has_no_minus():
    assert [points(v) for v in (-1e-7, 0.0, -0.01)] == ["0.00", "0.00", "−1.00"]
