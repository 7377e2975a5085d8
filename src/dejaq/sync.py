"""DejaQ for programs without an event loop: the same client, each call waiting for its result.

    with dejaq.sync.connect("dejaq://127.0.0.1:7400") as client:
        with client.producer("mail", group="billing") as producer:
            producer.send(b"hello", delay=2.5)
        with client.consumer("mail", name="worker-1") as consumer:
            for lease in consumer:
                lease.delete()

One thread runs the event loop of a client; its objects may be used from any other thread.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Coroutine, Iterator, Sequence
from datetime import datetime
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

from dejaq.domain.message import Message
from dejaq.errors import Code
from dejaq.sdk.admin import ClusterInfo, Pong, TopicInfo
from dejaq.sdk.bulk import BulkResult, Where
from dejaq.sdk.client import Client as AsyncClient
from dejaq.sdk.client import connect as connect_async
from dejaq.sdk.consumer import BATCH_SIZE
from dejaq.sdk.consumer import Consumer as AsyncConsumer
from dejaq.sdk.cron import Cron as AsyncCron
from dejaq.sdk.cron import ScheduleInfo
from dejaq.sdk.dead_letters import DeadLetters as AsyncDeadLetters
from dejaq.sdk.lease import Batch as AsyncBatch
from dejaq.sdk.lease import Lease as AsyncLease
from dejaq.sdk.producer import Producer as AsyncProducer
from dejaq.sdk.replies import Reply
from dejaq.sdk.results import FanOut, Results
from dejaq.sdk.transaction import Transaction as AsyncTransaction

Value = TypeVar("Value")
Inner = TypeVar("Inner")


class Runner:
    """An event loop in a thread of its own."""

    def start(self) -> None:
        """Begin the thread."""
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="dejaq-sync", daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, Value]) -> Value:
        """Run a coroutine there and wait for its result; an interrupt here cancels it there."""
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def stop(self) -> None:
        """End the thread."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


class _Wrapper(Generic[Inner]):
    def __init__(self, inner: Inner, runner: Runner) -> None:
        self._inner = inner
        self._runner = runner


class Lease(_Wrapper[AsyncLease]):
    """One leased message; its values are those of `dejaq.Lease`."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def read(self) -> bytes:
        """The whole body, fetched when it is large and not here yet."""
        return self._runner.run(self._inner.read())

    def parts(self) -> Iterator[bytes]:
        """The body, at most 1 MiB at a time."""
        return _each(self._inner.parts(), self._runner)

    def delete(self, **reply: Any) -> None:
        """Remove the message: its work is done; with `reply=...` its producer is answered."""
        self._runner.run(self._inner.delete(**reply))

    def extend(self, seconds: float) -> None:
        """Keep it for so long from now."""
        self._runner.run(self._inner.extend(seconds))

    def release(self, **when: Any) -> None:
        """Put it back on the timeline, at `at` or after `delay`."""
        self._runner.run(self._inner.release(**when))

    def reject(self, reason: str) -> None:
        """Move it to the dead-letter topic: no attempt will help."""
        self._runner.run(self._inner.reject(reason))


class Batch(_Wrapper[AsyncBatch]):
    """Messages that were due together; its columns are those of `dejaq.Batch`."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def __len__(self) -> int:
        return len(self._inner)

    def __iter__(self) -> Iterator[Lease]:
        return (Lease(lease, self._runner) for lease in self._inner)

    def delete(self, positions: Sequence[int] | None = None) -> Results:
        """Remove the messages: their work is done."""
        return self._runner.run(self._inner.delete(positions))

    def extend(self, seconds: float, positions: Sequence[int] | None = None) -> Results:
        """Keep them for so long from now."""
        return self._runner.run(self._inner.extend(seconds, positions))

    def release(self, **when: Any) -> Results:
        """Put them back on the timeline, at `at` or after `delay`."""
        return self._runner.run(self._inner.release(**when))

    def reject(self, reason: str, positions: Sequence[int] | None = None) -> Results:
        """Move them to the dead-letter topic: no attempt will help."""
        return self._runner.run(self._inner.reject(reason, positions))


