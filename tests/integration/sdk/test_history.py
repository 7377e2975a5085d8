"""What the journals know of one message, over the outbox, the segments and the brokers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import dejaq
from dejaq.broker import Broker
from dejaq.cli.main import run
from dejaq.errors import Code, DejaqError
from dejaq.journal.exporter import Exporter
from dejaq.journal.history import Wanted, events_in_records, events_in_segment, segments_of
from dejaq.protocol.v1 import carrier_pb2 as carrier
from dejaq.protocol.v1 import history_pb2 as history
from dejaq.protocol.v1 import journal_pb2 as journal
from dejaq.storage.memory.store import MemoryStorage
from dejaq.storage.outbox import CREATED
from dejaq.testing.shared import SharedMemoryStorage
from dejaq.testing.waiting import eventually
from dejaq.timekeeper.clock import VirtualClock
from tests.integration.cluster.crew import Crew
from tests.integration.journal.store import NOW, Work, open_topic

HOUR_MS = 3_600_000


async def live(client: dejaq.Client, topic: str, message_id: str) -> None:
    """One life of a message: created, edited, leased, deleted."""
    async with client.producer(topic, group="billing") as producer:
        await producer.send(b"hello", id=message_id, delay=60)
        await producer.edit(message_id, body=b"changed", delay=0)
    async with client.consumer(topic, name="worker", max_messages=1) as consumer:
        async for lease in consumer:
            await lease.delete()


def kinds(found: dejaq.MessageHistory) -> list[str]:
    return [event.kind for event in found.events]


LIFE = ["created", "edited", "leased", "deleted"]


@pytest.mark.parametrize("interval_ms", [20, HOUR_MS])
async def test_a_message_that_is_gone_has_its_whole_life(tmp_path: Path, interval_ms: int) -> None:
    """Exported at once, or still in the outbox."""
    async with Broker(tmp_path, journal_interval_ms=interval_ms) as broker, dejaq.connect(broker) as client:
        await client.create_topic("mail")
        await live(client, "mail", "invoice-1")
        await live(client, "mail", "invoice-2")
        found = await client.history("mail", "invoice-1")
        assert kinds(found) == LIFE
        assert found.complete
        assert found.notes == ()
        created, edited, leased, deleted = found.events
        assert (created.actor, created.body_bytes, created.priority) == ("billing", 5, 0)
        assert edited.body_bytes == 7
        assert leased.actor == deleted.actor == "worker"
        assert leased.lease == deleted.lease != 0
        assert (leased.attempts, leased.ts_ms) == (1, edited.ts_ms)
        assert deleted.handed_us is not None
        assert await client.get("mail", ["invoice-1"]) == [None]


async def test_two_lives_of_one_id_and_the_end_of_a_topic_are_in_order(tmp_path: Path) -> None:
    async with Broker(tmp_path, journal_interval_ms=20) as broker, dejaq.connect(broker) as client:
        await client.create_topic("mail")
        await live(client, "mail", "again")
        await live(client, "mail", "again")
        async with client.producer("mail") as producer:
            await producer.send(b"x", id="again", delay=60)
        await client.delete_topic("mail")
        await eventually(
            lambda: "mail" not in {topic.name for topic in broker.central.catalog.all()}, within=10, what="it is gone"
        )
        assert kinds(await client.history("mail", "again")) == [*LIFE, *LIFE, "created", "topic_dropped"]
        # The end of the topic is no part of a message that was never in it.
        assert kinds(await client.history("mail", "never")) == []


async def test_generated_ids_are_found(tmp_path: Path) -> None:
    async with Broker(tmp_path, journal_interval_ms=20) as broker, dejaq.connect(broker) as client:
        await client.create_topic("mail")
        async with client.producer("mail") as producer:
            sent = await producer.send_batch([b"x"] * 300, delay=60)
            await producer.move(sent.ids[7], delay=120)
        assert kinds(await client.history("mail", sent.ids[7])) == ["created", "moved"]
        assert kinds(await client.history("mail", sent.ids[8])) == ["created"]
        assert kinds(await client.history("other", sent.ids[8])) == []


async def test_a_search_continues_after_a_restart_and_in_small_pages(tmp_path: Path) -> None:
    for _ in range(3):
        async with Broker(tmp_path) as broker, dejaq.connect(broker) as client:
            if not await client.topics():
                await client.create_topic("mail")
            await live(client, "mail", "again")
    async with Broker(tmp_path) as broker, dejaq.connect(broker) as client:
        pages = [await client.history("mail", "again", count=1)]
        while not pages[-1].complete:
            pages.append(await client.history("mail", "again", count=1, cursor=pages[-1].cursor))
        assert len(pages) == 3
        assert [kind for page in reversed(pages) for kind in kinds(page)] == 3 * LIFE


async def test_what_is_not_recorded_is_said(tmp_path: Path) -> None:
    async with Broker() as broker, dejaq.connect(broker) as client:
        await client.create_topic("mail")
        found = await client.history("mail", "one")
        assert found.events == ()
        assert found.notes == (f"broker {broker.config.name}: the journal is off: messages live in memory only",)
    async with Broker(tmp_path) as broker, dejaq.connect(broker) as client:
        await client.create_topic("secret", journal=False)
        assert (await client.history("secret", "one")).notes == ("no journal is kept of secret",)


@pytest.mark.parametrize(
    ("topic", "message_id", "code"),
    [("no topic", "x", Code.INVALID_TOPIC), ("mail", "no id", Code.INVALID_ID), ("", "x", Code.INVALID_TOPIC)],
)
async def test_wrong_names_are_refused(tmp_path: Path, topic: str, message_id: str, code: Code) -> None:
    async with Broker(tmp_path) as broker, dejaq.connect(broker) as client:
        with pytest.raises(DejaqError) as refused:
            await client.history(topic, message_id)
        assert refused.value.code == code
        with pytest.raises(DejaqError, match="cursor"):
            await client.history("mail", "one", cursor=b"\xff\xff")


async def test_every_broker_of_a_cluster_is_asked(tmp_path: Path) -> None:
    """The journal of one broker is found through the other one; after its end, the answer says what is missing."""
    crew = Crew()
    crew.storage = SharedMemoryStorage(journal=True)
    try:
        await crew.make("a", data=str(tmp_path)).start()
        await crew.make("b").start()
        await crew.gathered()
        async with dejaq.connect(f"dejaq://{crew.address_of('b')}", follow=False) as client:
            await client.create_topic("mail")
            await live(client, "mail", "one")
            found = await client.history("mail", "one")
            assert kinds(found) == LIFE
            assert found.notes == ("broker b: the journal is off: messages live in memory only",)
            # The connection is cut, while the broker is still a member.
            crew.brokers["b"].central.cluster.connections.set({})
            found = await client.history("mail", "one")
            assert found.events == ()
            assert "the journal of broker a was not searched" in found.notes[0]
    finally:
        for broker in crew.brokers.values():
            await broker.stop()


async def test_segments_and_records_give_the_same_events(tmp_path: Path) -> None:
    """The events of every id that random changes concern, from both forms of the same records."""
    storage = MemoryStorage(journal=True)
    await storage.open(NOW)
    work = Work(storage, await open_topic(storage), seed=7)
    for _ in range(40):
        await work.step()
    records = await storage.journal(0, 2**40)
    exporter = Exporter(storage=storage, clock=VirtualClock(), directory=tmp_path / "journal", home=tmp_path)
    await exporter.start()
    await exporter.stop()
    ((origin, names),) = segments_of(tmp_path / "journal").items()
    some = 0
    for message_id in work.created:
        wanted = Wanted("mail", message_id)
        read = [event for name in reversed(names) for event in events_in_segment(tmp_path / "journal", name, wanted)]
        assert read == events_in_records(records, origin, wanted)
        assert read[0].kind == "created"
        some += len(read)
    assert some > len(work.created)


def test_a_span_is_searched_by_its_counter() -> None:
    prefix = "0" * 24
    events = journal.Events(
        kind=CREATED,
        topic="mail",
        spans=[carrier.IdSpan(prefix=prefix, first=5, count=3), carrier.IdSpan(count=2)],
        joined="natural\nother",
        ts=[1, 2, 3, 4, 5],
    )
    record = journal.JournalRecord(sequence=9, at_ms=8, events=[events]).SerializeToString()

    def rows(message_id: str, *, after: int = 0) -> list[tuple[int, int]]:
        found = events_in_records([record], "o", Wanted("mail", message_id), after=after)
        return [(event.row, event.ts_ms) for event in found]

    assert rows(f"{prefix}{4:08x}") == rows(f"{prefix}{8:08x}") == rows("nat") == []
    assert rows(f"{prefix}{5:08x}") == [(0, 1)]
    assert rows(f"{prefix}{7:08x}") == [(2, 3)]
    assert rows("other") == [(4, 5)]
    assert rows("other", after=9) == []


def test_the_command_prints_a_life(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from dejaq.sync import Broker as BlockingBroker
    from dejaq.sync import connect

    with BlockingBroker(tmp_path, listen="127.0.0.1:0") as broker:
        url = f"dejaq://{broker.address}"
        with connect(url) as client:
            client.create_topic("mail")
            with client.producer("mail", group="billing") as producer:
                producer.send(b"hello", id="one", delay=60)
            assert [event.kind for event in client.history("mail", "one").events] == ["created"]
        assert run(["history", "mail", "one", "--url", url]) == 0
        assert "created        by=billing" in capsys.readouterr().out
        assert run(["history", "mail", "one", "--url", url, "--json"]) == 0
        line = json.loads(capsys.readouterr().out)
        assert (line["kind"], line["actor"], line["body_bytes"]) == ("created", "billing", 5)
        assert run(["history", "mail", "two", "--url", url]) == 1
        assert "know nothing of two in mail" in capsys.readouterr().err
        assert run(["history", "mail", "no id", "--url", url]) == 1
        assert "Traceback" not in capsys.readouterr().err


def test_a_position_survives_its_cursor() -> None:
    position = history.HistoryPosition(broker="b", origin="o", before=5)
    assert history.HistoryPosition.FromString(position.SerializeToString()) == position
