"""Generated from `dejaq.sdk.consuming.lease` by `scripts/generate_sync.py`; edit that module, not this one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta

from dejaq.domain.bodies.large import Reference
from dejaq.sdk.blocking.portal import Blocking, each
from dejaq.sdk.consuming.lease import Batch as AsyncBatch
from dejaq.sdk.consuming.lease import Held
from dejaq.sdk.consuming.lease import Lease as AsyncLease
from dejaq.sdk.results import Results
from dejaq.sdk.times import At, Delay


class Lease(Blocking[AsyncLease]):
    """One message that only this consumer has until `expires`. Settle it: delete it, or release it to a later time."""

    __slots__ = ()

    @property
    def topic(self) -> str:
        """The topic of the message."""
        return self._inner.topic

    @property
    def held(self) -> Held:
        """The leased row, for a transaction that settles it."""
        return self._inner.held

    @property
    def id(self) -> str:
        """The message's id."""
        return self._inner.id

    @property
    def body(self) -> bytes:
        """The body that the producer sent.

        Raises BODY_UNREADABLE when it cannot be decompressed, or when it is large and was not fetched.
        """
        return self._inner.body

    @property
    def large(self) -> Reference | None:
        """The reference to the body, when it is large."""
        return self._inner.large

    @property
    def size(self) -> int:
        """The size of the body in bytes; does not read a large body."""
        return self._inner.size

    @property
    def raw_body(self) -> bytes:
        """The body as it is stored, compressed or not."""
        return self._inner.raw_body

    @property
    def ts(self) -> int:
        """When it was due, in epoch ms."""
        return self._inner.ts

    @property
    def at(self) -> datetime:
        """When it was due, in UTC."""
        return self._inner.at

    @property
    def priority(self) -> int:
        """Its priority; a lower number is delivered first."""
        return self._inner.priority

    @property
    def attempts(self) -> int:
        """How many times the message was leased, including this lease."""
        return self._inner.attempts

    @property
    def version(self) -> int:
        """The lease's number: the fencing token to pass on to systems that check one."""
        return self._inner.version

    @property
    def headers(self) -> Mapping[str, str]:
        """The headers that the producer sent."""
        return self._inner.headers

    @property
    def expires_ms(self) -> int:
        """When the lease ends, in epoch ms of the broker's clock; 0 when it is lost."""
        return self._inner.expires_ms

    @property
    def expires(self) -> datetime:
        """When the lease ends, in UTC."""
        return self._inner.expires

    @property
    def expired(self) -> bool:
        """Whether the lease has ended by the broker's clock; another consumer may have the message then."""
        return self._inner.expired

    @property
    def settled(self) -> bool:
        """Whether the message was deleted or released, or its lease is known to be lost."""
        return self._inner.settled

    @property
    def wants_reply(self) -> bool:
        """Whether its producer waits for a reply."""
        return self._inner.wants_reply

    def parts(self) -> Iterator[bytes]:
        """The body in parts of at most 1 MiB, so that a large body is never in memory as a whole.

        Raises BODY_MISSING when the message is gone, and BODY_UNREADABLE, after the last part, when the body differs
        from the body that was sent.
        """
        return each(self._inner.parts(), self._portal)

    def read(self) -> bytes:
        """The whole body; a large body that is not here yet is fetched."""
        return self._portal.follow(self._inner.read())

    def delete(self, *, reply: bytes | None = None, headers: Mapping[str, str] | None = None) -> None:
        """Remove the message, because its work is done. Raises LEASE_LOST when the lease has ended.

        With `reply`, which may have headers, the same transaction answers the producer. When the message does not
        request a reply, it is only deleted.
        """
        self._portal.follow(self._inner.delete(reply=reply, headers=headers))

    def extend(self, seconds: float | timedelta) -> None:
        """Extend the lease to so many seconds from now. Raises LEASE_LOST when the lease has ended."""
        self._portal.run(self._inner.extend(seconds))

    def progress(self, text: str) -> None:
        """Report the progress of the work: the owner sees the last report as `progress` of the message from
        `client.get`.

        The broker keeps the report in memory while the lease lasts; it has at most 500 characters. Raises LEASE_LOST
        when the lease has ended.
        """
        self._portal.run(self._inner.progress(text))

    def release(self, *, at: At | None = None, delay: Delay | None = None) -> None:
        """Put the message back on the timeline, due at `at`, after `delay` seconds, or immediately.

        Raises LEASE_LOST when the lease has ended.
        """
        self._portal.run(self._inner.release(at=at, delay=delay))

    def reject(self, reason: str, *, error: BaseException | str | None = None) -> None:
        """Move the message to the dead-letter topic, because no further attempt can succeed.

        The dead letter keeps the text of `error`, and the end of its traceback, in its headers. Raises LEASE_LOST when
        the lease has ended.
        """
        self._portal.run(self._inner.reject(reason, error=error))


