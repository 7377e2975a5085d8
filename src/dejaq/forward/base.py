"""The contract of a connector: a source that is read and acknowledged, a sink that takes repeats for what they are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol


@dataclass(frozen=True, slots=True)
class Parcel:
    """One message on its way. `token` is the source's own, by which it acknowledges.

    The same message has the same `id` however often it is read: by it a sink knows a repeat.
    """

    id: str
    body: bytes
    # When it is due, in UTC ms; None for at once.
    ts: int | None = None
    priority: int = 0
    headers: Mapping[str, str] = field(default_factory=dict)
    token: Any = None


class Source(Protocol):
    """Where messages come from. What was read and not acknowledged is read again, here or by another."""

    async def open(self) -> None:
        """Connect; raises the refusal."""

    async def read(self, limit: int) -> Sequence[Parcel]:
        """The next messages, one at least; waits for them. A read that is cancelled loses nothing."""

    async def ack(self, parcels: Sequence[Parcel]) -> None:
        """These are where they should be: forget them."""

    async def reject(self, parcel: Parcel, reason: str) -> None:
        """The sink will not have it: keep it, and do not offer it again at once."""

    async def close(self) -> None:
        """Disconnect."""


class Sink(Protocol):
    """Where messages go."""

    async def open(self) -> None:
        """Connect; raises the refusal."""

    async def write(self, parcels: Sequence[Parcel]) -> Mapping[int, str]:
        """Take messages for good, those it has already without a second copy; why not, by place, for those refused."""

    async def close(self) -> None:
        """Disconnect."""
