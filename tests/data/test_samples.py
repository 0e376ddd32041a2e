import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedstill.core.errors import FedstillError
from fedstill.data.samples import Samples, hold_out, normalise, stratified


def test_normalise_is_the_textbook_formula():
    x = torch.arange(256, dtype=torch.uint8).reshape(4, 1, 8, 8)
    torch.testing.assert_close(normalise(x, 0.3, 0.7), (x.double() / 255 - 0.3).div(0.7).float())


def test_normalise_by_channel():
    x = torch.randint(0, 256, (5, 3, 4, 6), dtype=torch.uint8)
    mean, std = (0.1, 0.2, 0.3), (0.5, 0.25, 2.0)
    expected = (x.double() / 255 - torch.tensor(mean).reshape(3, 1, 1)) / torch.tensor(std).reshape(3, 1, 1)
    torch.testing.assert_close(normalise(x, mean, std), expected.float())
    torch.testing.assert_close(normalise(x, 0.5, (0.5, 0.5, 0.5)), normalise(x))
    with pytest.raises(FedstillError, match="2 means"):
        normalise(x, (0.1, 0.2), 0.5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.int32, torch.int64])
def test_normalise_leaves_floats_and_tokens_alone(dtype):
    x = torch.ones(3, 4, dtype=dtype)
    assert normalise(x) is x


def test_samples_take_slices_as_views_and_positions_as_copies():
    samples = Samples(torch.arange(12).reshape(6, 2), torch.arange(6))
    assert samples.take(slice(2, 4)).x.data_ptr() == samples.x[2:].data_ptr()
    taken = samples.take(np.array([5, 0]))
    assert taken.x.tolist() == [[10, 11], [0, 1]]
    assert taken.y is not None
    assert taken.y.tolist() == [5, 0]


def test_samples_need_a_label_each():
    with pytest.raises(ValueError, match="3 inputs but 2 labels"):
        Samples(torch.zeros(3, 1), torch.zeros(2, dtype=torch.long))


@given(st.lists(st.integers(0, 5), min_size=1, max_size=80), st.integers(0, 90), st.integers(0, 3))
def test_stratified_keeps_every_share_within_one_sample(labels, size, seed):
    values = np.array(labels)
    chosen = stratified(values, size, np.random.default_rng(seed))
    assert len(chosen) == min(size, len(values))
    assert (np.diff(chosen) > 0).all()
    for label in set(labels):
        exact = labels.count(label) * len(chosen) / len(labels)
        assert abs((values[chosen] == label).sum() - exact) < 1


def test_the_only_sample_of_a_class_is_never_held_out():
    labels = torch.tensor([0] * 15 + [1, 2, 3, 4, 5])
    for seed in range(20):
        kept, held = hold_out(Samples(torch.arange(20.0), labels), 0.2, np.random.default_rng(seed))
        assert set(kept.y.tolist()) == set(range(6))
        assert set(held.y.tolist()) == {0}
        assert len(kept) + len(held) == 20


def test_hold_out_divides_without_overlap():
    samples = Samples(torch.arange(50), torch.arange(50) % 5)
    kept, held = hold_out(samples, 0.2, np.random.default_rng(0))
    assert held.counts(5).tolist() == [2] * 5
    assert sorted(kept.x.tolist() + held.x.tolist()) == list(range(50))
