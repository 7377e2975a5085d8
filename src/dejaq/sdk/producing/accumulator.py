"""Gathers single sends into batches.

When no batch is in transit, the messages of this turn of the event loop leave immediately, so that a single send does
not wait. While a batch is in transit, messages are gathered for a short linger time or until the batch is full.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from dejaq.domain.ids import generated_ids
from dejaq.errors import Code, DejaqError, error_of
from dejaq.sdk.producing.outgoing import OutgoingColumns
from dejaq.sdk.producing.sender import PIPELINE_MAX, Sender

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
        self._shipping: set[asyncio.Task[None]] = set()
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
        loop = asyncio.get_running_loop()
        at_once = bool(self._full) or not self._shipping
        if self._timer is not None:
            if not at_once or not isinstance(self._timer, asyncio.TimerHandle):
                return
            self._timer.cancel()
        if at_once:
            self._timer = loop.call_soon(self._flush)
        elif len(self._shipping) < PIPELINE_MAX:
            self._timer = loop.call_later(self._linger, self._flush)

    def _flush(self) -> None:
        self._timer = None
        leaving, self._full = self._full, []
        leaving.extend(self._open.values())
        self._open.clear()
        for gathering in leaving:
            task = asyncio.ensure_future(self._ship(gathering))
            self._shipping.add(task)
            task.add_done_callback(self._shipped)

    def _shipped(self, task: asyncio.Task[None]) -> None:
        self._shipping.discard(task)
        if self._open or self._full:
            self._schedule()

    async def _ship(self, gathering: OpenBatch) -> None:
        outgoing = gathering.outgoing()
        waiters = gathering.waiters
        if outgoing.ids is None:
            order = outgoing.order()
            if order is not None:
                outgoing = outgoing.take(order)
                waiters = [waiters[row] for row in order]
        try:
            sent = await self._sender.create(outgoing, gathering.until)
        except DejaqError as error:
            for waiter in waiters:
                if not waiter.done():
                    waiter.set_exception(_copy(error))
            return
        except asyncio.CancelledError:
            for waiter in waiters:
                waiter.cancel()
            raise
        ids = outgoing.ids or generated_ids(sent.prefix, sent.first, sent.count)
        for row, (waiter, message_id) in enumerate(zip(waiters, ids, strict=True)):
            if waiter.done():
                continue
            code = sent.codes.get(row, Code.OK)
            if code.succeeded:
                waiter.set_result(message_id)
            else:
                waiter.set_exception(error_of(code, details=message_id if outgoing.ids else ""))

    async def drain(self) -> None:
        """Send the gathered messages and wait until all are answered."""
        while self._open or self._full or self._shipping:
            if self._open or self._full:
                if self._timer is not None:
                    self._timer.cancel()
                self._flush()
            await asyncio.wait(set(self._shipping))


def _copy(error: DejaqError) -> DejaqError:
    return type(error)(error.message, code=error.code, details=error.details, throttled_ms=error.throttled_ms)
