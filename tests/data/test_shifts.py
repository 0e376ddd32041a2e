import numpy as np
import pytest
import torch

from fedstill.core.errors import FedstillError
from fedstill.data.samples import Samples
from fedstill.data.shifts import flip_labels, shift_labels

HONEST = Samples(torch.zeros(1000, 1), torch.arange(1000) % 10)


def test_thirty_percent_of_the_labels_move_by_one():
    wrong = shift_labels(HONEST, 0.3, 10, np.random.default_rng(0))
    assert wrong.y is not None
    assert HONEST.y is not None
    moved = (wrong.y - HONEST.y) % 10
    assert moved.bincount().tolist() == [700, 300]
    assert wrong.x is HONEST.x


def test_flipping_twice_is_honest_again():
    once = flip_labels(HONEST, 1.0, 10, np.random.default_rng(0))
    twice = flip_labels(once, 1.0, 10, np.random.default_rng(0))
    assert once.y is not None
    assert twice.y is not None
    assert HONEST.y is not None
    assert (once.y + HONEST.y).eq(9).all()
    assert twice.y.equal(HONEST.y)


def test_bad_requests():
    with pytest.raises(FedstillError, match="between 0 and 1"):
        shift_labels(HONEST, 1.5, 10, np.random.default_rng(0))
    with pytest.raises(FedstillError, match="these samples have none"):
        flip_labels(HONEST.unlabelled(), 0.5, 10, np.random.default_rng(0))
