"""A client process: creates its client, reports that it is ready, and runs one order at the start signal."""

from __future__ import annotations

import asyncio
import os
import time
import traceback
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager
from multiprocessing.connection import Connection
from multiprocessing.sharedctypes import Synchronized

from bench.harness.by_id import change_by_id
from bench.harness.orders import (
    ChangeById,
    Consume,
    Done,
    Mutate,
    OneByOne,
    Order,
    Produce,
    SendLoop,
    SingleSends,
)
from bench.harness.payload import Batch, Load, stamped
from bench.harness.single_sends import send_singly
from bench.harness.tally import Tally
from bench.systems.base import Changer, Client
from bench.systems.catalog import CHANGERS, SENDERS, system_named

POLL_SECONDS = 0.02
# The orders that are done with the client of the system.
ClientOrder = Produce | Consume | OneByOne | SendLoop | Mutate


def run_worker(system: str, address: str, order: Order, pipe: Connection, delivered: Synchronized[int]) -> None:
    """The whole work of the process: sends `ready`, waits for the start signal, sends Done or a traceback."""
    try:
        if isinstance(order, SingleSends):
            done = asyncio.run(send_singly(SENDERS[system](address), order, lambda: _wait_for_go(pipe)))
        elif isinstance(order, ChangeById):
            done = asyncio.run(change_by_id(CHANGERS[system](address), order, lambda: _wait_for_go(pipe)))
        else:
            done = asyncio.run(_do(system_named(system).client(address), order, pipe, delivered))
        pipe.send(done)
    except BaseException:  # noqa: BLE001 - the parent shows it; this process ends with it
        pipe.send(traceback.format_exc())


async def _do(client: Client, order: ClientOrder, pipe: Connection, delivered: Synchronized[int]) -> Done:
    if isinstance(order, Consume):
        return await _consume(client, order, pipe, delivered)
    await client.open(produces=True)
    try:
        if isinstance(order, Produce):
            return await _produce(client, order, pipe)
        if isinstance(order, OneByOne):
            return await _one_by_one(client, order, pipe, delivered)
        if isinstance(order, SendLoop):
            return await _send_loop(client, order, pipe)
        return await _mutate(client, order, pipe)
    finally:
        await client.close()


def _wait_for_go(pipe: Connection) -> int:
    pipe.send("ready")
    pipe.recv()
    return time.time_ns()


async def _produce(client: Client, order: Produce, pipe: Connection) -> Done:
    batches: Iterable[Batch] = order.load.batches()
    if order.ready:
        batches = list(batches)
    start_ns = _wait_for_go(pipe)
    if order.seconds_max is not None:
        batches = _until(batches, start_ns + int(order.seconds_max * 1e9))
    count = await client.create(batches)
    return Done(count=count, start_ns=start_ns, end_ns=time.time_ns())


def _until(batches: Iterable[Batch], end_ns: int) -> Iterator[Batch]:
    for batch in batches:
        if time.time_ns() > end_ns:
            return
        yield batch


async def _consume(client: Client, order: Consume, pipe: Connection, delivered: Synchronized[int]) -> Done:
    if order.opened:
        await client.open(produces=False)
    start_ns = _wait_for_go(pipe)
    if not order.opened:
        await client.open(produces=False)
    tally = Tally(
        delivered=delivered,
        target=order.target,
        deadline_ns=start_ns + int(order.seconds_max * 1e9),
        timed=order.timed,
    )
    try:
        async with _stopped_when_done(tally):
            await client.consume(tally)
    finally:
        await client.close()
    return Done(
        count=tally.count,
        start_ns=start_ns,
        end_ns=tally.last_ns or start_ns,
        first_ns=tally.first_ns,
        late_us=tally.late_us().tobytes(),
    )


@asynccontextmanager
async def _stopped_when_done(tally: Tally) -> AsyncIterator[None]:
    """Cancel the body once the tally is complete: a client to which the server pushes has no other way to notice it."""
    body = asyncio.current_task()
    assert body is not None
    stopped = False

    async def watch() -> None:
        nonlocal stopped
        while not tally.done():
            await asyncio.sleep(POLL_SECONDS)
        stopped = True
        body.cancel()

    watcher = asyncio.create_task(watch())
    try:
        yield
    except asyncio.CancelledError:
        if not stopped:
            raise
        body.uncancel()
    finally:
        watcher.cancel()


async def _one_by_one(client: Client, order: OneByOne, pipe: Connection, delivered: Synchronized[int]) -> Done:
    start_ns = _wait_for_go(pipe)
    end_ns = start_ns + int(order.seconds_max * 1e9)
    sent = 0
    while sent < order.count and time.time_ns() < end_ns:
        await client.create([Batch(ids=[f"l-{os.getpid()}-{sent}"], bodies=[stamped(time.time_ns() // 1_000)])])
        sent += 1
        while delivered.value < sent and time.time_ns() < end_ns:
            await asyncio.sleep(0.0005)
    return Done(count=sent, start_ns=start_ns, end_ns=time.time_ns())


async def _send_loop(client: Client, order: SendLoop, pipe: Connection) -> Done:
    changer: Changer = client  # type: ignore[assignment]
    body = stamped(0, order.body_bytes)
    start_ns = _wait_for_go(pipe)

    async def loop(count: int) -> None:
        for _ in range(count):
            await changer.send(body)

    shares = [order.count // order.tasks] * order.tasks
    await asyncio.gather(*map(loop, shares))
    return Done(count=sum(shares), start_ns=start_ns, end_ns=time.time_ns())


async def _mutate(client: Client, order: Mutate, pipe: Connection) -> Done:
    changer: Changer = client  # type: ignore[assignment]
    prefix = f"{order.kind}{order.batch}"
    ids = await changer.create_known(Load(count=order.count, prefix=prefix, start_ms=order.due_ms).batches())
    cuts = iter([ids[first : first + order.batch] for first in range(0, len(ids), order.batch)])
    moved_ms = order.due_ms + 60_000
    body = stamped(0)
    start_ns = _wait_for_go(pipe)

    async def loop() -> None:
        for cut in cuts:
            if order.kind == "cancel":
                await changer.cancel(cut)
            elif order.kind == "move":
                await changer.move(cut, moved_ms)
            else:
                await changer.edit(cut, [body] * len(cut))

    await asyncio.gather(*(loop() for _ in range(order.in_flight)))
    return Done(count=len(ids), start_ns=start_ns, end_ns=time.time_ns())
