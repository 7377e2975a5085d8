"""Generated from `dejaq.sdk.log.log_worker` by `scripts/generate_sync.py`; edit that module, not this one."""

from __future__ import annotations

from dejaq.sdk.blocking.portal import Blocking
from dejaq.sdk.log.log_worker import LogWorker as AsyncLogWorker
from dejaq.sdk.log.log_worker import LogWorkerStats


class LogWorker(Blocking[AsyncLogWorker]):
    """Runs `function` for the messages of a log, from `run` until `stop`, as a member of a group.

    An async function runs in the event loop, any other function in a thread. Several workers of one group divide the
    buckets.
    """

    __slots__ = ()

    @property
    def stats(self) -> LogWorkerStats:
        """The stats of this logworker."""
        return self._inner.stats

    def stop(self) -> None:
        """Take no more messages; `run` returns when the running call has ended and was committed; from any thread."""
        self._inner.stop()

    def run(self) -> None:
        """Work until `stop`; waits through any outage, and raises an error when the broker refuses the member."""
        self._portal.follow(self._inner.run())
