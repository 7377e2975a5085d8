"""Finds code of a broker that blocks the event loop, from what the broker's watchdog logs in the process of a test."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager

from dejaq.testing.servers.process import BLOCK_CPU_MS_MAX

# The loop is also the test's own, whose code may block it.
_OF_BROKERS = ("/dejaq/broker/", "/dejaq/storage/", "/dejaq/journal/", "/dejaq/synchronization/")
# A broker that starts serves nobody yet. Only in tests does it share its loop with another one that does.
_STARTING = re.compile(r"broker/central\.py\", line \d+, in start\n")


class _Blocks(logging.Handler):
    """Collects what was logged about long blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Take a record of the watchdog."""
        known = vars(record)
        files = known.get("files", ())
        of_broker = any(part in file for file in files for part in _OF_BROKERS)
        message = record.getMessage()
        if of_broker and known["cpu_ms"] > BLOCK_CPU_MS_MAX and not _STARTING.search(message):
            self.found.append(message)


@contextmanager
def limited_blocks() -> Iterator[list[str]]:
    """What blocked the loop of a broker for more than the limit, while the block is open."""
    handler = _Blocks()
    logger = logging.getLogger("dejaq.broker.loop.watchdog")
    logger.addHandler(handler)
    before = logger.level
    logger.setLevel(logging.DEBUG)
    try:
        yield handler.found
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before)
