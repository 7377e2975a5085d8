"""Extends the leases of messages that are not settled."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence

from dejaq.errors import DejaqError
from dejaq.sdk.consuming.grant import Grant
from dejaq.sdk.consuming.settler import Settler
from dejaq.sdk.session.broker_clock import BrokerClock
from dejaq.timekeeper.clock import Clock


class Extender:
    """Extends every row of a lease that has less than half of its duration left."""

    def __init__(self, settler: Settler, *, clock: Clock, broker_clock: BrokerClock, lease_ms: int) -> None:
        self._settler = settler
        self._clock = clock
        self._broker_clock = broker_clock
        self._lease_ms = lease_ms
        # The leases that are being extended, and the tasks that wait for the answers.
        self._extending: set[int] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self, grants: dict[int, Grant]) -> None:
        """Check the leases six times per duration of a lease, without end; no check waits for answers."""
        try:
            while True:
                await self._clock.sleep(self._lease_ms / 6_000)
                if due := self._due(grants.values()):
                    task = asyncio.ensure_future(self._extend_all(due))
                    self._tasks.add(task)
                    task.add_done_callback(self._tasks.discard)
        finally:
            for task in list(self._tasks):
                task.cancel()

    async def extend(self, grants: Iterable[Grant]) -> None:
        """Extend the rows of `grants` whose leases end soon; a row that cannot be extended now is tried again later."""
        await self._extend_all(self._due(grants))

    def _due(self, grants: Iterable[Grant]) -> list[tuple[Grant, list[int]]]:
        """The rows that end soon, of leases that are not being extended; these are noted as being extended."""
        soon = self._broker_clock.now_ms() + self._lease_ms // 2
        free = [grant for grant in grants if grant.id not in self._extending]
        due = [(grant, rows) for grant in free if (rows := grant.ending_before(soon))]
        self._extending.update(grant.id for grant, _ in due)
        return due

    async def _extend_all(self, due: Sequence[tuple[Grant, list[int]]]) -> None:
        await asyncio.gather(*(self._extend(grant, rows) for grant, rows in due))

    async def _extend(self, grant: Grant, rows: list[int]) -> None:
        try:
            await self._settler.extend(grant, rows, self._lease_ms)
        except DejaqError:
            # The lease expires unless the next check succeeds; user code gets LEASE_LOST when it settles the message.
            return
        finally:
            self._extending.discard(grant.id)
