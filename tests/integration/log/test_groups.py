"""Groups of readers: buckets are divided, commits are kept, and nothing is missed or read twice after a commit."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence

import pytest

import dejaq
from dejaq.broker.log import groups, topics
from dejaq.errors import Code, Conflict, OutOfState
from dejaq.sdk.log.group import LogGroup
from dejaq.sdk.log.messages import LogMessage
from dejaq.testing.waiting import eventually
from tests.integration.log.conftest import TOPIC
from tests.integration.sdk.cutting import CuttingTransport


async def taken(member: LogGroup, count: int) -> list[LogMessage]:
    async with asyncio.timeout(30):
        return [await anext(member) for _ in range(count)]


async def test_a_group_continues_where_it_has_committed(client: dejaq.Client) -> None:
    log = client.log(TOPIC)
    await log.append_batch([b"%d" % n for n in range(10)], bucket=0)
    async with log.group("billing") as member:
        assert len(await taken(member, 4)) == 4
        await member.commit()
        assert len(await taken(member, 2)) == 2
    async with log.group("billing") as member:
        assert [m.body for m in await taken(member, 6)] == [b"%d" % n for n in range(4, 10)]
        assert (await member.committed())[0] == 4
        await member.commit({0: 9})
        assert (await member.committed())[0] == 9
    (group,) = await log.groups()
    assert (group.name, group.lag, list(group.members)) == ("billing", 1, [])


async def test_members_divide_the_buckets(client: dejaq.Client) -> None:
    log = client.log(TOPIC)
    assigned: list[Sequence[int]] = []
    revoked: list[Sequence[int]] = []
    async with log.group("billing", on_assigned=assigned.append, on_revoked=revoked.append) as first:
        await eventually(lambda: first.buckets == [0, 1, 2, 3], within=10)
        async with log.group("billing") as second:
            await eventually(lambda: len(first.buckets) == len(second.buckets) == 2, within=10)
            assert sorted(first.buckets + second.buckets) == [0, 1, 2, 3]
            (group,) = await log.groups()
            assert len(group.members) == 2
        await eventually(lambda: first.buckets == [0, 1, 2, 3], within=10)
    assert [len(buckets) for buckets in assigned] == [4, 2]
    assert [len(buckets) for buckets in revoked] == [2]


async def test_a_member_commits_before_it_loses_a_bucket(client: dejaq.Client) -> None:
    """Nothing is read twice in an orderly rebalance, when the callback commits."""
    log = client.log(TOPIC)
    await log.append_batch([b"%d" % n for n in range(400)], keys=[b"%d" % n for n in range(400)])
    seen: Counter[bytes] = Counter()
    members: list[LogGroup] = []

    async def commit(buckets: Sequence[int]) -> None:
        await members[0].commit()

    members.append(log.group("billing", on_revoked=commit))
    async with members[0] as first:
        seen.update(m.body for m in await taken(first, 150))
        async with log.group("billing") as second:
            await eventually(lambda: len(second.buckets) == 2, within=10)

            async def read(member: LogGroup) -> None:
                async for message in member:
                    seen[message.body] += 1

            reading = [asyncio.create_task(read(first)), asyncio.create_task(read(second))]
            await eventually(lambda: len(seen) == 400, within=30)
            for task in reading:
                task.cancel()
            await asyncio.gather(*reading, return_exceptions=True)
    assert set(seen.values()) == {1}


async def test_a_commit_under_an_old_claim_is_refused(client: dejaq.Client) -> None:
    log = client.log(TOPIC)
    await log.append_batch([b"%d" % n for n in range(10)], bucket=0)
    async with log.group("billing") as member:
        await taken(member, 5)
        before = member.claims()
        await log.reset_group("billing", {0: 1})
        await eventually(lambda: member.claims()[0] != before[0], within=10)
        member._claims.update(before)
        with pytest.raises(Conflict) as refused:
            await member.commit({0: 5})
        assert refused.value.code is Code.CLAIM_LOST
    assert {group.name: group.committed[0] for group in await log.groups()} == {"billing": 1}


async def test_a_reset_moves_the_members(client: dejaq.Client) -> None:
    log = client.log(TOPIC)
    await log.append_batch([b"%d" % n for n in range(10)], bucket=0)
    async with log.group("billing") as member:
        assert [m.body for m in await taken(member, 10)][-1] == b"9"
        await member.commit()
        assert await log.reset_group("billing", {0: 7}, dry_run=True) == {0: 7}
        assert (await member.committed())[0] == 10
        await log.reset_group("billing", {0: 7})
        assert [m.body for m in await taken(member, 3)] == [b"7", b"8", b"9"]
        with pytest.raises(OutOfState, match="has 1 members"):
            await log.remove_group("billing")
    await eventually(lambda: _removed(log), within=10)
    assert await log.groups() == []


async def _removed(log: dejaq.Log) -> bool:
    try:
        return await log.remove_group("billing")
    except OutOfState:
        return False


async def test_uncommitted_messages_are_sent_again_after_a_reconnect(
    client: dejaq.Client, wire: CuttingTransport
) -> None:
    log = client.log(TOPIC)
    await log.append_batch([b"%d" % n for n in range(10)], bucket=0)
    async with log.group("billing") as member:
        await taken(member, 3)
        await member.commit()
        await taken(member, 4)
        await wire.cut_now()
        bodies: list[bytes] = []
        async with asyncio.timeout(30):
            # Those of the batch that the caller was reading may come first.
            while b"3" not in bodies or bodies[-1] != b"9":
                bodies.append((await anext(member)).body)
    assert bodies[bodies.index(b"3") :] == [b"%d" % n for n in range(3, 10)]


async def test_a_member_gets_more_when_it_has_committed_a_share(client: dejaq.Client) -> None:
    log = client.log(TOPIC)
    for _ in range(20):
        await log.append_batch([b"x" * 1_000] * 10, bucket=0)
    async with log.group("billing", window_bytes=50_000) as member:
        messages = await taken(member, 50)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.3):
                messages += [await anext(member) for _ in range(150)]
        while len(messages) < 200:
            await member.commit()
            messages += await taken(member, 10)
    assert [m.offset for m in messages][-1] == 199


async def test_a_group_that_begins_at_the_end_loses_nothing_when_its_first_member_commits_nothing(
    client: dejaq.Client,
) -> None:
    """Where a group begins is decided once, not by each member that gets a bucket."""
    log = client.log(TOPIC)
    await log.append_batch([b"old"] * 10, bucket=0)
    async with log.group("billing", start="latest") as first:
        await eventually(lambda: first.buckets == [0, 1, 2, 3], within=10)
        await log.append_batch([b"%d" % n for n in range(5)], bucket=0)
        assert len(await taken(first, 5)) == 5
    async with log.group("billing", start="latest") as second:
        assert [m.offset for m in await taken(second, 5)] == [10, 11, 12, 13, 14]


async def test_a_slow_callback_releases_no_bucket_that_was_assigned_again(
    client: dejaq.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(groups, "REVOKE_SECONDS", 0.05)
    log, may_go_on = client.log(TOPIC), asyncio.Event()

    async def handle(buckets: Sequence[int]) -> None:
        await may_go_on.wait()

    async with log.group("billing", on_revoked=handle) as first:
        await eventually(lambda: first.buckets == [0, 1, 2, 3], within=10)
        before = first.claims()
        async with log.group("billing") as second:
            await eventually(lambda: len(second.buckets) == 2, within=10)
            moved = second.buckets
            # The broker gave them away, and the callback still runs: a seek is refused and the rest is read on.
            with pytest.raises(OutOfState):
                async with asyncio.timeout(20):
                    await first.seek(moved[0], 0)
        await eventually(lambda: all(first.claims()[bucket] != before[bucket] for bucket in moved), within=10)
        may_go_on.set()
        for bucket in range(4):
            await log.append(b"%d" % bucket, bucket=bucket)
        assert sorted(m.body for m in await taken(first, 4)) == [b"0", b"1", b"2", b"3"]
        assert first.buckets == [0, 1, 2, 3]


async def test_the_lag_of_a_group_is_a_metric(
    broker: dejaq.Broker, client: dejaq.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topics, "RETAIN_SECONDS", 0.05)
    log, registry = client.log(TOPIC), broker.central.metrics.registry

    def shows(name: str, value: float | None, **labels: str) -> bool:
        return registry.get_sample_value(name, {"topic": TOPIC, **labels}) == value

    await log.append_batch([b"x"] * 10, bucket=0)
    async with log.group("billing") as member:
        await taken(member, 4)
        await member.commit()
        await eventually(lambda: shows("dejaq_log_lag", 6, group="billing"), within=20)
    async with client.transaction() as t:
        t.append(log, b"y", bucket=1)
        await t.prepare(log, "t")
    await eventually(lambda: shows("dejaq_log_in_doubt", 1), within=20)
    await log.commit_prepared("t")
    await eventually(lambda: shows("dejaq_log_in_doubt", None), within=20)
    await eventually(lambda: shows("dejaq_log_lag", 7, group="billing"), within=20)
