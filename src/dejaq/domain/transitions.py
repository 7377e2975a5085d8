"""The one place that decides whether a change to a message is allowed.

Pure: the same state, change and time give the same answer. Every storage asks it inside the atomic step
that writes the change. Where many rows share one standing (a lease set), one answer holds for all of them.

          create            lease                      delete
    free ───────▶ waiting ────────▶ processing ──────────────────▶ gone
                  available ◀──────          │ release, expiry
                     │   move, edit          │
                     └── cancel ─────────────┼───────────────────▶ gone
                            too many leases  │ reject
                     └───────────────────────┴──────────▶ the dead-letter topic
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto

from dejaq import limits
from dejaq.errors import Code


class Change(Enum):
    """What may happen to a message after its creation."""

    LEASE = auto()
    EXTEND = auto()
    RELEASE = auto()
    DELETE = auto()
    RECALL = auto()
    MOVE = auto()
    EDIT = auto()
    CANCEL = auto()


BY_CONSUMER = frozenset({Change.EXTEND, Change.RELEASE, Change.DELETE, Change.RECALL})
BY_OWNER = frozenset({Change.MOVE, Change.EDIT, Change.CANCEL})


@dataclass(frozen=True, slots=True)
class Standing:
    """What a decision needs to know of a message: `ts` is the lease's end while `lock_consumer` is set."""

    ts: int
    owner: str
    lock_consumer: str
    version: int


def decide_create(*, exists: bool, same_content: bool) -> Code:
    """Create is allowed when the id is free; a repeat with the same content is already there."""
    if not exists:
        return Code.OK
    return Code.ALREADY_EXISTS if same_content else Code.ID_TAKEN


def decide_lease(standing: Standing, *, until: int, expires: int, now: int) -> Code:
    """A lease is allowed on what is available, or free and due within the prefetch window.

    It must end behind `until`: rows that are not due yet would otherwise be lost, and so available, before their time.
    """
    if expires <= max(now, until) or until > now + limits.PREFETCH_MS_MAX:
        return Code.INVALID_LEASE
    if standing.lock_consumer and standing.ts > now:
        return Code.LEASED
    return Code.OK if standing.ts <= max(until, now) else Code.INVALID_TIME


def decide_by_consumer(standing: Standing | None, *, consumer: str, version: int, now: int) -> Code:
    """Extend, release, delete and recall need the live lease with this holder and this version."""
    if standing is None or standing.lock_consumer != consumer or standing.version != version or standing.ts <= now:
        return Code.LEASE_LOST
    return Code.OK


def decide_by_owner(standing: Standing | None, *, owner: str, now: int, version: int | None = None) -> Code:
    """Move, edit and cancel need the owner, no live lease and, where given, the version."""
    if standing is None:
        return Code.NOT_FOUND
    if standing.owner != owner:
        return Code.NOT_OWNER
    if standing.lock_consumer and standing.ts > now:
        return Code.LEASED
    if version is not None and standing.version != version:
        return Code.VERSION_CONFLICT
    return Code.OK


def decide_redrive(standing: Standing | None, *, now: int) -> Code:
    """A dead letter may be sent back by anyone who runs the system, unless a consumer works on it."""
    if standing is None:
        return Code.NOT_FOUND
    return Code.LEASED if standing.lock_consumer and standing.ts > now else Code.OK


def check_ts(ts: int, *, now: int, max_future_ms: int) -> Code:
    """A time may lie in the past; how far ahead is bounded by the topic."""
    if not 0 <= ts <= limits.TS_MS_MAX:
        return Code.INVALID_TIME
    return Code.OK if ts <= now + max_future_ms else Code.TOO_FAR


def check_lease(lease_ms: int, *, max_lease_ms: int) -> Code:
    """A lease is at least the minimum and at most the topic's maximum."""
    return Code.OK if limits.LEASE_MS_MIN <= lease_ms <= max_lease_ms else Code.INVALID_LEASE
