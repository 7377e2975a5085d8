"""A broker keeps a journal of its clients' changes, and reports when it does not."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import generate_latest

import dejaq
from dejaq.broker import Broker, recorder
from dejaq.config import load_config
from dejaq.errors import DejaqError
from dejaq.journal.verification import verify
from dejaq.testing.waiting import eventually
from tests.integration.journal.store import exported


async def notes_of(broker: Broker) -> tuple[str, ...]:
    async with dejaq.connect(broker) as client:
        return (await client.info()).brokers[0].notes


async def test_the_events_of_a_message_are_in_the_journal_when_the_broker_has_stopped(tmp_path: Path) -> None:
    """G9: the message was created, leased, received by user code, and deleted."""
    async with Broker(tmp_path / "data") as broker, dejaq.connect(broker) as client:
        await client.create_topic("mail")
        async with client.producer("mail", group="billing") as producer:
            sent = await producer.send(b"hello", delay=0.05)
        async with client.consumer("mail", name="worker") as consumer:
            async for lease in consumer:
                await lease.delete()
                break
        assert (await client.info()).brokers[0].notes == ()
    directory = tmp_path / "data" / "journal"
    assert verify(directory).whole
    rows = exported(directory)
    assert [(row["kind"], row["actor"]) for row in rows] == [
        ("created", "billing"),
        ("leased", "worker"),
        ("deleted", "worker"),
    ]
    created, leased, deleted = rows
    assert {row["id"] for row in rows} == {sent}
    assert created["body_bytes"] == 5
    assert leased["lease"] == deleted["lease"] != 0
    assert created["ts_ms"] == leased["ts_ms"]
    lateness_ms = deleted["handed_us"] / 1_000 - leased["ts_ms"]
    assert 0 <= lateness_ms < 10_000


async def test_the_journal_is_written_to_the_configured_directory(tmp_path: Path) -> None:
    async with (
        Broker(tmp_path / "data", journal=str(tmp_path / "elsewhere")) as broker,
        dejaq.connect(broker) as client,
    ):
        await client.create_topic("mail")
        async with client.producer("mail", group="g") as producer:
            await producer.send(b"x")
    assert verify(tmp_path / "elsewhere").events == 1
    assert not (tmp_path / "data" / "journal").exists()


async def test_metrics_show_the_state_of_the_journal(tmp_path: Path) -> None:
    async with Broker(tmp_path / "data", journal_interval_ms=10) as broker:
        async with dejaq.connect(broker) as client:
            await client.create_topic("mail")
            async with client.producer("mail", group="g") as producer:
                await producer.send(b"x")

        def metrics() -> str:
            return generate_latest(broker.central.metrics.registry).decode()

        await eventually(lambda: "dejaq_journal_events_total 1.0" in metrics(), within=10)
        await eventually(lambda: 'dejaq_journal_lag{unit="records"} 0.0' in metrics(), within=10)
        assert 'dejaq_journal_lag{unit="bytes"} 0.0' in metrics()
        assert "dejaq_journal_segments 1.0" in metrics()


async def test_a_topic_without_a_journal_is_named(tmp_path: Path) -> None:
    async with Broker(tmp_path / "data") as broker, dejaq.connect(broker) as client:
        await client.create_topic("recorded")
        await client.create_topic("secret", journal=False)
        assert (await client.info()).brokers[0].notes == ("no journal is kept of secret",)


async def test_a_journal_that_is_off_is_reported(tmp_path: Path) -> None:
    async with Broker(tmp_path / "data", journal="off") as broker:
        assert await notes_of(broker) == ("the journal is off",)
    assert not (tmp_path / "data" / "journal").exists()
    async with Broker() as broker:
        assert await notes_of(broker) == ("the journal is off: messages live in memory only",)


async def test_without_the_extra_the_broker_runs_and_names_the_missing_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    found = importlib.util.find_spec

    def find_spec(name: str) -> Any:
        return None if name == "pyarrow" else found(name)

    monkeypatch.setattr(recorder, "find_spec", find_spec)
    with caplog.at_level("INFO", logger="dejaq.broker.recorder"):
        async with Broker(tmp_path / "data") as broker:
            (note,) = await notes_of(broker)
    assert note == "the journal is off: it needs pyarrow, which dejaq-mq[pipeline] installs"
    assert [record.message for record in caplog.records if record.name == "dejaq.broker.recorder"] == [note]
    with pytest.raises(DejaqError, match=r"cannot be written: it needs pyarrow"):
        Broker(tmp_path / "data", journal=str(tmp_path / "journal"))


async def test_a_directory_that_cannot_be_used_stops_the_start(tmp_path: Path) -> None:
    (tmp_path / "journal").write_text("in the way")
    broker = Broker(tmp_path / "data", journal=str(tmp_path / "journal"))
    with pytest.raises(DejaqError, match="the journal cannot be kept in"):
        await broker.start()
    async with Broker(tmp_path / "data", journal="off"):
        pass


async def test_two_stores_do_not_share_a_directory(tmp_path: Path) -> None:
    async with Broker(tmp_path / "one", journal=str(tmp_path / "journal")):
        with pytest.raises(DejaqError, match="signed with another key"):
            await Broker(tmp_path / "two", journal=str(tmp_path / "journal")).start()


async def test_a_fault_of_the_journal_is_a_degradation_and_stops_no_client(tmp_path: Path) -> None:
    directory = tmp_path / "data" / "journal"
    async with (
        Broker(tmp_path / "data", journal_interval_ms=10) as broker,
        dejaq.connect(broker) as client,
    ):
        await client.create_topic("mail")
        directory.rename(tmp_path / "aside")
        directory.write_text("in the way")
        async with client.producer("mail", group="g") as producer:
            await producer.send(b"x")
            await eventually(lambda: "journal" in broker.central.doctor.degradations, within=10)
            await producer.send(b"y")
        directory.unlink()
        (tmp_path / "aside").rename(directory)
        await eventually(lambda: "journal" not in broker.central.doctor.degradations, within=10)
    assert verify(directory).events == 2


@pytest.mark.parametrize(
    ("keys", "about"),
    [
        ({"journal": "somewhere"}, "without a data directory"),
        ({"journal_max_age": -1}, "journal_max_age"),
        ({"journal_max_bytes": -1}, "journal_max_bytes"),
        ({"journal_interval_ms": 0}, "journal_interval_ms"),
    ],
)
def test_a_wrong_key_is_named(keys: dict[str, Any], about: str) -> None:
    with pytest.raises(DejaqError, match=about):
        load_config(env={}, **keys)
