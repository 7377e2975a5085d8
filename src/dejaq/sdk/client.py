"""The client: it connects to the brokers and creates producers and consumers."""

from __future__ import annotations

import asyncio
import os
import secrets
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from functools import partial
from random import Random, SystemRandom
from types import TracebackType
from typing import Self, Unpack, overload
from weakref import WeakSet

from dejaq import limits
from dejaq.domain.backoff import Backoff
from dejaq.domain.topic import TopicKind
from dejaq.errors import Code, error_of
from dejaq.protocol.v1 import overseer_pb2 as overseer
from dejaq.sdk.admin.cluster import ClusterInfo, Pong, TopicInfo
from dejaq.sdk.admin.cron import Cron
from dejaq.sdk.admin.dead_letters import DeadLetters
from dejaq.sdk.admin.history import HistoryClient
from dejaq.sdk.admin.message_calls import MessageCalls
from dejaq.sdk.admin.overview import AllTopics, FirstPage, with_first_pages
from dejaq.sdk.admin.queries import Queries
from dejaq.sdk.admin.rights import Rights
from dejaq.sdk.admin.topic_calls import TopicCalls
from dejaq.sdk.bodies.large import LargeBodyClient
from dejaq.sdk.changing.transaction import Transaction, Transactor
from dejaq.sdk.consuming.consumer import Consumer
from dejaq.sdk.consuming.subscription import CREDIT_BYTES, Subscription
from dejaq.sdk.fan_out import Copy, FanOuts
from dejaq.sdk.log.log import Log
from dejaq.sdk.producing.accumulator import LINGER_SECONDS
from dejaq.sdk.producing.group_session import GroupSessions
from dejaq.sdk.producing.outgoing import Headers
from dejaq.sdk.producing.producer import Producer
from dejaq.sdk.results import FanOut
from dejaq.sdk.session.broker_clock import BrokerClock
from dejaq.sdk.session.clock_check import compare_clocks
from dejaq.sdk.session.security import NO_OPTIONS, SecurityArguments, SecurityOptions
from dejaq.sdk.session.seeds import Local, seeds_of
from dejaq.sdk.session.settings import DEADLINE_SECONDS, DRIFT_MS_MAX, TIMEOUT_SECONDS, ClientSettings
from dejaq.sdk.times import At, Delay, RelativeTime, lease_ms, resolve
from dejaq.sdk.working.codecs import Codec, CodecName, codec_of
from dejaq.sdk.working.worker import (
    GRACE_SECONDS,
    RETRY,
    Handler,
    TypedDecorator,
    Worker,
    WorkerOptions,
    WorkerTerms,
    run_until_signal,
)
from dejaq.timekeeper.clock import Clock, SystemClock

