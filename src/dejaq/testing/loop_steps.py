"""The steps of the event loop, measured by the processor time of each: a step is what runs between two turns.

    with measured_steps() as steps:
        await storage.browse(...)
    assert steps.longest_ms < 2.0, steps.where

Processor time does not contain what other processes take. Garbage collections are put off meanwhile, because they
depend on all objects of the process and not on the step that they interrupt.
"""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass(slots=True)
class Steps:
    """What was measured: how many steps, all of them together, and the longest."""

    count: int = 0
    total_ms: float = 0.0
    longest_ms: float = 0.0
    where: str = "no step"

    def add(self, took_ms: float, where: object) -> None:
        """Add one step."""
        self.count += 1
        self.total_ms += took_ms
        if took_ms > self.longest_ms:
            self.longest_ms, self.where = took_ms, repr(where)


@contextmanager
def measured_steps() -> Iterator[Steps]:
    """Measure every step of every event loop that runs in this thread."""
    steps = Steps()
    run = asyncio.Handle._run

    def measured(handle: asyncio.Handle) -> None:
        began = time.thread_time()
        run(handle)
        took_ms = (time.thread_time() - began) * 1e3
        if took_ms > steps.longest_ms:
            steps.add(took_ms, handle)
        else:
            steps.add(took_ms, None)

    enabled = gc.isenabled()
    gc.disable()
    setattr(asyncio.Handle, "_run", measured)  # noqa: B010  not a part of asyncio's typed interface
    try:
        yield steps
    finally:
        setattr(asyncio.Handle, "_run", run)  # noqa: B010
        if enabled:
            gc.enable()
