"""The names of batches: a producer works however many sends are refused, and a copy of its process loses no message."""

from __future__ import annotations

import copy
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

import dejaq
from dejaq import limits
from dejaq.errors import Code, Conflict
from dejaq.timekeeper.clock import VirtualClock
from tests.integration.sdk.conftest import TOPIC
from tests.integration.sdk.cutting import CuttingTransport


@pytest.fixture(params=["memory", "rocksdb"])
async def broker(request: pytest.FixtureRequest, clock: VirtualClock, tmp_path: Path) -> AsyncIterator[dejaq.Broker]:
    data = str(tmp_path / "store") if request.param == "rocksdb" else None
    async with dejaq.Broker(clock=clock, drain_ms=0, data=data) as broker:
        yield broker


async def test_a_producer_works_after_any_number_of_refused_sends(
    producer: dejaq.Producer, client: dejaq.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """D1: after as many refused sends as a session may have gaps, every create was answered with LIMIT_EXCEEDED."""
    monkeypatch.setattr(limits, "PRODUCER_SESSION_GAPS_MAX", 20)
    await producer.send(b"there", id="taken", delay=60)
    for number in range(50):
        await producer.send(b"new", id=f"new-{number}", delay=60)
        with pytest.raises(Conflict):
            await producer.send(b"another", id="taken", delay=60)
    assert await client.count(TOPIC) == 51


async def test_a_batch_with_more_refused_rows_than_a_session_may_have_gaps_is_sent(
    producer: dejaq.Producer, client: dejaq.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """D1: concurrent batches use up the gaps of a session; the SDK then starts a new session."""
    monkeypatch.setattr(limits, "PRODUCER_SESSION_GAPS_MAX", 20)
    monkeypatch.setattr("dejaq.sdk.producing.outgoing.CHUNK_COUNT_MAX", 100)
    ids = [f"id-{number}" for number in range(1_000)]
    await producer.send_batch([b"first"] * 500, ids=ids[::2], delay=60)
    results = await producer.send_batch([b"second"] * 1_000, ids=ids, delay=61, results=True)
    assert list(results) == [Code.ID_TAKEN, Code.OK] * 500
    assert await client.count(TOPIC) == 1_000


def cloned(producer: dejaq.Producer, other: dejaq.Producer) -> None:
    """Give the other producer the state that it would have in a copy of this process."""
    other._session.numbering.session = producer._session.numbering.session
    other._session.numbering._counters = copy.deepcopy(producer._session.numbering._counters)
    other._session.numbering._bucket = producer._session.numbering._bucket


@pytest.mark.parametrize("natural", [False, True])
@pytest.mark.parametrize("broken", [False, True])
async def test_a_copied_producer_loses_nothing(
    producer: dejaq.Producer,
    client: dejaq.Client,
    wire: CuttingTransport,
    clock: VirtualClock,
    natural: bool,
    broken: bool,
) -> None:
    """D13: only the name of a batch identified a repeat, and two copies of a process used one name for two batches."""
    await producer.send(b"before")
    async with (
        dejaq.connect(wire, clock=clock, deadline=5.0) as elsewhere,
        elsewhere.producer(TOPIC, group="billing") as copied,
    ):
        cloned(producer, copied)
        await producer.send(b"original", id="original" if natural else None)
        if broken:
            # The machine of the copy was stopped for a while, so its session has ended.
            wire.cut("create", done=False)
        sent = await copied.send(b"copied", id="copied" if natural else None)
        await copied.send(b"later")
        await producer.send(b"more")
    (found,) = await client.get(TOPIC, [sent])
    assert found is not None
    assert found.body == b"copied"
    assert await client.count(TOPIC) == 5


async def test_a_repeat_of_a_batch_is_still_a_repeat(
    producer: dejaq.Producer, client: dejaq.Client, wire: CuttingTransport
) -> None:
    """D13: a create that was done before its answer was lost is not done again under another name."""
    wire.cut("create", done=True)
    sent = await producer.send(b"once")
    wire.cut("create", done=True)
    await producer.send_batch([b"x", b"y"], delay=5)
    assert await client.count(TOPIC) == 3
    assert (await client.get(TOPIC, [sent]))[0] is not None


async def test_a_copied_client_can_commit_transactions(client: dejaq.Client) -> None:
    """D13: only the name of a transaction identified a repeat."""
    async with client.transaction(group="billing") as t:
        t.send(TOPIC, b"before")
    transactor = client._transactor
    session, sequence, counters = transactor._session, transactor._sequence, transactor._counters
    kept = copy.deepcopy((sequence, counters))
    for body in (b"original", b"copied"):
        async with client.transaction(group="billing") as t:
            t.send(TOPIC, body)
        transactor._session, (transactor._sequence, transactor._counters) = session, copy.deepcopy(kept)
    assert await client.count(TOPIC) == 3