PREFETCH_SECONDS = limits.PREFETCH_MS_DEFAULT / 1_000
# Writing the memory tables to disk takes as long as the disk needs.
CHECKPOINT_SECONDS = 600.0
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
    **security: Unpack[SecurityArguments],
) -> Client:
    """A client of the brokers at `dejaq://host:port` (several with commas between) or of a `dejaq.Broker`.

    The client retries through outages shorter than `deadline` seconds; `timeout` limits one try of a single call.
    `name` is the client's name in `dejaq info`. The brokers of a cluster recommend each other and the broker to use;
    without `follow` the client uses only the brokers in `target`. `on_drift` is called with the broker's clock offset
    in ms when the offset exceeds `drift_ms_max`. `dejaqs://` is encrypted; `security` are the files `ca`, `cert` and
    `key`, and an `api_key`, a `token` (also a function) or a `token_file`.
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
    # Two processes that were forked from one parent must not use the same seed for ids.
    return Client(target, settings, random or SystemRandom(), SecurityOptions(**security))


class Client(TopicCalls, MessageCalls):
    """Creates topics, producers and consumers, and answers queries. Open it with `async with`."""

    def __init__(
        self,
        target: str | Local,
        settings: ClientSettings,
        random: Random,
        security: SecurityOptions = NO_OPTIONS,
    ) -> None:
        self._seeds = seeds_of(target, random, security, settings.clock)
        self._settings = settings
        self._random = random
        self._queries = Queries(self._seeds, settings)
        self._large = LargeBodyClient(self._seeds, settings)
        self._histories = HistoryClient(self._seeds, settings)
        self._clock = BrokerClock(settings.clock)
        self._transactor = Transactor(self._seeds, settings, self._clock, random)
        self._children: WeakSet[Producer | Consumer | Log] = WeakSet()
        self._workers: list[Worker] = []
        self._fans = FanOuts(self.producer, self.transaction)
        self._sessions = GroupSessions(self._seeds, settings, random)
        # Tracing has subclasses of its own.
        self._producer_class: type[Producer] = Producer
        self._consumer_class: type[Consumer] = Consumer

    async def open(self, *, deadline: float | None = None) -> None:
        """Make sure that a broker answers; raises NoBroker when none does within `deadline`.

        When a broker answered that it cannot serve, its own error is raised.
        """
        settings = self._settings if deadline is None else replace(self._settings, deadline=deadline)
        self._seeds.open()
        await compare_clocks(self._seeds, settings, self._clock)

    async def close(self) -> None:
        """Close the producers and consumers that are still open, and disconnect."""
        await self._fans.close()
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
        round_trip_us = await compare_clocks(self._seeds, self._settings, self._clock)
        return Pong(
            latency_ms=round_trip_us / 1_000,
            clock_offset_ms=self._clock.offset_us / 1_000,
            uncertainty_ms=self._clock.uncertainty_us / 1_000,
        )

    def now_ms(self) -> int:
        """The best estimate of the broker's clock from the pings so far."""
        return self._clock.now_ms()

    async def info(self) -> ClusterInfo:
        """The cluster: brokers, topics and clients."""
        answer = await self._seeds.call(
            "Overseer.Info", overseer.InfoRequest(), overseer.InfoResponse, patience=self._settings
        )
        return ClusterInfo.from_proto(answer)

    async def checkpoint(self) -> str:
        """Make the broker link the files of its embedded store as they are now; returns the directory on its machine.

        This is the first step of `dejaq backup`, which copies that directory and then removes it.
        """
        answer = await self._seeds.first().call(
            "Overseer.Checkpoint", overseer.CheckpointRequest(), overseer.CheckpointResponse, CHECKPOINT_SECONDS
        )
        return answer.path

    # Producers and consumers

    def producer(self, topic: str, *, group: str = "default", linger: float = LINGER_SECONDS) -> Producer:
        """A producer whose messages belong to `group`; open it with `async with`."""
        make = self._producer_class
        producer = make(self._sessions, topic=topic, group=group, linger=linger)
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
        wait_through_outages: bool = True,
    ) -> Consumer:
        """A consumer; open it with `async with`.

        A consumer that reconnects under its `name` receives its live leases again. It holds at most `max_in_flight`
        messages at one time; the broker sends them up to `prefetch` seconds early, and the consumer holds them until
        they are due. It ends after `max_messages`. `auto_extend` extends the leases of messages that are not settled.
        `weight` is its initial share of the topic, compared with other consumers. When it is full, consumers of another
        `rack` take its share first. With a `rate` it gets at most so many messages per second. Large bodies are fetched
        before they are handed over; without `fetch_large` they are read with `lease.parts()` or `lease.read()`.

        The consumer waits through an outage and logs an outage that is longer than the client's deadline; without
        `wait_through_outages` a wait for a message then raises NO_BROKER.
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
            wait_through_outages=wait_through_outages,
        )
        consumer = self._consumer_class(self._seeds, self._settings, subscription, self._queries)
        self._children.add(consumer)
        return consumer

    @overload
    def worker(
        self, topic: str, *, codec: None = None, **options: Unpack[WorkerOptions]
    ) -> Callable[[Handler], Worker]: ...
    @overload
    def worker(
        self, topic: str, *, codec: Codec | CodecName, **options: Unpack[WorkerOptions]
    ) -> TypedDecorator[Worker]: ...
    def worker(
        self,
        topic: str,
        *,
        codec: Codec | CodecName | None = None,
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
    ) -> Callable[[Callable[..., object]], Worker]:
        """Make a function, async or not, into a worker that runs it for each message, at most `concurrency` at once.

        When the function returns, its message is deleted; when it raises an error, the message is delivered again as
        `retry` says. A call that takes longer than `timeout` seconds counts as failed. A stop waits up to `grace`
        seconds for running calls. The other arguments are those of a consumer.

        With a `codec` ("json", "msgpack" or one of your own) the function gets the body decoded as the annotation of
        its first argument says, and the lease if it has a second argument; its return value is the reply to a request.
        A message whose body cannot be decoded becomes a dead letter.
        """
        chosen = None if codec is None else codec_of(codec)
        terms = WorkerTerms(
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
            # The worker waits through outages itself, and counts them.
            wait_through_outages=False,
        )

        def made(function: Callable[..., object]) -> Worker:
            worker = Worker(function, consumer=consumer, topic=topic, terms=terms, random=self._random, codec=chosen)
            self._workers.append(worker)
            return worker

        return made

    async def run_workers(self) -> None:
        """Run the workers of this client until SIGTERM or Ctrl-C, then let running calls finish; a second signal does
        not wait.
        """
        await run_until_signal(self._workers)

    def transaction(self, *, group: str = "default") -> Transaction:
        """Changes that are done all together or not at all when the `async with` block ends; `group` owns the messages.

        When the block raises an error, or the broker refuses one step, nothing is done.
        """
        return Transaction(self._transactor, group=group)

    def log(self, topic: str, *, timeout: float | None = None) -> Log:
        """A log topic: append to it, and read it by offsets or in groups.

        With a `timeout`, a batch that the broker gets later than so many seconds after it was sent is EXPIRED, and was
        certainly not appended.
        """
        log = Log(self._seeds, self._settings, topic, timeout=timeout)
        self._children.add(log)
        return log

    async def all_topics(
        self, *, messages: int = 10, after: str = "", count: int = 20, namespace: str = ""
    ) -> AllTopics:
        """The next topics `after` a name, as `topics_page` gives them, each with its first `messages`.

        These are the messages that are due next, or the last ones of a log.
        """
        if not 1 <= messages <= limits.BROWSE_PAGE_MAX:
            raise error_of(Code.INVALID_ARGUMENT, f"messages={messages}; it is 1 to {limits.BROWSE_PAGE_MAX}")

        async def read(topic: TopicInfo) -> FirstPage:
            if topic.settings.kind is TopicKind.LOG:
                return tuple(await self.log(topic.name).tail(messages))
            return (await self.browse_page(topic.name, page_size=messages)).messages

        return await with_first_pages(await self.topics_page(after=after, count=count, namespace=namespace), read)

    def cron(self, topic: str) -> Cron:
        """The schedules of a cron topic."""
        return Cron(self._seeds, self._settings, topic)

    def rights(self) -> Rights:
        """The rules that allow and deny."""
        return Rights(self._seeds, self._settings)

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
        results: bool = False,
    ) -> FanOut:
        """Send one message to several topics under one id.

        When the topics are in one store, the message is created in all of them or, with an error, in none. Otherwise,
        or with `atomic=False`, each topic accepts or refuses it by itself: the call raises when a topic refuses it, and
        the error lists all that did, as `failed`. With `results=True` it returns the outcome in each topic instead.
        `atomic=True` raises when the topics are in several stores.
        """
        message_id = id if id is not None else self._transactor.new_id()
        await self._transactor.freshen_clock()
        # Resolved once, so that the message is due at the same time in every topic.
        ts = resolve(at, delay, self._clock.now_us())
        ts = RelativeTime(ts) if at is None else ts
        copy = Copy(body, ts=ts, id=message_id, priority=priority, headers=headers)
        sent = await self._fans.send(topics, copy, group=group, atomic=atomic)
        if not results:
            sent.raise_for_failures()
        return sent

    def dead_letters(self, topic: str) -> DeadLetters:
        """The messages of a topic that were leased too often or rejected."""
        return DeadLetters(self._seeds, self._settings, self._queries, topic, self.describe_topic)
