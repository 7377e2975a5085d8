"""Cron topics through the SDK: schedules create ordinary messages at their times, each message once (G11)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import dejaq
from dejaq import limits
from dejaq.domain.schedules.schedule import LEAD_MS
from dejaq.protocol.v1 import cron_pb2 as wire
from dejaq.testing.waiting import patient
from dejaq.timekeeper.clock import VirtualClock

CRON = "nightly"
MINUTE = 60_000


@pytest.fixture
async def cron(client: dejaq.Client) -> dejaq.Cron:
    await client.create_topic(CRON, kind="cron", buckets=2)
    return client.cron(CRON)


@pytest.fixture
async def consumer(client: dejaq.Client, cron: dejaq.Cron) -> AsyncIterator[dejaq.Consumer]:
    async with client.consumer(CRON, name="worker-1") as consumer:
        yield consumer


def minute_after(clock: VirtualClock) -> int:
    return (clock.now_ms() // MINUTE + 1) * MINUTE


async def pass_time(clock: VirtualClock, milliseconds: int) -> None:
    """Advance the clock in steps that the cron unit can follow."""
    end = clock.now_ms() + milliseconds
    while clock.now_ms() < end:
        await clock.advance(min(500, end - clock.now_ms()))


async def bodies(client: dejaq.Client) -> list[bytes]:
    return [message.body async for page in client.browse(CRON) for message in page]


async def test_an_occurrence_is_an_ordinary_message_at_its_millisecond(
    cron: dejaq.Cron, consumer: dejaq.Consumer, clock: VirtualClock
) -> None:
    """G11: the message is leased at its time; its id consists of the schedule's name and that time."""
    first = minute_after(clock)
    info = await cron.add("report", "* * * * *", "{name} {count} at {time}", headers={"k": "v"}, priority=3)
    assert info.next == datetime.fromtimestamp(first / 1_000, UTC)
    taking = asyncio.ensure_future(anext(consumer))
    await pass_time(clock, first - clock.now_ms() - 1)
    assert not taking.done()
    await pass_time(clock, 1)
    lease = await asyncio.wait_for(taking, patient(10))
    at = datetime.fromtimestamp(first / 1_000, UTC)
    assert lease.id == f"report:{at:%Y%m%dT%H%M%S}Z"
    assert (lease.ts, lease.priority, dict(lease.headers)) == (first, 3, {"k": "v"})
    assert lease.body == f"report 1 at {at:%Y-%m-%dT%H:%M:%S}.000Z".encode()
    await lease.delete()


async def test_each_occurrence_is_created_once(client: dejaq.Client, cron: dejaq.Cron, clock: VirtualClock) -> None:
    """G11: one message per minute, however often the unit checks the schedules."""
    await cron.add("report", "* * * * *", "{count}")
    first = minute_after(clock)
    await pass_time(clock, first - clock.now_ms() + 2 * MINUTE)
    assert (await bodies(client))[:3] == [b"1", b"2", b"3"]
    info = await cron.get("report")
    assert info is not None
    assert info.count == await client.count(CRON)
    assert [outcome for _, outcome in info.history] == ["created"] * info.count


