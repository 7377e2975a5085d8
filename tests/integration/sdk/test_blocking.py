"""The blocking client against a broker in this process, over the network."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from collections.abc import Iterator

import pytest

import dejaq
import dejaq.sync
from dejaq.sdk.blocking import portal as portals
from dejaq.sdk.blocking.portal import Portal
from dejaq.testing.waiting import patient

TOPIC = "mail"


@pytest.fixture
def client() -> Iterator[dejaq.sync.Client]:
    with dejaq.sync.Broker(drain_ms=0) as broker, dejaq.sync.connect(broker.url, deadline=5.0) as client:
        client.create_topic(TOPIC, buckets=2)
        client.create_topic("jobs", kind="cron")
        yield client


def test_schedules_can_be_added_together_previewed_and_their_history_read(client: dejaq.sync.Client) -> None:
    """U19: the blocking client lacked add_many, preview and history."""
    cron = client.cron("jobs")
    added = cron.add_many([dejaq.Schedule("a", "@daily"), dejaq.Schedule("b", "@hourly")])
    assert {schedule.name for schedule in cron.all()} == {"a", "b"}
    assert cron.get("a") == added[0]
    assert cron.history("a") == ()
    assert len(cron.preview("@hourly", 3)) == 3


def test_a_consumer_gives_batches_and_can_be_stopped(client: dejaq.sync.Client) -> None:
    """U19: the blocking client lacked take, stop and paused."""
    with client.producer(TOPIC) as producer, client.consumer(TOPIC) as consumer:
        producer.send_batch([b"a", b"b"])
        batch = consumer.take(2)
        assert set(batch.bodies) <= {b"a", b"b"}
        assert batch[0].body in {b"a", b"b"}
        assert batch.delete().ok
        consumer.pause()
        assert consumer.paused
        consumer.stop()
        with pytest.raises(StopIteration):
            consumer.take()
        assert list(consumer) == []


def test_a_wait_for_messages_may_have_a_time_limit(client: dejaq.sync.Client) -> None:
    """U19: a program without an event loop could not stop waiting."""
    with client.producer(TOPIC) as producer, client.consumer(TOPIC) as consumer:
        with pytest.raises(TimeoutError):
            consumer.take(1, timeout=0.05)
        producer.send(b"a")
        assert consumer.take(1, timeout=20).bodies == [b"a"]


def test_objects_that_the_blocking_client_returns_are_blocking_too(client: dejaq.sync.Client) -> None:
    with client.producer(TOPIC) as producer, client.consumer(TOPIC) as consumer:
        producer.send_batch([b"a", b"b", b"c"])
        left = 3
        for batch in consumer.batches(3):
            for lease in batch:
                assert isinstance(lease, dejaq.sync.Lease)
                assert b"".join(lease.parts()) == lease.read()
                lease.delete()
            left -= len(batch)
            if not left:
                break
    assert client.count(TOPIC) == 0


def test_a_transaction_settles_blocking_leases(client: dejaq.sync.Client) -> None:
    with client.producer(TOPIC) as producer, client.consumer(TOPIC) as consumer:
        producer.send(b"a")
        lease = next(consumer)
        with client.transaction() as transaction:
            transaction.delete(lease)
            transaction.create(TOPIC, b"next", delay=60)
    assert [message.body for page in client.browse(TOPIC) for message in page] == [b"next"]


def test_a_worker_runs_during_a_with_block(client: dejaq.sync.Client) -> None:
    """U19: the blocking client lacked workers."""
    done = threading.Event()

    @client.worker(TOPIC)
    def handle(lease: dejaq.sync.Lease) -> None:
        if lease.attempts == 1:
            lease.release()
        else:
            done.set()

    with client.producer(TOPIC) as producer, handle.running():
        producer.send(b"a")
        assert done.wait(20)
    assert handle.stats.failed == 0
    assert client.count(TOPIC) == 0


def test_workers_run_until_a_signal(client: dejaq.sync.Client) -> None:
    """U19: the blocking client lacked run_workers."""

    @client.worker(TOPIC)
    def handle(lease: dejaq.sync.Lease) -> None:
        os.kill(os.getpid(), signal.SIGTERM)

    before = signal.getsignal(signal.SIGTERM)
    with client.producer(TOPIC) as producer:
        producer.send(b"a")
    client.run_workers()
    assert handle.stats.done == 1
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_closed_client_reports_that_it_is_closed(client: dejaq.sync.Client) -> None:
    """U9, U19: the error was `Event loop is closed`."""
    producer, consumer = client.producer(TOPIC), client.consumer(TOPIC)
    with producer, consumer:
        client.close()
        client.close()
        for call in (client.ping, lambda: producer.send(b"x"), lambda: next(consumer), client.open):
            with pytest.raises(dejaq.OutOfState, match="this client is closed"):
                call()
        with pytest.raises(dejaq.OutOfState, match="this client is closed"), client.transaction() as transaction:
            transaction.send(TOPIC, b"x")


def test_a_client_that_is_not_open_reports_it() -> None:
    """U9, U19: the error was an AttributeError, because the client has no event loop before it is opened."""
    client = dejaq.sync.connect("dejaq://127.0.0.1:1")
    with pytest.raises(dejaq.OutOfState, match="use it as `with"):
        client.ping()


def test_a_call_that_waits_ends_when_another_thread_closes_the_client(client: dejaq.sync.Client) -> None:
    """U19: a consumer in another thread waited without end."""
    ended: list[BaseException] = []
    waiting = threading.Event()

    def consume() -> None:
        with client.consumer(TOPIC) as consumer:
            waiting.set()
            try:
                next(consumer, None)
            except dejaq.DejaqError as error:
                ended.append(error)

    thread = threading.Thread(target=consume)
    thread.start()
    assert waiting.wait(20)
    client.close()
    thread.join(20)
    assert not thread.is_alive()


def test_a_callback_that_calls_the_client_is_refused(client: dejaq.sync.Client) -> None:
    """U19: the callback waited for the event loop that it blocked."""
    seen: list[str] = []

    def progress(_done: int, _total: int | None) -> None:
        try:
            client.ping()
        except dejaq.OutOfState as error:
            seen.append(str(error))

    with client.producer(TOPIC) as producer:
        producer.send(b"x", delay=60)
        assert producer.cancel_where(dejaq.Where(), everything=True, progress=progress).done == 1
    assert "event loop of the client itself" in seen[0]


def test_a_call_waits_no_longer_than_its_time_limit() -> None:
    """U19: a wait had no time limit."""
    portal = Portal("client", seconds=0.05)
    portal.start()
    try:
        with pytest.raises(dejaq.Indefinite, match="within"):
            portal.run(asyncio.Event().wait())
    finally:
        portal.stop()


def test_a_call_does_not_wait_for_a_blocked_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """U19: a callback that blocks made every call wait."""
    monkeypatch.setattr(portals, "STALL_SECONDS", 0.05)
    portal = Portal("client", seconds=5.0)
    portal.start()
    free = threading.Event()
    try:
        portal.call_soon(lambda: free.wait(20))
        with pytest.raises(dejaq.Indefinite, match="has not run"):
            portal.follow(asyncio.Event().wait())
    finally:
        free.set()
        portal.stop()


def test_an_iteration_that_is_left_early_is_closed(client: dejaq.sync.Client) -> None:
    with client.producer(TOPIC) as producer:
        producer.send_batch([b"x"] * 5, delay=60)
    pages = client.browse(TOPIC, page_size=1)
    assert len(next(pages)) == 1
    started = time.monotonic()
    pages.close()  # type: ignore[attr-defined]
    client.close()
    assert time.monotonic() - started < patient(5)
