"""Gathers single sends into batches.

When no batch is in transit, the messages of this turn of the event loop leave immediately, so that a single send does
not wait. While a batch is in transit, messages are gathered for a short linger time or until the batch is full.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from dejaq.errors import Code, DejaqError, error_of
from dejaq.sdk.gathering import copy_of
from dejaq.sdk.producing.outgoing import OutgoingColumns
from dejaq.sdk.producing.sender import PIPELINE_MAX, Sender, Sent

BATCH_COUNT = 1_000
BATCH_BYTES = 1024 * 1024
LINGER_SECONDS = 0.001


class OpenBatch:
    """A batch that is still open, and the futures of the callers that wait for each of its rows."""

    __slots__ = ("bodies", "headers", "ids", "priorities", "relative", "size", "ts", "until", "waiters")

    def __init__(self, until: float) -> None:
        self.until = until
        self.ts: list[int] = []
        self.bodies: list[bytes] = []
        self.ids: dict[str, None] = {}
        self.priorities: list[int] = []
        self.headers: list[bytes] = []
        self.relative: list[bool] = []
        self.waiters: list[asyncio.Future[str]] = []
        self.size = 0

    def answer(self, sent: Sent, ids: list[str] | None) -> None:
        """Give every caller its id, or the refusal of its message."""
        codes = sent.codes
        for row, (waiter, message_id) in enumerate(zip(self.waiters, ids or sent.generated(), strict=True)):
            if waiter.done():
                continue
            code = codes.get(row, Code.OK) if codes else Code.OK
            if code.succeeded:
                waiter.set_result(message_id)
            else:
                waiter.set_exception(error_of(code, details=message_id if ids else ""))

    def refuse(self, error: Exception) -> None:
        """Give every caller the error."""
        for waiter in self.waiters:
            if not waiter.done():
                waiter.set_exception(copy_of(error) if isinstance(error, DejaqError) else error)

    @property
    def full(self) -> bool:
        """Whether the batch should leave without waiting for more rows."""
        return len(self.ts) >= BATCH_COUNT or self.size >= BATCH_BYTES

    def outgoing(self) -> OutgoingColumns:
        """The columns of the batch."""
        return OutgoingColumns(
            ts=self.ts,
            bodies=self.bodies,
            ids=list(self.ids) if self.ids else None,
            priorities=self.priorities if any(self.priorities) else None,
            headers=self.headers if any(self.headers) else None,
            relative=self.relative if any(self.relative) else None,
        )


class Accumulator:
    """Gathers rows with natural ids and rows with generated ids separately, and sends each open batch as one."""

    def __init__(self, sender: Sender, *, until: Callable[[], float], linger: float = LINGER_SECONDS) -> None:
        self._sender = sender
        self._until = until
        self._linger = linger
        # One open batch for each kind: False for generated ids, True for natural ids.
        self._open: dict[bool, OpenBatch] = {}
        self._full: list[OpenBatch] = []
        self._in_transit: set[OpenBatch] = set()
        self._changed = asyncio.Event()
        self._timer: asyncio.Handle | None = None

    def add(
        self, body: bytes, *, ts: int, id: str | None, priority: int, headers: bytes, relative: bool = False
    ) -> asyncio.Future[str]:
        """Add one message; the future gets its id, or its error. With `relative` its time was not given as `at`."""
        natural = id is not None
        gathering = self._open.get(natural)
        if gathering is not None and natural and id in gathering.ids:
            # Two sends of one id are two requests, not a duplicate within one request.
            self._full.append(self._open.pop(natural))
            gathering = None
        if gathering is None:
            gathering = self._open[natural] = OpenBatch(self._until())
        waiter: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        gathering.ts.append(ts)
        gathering.bodies.append(body)
        gathering.priorities.append(priority)
        gathering.headers.append(headers)
        gathering.waiters.append(waiter)
        gathering.size += len(body) + len(headers)
        if id is not None:
            gathering.ids[id] = None
            gathering.relative.append(relative)
        if gathering.full:
            self._full.append(self._open.pop(natural))
        self._schedule()
        return waiter

    def _schedule(self) -> None:
        if len(self._in_transit) >= PIPELINE_MAX:
            # What is here leaves with the next answer.
            return
        at_once = bool(self._full) or not self._in_transit
        if self._timer is not None:
            if not at_once or not isinstance(self._timer, asyncio.TimerHandle):
                return
            self._timer.cancel()
        loop = asyncio.get_running_loop()
        self._timer = loop.call_soon(self._flush) if at_once else loop.call_later(self._linger, self._flush)

    def _flush(self) -> None:
        self._timer = None
        leaving, self._full = self._full, []
        leaving.extend(self._open.values())
        self._open.clear()
        for batch in leaving:
            self._send(batch)

    def _send(self, batch: OpenBatch) -> None:
        outgoing = batch.outgoing()
        if outgoing.ids is None:
            order = outgoing.order()
            if order is not None:
                outgoing = outgoing.take(order)
                batch.waiters = [batch.waiters[row] for row in order]

        def answered(sent: Sent | Exception) -> None:
            if isinstance(sent, Exception):
                batch.refuse(sent)
            else:
                batch.answer(sent, outgoing.ids)
            self._in_transit.discard(batch)
            self._changed.set()
            if self._open or self._full:
                self._schedule()

        self._in_transit.add(batch)
        try:
            self._sender.begin(outgoing, batch.until, answered)
        except Exception as error:  # noqa: BLE001  its callers get it
            answered(error)

    async def drain(self) -> None:
        """Send the gathered messages and wait until all that were added before are answered."""
        waiting = {*self._in_transit, *self._full, *self._open.values()}
        if self._timer is not None:
            self._timer.cancel()
        self._flush()
        while waiting := waiting & self._in_transit:
            self._changed.clear()
            await self._changed.wait()