async def test_pause_removes_prepared_occurrences_and_resume_continues(
    client: dejaq.Client, cron: dejaq.Cron, clock: VirtualClock
) -> None:
    await cron.add("report", "* * * * *")
    await pass_time(clock, minute_after(clock) - clock.now_ms() - LEAD_MS // 2)
    assert await client.count(CRON) == 1
    paused = await cron.pause("report")
    assert (paused.paused, paused.next, paused.count) == (True, None, 0)
    assert await cron.history("report") == ()
    assert await client.count(CRON) == 0
    await pass_time(clock, 3 * MINUTE)
    assert await client.count(CRON) == 0
    resumed = await cron.resume("report")
    assert resumed.next == datetime.fromtimestamp(minute_after(clock) / 1_000, UTC)
    await pass_time(clock, MINUTE)
    assert await client.count(CRON) >= 1


async def test_run_now_remove_next_and_history(client: dejaq.Client, cron: dejaq.Cron, clock: VirtualClock) -> None:
    await cron.add("report", "0 4 * * *", "{count}", zone="Europe/Berlin")
    made = await cron.run("report")
    [message] = await client.get(CRON, [made])
    assert message is not None
    assert (message.body, message.ts, message.producer_group) == (b"1", clock.now_ms(), "cron")
    assert [outcome for _, outcome in await cron.history("report")] == ["run"]
    times = await cron.next("report", 3)
    assert len(times) == 3
    assert times == sorted(times)
    assert times[1] - times[0] == timedelta(days=1)
    assert times == await cron.preview("0 4 * * *", 3, zone="Europe/Berlin")
    assert await cron.remove("report") is True
    assert await cron.remove("report") is False, "U17: the second call removed no schedule"
    assert [info async for info in cron.all()] == []
    assert await client.count(CRON) == 1, "due messages stay"
    with pytest.raises(dejaq.Missing):
        await cron.run("report")


async def test_a_repeated_run_creates_one_message(client: dejaq.Client, cron: dejaq.Cron, broker: dejaq.Broker) -> None:
    await cron.add("report", "@daily")
    request = wire.ChangeScheduleRequest(topic=CRON, name="report", action=wire.RUN, key="abc")
    for _ in range(2):
        await broker.transport().call("Cron.Change", request, wire.SchedulesResponse, 5)
    assert await client.count(CRON) == 1


async def test_a_schedule_is_added_once_and_replaced_when_asked(cron: dejaq.Cron) -> None:
    first = await cron.add("report", "0 4 * * *", zone="Europe/Berlin")
    assert await cron.add("report", "0 4 * * *", zone="Europe/Berlin") == first
    with pytest.raises(dejaq.Conflict) as refused:
        await cron.add("report", "0 5 * * *", zone="Europe/Berlin")
    assert refused.value.code is dejaq.Code.ID_TAKEN
    second = await cron.add("report", "0 5 * * *", zone="Europe/Berlin", replace=True)
    assert second.expression == "0 5 * * *"
    assert second.next != first.next


async def test_a_replacement_keeps_what_it_does_not_name(cron: dejaq.Cron) -> None:
    """U17: changing the time of a schedule with `replace=True` emptied its body and set its time zone to UTC."""
    first = await cron.add(
        "report",
        "0 4 * * *",
        "of {date}",
        zone="Europe/Berlin",
        priority=3,
        headers={"k": "v"},
        jitter=2,
        missed="skip",
    )
    changed = await cron.add("report", "0 5 * * *", replace=True)
    assert changed == replace(first, expression="0 5 * * *", next=changed.next)
    assert (await cron.add("report", "0 5 * * *", "", priority=0, replace=True)) == replace(
        changed, body="", priority=0
    )


async def test_missed_skip_delivers_nothing_that_was_prepared_before_an_outage(
    client: dejaq.Client, cron: dejaq.Cron, clock: VirtualClock
) -> None:
    """U23: occurrences were created up to 30 s in advance, and delivered after an outage however late they were."""
    await cron.add("tick", "@every 10s", "{count}", missed="skip")
    await pass_time(clock, 8_500)
    assert await client.count(CRON) == 0
    await pass_time(clock, 1_500)
    assert await bodies(client) == [b"1"]


async def test_overlap_skip_creates_nothing_while_the_last_message_exists(
    client: dejaq.Client, cron: dejaq.Cron, clock: VirtualClock
) -> None:
    await cron.add("slow", "@every 10s", "{count}", overlap="skip")
    await pass_time(clock, 35_000)
    assert await bodies(client) == [b"1"]
    [outcomes] = [info.history async for info in cron.all()]
    assert [outcome for _, outcome in outcomes] == ["created", "overlapped", "overlapped"]
    async with client.consumer(CRON, name="at-last") as consumer:
        await (await anext(consumer)).delete()
    await pass_time(clock, 10_000)
    assert await bodies(client) == [b"2"]


async def test_a_schedule_with_one_time_runs_once_and_ends(
    client: dejaq.Client, cron: dejaq.Cron, clock: VirtualClock
) -> None:
    at = clock.now_ms() + 30_000
    await cron.add("once", f"@at {at}", "{ms}")
    await pass_time(clock, 90_000)
    assert await bodies(client) == [str(at).encode()]
    info = await cron.get("once")
    assert info is not None
    assert (info.next, info.count) == (None, 1)


async def test_jitter_is_drawn_from_the_id(client: dejaq.Client, cron: dejaq.Cron, clock: VirtualClock) -> None:
    await cron.add("spread", "@every 5s", jitter=3)
    start = clock.now_ms()
    await pass_time(clock, 20_000)
    messages = [message async for page in client.browse(CRON) for message in page]
    late = [message.ts - start for message in messages]
    assert len({ts % 5_000 for ts in late}) > 1
    assert all(0 <= ts % 5_000 <= 3_000 for ts in late)


async def test_a_thousand_schedules_are_added_in_one_call_and_listed_in_pages(cron: dejaq.Cron) -> None:
    count = limits.SCHEDULES_PER_CALL_MAX + 5
    await cron.add_many(dejaq.Schedule(f"s-{number}", "0 4 * * *") for number in range(count))
    assert len({info.name async for info in cron.all()}) == count


async def test_the_topic_of_schedules_is_hidden_and_deleted_with_its_topic(
    client: dejaq.Client, cron: dejaq.Cron
) -> None:
    assert [topic.name for topic in await client.topics() if "/" in topic.name] == []
    for reach in (client.describe_topic(f"{CRON}/schedules"), client.count(f"{CRON}/schedules")):
        with pytest.raises(dejaq.InvalidArgument):
            await reach
    await cron.add("report", "@daily")
    await client.delete_topic(CRON)
    with pytest.raises(dejaq.Missing):
        await cron.get("report")


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"expression": "0 0 31 2 *"}, "day-of-month"),
        ({"expression": "61 * * * *"}, "minute"),
        ({"expression": "* * *"}, "fields"),
        ({"expression": ""}, "fields"),
        ({"expression": "@reboot"}, "@every"),
        ({"expression": "@every 10ms"}, "interval"),
        ({"expression": "@every soon"}, "length"),
        ({"expression": "@at tomorrow"}, "ISO 8601"),
        ({"expression": "@at 2001-01-01T00:00:00Z"}, "no time to come"),
        ({"expression": "0 0 */31 * MON#2"}, "no time to come"),
        ({"expression": "x" * 300}, "fields"),
        ({"zone": "Europe/Berln"}, "not a time zone"),
        ({"zone": "berlin"}, "Europe/Berlin"),
        ({"zone": "../../etc/passwd"}, "not a time zone"),
        ({"body": "{user}"}, "{user}"),
        ({"body": b"\xff\xfe"}, "text"),
        ({"end": 1_000_000_000_000}, "no time to come"),
        ({"jitter": -1}, "-1000"),
        ({"jitter": 10**6}, "jitter"),
        ({"missed": "perhaps"}, "skip, last, all"),
        ({"missed_max": 0}, "missed_max"),
        ({"overlap": "never"}, "allow, skip"),
        ({"repeated_hour": "thrice"}, "skip, once, twice"),
        ({"skipped_hour": "twice"}, "skip, once"),
        ({"name": "no good"}, "not the name"),
        ({"name": "n" * 41}, "not the name"),
        ({"group": ""}, "producer group"),
        ({"nonsense": 1}, "nonsense"),
    ],
)
async def test_invalid_schedules_are_refused_with_an_explanation(
    cron: dejaq.Cron, fields: dict[str, Any], says: str
) -> None:
    values = {"name": "bad", "expression": "* * * * *", **fields}
    with pytest.raises(dejaq.InvalidArgument) as refused:
        await cron.add(**values)
    assert refused.value.code is dejaq.Code.INVALID_SCHEDULE
    assert says in str(refused.value)
    assert [info async for info in cron.all()] == []


async def test_other_topics_have_no_schedules(client: dejaq.Client) -> None:
    with pytest.raises(dejaq.InvalidArgument, match="timeline"):
        await client.cron("mail").add("report", "@daily")
    with pytest.raises(dejaq.Missing):
        await client.cron("nowhere").add("report", "@daily")