class Transaction(_Wrapper[AsyncTransaction]):
    """Changes that are done together; its methods are those of `dejaq.Transaction`."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._runner.run(self._inner.__aexit__(kind, error, trace))


class Cron(_Wrapper[AsyncCron]):
    """The schedules of one cron topic; arguments are those of `dejaq.Cron`."""

    def add(self, name: str, expression: str, body: str | bytes = "", **fields: Any) -> ScheduleInfo:
        """Add a schedule."""
        return self._runner.run(self._inner.add(name, expression, body, **fields))

    def get(self, name: str) -> ScheduleInfo | None:
        """One schedule; None when there is none of this name."""
        return self._runner.run(self._inner.get(name))

    def all(self) -> Iterator[ScheduleInfo]:
        """Every schedule, those that run next first."""
        return _each(self._inner.all(), self._runner)

    def pause(self, name: str) -> ScheduleInfo:
        """Make no more occurrences."""
        return self._runner.run(self._inner.pause(name))

    def resume(self, name: str) -> ScheduleInfo:
        """Go on with the next time to come."""
        return self._runner.run(self._inner.resume(name))

    def run(self, name: str) -> str:
        """Make one occurrence now; gives its id."""
        return self._runner.run(self._inner.run(name))

    def remove(self, name: str) -> None:
        """Forget a schedule."""
        self._runner.run(self._inner.remove(name))

    def next(self, name: str, count: int = 5) -> list[datetime]:
        """The coming times of a schedule."""
        return self._runner.run(self._inner.next(name, count))


class Producer(_Wrapper[AsyncProducer]):
    """Sends to one topic; arguments are those of `dejaq.Producer`."""

    def __enter__(self) -> Self:
        self._runner.run(self._inner.open())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._runner.run(self._inner.close())

    def send(self, body: bytes, **options: Any) -> str:
        """Send one message and return its id."""
        return self._runner.run(self._inner.send(body, **options))

    def request(self, body: bytes, **options: Any) -> Reply:
        """Send one message and wait until its consumer answers."""
        return self._runner.run(self._inner.request(body, **options))

    def reply_to(self, id: str, *, timeout: float = 30.0) -> Reply:
        """Wait for the reply to a message that was sent with `request`."""
        return self._runner.run(self._inner.reply_to(id, timeout=timeout))

    def send_batch(self, bodies: Sequence[bytes], **options: Any) -> Results:
        """Send many messages, given as columns."""
        return self._runner.run(self._inner.send_batch(bodies, **options))

    def move(self, ids: str | Sequence[str], **when: Any) -> Results:
        """Give messages another time."""
        return self._runner.run(self._inner.move(ids, **when))

    def edit(self, id: str, **changes: Any) -> Code:
        """Change one message."""
        return self._runner.run(self._inner.edit(id, **changes))

    def edit_batch(self, ids: Sequence[str], **columns: Any) -> Results:
        """Change many messages, as columns."""
        return self._runner.run(self._inner.edit_batch(ids, **columns))

    def cancel(self, ids: str | Sequence[str], *, versions: int | Sequence[int] | None = None) -> Results:
        """Remove messages."""
        return self._runner.run(self._inner.cancel(ids, versions=versions))

    def count_where(self, where: Where) -> int:
        """How many messages match now."""
        return self._runner.run(self._inner.count_where(where))

    def edit_where(self, where: Where, **changes: Any) -> BulkResult:
        """Change every message that matches."""
        return self._runner.run(self._inner.edit_where(where, **changes))

    def move_where(self, where: Where, **when: Any) -> BulkResult:
        """Give every message that matches another time."""
        return self._runner.run(self._inner.move_where(where, **when))

    def cancel_where(self, where: Where, **options: Any) -> BulkResult:
        """Remove every message that matches."""
        return self._runner.run(self._inner.cancel_where(where, **options))


class Consumer(_Wrapper[AsyncConsumer]):
    """An iterator of leases; `batches` gives them many at a time."""

    def __enter__(self) -> Self:
        self._runner.run(self._inner.open())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._runner.run(self._inner.close())

    def __iter__(self) -> Iterator[Lease]:
        return (Lease(lease, self._runner) for lease in _each(self._inner, self._runner))

    def pause(self) -> None:
        """Take nothing until `resume`."""
        self._runner.run(self._inner.pause())

    def resume(self) -> None:
        """Take messages again."""
        self._runner.run(self._inner.resume())

    def busy(self, seconds: float) -> None:
        """Take nothing for so long, and a smaller share after it."""
        self._runner.run(self._inner.busy(seconds))

    def batches(self, size: int = BATCH_SIZE) -> Iterator[Batch]:
        """Batches of at most `size` leases."""
        return (Batch(batch, self._runner) for batch in _each(self._inner.batches(size), self._runner))


class DeadLetters(_Wrapper[AsyncDeadLetters]):
    """The dead letters of one topic; arguments are those of `dejaq.DeadLetters`."""

    def count(self, **where: Any) -> int:
        """How many there are."""
        return self._runner.run(self._inner.count(**where))

    def browse(self, **where: Any) -> Iterator[list[Message]]:
        """Pages of them in the order they died."""
        return _each(self._inner.browse(**where), self._runner)

    def redrive(self, ids: Sequence[str] | None = None, **options: Any) -> BulkResult:
        """Move them back to where they died, or to another topic."""
        return self._runner.run(self._inner.redrive(ids, **options))

    def purge(self, ids: Sequence[str] | None = None, **options: Any) -> BulkResult:
        """Remove them for good."""
        return self._runner.run(self._inner.purge(ids, **options))


class Client(_Wrapper[AsyncClient]):
    """Makes topics, producers and consumers; arguments are those of `dejaq.Client`."""

    def __enter__(self) -> Self:
        self._runner.start()
        try:
            self._runner.run(self._inner.__aenter__())
        except BaseException:
            self._runner.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._runner.run(self._inner.close())
        finally:
            self._runner.stop()

    def producer(self, topic: str, **options: Any) -> Producer:
        """A producer; open it with `with`."""
        return Producer(self._inner.producer(topic, **options), self._runner)

    def consumer(self, topic: str, **options: Any) -> Consumer:
        """A consumer; open it with `with`."""
        return Consumer(self._inner.consumer(topic, **options), self._runner)

    def transaction(self, *, group: str = "default") -> Transaction:
        """Changes that are done together or not at all when the `with` block ends."""
        return Transaction(self._inner.transaction(group=group), self._runner)

    def cron(self, topic: str) -> Cron:
        """The schedules of a cron topic."""
        return Cron(self._inner.cron(topic), self._runner)

    def fan_out(self, topics: Sequence[str], body: bytes, **options: Any) -> FanOut:
        """Send one message to several topics under one id."""
        return self._runner.run(self._inner.fan_out(topics, body, **options))

    def ping(self) -> Pong:
        """Ask a broker for its time."""
        return self._runner.run(self._inner.ping())

    def info(self) -> ClusterInfo:
        """The cluster: brokers, topics and clients."""
        return self._runner.run(self._inner.info())

    def create_topic(self, name: str, **settings: Any) -> TopicInfo:
        """Create a topic; a repeat with the same settings changes nothing."""
        return self._runner.run(self._inner.create_topic(name, **settings))

    def describe_topic(self, name: str) -> TopicInfo:
        """One topic with its settings and exact counts."""
        return self._runner.run(self._inner.describe_topic(name))

    def topics(self) -> list[TopicInfo]:
        """Every topic."""
        return self._runner.run(self._inner.topics())

    def delete_topic(self, name: str) -> None:
        """Delete a topic with every message in it."""
        self._runner.run(self._inner.delete_topic(name))

    def dead_letters(self, topic: str) -> DeadLetters:
        """The dead letters of a topic."""
        return DeadLetters(self._inner.dead_letters(topic), self._runner)

    def get(self, topic: str, ids: Sequence[str], *, fetch_large: bool = True) -> list[Message | None]:
        """The messages, in the order of `ids`; None where there is none."""
        return self._runner.run(self._inner.get(topic, ids, fetch_large=fetch_large))

    def body_parts(self, message: Message) -> Iterator[bytes]:
        """The body of a message, at most 1 MiB at a time."""
        return _each(self._inner.body_parts(message), self._runner)

    def count(self, topic: str, **where: Any) -> int:
        """How many messages there are, exactly."""
        return self._runner.run(self._inner.count(topic, **where))

    def histogram(self, topic: str, **where: Any) -> list[tuple[int, int]]:
        """(start of step in epoch ms, count) for each step that has messages."""
        return self._runner.run(self._inner.histogram(topic, **where))

    def browse(self, topic: str, **where: Any) -> Iterator[list[Message]]:
        """Pages of messages in order of time, without taking them."""
        return _each(self._inner.browse(topic, **where), self._runner)


class Broker:
    """A `dejaq.Broker` for a program without an event loop; arguments are the same, `url` is where it serves."""

    def __init__(self, data: str | os.PathLike[str] | None = None, **keys: Any) -> None:
        from dejaq.broker import Broker as AsyncBroker

        self._inner = AsyncBroker(data, **{"listen": "127.0.0.1:0", **keys})
        self._runner = Runner()

    @property
    def url(self) -> str:
        """What a client connects to."""
        return f"dejaq://{self._inner.address}"

    def __enter__(self) -> Self:
        self._runner.start()
        try:
            self._runner.run(self._inner.start())
        except BaseException:
            self._runner.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._runner.run(self._inner.stop())
        finally:
            self._runner.stop()


def _each(items: AsyncIterator[Value], runner: Runner) -> Iterator[Value]:
    async def following() -> tuple[Value, ...]:
        try:
            return (await anext(items),)
        except StopAsyncIteration:
            return ()

    while item := runner.run(following()):
        yield item[0]


def connect(target: str, **options: Any) -> Client:
    """A blocking client; the options are those of `dejaq.connect`. Open it with `with`."""
    return Client(connect_async(target, **options), Runner())
