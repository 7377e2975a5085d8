"""The PostgreSQL store compared with a bare SKIP LOCKED table on the same server: `python -m bench.postgres_cost`.

Both process batches of 1000 messages of 100 bytes with fsync on, from the same number of connections, in turns. The
bare table has an id, a time, a body, a holder and a version, one index on the time, and no other feature of DejaQ:
no journal, no counts, no sessions, no buckets, no owners. `--size` also sends many messages through, and prints how
large the tables are then.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import asyncpg

from bench.harness.server import exit_at_sigterm
from dejaq.domain.batch import CreateBatch, LeaseRequest
from dejaq.domain.changes import Create, Delete
from dejaq.domain.context import DIRECT_CALL
from dejaq.domain.ids import ProducerSession
from dejaq.domain.topic import Topic, TopicSettings
from dejaq.protocol.v1.journal_pb2 import JournalRecord
from dejaq.storage.base import Filter, apply_one
from dejaq.storage.postgres.store import PostgresStorage
from dejaq.testing.servers.postgres import PostgresServer

NOW = 1_800_000_000_000
BATCH = 1_000
BODY = os.urandom(100)
BUCKETS = 64
# The settings of a usual server of this size; both tables use them.
SETTINGS = {"shared_buffers": "512MB", "max_wal_size": "4GB", "random_page_cost": "1.1", "jit": "off"}
# The best settings for the bare table: without these the planner may choose to read the whole table for every row.
BARE_SETTINGS = {"jit": "off", "enable_seqscan": "off", "enable_hashjoin": "off", "enable_mergejoin": "off"}
BARE = """
CREATE TABLE IF NOT EXISTS bare (
    id text PRIMARY KEY, ts bigint NOT NULL, body bytea NOT NULL, holder text NOT NULL DEFAULT '',
    version bigint NOT NULL DEFAULT 0);
