"""What is said of a study without importing it is true of the function that runs it."""

from __future__ import annotations

import inspect

import pytest

from fedstill.core.errors import FedstillError
from fedstill.reproduce import STUDIES, studies, study
from fedstill.reproduce.catalogue import Later
from fedstill.reproduce.grids import Grid


@pytest.mark.parametrize("name", studies())
def test_the_function_of_a_study_is_where_it_is_said_to_be(name):
    found = studies()[name]
    assert found.name == name
    assert isinstance(found.run, Later | Grid)
    assert list(inspect.signature(found.run.function()).parameters) == ["plan"]
    assert found.minutes.keys() >= {"tiny", "small", "paper"}
    assert found.minutes["tiny"] <= 10
    assert STUDIES.origin(name) == "fedstill"


def test_a_name_is_given_once():
    with pytest.raises(FedstillError, match="there is a study 'poisoning' already"):
        study("poisoning", "again", small=1, paper=1)(lambda plan: [])
