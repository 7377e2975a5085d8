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


HEAPS = """
import ctypes, tempfile, threading
from dejaq.protocol.blocks import keep_blocks
{call}
ready = threading.Barrier(9)
def work():
    block = bytearray(100_000)
    ready.wait()
    ready.wait()
threads = [threading.Thread(target=work) for _ in range(8)]
for thread in threads:
    thread.start()
ready.wait()
library = ctypes.CDLL(None)
library.fopen.restype = ctypes.c_void_p
with tempfile.NamedTemporaryFile() as page:
    opened = ctypes.c_void_p(library.fopen(page.name.encode(), b"w"))
    library.malloc_info(0, opened)
    library.fclose(opened)
    print(page.read().count(b"<heap nr="))
ready.wait()
"""


def faults(call: str) -> int:
    done = subprocess.run([sys.executable, "-c", SCRIPT.format(call=call)], capture_output=True, text=True, check=True)
    return int(done.stdout)


@pytest.mark.parametrize("call", ["keep_blocks()", "reuse_blocks()"])
def test_large_blocks_are_reused_without_new_pages(call: str) -> None:
    assert faults(call) < 100
    # Otherwise the test would prove nothing.
    assert faults("") > 1_000


def test_threads_share_two_heaps() -> None:
    """What one thread lets go of, another one can use: the memory of a broker does not grow with its threads."""

    def heaps(call: str) -> int:
        command = [sys.executable, "-c", HEAPS.format(call=call)]
        return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)

    assert heaps("keep_blocks()") <= 2
    # Otherwise the test would prove nothing.
    assert heaps("") > 2
