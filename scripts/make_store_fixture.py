"""Create a data directory with every kind of record, for the test that a later release can open it.

    python scripts/make_store_fixture.py tests/fixtures/store-format-10.tar.gz

The archive also has `expected.json`: the contents according to the changes that this script made,
and not according to the store. A released archive is never created again: a new format gets a new archive.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import random
import shutil
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any

from dejaq.domain.batch import CreateBatch, LeaseRequest, admit
from dejaq.domain.changes import Cancel, Create, Delete, Edit, Edits, Extend, Release
from dejaq.domain.context import DIRECT_CALL
from dejaq.domain.headers import encode_headers
from dejaq.domain.ids import ProducerSession
from dejaq.domain.topic import Durability, Topic, TopicSettings, TopicStage
from dejaq.storage.base import apply_one
from dejaq.storage.rocksdb.store import RocksStorage
from dejaq.storage.rocksdb.timeline.levels.settings import LevelSettings

NOW = 1_800_000_000_000
LIVE_LEASE_MS = 12 * 3600 * 1000
LARGE_BYTES = 20_000
SESSION = ProducerSession(NOW, 42)
BUCKETS = 4


class Maker:
    """Changes a store and records what it must contain afterwards."""

    def __init__(self, storage: RocksStorage, topic: Topic) -> None:
        self.storage = storage
        self.topic = topic
        self.noise = random.Random(17)
        self.sequence = 0
        self.messages: dict[str, dict[str, Any]] = {}
        self.leases: dict[str, dict[str, Any]] = {}
        self.batches: list[dict[str, Any]] = []

    async def create(
        self,
        ids: list[str] | None,
        *,
        ts: list[int],
        bucket: int = 0,
        group: str = "billing",
        sizes: tuple[int, ...] = (0, 8, 32, LARGE_BYTES),
    ) -> list[str]:
        """Create messages of all sizes, some with priorities and headers; returns their ids."""
        count = len(ts)
        bodies = [self.noise.randbytes(8) * (self.noise.choice(sizes) // 8) for _ in ts]
        headers = [{"kind": "fixture", "row": str(row)} if row % 3 == 0 else {} for row in range(count)]
        priorities = [(-1) ** row * row if ids is not None else row for row in range(count)]
        batch = CreateBatch(
            owner=group,
            session=SESSION,
            sequence=self.sequence,
            ts=ts,
            bodies=bodies,
            ids=ids,
            bucket=bucket,
            priorities=priorities,
            headers=[encode_headers(one) for one in headers],
        )
        admit(batch, self.topic.settings, NOW)
        assert not (await apply_one(self.storage, Create(self.topic, batch), NOW, DIRECT_CALL)).codes
        self.batches.append({"sequence": self.sequence, "count": count, "ids": ids, "bucket": bucket, "group": group})
        self.sequence += count
        made = [batch.id_of(row) for row in range(count)]
        for row, message_id in enumerate(made):
            self.messages[message_id] = {
                "ts": ts[row],
                "body": hashlib.sha256(bodies[row]).hexdigest(),
                "priority": priorities[row],
                "headers": headers[row],
                "group": group,
                "consumer": "",
                "attempts": 0,
            }
        return made

    async def lease(self, consumer: str, *, at: int, until: int, rows: int, expires: int) -> list[str]:
        """Lease the first due rows."""
        request = LeaseRequest(range(BUCKETS), consumer, until=until, expires=expires, rows_max=rows)
        lease = await self.storage.lease(self.topic, request, at, DIRECT_CALL)
        assert lease is not None
        ids = lease.ids()
        numbers = lease.rows or list(range(len(lease)))
        self.leases[consumer] = {"lease": lease.lease_id, "rows": dict(zip(ids, numbers, strict=True))}
        for message_id in ids:
            message = self.messages[message_id]
            message.update(ts=expires, consumer=consumer, attempts=message["attempts"] + 1)
        return ids

    def row(self, consumer: str, message_id: str) -> tuple[int, list[tuple[int, int]]]:
        """A lease's number and one row of it."""
        lease = self.leases[consumer]
        row = lease["rows"][message_id]
        return lease["lease"], [(row, row + 1)]

    async def settle(self, consumer: str, ids: list[str]) -> None:
        """Delete the first row of a lease, release the second and extend the third; the other rows stay leased."""
        number, rows = self.row(consumer, ids[0])
        assert not (await apply_one(self.storage, Delete(self.topic, number, consumer, rows), NOW, DIRECT_CALL)).codes
        del self.messages[ids[0]]
        number, rows = self.row(consumer, ids[1])
        assert not (
            await apply_one(self.storage, Release(self.topic, number, consumer, rows, NOW + 90_000), NOW, DIRECT_CALL)
        ).codes
        self.messages[ids[1]].update(ts=NOW + 90_000, consumer="")
        number, rows = self.row(consumer, ids[2])
        longer = NOW + LIVE_LEASE_MS + 60_000
        assert not (
            await apply_one(self.storage, Extend(self.topic, number, consumer, rows, longer), NOW, DIRECT_CALL)
        ).codes
        self.messages[ids[2]]["ts"] = longer

    async def own(self, move: str, edit: str, cancel: list[str]) -> None:
        """Make all changes that an owner can make."""
        moved = Edits(ids=[move], ts=[NOW + 7_000_000])
        assert not (await apply_one(self.storage, Edit(self.topic, "billing", moved), NOW, DIRECT_CALL)).codes
        self.messages[move]["ts"] = NOW + 7_000_000
        body = b"edited" * LARGE_BYTES
        edited = Edits(ids=[edit], bodies=[body], priorities=[-9], headers=[encode_headers({"edited": "yes"})])
        assert not (await apply_one(self.storage, Edit(self.topic, "billing", edited), NOW, DIRECT_CALL)).codes
        headers = self.messages[edit]["headers"] | {"edited": "yes"}
        self.messages[edit].update(body=hashlib.sha256(body).hexdigest(), priority=-9, headers=headers)
        assert not (await apply_one(self.storage, Cancel(self.topic, "billing", cancel), NOW, DIRECT_CALL)).codes
        for message_id in cancel:
            del self.messages[message_id]

    async def scatter(self) -> None:
        """Create messages at times in random order, own and generated, so that runs are merged twice, and cancel some.

        The last batches are not merged.
        """
        ids: list[str] = []
        for number in range(9):
            for bucket in (None, 2):
                ts = sorted(NOW + self.noise.randrange(86_400_000, 20 * 86_400_000) for _ in range(8))
                own = None if bucket is not None else [f"scattered-{number}-{row}" for row in range(len(ts))]
                ids += await self.create(own, ts=ts, bucket=bucket or 0, group="scattering", sizes=(8,))
            if number < 7:
                await self.storage.merger.settle()
        gone = ids[::7]
        assert not (await apply_one(self.storage, Cancel(self.topic, "scattering", gone), NOW, DIRECT_CALL)).codes
        for message_id in gone:
            del self.messages[message_id]


