"""The client: a way to the brokers, from which producers and consumers are made."""

from __future__ import annotations

import asyncio
import os
import secrets
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from functools import partial
from random import Random, SystemRandom
from types import TracebackType
from typing import Self
from weakref import WeakSet

from dejaq import limits
from dejaq.domain.backoff import Backoff
from dejaq.domain.large import PART_BYTES
from dejaq.domain.message import Message, Status
from dejaq.domain.topic import TopicSettings, check_topic_name
from dejaq.errors import Code, Conflict, DejaqError, Missing, error_of
from dejaq.protocol.v1 import overseer_pb2 as overseer
from dejaq.sdk.accumulator import LINGER_SECONDS
from dejaq.sdk.admin import ClusterInfo, Pong, TopicInfo
from dejaq.sdk.broker_clock import BrokerClock
from dejaq.sdk.consumer import Consumer
from dejaq.sdk.cron import Cron
from dejaq.sdk.dead_letters import DeadLetters
from dejaq.sdk.large import LargeBodies
from dejaq.sdk.outgoing import Headers
from dejaq.sdk.producer import Producer
from dejaq.sdk.queries import PAGE_SIZE, Queries, filter_of
from dejaq.sdk.results import FanOut
from dejaq.sdk.seeds import Local, Seeds, transports_to
from dejaq.sdk.settings import DEADLINE_SECONDS, DRIFT_MS_MAX, TIMEOUT_SECONDS, ClientSettings
from dejaq.sdk.subscription import CREDIT_BYTES, Subscription
from dejaq.sdk.times import At, Delay, lease_ms, resolve
from dejaq.sdk.transaction import Transaction, Transactor
from dejaq.sdk.worker import GRACE_SECONDS, RETRY, Handler, Terms, Worker, run_until_signal
from dejaq.timekeeper.clock import Clock, SystemClock

PREFETCH_SECONDS = limits.PREFETCH_MS_DEFAULT / 1_000
LEASE_SECONDS = limits.LEASE_MS_DEFAULT / 1_000


def connect(
    target: str | Local,
    *,
    name: str = "",
    deadline: float = DEADLINE_SECONDS,
    timeout: float = TIMEOUT_SECONDS,
    on_drift: Callable[[float], None] | None = None,
    drift_ms_max: float = DRIFT_MS_MAX,
    follow: bool = True,
    clock: Clock | None = None,
    random: Random | None = None,
) -> Client:
    """A client of the brokers at `dejaq://host:port` (several with commas between) or of a `dejaq.Broker`.

    Outages shorter than `deadline` seconds are ridden through; `timeout` bounds one try of a single call. `name` is
    what people see in `dejaq info`. The brokers of a cluster tell of each other, and which of them to use; without
    `follow` only those that `target` names are used. `on_drift` is called with the broker's clock offset in ms when it
    is over `drift_ms_max`.
    """
    if not deadline > 0 or not timeout > 0:
        raise error_of(Code.INVALID_ARGUMENT, "deadline and timeout are seconds above 0")
    settings = ClientSettings(
        clock=clock or SystemClock(),
        name=name or f"python-{os.getpid()}",
        deadline=deadline,
        timeout=timeout,
        on_drift=on_drift,
        drift_ms_max=drift_ms_max,
        follow=follow,
    )
    # Seeds of ids must not repeat between processes that were forked from one parent.
    return Client(target, settings, random or SystemRandom())


