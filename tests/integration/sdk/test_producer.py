from __future__ import annotations

import asyncio
import pickle
from datetime import UTC, datetime
from typing import Any

import pytest

import dejaq
from dejaq import limits
from dejaq.sdk.producing import outgoing
from dejaq.sdk.times import to_datetime
from dejaq.testing.waiting import eventually, patient
from dejaq.timekeeper.clock import VirtualClock
from tests.integration.sdk.conftest import TOPIC
from tests.integration.sdk.cutting import CuttingTransport


async def one(client: dejaq.Client, message_id: str) -> dejaq.Message:
    [message] = await client.get(TOPIC, [message_id])
    assert message is not None
    return message


async def test_a_message_is_stored_as_it_was_sent(
    client: dejaq.Client, producer: dejaq.Producer, clock: VirtualClock
) -> None:
    sent = await producer.send(b"hello", delay=2.5, priority=-3, headers={"k": "v"})
    message = await one(client, sent)
    assert (message.body, message.priority, dict(message.headers)) == (b"hello", -3, {"k": "v"})
    assert message.ts == clock.now_ms() + 2_500
    assert message.producer_group == "billing"


async def test_times_are_datetimes_milliseconds_or_delays(
    client: dejaq.Client, producer: dejaq.Producer, clock: VirtualClock
) -> None:
    at = clock.now_ms() + 60_000
    for sent in (await producer.send(b"", at=at), await producer.send(b"", at=to_datetime(at))):
        assert (await one(client, sent)).ts == at
    assert (await one(client, await producer.send(b""))).ts == clock.now_ms()


async def test_a_natural_id_may_be_sent_again_and_changes_nothing(
    client: dejaq.Client, producer: dejaq.Producer, clock: VirtualClock
) -> None:
    """G5: create is idempotent by id."""
    at = clock.now_ms() + 1_000
    assert await producer.send(b"a", id="order-1", at=at) == "order-1"
    assert await producer.send(b"a", id="order-1", at=at) == "order-1"
    assert await client.count(TOPIC) == 1
    with pytest.raises(dejaq.Conflict) as refused:
        await producer.send(b"b", id="order-1", at=at)
    assert refused.value.code is dejaq.Code.ID_TAKEN
    assert (await one(client, "order-1")).body == b"a"


async def test_two_sends_of_one_id_at_once_are_two_requests(
    client: dejaq.Client, producer: dejaq.Producer, clock: VirtualClock
) -> None:
    at = clock.now_ms()
    same, other = await asyncio.gather(
        producer.send(b"a", id="x", at=at), producer.send(b"b", id="x", at=at), return_exceptions=True
    )
    assert same == "x"
    assert isinstance(other, dejaq.Conflict)
    assert await client.count(TOPIC) == 1


async def test_sends_of_one_moment_share_a_frame(
    client: dejaq.Client, producer: dejaq.Producer, wire: CuttingTransport, clock: VirtualClock
) -> None:
    now = clock.now_ms()
    ids = await asyncio.gather(*(producer.send(b"%d" % n, at=now + (n * 7) % 100) for n in range(500)))
    assert wire.sent.count("create") == 1
    messages = await client.get(TOPIC, ids)
    assert [message.body for message in messages if message] == [b"%d" % n for n in range(500)]
    assert [message.ts - now for message in messages if message] == [(n * 7) % 100 for n in range(500)]


async def test_a_full_batch_is_sent_and_the_rest_follows(
    client: dejaq.Client, producer: dejaq.Producer, wire: CuttingTransport
) -> None:
    await asyncio.gather(*(producer.send(b"x") for _ in range(2_500)))
    assert wire.sent.count("create") == 3
    assert await client.count(TOPIC) == 2_500


async def test_a_single_send_does_not_wait_for_others(client: dejaq.Client, wire: CuttingTransport) -> None:
    async with client.producer(TOPIC, linger=3_600.0) as producer:
        async with asyncio.timeout(patient(5)):
            for _ in range(5):
                await producer.send(b"x")
    assert wire.sent.count("create") == 5


async def test_sends_during_a_running_request_wait_for_one_another(
    client: dejaq.Client, wire: CuttingTransport
) -> None:
    async with client.producer(TOPIC, linger=3_600.0) as producer:
        first = asyncio.ensure_future(producer.send(b"1"))
        await eventually(lambda: "create" in wire.sent, within=5, poll=0)
        await asyncio.gather(first, *(producer.send(b"2") for _ in range(10)))
    assert wire.sent.count("create") == 2


