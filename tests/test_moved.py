"""What documentation of earlier versions imported can still be imported."""

from __future__ import annotations

import importlib
import subprocess
import sys

import pytest

from fedstill.moved import MOVED


@pytest.mark.parametrize("old", sorted(MOVED))
def test_an_old_name_is_the_new_module(old: str) -> None:
    sys.modules.pop(old, None)
    with pytest.warns(DeprecationWarning, match="has moved to"):
        found = importlib.import_module(old)
    assert found is importlib.import_module(MOVED[old])


def test_the_names_that_documents_used_are_there() -> None:
    code = (
        "from fedstill.fusion.weighting import make_weighting\n"
        "from fedstill.fusion.options import Distillation\n"
        "from fedstill.run.presets import configuration, resolve\n"
        "from fedstill.engine.flower import client_app, server_app\n"
        "from fedstill.flower import FedD3A, FedDF, projection\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
