"""Appending to logs and reading them, as clients do."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

import dejaq
from dejaq.broker.log import topics
from dejaq.broker.sessions import incoming, session
from dejaq.broker.sessions.incoming import read_frame
from dejaq.errors import Code, DejaqError, InvalidArgument, Refused, StoreError
from dejaq.protocol.v1 import carrier_pb2 as carrier
from dejaq.sdk.log import appender
from dejaq.sdk.log.messages import LogMessage
from dejaq.sdk.log.reader import LogReader
from dejaq.storage.memory.logs import MemoryLogs
from dejaq.testing.waiting import eventually
from dejaq.timekeeper.clock import SystemClock
from tests.integration.log.conftest import TOPIC
from tests.integration.sdk.cutting import CuttingTransport


async def taken(reader: LogReader, count: int) -> list[LogMessage]:
    async with asyncio.timeout(30):
        return [await anext(reader) for _ in range(count)]


def check_order(messages: list[LogMessage]) -> None:
    offsets: defaultdict[int, list[int]] = defaultdict(list)
    for message in messages:
        offsets[message.bucket].append(message.offset)
    for found in offsets.values():
        assert found == list(range(found[0], found[0] + len(found)))


async def test_appended_messages_are_read_with_their_keys_headers_and_offsets(client: dejaq.Client) -> None:
    log = client.log(TOPIC)
    places = [await log.append(b"one", key=b"k"), await log.append(b"two", key=b"k", headers={"a": "b"})]
    assert places[0].bucket == places[1].bucket
    assert [place.offset for place in places] == [0, 1]
    async with log.reader() as reader:
        first, second = await taken(reader, 2)
    assert (first.body, first.key, first.headers) == (b"one", b"k", {})
    assert (second.body, second.headers, second.offset) == (b"two", {"a": "b"}, 1)
    assert abs((second.at - datetime.now(UTC)).total_seconds()) < 600


async def test_concurrent_appends_share_batches_and_every_one_gets_its_place(client: dejaq.Client) -> None:
    log = client.log(TOPIC)
    bodies = [b"%d" % n for n in range(2_000)]
    places = await asyncio.gather(*(log.append(body, key=body) for body in bodies))
    async with log.reader() as reader:
        messages = await taken(reader, len(bodies))
    check_order(messages)
    assert {(m.bucket, m.offset): m.body for m in messages} == dict(zip(map(tuple, places), bodies, strict=True))


async def test_appends_that_begin_together_ask_once_for_the_buckets(
    client: dejaq.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """2,000 appends of a new client asked 2,000 times; a caller that goes away takes the answer from nobody."""
    asked: list[str] = []
    call = CuttingTransport.call

    async def counted(transport: CuttingTransport, method: str, *rest: Any) -> Any:
        asked.append(method)
        return await call(transport, method, *rest)

    monkeypatch.setattr(CuttingTransport, "call", counted)
    log = client.log(TOPIC)
    appends = [asyncio.ensure_future(log.append(b"%d" % n)) for n in range(20)]
    await asyncio.sleep(0)
    appends[0].cancel()
    answers = await asyncio.gather(*appends, return_exceptions=True)
    assert isinstance(answers[0], asyncio.CancelledError)
    assert all(isinstance(answer, dejaq.LogOffset) for answer in answers[1:])
    assert asked.count("Overseer.DescribeTopic") == 1


async def test_a_batch_is_one_batch_of_one_bucket(client: dejaq.Client) -> None:
    log = client.log(TOPIC)
    (batch,) = await log.append_batch([b"a", b"b", b"c"], bucket=2)
    assert (batch.bucket, batch.base, batch.count) == (2, 0, 3)
    found = [batch async for batch in log.read()]
    assert [list(batch.bodies) for batch in found] == [[b"a", b"b", b"c"]]
    assert await offsets_of(log.read(start={2: 1}, end={2: 2})) == [1]


async def offsets_of(batches: AsyncIterator[dejaq.LogBatch]) -> list[int]:
    return [message.offset async for batch in batches for message in batch]


async def test_messages_of_a_key_are_in_one_bucket_in_order(client: dejaq.Client) -> None:
    log = client.log(TOPIC)
    keys = [b"k%d" % (n % 7) for n in range(700)]
    await log.append_batch([b"%d" % n for n in range(700)], keys=keys)
    async with log.reader() as reader:
        messages = await taken(reader, 700)
    by_key: defaultdict[bytes, list[int]] = defaultdict(list)
    for message in messages:
        by_key[message.key].append(int(message.body))
    assert len(by_key) == 7
    assert all(found == sorted(found) for found in by_key.values())


async def test_a_reader_begins_where_it_is_asked_to(client: dejaq.Client) -> None:
    log = client.log(TOPIC)
    await log.append_batch([b"0", b"1", b"2"], bucket=0)
    await log.append_batch([b"3"], bucket=1)
    async with log.reader(start="latest") as latest, log.reader(start={0: 2}) as at:
        await log.append(b"4", bucket=0)
        assert [m.body for m in await taken(latest, 1)] == [b"4"]
        assert [m.body for m in await taken(at, 2)] == [b"2", b"4"]
    # Both may be of one millisecond; then the order is that of the buckets.
    assert sorted(m.body for m in await log.tail(2)) == [b"3", b"4"]
    assert len(await log.tail(100)) == 5
    assert await log.offsets_for_time(datetime(2001, 1, 1, tzinfo=UTC)) == [0, 0, 0, 0]
    with pytest.raises(Refused) as refused:
        await log.reader(start={0: 9}).open()
    assert refused.value.code is Code.OFFSET_OUT_OF_RANGE
    with pytest.raises(InvalidArgument):
        await log.reader(start="somewhere").open()


async def test_a_reader_seeks_pauses_and_knows_its_position(client: dejaq.Client) -> None:
    log = client.log(TOPIC)
    await log.append_batch([b"%d" % n for n in range(100)], bucket=0)
    await log.append_batch([b"x"], bucket=1)
    async with log.reader(buckets=[0, 1]) as reader:
        await reader.pause([1])
        assert [m.body for m in await taken(reader, 10)] == [b"%d" % n for n in range(10)]
        assert reader.positions() == {0: 10, 1: 0}
        await reader.seek(0, 95)
        assert [m.body for m in await taken(reader, 5)] == [b"95", b"96", b"97", b"98", b"99"]
        assert await reader.lag() == 1
        await reader.resume([1])
        assert [m.body for m in await taken(reader, 1)] == [b"x"]
        assert await reader.lag() == 0
        assert await reader.end_offsets() == {0: 100, 1: 1}
        await reader.seek(0, 99)
        assert [m.body for m in await taken(reader, 1)] == [b"99"]


async def test_a_reader_continues_after_its_session_broke(client: dejaq.Client, wire: CuttingTransport) -> None:
    log = client.log(TOPIC)
    await log.append_batch([b"%d" % n for n in range(50)], bucket=0)
    async with log.reader() as reader:
        messages = await taken(reader, 20)
        await wire.cut_now()
        await log.append_batch([b"%d" % n for n in range(50, 60)], bucket=0)
        messages += await taken(reader, 40)
    assert [m.body for m in messages] == [b"%d" % n for n in range(60)]


async def test_a_slow_reader_delays_no_other(client: dejaq.Client) -> None:
    """A reader that takes nothing gets one window of messages, and the others get all."""
    log = client.log(TOPIC)
    async with log.reader(window_bytes=10_000) as slow, log.reader() as fast:
        for _ in range(20):
            await log.append_batch([b"x" * 1_000] * 10)
        assert len(await taken(fast, 200)) == 200
        assert slow._buffer.bytes < 40_000
        assert len(await taken(slow, 200)) == 200


async def test_many_readers_get_the_same(client: dejaq.Client) -> None:
    log = client.log(TOPIC)
    readers = [log.reader() for _ in range(50)]
    await asyncio.gather(*(reader.open() for reader in readers))
    await log.append_batch([b"%d" % n for n in range(100)], keys=[b"%d" % n for n in range(100)])
    found = await asyncio.gather(*(taken(reader, 100) for reader in readers))
    assert len({tuple(sorted((m.bucket, m.offset, m.body) for m in messages)) for messages in found}) == 1
    for messages in found:
        check_order(messages)


async def test_a_window_delays_committed_readers_until_a_rollback(client: dejaq.Client) -> None:
    await client.create_topic("careful", kind="log", buckets=1, rollback_window="1h")
    log = client.log("careful")
    (wrong,) = await log.append_batch([b"wrong"])
    async with log.reader() as committed, log.reader(uncommitted=True) as uncommitted:
        assert [m.body for m in await taken(uncommitted, 1)] == [b"wrong"]
        assert [m.body for m in await log.tail(1, uncommitted=True)] == [b"wrong"]
        assert await log.tail(1) == []
        await log.rollback(wrong)
        await client.edit_topic("careful", rollback_window=0)
        await log.append(b"right")
        assert [m.body for m in await taken(committed, 1)] == [b"right"]
    assert [m.body for m in await log.tail(5)] == [b"right"]
    (late,) = await log.append_batch([b"late"])
    with pytest.raises(Refused) as refused:
        await log.rollback(late)
    assert refused.value.code is Code.TOO_LATE


async def test_a_topic_shows_its_kind_and_how_much_it_keeps(client: dejaq.Client) -> None:
    log = client.log(TOPIC)
    await log.append_batch([b"x"] * 7)
    info = await client.describe_topic(TOPIC)
    assert (info.settings.kind, info.available) == (dejaq.TopicKind.LOG, 7)
    assert sum(one.next - one.start for one in await log.offsets()) == 7


async def test_logs_and_timelines_are_not_confused(client: dejaq.Client) -> None:
    await client.create_topic("mail")
    with pytest.raises(DejaqError, match="is not a log"):
        await client.log("mail").append(b"x")
    with pytest.raises(DejaqError, match="is a log"):
        await client.producer(TOPIC).open()
    with pytest.raises(DejaqError, match="is a log"):
        await client.consumer(TOPIC).open()
    refused: tuple[dict[str, Any], ...] = ({"max_attempts": 3}, {"dedup": "1h"}, {"durability": "relaxed"})
    for settings in refused:
        with pytest.raises(DejaqError, match="a log does not have"):
            await client.create_topic("other", kind="log", **settings)
    with pytest.raises(DejaqError, match="only a log has"):
        await client.create_topic("other", keep="7d")


async def test_what_cannot_be_appended_is_refused(client: dejaq.Client) -> None:
    log = client.log(TOPIC)
    wrong: tuple[dict[str, Any], ...] = (
        {"body": "text"},
        {"body": b"", "bucket": 4},
        {"body": b"", "headers": {"": ""}},
    )
    for arguments in wrong:
        with pytest.raises(Refused):
            await log.append(**arguments)
    with pytest.raises(Refused) as refused:
        await log.append(b"x" * (1024 * 1024 + 1))
    assert refused.value.code is Code.BODY_TOO_LARGE
    assert await log.append_batch([]) == []
    assert await log.tail(5) == []


async def test_old_messages_are_removed(client: dejaq.Client) -> None:
    await client.create_topic("short", kind="log", buckets=1, keep_bytes=5_000)
    log = client.log("short")
    for _ in range(30):
        await log.append_batch([b"x" * 1_000])

    async def is_trimmed() -> bool:
        # It may have begun before the last append.
        return (await log.offsets())[0].bytes <= 5_000

    await eventually(is_trimmed, within=30)
    (held,) = await log.offsets()
    assert held.next == 30
    assert held.start > 0
    with pytest.raises(Refused) as refused:
        await log.reader(start=0).open()
    assert refused.value.code is Code.OFFSET_OUT_OF_RANGE


async def test_a_log_survives_a_restart_with_its_settings(tmp_path: Path) -> None:
    for first in (True, False):
        async with dejaq.Broker(tmp_path / "data") as broker, dejaq.connect(broker) as client:
            await client.create_topic(TOPIC, kind="log", buckets=2, keep="7d", rollback_window="0s")
            log = client.log(TOPIC)
            if first:
                await log.append_batch([b"a", b"b"], bucket=1)
            (batch,) = [batch async for batch in log.read()]
            assert (batch.base, list(batch.bodies)) == (0, [b"a", b"b"])
            assert (await client.describe_topic(TOPIC)).settings.keep_ms == 7 * 24 * 3_600_000


@pytest.mark.parametrize("grpc", [False, True])
async def test_logs_work_over_the_network(grpc: bool, tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        serving = dejaq.Broker(tmp_path / "data", listen="127.0.0.1:0", grpc="127.0.0.1:0")
        broker = await stack.enter_async_context(serving)
        url = f"dejaq+grpc://{broker.grpc_address}" if grpc else f"dejaq://{broker.address}"
        client = await stack.enter_async_context(dejaq.connect(url))
        await client.create_topic(TOPIC, kind="log", buckets=4)
        log = client.log(TOPIC)
        bodies = [b"%d" % n for n in range(3_000)]
        await log.append_batch(bodies, keys=bodies)
        async with log.reader() as reader, log.group("billing") as member:
            assert {m.body for m in await taken(reader, 3_000)} == set(bodies)
            async with asyncio.timeout(30):
                assert {(await anext(member)).body for _ in range(3_000)} == set(bodies)
            await member.commit()
        (group,) = await log.groups()
        assert group.lag == 0


async def test_a_large_append_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The broker reads each frame of a session once, also one that is not begun when it arrives."""
    read: list[int] = []

    def counting(data: bytes) -> carrier.ClientFrame:
        read.append(len(data))
        return read_frame(data)

    monkeypatch.setattr(session, "read_frame", counting)
    monkeypatch.setattr(incoming, "read_frame", counting)
    async with (
        dejaq.Broker(tmp_path / "data", listen="127.0.0.1:0") as broker,
        dejaq.connect(f"dejaq://{broker.address}") as client,
    ):
        await client.create_topic(TOPIC, kind="log", buckets=2)
        log = client.log(TOPIC)
        bodies = [bytes([n]) * 10_000 for n in range(60)]
        await asyncio.gather(log.append_batch(bodies, bucket=0), log.append_batch(bodies, bucket=1))
        found = [bytes(body) async for batch in log.read() for body in batch.bodies]
    assert found == bodies * 2
    assert len([size for size in read if size > 600_000]) == 2


