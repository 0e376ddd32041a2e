"""What the tests share: a tiny configuration on embedded digits, and one cache for the whole session."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fedstill.config.tables import Config
from fedstill.core.nested import laid_over
from fedstill.run.configuration import parse

torch.set_num_threads(1)


# files whose tests start many processes: one is begun after the other (--no-loadscope-reorder), so that they do not wait for each
# other's, and all are begun early, so that none is left alone at the end
SLOW = ("test_flower_deployment", "test_flower_secure", "test_extending", "test_benchmarks", "test_inprocess", "test_parts")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Spread the slow files over the first two thirds of the files."""
    names = list(dict.fromkeys(item.path for item in items))
    slow = sorted((path for path in names if path.stem in SLOW), key=lambda path: SLOW.index(path.stem))
    order = [path for path in names if path not in slow]
    for i, path in enumerate(slow):
        order.insert(i * len(names) * 2 // (3 * len(SLOW)), path)
    items.sort(key=lambda item: order.index(item.path))


@pytest.fixture
def tiny():
    """``tiny(**changes)``: a configuration of two digit domains that trains in a second."""
    return tiny_config


def tiny_tree(**changes: Any) -> dict[str, Any]:
    """The tree behind :func:`tiny_config`."""
    tree = {
        "rounds": 2,
        "data": {
            "domains": ["embedded:optdigits", "embedded:mnist"],
            "image_size": 8,
            "channels": 1,
            "limit": 120,
            "test_limit": 60,
        },
        "model": {"name": "mlp", "options": {"hidden": [16]}},
        "local": {"batch_size": 30, "optimizer": {"lr": 0.1}},
        "engine": {"threads": 1},
    }
    if {"name", "clients"} & changes.get("model", {}).keys():
        tree["model"] = {}  # another network has other options
    return laid_over(tree, changes)


def tiny_config(**changes: Any) -> Config:
    """Two digit domains at 8x8, 120 samples each, a small MLP, two rounds."""
    return parse(tiny_tree(**changes))
