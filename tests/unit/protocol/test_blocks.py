"""A broker keeps the memory of large blocks."""

from __future__ import annotations

import subprocess
import sys

SCRIPT = """
import resource
from dejaq.protocol.blocks import keep_blocks
if {kept}:
    keep_blocks()
def faults(times):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(times):
        blocks = [bytearray(1 << 20) for _ in range(4)]
        del blocks
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
faults(3)
print(faults(20))
"""


def faults(*, kept: bool) -> int:
    done = subprocess.run([sys.executable, "-c", SCRIPT.format(kept=kept)], capture_output=True, text=True, check=True)
    return int(done.stdout)


def test_large_blocks_are_used_again_without_new_pages() -> None:
    assert faults(kept=True) < 100
    # Otherwise the test shows nothing.
    assert faults(kept=False) > 1_000
