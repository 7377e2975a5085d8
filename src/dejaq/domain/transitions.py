"""The one place that decides whether a change to a message is allowed.

Pure: the same state, change and time give the same answer. Every storage calls it inside the atomic step that writes
the change. PostgreSQL decides some changes in SQL (docs/decisions/0001); the conformance suite compares every storage
with this module. If many rows have the same state (a lease set), one answer holds for all of them.

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

from dejaq import limits
from dejaq.errors import Code


@dataclass(frozen=True, slots=True)
class Standing:
    """The state of a message that a decision needs: `ts` is the end of the lease while `lock_consumer` is set."""

    ts: int
    owner: str
    lock_consumer: str
    version: int


def decide_create(*, exists: bool, same_content: bool, created: bool = False) -> Code:
    """Create is allowed if the id is free; a repeat with the same content is ALREADY_EXISTS.

    An id that was `created` within the topic's deduplication window is ALREADY_EXISTS when its message is gone; its
    content is not known any more.
    """
    if not exists:
        return Code.ALREADY_EXISTS if created else Code.OK
    return Code.ALREADY_EXISTS if same_content else Code.ID_TAKEN


def decide_lease_terms(*, until: int, expires: int, now: int) -> Code:
    """Whether a lease of the messages that are due by `until`, which ends at `expires`, may take any message.

    The lease must end after `until`: otherwise it could expire before the message is due, and the message would be
    available too early.
    """
    allowed = max(now, until) < expires and until <= now + limits.PREFETCH_MS_MAX
    return Code.OK if allowed else Code.INVALID_LEASE


def decide_lease(standing: Standing, *, until: int, expires: int, now: int) -> Code:
    """A lease whose terms are allowed may take a message that is available, or free and due by `until`."""
    if (code := decide_lease_terms(until=until, expires=expires, now=now)) is not Code.OK:
        return code
    if standing.lock_consumer and standing.ts > now:
        return Code.LEASED
    return Code.OK if standing.ts <= max(until, now) else Code.INVALID_TIME


def decide_by_consumer(
    standing: Standing | None, *, consumer: str, version: int, now: int, expires: int | None = None
) -> Code:
    """Extend, release, delete and recall need the live lease with this holder, this version and, where given, this
    end.
    """
    if standing is None or standing.lock_consumer != consumer or standing.version != version or standing.ts <= now:
        return Code.LEASE_LOST
    return Code.OK if expires is None or standing.ts == expires else Code.LEASE_LOST


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
    """An operator may send a dead letter back, unless a consumer holds it."""
    if standing is None:
        return Code.NOT_FOUND
    return Code.LEASED if standing.lock_consumer and standing.ts > now else Code.OK


def check_ts(ts: int, *, now: int, max_future_ms: int) -> Code:
    """A time may be in the past; the topic limits how far it may be in the future."""
    if not 0 <= ts <= limits.TS_MS_MAX:
        return Code.INVALID_TIME
    return Code.OK if ts <= now + max_future_ms else Code.TOO_FAR


def check_lease(lease_ms: int, *, max_lease_ms: int) -> Code:
    """A lease is at least the minimum and at most the topic's maximum."""
    return Code.OK if limits.LEASE_MS_MIN <= lease_ms <= max_lease_ms else Code.INVALID_LEASE
