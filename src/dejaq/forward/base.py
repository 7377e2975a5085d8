"""The contract of a connector: a source that is read and acknowledged, a sink that recognises repeats."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol


@dataclass(frozen=True, slots=True)
class Parcel:
    """One message in transit.

    `token` belongs to the source, which acknowledges by it. The same message always has the same `id`, by which a
    sink recognises a repeat.
    """

    id: str
    body: bytes
    # When it is due, in UTC ms; None for at once.
    ts: int | None = None
    priority: int = 0
    headers: Mapping[str, str] = field(default_factory=dict)
    token: Any = None
    # Why it cannot be forwarded at all, such as a damaged body; empty for most.
    fault: str = ""


class Source(Protocol):
    """The source of messages. A message that was read and not acknowledged is read again, by this source or another
    one.
    """

    async def open(self) -> None:
        """Connect; raises the refusal."""

    async def read(self, limit: int) -> Sequence[Parcel]:
        """The next messages, at least one; waits for them. A cancelled read loses nothing."""

    async def ack(self, parcels: Sequence[Parcel]) -> None:
        """Acknowledge: these messages have been written."""

    async def reject(self, parcel: Parcel, reason: str) -> None:
        """The sink has refused it: keep it, and do not offer it again at once."""

    async def close(self) -> None:
        """Disconnect."""


class Sink(Protocol):
    """The sink of messages."""

    async def open(self) -> None:
        """Connect; raises the refusal."""

    async def write(self, parcels: Sequence[Parcel]) -> Mapping[int, str]:
        """Store messages durably, and repeats without a second copy; returns the reason by position for each refused
        one.
        """

    async def close(self) -> None:
        """Disconnect."""
