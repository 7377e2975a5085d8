"""A leased message, and a batch of leased messages, as user code sees them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TypeVar

from dejaq import limits
from dejaq.domain.bodies.large import PART_BYTES, Reference, reference_of, size_of
from dejaq.domain.bodies.packing import opened, opened_column
from dejaq.domain.dead_letter import Cause
from dejaq.domain.headers import decode_headers
from dejaq.errors import Code, DejaqError, error_of
from dejaq.protocol.v1 import carrier_pb2 as carrier
from dejaq.sdk.admin.replies import REPLY_TO, delete_with_reply
from dejaq.sdk.consuming.grant import DeliveryPart
from dejaq.sdk.consuming.settler import DELETE, SettledRow, Settlement, Settler
from dejaq.sdk.results import Results
from dejaq.sdk.session.broker_clock import BrokerClock
from dejaq.sdk.times import At, Delay, lease_ms, resolve, to_datetime

Item = TypeVar("Item")


@dataclass(frozen=True, slots=True)
class Held:
    """Leased rows and the settler that settles them."""

    settler: Settler
    portions: Sequence[DeliveryPart]


_SETTLED_BEFORE = (
    "this consumer has settled the message already: it was deleted, released or rejected; settle it only once"
)


class Lease:
    """One message that only this consumer has until `expires`. Settle it: delete it, or release it to a later time."""

    __slots__ = ("__weakref__", "_body", "_clock", "_delivery", "_handed_us", "_index", "_settler")

    def __init__(self, portion: DeliveryPart, index: int, settler: Settler, clock: BrokerClock) -> None:
        self._body: bytes | DejaqError | None = portion.fetched.get(index) if portion.fetched else None
        self._delivery = portion.delivery
        self._handed_us = portion.handed_us
        self._index = index
        self._settler = settler
        self._clock = clock
        self._delivery.grant.viewed(self)

    def _detach(self) -> None:
        """Keep a copy of the message, and nothing of those that came with it."""
        if len(self._delivery.columns) > 1:
            self._delivery, self._index = self._delivery.only(self._index), 0

    def _adopt(self, other: Lease) -> None:
        """Become another view of the same message."""
        self._body = other._body
        self._delivery = other._delivery
        self._handed_us = other._handed_us
        self._index = other._index
        self._settler = other._settler
        self._clock = other._clock
        self._delivery.grant.viewed(self)

    @property
    def topic(self) -> str:
        """The topic of the message."""
        return self._settler.topic

    @property
    def held(self) -> Held:
        """The leased row, for a transaction that settles it."""
        return Held(self._settler, [DeliveryPart(self._delivery, [self._index], self._handed_us)])

    @property
    def id(self) -> str:
        """The message's id."""
        return self._delivery.id_at(self._index)

    @property
    def body(self) -> bytes:
        """The body that the producer sent.

        Raises BODY_UNREADABLE when it cannot be decompressed, or when it is large and was not fetched.
        """
        if self._body is None:
            self._body = opened(self.raw_body)
        elif isinstance(self._body, DejaqError):
            raise self._body
        return self._body

    @property
    def large(self) -> Reference | None:
        """The reference to the body, when it is large."""
        return reference_of(self.raw_body)

    @property
    def size(self) -> int:
        """The size of the body in bytes; does not read a large body."""
        reference = self.large
        return len(self.body) if reference is None else reference.size

    @property
    def raw_body(self) -> bytes:
        """The body as it is stored, compressed or not."""
        return self._delivery.columns.bodies[self._index]

    @property
    def ts(self) -> int:
        """When it was due, in epoch ms."""
        return self._delivery.columns.ts[self._index]

    @property
    def at(self) -> datetime:
        """When it was due, in UTC."""
        return to_datetime(self.ts)

    @property
    def priority(self) -> int:
        """Its priority; a lower number is delivered first."""
        column = self._delivery.columns.priorities
        return 0 if column is None else column[self._index]

    @property
    def attempts(self) -> int:
        """How many times the message was leased, including this lease."""
        column = self._delivery.columns.attempts
        return 1 if column is None else column[self._index]

    @property
    def version(self) -> int:
        """The lease's number: the fencing token to pass on to systems that check one."""
        return self._delivery.grant.id

    @property
    def headers(self) -> Mapping[str, str]:
        """The headers that the producer sent."""
        column = self._delivery.columns.headers
        return {} if column is None else decode_headers(column[self._index])

    @property
    def expires_ms(self) -> int:
        """When the lease ends, in epoch ms of the broker's clock; 0 when it is lost."""
        return self._delivery.grant.end_of(self._delivery.row_at(self._index))

    @property
    def expires(self) -> datetime:
        """When the lease ends, in UTC."""
        return to_datetime(self.expires_ms)

    @property
    def expired(self) -> bool:
        """Whether the lease has ended by the broker's clock; another consumer may have the message then."""
        return self.expires_ms <= self._clock.now_ms()

    @property
    def settled(self) -> bool:
        """Whether the message was deleted or released, or its lease is known to be lost."""
        return self._delivery.row_at(self._index) not in self._delivery.grant.unsettled

    @property
    def wants_reply(self) -> bool:
        """Whether its producer waits for a reply."""
        return REPLY_TO in self.headers

    def __repr__(self) -> str:
        return f"<Lease {self.id} of {self.at.isoformat()}, {size_of(self.raw_body)} bytes>"

    async def parts(self) -> AsyncIterator[bytes]:
        """The body in parts of at most 1 MiB, so that a large body is never in memory as a whole.

        Raises BODY_MISSING when the message is gone, and BODY_UNREADABLE, after the last part, when the body differs
        from the body that was sent.
        """
        reference = self.large
        if reference is not None and not isinstance(self._body, bytes):
            async for part in self._settler.bodies.parts(self.topic, self.id, reference):
                yield part
            return
        for start in range(0, len(self.body), PART_BYTES):
            yield self.body[start : start + PART_BYTES]

    async def read(self) -> bytes:
        """The whole body; a large body that is not here yet is fetched."""
        if self.large is not None and not isinstance(self._body, bytes):
            self._body = b"".join([part async for part in self.parts()])
        return self.body

    async def delete(self, *, reply: bytes | None = None, headers: Mapping[str, str] | None = None) -> None:
        """Remove the message, because its work is done. Raises LEASE_LOST when the lease has ended.

        With `reply`, which may have headers, the same transaction answers the producer. When the message does not
        request a reply, it is only deleted.
        """
        if reply is None or not self.wants_reply:
            await self._settle(DELETE)
            return
        more = {"headers": headers} if headers else {}
        await delete_with_reply(self._settler.transactor, self, self.headers, self.id, reply, **more)

    async def extend(self, seconds: float | timedelta) -> None:
        """Extend the lease to so many seconds from now. Raises LEASE_LOST when the lease has ended."""
        await self._settle(Settlement(carrier.EXTEND, lease_ms=lease_ms(seconds)))

    async def progress(self, text: str) -> None:
        """Report the progress of the work: the owner sees the last report as `progress` of the message from
        `client.get`.

        The broker keeps the report in memory while the lease lasts; it has at most 500 characters. Raises LEASE_LOST
        when the lease has ended.
        """
        if len(text) > limits.PROGRESS_CHARS_MAX:
            most = limits.PROGRESS_CHARS_MAX
            raise error_of(Code.INVALID_ARGUMENT, f"a progress report has at most {most} characters, not {len(text)}")
        if self.settled:
            raise error_of(Code.LEASE_LOST, _SETTLED_BEFORE if self._settled_here() else "", details=self.id)
        await self._settler.report(self._delivery.grant.id, self.id, text)

    async def release(self, *, at: At | None = None, delay: Delay | None = None) -> None:
        """Put the message back on the timeline, due at `at`, after `delay` seconds, or immediately.

        Raises LEASE_LOST when the lease has ended.
        """
        ts = resolve(at, delay, self._clock.now_us())
        await self._settle(Settlement(carrier.RELEASE, ts=_checked(ts)))

    async def reject(self, reason: str, *, error: BaseException | str | None = None) -> None:
        """Move the message to the dead-letter topic, because no further attempt can succeed.

        The dead letter keeps the text of `error`, and the end of its traceback, in its headers. Raises LEASE_LOST when
        the lease has ended.
        """
        await self._settle(Settlement(carrier.REJECT, cause=Cause.of(reason, error)))

    async def _settle(self, settlement: Settlement) -> None:
        settled_before = self._settled_here()
        row = SettledRow(self._delivery, self._index, self._handed_us)
        code = await self._settler.settle_row(row, settlement)
        if not code.succeeded:
            raise error_of(code, _SETTLED_BEFORE if settled_before else "", details=self.id)

    def _settled_here(self) -> bool:
        return self._delivery.grant.settled_here(self._delivery.row_at(self._index))


