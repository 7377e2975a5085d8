"""Fixtures for tests of programs that use DejaQ; pytest finds this module when DejaQ is installed.

Every test has its own broker, in memory, in the test's process, with a clock that only the test moves. Async tests need
`pytest-asyncio` (or `anyio`).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    import dejaq
    import dejaq.sync
    from dejaq.sdk.blocking.portal import Portal
    from dejaq.testing.virtual_time import VirtualBroker, VirtualTime

try:
    import pytest_asyncio
except ImportError:
    _async_fixture: Any = pytest.fixture
else:
    _async_fixture = pytest_asyncio.fixture

# How long one call of the blocking client may wait in a test.
CALL_SECONDS = 60.0


class BlockingTime:
    """The time of a test that has no event loop."""

    def __init__(self, time: VirtualTime, portal: Portal) -> None:
        self._time = time
        self._portal = portal

    @property
    def now(self) -> datetime:
        """The time, in UTC."""
        return self._time.now

    @property
    def now_ms(self) -> int:
        """The time, in UTC milliseconds."""
        return self._time.now_ms

    def advance(self, duration: float | timedelta) -> None:
        """Move the time by so many seconds; every message that becomes due meanwhile is delivered at its own time."""
        self._portal.follow(self._time.advance(duration))


@_async_fixture  # type: ignore[untyped-decorator]
async def _dejaq_virtual() -> AsyncIterator[VirtualBroker]:
    from dejaq.testing.virtual_time import virtual_broker

    async with virtual_broker() as made:
        yield made


@pytest.fixture
def dejaq_broker(_dejaq_virtual: VirtualBroker) -> dejaq.Broker:
    """A broker in memory, for `dejaq.connect(dejaq_broker, clock=dejaq_time.clock)`."""
    return _dejaq_virtual.broker


@pytest.fixture
def dejaq_client(_dejaq_virtual: VirtualBroker) -> dejaq.Client:
    """An open client of `dejaq_broker`."""
    return _dejaq_virtual.client


@pytest.fixture
def dejaq_time(_dejaq_virtual: VirtualBroker) -> VirtualTime:
    """The time of `dejaq_broker` and `dejaq_client`: `await dejaq_time.advance(3600)`."""
    return _dejaq_virtual.time


@pytest.fixture
def _dejaq_blocking() -> Iterator[tuple[VirtualBroker, Portal]]:
    from dejaq.sdk.blocking.portal import Portal
    from dejaq.testing.virtual_time import virtual_broker

    portal = Portal("client", seconds=CALL_SECONDS)
    portal.start()
    try:
        running = virtual_broker()
        made = portal.run(running.__aenter__())
        try:
            yield made, portal
        finally:
            portal.run(running.__aexit__(None, None, None))
    finally:
        portal.stop()


@pytest.fixture
def dejaq_sync_client(_dejaq_blocking: tuple[VirtualBroker, Portal]) -> dejaq.sync.Client:
    """An open blocking client of a broker in memory."""
    from dejaq.sdk.blocking.client import Client

    made, portal = _dejaq_blocking
    return Client(made.client, portal)


@pytest.fixture
def dejaq_sync_time(_dejaq_blocking: tuple[VirtualBroker, Portal]) -> BlockingTime:
    """The time of `dejaq_sync_client`: `dejaq_sync_time.advance(3600)`."""
    made, portal = _dejaq_blocking
    return BlockingTime(made.time, portal)