async def test_a_late_append_expires(client: dejaq.Client, wire: CuttingTransport) -> None:
    """A batch that is sent again after its time, because the session broke before it arrived, is not appended."""
    log = client.log(TOPIC, timeout=0.001)
    wire.cut("log", done=False, times=3)
    with pytest.raises(Refused) as refused:
        await log.append(b"x")
    assert refused.value.code is Code.EXPIRED
    assert await log.tail(1) == []


async def test_an_append_whose_answer_was_lost_is_appended_once(client: dejaq.Client, wire: CuttingTransport) -> None:
    log = client.log(TOPIC)
    wire.cut("log", done=True)
    place = await log.append(b"x")
    assert [(m.bucket, m.offset) for m in await log.tail(5)] == [tuple(place)]


async def test_a_first_append_during_an_outage_fails_alone(wire: CuttingTransport, client: dejaq.Client) -> None:
    async with dejaq.connect(wire, deadline=0.3) as impatient, impatient.log(TOPIC) as log:
        wire.down = True
        with pytest.raises(DejaqError) as refused:
            await log.append(b"lost", bucket=0)
        assert refused.value.retryable
        wire.down = False
        # The machine may be slow, so the short deadline may pass more than once.
        await eventually(lambda: _appended(log), within=30)


async def _appended(log: dejaq.Log) -> bool:
    try:
        return (await log.append(b"kept", bucket=0)).offset >= 0
    except DejaqError as error:
        if not error.retryable:
            raise
        return False


