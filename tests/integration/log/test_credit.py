"""The broker sends within a window of credit: whatever a stream drops unread must not use the window permanently."""

from __future__ import annotations

import asyncio

import pytest

import dejaq
from dejaq import limits
from dejaq.sdk.log.group import LogGroup
from dejaq.sdk.log.messages import LogMessage
from dejaq.sdk.log.stream import LogStream
from dejaq.testing.waiting import eventually
from tests.integration.log.conftest import TOPIC

WINDOW = 50_000
# About four windows in each bucket that is filled.
MESSAGES = 200


async def filled(client: dejaq.Client, *buckets: int) -> dejaq.Log:
    log = client.log(TOPIC)
    for bucket in buckets:
        for _ in range(MESSAGES // 10):
            await log.append_batch([b"x" * 1_000] * 10, bucket=bucket)
    return log


async def window_is_full(stream: LogStream) -> None:
    await eventually(lambda: stream._buffer.bytes >= WINDOW, within=20)


async def taken(stream: LogStream, count: int) -> list[LogMessage]:
    async with asyncio.timeout(20):
        return [await anext(stream) for _ in range(count)]


async def taken_with_commits(member: LogGroup, count: int) -> list[LogMessage]:
    found: list[LogMessage] = []
    while len(found) < count:
        found += await taken(member, 10)
        await member.commit()
    return found


async def test_a_seek_with_a_full_window_returns_its_credit(client: dejaq.Client) -> None:
    log = await filled(client, 0)
    async with log.reader(window_bytes=WINDOW) as reader:
        await window_is_full(reader)
        await reader.seek(0, 0)
        assert [m.offset for m in await taken(reader, MESSAGES)] == list(range(MESSAGES))


async def test_a_paused_bucket_takes_no_credit_from_the_others(client: dejaq.Client) -> None:
    log = await filled(client, 0)
    async with log.reader(window_bytes=WINDOW) as reader:
        await window_is_full(reader)
        await reader.pause([0])
        await filled(client, 1)
        assert {m.bucket for m in await taken(reader, MESSAGES)} == {1}
        await reader.resume([0])
        assert [m.offset for m in await taken(reader, MESSAGES)] == list(range(MESSAGES))


async def test_a_rebalance_of_a_member_with_a_full_window_returns_its_credit(client: dejaq.Client) -> None:
    log = await filled(client, 2, 3)
    async with log.group("billing", window_bytes=WINDOW, share=1.0) as first:
        await window_is_full(first)
        # It keeps the first buckets, so all that it has is of buckets that it loses.
        await filled(client, 0, 1)
        async with log.group("billing", window_bytes=WINDOW) as second:
            await eventually(lambda: len(first.buckets) == len(second.buckets) == 2, within=20)
            found = await taken_with_commits(first, 2 * MESSAGES)
            assert {m.bucket for m in found} == set(first.buckets)


async def test_a_reset_of_a_group_returns_the_credit_of_its_members(client: dejaq.Client) -> None:
    log = await filled(client, 0)
    async with log.group("billing", window_bytes=WINDOW, share=1.0) as member:
        await taken(member, 30)
        before = member.claims()
        await log.reset_group("billing", {0: 0})
        await eventually(lambda: member.claims()[0] != before[0], within=20)
        assert [m.offset for m in await taken_with_commits(member, MESSAGES)] == list(range(MESSAGES))


async def test_a_member_that_seeks_back_gets_everything(client: dejaq.Client) -> None:
    log = await filled(client, 0)
    async with log.group("billing", window_bytes=WINDOW, share=1.0) as member:
        await taken(member, 50)
        await member.seek(0, 0)
        assert [m.offset for m in await taken_with_commits(member, MESSAGES)] == list(range(MESSAGES))


async def test_a_window_beyond_the_credit_of_the_broker_is_cut(
    client: dejaq.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "LOG_CREDIT_BYTES_MAX", WINDOW)
    log = await filled(client, 0)
    async with log.reader(window_bytes=100 * WINDOW) as reader:
        assert len(await taken(reader, MESSAGES)) == MESSAGES


async def test_two_seeks_of_a_bucket_at_the_same_time_both_end(client: dejaq.Client) -> None:
    log = await filled(client, 0)
    async with log.reader(window_bytes=WINDOW) as reader:
        await taken(reader, 5)
        async with asyncio.timeout(20):
            await asyncio.gather(reader.seek(0, 100), reader.seek(0, 150))
        first, *rest = await taken(reader, 20)
        assert first.offset in (100, 150)
        assert [m.offset for m in rest] == list(range(first.offset + 1, first.offset + 20))


async def test_a_seek_that_waits_ends_when_the_reader_is_closed(
    client: dejaq.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = await filled(client, 0)
    async with log.reader(window_bytes=WINDOW) as reader:
        await taken(reader, 5)
        # The answer of the broker never comes.
        monkeypatch.setattr(reader, "_moved", lambda event: None)
        seeking = asyncio.ensure_future(reader.seek(0, 100))
        await eventually(lambda: bool(reader._seeking), within=20)
        await reader.close()
        with pytest.raises(dejaq.errors.OutOfState, match="closed"):
            async with asyncio.timeout(20):
                await seeking
