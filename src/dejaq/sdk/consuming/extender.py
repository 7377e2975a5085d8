"""Extends the leases of messages that are not settled."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from dejaq.errors import DejaqError
from dejaq.sdk.consuming.grant import Grant
from dejaq.sdk.consuming.settler import Settler
from dejaq.sdk.session.broker_clock import BrokerClock
from dejaq.timekeeper.clock import Clock


class Extender:
    """Extends every row of a lease that has less than a third of its duration left."""

    def __init__(self, settler: Settler, *, clock: Clock, broker_clock: BrokerClock, lease_ms: int) -> None:
        self._settler = settler
        self._clock = clock
        self._broker_clock = broker_clock
        self._lease_ms = lease_ms
        self._extending: set[int] = set()

    async def run(self, grants: dict[int, Grant]) -> None:
        """Check the leases six times per duration of a lease, without end."""
        while True:
            await self._clock.sleep(self._lease_ms / 6_000)
            await self.extend(list(grants.values()))

    async def extend(self, grants: Iterable[Grant]) -> None:
        """Extend the rows of `grants` whose leases end soon; a row that cannot be extended now is tried again later."""
        soon = self._broker_clock.now_ms() + self._lease_ms // 3
        due = [(grant, rows) for grant in grants if (rows := grant.ending_before(soon))]
        await asyncio.gather(*(self._extend(grant, rows) for grant, rows in due))

    async def _extend(self, grant: Grant, rows: list[int]) -> None:
        if grant.id in self._extending:
            return
        self._extending.add(grant.id)
        try:
            await self._settler.extend(grant, rows, self._lease_ms)
        except DejaqError:
            # The lease expires unless the next check succeeds; user code gets LEASE_LOST when it settles the message.
            return
        finally:
            self._extending.discard(grant.id)
