"""What the tests with real Flower nodes share."""

from __future__ import annotations

import time

import safetensors.torch
import torch

from tests.conftest import tiny_config


def until(ready, patience, what):
    deadline = time.monotonic() + patience
    while not ready():
        assert time.monotonic() < deadline, f"{what} took more than {patience:.0f} s"
        time.sleep(0.2)


def weights(folder):
    return safetensors.torch.load_file(folder / "model.safetensors")


def assert_equal(one, other):
    # The same processor computes the same sums in the same order, so these are equal bit for bit on one machine; machines with
    # other processors may differ in the last bits, which is why the promise is 1e-5.
    assert one.keys() == other.keys()
    for name in one:
        torch.testing.assert_close(one[name], other[name], rtol=0, atol=1e-5)


def config(name, **changes):
    data = {"domains": ["embedded:mnist", "embedded:optdigits"], "server": "embedded:rotated", **changes.pop("data", {})}
    return tiny_config(algorithm={"name": name, **changes.pop("options", {})}, data=data, **changes)
