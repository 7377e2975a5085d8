"""A process that changes a store until it is killed, and reports on stdout each change that it begins or completes.

Each task has a topic of its own and makes one change at a time, so that after the kill at most one change per task has
an unknown outcome. A line of `begin` carries the whole state after the change; a line of `done` follows its
acknowledgement, with the state. A lease in a priority topic takes some of the due messages: its line of `begin` has all
of them, and says so.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import random
import sys
from collections.abc import Awaitable
from pathlib import Path
from typing import Any

from dejaq.domain.batch import CreateBatch, LeaseRequest, LeaseSet, Outcomes, admit
from dejaq.domain.changes import Cancel, Create, Delete, Edit, Edits, Release
from dejaq.domain.context import DIRECT_CALL
from dejaq.domain.ids import ProducerSession
from dejaq.domain.topic import Topic, TopicKind, TopicSettings
from dejaq.storage.base import Storage, apply_one
from dejaq.storage.postgres.store import PostgresStorage
from dejaq.storage.rocksdb.store import RocksStorage
from dejaq.storage.rocksdb.timeline.levels.settings import LevelSettings

NOW = 1_800_000_000_000
TASKS = 3
BUCKETS = 4
LEASE_MS = 60_000
# Few rows are scattered enough for a wide run here, and few wide runs enough for a merge.
LEVELS = LevelSettings(wide_rows_min=5, merge_runs=2, near_runs=2, piece_rows=10)

# id -> [ts, digest of the body, attempts, consumer]
State = dict[str, list[Any]]


def say(line: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


def digest(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()[:16]


def store_at(place: str) -> Storage:
    """The store in a directory, or, for the address of a server and a cluster name, the PostgreSQL store there."""
    dsn, _, cluster = place.partition(" ")
    return PostgresStorage(dsn, cluster=cluster) if cluster else RocksStorage(Path(place), levels=LEVELS)


class Task:
    """One task: its topic, the state that it expects there, and its random choices."""

    def __init__(self, storage: Storage, number: int, seed: int, kind: TopicKind) -> None:
        self.storage, self.by_priority = storage, kind is TopicKind.PRIORITY
        self.number = number
        self.chance = random.Random(seed * 1_000 + number)
        self.session = ProducerSession(NOW, number)
        self.sequence = 0
        self.now = NOW
        self.state: State = {}
        self.leases: list[LeaseSet] = []
        self.topic = Topic("", 0, TopicSettings(buckets=BUCKETS, kind=kind))

    async def run(self, changes: int) -> None:
        number = await self.storage.next_topic_number()
        self.topic = Topic(f"task-{self.number}", number, self.topic.settings, created_ms=NOW)
        await self.storage.put_topic(self.topic, DIRECT_CALL)
        say({"task": self.number, "topic": self.topic.name})
        for _ in range(changes):
            self.now += 1
            kinds = [self.create, self.create, self.lease, self.delete, self.release, self.change_mind]
            # A lease takes everything that is due: rows by priority are merged only while they wait for one.
            kinds += [self.create] * 6 if self.by_priority else []
            await self.chance.choice(kinds)()

    async def change(self, after: State, call: Awaitable[Any], *, some: bool = False) -> Any:
        say({"task": self.number, "begin": after, "some": some})
        answer = await call
        if isinstance(answer, Outcomes):
            assert not answer.codes, answer
        if some:
            taken = set(answer.ids())
            after = {name: row if name in taken else self.state[name] for name, row in after.items()}
        say({"task": self.number, "done": after})
        self.state = after
        return answer

    async def create(self) -> None:
        count = self.chance.choice([1, 5, 40])
        ahead = 50 if self.by_priority else 50_000
        priorities = 1_000 if self.by_priority else 1
        order = sorted(
            (self.now + self.chance.randrange(-50, ahead), self.chance.randrange(priorities)) for _ in range(count)
        )
        ts = [at for at, _ in order]
        bodies = [self.chance.randbytes(self.chance.choice([0, 20, 20_000])) for _ in range(count)]
        ids = None
        if self.chance.random() < 0.5:
            ids = [f"t{self.number}-{self.sequence + row}" for row in range(count)]
        batch = CreateBatch(
            owner="billing",
            session=self.session,
            sequence=self.sequence,
            ts=ts,
            bodies=bodies,
            ids=ids,
            priorities=[priority for _, priority in order] if self.by_priority else None,
            bucket=self.chance.randrange(BUCKETS) if ids is None else 0,
        )
        self.sequence += count
        admit(batch, self.topic.settings, self.now)
        new = {batch.id_of(row): [ts[row], digest(bodies[row]), 0, ""] for row in range(count)}
        await self.change(
            {**self.state, **new}, apply_one(self.storage, Create(self.topic, batch), self.now, DIRECT_CALL)
        )

    def due(self) -> list[str]:
        return [name for name, (ts, _, _, holder) in self.state.items() if not holder and ts <= self.now]

    async def lease(self) -> None:
        due = self.due()
        if not due:
            return
        expires = self.now + LEASE_MS
        leased = {name: [expires, self.state[name][1], self.state[name][2] + 1, "worker"] for name in due}
        request = LeaseRequest(range(BUCKETS), "worker", until=self.now, expires=expires)
        lease = await self.change(
            {**self.state, **leased},
            self.storage.lease(self.topic, request, self.now, DIRECT_CALL),
            some=self.by_priority,
        )
        assert self.by_priority or sorted(lease.ids()) == sorted(due)
        self.leases.append(lease)

    async def delete(self) -> None:
        if not self.leases:
            return
        lease = self.leases.pop(self.chance.randrange(len(self.leases)))
        after = {name: row for name, row in self.state.items() if name not in set(lease.ids())}
        await self.change(
            after, apply_one(self.storage, Delete(self.topic, lease.lease_id, "worker", None), self.now, DIRECT_CALL)
        )

    async def release(self) -> None:
        if not self.leases:
            return
        lease = self.leases.pop(self.chance.randrange(len(self.leases)))
        at = self.now + self.chance.choice([0, 30_000])
        released = {name: [at, self.state[name][1], self.state[name][2], ""] for name in lease.ids()}
        await self.change(
            {**self.state, **released},
            apply_one(self.storage, Release(self.topic, lease.lease_id, "worker", None, at), self.now, DIRECT_CALL),
        )

    async def change_mind(self) -> None:
        free = [name for name, row in self.state.items() if not row[3]]
        if len(free) < 3:
            return
        one, other = self.chance.sample(free, 2)
        body = self.chance.randbytes(10)
        edited = [self.now + 5_000, digest(body), *self.state[other][2:]]
        await self.change(
            {**self.state, other: edited},
            apply_one(
                self.storage,
                Edit(self.topic, "billing", Edits(ids=[other], ts=[self.now + 5_000], bodies=[body])),
                self.now,
                DIRECT_CALL,
            ),
        )
        after = {name: row for name, row in self.state.items() if name != one}
        await self.change(after, apply_one(self.storage, Cancel(self.topic, "billing", [one]), self.now, DIRECT_CALL))


async def main(place: str, seed: int, changes: int, kind: TopicKind) -> None:
    storage = store_at(place)
    await storage.open(NOW)
    await asyncio.gather(*(Task(storage, number, seed, kind).run(changes) for number in range(TASKS)))
    say({"finished": True})
    await storage.close()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), TopicKind(sys.argv[4])))
