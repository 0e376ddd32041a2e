"""Memory that a process frees is kept for its next step."""

import subprocess
import sys

import pytest

ASKING = """
import ctypes, resource, sys
from fedstill.core.allocator import keep_freed_memory
assert sys.argv[1] == "as it is" or keep_freed_memory()
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
def step():
    blocks = [libc.malloc(8 << 20) for _ in range(12)]  # activations of a step
    for block in blocks:
        ctypes.memset(block, 1, 8 << 20)
    for block in reversed(blocks):
        libc.free(block)
step()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(3):
    step()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="this is about the C library of Linux")
def test_a_second_step_asks_the_system_for_no_memory() -> None:
    def pages(how: str) -> int:
        return int(subprocess.run([sys.executable, "-c", ASKING, how], capture_output=True, text=True, check=True).stdout)

    assert pages("kept") < 100 < pages("as it is")
