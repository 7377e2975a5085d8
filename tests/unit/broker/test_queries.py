"""The queries about messages (get, count, histogram and browse) and their limits."""

from __future__ import annotations

from typing import Any

import pytest

from dejaq import limits
from dejaq.broker.inprocess import InProcessTransport
from dejaq.domain.headers import encode_headers
from dejaq.errors import Code, DejaqError
from dejaq.protocol.columns import messages_from_proto
from dejaq.protocol.v1 import carrier_pb2 as carrier
from dejaq.timekeeper.clock import VirtualClock
from tests.unit.broker.client import Batches, create_topic
from tests.unit.broker.conftest import Connect


async def get(transport: InProcessTransport, ids: list[str], topic: str = "mail") -> carrier.MessageColumns:
    request = carrier.GetRequest(topic=topic, ids=ids)
    return await transport.call("Carrier.Get", request, carrier.MessageColumns, 5.0)


async def count(transport: InProcessTransport, **where: Any) -> int:
    request = carrier.CountRequest(topic="mail", filter=carrier.Filter(**where))
    return (await transport.call("Carrier.Count", request, carrier.CountResponse, 5.0)).count


async def browse(transport: InProcessTransport, **fields: Any) -> list[carrier.MessageColumns]:
    request = carrier.BrowseRequest(topic="mail", **fields)
    return [page async for page in transport.stream("Carrier.Browse", request, carrier.MessageColumns)]


async def fill(connect: Connect, ids: list[str], ts: list[int], **columns: Any) -> None:
    producer = await (await connect()).produce()
    answer = await producer.ask(create=Batches().natural(ids, ts, **columns))
    assert not answer.outcomes.codes


async def test_get_answers_which_ids_exist(
    connect: Connect, transport: InProcessTransport, clock: VirtualClock
) -> None:
    later = clock.now_ms() + 1_000
    headers = encode_headers({"k": "v"})
    await fill(connect, ["a", "b"], [later, 0], headers=[headers, b""], priorities=[5, 0])
    columns = await get(transport, ["b", "missing", "bad id", "a"])
    assert list(columns.asked) == [0, 3]
    assert list(columns.statuses) == ["available", "waiting"]
    second = messages_from_proto(columns, topic="mail")[1]
    assert (second.id, second.ts, second.priority, second.headers) == ("a", later, 5, {"k": "v"})


async def test_get_accepts_as_many_ids_as_the_limit(transport: InProcessTransport) -> None:
    ids = [f"m{n}" for n in range(limits.BATCH_COUNT_MAX)]
    assert not (await get(transport, ids)).ids
    with pytest.raises(DejaqError) as caught:
        await get(transport, [*ids, "x"])
    assert caught.value.code is Code.BATCH_TOO_LARGE


async def test_get_of_more_bytes_than_a_frame_holds_is_a_clear_error(
    connect: Connect, transport: InProcessTransport
) -> None:
    producer = await (await connect()).produce()
    batches = Batches()
    ids = [f"m{n}" for n in range(9)]
    for message_id in ids:
        batch = batches.natural([message_id], 0, bodies=[bytes(limits.BODY_BYTES_MAX)])
        await producer.ask(create=batch)
    assert len((await get(transport, ids[:7])).ids) == 7
    with pytest.raises(DejaqError) as caught:
        await get(transport, ids)
    assert caught.value.code is Code.BATCH_TOO_LARGE


async def test_count_and_histogram_by_time_status_and_owner(
    connect: Connect, transport: InProcessTransport, clock: VirtualClock
) -> None:
    now = clock.now_ms()
    await fill(connect, ["a", "b", "c", "d"], [now - 10, now + 10, now + 20, now + 500])
    assert await count(transport) == 4
    assert await count(transport, status="available") == 1
    assert await count(transport, status="waiting", start=now + 15) == 2
    assert await count(transport, owner="billing", end=now) == 1
    assert await count(transport, owner="nobody") == 0
    request = carrier.HistogramRequest(topic="mail", filter=carrier.Filter(start=now, end=now + 1_000), step_ms=100)
    steps = await transport.call("Carrier.Histogram", request, carrier.HistogramResponse, 5.0)
    assert dict(zip(steps.starts, steps.counts, strict=True)) == {now: 2, now + 500: 1}


