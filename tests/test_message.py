"""Messages survive the wire, foreign bytes do no harm, files are written whole."""

from __future__ import annotations

import json
import pickle

import pytest
import safetensors.torch
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedstill.core.errors import FedstillError
from fedstill.core.message import Message

DTYPES = [torch.float32, torch.float64, torch.float16, torch.int64, torch.int32, torch.uint8, torch.bool]
values = st.dictionaries(
    st.text(min_size=1, max_size=8),
    st.one_of(st.integers(-(2**53), 2**53), st.floats(allow_nan=False, allow_infinity=False), st.text(max_size=8), st.booleans()),
    max_size=4,
)


@settings(max_examples=40, deadline=None)
@given(values, st.lists(st.tuples(st.sampled_from(DTYPES), st.lists(st.integers(0, 3), max_size=3)), max_size=4))
def test_bytes_round_trip(plain, tensors):
    message = Message({f"group/{i}": torch.ones(shape).to(kind) for i, (kind, shape) in enumerate(tensors)}, plain)
    again = Message.from_bytes(message.to_bytes())
    assert again.values == plain
    assert {k: (t.dtype, t.shape) for k, t in again.tensors.items()} == {
        k: (t.dtype, t.shape) for k, t in message.tensors.items()
    }
    assert all(torch.equal(again.tensors[k], t) for k, t in message.tensors.items())


def test_views_of_one_storage_travel_as_their_own_tensors():
    base = torch.arange(6.0)
    again = Message.from_bytes(Message({"a/x": base[:3], "a/y": base[3:], "a/z": base.view(2, 3).T}).to_bytes())
    assert again.tensors["a/y"].tolist() == [3, 4, 5]
    assert again.tensors["a/z"].tolist() == [[0, 3], [1, 4], [2, 5]]


def test_equal_messages_are_equal_bytes():
    one = Message.of(model={"b": torch.ones(2), "a": torch.zeros(3)}, samples=3, loss=0.5)
    assert one.to_bytes() == Message.from_bytes(one.to_bytes()).to_bytes()


KINDS = (
    *(torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2),
    *(torch.int64, torch.int32, torch.int16, torch.int8, torch.uint64, torch.uint32, torch.uint16, torch.uint8, torch.bool),
)


@pytest.mark.parametrize("name", ["a", 'é"\n'])
def test_a_message_is_written_as_safetensors_writes_it(name, tmp_path):
    shapes = [(), (2, 3), (0, 3)]
    tensors = {f"{name}/{kind}/{shape}": torch.ones(shape).to(kind) for kind in KINDS for shape in shapes}
    message = Message(tensors, {"value": name})
    expected = safetensors.torch.save(message.tensors, {"values": json.dumps(message.values)})
    assert message.to_bytes() == expected
    message.write(tmp_path / "message")
    assert (tmp_path / "message").read_bytes() == expected


@given(st.binary(max_size=200))
@settings(max_examples=60, deadline=None)
def test_foreign_bytes_are_refused(data):
    with pytest.raises(FedstillError):
        Message.from_bytes(data)


def test_a_pickle_is_refused_and_not_run(tmp_path):
    class Bomb:
        def __reduce__(self):
            return (open, (str(tmp_path / "ran"), "w"))

    for name, data in (("pickle", pickle.dumps(Bomb())), ("short", Message.of(model={"w": torch.ones(9)}).to_bytes()[:-5])):
        (tmp_path / name).write_bytes(data)
        with pytest.raises(FedstillError):
            Message.load(tmp_path / name)
        with pytest.raises(FedstillError):
            Message.from_bytes(data)
    assert not (tmp_path / "ran").exists()


def test_size_counts_the_tensors():
    assert Message.of(model={"w": torch.zeros(10, dtype=torch.float32), "n": torch.zeros(3, dtype=torch.uint8)}).nbytes == 43 + 2
