"""Selects the messages of a query in the memory store, and computes their positions in the pages of a browse."""

from __future__ import annotations

from dejaq import limits
from dejaq.domain.message import status_of
from dejaq.errors import Code, error_of
from dejaq.storage.base import Filter
from dejaq.storage.memory.timeline import HeldMessage

_TS_BYTES = 8


def matches(message: HeldMessage, where: Filter, now: int) -> bool:
    """Whether a filter matches a message."""
    return (
        where.start <= message.ts < where.end
        and where.status in (None, status_of(message.ts, message.lock_consumer, now))
        and where.owner in (None, message.owner)
        and where.consumer in (None, message.lock_consumer)
        and where.fits(message.priority, message.headers)
    )


def position_of(message: HeldMessage, *, by_priority: bool) -> bytes:
    """A position that sorts as (ts, id) or as (priority, ts, id).

    The last byte distinguishes a natural id from a generated one with the same text.
    """
    first = (message.priority - limits.PRIORITY_MIN).to_bytes(4, "big") if by_priority else b""
    kind = b"\x00" if message.natural else b"\x01"
    return first + message.ts.to_bytes(_TS_BYTES, "big") + message.id.encode() + kind


def check_cursor(cursor: bytes) -> bytes:
    """The cursor; raises INVALID_ARGUMENT when it is not a cursor."""
    if len(cursor) < _TS_BYTES + 2:
        raise error_of(Code.INVALID_ARGUMENT, "the cursor is not one that browse returned")
    return cursor
