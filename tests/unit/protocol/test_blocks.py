"""Brokers and clients reuse the memory of large blocks."""

from __future__ import annotations

import subprocess
import sys

import pytest

SCRIPT = """
import resource
from dejaq.protocol.blocks import keep_blocks, reuse_blocks
{call}
def faults(times):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(times):
        blocks = [bytearray(1 << 20) for _ in range(4)]
        del blocks
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
faults(3)
print(faults(20))
"""


def faults(call: str) -> int:
    done = subprocess.run([sys.executable, "-c", SCRIPT.format(call=call)], capture_output=True, text=True, check=True)
    return int(done.stdout)


@pytest.mark.parametrize("call", ["keep_blocks()", "reuse_blocks()"])
def test_large_blocks_are_reused_without_new_pages(call: str) -> None:
    assert faults(call) < 100
    # Otherwise the test would prove nothing.
    assert faults("") > 1_000