class Batch:
    """Messages that were due together, as columns; `batch[i]` and iteration give single leases."""

    __slots__ = ("_clock", "_portions", "_settler")

    def __init__(self, portions: list[DeliveryPart], settler: Settler, clock: BrokerClock) -> None:
        self._portions = portions
        self._settler = settler
        self._clock = clock

    def __len__(self) -> int:
        return sum(map(len, self._portions))

    @property
    def held(self) -> Held:
        """The leased rows, for a transaction that settles them."""
        return Held(self._settler, self._portions)

    def __iter__(self) -> Iterator[Lease]:
        for portion in self._portions:
            for place in portion.index:
                yield Lease(portion, place, self._settler, self._clock)

    def __getitem__(self, position: int) -> Lease:
        portion, place = self._find(position)
        return Lease(portion, place, self._settler, self._clock)

    def _find(self, position: int) -> tuple[DeliveryPart, int]:
        left = position if position >= 0 else position + len(self)
        for portion in self._portions:
            if 0 <= left < len(portion):
                return portion, portion.index[left]
            left -= len(portion)
        raise IndexError(position)

    @property
    def ids(self) -> list[str]:
        """The ids; they are computed at the first use."""
        return [message_id for p in self._portions for message_id in _cut(p.delivery.ids(), p.index)]

    @property
    def bodies(self) -> list[bytes]:
        """The bodies that the producers sent. Raises BODY_UNREADABLE when a compressed body cannot be decompressed."""
        return [body for portion in self._portions for body in _bodies(portion)]

    @property
    def ts(self) -> list[int]:
        """When each message was due, in epoch ms."""
        return [ts for p in self._portions for ts in _cut(p.delivery.columns.ts, p.index)]

    @property
    def at(self) -> list[datetime]:
        """When each message was due, in UTC."""
        return list(map(to_datetime, self.ts))

    @property
    def attempts(self) -> list[int]:
        """How many times each message was leased, including this lease."""
        counts: list[int] = []
        for portion in self._portions:
            column = portion.delivery.columns.attempts
            counts.extend([1] * len(portion) if column is None else _cut(column, portion.index))
        return counts

    @property
    def expires_ms(self) -> int:
        """When the first of the leases ends, in epoch ms of the broker's clock."""
        return min(portion.grant.first_end(portion.rows()) for portion in self._portions)

    async def delete(self, positions: Sequence[int] | None = None, *, results: bool = False) -> Results:
        """Remove the messages, or those at the ascending `positions`: their work is done.

        Raises when any is refused, as a message whose lease has ended is with LEASE_LOST; the error lists all that
        were, as `failed`, and the others are done. With `results=True` it does not raise for a refused message, and the
        results say what happened to each.
        """
        return await self._settle(DELETE, positions, raises=not results)

    async def extend(
        self, seconds: float | timedelta, positions: Sequence[int] | None = None, *, results: bool = False
    ) -> Results:
        """Extend the leases to so many seconds from now. Raises as `delete` does, unless `results=True`."""
        settlement = Settlement(carrier.EXTEND, lease_ms=lease_ms(seconds))
        return await self._settle(settlement, positions, raises=not results)

    async def release(
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
        ts = resolve(at, delay, self._clock.now_us())
        return await self._settle(Settlement(carrier.RELEASE, ts=_checked(ts)), positions, raises=not results)

    async def reject(
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
        settlement = Settlement(carrier.REJECT, cause=Cause.of(reason, error))
        return await self._settle(settlement, positions, raises=not results)

    async def _settle(self, settlement: Settlement, positions: Sequence[int] | None, *, raises: bool) -> Results:
        chosen = self if positions is None else self._subset(positions)
        codes = await self._settler.settle(chosen._portions, settlement)
        settled = Results(len(chosen), codes, lambda: chosen.ids)
        if raises:
            settled.raise_for_failures()
        return settled

    def _subset(self, positions: Sequence[int]) -> Batch:
        wanted = sorted(set(positions))
        if wanted and not 0 <= wanted[0] <= wanted[-1] < len(self):
            raise IndexError(f"positions {wanted[0]} to {wanted[-1]} in a batch of {len(self)}")
        kept: list[DeliveryPart] = []
        start = 0
        for portion in self._portions:
            end = start + len(portion)
            chosen = [portion.index[p - start] for p in wanted if start <= p < end]
            if chosen:
                kept.append(DeliveryPart(portion.delivery, chosen, portion.handed_us, portion.fetched))
            start = end
        return Batch(kept, self._settler, self._clock)

    def __repr__(self) -> str:
        return f"<Batch of {len(self)} leases>"


def _bodies(portion: DeliveryPart) -> Sequence[bytes]:
    if not portion.fetched:
        return opened_column(_cut(portion.delivery.columns.bodies, portion.index))
    bodies: list[bytes] = []
    for place in portion.index:
        body = portion.fetched.get(place)
        if isinstance(body, DejaqError):
            raise body
        bodies.append(opened(portion.delivery.columns.bodies[place]) if body is None else body)
    return bodies


def _cut(column: Sequence[Item], index: Sequence[int]) -> Sequence[Item]:
    if isinstance(index, range):
        return column[index.start : index.stop]
    return [column[place] for place in index]


def _checked(ts: int) -> int:
    if not 0 <= ts <= limits.TS_MS_MAX:
        raise error_of(Code.INVALID_TIME, details=f"{ts} ms")
    return ts
