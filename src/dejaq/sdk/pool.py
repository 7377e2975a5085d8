"""Transactions that share a call: those that are committed while others are under way leave together.

Each is done or refused by itself. What they share is the way there and back, which costs more than the work, and the
broker's commit.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from dejaq import limits
from dejaq.protocol.status import error_from_proto
from dejaq.protocol.transport import Transport
from dejaq.protocol.v1 import carrier_pb2 as carrier

# Two, so that the broker has the next one at hand when it has answered.
CALLS_MAX = 2


@dataclass(frozen=True, slots=True)
class _Waiting:
    request: carrier.TransactRequest
    size: int
    timeout: float
    answer: asyncio.Future[carrier.TransactResponse]


class Pool:
    """Carries the transactions of one client to one broker."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._waiting: list[_Waiting] = []
        self._carriers: set[asyncio.Task[None]] = set()
        self._under_way = 0

    async def call(self, request: carrier.TransactRequest, timeout: float) -> carrier.TransactResponse:
        """Have a named transaction done; raises what a call of its own would raise."""
        if not self._under_way:
            return await self._alone(request, timeout)
        answer: asyncio.Future[carrier.TransactResponse] = asyncio.get_running_loop().create_future()
        self._waiting.append(_Waiting(request, request.ByteSize(), timeout, answer))
        if len(self._carriers) < CALLS_MAX:
            task = asyncio.create_task(self._carry())
            self._carriers.add(task)
            task.add_done_callback(self._carriers.discard)
        found = await answer
        if found.HasField("error"):
            raise error_from_proto(found.error)
        return await self._alone(request, timeout) if found.alone else found

    async def _alone(self, request: carrier.TransactRequest, timeout: float) -> carrier.TransactResponse:
        self._under_way += 1
        try:
            return await self._transport.call("Carrier.Transact", request, carrier.TransactResponse, timeout)
        finally:
            self._under_way -= 1

    async def _carry(self) -> None:
        """Send what waits, again and again until nothing does."""
        self._under_way += 1
        try:
            while some := self._next():
                await self._send(some)
        finally:
            self._under_way -= 1

    async def _send(self, some: list[_Waiting]) -> None:
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

    def _next(self) -> list[_Waiting]:
        """The next ones that fit into one call; whoever has given up is left out."""
        waiting = [one for one in self._waiting if not one.answer.done()]
        size = count = 0
        for one in waiting[: limits.TRANSACTIONS_PER_CALL_MAX]:
            size += one.size
            if count and size > limits.BATCH_BYTES_MAX:
                break
            count += 1
        self._waiting = waiting[count:]
        return waiting[:count]