class Client:
    """Makes topics, producers and consumers, and answers questions. Open it with `async with`."""

    def __init__(self, target: str | Local, settings: ClientSettings, random: Random) -> None:
        self._seeds = Seeds(transports_to(target), random)
        self._settings = settings
        self._random = random
        self._queries = Queries(self._seeds, settings)
        self._large = LargeBodies(self._seeds, settings)
        self._clock = BrokerClock(settings.clock)
        self._transactor = Transactor(self._seeds, settings, self._clock, random)
        self._children: WeakSet[Producer | Consumer] = WeakSet()
        self._workers: list[Worker] = []
        self._fans: dict[tuple[str, str], asyncio.Task[Producer]] = {}

    async def open(self) -> None:
        """Make sure that a broker answers; raises NoBroker when none does within the deadline."""
        await self.ping()

    async def close(self) -> None:
        """Close the producers and consumers that are still open, and disconnect."""
        fans, self._fans = list(self._fans.values()), {}
        await asyncio.gather(*fans, return_exceptions=True)
        await asyncio.gather(*(child.close() for child in list(self._children)), return_exceptions=True)
        await self._seeds.close()

    async def __aenter__(self) -> Self:
        try:
            await self.open()
        except BaseException:
            await self._seeds.close()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    # The cluster

    async def ping(self) -> Pong:
        """Ask a broker for its time."""
        clock = self._settings.clock
        sent_us, sent = clock.now_us(), clock.monotonic()
        answer = await self._seeds.call(
            "Overseer.Ping",
            overseer.PingRequest(client_us=sent_us),
            overseer.PingResponse,
            patience=self._settings,
        )
        round_trip_us = int((clock.monotonic() - sent) * 1_000_000)
        self._clock.observe(sent_us=sent_us, broker_us=answer.broker_us, round_trip_us=round_trip_us)
        return Pong(
            latency_ms=round_trip_us / 1_000,
            clock_offset_ms=self._clock.offset_us / 1_000,
            uncertainty_ms=self._clock.uncertainty_us / 1_000,
        )

    def now_ms(self) -> int:
        """The broker's clock, as well as the pings so far can tell."""
        return self._clock.now_ms()

    async def info(self) -> ClusterInfo:
        """The cluster: brokers, topics and clients."""
        answer = await self._seeds.call(
            "Overseer.Info", overseer.InfoRequest(), overseer.InfoResponse, patience=self._settings
        )
        return ClusterInfo.from_proto(answer)

    # Topics

    async def create_topic(
        self,
        name: str,
        *,
        buckets: int | None = None,
        max_future_ms: int | None = None,
        max_lease_ms: int | None = None,
        max_body_bytes: int | None = None,
        durability: str | None = None,
        journal: bool | None = None,
        expires: bool | None = None,
        client_rate: int | None = None,
        compression: str | None = None,
        share_bodies: bool | None = None,
        kind: str | None = None,
        max_attempts: int | None = None,
        dead_letter: str | None = None,
        expiry_backoff: str | Backoff | None = None,
    ) -> TopicInfo:
        """Create a topic; what is not given has its default. A repeat with the same settings changes nothing."""
        check_topic_name(name)
        try:
            chosen = overseer.TopicSettings(
                buckets=buckets,
                max_future_ms=max_future_ms,
                max_lease_ms=max_lease_ms,
                max_body_bytes=max_body_bytes,
                durability=durability,
                journal=journal,
                expires=expires,
                client_rate=client_rate,
                compression=compression,
                share_bodies=share_bodies,
                kind=kind,
                max_attempts=max_attempts,
                dead_letter=dead_letter,
                expiry_backoff=None if expiry_backoff is None else str(expiry_backoff),
            )
        except (ValueError, TypeError) as error:
            raise error_of(Code.INVALID_SETTING, str(error)) from None
        answer = await self._seeds.call(
            "Overseer.CreateTopic",
            overseer.CreateTopicRequest(name=name, settings=chosen),
            overseer.TopicResponse,
            patience=self._settings,
        )
        return TopicInfo.from_proto(answer.topic, created=answer.created)

    async def describe_topic(self, name: str) -> TopicInfo:
        """One topic with its settings and exact counts."""
        answer = await self._seeds.call(
            "Overseer.DescribeTopic",
            overseer.TopicRequest(name=name),
            overseer.TopicResponse,
            patience=self._settings,
        )
        return TopicInfo.from_proto(answer.topic)

    async def topics(self) -> list[TopicInfo]:
        """Every topic."""
        answer = await self._seeds.call(
            "Overseer.ListTopics",
            overseer.ListTopicsRequest(),
            overseer.ListTopicsResponse,
            patience=self._settings,
        )
        return [TopicInfo.from_proto(topic) for topic in answer.topics]

    async def delete_topic(self, name: str) -> None:
        """Delete a topic with every message in it; returns when it takes no more, the rest goes on behind."""
        request = overseer.TopicRequest(name=name)
        patience = self._seeds.patience(self._settings)
        again = False
        while True:
            transport = self._seeds.first()
            try:
                await transport.call("Overseer.DeleteTopic", request, overseer.TopicResponse, self._settings.timeout)
                return
            except Missing:
                if again:
                    # An earlier try may have been done, and the topic is gone, as asked.
                    return
                raise
            except DejaqError as error:
                await patience.after(error, transport)
                again = True

    # Producers and consumers

    def producer(self, topic: str, *, group: str = "default", linger: float = LINGER_SECONDS) -> Producer:
        """A producer that owns what it sends as `group`; open it with `async with`."""
        producer = Producer(self._seeds, self._settings, topic=topic, group=group, linger=linger, random=self._random)
        self._children.add(producer)
        return producer

    def consumer(
        self,
        topic: str,
        *,
        name: str = "",
        lease: float | timedelta = LEASE_SECONDS,
        prefetch: float = PREFETCH_SECONDS,
        max_in_flight: int = limits.CREDIT_ROWS_DEFAULT,
        max_messages: int | None = None,
        auto_extend: bool = True,
        weight: int = limits.WEIGHT_DEFAULT,
        rack: str = "",
        rate: int = 0,
        fetch_large: bool = True,
    ) -> Consumer:
        """A consumer; open it with `async with`.

        Who comes back under its `name` gets its live leases back. At most `max_in_flight` messages are with it at one
        time, sent up to `prefetch` seconds ahead and held until they are due. It ends after `max_messages`.
        `auto_extend` keeps the leases of what is not settled alive. `weight` is its share of the topic to begin with,
        beside those of the others; who stands in another `rack` stands in for it first; it gets at most `rate` messages
        a second, where that is not 0. Large bodies are fetched before they are handed over; without `fetch_large` they
        are read with `lease.parts()` or `lease.read()`.
        """
        subscription = Subscription(
            topic=topic,
            name=name or f"consumer-{secrets.token_hex(6)}",
            lease_ms=lease_ms(lease),
            prefetch_ms=round(prefetch * 1_000),
            credit_rows=max_in_flight if max_messages is None else min(max_in_flight, max_messages),
            credit_bytes=CREDIT_BYTES,
            max_messages=max_messages,
            auto_extend=auto_extend,
            weight=weight,
            rack=rack,
            rate=rate,
            fetch_large=fetch_large,
        )
        consumer = Consumer(self._seeds, self._settings, subscription, self._queries)
        self._children.add(consumer)
        return consumer

    def worker(
        self,
        topic: str,
        *,
        concurrency: int = 8,
        retry: Backoff | str = RETRY,
        timeout: float | None = None,
        grace: float = GRACE_SECONDS,
        name: str = "",
        lease: float | timedelta = LEASE_SECONDS,
        prefetch: float = PREFETCH_SECONDS,
        max_in_flight: int | None = None,
        max_messages: int | None = None,
        weight: int = limits.WEIGHT_DEFAULT,
        rack: str = "",
        rate: int = 0,
    ) -> Callable[[Handler], Worker]:
        """Make a function, async or not, into a worker that runs it for each message, at most `concurrency` at once.

        What it returns from is deleted, what it raises on comes again as `retry` says, and one that takes longer than
        `timeout` seconds counts as failed. A stop waits up to `grace` seconds. The rest is as for a consumer.
        """
        terms = Terms(
            concurrency=concurrency,
            retry=Backoff.parse(retry) if isinstance(retry, str) else retry,
            timeout=timeout,
            grace=grace,
        )
        consumer = partial(
            self.consumer,
            topic,
            name=name,
            lease=lease,
            prefetch=prefetch,
            max_in_flight=concurrency if max_in_flight is None else max_in_flight,
            max_messages=max_messages,
            weight=weight,
            rack=rack,
            rate=rate,
        )

        def made(function: Handler) -> Worker:
            worker = Worker(function, consumer=consumer, topic=topic, terms=terms, random=self._random)
            self._workers.append(worker)
            return worker

        return made

    async def run_workers(self) -> None:
        """Run the workers that were made here until SIGTERM or Ctrl-C, then let them finish; a second hurries."""
        await run_until_signal(self._workers)

    def transaction(self, *, group: str = "default") -> Transaction:
        """Changes that are done together or not at all when the `async with` block ends; `group` owns what is sent.

        An error inside the block, or one step that the broker refuses, means that nothing is done.
        """
        return Transaction(self._transactor, group=group)

    def cron(self, topic: str) -> Cron:
        """The schedules of a cron topic."""
        return Cron(self._seeds, self._settings, topic)

    async def fan_out(
        self,
        topics: Sequence[str],
        body: bytes,
        *,
        group: str = "default",
        at: At | None = None,
        delay: Delay | None = None,
        id: str | None = None,
        priority: int = 0,
        headers: Headers | None = None,
        atomic: bool | None = None,
    ) -> FanOut:
        """Send one message to several topics under one id.

        Where the topics live in one store it is there in all of them or, raising why, in none. Else, or with
        `atomic=False`, each topic is for itself and its outcome is in the result; `atomic=True` raises then.
        """
        message_id = id if id is not None else self._transactor.new_id()
        # Resolved once, so that it is due at the same time everywhere.
        ts = resolve(at, delay, self._clock.now_us())
        names = list(dict.fromkeys(topics))
        if atomic is not False:
            try:
                async with self.transaction(group=group) as t:
                    for topic in names:
                        t.send(topic, body, at=ts, id=message_id, priority=priority, headers=headers)
                return FanOut(id=message_id, codes=dict.fromkeys(names, Code.OK))
            except Conflict as error:
                if atomic or error.code is not Code.DIFFERENT_STORES:
                    raise

        async def one(topic: str) -> Code:
            try:
                producer = await self._fan(topic, group)
                await producer.send(body, at=ts, id=message_id, priority=priority, headers=headers)
            except DejaqError as error:
                return error.code
            return Code.OK

        codes = await asyncio.gather(*map(one, names))
        return FanOut(id=message_id, codes=dict(zip(names, codes, strict=True)))

    async def _fan(self, topic: str, group: str) -> Producer:
        async def opened() -> Producer:
            producer = self.producer(topic, group=group)
            await producer.open()
            return producer

        key = (topic, group)
        task = self._fans.get(key)
        if task is None or (task.done() and task.exception() is not None):
            task = self._fans[key] = asyncio.ensure_future(opened())
        return await asyncio.shield(task)

    # Questions

    async def get(self, topic: str, ids: Sequence[str], *, fetch_large: bool = True) -> list[Message | None]:
        """The messages, in the order of `ids`; None where there is none.

        Without `fetch_large` the body of a message that has a large one is empty, and its `large` says where it is.
        """
        found = await self._queries.get(topic, [ids] if isinstance(ids, str) else list(ids))
        return [await self.fetched(message) if fetch_large and message else message for message in found]

    async def fetched(self, message: Message) -> Message | None:
        """The message with its large body, as it stands by then; None when it is gone."""
        current: Message | None = message
        while current is not None and current.large is not None:
            try:
                body = await self._large.fetch(current.topic, current.id, current.large)
                return replace(current, body=body, large=None)
            except Missing:
                # Gone, or changed, between the look and the read.
                before = current.version
                (current,) = await self._queries.get(current.topic, [current.id])
                if current is not None and current.version == before:
                    raise
        return current

    def body_parts(self, message: Message) -> AsyncIterator[bytes]:
        """The body of a message, at most 1 MiB at a time; raises BODY_MISSING when the message is gone."""
        if message.large is None:
            return _cut(message.body)
        return self._large.parts(message.topic, message.id, message.large)

    async def count(
        self,
        topic: str,
        *,
        start: At | None = None,
        end: At | None = None,
        status: Status | str | None = None,
        group: str | None = None,
        consumer: str | None = None,
        priorities: tuple[int, int] | None = None,
        headers: Headers | None = None,
    ) -> int:
        """How many messages there are with `start <= time < end` and this status, owner and consumer; exactly.

        `priorities` is the lowest and the highest that count, `headers` those that must be there.
        """
        where = filter_of(start, end, status, group, consumer, priorities, headers)
        return await self._queries.count(topic, where)

    async def histogram(
        self,
        topic: str,
        *,
        start: At,
        end: At,
        step: float | timedelta,
        status: Status | str | None = None,
        group: str | None = None,
        consumer: str | None = None,
        priorities: tuple[int, int] | None = None,
        headers: Headers | None = None,
    ) -> list[tuple[int, int]]:
        """(start of step in epoch ms, count) for each step of so many seconds that has messages; exactly."""
        where = filter_of(start, end, status, group, consumer, priorities, headers)
        return await self._queries.histogram(topic, where, step)

    def browse(
        self,
        topic: str,
        *,
        start: At | None = None,
        end: At | None = None,
        status: Status | str | None = None,
        group: str | None = None,
        consumer: str | None = None,
        priorities: tuple[int, int] | None = None,
        headers: Headers | None = None,
        page_size: int = PAGE_SIZE,
    ) -> AsyncIterator[list[Message]]:
        """Pages of messages in order of time, without taking them."""
        where = filter_of(start, end, status, group, consumer, priorities, headers)
        return self._queries.browse(topic, where, page_size)

    def dead_letters(self, topic: str) -> DeadLetters:
        """The messages of a topic that were leased too often or rejected."""

        async def settings_of(name: str) -> TopicSettings:
            return (await self.describe_topic(name)).settings

        return DeadLetters(self._seeds, self._settings, self._queries, topic, settings_of)


async def _cut(body: bytes) -> AsyncIterator[bytes]:
    for start in range(0, len(body), PART_BYTES):
        yield body[start : start + PART_BYTES]
