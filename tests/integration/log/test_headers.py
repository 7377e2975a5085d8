"""Readers that ask for headers: the broker sends them nothing else, and they still pass what they do not get."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

import dejaq
from dejaq.testing.waiting import eventually, patient
from tests.integration.log.conftest import TOPIC
from tests.integration.sdk.cutting import CuttingTransport

MAIL = {"kind": "mail"}


async def append(log: dejaq.Log, kinds: str, *, bucket: int = 0) -> None:
    """One message for each letter: m is mail, others are not, and - has no headers."""
    names = {"m": MAIL, "x": {"kind": "sms", "mail": "kind"}, "-": {}}
    await log.append_batch(
        [f"{letter}{n}".encode() for n, letter in enumerate(kinds)],
        headers=[names[letter] for letter in kinds],
        bucket=bucket,
    )


def bodies(messages: Sequence[dejaq.LogMessage]) -> list[bytes]:
    return [message.body for message in messages]


async def at(reader: dejaq.LogReader | dejaq.LogGroup, positions: dict[int, int]) -> None:
    """Wait until the reader, which gets nothing more, knows how far it is."""

    async def there() -> bool:
        assert await reader.getmany(timeout=0.01) == []
        return {bucket: reader.position(bucket) for bucket in positions} == positions

    await eventually(there, within=10, what="the reader is behind what it does not get")


async def test_a_reader_gets_what_has_the_headers_and_is_behind_the_rest(client: dejaq.Client) -> None:
    log = client.log(TOPIC)
    await append(log, "xmm-m-xx")
    await append(log, "----", bucket=1)
    async with log.reader(headers=MAIL) as reader:
        found = [await asyncio.wait_for(reader.getone(), patient(10)) for _ in range(3)]
        assert bodies(found) == [b"m1", b"m2", b"m4"]
        assert [message.offset for message in found] == [1, 2, 4]
        await at(reader, {0: 8, 1: 4})
        assert await reader.lag() == 0
        await append(log, "-m", bucket=1)
        message = await asyncio.wait_for(reader.getone(), patient(10))
        assert (message.bucket, message.offset, message.body) == (1, 5, b"m1")


async def test_all_headers_must_have_their_values(client: dejaq.Client) -> None:
    log = client.log(TOPIC)
    values = [{"a": "1"}, {"a": "1", "b": "2"}, {"a": "2", "b": "1"}, {"ab": "12"}, {"b": "2", "a": "1", "c": "a1b2"}]
    await log.append_batch([str(n).encode() for n in range(5)], headers=values, bucket=0)
    found = [batch async for batch in log.read(headers={"a": "1", "b": "2"})]
    assert [message.offset for batch in found for message in batch] == [1, 4]
    assert bodies(await log.tail(1, headers={"a": "1"})) == [b"4"]
    assert bodies(await log.tail(9, headers={"a": "3"})) == []


async def test_tail_finds_messages_far_from_the_end(client: dejaq.Client) -> None:
    log = client.log(TOPIC)
    await append(log, "m" + 50 * "-")
    assert bodies(await log.tail(2, headers=MAIL)) == [b"m0"]


async def test_a_member_commits_behind_what_it_did_not_get(client: dejaq.Client) -> None:
    log = client.log(TOPIC)
    await append(log, "mx-")
    async with log.group("billing", headers=MAIL) as member:
        message = await asyncio.wait_for(member.getone(), patient(10))
        assert message.body == b"m0"
        await at(member, {0: 3})
        await member.commit()
    (group,) = await log.groups()
    assert (group.committed[0], group.lag) == (3, 0)


async def test_a_reader_continues_after_its_session_broke(client: dejaq.Client, wire: CuttingTransport) -> None:
    log = client.log(TOPIC)
    await append(log, "xm-")
    async with log.reader(headers=MAIL) as reader:
        assert (await asyncio.wait_for(reader.getone(), patient(10))).body == b"m1"
        await wire.cut_now()
        await append(log, "-xm")
        assert (await asyncio.wait_for(reader.getone(), patient(10))).offset == 5


async def test_rolled_back_messages_are_marked_for_uncommitted_readers(client: dejaq.Client) -> None:
    await client.create_topic("undo", kind="log", buckets=1, rollback_window="30s")
    log = client.log("undo")
    (batch,) = await log.append_batch([b"a", b"b"], headers=[MAIL, {}], bucket=0)
    await log.rollback(batch)

    found = [one async for one in log.read(headers=MAIL, uncommitted=True)]
    assert [(message.body, message.aborted) for one in found for message in one] == [(b"a", True)]


async def test_headers_that_no_message_can_have_are_refused(client: dejaq.Client) -> None:
    await append(client.log(TOPIC), "m")
    with pytest.raises(dejaq.InvalidArgument):
        [batch async for batch in client.log(TOPIC).read(headers={"": "x"})]
    with pytest.raises(dejaq.InvalidArgument):
        await client.log(TOPIC).reader(headers={"": "x"}).open()
