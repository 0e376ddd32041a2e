"""How fast processes start here, for tests that wait for them."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest


@pytest.fixture(scope="module")
def pace():
    """Seconds that a client process needs to start here and now; every message starts one."""
    clock = time.perf_counter()
    subprocess.run([sys.executable, "-c", "import fedstill.engine.flower.records"], check=True)
    return time.perf_counter() - clock
