"""The consumer: leases messages of one topic and hands them over as they become due."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from dataclasses import replace
from types import TracebackType
from typing import Any, Self

from dejaq import limits
from dejaq.errors import Code, DejaqError, error_of
from dejaq.protocol.columns import lease_from_proto
from dejaq.protocol.transport import Transport
from dejaq.protocol.v1 import carrier_pb2 as carrier
from dejaq.sdk.admin.queries import Queries
from dejaq.sdk.bodies.body_prefetcher import Ahead
from dejaq.sdk.bodies.fetching import fetched_bodies, within
from dejaq.sdk.bodies.large import LargeBodyClient
from dejaq.sdk.changing.transaction import Transactor
from dejaq.sdk.consuming.extender import Extender
from dejaq.sdk.consuming.grant import DeliveryPart, Grant
from dejaq.sdk.consuming.lease import Batch, Lease
from dejaq.sdk.consuming.prefetch_buffer import PrefetchBuffer
from dejaq.sdk.consuming.settler import GIVE_BACK, Settler
from dejaq.sdk.consuming.subscription import Subscription
from dejaq.sdk.session.connection import Connection
from dejaq.sdk.session.link import Link, ask_once
from dejaq.sdk.session.seeds import Seeds
from dejaq.sdk.session.settings import ClientSettings
from dejaq.timekeeper.alarm import Alarm

log = logging.getLogger("dejaq.consumer")

BATCH_SIZE = 1_000
BREATHE_ROWS = 128
# A consumer that cannot close its session properly within this time lets its leases expire.
GOODBYE_SECONDS = 5.0
BUSY_SECONDS = 1.0


class Consumer:
    """An async iterator of leases; `batches` yields many leases at a time. Open it with `async with`.

    No message is handed over before the broker's clock has reached its time. After an outage the consumer reconnects
    under its name, keeps its messages, and does not hand over any message twice. Several tasks may iterate over one
    consumer; each message goes to one of them.
    """

    def __init__(self, seeds: Seeds, settings: ClientSettings, subscription: Subscription, queries: Queries) -> None:
        self.topic: str = subscription.topic
        self.name: str = subscription.name
        self._subscription = subscription
        self._connection = Connection(
            seeds,
            settings,
            enter=self._enter,
            on_event=self._on_event,
            on_lost=self._on_lost,
            busy=lambda: self._holder.handed_out > 0,
            role="consumer",
            topic=subscription.topic,
        )
        self._clock = self._connection.broker_clock
        self._holder = PrefetchBuffer()
        self._settler = Settler(
            self._connection,
            topic=subscription.topic,
            transactor=Transactor(seeds, settings, self._clock, seeds.random),
            bodies=LargeBodyClient(seeds, settings),
            lookup=lambda ids: queries.get(subscription.topic, ids),
            settled=self._settled,
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
        self._pausing: asyncio.Task[None] | None = None
        self._ended = False
        self._closed = False

    # Lifecycle

    async def open(self) -> None:
        """Connect and subscribe; raises NoBroker after the deadline, or the broker's refusal."""
        await self._connection.open()
        if self._subscription.auto_extend:
            self._tasks.add(asyncio.ensure_future(self._extender.run(self._holder.grants)))

    async def close(self) -> None:
        """Return the messages that user code has not seen, finish the changes in progress, and disconnect.

        A message that user code has and did not settle stays leased until its lease ends; then it is delivered again.
        """
        if self._closed:
            return
        self._closed = True
        try:
            await self.stop()
            await self._return_unseen()
            await self._settler.drain()
        finally:
            self._alarm.close()
            await self._ahead.stop()
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            await self._connection.close()

    async def stop(self) -> None:
        """Take no more messages: return those that user code has not seen and end the iteration.

        Messages that user code has can still be settled.
        """
        if not self._ended:
            self._ended = True
            self._wake()
            await self.pause()

    async def pause(self) -> None:
        """Take nothing until `resume`: messages that user code has not seen are returned, and other consumers get them
        at once.
        """
        self._start_pause()
        if self._pausing is not None:
            await asyncio.shield(self._pausing)

    def _start_pause(self) -> None:
        if not self._paused:
            self._paused = True
            self._pausing = self._in_background(self._unsubscribe())

    async def _unsubscribe(self) -> None:
        if self._connection.connected:
            # The messages leave right behind the request, so that others get them one round trip earlier.
            await asyncio.gather(self._ask_to_unsubscribe(), self._return_unseen())
        # Otherwise a new session does not subscribe while the consumer is paused. Messages may have come meanwhile.
        await self._return_unseen()

    async def _ask_to_unsubscribe(self) -> None:
        frame = self._connection.frame()
        frame.unsubscribe.SetInParent()
        try:
            async with asyncio.timeout(GOODBYE_SECONDS):
                await self._connection.request(frame, self._connection.until())
        except (DejaqError, TimeoutError):
            pass

    async def _return_unseen(self) -> None:
        """Recall the messages that user code has not seen; a lease that cannot be recalled now is not extended, and
        expires.
        """
        await self._ahead.stop()
        unseen = self._holder.empty()
        try:
            if unseen and self._connection.connected:
                async with asyncio.timeout(GOODBYE_SECONDS):
                    await self._settler.settle(unseen, GIVE_BACK)
        except (DejaqError, TimeoutError):
            pass
        finally:
            for portion in unseen:
                portion.grant.lose([row for row in portion.rows() if row in portion.grant.unsettled])
                self._holder.forget_if_settled(portion.grant)

    async def resume(self) -> None:
        """Take messages again after `pause`, unless the consumer has taken `max_messages`."""
        if not self._paused or self._ended or self._is_full():
            return
        self._paused = False
        frame = self._connection.frame()
        frame.subscribe.CopyFrom(self._subscription.subscribe())
        await self._connection.request(frame, self._connection.until())

    async def busy(self, seconds: float = BUSY_SECONDS) -> None:
        """Take nothing for so many seconds, and a smaller share after that; other consumers take
        over meanwhile.
        """
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
        """Whether the consumer takes no messages at present; a consumer that has taken `max_messages` takes no more."""
        return self._paused

    def _is_full(self) -> bool:
        """Whether the consumer has handed over `max_messages`."""
        most = self._subscription.max_messages
        return most is not None and self._handed >= most

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    # Messages

    def now_ms(self) -> int:
        """The best estimate of the broker's clock from this consumer's own session."""
        return self._clock.now_ms()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Lease:
        if self._handed % BREATHE_ROWS == BREATHE_ROWS - 1:
            # A loop over messages that are present never waits, and other tasks must get their turn. No message is
            # taken yet, because a task that is cancelled here must not lose one.
            await asyncio.sleep(0)
        portion = (await self._take(1))[0]
        return Lease(portion, portion.index[0], self._settler, self._clock)

    def batches(self, size: int = BATCH_SIZE) -> Batches:
        """Batches of at most `size` leases: a batch has all messages that are due as soon as there is one."""
        return Batches(self, size)

    async def take(self, size: int = BATCH_SIZE, *, timeout: float | None = None) -> Batch:
        """The next batch; raises StopAsyncIteration when the consumer has ended.

        With `timeout` it raises TimeoutError when nothing is due within so many seconds; no message is taken then.
        """
        until = None if timeout is None else asyncio.get_running_loop().time() + timeout
        return Batch(await self._take(size, until), self._settler, self._clock)

    async def _take(self, limit: int, until: float | None = None) -> list[DeliveryPart]:
        self._connection.check_open()
        most = self._subscription.max_messages
        while True:
            if self._ended or self._is_full():
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
                if self._is_full():
                    # Otherwise the broker would lease messages to a consumer that never hands them over.
                    self._start_pause()
                    self._wake()
                return portions
            lost = self._connection.lost
            if lost is not None and not (lost.retryable and self._subscription.wait_through_outages):
                # Every wait raises the same error, so it must not keep the traceback of earlier waits.
                raise lost.with_traceback(None)
            await self._wait(until)

    async def _with_bodies(self, portions: list[DeliveryPart]) -> list[DeliveryPart]:
        """The portions with their large bodies, up to the consumer's limit of bytes; the other rows are held again."""
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

    def _put_back(self, portion: DeliveryPart) -> None:
        self._handed -= len(portion)
        self._holder.put_back(portion)
        self._wake()
        if self._paused and not self._closed:
            self._in_background(self._return_unseen())

    def _in_background(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _wait(self, until: float | None) -> None:
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.add(waiter)
        next_ts = self._holder.next_ts
        if next_ts is not None:
            self._alarm.set(next_ts)
        try:
            async with asyncio.timeout_at(until):
                await waiter
        finally:
            self._waiters.discard(waiter)

    def _wake(self) -> None:
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)

    def _settled(self, grant: Grant) -> None:
        self._holder.forget_if_settled(grant)
        self._connection.look()

    # Frames of the broker

    def _on_lost(self, error: DejaqError) -> None:
        if error.retryable and self._subscription.wait_through_outages:
            log.warning("consumer %s of %s waits for a broker: %s", self.name, self.topic, error)
        self._wake()

    async def _enter(self, link: Link, transport: Transport) -> None:
        if self._connection.lost is not None:
            log.info("consumer %s of %s has a broker again: %s", self.name, self.topic, transport.address)
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
        if self.paused:
            # The consumer was paused after it had subscribed, while it had no session to send that to the broker.
            frame = self._connection.frame()
            frame.unsubscribe.SetInParent()
            await ask_once(link, frame)
            self._in_background(self._return_unseen())

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
        self._connection.freshen_clock()
        columns = lease_from_proto(push, consumer=self.name)
        repeated = self._holder.push(columns)
        if columns.large and self._subscription.fetch_large and not self._closed:
            self._ahead.look()
        if repeated and self._subscription.auto_extend and not self._closed:
            # A lease that the broker sends again after an outage may end soon.
            self._in_background(self._extender.extend(list(self._holder.grants.values())))
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
