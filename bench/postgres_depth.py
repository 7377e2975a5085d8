"""How long the PostgreSQL store takes to answer queries when it has many messages: `python -m bench.postgres_depth`.

SQL statements write the messages and their counts: spread over a day, over 64 buckets and 8 owners; or,
with `--priorities`, all due, in a priority topic. Each query runs five times; the result is the median in
milliseconds.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from bench.harness.server import exit_at_sigterm
from bench.postgres_cost import BUCKETS, NOW, SETTINGS
from dejaq.domain.batch import LeaseRequest
from dejaq.domain.context import DIRECT_CALL
from dejaq.domain.message import Status
from dejaq.domain.topic import Topic, TopicKind, TopicSettings
from dejaq.storage.base import Filter
from dejaq.storage.postgres.store import PostgresStorage
from dejaq.testing.servers.postgres import PostgresServer

DAY_MS = 86_400_000
HOUR_MS = 3_600_000
ASKED = 5
FILL = """
INSERT INTO message (topic, id, place, ts, asked_ts, version, priority, size, owner, headers, body)
SELECT
    $1, lpad(to_hex($2::integer), 24, '0') || lpad(to_hex(row), 8, '0') || '!', $3, made.ts, made.ts, 1,
    row * 7919 % $6::bigint, 100, 'owner-' || row % 8, '', $7::bytea
FROM generate_series(1, $4::bigint) AS row, LATERAL (SELECT $5::bigint + row * $8::bigint / $4 AS ts) AS made
"""
COUNT = """
INSERT INTO counter (topic, minute, held, shard, owner, count)
SELECT topic, ts / 60000, false, 0, owner, count(*) FROM message GROUP BY 1, 2, 5
"""
Ask = Callable[[], Awaitable[object]]


async def fill(
    storage: PostgresStorage, topic: Topic, messages: int, *, first: int, span: int, priorities: int
) -> None:
    connection = await storage._database.connect()
    sign = -1 if topic.by_priority else 1
    for bucket in range(BUCKETS):
        place = sign * (1024 * topic.number + bucket)
        await connection.execute(
            FILL, topic.number, bucket, place, messages // BUCKETS, first, priorities, b"x" * 100, span
        )
    await connection.execute(COUNT)
    await connection.execute("VACUUM ANALYZE message, counter")
    await connection.close()


async def ask(questions: dict[str, Ask]) -> dict[str, float]:
    figures: dict[str, float] = {}
    for name, question in questions.items():
        times = []
        for _ in range(ASKED):
            begin = time.perf_counter()
            await question()
            times.append(time.perf_counter() - begin)
        figures[name] = round(statistics.median(times) * 1e3, 1)
    return figures


async def measure(dsn: str, messages: int, priorities: int) -> dict[str, object]:
    storage = PostgresStorage(dsn, cluster="depth", journal="depth")
    await storage.open(NOW)
    kind = TopicKind.PRIORITY if priorities else TopicKind.TIMELINE
    topic = Topic("depth", await storage.next_topic_number(), TopicSettings(buckets=BUCKETS, kind=kind))
    await storage.put_topic(topic, DIRECT_CALL)
    begin = time.perf_counter()
    first, span = (NOW - HOUR_MS, HOUR_MS) if priorities else (NOW - HOUR_MS, DAY_MS)
    await fill(storage, topic, messages, first=first, span=span, priorities=priorities or 1)
    filled = time.perf_counter() - begin

    async def lease() -> None:
        request = LeaseRequest(range(BUCKETS), "w", until=NOW, expires=NOW + 30_000, rows_max=1_000)
        assert len(await storage.lease(topic, request, NOW, DIRECT_CALL) or []) == 1_000

    def count(where: Filter) -> Ask:
        return lambda: storage.count(topic, where, NOW)

    questions: dict[str, Ask] = {
        "lease_1000": lease,
        "count": count(Filter()),
        "count_available": count(Filter(status=Status.AVAILABLE)),
        "count_by_owner": count(Filter(owner="owner-3")),
        "count_by_consumer": count(Filter(consumer="w")),
        "histogram_by_hour": lambda: storage.histogram(topic, Filter(), HOUR_MS, NOW),
        "histogram_by_minute_and_owner": lambda: storage.histogram(topic, Filter(owner="owner-3"), 60_000, NOW),
        "oldest": lambda: storage.oldest(topic, NOW, 16),
        "by_rows": count(Filter(priorities=(0, 0))),
    }
    figures = await ask(questions)
    await storage.close()
    return {"messages": messages, "priorities": priorities, "filled_s": round(filled, 1), "ms": figures}


def main() -> None:
    exit_at_sigterm()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=10_000_000)
    parser.add_argument("--priorities", type=int, default=0, help="use a priority topic with so many priorities")
    arguments = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="dejaq-depth-") as folder,
        PostgresServer(Path(folder), settings=SETTINGS) as server,
    ):
        print(json.dumps(asyncio.run(measure(server.dsn, arguments.messages, arguments.priorities))), flush=True)


if __name__ == "__main__":
    main()
