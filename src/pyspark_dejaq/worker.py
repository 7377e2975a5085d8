"""Runs once per Python process: in the driver, and in each worker of Spark."""

from __future__ import annotations

import gc
import os
import shutil
import sys
from functools import cache
from pathlib import Path

from dejaq.protocol.blocking import BlockingTransport
from dejaq.protocol.blocks import keep_blocks
from dejaq.sdk.session.seeds import transports_of


def use_this_python() -> None:
    """Make Spark's workers run the Python of this environment, unless the user chose another one.

    Spark looks data sources up with the `python3` of the PATH. In a virtual environment that is not activated that is
    another Python, which has no `dejaq`: Spark then says DATA_SOURCE_NOT_FOUND.
    """
    found = shutil.which("python3")
    if found is None or Path(found).parent != Path(sys.executable).parent:
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)


@cache
def settle_in() -> None:
    """Prepare the worker for many batches of a megabyte.

    Spark runs the garbage collector after each task. The modules that are loaded by now are never freed, and searching
    them takes longer (60 ms) than a small task.
    """
    gc.freeze()
    keep_blocks()


def connect(url: str) -> BlockingTransport:
    """A connection of its own to the broker that `url` names."""
    return BlockingTransport(transports_of(url)[0])


def transport_to(url: str) -> BlockingTransport:
    """The connection of this process to a broker.

    All its tasks share it, because some take less time than connecting.
    """
    return _transport(os.getpid(), url)


def forget_transport(url: str) -> None:
    """Let the next task connect again, after an error."""
    transport = _transport(os.getpid(), url)
    _transport.cache_clear()
    transport.close()


@cache
def _transport(process: int, url: str) -> BlockingTransport:
    # A process that was forked cannot use the connections of its parent process.
    return connect(url)