async def build(path: Path, copy: Path) -> dict[str, Any]:
    """Fill a new data directory and copy it; returns its required contents."""
    levels = LevelSettings(merge_runs=3, near_runs=3, wide_rows_min=8, piece_rows=10)
    storage = RocksStorage(path, levels=levels)
    await storage.open(NOW)
    settings = {
        "mail": TopicSettings(buckets=BUCKETS),
        "relaxed": TopicSettings(buckets=1, durability=Durability.RELAXED, max_lease_ms=5_000, max_body_bytes=10),
        "leaving": TopicSettings(buckets=2),
    }
    topics: dict[str, Topic] = {}
    for name, chosen in settings.items():
        state = TopicStage.DELETING if name == "leaving" else TopicStage.LIVE
        topics[name] = Topic(name, await storage.next_topic_number(), chosen, state, NOW)
        await storage.put_topic(topics[name], DIRECT_CALL)
    maker = Maker(storage, topics["mail"])
    past = await maker.create([f"past-{n}" for n in range(12)], ts=[NOW - 5_000 + n for n in range(12)])
    await maker.lease("lapsed", at=NOW - 4_000, until=NOW - 4_000, rows=3, expires=NOW - 1_000)
    storage._database.flush()
    first = await maker.create(None, ts=[NOW + 60_000 + 3_000 * n for n in range(20)], bucket=1)
    await maker.create(None, ts=[NOW + 100_000] * 10, bucket=3, group="shipping")
    # Large enough to be frames of the commit log: one in the tables by now, the other one only in the log.
    await maker.create([f"table-{n}" for n in range(240)], ts=[NOW + 200_000] * 240)
    storage._database.flush()
    await maker.create([f"frame-{n}" for n in range(240)], ts=[NOW + 200_000] * 240)
    natural = await maker.create([f"order:{n}" for n in range(10)], ts=[NOW + 86_400_000 * n for n in range(1, 11)])
    # The messages of the lease `lapsed` are due at the lease's end, after all other messages that are due.
    held = await maker.lease("holder", at=NOW, until=NOW, rows=6, expires=NOW + LIVE_LEASE_MS)
    assert set(held) <= set(past)
    await maker.settle("holder", held)
    await maker.scatter()
    await maker.own(first[0], natural[0], [first[5], first[6], natural[9]])
    # Copied as a kill leaves it, partly in a table and partly in the log: closing would write everything to tables.
    shutil.copytree(path, copy)
    await storage.close()
    return {
        "now": NOW,
        "session": SESSION.pack().hex(),
        "topics": {
            name: {"number": topic.number, "state": str(topic.state), "settings": topic.settings.as_dict()}
            for name, topic in topics.items()
        },
        "messages": maker.messages,
        "leases": maker.leases,
        "batches": maker.batches,
    }


def pack(path: Path, expected: dict[str, Any], out: Path) -> None:
    """Write the archive, without logs that only contain times and places of its creation."""
    (path.parent / "expected.json").write_text(json.dumps(expected, indent=1, sort_keys=True))

    def plain(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
        if Path(entry.name).name in {"LOG", "LOCK"} or Path(entry.name).name.startswith(("LOG.", "OPTIONS-")):
            return None
        entry.uid = entry.gid = entry.mtime = 0
        entry.uname = entry.gname = ""
        return entry

    with tarfile.open(out, "w:gz") as archive:
        archive.add(path.parent / "expected.json", "expected.json", filter=plain)
        archive.add(path, "data", filter=plain)


def main() -> None:
    """Fill and pack a directory."""
    out = Path(sys.argv[1])
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "data"
        pack(path, asyncio.run(build(Path(scratch) / "live", path)), out)
    print(f"{out}: {out.stat().st_size} bytes")


if __name__ == "__main__":
    main()
