"""Changes of a producer to messages that it has sent: move, edit and cancel, by id or by filter."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from datetime import timedelta

from dejaq import limits
from dejaq.domain.message import Message
from dejaq.errors import Code, Conflict, DejaqError, error_of
from dejaq.protocol.v1 import carrier_pb2 as carrier
from dejaq.sdk.admin.scan import Found
from dejaq.sdk.bodies.large import TRIES
from dejaq.sdk.changing.bulk import BulkResult, OnProgress, Where
from dejaq.sdk.changing.changes import Changes, NewValues
from dejaq.sdk.producing.outgoing import (
    HeaderChange,
    OutgoingColumns,
    as_body,
    body_column,
    check_priority,
    encoded_header_change,
    id_column,
    refusals,
)
from dejaq.sdk.results import Results
from dejaq.sdk.session.broker_clock import BrokerClock
from dejaq.sdk.times import At, Delay, resolve, resolve_column

# The messages that match a filter, in portions.
Scan = Callable[[carrier.Filter], AsyncGenerator[Found, None]]
# Bodies as they are stored in messages with the given ids; the last argument counts the attempts.
Stored = Callable[[Sequence[str], Sequence[bytes], int], Awaitable[tuple[list[bytes], bool]]]
# Messages by id.
Lookup = Callable[[Sequence[str]], Awaitable[list[Message | None]]]

_NOTHING = "give what to change: body, at, delay, priority or headers"


class ByOwner:
    """The changes that one producer makes; the methods of `Producer` describe them."""

    def __init__(
        self, changes: Changes, *, scan: Scan, stored: Stored, lookup: Lookup, clock: BrokerClock, group: str
    ) -> None:
        self._changes = changes
        self._scan = scan
        self._stored = stored
        self._lookup = lookup
        self._clock = clock
        self._group = group

    async def move(
        self,
        ids: str | Sequence[str],
        *,
        at: At | Sequence[At] | None,
        delay: Delay | Sequence[Delay] | None,
        results: bool,
    ) -> Results:
        """Give messages another time."""
        if at is None and delay is None:
            raise error_of(Code.INVALID_ARGUMENT, "give the new time with `at` or `delay`")
        listed = _listed(ids)
        ts = resolve_column(at, delay, count=len(listed), now_us=self._clock.now_us())
        refused = refusals(OutgoingColumns(ts=ts, bodies=[b""] * len(ts)))
        rows = [row for row in range(len(ts)) if row not in refused]
        codes = await self._changes.edit(NewValues(ids=[listed[row] for row in rows], ts=[ts[row] for row in rows]))
        refused.update({rows[row]: code for row, code in codes.items()})
        return await self._results(listed, refused, raises=not results)

    async def edit(
        self,
        id: str,
        *,
        body: bytes | None,
        at: At | None,
        delay: Delay | None,
        priority: int | None,
        headers: HeaderChange | None,
        version: int | None,
    ) -> Code:
        """Change one message."""
        if priority is not None:
            check_priority(priority)
        ts = None if at is None and delay is None else resolve(at, delay, self._clock.now_us())
        if ts is not None and not 0 <= ts <= limits.TS_MS_MAX:
            raise error_of(Code.INVALID_TIME, details=f"{ts} ms")
        change = NewValues(
            ids=[id],
            ts=None if ts is None else [ts],
            priorities=None if priority is None else [priority],
            headers=None if headers is None else [encoded_header_change(headers)],
            versions=None if version is None else [version],
        )
        if body is None and change == NewValues(ids=[id], versions=change.versions):
            raise error_of(Code.INVALID_ARGUMENT, _NOTHING)
        codes = await self._edit(change, None if body is None else [as_body(body)])
        return (await self._results([id], codes, raises=True))[0]

    async def edit_batch(
        self,
        ids: Sequence[str],
        *,
        bodies: Sequence[bytes] | None = None,
        at: At | Sequence[At] | None = None,
        delay: Delay | Sequence[Delay] | None = None,
        priorities: Sequence[int] | None = None,
        headers: Sequence[HeaderChange] | None = None,
        versions: Sequence[int] | None = None,
        results: bool = True,
    ) -> Results:
        """Change many messages, as columns."""
        listed = _listed(list(ids))
        columns = (bodies, priorities, headers, versions)
        if any(column is not None and len(column) != len(listed) for column in columns):
            raise error_of(Code.INVALID_ARGUMENT, "every column must be as long as `ids`")
        if at is None and delay is None and bodies is None and priorities is None and headers is None:
            raise error_of(Code.INVALID_ARGUMENT, "give what to change: bodies, at, delay, priorities or headers")
        for priority in priorities or ():
            check_priority(priority)
        timed = at is not None or delay is not None
        change = NewValues(
            ids=listed,
            ts=resolve_column(at, delay, count=len(listed), now_us=self._clock.now_us()) if timed else None,
            priorities=priorities,
            headers=None if headers is None else [encoded_header_change(one) for one in headers],
            versions=versions,
        )
        codes = await self._edit(change, None if bodies is None else body_column(bodies))
        return await self._results(listed, codes, raises=not results)

    async def _edit(self, change: NewValues, bodies: Sequence[bytes] | None) -> dict[int, Code]:
        """Make a change with bodies as the user gave them; repeat it for large bodies that the broker removed
        meanwhile.
        """
        if bodies is None:
            return await self._changes.edit(change)
        rows: Sequence[int] = range(len(change.ids))
        codes: dict[int, Code] = {}
        for attempt in range(TRIES):
            ids = [change.ids[row] for row in rows]
            stored, large = await self._stored(ids, [bodies[row] for row in rows], attempt)
            part = replace(change.of(rows), bodies=stored, large=large)
            found = await self._changes.edit(part)
            codes.update({rows[place]: code for place, code in found.items()})
            missing = [row for row, code in codes.items() if code is Code.BODY_MISSING]
            if not missing or attempt == TRIES - 1:
                return codes
            codes = {row: code for row, code in codes.items() if row not in missing}
            rows = sorted(missing)
        return codes

    async def cancel(
        self, ids: str | Sequence[str], *, versions: int | Sequence[int] | None = None, results: bool = True
    ) -> Results:
        """Remove messages."""
        listed = _listed(ids)
        seen = [versions] if isinstance(versions, int) else versions
        if seen is not None and len(seen) != len(listed):
            raise error_of(Code.INVALID_ARGUMENT, f"{len(seen)} versions for {len(listed)} ids")
        return await self._results(listed, await self._changes.cancel(listed, seen), raises=not results)

    async def _results(self, ids: Sequence[str], codes: Mapping[int, Code], *, raises: bool) -> Results:
        results = Results(len(ids), codes, ids)
        if raises:
            try:
                results.raise_for_failures()
            except Conflict as refused:
                if refused.code is Code.NOT_OWNER:
                    refused.message += await self._owner_of(next(iter(refused.failed)))
                raise
        return results

    async def _owner_of(self, message_id: str) -> str:
        """The hint that another group owns the message; empty when the message cannot be read now."""
        try:
            (message,) = await self._lookup([message_id])
        except DejaqError:
            return ""
        if message is None:
            return ""
        return f" {message_id} belongs to group {message.producer_group!r}, and this producer to {self._group!r}."

    async def edit_where(
        self,
        where: Where,
        *,
        body: bytes | None = None,
        at: At | None = None,
        delay: Delay | None = None,
        priority: int | None = None,
        headers: HeaderChange | None = None,
        everything: bool,
        progress: OnProgress | None,
    ) -> BulkResult:
        """Change every message that matches."""
        timed = at is not None or delay is not None
        if not timed and body is None and priority is None and headers is None:
            raise error_of(Code.INVALID_ARGUMENT, _NOTHING)
        # Computed once, so that all messages become due at the same time.
        ts = resolve(at, delay, self._clock.now_us()) if timed else None

        async def change(found: Found) -> Results:
            count = len(found.ids)
            return await self.edit_batch(
                found.ids,
                bodies=None if body is None else [body] * count,
                at=ts,
                priorities=None if priority is None else [priority] * count,
                headers=None if headers is None else [headers] * count,
                versions=found.versions,
            )

        return await self._each(where, change, everything=everything, progress=progress)

    async def move_where(
        self,
        where: Where,
        *,
        at: At | None,
        delay: Delay | None,
        shift: float | timedelta | None,
        everything: bool,
        progress: OnProgress | None,
    ) -> BulkResult:
        """Give every message that matches another time, or shift each."""
        if shift is None:
            if at is None and delay is None:
                raise error_of(Code.INVALID_ARGUMENT, "give the new time with `at`, `delay` or `shift`")
            return await self.edit_where(where, at=at, delay=delay, everything=everything, progress=progress)
        if at is not None or delay is not None:
            raise error_of(Code.INVALID_ARGUMENT, "give one of `at`, `delay` and `shift`")
        seconds = shift.total_seconds() if isinstance(shift, timedelta) else shift
        by_ms = round(seconds * 1_000)

        async def change(found: Found) -> Results:
            times = [min(max(ts + by_ms, 0), limits.TS_MS_MAX) for ts in found.ts]
            return await self.edit_batch(found.ids, at=times, versions=found.versions)

        return await self._each(where, change, everything=everything, progress=progress)

    async def cancel_where(self, where: Where, *, everything: bool, progress: OnProgress | None) -> BulkResult:
        """Remove every message that matches."""

        async def change(found: Found) -> Results:
            return await self.cancel(found.ids, versions=found.versions)

        return await self._each(where, change, everything=everything, progress=progress)

    async def _each(
        self,
        where: Where,
        change: Callable[[Found], Awaitable[Results]],
        *,
        everything: bool,
        progress: OnProgress | None,
    ) -> BulkResult:
        if where.is_empty and not everything:
            raise error_of(
                Code.INVALID_ARGUMENT,
                f"an empty filter matches every message of group {self._group!r}; pass everything=True to allow it",
            )
        result = BulkResult()
        # Closed here when a change fails, so that the snapshot is closed while the client still works.
        async with aclosing(self._scan(where.filter(self._group))) as pages:
            async for found in pages:
                outcomes = await change(found)
                result.add(found.ids, outcomes.failed)
                if progress is not None:
                    progress(result.matched, None)
        return result


def _listed(ids: str | Sequence[str]) -> list[str]:
    return [ids] if isinstance(ids, str) else id_column(ids, len(ids))
