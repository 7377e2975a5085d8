"""Transactions that wait for a shared call are always sent."""

from __future__ import annotations

import asyncio
from typing import Any

from dejaq.protocol.v1 import carrier_pb2 as carrier
from dejaq.sdk.changing.pool import Pool


class HeldTransport:
    """Answers each call when the test lets it."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, asyncio.Future[Any]]] = []

    async def call(self, method: str, request: Any, response: type[Any], timeout: float) -> Any:
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.calls.append((request, answer))
        return await answer

    def answer(self, number: int) -> None:
        request, answer = self.calls[number]
        if isinstance(request, carrier.TransactManyRequest):
            found = [carrier.TransactResponse() for _ in request.transactions]
            answer.set_result(carrier.TransactManyResponse(answers=found))
        else:
            answer.set_result(carrier.TransactResponse())


async def test_a_transaction_that_comes_when_the_last_shared_calls_have_just_ended_is_sent() -> None:
    """L11: it waited without end when another call was running and both carriers had just looked for more."""
    transport = HeldTransport()
    pool = Pool(transport)  # type: ignore[arg-type]

    async def call(times: int) -> None:
        for _ in range(times):
            await pool.call(carrier.TransactRequest(), 10.0)

    async def until(count: int) -> None:
        for _ in range(100):
            if len(transport.calls) >= count:
                return
            await asyncio.sleep(0)
        raise AssertionError(f"{len(transport.calls)} calls came, and not {count}")

    alone = asyncio.create_task(call(1))
    await until(1)
    again = asyncio.create_task(call(2))
    await until(2)
    once = asyncio.create_task(call(1))
    await until(3)
    transport.answer(1)
    transport.answer(2)
    await until(4)
    transport.answer(3)
    transport.answer(0)
    await asyncio.gather(alone, again, once)
