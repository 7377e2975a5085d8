"""Generated from `dejaq.sdk.working.worker` by `scripts/generate_sync.py`; edit that module, not this one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dejaq.sdk.blocking.opening import RunningWorker
from dejaq.sdk.working.worker import WorkerStats


class Worker(RunningWorker):
    """Runs `function` with a lease for each message of a topic, from `run` until `stop`.

    An async function runs in the event loop, any other function in a thread with a lease whose calls block. An async
    function that exceeds the time-out is cancelled. A thread cannot be cancelled: its message is released, and the
    thread counts towards `concurrency` until the function returns.
    """

    __slots__ = ()

    @property
    def function(self) -> Callable[..., Any]:
        """The function of this worker."""
        return self._inner.function

    @property
    def topic(self) -> str:
        """The topic of this worker."""
        return self._inner.topic

    @property
    def stats(self) -> WorkerStats:
        """The stats of this worker."""
        return self._inner.stats

    def run(self) -> None:
        """Work until `stop`; waits through any outage, and raises an error when the broker refuses the worker."""
        self._portal.follow(self._inner.run())
