"""Appends, rollbacks, readers and a group on one log, while something is broken; and what must hold at the end."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable

import dejaq
from dejaq.errors import Code, DejaqError
from dejaq.sdk.log.messages import LogMessage
from dejaq.testing.waiting import eventually
from tests.pace import take_time

TOPIC = "events"
COPIES = "copies"
BUCKETS = 4
ROWS = 10
WINDOW = "300ms"
# Every so many batches, one is rolled back.
ROLLBACK_EVERY = 9
# The pause between batches, so that the load lasts as long as what is done to the brokers.
PACE_SECONDS = 0.004


class LogWorkload:
    """`batches` batches of ten messages. `others` are clients, for example at other brokers, that also read."""

    def __init__(self, client: dejaq.Client, others: tuple[dejaq.Client, ...] = (), *, batches: int = 120) -> None:
        self._client, self._clients = client, (client, *others)
        self._batches = batches
        self.placed: dict[bytes, tuple[int, int]] = {}
        self.taken_out: set[bytes] = set()
        self.wrong: list[str] = []
        self._seen: list[dict[tuple[int, int], bytes]] = []
        self._handled: Counter[tuple[int, int]] = Counter()
        self._committed: dict[int, int] = {}

    async def run(self, breaks: int, break_something: Callable[[int], Awaitable[None]]) -> None:
        """Do everything, and break something so many times meanwhile; then judge."""
        await self._client.create_topic(TOPIC, kind="log", buckets=BUCKETS, rollback_window=WINDOW)
        await self._client.create_topic(COPIES, kind="log", buckets=2)
        appending = asyncio.create_task(self._append_all())
        reading = [asyncio.create_task(self._read(client)) for client in self._clients]
        members = [asyncio.create_task(self._consume(one, f"m{n}")) for n, one in enumerate(self._clients)]
        members += [asyncio.create_task(self._copy(one, f"c{n}")) for n, one in enumerate(self._clients)]
        try:
            for number in range(breaks):
                due = (number + 1) * self._batches * ROWS // (breaks + 2)
                await eventually(lambda due=due: self._count >= due, within=90, what=f"{due} messages", poll=0.001)  # type: ignore[misc]
                await break_something(number)
            await appending
            await eventually(self._complete, within=60, what="every reader and the group have everything")
            await eventually(self._copied, within=60, what="everything is copied", poll=0.2)
        finally:
            for task in (appending, *reading, *members):
                task.cancel()
            for outcome in await asyncio.gather(*reading, *members, return_exceptions=True):
                if outcome is not None and not isinstance(outcome, asyncio.CancelledError):
                    self.wrong.append(repr(outcome))
        await self._judge()

    @property
    def _count(self) -> int:
        return len(self.placed) + len(self.taken_out)

    async def _append_all(self) -> None:
        async def one(number: int) -> None:
            log = self._clients[number % len(self._clients)].log(TOPIC)
            bodies = [b"%d-%d" % (number, row) for row in range(ROWS)]
            (batch,) = await log.append_batch(bodies, bucket=number % BUCKETS)
            places = {body: (batch.bucket, batch.base + row) for row, body in enumerate(bodies)}
            if number % ROLLBACK_EVERY == ROLLBACK_EVERY - 1:
                try:
                    await log.rollback(batch)
                except DejaqError as error:
                    assert error.code is Code.TOO_LATE, repr(error)
                else:
                    self.taken_out.update(bodies)
                    return
            self.placed.update(places)

        for first in range(0, self._batches, 4):
            await asyncio.gather(*(one(first + number) for number in range(4)))
            await take_time(PACE_SECONDS)

    async def _read(self, client: dejaq.Client) -> None:
        """A reader without a group: each offset at most once, in order."""
        last = dict.fromkeys(range(BUCKETS), -1)
        seen: dict[tuple[int, int], bytes] = {}
        self._seen.append(seen)
        async with client.log(TOPIC).reader() as reader:
            async for message in reader:
                if message.offset <= last[message.bucket]:
                    self.wrong.append(f"bucket {message.bucket}: {message.offset} after {last[message.bucket]}")
                last[message.bucket] = message.offset
                seen[message.bucket, message.offset] = message.body

    async def _consume(self, client: dejaq.Client, name: str) -> None:
        """A member of a group, which commits after every ten messages; a commit that was refused is no error."""
        async with client.log(TOPIC).group("billing", name=name) as member:
            pending: list[LogMessage] = []
            async for message in member:
                if message.offset < self._committed.get(message.bucket, 0):
                    self.wrong.append(f"{name}: {message.bucket}/{message.offset} was committed and came again")
                self._handled[message.bucket, message.offset] += 1
                pending.append(message)
                if len(pending) == ROWS:
                    pending.clear()
                    positions = member.positions()
                    try:
                        await member.commit()
                    except DejaqError:
                        continue
                    for bucket, offset in positions.items():
                        self._committed[bucket] = max(offset, self._committed.get(bucket, 0))

    async def _copy(self, client: dejaq.Client, name: str) -> None:
        """A member of a group that copies each message into another log, exactly once."""
        copies = client.log(COPIES)
        while True:
            async with client.log(TOPIC).group("copy", name=name) as member:
                async for batch in member.batches(ROWS):
                    transaction = client.transaction()
                    for body in batch.bodies:
                        transaction.append(copies, body)
                    transaction.commit_offsets(member)
                    try:
                        await transaction.commit()
                    except DejaqError:
                        # It begins again where the group has committed, whether this one was done or not.
                        break

    async def _copies(self) -> Counter[bytes]:
        return Counter([body async for batch in self._client.log(COPIES).read() for body in batch.bodies])

    async def _copied(self) -> bool:
        return (await self._copies()).keys() >= self.placed.keys()

    def _complete(self) -> bool:
        places = set(self.placed.values())
        return all(places <= seen.keys() for seen in self._seen) and places <= self._handled.keys()

    async def _judge(self) -> None:
        assert self.wrong == []
        assert self._count == self._batches * ROWS
        assert await self._copies() == dict.fromkeys(self.placed, 1), "a message was not copied exactly once"
        for client in self._clients:
            stored = {
                (m.bucket, m.offset): m async for batch in client.log(TOPIC).read(uncommitted=True) for m in batch
            }
            for bucket in range(BUCKETS):
                offsets = sorted(offset for one, offset in stored if one == bucket)
                assert offsets == list(range(len(offsets))), f"bucket {bucket} has a hole"
            live = {place: message.body for place, message in stored.items() if not message.aborted}
            assert live == {place: body for body, place in self.placed.items()}, (
                "a message is not where its append said"
            )
            assert {m.body for m in stored.values() if m.aborted} == self.taken_out
            assert all(seen == live for seen in self._seen), "a reader saw another order, or what was rolled back"
            assert self._handled.keys() == live.keys(), "the group missed something, or got what was rolled back"