async def test_a_batch_takes_columns_and_returns_outcomes(
    client: dejaq.Client, producer: dejaq.Producer, clock: VirtualClock
) -> None:
    now = clock.now_ms()
    times = [now + 300, now + 100, now + 200]
    results = await producer.send_batch(
        [b"a", b"b", b"c"], at=times, priorities=[1, 2, 3], headers=[None, {"k": "v"}, None]
    )
    assert results.ok
    messages = [message for message in await client.get(TOPIC, results.ids) if message]
    assert [message.body for message in messages] == [b"a", b"b", b"c"]
    assert [message.ts for message in messages] == times
    assert [message.priority for message in messages] == [1, 2, 3]
    assert [dict(message.headers) for message in messages] == [{}, {"k": "v"}, {}]


async def test_one_invalid_item_does_not_fail_the_batch(
    client: dejaq.Client, producer: dejaq.Producer, clock: VirtualClock
) -> None:
    """G8: an item beyond a limit gets a clear error, and the other items are created."""
    now = clock.now_ms()
    far = now + limits.FUTURE_MS_DEFAULT + 1
    results = await producer.send_batch(
        [b"a", b"b", b"c", b"d", b"e"],
        at=[now, -1, far, now, now],
        ids=["one", "two", "three", "one", "not an id"],
        results=True,
    )
    assert results.codes == [
        dejaq.Code.OK,
        dejaq.Code.INVALID_TIME,
        dejaq.Code.TOO_FAR,
        dejaq.Code.DUPLICATE_IN_BATCH,
        dejaq.Code.INVALID_ID,
    ]
    assert await client.count(TOPIC) == 1


async def test_generated_ids_of_a_batch_with_refused_rows_belong_to_the_right_rows(
    client: dejaq.Client, producer: dejaq.Producer, clock: VirtualClock
) -> None:
    now = clock.now_ms()
    results = await producer.send_batch([b"a", b"bad", b"b"], at=[now + 9, -1, now + 3], results=True)
    assert results.ids[1] == ""
    first, second = await client.get(TOPIC, [results.ids[0], results.ids[2]])
    assert first is not None
    assert second is not None
    assert (first.body, second.body) == (b"a", b"b")


async def test_more_messages_than_fit_one_batch_are_split(
    client: dejaq.Client, producer: dejaq.Producer, wire: CuttingTransport, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outgoing, "CHUNK_COUNT_MAX", 10)
    monkeypatch.setattr(outgoing, "CHUNK_BYTES_MAX", 25)
    results = await producer.send_batch([b"%04d" % n for n in range(60)], delay=[60 - n for n in range(60)])
    assert results.ok
    assert wire.sent.count("create") == 10
    messages = await client.get(TOPIC, results.ids)
    assert [message.body for message in messages if message] == [b"%04d" % n for n in range(60)]


async def test_an_empty_batch_sends_no_request(producer: dejaq.Producer, wire: CuttingTransport) -> None:
    results = await producer.send_batch([])
    assert len(results) == 0
    assert results.ok
    assert "create" not in wire.sent


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ({"at": datetime(2030, 1, 1)}, dejaq.Code.INVALID_TIME),
        ({"at": -1}, dejaq.Code.INVALID_TIME),
        ({"at": limits.TS_MS_MAX + 1}, dejaq.Code.INVALID_TIME),
        ({"at": datetime(9999, 12, 31, tzinfo=UTC)}, dejaq.Code.TOO_FAR),
        ({"delay": float("nan")}, dejaq.Code.INVALID_TIME),
        ({"at": 1, "delay": 1}, dejaq.Code.INVALID_ARGUMENT),
        ({"id": ""}, dejaq.Code.INVALID_ID),
        ({"id": "x" * (limits.ID_CHARS_MAX + 1)}, dejaq.Code.INVALID_ID),
        ({"id": 5}, dejaq.Code.INVALID_ID),
        ({"priority": limits.PRIORITY_MAX + 1}, dejaq.Code.INVALID_PRIORITY),
        ({"priority": "high"}, dejaq.Code.INVALID_PRIORITY),
        ({"headers": {"k": 5}}, dejaq.Code.INVALID_HEADERS),
        ({"body": "text"}, dejaq.Code.INVALID_ARGUMENT),
        ({"body": b"x" * (limits.BODY_BYTES_MAX + 1)}, dejaq.Code.BODY_TOO_LARGE),
    ],
)
async def test_invalid_input_is_a_clear_error_and_nothing_is_sent(
    client: dejaq.Client, producer: dejaq.Producer, arguments: dict[str, Any], code: dejaq.Code
) -> None:
    with pytest.raises(dejaq.Refused) as refused:
        await producer.send(**{"body": b"x", **arguments})
    assert refused.value.code is code
    assert await client.count(TOPIC) == 0
    await producer.send(b"still works")


