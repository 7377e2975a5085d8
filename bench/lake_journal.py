"""A synthetic journal for the lake: signed segments as brokers write them, of so many events.

    python -m bench.lake_journal --events 100000000 --brokers 3 --output synthetic

Four kinds of traffic, in batches of 1000 messages with 100-byte bodies:

- `prompt` (a third): due within two seconds, leased and deleted together, generated ids;
- `scattered` (a third): due at random times of the next ten minutes, so that a lease has rows of hundreds of batches;
- `retried` (a quarter): natural ids; a tenth is released and comes again, a hundredth expires, a hundredth is
  dead-lettered into a topic of dead letters;
- `ahead` (the rest): due in the next seven days, a fiftieth is moved, a fiftieth is cancelled.

Several brokers share one store: each record has a ticket of the store, and is in the journal of one of them. The memory
does not depend on the number of events.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from dejaq.domain.batch import CreateBatch, IdSpan, LeaseSet
from dejaq.domain.context import ANONYMOUS
from dejaq.domain.ids import ProducerSession
from dejaq.journal.keys import SigningKey
from dejaq.journal.ledger import Ledger
from dejaq.protocol.v1 import journal_pb2 as journal
from dejaq.storage.outbox import (
    CANCELLED,
    DEAD_LETTERED,
    DELETED,
    EXPIRED,
    MOVED,
    RELEASED,
    Outbox,
)

ROWS = 1_000
START_MS = 1_800_000_000_000
LEASE_MS = 30_000
SCATTERED_MS, AHEAD_MS = 600_000, 7 * 86_400_000
SEGMENT_EVENTS = 50_000
_BODIES = [row.to_bytes(8, "big") + bytes(92) for row in range(ROWS)]
# Of twelve batches in turn.
_KINDS = ("prompt", "scattered", "retried") * 3 + ("prompt", "scattered", "ahead")


@dataclass(slots=True)
class _Broker:
    """The journal of one broker."""

    ledger: Ledger
    sequence: int = 0
    waiting: list[bytes] = field(default_factory=list)
    waiting_events: int = 0


class SyntheticJournal:
    """Writes the journal of a busy store below a directory."""

    def __init__(self, directory: Path, *, brokers: int = 1, rate: int = 5_000, seed: int = 1) -> None:
        self._chance = random.Random(seed)
        self._store = "fedcba9876543210" if brokers > 1 else ""
        key = SigningKey.of(directory / "journal.key")
        names = [f"{number:016x}" for number in range(1, brokers + 1)]
        self._brokers = [
            _Broker(Ledger.open(directory / "journal" / name, origin=name, key=key, store=self._store))
            for name in names
        ]
        self._outbox, self._session = Outbox(0), ProducerSession(START_MS, 7)
        self._now, self._rate = START_MS, rate
        self._batches = self._leases = 0
        self.events = 0
        # What comes later, by second: leases of scattered rows, and of retried ids with their attempts.
        self._scattered: dict[int, list[tuple[int, int, int]]] = defaultdict(list)
        self._again: dict[int, list[tuple[str, int]]] = defaultdict(list)
        self._second = START_MS // 1000
        self._traffic = {
            "prompt": self._prompt,
            "scattered": self._scatter,
            "retried": self._retry,
            "ahead": self._plan,
        }

    def write(self, events: int) -> int:
        """Add about so many events; returns how many there are now."""
        wanted = self.events + events
        while self.events < wanted:
            before = self.events
            self._traffic[_KINDS[self._batches % len(_KINDS)]](self._batches)
            self._batches += 1
            # About as many events per second of the journal's own time as `rate` says.
            self._now += max(1, (self.events - before) * 1000 // self._rate)
            self._go_on()
        for broker in self._brokers:
            self._export(broker, 1)
        return self.events

    # Traffic

    def _prompt(self, number: int) -> None:
        batch = self._create("prompt", number, sorted(self._spread(2_000)))
        spans = [IdSpan(ROWS, self._session.prefix(number % 16), number * ROWS)]
        self._lease_and_delete("prompt", spans, list(batch.ts))

    def _scatter(self, number: int) -> None:
        batch = self._create("scattered", number, self._spread(SCATTERED_MS))
        for row, ts in enumerate(batch.ts):
            self._scattered[ts // 1000].append((ts, number % 16, number * ROWS + row))

    def _retry(self, number: int) -> None:
        ids = [f"order-{number}-{row}" for row in range(ROWS)]
        self._create("retried", number, sorted(self._spread(2_000)), ids)
        self._again[self._now // 1000 + 2] += [(name, 1) for name in ids]

    def _plan(self, number: int) -> None:
        ids = [f"plan-{number}-{row}" for row in range(ROWS)]
        self._create("ahead", number, self._spread(AHEAD_MS), ids)
        some = ROWS // 50
        moved = [self._now + self._chance.randrange(AHEAD_MS) for _ in range(some)]
        self._outbox.changed(MOVED, "ahead", owner="group-1", ids=ids[:some], ts=moved)
        self._record(some)
        self._outbox.changed(CANCELLED, "ahead", owner="group-1", ids=ids[some : 2 * some])
        self._record(some)

    def _go_on(self) -> None:
        """Deliver what has become due."""
        while self._second * 1000 + 1000 <= self._now:
            rows = self._scattered.pop(self._second, [])
            rows.sort()
            for start in range(0, len(rows), ROWS):
                part = rows[start : start + ROWS]
                spans = [IdSpan(1, self._session.prefix(bucket), place) for _, bucket, place in part]
                self._lease_and_delete("scattered", spans, [ts for ts, _, _ in part])
            failed = self._again.pop(self._second, [])
            for start in range(0, len(failed), ROWS):
                self._try(failed[start : start + ROWS])
            self._second += 1

    def _try(self, messages: Sequence[tuple[str, int]]) -> None:
        """A lease of which some rows are released, some expire and some become dead letters."""
        ids, due = [name for name, _ in messages], self._second * 1000
        lease = self._lease("retried", [_listed(ids)], [due] * len(ids), [attempt for _, attempt in messages])
        fates: dict[str, list[str]] = defaultdict(list)
        for name, attempt in messages:
            draw = self._chance.random()
            fate = "released" if draw < 0.1 else "expired" if draw < 0.11 else "dead" if draw < 0.12 else "deleted"
            fates[fate].append(name)
            if fate in ("released", "expired"):
                delay = 10 if fate == "released" else LEASE_MS // 1000
                self._again[self._second + delay].append((name, attempt + 1))
        if released := fates["released"]:
            later = [due + 10_000] * len(released)
            self._settle(RELEASED, "retried", lease, [_listed(released)], [due] * len(released), ts=later)
        if expired := fates["expired"]:
            self._settle(EXPIRED, "retried", lease, [_listed(expired)], [], ts=[due + LEASE_MS] * len(expired))
        if dead := fates["dead"]:
            self._settle(DEAD_LETTERED, "retried", lease, [_listed(dead)], [due] * len(dead))
            bodies = _BODIES[: len(dead)]
            self._outbox.changed(
                journal.EVENT_CREATED,
                "retried.dead",
                owner="dejaq",
                ids=dead,
                ts=[self._now] * len(dead),
                bodies=bodies,
            )
            self._record(len(dead))
        if deleted := fates["deleted"]:
            self._settle(DELETED, "retried", lease, [_listed(deleted)], [due] * len(deleted))

    # Steps

    def _spread(self, ms: int) -> list[int]:
        return [self._now + int(self._chance.random() * ms) for _ in range(ROWS)]

    def _create(self, topic: str, number: int, ts: list[int], ids: list[str] | None = None) -> CreateBatch:
        batch = CreateBatch(
            owner=f"group-{number % 3}",
            session=self._session,
            sequence=number * ROWS,
            ts=ts,
            bodies=_BODIES,
            bucket=number % 16,
            ids=ids,
        )
        self._outbox.created(topic, batch, [(0, ROWS)])
        self._record(ROWS)
        return batch

    def _lease_and_delete(self, topic: str, spans: list[IdSpan], due: list[int]) -> None:
        self._settle(DELETED, topic, self._lease(topic, spans, due), spans, due)

    def _lease(self, topic: str, spans: list[IdSpan], due: list[int], attempts: list[int] | None = None) -> LeaseSet:
        self._leases += 1
        lease = LeaseSet(
            lease_id=2**40 + self._leases,
            consumer=f"worker-{self._leases % 5}",
            expires=self._now + LEASE_MS,
            spans=spans,
            ts=due,
            bodies=[],
            attempts=attempts,
        )
        self._outbox.leased(topic, lease)
        self._record(len(due))
        return lease

    def _settle(
        self,
        kind: journal.EventKind,
        topic: str,
        lease: LeaseSet,
        spans: list[IdSpan],
        due: Iterable[int],
        ts: Sequence[int] = (),
    ) -> None:
        handed = [one * 1_000 + self._chance.randrange(900) for one in due]
        self._outbox.settled(
            kind, topic, consumer=lease.consumer, lease_id=lease.lease_id, spans=spans, handed_us=handed, ts=ts
        )
        self._record(sum(span.count for span in spans), after_ms=2_500)

    # Journals

    def _record(self, events: int, after_ms: int = 0) -> None:
        entry = self._outbox.take(self._now + after_ms, ANONYMOUS)
        assert entry is not None
        ticket, packed = entry
        broker = self._brokers[self._chance.randrange(len(self._brokers))]
        broker.sequence += 1
        if self._store:
            # Of a field that comes twice, the last value counts.
            packed += journal.JournalRecord(sequence=broker.sequence, ticket=ticket).SerializeToString()
        broker.waiting.append(packed)
        broker.waiting_events += events
        self.events += events
        self._export(broker, SEGMENT_EVENTS)

    def _export(self, broker: _Broker, least: int) -> None:
        while broker.waiting and broker.waiting_events >= least:
            written = broker.ledger.append(broker.waiting, self._now)
            del broker.waiting[: written.records]
            broker.waiting_events -= written.events


def _listed(ids: Sequence[str]) -> IdSpan:
    return IdSpan(len(ids), ids=list(ids))


def main() -> None:
    """Write a journal."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--events", type=int, default=1_000_000)
    parser.add_argument("--brokers", type=int, default=1)
    parser.add_argument("--rate", type=int, default=5_000, help="events per second of the journal's own time")
    parser.add_argument("--output", type=Path, required=True, help="a new directory; the segments are in journal/")
    arguments = parser.parse_args()
    arguments.output.mkdir(parents=True)
    begun = time.perf_counter()
    made = SyntheticJournal(arguments.output, brokers=arguments.brokers, rate=arguments.rate)
    events = made.write(arguments.events)
    segments = list((arguments.output / "journal").rglob("*.parquet"))
    size = sum(path.stat().st_size for path in segments)
    print(
        f"{events:,} events in {len(segments):,} segments of {size / 1e6:,.0f} MB, {time.perf_counter() - begun:.0f} s",
        file=sys.stderr,
    )


if __name__ == "__main__":
    main()
