"""The consumer: takes messages of one topic as they become due."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from types import TracebackType
from typing import Self

from dejaq import limits
from dejaq.errors import Code, DejaqError, error_of
from dejaq.protocol.columns import lease_from_proto
from dejaq.protocol.transport import Transport
from dejaq.protocol.v1 import carrier_pb2 as carrier
from dejaq.sdk.ahead import Ahead
from dejaq.sdk.connection import Connection, ask_once
from dejaq.sdk.extender import Extender
from dejaq.sdk.fetching import fetched_bodies, within
from dejaq.sdk.grant import Portion
from dejaq.sdk.holder import Holder
from dejaq.sdk.large import LargeBodies
from dejaq.sdk.lease import Batch, Lease
from dejaq.sdk.link import Link
from dejaq.sdk.queries import Queries
from dejaq.sdk.seeds import Seeds
from dejaq.sdk.settings import ClientSettings
from dejaq.sdk.settler import GIVE_BACK, Settler
from dejaq.sdk.subscription import Subscription
from dejaq.sdk.transaction import Transactor
from dejaq.timekeeper.alarm import Alarm

BATCH_SIZE = 1_000
BREATHE_ROWS = 128
# A consumer that cannot tell its broker goodbye in this time leaves its leases to run out.
GOODBYE_SECONDS = 5.0
BUSY_SECONDS = 1.0


class Consumer:
    """An async iterator of leases; `batches` gives them many at a time. Open it with `async with`.

    No message is handed over before the broker's clock has reached its time. An outage shorter than the client's
    deadline goes unnoticed: the consumer comes back under its name, keeps what it has and gets nothing of it twice.
    Several tasks may iterate over one consumer; each message goes to one of them.
    """

    def __init__(self, seeds: Seeds, settings: ClientSettings, subscription: Subscription, queries: Queries) -> None:
        self.topic = subscription.topic
        self.name = subscription.name
        self._subscription = subscription
        self._connection = Connection(
            seeds,
            settings,
            enter=self._enter,
            on_event=self._on_event,
            on_lost=lambda _: self._wake(),
            role="consumer",
            topic=subscription.topic,
        )
        self._clock = self._connection.broker_clock
        self._holder = Holder()
        self._settler = Settler(
            self._connection,
            topic=subscription.topic,
            transactor=Transactor(seeds, settings, self._clock, seeds.random),
            bodies=LargeBodies(seeds, settings),
            lookup=lambda ids: queries.get(subscription.topic, ids),
            settled=self._holder.forget_if_settled,
        )
        self._extender = Extender(
            self._settler, clock=settings.clock, broker_clock=self._clock, lease_ms=subscription.lease_ms
        )
        self._ahead = Ahead(self._settler.bodies, subscription.topic, self._holder, bytes_max=subscription.credit_bytes)
        self._alarm = Alarm(self._clock.sure, self._wake)
        self._waiters: set[asyncio.Future[None]] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._handed = 0
        self._paused = False
        self._ended = False
        self._closed = False

    # Life

    async def open(self) -> None:
        """Connect and subscribe; raises NoBroker after the deadline, or the broker's refusal."""
        await self._connection.open()
        if self._subscription.auto_extend:
            self._tasks.add(asyncio.ensure_future(self._extender.run(self._holder.grants)))

    async def close(self) -> None:
        """Give back what user code has not seen, settle what is under way, and disconnect.

        What user code has and did not settle stays leased until its lease ends, and is then delivered again.
        """
        if self._closed:
            return
        self._closed = True
        try:
            await self.stop()
            await self._settler.drain()
        finally:
            self._alarm.close()
            await self._ahead.stop()
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            await self._connection.close()

    async def stop(self) -> None:
        """Take no more: give back what user code has not seen and end the iteration; the rest can still be settled."""
        if not self._ended:
            self._ended = True
            self._wake()
            await self.pause()

    async def pause(self) -> None:
        """Take nothing until `resume`: what user code has not seen is given back, for others to have at once."""
        if self._paused:
            return
        self._paused = True
        await self._ahead.stop()
        if not self._connection.connected:
            return
        try:
            async with asyncio.timeout(GOODBYE_SECONDS):
                frame = self._connection.frame()
                frame.unsubscribe.SetInParent()
                await self._connection.request(frame, self._connection.until())
                unseen = self._holder.empty()
                if unseen:
                    await self._settler.settle(unseen, GIVE_BACK)
        except (DejaqError, TimeoutError):
            # The leases stand and run out by themselves.
            return

    async def resume(self) -> None:
        """Take messages again after `pause`."""
        if not self._paused or self._ended:
            return
        self._paused = False
        frame = self._connection.frame()
        frame.subscribe.CopyFrom(self._subscription.subscribe())
        await self._connection.request(frame, self._connection.until())

    async def busy(self, seconds: float = BUSY_SECONDS) -> None:
        """Push back: take nothing for so long, and a smaller share after it; others have its part meanwhile."""
        ms = round(seconds * 1_000)
        if not 1 <= ms <= limits.BUSY_MS_MAX:
            raise error_of(Code.INVALID_ARGUMENT, f"busy for more than 0 and at most {limits.BUSY_MS_MAX // 1000} s")
        if self._paused:
            return
        frame = self._connection.frame()
        frame.busy.ms = ms
        await self._connection.request(frame, self._connection.until())

    @property
    def paused(self) -> bool:
        """Whether it takes nothing at present."""
        return self._paused

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    # Messages

    def now_ms(self) -> int:
        """The broker's clock, as well as this consumer's own session can tell."""
        return self._clock.now_ms()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Lease:
        portion = (await self._take(1))[0]
        if self._handed % BREATHE_ROWS == 0:
            # A loop over what is already here never waits, and others must get their turn.
            await asyncio.sleep(0)
        return Lease(portion, portion.index[0], self._settler, self._clock)

    def batches(self, size: int = BATCH_SIZE) -> Batches:
        """Batches of at most `size` leases: whatever is due, as soon as something is."""
        return Batches(self, size)

    async def take(self, size: int = BATCH_SIZE) -> Batch:
        """The next batch; raises StopAsyncIteration when the consumer has ended."""
        return Batch(await self._take(size), self._settler, self._clock)

    async def _take(self, limit: int) -> list[Portion]:
        most = self._subscription.max_messages
        while True:
            if self._ended or (most is not None and self._handed >= most):
                raise StopAsyncIteration
            now = self._clock.surely_ms()
            portions = self._holder.take(
                limit if most is None else min(limit, most - self._handed),
                now=now,
                latest=now + 2 * self._clock.uncertainty_us // 1_000,
                handed_us=self._clock.now_us(),
            )
            if portions:
                self._handed += sum(map(len, portions))
                if self._subscription.fetch_large and any(portion.delivery.columns.large for portion in portions):
                    portions = await self._with_bodies(portions)
                return portions
            if self._connection.lost is not None:
                raise self._connection.lost
            await self._wait()

    async def _with_bodies(self, portions: list[Portion]) -> list[Portion]:
        """The portions with their large bodies, as far as the consumer's bytes go; the rest is held again."""
        taken, rest = within(portions, self._subscription.credit_bytes)
        for portion in rest:
            self._put_back(portion)
        try:
            fetched = [await fetched_bodies(self._settler.bodies, self.topic, portion) for portion in taken]
        except BaseException:
            for portion in taken:
                self._put_back(portion)
            raise
        self._ahead.look()
        now = self._clock.now_us()
        return [replace(portion, handed_us=now, fetched=found) for portion, found in zip(taken, fetched, strict=True)]

    def _put_back(self, portion: Portion) -> None:
        self._handed -= len(portion)
        self._holder.put_back(portion)
        self._wake()

    async def _wait(self) -> None:
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.add(waiter)
        next_ts = self._holder.next_ts
        if next_ts is not None:
            self._alarm.set(next_ts)
        try:
            await waiter
        finally:
            self._waiters.discard(waiter)

    def _wake(self) -> None:
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)

    # The broker's side

    async def _enter(self, link: Link, transport: Transport) -> None:
        self._holder.reconnect()
        frame = self._connection.frame()
        frame.consumer.topic = self.topic
        frame.consumer.name = self.name
        await ask_once(link, frame)
        if self._paused:
            return
        frame = self._connection.frame()
        frame.subscribe.CopyFrom(self._subscription.subscribe())
        await ask_once(link, frame)

    def _on_event(self, link: Link, frame: carrier.BrokerFrame) -> None:
        if frame.HasField("push"):
            self._pushed(frame.push)
        elif frame.HasField("recall"):
            rows = self._holder.recall(frame.recall.lease, frame.recall.rows)
            answer = carrier.ClientFrame(request=frame.request)
            answer.recalled.lease = frame.recall.lease
            answer.recalled.rows.extend(rows)
            link.tell(answer)

    def _pushed(self, push: carrier.Push) -> None:
        columns = lease_from_proto(push, consumer=self.name)
        repeated = self._holder.push(columns)
        if columns.large and self._subscription.fetch_large and not self._closed:
            self._ahead.look()
        if repeated and self._subscription.auto_extend and not self._closed:
            # What came back after an outage may have little of its lease left.
            task = asyncio.ensure_future(self._extender.extend(list(self._holder.grants.values())))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        next_ts = self._holder.next_ts
        if not self._waiters or next_ts is None:
            return
        if next_ts <= self._clock.surely_ms():
            self._wake()
        else:
            self._alarm.set(next_ts)


class Batches:
    """An async iterator of batches of one consumer."""

    def __init__(self, consumer: Consumer, size: int) -> None:
        self._consumer = consumer
        self._size = max(1, size)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Batch:
        return await self._consumer.take(self._size)