CREATE INDEX IF NOT EXISTS bare_ts ON bare (ts);
"""
INSERT = """
INSERT INTO bare (id, ts, body) SELECT * FROM unnest($1::text[], $2::bigint[], $3::bytea[])
ON CONFLICT DO NOTHING RETURNING id
"""
LEASE = """
UPDATE bare SET ts = $2, holder = $3, version = version + 1
FROM (SELECT id FROM bare WHERE ts <= $1 ORDER BY ts LIMIT 1000 FOR UPDATE SKIP LOCKED) AS due
WHERE bare.id = due.id RETURNING bare.id, bare.body, bare.version
"""
DELETE = """
DELETE FROM bare USING unnest($1::text[], $2::bigint[]) AS done (id, version)
WHERE bare.id = done.id AND bare.version = done.version RETURNING bare.id
"""
Job = Callable[[int, int], Awaitable[int]]


class BareTable:
    """A simple queue without further features."""

    def __init__(self, connections: list[asyncpg.Connection]) -> None:
        self._connections = connections
        self._made = 0

    async def create(self, worker: int, number: int) -> int:
        self._made += 1
        ids = [f"{NOW:012x}{worker:04x}{self._made:08x}{row:08x}" for row in range(BATCH)]
        return len(await self._connections[worker].fetch(INSERT, ids, [NOW] * BATCH, [BODY] * BATCH))

    async def consume(self, worker: int, number: int) -> int:
        connection = self._connections[worker]
        rows = await connection.fetch(LEASE, NOW, NOW + 30_000, f"w{worker}")
        await connection.fetch(DELETE, [row[0] for row in rows], [row[2] for row in rows])
        return len(rows)


class Store:
    """The store as a broker uses it: each consumer has its share of the buckets."""

    def __init__(self, storage: PostgresStorage, topic: Topic, workers: int) -> None:
        self._storage, self._topic, self._workers = storage, topic, workers
        self._sessions = [ProducerSession(NOW, worker) for worker in range(workers)]
        self._sent = [0] * workers

    async def create(self, worker: int, number: int) -> int:
        sequence = self._sent[worker]
        self._sent[worker] += BATCH
        # A producer changes its bucket with every batch.
        bucket = (sequence // BATCH * self._workers + worker) % BUCKETS
        batch = CreateBatch("bench", self._sessions[worker], sequence, [NOW] * BATCH, [BODY] * BATCH, bucket=bucket)
        outcomes = await apply_one(self._storage, Create(self._topic, batch), NOW, DIRECT_CALL)
        return BATCH - len(outcomes.codes)

    async def consume(self, worker: int, number: int) -> int:
        buckets = range(worker, BUCKETS, self._workers)
        request = LeaseRequest(buckets, f"w{worker}", until=NOW, expires=NOW + 30_000, rows_max=BATCH)
        lease = await self._storage.lease(self._topic, request, NOW, DIRECT_CALL)
        if lease is None:
            return 0
        outcomes = await apply_one(
            self._storage, Delete(self._topic, lease.lease_id, lease.consumer, None), NOW, DIRECT_CALL
        )
        return len(lease) - len(outcomes.codes)


async def rate(job: Job, *, workers: int, messages: int) -> float:
    """Messages per second over all workers until so many are done."""
    done = 0

    async def work(worker: int) -> None:
        nonlocal done
        idle = 0
        while done < messages and idle < 3:
            count = await job(worker, done)
            done += count
            idle = 0 if count else idle + 1

    begin = time.perf_counter()
    await asyncio.gather(*(work(worker) for worker in range(workers)))
    return done / (time.perf_counter() - begin)


async def sizes(connection: asyncpg.Connection, schema: str) -> dict[str, int]:
    rows = await connection.fetch(
        "SELECT relname, pg_total_relation_size(oid) AS size FROM pg_class "
        "WHERE relkind = 'r' AND relnamespace = $1::regnamespace ORDER BY 2 DESC",
        schema,
    )
    return {row[0]: row[1] >> 10 for row in rows}


async def compare(dsn: str, *, workers: int, messages: int, rounds: int, journal: bool) -> dict[str, object]:
    connections = [await asyncpg.connect(dsn, server_settings=BARE_SETTINGS) for _ in range(workers)]
    await connections[0].execute(BARE)
    storage = PostgresStorage(dsn, cluster="bench", journal="bench" if journal else None, connections=workers + 2)
    await storage.open(NOW)
    topic = Topic("bench", await storage.next_topic_number(), TopicSettings(buckets=BUCKETS))
    await storage.put_topic(topic, DIRECT_CALL)
    bare, store = BareTable(connections), Store(storage, topic, workers)
    figures: dict[str, list[float]] = {}
    for _ in range(rounds):
        for name, job in (
            ("bare_create", bare.create),
            ("store_create", store.create),
            ("bare_lease_delete", bare.consume),
            ("store_lease_delete", store.consume),
        ):
            figures.setdefault(name, []).append(await rate(job, workers=workers, messages=messages))
        while records := await storage.journal(0, 1 << 24):
            await storage.trim_journal(JournalRecord.FromString(records[-1]).sequence)
    await storage.drop_topic(topic, NOW, DIRECT_CALL)
    await storage.close()
    for connection in connections:
        await connection.close()
    result: dict[str, object] = {name: round(statistics.median(values)) for name, values in figures.items()}
    for what in ("create", "lease_delete"):
        ratios = [ours / theirs for ours, theirs in zip(figures[f"store_{what}"], figures[f"bare_{what}"], strict=True)]
        result[f"{what}_ratio"] = round(statistics.median(ratios), 2)
    return result | {"connections": workers, "journal": journal}


async def through(dsn: str, *, messages: int, workers: int = 4) -> dict[str, object]:
    """Send messages through at a steady depth, then print how large the tables are."""
    storage = PostgresStorage(dsn, cluster="size", connections=workers * 2)
    await storage.open(NOW)
    topic = Topic("size", await storage.next_topic_number(), TopicSettings(buckets=BUCKETS))
    await storage.put_topic(topic, DIRECT_CALL)
    store = Store(storage, topic, workers)
    begin = time.perf_counter()
    done = 0

    async def work(worker: int) -> None:
        nonlocal done
        while done < messages:
            for _ in range(2):
                done += await store.create(worker, 0)
            for _ in range(2):
                await store.consume(worker, 0)

    await asyncio.gather(*(work(worker) for worker in range(workers)))
    seconds = time.perf_counter() - begin
    left = await storage.count(topic, Filter(), NOW)
    await storage.close()
    connection = await asyncpg.connect(dsn)
    tables = await sizes(connection, "size")
    await connection.close()
    return {"through": done, "per_second": round(done / seconds), "left": left, "table_kib": tables}


async def main() -> None:
    exit_at_sigterm()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--connections", type=int, nargs="*", default=[1, 4])
    parser.add_argument("--messages", type=int, default=60_000, help="messages per round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--no-journal", action="store_true")
    parser.add_argument(
        "--size", type=int, default=0, help="send so many messages through and print the size of the tables"
    )
    arguments = parser.parse_args()
    # On a real disk, as on a server, and not in memory.
    with (
        tempfile.TemporaryDirectory(prefix="dejaq-cost-") as folder,
        PostgresServer(Path(folder), settings=SETTINGS) as server,
    ):
        if arguments.size:
            print(json.dumps(await through(server.dsn, messages=arguments.size)), flush=True)
            return
        for workers in arguments.connections:
            figures = await compare(
                server.dsn,
                workers=workers,
                messages=arguments.messages,
                rounds=arguments.rounds,
                journal=not arguments.no_journal,
            )
            print(json.dumps(figures), flush=True)


if __name__ == "__main__":
    asyncio.run(main())
