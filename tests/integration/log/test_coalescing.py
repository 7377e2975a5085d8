"""How single appends share frames and batches."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

import dejaq
from dejaq.sdk.log import appender
from tests.integration.log.conftest import TOPIC


async def test_appends_of_one_turn_without_keys_are_one_batch(client: dejaq.Client) -> None:
    log = client.log(TOPIC)
    await log.append(b"first")
    places = await asyncio.gather(*(log.append(b"%d" % n) for n in range(64)))
    assert len({place.bucket for place in places}) == 1
    bases = [batch.base async for batch in log.read() if len(batch) == 64]
    assert bases == [min(place.offset for place in places)]


async def test_appends_without_keys_use_every_bucket_in_turn(client: dejaq.Client) -> None:
    log = client.log(TOPIC)
    used = Counter([(await log.append(b"x")).bucket for _ in range(8)])
    assert used == dict.fromkeys(range(4), 2)


async def test_an_append_is_sent_at_once_while_nothing_is_in_transit(
    client: dejaq.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(appender, "LINGER_SECONDS", 3_600.0)
    log = client.log(TOPIC)
    async with asyncio.timeout(30):
        for _ in range(10):
            await log.append(b"x", key=b"k")
        # What is appended while another is in transit is sent with its answer, at the latest.
        await asyncio.gather(*(log.append(b"%d" % n, key=b"%d" % n) for n in range(100)))
        first = asyncio.ensure_future(log.append(b"a", key=b"k"))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        second = asyncio.ensure_future(log.append(b"b", key=b"k"))
        assert (await second).offset == (await first).offset + 1


async def test_a_cancelled_append_takes_nothing_from_the_others(client: dejaq.Client) -> None:
    log = client.log(TOPIC)
    await log.append(b"first")
    calls = [asyncio.ensure_future(log.append(b"%d" % n)) for n in range(5)]
    await asyncio.sleep(0)
    calls[2].cancel()
    places = await asyncio.gather(*calls, return_exceptions=True)
    assert isinstance(places[2], asyncio.CancelledError)
    offsets = [place.offset for place in places if isinstance(place, dejaq.LogOffset)]
    assert [offset - offsets[0] for offset in offsets] == [0, 1, 3, 4]
