"""Sends waiting transactions in a shared call: while calls are running, new transactions wait and leave together.

Each transaction succeeds or is refused by itself. The transactions share only the round trip, which costs more than the
work itself, and the broker's commit.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from dejaq import limits
from dejaq.protocol.status import error_from_proto
from dejaq.protocol.transport import Transport
from dejaq.protocol.v1 import carrier_pb2 as carrier

# Two, so that the broker can start with the next call as soon as it has answered one.
CALLS_MAX = 2


@dataclass(frozen=True, slots=True)
class _WaitingTransaction:
    request: carrier.TransactRequest
    size: int
    timeout: float
    answer: asyncio.Future[carrier.TransactResponse]


class Pool:
    """Sends the transactions of one client to one broker."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._waiting: list[_WaitingTransaction] = []
        self._carriers: set[asyncio.Task[None]] = set()
        # Calls that run, and carriers that will look again at what waits: one that has looked for the last time is not
        # counted, although its task is not done yet.
        self._running = self._carrying = 0

    async def call(self, request: carrier.TransactRequest, timeout: float) -> carrier.TransactResponse:
        """Commit a named transaction; raises the same errors as a call that carries only this transaction."""
        if not self._running:
            return await self._alone(request, timeout)
        answer: asyncio.Future[carrier.TransactResponse] = asyncio.get_running_loop().create_future()
        self._waiting.append(_WaitingTransaction(request, request.ByteSize(), timeout, answer))
        if self._carrying < CALLS_MAX:
            self._carrying += 1
            task = asyncio.create_task(self._carry())
            self._carriers.add(task)
            task.add_done_callback(self._carriers.discard)
        found = await answer
        if found.HasField("error"):
            raise error_from_proto(found.error)
        return await self._alone(request, timeout) if found.alone else found

    async def _alone(self, request: carrier.TransactRequest, timeout: float) -> carrier.TransactResponse:
        self._running += 1
        try:
            return await self._transport.call("Carrier.Transact", request, carrier.TransactResponse, timeout)
        finally:
            self._running -= 1

    async def _carry(self) -> None:
        """Send the waiting transactions until none is left."""
        self._running += 1
        try:
            while some := self._next():
                await self._send(some)
        finally:
            self._running -= 1
            self._carrying -= 1

    async def _send(self, some: list[_WaitingTransaction]) -> None:
        request = carrier.TransactManyRequest(transactions=[one.request for one in some])
        timeout = min(one.timeout for one in some)
        try:
            found = await self._transport.call("Carrier.TransactMany", request, carrier.TransactManyResponse, timeout)
            answers = list(zip(some, found.answers, strict=True))
        except Exception as error:  # noqa: BLE001 - whatever it is, those who wait for it must learn of it
            for one in some:
                if not one.answer.done():
                    one.answer.set_exception(error)
            return
        for one, answer in answers:
            if not one.answer.done():
                one.answer.set_result(answer)

    def _next(self) -> list[_WaitingTransaction]:
        """The next transactions that fit into one call; those whose caller has stopped waiting are left out."""
        waiting = [one for one in self._waiting if not one.answer.done()]
        size = count = 0
        for one in waiting[: limits.TRANSACTIONS_PER_CALL_MAX]:
            size += one.size
            if count and size > limits.BATCH_BYTES_MAX:
                break
            count += 1
        self._waiting = waiting[count:]
        return waiting[:count]
