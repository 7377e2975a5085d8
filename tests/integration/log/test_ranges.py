"""Which buckets and offsets of a log a call reads or sets."""

from __future__ import annotations

import asyncio

import pytest

import dejaq
from dejaq.errors import Code, DejaqError, InvalidArgument
from dejaq.testing.waiting import eventually
from tests.integration.log.conftest import TOPIC
from tests.integration.log.test_log import taken


async def test_a_range_of_offsets_ends_where_a_bucket_ends(client: dejaq.Client) -> None:
    """Offsets of buckets that are not read do not matter."""
    log = client.log(TOPIC)
    await log.append_batch([b"%d" % n for n in range(10)], bucket=1)
    await log.append_batch([b"other"], bucket=2)

    async def read(start: int, end: int, *buckets: int) -> list[bytes]:
        found = log.read(start=start, end=end, buckets=buckets or None)
        return [bytes(body) async for batch in found for body in batch.bodies]

    assert await read(0, 3) == [b"0", b"1", b"2", b"other"]
    assert await read(8, 99, 1) == [b"8", b"9"]
    with pytest.raises(DejaqError) as caught:
        await read(8, 99)
    assert caught.value.code is Code.OFFSET_OUT_OF_RANGE
    async with log.reader(start=9, buckets=[1]) as reader:
        assert [message.body for message in await taken(reader, 1)] == [b"9"]


async def test_a_bucket_that_the_log_does_not_have_is_refused(client: dejaq.Client) -> None:
    log = client.log(TOPIC)
    for start in ("beginning", "latest", 0):
        with pytest.raises(InvalidArgument, match="has 4 buckets, not 4"):
            await log.reader(start=start, buckets=[1, 4]).open()
    with pytest.raises(InvalidArgument, match="has 4 buckets, not 9"):
        await anext(log.read(buckets=[9]))
    with pytest.raises(InvalidArgument, match="has 4 buckets, not 9"):
        await log.reset_group("billing", "beginning", buckets=[9])


async def test_a_group_is_reset_in_some_buckets(client: dejaq.Client) -> None:
    """Another bucket does not have the offset."""
    log = client.log(TOPIC)
    await log.append_batch([b"%d" % n for n in range(10)], bucket=2)
    assert await log.reset_group("billing", 3, buckets=[2]) == {2: 3}
    assert [group.committed for group in await log.groups()] == [{2: 3}]
    with pytest.raises(DejaqError) as caught:
        await log.reset_group("billing", 3)
    assert caught.value.code is Code.OFFSET_OUT_OF_RANGE


async def test_a_read_passes_what_retention_removes_meanwhile(client: dejaq.Client) -> None:
    await client.create_topic("short", kind="log", buckets=1)
    log = client.log("short")
    for n in range(6):
        await log.append_batch([b"%d" % n * 600_000])
    reading = log.read()
    # An answer has at most 1 MiB.
    assert (await anext(reading)).base == 0
    await client.edit_topic("short", keep_bytes=1_000_000)

    async def is_trimmed() -> bool:
        return (await log.offsets())[0].start > 3

    await eventually(is_trimmed, within=30)
    oldest = (await log.offsets())[0].start
    left = [batch.base async for batch in reading]
    # What one answer had is still there.
    assert left in ([*range(oldest, 6)], [1, *range(oldest, 6)])


async def test_a_log_that_was_created_again_with_fewer_buckets_is_appended_to(client: dejaq.Client) -> None:
    log = client.log(TOPIC)
    keys = [b"%d" % n for n in range(20)]
    for key in keys:
        await log.append(b"before", key=key)
    await client.delete_topic(TOPIC)

    async def is_created() -> bool:
        try:
            await client.create_topic(TOPIC, kind="log", buckets=2)
        except DejaqError as error:
            assert error.code in (Code.TOPIC_DELETING, Code.TOPIC_EXISTS)
            return False
        return True

    await eventually(is_created, within=30)
    # Those for buckets that it does not have any more.
    answers = await asyncio.gather(*(log.append(b"refused", key=key) for key in keys), return_exceptions=True)
    assert any(isinstance(answer, InvalidArgument) for answer in answers)
    # The next append asks for the number of buckets.
    places = [await log.append(b"after", key=key) for key in keys]
    assert {place.bucket for place in places} == {0, 1}
    assert (await client.log(TOPIC).append(b"after", key=keys[0])).bucket == places[0].bucket