@pytest.mark.parametrize(
    ("where", "step", "code"),
    [
        ({"start": 0, "end": limits.HISTOGRAM_STEPS_MAX}, 1, None),
        ({"start": 0, "end": limits.HISTOGRAM_STEPS_MAX + 1}, 1, Code.LIMIT_EXCEEDED),
        ({"start": 0, "end": 10}, 0, Code.LIMIT_EXCEEDED),
        ({"start": 0}, 1, Code.INVALID_ARGUMENT),
        ({"end": 5}, 1, Code.INVALID_ARGUMENT),
        ({"start": 9, "end": 5}, 1, None),
        ({"start": -5, "end": 5, "status": "lost"}, 1, Code.INVALID_ARGUMENT),
    ],
)
async def test_a_histogram_has_limits(
    transport: InProcessTransport, where: dict[str, Any], step: int, code: Code | None
) -> None:
    request = carrier.HistogramRequest(topic="mail", filter=carrier.Filter(**where), step_ms=step)
    if code is None:
        assert not (await transport.call("Carrier.Histogram", request, carrier.HistogramResponse, 5.0)).starts
        return
    with pytest.raises(DejaqError) as caught:
        await transport.call("Carrier.Histogram", request, carrier.HistogramResponse, 5.0)
    assert caught.value.code is code


async def test_browse_pages_through_everything_in_order(connect: Connect, transport: InProcessTransport) -> None:
    ids = [f"m{n:04}" for n in range(250)]
    await fill(connect, ids, [n // 3 for n in range(250)])
    pages = await browse(transport, page_size=100)
    assert [len(page.ids) for page in pages] == [100, 100, 50]
    assert [message_id for page in pages for message_id in page.ids] == ids
    rest = await browse(transport, page_size=100, cursor=pages[0].cursor)
    assert [message_id for page in rest for message_id in page.ids] == ids[100:]


async def test_browse_shortens_pages_so_that_large_bodies_fit(connect: Connect, transport: InProcessTransport) -> None:
    producer = await (await connect()).produce()
    batches = Batches()
    ids = [f"m{n:02}" for n in range(20)]
    for message_id in ids:
        await producer.ask(create=batches.natural([message_id], 0, bodies=[bytes(limits.BODY_BYTES_MAX)]))
    pages = await browse(transport, page_size=1_000)
    assert [message_id for page in pages for message_id in page.ids] == ids
    assert all(page.ByteSize() <= limits.FRAME_BYTES_MAX for page in pages)


async def test_the_page_size_of_browse_is_limited(transport: InProcessTransport) -> None:
    assert await browse(transport, page_size=limits.BROWSE_PAGE_MAX)
    with pytest.raises(DejaqError) as caught:
        await browse(transport, page_size=limits.BROWSE_PAGE_MAX + 1)
    assert caught.value.code is Code.LIMIT_EXCEEDED


async def test_an_invalid_cursor_is_refused(transport: InProcessTransport) -> None:
    with pytest.raises(DejaqError) as caught:
        await browse(transport, cursor=b"x")
    assert caught.value.code is Code.INVALID_ARGUMENT


async def test_a_query_of_an_unknown_topic_is_refused(transport: InProcessTransport) -> None:
    with pytest.raises(DejaqError) as caught:
        await get(transport, ["a"], topic="unknown")
    assert caught.value.code is Code.TOPIC_NOT_FOUND
    await create_topic(transport, "unknown")
    assert not (await get(transport, ["a"], topic="unknown")).ids
