"""The pipeline's speed: reads a journal of so many events into a new lake, then runs every job on it.

    python -m bench.lake --events 10000000

Writes the figures to `bench/results/lake.json`. The journal is that of a queue that creates, leases
and deletes messages in batches of 1000, with generated ids and 100-byte bodies; a tenth of them stays pending.
"""

from __future__ import annotations

import argparse
import random
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from bench.figures import keep
from dejaq.domain.batch import CreateBatch, IdSpan, LeaseSet
from dejaq.domain.context import ANONYMOUS
from dejaq.domain.ids import ProducerSession
from dejaq.journal.keys import SigningKey
from dejaq.journal.ledger import Ledger
from dejaq.pipeline.intake.ingest import EVENTS_MAX_DEFAULT, run
from dejaq.pipeline.lake.lake import Lake
from dejaq.pipeline.reporting import findings
from dejaq.pipeline.spark.session import start
from dejaq.storage.outbox import DELETED, Outbox

ROWS = 1_000
# Of ten messages nine are leased and deleted: 10 + 9 + 9 events.
EVENTS_A_BATCH = 28 * ROWS // 10
GOAL_EVENTS_PER_S = 250_000


def main() -> None:
    """Fill a journal, ingest it, run the jobs on the lake, keep the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, default=10_000_000)
    parser.add_argument("--batch-events", type=int, default=EVENTS_MAX_DEFAULT)
    arguments = parser.parse_args()
    home = Path(tempfile.mkdtemp(prefix="dejaq-lake-"))
    try:
        events = write_journal(home, arguments.events)
        keep("lake", _measure(home, events, arguments.batch_events))
    finally:
        shutil.rmtree(home, ignore_errors=True)


def _measure(home: Path, events: int, batch_events: int) -> dict[str, object]:
    begun = time.perf_counter()
    spark = start()
    started_s = time.perf_counter() - begun
    try:
        lake = Lake(spark, str(home / "lake"))
        steps: dict[str, float] = {}
        last: tuple[str, float] = ("", time.perf_counter())

        def step(what: str, _: int) -> None:
            nonlocal last
            now = time.perf_counter()
            steps[last[0]] = steps.get(last[0], 0.0) + now - last[1]
            last = (what, now)

        begun = time.perf_counter()
        batches = list(run(lake, home / "journal", events_max=batch_events, step=step))
        step("", 0)
        taken_s = time.perf_counter() - begun
        jobs = _jobs(lake)
    finally:
        spark.stop()
    return {
        "events": events,
        "segments_bytes": sum(path.stat().st_size for path in (home / "journal").glob("*.parquet")),
        "session_start_s": round(started_s, 1),
        "batches": len(batches),
        "ingest_s": round(taken_s, 1),
        "events_per_s": round(events / taken_s),
        "goal_events_per_s": GOAL_EVENTS_PER_S,
        "steps_s": {name: round(seconds, 1) for name, seconds in steps.items() if name},
        "jobs_s": jobs,
    }


def _jobs(lake: Lake) -> dict[str, float]:
    now_ms = max(lake.head.newest_ms.values())
    jobs: dict[str, Callable[[], findings.Findings]] = {
        "audit": lambda: findings.audit(lake),
        "accuracy": lambda: findings.accuracy(lake),
        "forecast": lambda: findings.forecast(lake, now_ms=now_ms),
        "retries": lambda: findings.retries(lake),
        "traffic": lambda: findings.traffic(lake),
    }
    seconds = {}
    for name, job in jobs.items():
        begun = time.perf_counter()
        assert not job().failed
        seconds[name] = round(time.perf_counter() - begun, 1)
    return seconds


def write_journal(home: Path, wanted: int) -> int:
    """Write a journal of about so many events below `home`; returns their number."""
    chance = random.Random(1)
    ledger = Ledger.open(home / "journal", origin="0123456789abcdef", key=SigningKey.of(home / "journal.key"))
    outbox, now = Outbox(0), 1_800_000_000_000
    session, waiting, events = ProducerSession(now, 7), [], 0
    for number in range(max(1, wanted // EVENTS_A_BATCH)):
        now += 20
        waiting += _batch(outbox, session, number, now, chance)
        if len(waiting) >= 1_000:
            events += _export(ledger, waiting, now)
    return events + _export(ledger, waiting, now)


def _export(ledger: Ledger, waiting: list[bytes], now: int) -> int:
    events = 0
    while waiting:
        written = ledger.append(waiting, now)
        del waiting[: written.records]
        events += written.events
    return events


def _batch(outbox: Outbox, session: ProducerSession, number: int, now: int, chance: random.Random) -> list[bytes]:
    batch = CreateBatch(
        owner=f"group-{number % 3}",
        session=session,
        sequence=number * ROWS,
        ts=sorted(now + chance.randint(0, 2_000) for _ in range(ROWS)),
        bodies=[number.to_bytes(4, "big") + row.to_bytes(4, "big") + bytes(92) for row in range(ROWS)],
        bucket=number % 16,
    )
    topic, gone = f"topic-{number % 4}", ROWS * 9 // 10
    outbox.created(topic, batch, [(0, ROWS)])
    packed = [_taken(outbox, now)]
    spans = [IdSpan(gone, session.prefix(number % 16), number * ROWS)]
    due = list(batch.ts[:gone])
    lease = LeaseSet(
        lease_id=2**40 + number, consumer=f"worker-{number % 5}", expires=now + 30_000, spans=spans, ts=due, bodies=[]
    )
    outbox.leased(topic, lease)
    packed.append(_taken(outbox, now))
    handed = [ts * 1_000 + chance.randint(0, 900) for ts in due]
    outbox.settled(DELETED, topic, consumer=lease.consumer, lease_id=lease.lease_id, spans=spans, handed_us=handed)
    packed.append(_taken(outbox, now + 2_500))
    return packed


def _taken(outbox: Outbox, now: int) -> bytes:
    entry = outbox.take(now, ANONYMOUS)
    assert entry is not None
    return entry[1]


if __name__ == "__main__":
    main()