async def test_values_at_the_limits_are_accepted(client: dejaq.Client, producer: dejaq.Producer) -> None:
    sent = await producer.send(
        b"x" * limits.BODY_BYTES_MAX, id="i" * limits.ID_CHARS_MAX, priority=limits.PRIORITY_MIN, at=0
    )
    message = await one(client, sent)
    assert (len(message.body), message.priority, message.ts) == (
        limits.BODY_BYTES_MAX,
        limits.PRIORITY_MIN,
        0,
    )


async def test_owners_cancel_edit_and_move_their_messages(
    client: dejaq.Client, producer: dejaq.Producer, clock: VirtualClock
) -> None:
    ids = (await producer.send_batch([b"a", b"b", b"c"], delay=60)).ids
    moved = await producer.move(ids[:2], at=[clock.now_ms() + 5, clock.now_ms() + 6])
    assert moved.ok
    assert await producer.edit(ids[0], body=b"new", priority=4, headers={"k": "v"}) is dejaq.Code.OK
    cancelled = await producer.cancel([ids[2], "unknown"], results=True)
    assert cancelled.failed == {1: dejaq.Code.NOT_FOUND}
    first, second, third = await client.get(TOPIC, ids)
    assert first is not None
    assert second is not None
    assert third is None
    assert (first.body, first.priority, first.ts, dict(first.headers)) == (
        b"new",
        4,
        clock.now_ms() + 5,
        {"k": "v"},
    )
    assert (second.body, second.ts) == (b"b", clock.now_ms() + 6)


async def test_a_refused_message_of_a_batch_raises(
    client: dejaq.Client, producer: dejaq.Producer, clock: VirtualClock
) -> None:
    """U18: a batch that was sent in part looked like one that was sent."""
    now = clock.now_ms()
    with pytest.raises(dejaq.InvalidArgument) as refused:
        await producer.send_batch([b"a", b"b", b"c"], ids=["a", "b", "c"], at=[now, -1, now])
    assert refused.value.failed == {"b": dejaq.Code.INVALID_TIME}
    assert "1 of 3 items failed, 2 were done" in str(refused.value)
    with pytest.raises(dejaq.Conflict) as taken:
        await producer.send_batch([b"other", b"d"], ids=["a", "d"], at=now)
    assert taken.value.failed == {"a": dejaq.Code.ID_TAKEN}
    with pytest.raises(dejaq.InvalidArgument) as unnamed:
        await producer.send_batch([b"e", b"f"], at=[now, -1])
    assert unnamed.value.failed == {"item 1": dejaq.Code.INVALID_TIME}
    assert await client.count(TOPIC) == 4
    assert (await producer.send_batch([b"a"], ids=["a"], at=now)).codes == [dejaq.Code.ALREADY_EXISTS]


async def test_a_refused_item_of_a_list_raises(client: dejaq.Client, producer: dejaq.Producer) -> None:
    """U18: a refusal in a list cannot be missed: the error lists the refused items, and the other items are done."""
    await producer.send_batch([b""] * 4, ids=["a", "b", "c", "d"], delay=60)
    with pytest.raises(dejaq.Missing) as moved:
        await producer.move(["a", "none", "b", "nobody"], delay=90)
    assert moved.value.failed == {"none": dejaq.Code.NOT_FOUND, "nobody": dejaq.Code.NOT_FOUND}
    assert "2 of 4 items failed, 2 were done" in str(moved.value)
    assert "none: NOT_FOUND, nobody: NOT_FOUND" in str(moved.value)
    assert pickle.loads(pickle.dumps(moved.value)).failed == moved.value.failed
    with pytest.raises(dejaq.Conflict) as edited:
        await producer.edit_batch(["a", "b"], bodies=[b"new", b"new"], versions=[1, (await one(client, "b")).version])
    assert edited.value.failed == {"a": dejaq.Code.VERSION_CONFLICT}
    assert (await one(client, "b")).body == b"new"
    with pytest.raises(dejaq.Missing):
        await producer.cancel(["a", "none"])
    assert (await producer.cancel(["b", "c"])).ok
    assert (await producer.cancel(["d", "none"], results=True)).failed == {1: dejaq.Code.NOT_FOUND}
    assert await client.count(TOPIC) == 0


