"""A consumer that keeps some leases while many other messages pass."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Protocol

from bench.harness.payload import Batch


class Taken(Protocol):
    """Leased messages."""

    bodies: Sequence[bytes]

    async def delete(self, positions: Sequence[int]) -> None:
        """Remove these."""

    def keep(self, positions: Sequence[int]) -> None:
        """Hold these until the end; their leases are extended."""


class SlowConsumer(Protocol):
    """Sends and consumes over one client."""

    async def open(self, *, lease_seconds: float, held: int) -> None:
        """Connect; `held` is the number of leases that will be kept."""

    async def send(self, batch: Batch) -> None:
        """Create messages."""

    def taken(self) -> AsyncIterator[Taken]:
        """What is due, as it comes."""

    async def delete_kept(self) -> int:
        """Delete what was kept; how many leases were lost."""

    async def close(self) -> None:
        """Disconnect."""