class Batch(Blocking[AsyncBatch]):
    """Messages that were due together, as columns; `batch[i]` and iteration give single leases."""

    __slots__ = ()

    def __len__(self) -> int:
        return len(self._inner)

    @property
    def held(self) -> Held:
        """The leased rows, for a transaction that settles them."""
        return self._inner.held

    def __iter__(self) -> Iterator[Lease]:
        return (Lease(item, self._portal) for item in self._inner.__iter__())

    def __getitem__(self, position: int) -> Lease:
        return Lease(self._inner.__getitem__(position), self._portal)

    @property
    def ids(self) -> list[str]:
        """The ids; they are computed at the first use."""
        return self._inner.ids

    @property
    def bodies(self) -> list[bytes]:
        """The bodies that the producers sent. Raises BODY_UNREADABLE when a compressed body cannot be decompressed."""
        return self._inner.bodies

    @property
    def ts(self) -> list[int]:
        """When each message was due, in epoch ms."""
        return self._inner.ts

    @property
    def at(self) -> list[datetime]:
        """When each message was due, in UTC."""
        return self._inner.at

    @property
    def attempts(self) -> list[int]:
        """How many times each message was leased, including this lease."""
        return self._inner.attempts

    @property
    def expires_ms(self) -> int:
        """When the first of the leases ends, in epoch ms of the broker's clock."""
        return self._inner.expires_ms

    def delete(self, positions: Sequence[int] | None = None, *, results: bool = False) -> Results:
        """Remove the messages, or those at the ascending `positions`: their work is done.

        Raises when any is refused, as a message whose lease has ended is with LEASE_LOST; the error lists all that
        were, as `failed`, and the others are done. With `results=True` it does not raise for a refused message, and the
        results say what happened to each.
        """
        return self._portal.run(self._inner.delete(positions, results=results))

    def extend(
        self, seconds: float | timedelta, positions: Sequence[int] | None = None, *, results: bool = False
    ) -> Results:
        """Extend the leases to so many seconds from now. Raises as `delete` does, unless `results=True`."""
        return self._portal.run(self._inner.extend(seconds, positions, results=results))

    def release(
        self,
        *,
        at: At | None = None,
        delay: Delay | None = None,
        positions: Sequence[int] | None = None,
        results: bool = False,
    ) -> Results:
        """Put messages back on the timeline, due at `at`, after `delay` seconds, or immediately.

        Raises when any is refused, as `delete` does, unless `results=True`.
        """
        return self._portal.run(self._inner.release(at=at, delay=delay, positions=positions, results=results))

    def reject(
        self,
        reason: str,
        positions: Sequence[int] | None = None,
        *,
        error: BaseException | str | None = None,
        results: bool = False,
    ) -> Results:
        """Move messages, with `error`, to the dead-letter topic: no attempt can succeed.

        Raises when any is refused, as `delete` does, unless `results=True`.
        """
        return self._portal.run(self._inner.reject(reason, positions, error=error, results=results))