async def test_a_change_of_a_single_message_raises_when_it_is_refused(
    client: dejaq.Client, producer: dejaq.Producer
) -> None:
    sent = await producer.send(b"x", delay=60)
    async with client.producer(TOPIC, group="others") as stranger:
        for refused in (stranger.move(sent, delay=1), stranger.cancel(sent), stranger.edit(sent, body=b"y")):
            with pytest.raises(dejaq.Conflict) as error:
                await refused
            assert error.value.code is dejaq.Code.NOT_OWNER
            # U17: the error names the owner.
            assert f"belongs to group {producer.group!r}, and this producer to 'others'" in str(error.value)
    with pytest.raises(dejaq.Missing):
        await producer.cancel("unknown")
    for nothing in (producer.edit(sent), producer.edit(sent, version=1)):
        with pytest.raises(dejaq.InvalidArgument):
            await nothing
    with pytest.raises(dejaq.InvalidArgument):
        await producer.move([sent])


async def test_an_edit_may_be_conditional_on_a_version(client: dejaq.Client, producer: dejaq.Producer) -> None:
    sent = await producer.send(b"x", delay=60)
    version = (await one(client, sent)).version
    await producer.edit(sent, body=b"y", version=version)
    with pytest.raises(dejaq.Conflict) as refused:
        await producer.edit(sent, body=b"z", version=version)
    assert refused.value.code is dejaq.Code.VERSION_CONFLICT
    assert (await one(client, sent)).body == b"y"


async def test_a_producer_of_an_unknown_topic_does_not_open(client: dejaq.Client) -> None:
    with pytest.raises(dejaq.Missing) as refused:
        async with client.producer("nowhere"):
            pass
    assert refused.value.code is dejaq.Code.TOPIC_NOT_FOUND


async def test_a_closed_producer_has_sent_all_its_messages(client: dejaq.Client) -> None:
    async with client.producer(TOPIC) as producer:
        sending = [asyncio.ensure_future(producer.send(b"x")) for _ in range(20)]
        await asyncio.sleep(0)
    await asyncio.gather(*sending)
    assert await client.count(TOPIC) == 20
    with pytest.raises(dejaq.OutOfState):
        await producer.send(b"late")


async def test_fan_out_puts_one_message_under_one_id_into_several_topics(
    client: dejaq.Client, clock: VirtualClock
) -> None:
    """G10: one message is created in all topics of a store, or in none."""
    await client.create_topic("other")
    sent = await client.fan_out([TOPIC, "other"], b"x", delay=5, headers={"k": "v"})
    assert sent.ok
    for topic in (TOPIC, "other"):
        [message] = await client.get(topic, [sent.id])
        assert message is not None
        assert (message.body, message.ts) == (b"x", clock.now_ms() + 5_000)
    again = await client.fan_out([TOPIC, "other"], b"x", at=clock.now_ms() + 5_000, id=sent.id, headers={"k": "v"})
    assert again.ok
    with pytest.raises(dejaq.Missing, match="nowhere"):
        await client.fan_out([TOPIC, "other", "nowhere"], b"y")
    assert await client.count(TOPIC) == 1


async def test_fan_out_may_let_each_topic_decide_for_itself(client: dejaq.Client) -> None:
    await client.create_topic("other")
    with pytest.raises(dejaq.Missing, match="nowhere") as refused:
        await client.fan_out([TOPIC, "other", "nowhere"], b"x", id="x", delay=5, atomic=False)
    assert refused.value.failed == {"nowhere": dejaq.Code.TOPIC_NOT_FOUND}
    assert await client.count(TOPIC) == await client.count("other") == 1
    sent = await client.fan_out([TOPIC, "other", "nowhere"], b"x", id="y", atomic=False, results=True)
    assert sent.codes == {
        TOPIC: dejaq.Code.OK,
        "other": dejaq.Code.OK,
        "nowhere": dejaq.Code.TOPIC_NOT_FOUND,
    }
    assert await client.count(TOPIC) == await client.count("other") == 2
