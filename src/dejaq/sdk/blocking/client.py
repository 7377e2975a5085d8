"""Generated from `dejaq.sdk.client` by `scripts/generate_sync.py`; edit that module, not this one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from random import Random
from typing import Unpack, overload

from dejaq import limits
from dejaq.domain.backoff import Backoff
from dejaq.sdk.admin.cluster import ClusterInfo, Pong
from dejaq.sdk.admin.overview import AllTopics
from dejaq.sdk.blocking.consumer import Consumer
from dejaq.sdk.blocking.cron import Cron
from dejaq.sdk.blocking.dead_letters import DeadLetters
from dejaq.sdk.blocking.log import Log
from dejaq.sdk.blocking.message_calls import MessageCalls
from dejaq.sdk.blocking.portal import DEADLINES, Portal, then
from dejaq.sdk.blocking.producer import Producer
from dejaq.sdk.blocking.rights import Rights
from dejaq.sdk.blocking.transaction import Transaction
from dejaq.sdk.blocking.worker import Worker
from dejaq.sdk.client import LEASE_SECONDS, PREFETCH_SECONDS
from dejaq.sdk.client import connect as connect_async
from dejaq.sdk.producing.accumulator import LINGER_SECONDS
from dejaq.sdk.producing.outgoing import Headers
from dejaq.sdk.results import FanOut
from dejaq.sdk.session.security import SecurityArguments
from dejaq.sdk.session.seeds import Local
from dejaq.sdk.session.settings import DEADLINE_SECONDS, DRIFT_MS_MAX, TIMEOUT_SECONDS
from dejaq.sdk.times import At, Delay
from dejaq.sdk.working.codecs import Codec, CodecName
from dejaq.sdk.working.worker import GRACE_SECONDS, RETRY, Handler, TypedDecorator, WorkerOptions
from dejaq.timekeeper.clock import Clock


class Client(MessageCalls):
    """Creates topics, producers and consumers, and answers queries. Open it with `with`."""

    __slots__ = ()

    def ping(self) -> Pong:
        """Ask a broker for its time."""
        return self._portal.run(self._inner.ping())

    def now_ms(self) -> int:
        """The best estimate of the broker's clock from the pings so far."""
        return self._inner.now_ms()

    def info(self) -> ClusterInfo:
        """The cluster: brokers, topics and clients."""
        return self._portal.run(self._inner.info())

    def checkpoint(self) -> str:
        """Make the broker link the files of its embedded store as they are now; returns the directory on its machine.

        This is the first step of `dejaq backup`, which copies that directory and then removes it.
        """
        return self._portal.run(self._inner.checkpoint())

    def producer(self, topic: str, *, group: str = "default", linger: float = LINGER_SECONDS) -> Producer:
        """A producer whose messages belong to `group`; open it with `with`."""
        return Producer(self._inner.producer(topic, group=group, linger=linger), self._portal)

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
        """A consumer; open it with `with`.

        A consumer that reconnects under its `name` receives its live leases again. It holds at most `max_in_flight`
        messages at one time; the broker sends them up to `prefetch` seconds early, and the consumer holds them until
        they are due. It ends after `max_messages`. `auto_extend` extends the leases of messages that are not settled.
        `weight` is its initial share of the topic, compared with other consumers. When it is full, consumers of another
        `rack` take its share first. With a `rate` it gets at most so many messages per second. Large bodies are fetched
        before they are handed over; without `fetch_large` they are read with `lease.parts()` or `lease.read()`.

        The consumer waits through an outage and logs an outage that is longer than the client's deadline; without
        `wait_through_outages` a wait for a message then raises NO_BROKER.
        """
        return Consumer(
            self._inner.consumer(
                topic,
                name=name,
                lease=lease,
                prefetch=prefetch,
                max_in_flight=max_in_flight,
                max_messages=max_messages,
                auto_extend=auto_extend,
                weight=weight,
                rack=rack,
                rate=rate,
                fetch_large=fetch_large,
                wait_through_outages=wait_through_outages,
            ),
            self._portal,
        )

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
        return then(
            self._inner.worker(
                topic,
                codec=codec,
                concurrency=concurrency,
                retry=retry,
                timeout=timeout,
                grace=grace,
                name=name,
                lease=lease,
                prefetch=prefetch,
                max_in_flight=max_in_flight,
                max_messages=max_messages,
                weight=weight,
                rack=rack,
                rate=rate,
            ),
            lambda made: Worker(made, self._portal),
        )

    def transaction(self, *, group: str = "default") -> Transaction:
        """Changes that are done all together or not at all when the `with` block ends; `group` owns the messages.

        When the block raises an error, or the broker refuses one step, nothing is done.
        """
        return Transaction(self._inner.transaction(group=group), self._portal)

    def log(self, topic: str, *, timeout: float | None = None) -> Log:
        """A log topic: append to it, and read it by offsets or in groups.

        With a `timeout`, a batch that the broker gets later than so many seconds after it was sent is EXPIRED, and was
        certainly not appended.
        """
        return Log(self._inner.log(topic, timeout=timeout), self._portal)

    def all_topics(self, *, messages: int = 10, after: str = "", count: int = 20, namespace: str = "") -> AllTopics:
        """The next topics `after` a name, as `topics_page` gives them, each with its first `messages`.

        These are the messages that are due next, or the last ones of a log.
        """
        return self._portal.run(
            self._inner.all_topics(messages=messages, after=after, count=count, namespace=namespace)
        )

    def cron(self, topic: str) -> Cron:
        """The schedules of a cron topic."""
        return Cron(self._inner.cron(topic), self._portal)

    def rights(self) -> Rights:
        """The rules that allow and deny."""
        return Rights(self._inner.rights(), self._portal)

    def fan_out(
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
        return self._portal.follow(
            self._inner.fan_out(
                topics,
                body,
                group=group,
                at=at,
                delay=delay,
                id=id,
                priority=priority,
                headers=headers,
                atomic=atomic,
                results=results,
            )
        )

    def dead_letters(self, topic: str) -> DeadLetters:
        """The messages of a topic that were leased too often or rejected."""
        return DeadLetters(self._inner.dead_letters(topic), self._portal)


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
    return Client(
        connect_async(
            target,
            name=name,
            deadline=deadline,
            timeout=timeout,
            on_drift=on_drift,
            drift_ms_max=drift_ms_max,
            follow=follow,
            clock=clock,
            random=random,
            **security,
        ),
        Portal("client", seconds=DEADLINES * deadline),
    )