@pytest.mark.parametrize("step", ["read", "claim"])
async def test_readers_and_members_go_on_after_a_passing_fault_of_the_store(
    step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The real store works throughout; one step of it ends as a disk that fails for a moment would end it."""
    work, faults = getattr(MemoryLogs, step), 0

    async def fail_once(*place: Any, **options: Any) -> Any:
        nonlocal faults
        faults += 1
        if faults == 1:
            raise StoreError("the disk does not answer")
        return await work(*place, **options)

    async with dejaq.Broker(None, drain_ms=0) as broker, dejaq.connect(broker, deadline=30.0) as client:
        await client.create_topic(TOPIC, kind="log", buckets=4)
        log = client.log(TOPIC)
        await log.append_batch([b"a", b"b"], bucket=0)
        monkeypatch.setattr(MemoryLogs, step, fail_once)
        async with log.group("billing") if step == "claim" else log.reader() as stream:
            async with asyncio.timeout(30):
                assert [(await anext(stream)).body for _ in range(2)] == [b"a", b"b"]
    assert faults > 1


async def test_an_oversized_message_fails_alone(client: dejaq.Client) -> None:
    await client.create_topic("small", kind="log", buckets=1, max_body_bytes=1_024)
    log = client.log("small")
    bodies = [b"a", b"b" * 2_000, b"c", b"d"]
    async with asyncio.timeout(30):
        answers = await asyncio.gather(*(log.append(body) for body in bodies), return_exceptions=True)
    assert isinstance(answers[1], DejaqError)
    assert answers[1].code is Code.BODY_TOO_LARGE
    async with log.reader() as reader:
        assert [(m.offset, m.body) for m in await taken(reader, 3)] == [(0, b"a"), (1, b"c"), (2, b"d")]
    assert [place for place in answers if not isinstance(place, BaseException)] == [(0, 0), (0, 1), (0, 2)]


async def test_a_reader_waits_for_windows_that_came_after_it_was_opened(client: dejaq.Client) -> None:
    log = client.log(TOPIC)
    async with log.reader() as reader:
        await log.append(b"a", bucket=0)
        assert [m.body for m in await taken(reader, 1)] == [b"a"]
        await client.edit_topic(TOPIC, rollback_window="200ms")
        await log.append(b"b", bucket=0)
        assert [m.body for m in await taken(reader, 1)] == [b"b"]


class SetClock(SystemClock):
    """The clock of the system, whose wall time a test sets forward."""

    def __init__(self) -> None:
        super().__init__()
        self.ahead_ms = 0

    def now_us(self) -> int:
        return super().now_us() + self.ahead_ms * 1_000

    def now_ms(self) -> int:
        return super().now_ms() + self.ahead_ms


async def test_a_clock_that_is_set_forward_removes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topics, "RETAIN_SECONDS", 0.05)
    clock = SetClock()
    async with dejaq.Broker(None, drain_ms=0, clock=clock) as broker, dejaq.connect(broker) as client:
        await client.create_topic(TOPIC, kind="log", buckets=1, keep="1h", keep_bytes=50_000)
        log = client.log(TOPIC)
        await log.append(b"kept")
        clock.ahead_ms = 7_200_000
        # A round of the broker finds no other broker that would confirm this clock.
        await broker.central.cluster.clocks.compare()
        await log.append(b"later")
        # Retention by size continues, and shows that the log was looked at.
        await client.create_topic("other", kind="log", buckets=1, keep_bytes=1_000)
        other = client.log("other")
        for _ in range(3):
            await other.append(b"x" * 900)

            async def is_trimmed() -> bool:
                return (await other.offsets())[0].bytes < 1_000

            await eventually(is_trimmed, within=30)
        assert [held.start for held in await log.offsets()] == [0]


async def test_an_unanswered_batch_is_never_far_behind_the_newest_name(
    client: dejaq.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the broker does not remember its name when it is repeated."""
    monkeypatch.setattr(appender, "NAMES_BEHIND_MAX", 8)
    monkeypatch.setattr(appender, "BATCHES_PER_FRAME_MAX", 2)
    log, may_be_sent, names = client.log(TOPIC), asyncio.Event(), list[int]()
    ask = log._appender._ask

    async def hold_the_first(batches: list[Any], session: bytes, first: int) -> Any:
        names.append(first + len(batches) - 1)
        assert len(batches) <= 2
        if first == 0:
            await may_be_sent.wait()
        return await ask(batches, session, first)

    monkeypatch.setattr(log._appender, "_ask", hold_the_first)
    appends = [asyncio.ensure_future(log.append_batch([b"x"], bucket=n % 4)) for n in range(40)]
    await eventually(lambda: max(names, default=0) >= 8, within=30)
    await eventually(lambda: log._appender._frames == 1, within=30)
    assert max(names) <= 8 + 2
    may_be_sent.set()
    async with asyncio.timeout(30):
        await asyncio.gather(*appends)
    assert [held.next for held in await log.offsets()] == [10, 10, 10, 10]


async def test_only_the_embedded_store_compacts_logs(client: dejaq.Client, request: pytest.FixtureRequest) -> None:
    """Other stores refuse the setting, for a new log and for one that there is, and the log stays as it was."""
    if request.node.callspec.params["broker"] == "embedded":
        await client.create_topic("names", kind="log", buckets=1, compact=True)
        await client.edit_topic(TOPIC, compact=True)
        assert (await client.describe_topic("names")).settings.compact
        assert (await client.describe_topic(TOPIC)).settings.compact
        return
    for change in (client.create_topic("names", kind="log", compact=True), client.edit_topic(TOPIC, compact=True)):
        with pytest.raises(InvalidArgument, match="does not compact logs") as caught:
            await change
        assert caught.value.code is Code.INVALID_SETTING
    assert not (await client.describe_topic(TOPIC)).settings.compact
    with pytest.raises(DejaqError) as missing:
        await client.describe_topic("names")
    assert missing.value.code is Code.TOPIC_NOT_FOUND
