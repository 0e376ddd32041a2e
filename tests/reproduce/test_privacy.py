"""The study of accuracy against epsilon: every cell is a valid run, and budgets are divided as stated."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedstill.algorithms import create
from fedstill.config.tables import Config
from fedstill.core.accounting import gaussian_cost
from fedstill.core.nested import laid_over
from fedstill.fusion.weightings.private_votes import Spent, Votes, budget_cost
from fedstill.reproduce import Plan, privacy
from fedstill.run.configuration import resolve
from fedstill.task import Task


@pytest.mark.parametrize("row", privacy.SYSTEMS)
def test_every_cell_is_a_valid_run(row: str) -> None:
    for epsilon in (3.0, None):
        tree = laid_over(privacy.setting("tiny", privacy.CLIENTS.get(row, 10)), {"algorithm": privacy.SYSTEMS[row]})
        made = create(Task(resolve(laid_over(tree, privacy.mechanism(row, epsilon, 3)))))
        assert made.name == privacy.SYSTEMS[row]["name"]


def test_budgets_are_divided_as_stated() -> None:
    """Reports in three rounds cost a fifth of what the budget allows, and the votes' noise is for a hundred answers."""
    reports = privacy.mechanism("FedD3A", 3.0, 3)["privacy"]["reports"]
    assert 3 * gaussian_cost(1.0, reports["noise"]) == pytest.approx(0.2 * budget_cost(3.0, 1e-5), rel=1e-3)
    votes = Votes.model_validate(privacy.votes(3.0, 3)["privacy"]["votes"])
    assert Spent(100, 100).epsilon(votes) == pytest.approx(3.0)


def test_budgets_are_divided_by_the_rounds_that_are_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """``--set rounds=`` changes what a report may cost, and how long teachers of private votes train in their one round."""
    made: dict[str, Config] = {}
    monkeypatch.setattr(privacy, "runs_of", lambda plan, name, tree: made.update({name: resolve(tree, plan.sets)}) or [])
    for rounds in (2, 8):
        sets = (f"rounds={rounds}",)
        privacy.privacy(Plan(tmp_path, scale="tiny", only=("fedd3a", "private votes"), columns=("epsilon 3",), sets=sets))
        reports, voting = made["fedd3a-epsilon-3"].privacy.reports, made["private-votes-epsilon-3"]
        assert reports is not None
        assert reports.noise is not None
        assert rounds * gaussian_cost(1.0, reports.noise) == pytest.approx(0.2 * budget_cost(3.0, 1e-5), rel=1e-3)
        assert (voting.rounds, voting.local.steps) == (1, rounds * privacy.STEPS)


def test_a_noised_sum_of_many_clients_has_as_many() -> None:
    found = [privacy.setting("small", clients)["clients"]["per_domain"] for clients in privacy.CLIENTS.values()]
    assert found == [10, 100, 1000]
    assert privacy.mechanism("noised sum", 3.0, 3)["privacy"]["client"]["epsilon"] == 3.0
    assert privacy.mechanism("noised sum", None, 3) == {}


def test_the_study_runs(tmp_path: Path) -> None:
    plan = Plan(
        tmp_path, scale="tiny", only=("fedavg",), columns=("epsilon",), sets=("rounds=1", "local.steps=1", "data.limit=200")
    )
    cells = privacy.privacy(plan)
    assert (plan.out / "privacy.png").stat().st_size > 1000
    assert [cell.column for cell in cells] == ["epsilon 1", "epsilon 3", "epsilon 8"]
