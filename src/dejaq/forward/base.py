"""The contract of a connector: a source that is read and acknowledged, a sink that recognises repeats."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
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
    # The key of a message of a log; messages with one key are in order.
    key: bytes = b""
    # The ordered sequence of the source to which it belongs, such as a partition, and its increasing number there. Only
    # repeats have a lower number than an earlier message. Empty in a source without an order.
    lane: str = ""
    number: int = 0
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


# The headers in which a queue that has no keys, times or priorities keeps them, and the id of a message of another one.
KEY, KEY_BASE64, FORWARDED_ID, FORWARDED_AT, PRIORITY = "key", "key-base64", "forwarded-id", "forwarded-at", "priority"


def headers_with_key(parcel: Parcel) -> dict[str, str]:
    """The headers of a message, with its key."""
    headers = dict(parcel.headers)
    if parcel.key:
        try:
            headers[KEY] = parcel.key.decode()
        except UnicodeDecodeError:
            headers[KEY_BASE64] = base64.b64encode(parcel.key).decode()
    return headers


def key_of(headers: dict[str, str]) -> bytes:
    """The key that `headers_with_key` has put into the headers, which loses it."""
    text = headers.pop(KEY, "")
    packed = headers.pop(KEY_BASE64, "")
    if text or not packed:
        return text.encode()
    try:
        return base64.b64decode(packed, validate=True)
    except binascii.Error:
        return packed.encode()


def with_key(parcel: Parcel) -> Parcel:
    """The message with the key that its headers have, where it has none of its own."""
    if parcel.key or not (KEY in parcel.headers or KEY_BASE64 in parcel.headers):
        return parcel
    headers = dict(parcel.headers)
    key = key_of(headers)
    return replace(parcel, key=key, headers=headers)


def without_origin(headers: Mapping[str, str]) -> dict[str, str]:
    """The headers without those of the move that brought the message here."""
    return {name: value for name, value in headers.items() if name not in (FORWARDED_ID, FORWARDED_AT)}


def headers_with_origin(parcel: Parcel) -> dict[str, str]:
    """The headers of a message in a log, with its id, time and priority."""
    headers = dict(parcel.headers)
    headers[FORWARDED_ID] = parcel.id
    if parcel.ts is not None:
        headers[FORWARDED_AT] = str(parcel.ts)
    if parcel.priority:
        headers[PRIORITY] = str(parcel.priority)
    return headers


def priority_of(headers: dict[str, str]) -> int:
    """The priority in the headers of a message of a log, which lose it; 0 when there is none."""
    text = headers.get(PRIORITY, "")
    if not text.removeprefix("-").isdigit():
        return 0
    del headers[PRIORITY]
    return int(text)
