"""Generated from `dejaq.sdk.client` by `scripts/generate_sync.py`; edit that module, not this one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from random import Random
from typing import Any, Unpack, overload

from dejaq import limits
from dejaq.domain.backoff import Backoff
from dejaq.domain.message import Message, Status
from dejaq.sdk.admin.cluster import ClusterInfo, Pong, TopicInfo, TopicsPage
from dejaq.sdk.admin.history import MessageHistory
from dejaq.sdk.admin.queries import PAGE_SIZE, Conditions, MessagePage
from dejaq.sdk.blocking.consumer import Consumer
from dejaq.sdk.blocking.cron import Cron
from dejaq.sdk.blocking.dead_letters import DeadLetters
from dejaq.sdk.blocking.log import Log
from dejaq.sdk.blocking.opening import OpenedClient
from dejaq.sdk.blocking.portal import DEADLINES, Portal, each, then
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
from dejaq.sdk.times import At, Delay, Duration
from dejaq.sdk.working.codecs import Codec, CodecName
from dejaq.sdk.working.worker import GRACE_SECONDS, RETRY, Handler, TypedDecorator, WorkerOptions
from dejaq.timekeeper.clock import Clock


class Client(OpenedClient):
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

    def get(self, topic: str, ids: Sequence[str], *, fetch_large: bool = True) -> list[Message | None]:
        """The messages, in the order of `ids`; None for an id that no message has.

        Without `fetch_large` the body of a message that has a large body is empty; its `large` says where it is.
        """
        return self._portal.follow(self._inner.get(topic, ids, fetch_large=fetch_large))

    def fetched(self, message: Message) -> Message | None:
        """The message with its large body, as it was when the body was read; None when the message is gone."""
        return self._portal.follow(self._inner.fetched(message))

    def body_parts(self, message: Message) -> Iterator[bytes]:
        """The body of a message, at most 1 MiB at a time; raises BODY_MISSING when the message is gone.

        Raises PERMISSION_DENIED for a message that the caller may inspect and not read.
        """
        return each(self._inner.body_parts(message), self._portal)

    def count(
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

        `priorities` is the lowest and the highest priority that count; a message must have all `headers`.
        """
        return self._portal.run(
            self._inner.count(
                topic,
                start=start,
                end=end,
                status=status,
                group=group,
                consumer=consumer,
                priorities=priorities,
                headers=headers,
            )
        )

    def histogram(
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
        """(start of the step in epoch ms, count) for each step of so many seconds that has messages; exactly."""
        return self._portal.run(
            self._inner.histogram(
                topic,
                start=start,
                end=end,
                step=step,
                status=status,
                group=group,
                consumer=consumer,
                priorities=priorities,
                headers=headers,
            )
        )

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
    ) -> Iterator[list[Message]]:
        """Pages of messages in order of time, without leasing them."""
        return each(
            self._inner.browse(
                topic,
                start=start,
                end=end,
                status=status,
                group=group,
                consumer=consumer,
                priorities=priorities,
                headers=headers,
                page_size=page_size,
            ),
            self._portal,
        )

    def browse_page(
        self, topic: str, *, page_size: int = PAGE_SIZE, cursor: bytes = b"", **conditions: Unpack[Conditions]
    ) -> MessagePage:
        """One page of messages in order of time; its `cursor` asks for the next page, also in another program.

        The conditions are those of `browse`, and must be the same for every page.
        """
        return self._portal.run(self._inner.browse_page(topic, page_size=page_size, cursor=cursor, **conditions))

    def history(
        self, topic: str, id: str, *, count: int = 1000, seconds: float = 30.0, cursor: bytes = b""
    ) -> MessageHistory:
        """What the journals of all brokers know of one message id, also when the message is gone.

        The newest events are found first. The search ends after about `count` events or `seconds`; then the history has
        a `cursor`, with which another call continues it.
        """
        return self._portal.follow(self._inner.history(topic, id, count=count, seconds=seconds, cursor=cursor))

    def create_topic(
        self,
        name: str,
        *,
        buckets: int | None = None,
        max_future: Duration | None = None,
        max_lease: Duration | None = None,
        max_body_bytes: int | None = None,
        durability: str | None = None,
        journal: bool | None = None,
        expires: bool | None = None,
        client_rate: int | None = None,
        compression: str | None = None,
        share_bodies: bool | None = None,
        encryption: str | None = None,
        kind: str | None = None,
        max_attempts: int | None = None,
        dead_letter: str | None = None,
        expiry_backoff: str | Backoff | None = None,
        dedup: Duration | None = None,
        max_dedup_ids: int | None = None,
        keep: Duration | None = None,
        keep_bytes: int | None = None,
        rollback_window: Duration | None = None,
        trim_read: bool | None = None,
    ) -> TopicInfo:
        """Create a topic; a setting that is not given has its default. A repeat with the same settings changes nothing.

        `max_future` is how far in the future a message may be due, `max_lease` the longest lease that a consumer may
        ask for, and `dedup` how long an own id stays taken after its creation, even when its message is gone. Each is
        seconds, a timedelta or a text such as `90s`, `24h` or `7d`, and is stored in milliseconds, as `dedup_ms`.

        With `kind="log"`, messages are kept for `keep` and up to `keep_bytes` in all, without limit by default. A batch
        can be rolled back within the `rollback_window`. `trim_read` removes what every group has read.

        While a topic of this name is being deleted it waits, up to the client's deadline.
        """
        return self._portal.run(
            self._inner.create_topic(
                name,
                buckets=buckets,
                max_future=max_future,
                max_lease=max_lease,
                max_body_bytes=max_body_bytes,
                durability=durability,
                journal=journal,
                expires=expires,
                client_rate=client_rate,
                compression=compression,
                share_bodies=share_bodies,
                encryption=encryption,
                kind=kind,
                max_attempts=max_attempts,
                dead_letter=dead_letter,
                expiry_backoff=expiry_backoff,
                dedup=dedup,
                max_dedup_ids=max_dedup_ids,
                keep=keep,
                keep_bytes=keep_bytes,
                rollback_window=rollback_window,
                trim_read=trim_read,
            )
        )

    def edit_topic(
        self,
        name: str,
        *,
        max_future: Duration | None = None,
        max_lease: Duration | None = None,
        max_body_bytes: int | None = None,
        durability: str | None = None,
        client_rate: int | None = None,
        compression: str | None = None,
        max_attempts: int | None = None,
        dead_letter: str | None = None,
        expiry_backoff: str | Backoff | None = None,
        max_dedup_ids: int | None = None,
        keep: Duration | None = None,
        keep_bytes: int | None = None,
        rollback_window: Duration | None = None,
        trim_read: bool | None = None,
        **fixed: Any,
    ) -> TopicInfo:
        """Change settings of a topic while it is in use; a setting that is not given keeps its value.

        The new settings apply to messages that are created or leased from now on; durations are as in `create_topic`.
        The other settings of `create_topic` are fixed: INVALID_SETTING for a value that is not the topic's.
        """
        return self._portal.run(
            self._inner.edit_topic(
                name,
                max_future=max_future,
                max_lease=max_lease,
                max_body_bytes=max_body_bytes,
                durability=durability,
                client_rate=client_rate,
                compression=compression,
                max_attempts=max_attempts,
                dead_letter=dead_letter,
                expiry_backoff=expiry_backoff,
                max_dedup_ids=max_dedup_ids,
                keep=keep,
                keep_bytes=keep_bytes,
                rollback_window=rollback_window,
                trim_read=trim_read,
                **fixed,
            )
        )

    def rekey_topic(self, name: str, *, new_key: bool = False) -> str:
        """Protect the keys of an encrypted topic with the current key of the brokers' key provider; returns its name.

        With `new_key` the topic also gets another key for all new bodies. Bodies from before stay readable.
        """
        return self._portal.run(self._inner.rekey_topic(name, new_key=new_key))

    def describe_topic(self, name: str) -> TopicInfo:
        """One topic with its settings and exact counts."""
        return self._portal.run(self._inner.describe_topic(name))

    def topics_page(self, *, after: str = "", count: int = 20, namespace: str = "") -> TopicsPage:
        """The next topics `after` a name that the caller may see, of the namespace `global`, `~` (own) or `~USER`."""
        return self._portal.run(self._inner.topics_page(after=after, count=count, namespace=namespace))

    def topics(self) -> list[TopicInfo]:
        """Every topic that the caller may see, by name; many are read in several calls."""
        return self._portal.run(self._inner.topics())

    def delete_topic(self, name: str) -> None:
        """Delete a topic and its messages; returns when it accepts no more; the broker removes the data later."""
        self._portal.run(self._inner.delete_topic(name))


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
