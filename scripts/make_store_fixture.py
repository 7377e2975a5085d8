"""Make a data directory with every kind of record, for the test that a later release opens it.

    python scripts/make_store_fixture.py tests/fixtures/store-0.1.tar.gz

Beside the directory the archive holds `expected.json`: what was done to it, as the maker of the changes knows it
and not as the store tells it. An archive that was released is never made again: a new format gets a new one.
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
from dejaq.domain.headers import encode_headers
from dejaq.domain.ids import ProducerSession
from dejaq.domain.topic import Durability, Topic, TopicSettings, TopicState
from dejaq.storage.base import Edits
from dejaq.storage.rocksdb.store import RocksStorage

NOW = 1_800_000_000_000
LIVE_LEASE_MS = 12 * 3600 * 1000
LARGE_BYTES = 20_000
SESSION = ProducerSession(NOW, 42)
BUCKETS = 4


class Maker:
    """Changes a store and keeps account of what must stand in it afterwards."""

    def __init__(self, storage: RocksStorage, topic: Topic) -> None:
        self.storage = storage
        self.topic = topic
        self.noise = random.Random(17)
        self.sequence = 0
        self.messages: dict[str, dict[str, Any]] = {}
        self.leases: dict[str, dict[str, Any]] = {}
        self.batches: list[dict[str, Any]] = []

    async def create(
        self, ids: list[str] | None, *, ts: list[int], bucket: int = 0, group: str = "billing"
    ) -> list[str]:
        """Create messages of all sizes, some with priorities and headers; their ids."""
        count = len(ts)
        bodies = [self.noise.randbytes(8) * self.noise.choice([0, 1, 4, LARGE_BYTES // 8]) for _ in ts]
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
        assert not (await self.storage.create(self.topic, batch, NOW)).codes
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
        """Lease the first rows that are due."""
        request = LeaseRequest(range(BUCKETS), consumer, until=until, expires=expires, rows_max=rows)
        lease = await self.storage.lease(self.topic, request, at)
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
        """Delete the first row of a lease, release the second and extend the third; the rest stays leased."""
        number, rows = self.row(consumer, ids[0])
        assert not (await self.storage.delete(self.topic, number, consumer, rows, NOW)).codes
        del self.messages[ids[0]]
        number, rows = self.row(consumer, ids[1])
        assert not (await self.storage.release(self.topic, number, consumer, rows, NOW + 90_000, NOW)).codes
        self.messages[ids[1]].update(ts=NOW + 90_000, consumer="")
        number, rows = self.row(consumer, ids[2])
        longer = NOW + LIVE_LEASE_MS + 60_000
        assert not (await self.storage.extend(self.topic, number, consumer, rows, longer, NOW)).codes
        self.messages[ids[2]]["ts"] = longer

    async def own(self, move: str, edit: str, cancel: list[str]) -> None:
        """Do what an owner may do."""
        moved = Edits(ids=[move], ts=[NOW + 7_000_000])
        assert not (await self.storage.edit(self.topic, "billing", moved, NOW)).codes
        self.messages[move]["ts"] = NOW + 7_000_000
        body = b"edited" * LARGE_BYTES
        edited = Edits(ids=[edit], bodies=[body], priorities=[-9], headers=[encode_headers({"edited": "yes"})])
        assert not (await self.storage.edit(self.topic, "billing", edited, NOW)).codes
        self.messages[edit].update(body=hashlib.sha256(body).hexdigest(), priority=-9, headers={"edited": "yes"})
        assert not (await self.storage.cancel(self.topic, "billing", cancel, NOW)).codes
        for message_id in cancel:
            del self.messages[message_id]


async def build(path: Path, copy: Path) -> dict[str, Any]:
    """Fill a new data directory and copy it; what it must hold."""
    storage = RocksStorage(path)
    await storage.open(NOW)
    settings = {
        "mail": TopicSettings(buckets=BUCKETS),
        "relaxed": TopicSettings(buckets=1, durability=Durability.RELAXED, max_lease_ms=5_000, max_body_bytes=10),
        "leaving": TopicSettings(buckets=2),
    }
    topics: dict[str, Topic] = {}
    for name, chosen in settings.items():
        state = TopicState.DELETING if name == "leaving" else TopicState.LIVE
        topics[name] = Topic(name, await storage.next_topic_number(), chosen, state, NOW)
        await storage.put_topic(topics[name])
    maker = Maker(storage, topics["mail"])
    past = await maker.create([f"past-{n}" for n in range(12)], ts=[NOW - 5_000 + n for n in range(12)])
    await maker.lease("lapsed", at=NOW - 4_000, until=NOW - 4_000, rows=3, expires=NOW - 1_000)
    storage._database.flush()
    first = await maker.create(None, ts=[NOW + 60_000 + 3_000 * n for n in range(20)], bucket=1)
    await maker.create(None, ts=[NOW + 100_000] * 10, bucket=3, group="shipping")
    natural = await maker.create([f"order:{n}" for n in range(10)], ts=[NOW + 86_400_000 * n for n in range(1, 11)])
    # What `lapsed` lost is due at its end, after everything else that is past.
    held = await maker.lease("holder", at=NOW, until=NOW, rows=6, expires=NOW + LIVE_LEASE_MS)
    assert set(held) <= set(past)
    await maker.settle("holder", held)
    await maker.own(first[0], natural[0], [first[5], first[6], natural[9]])
    # As a kill leaves it, a part in a table and a part in the log: closing would move everything into tables.
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
    """Write the archive, without the logs that only say where and when it was made."""
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
    """Build and pack."""
    out = Path(sys.argv[1])
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "data"
        pack(path, asyncio.run(build(Path(scratch) / "live", path)), out)
    print(f"{out}: {out.stat().st_size} bytes")


if __name__ == "__main__":
    main()
