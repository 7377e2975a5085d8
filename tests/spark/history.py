"""Random histories of a store: the events of its messages, as a journal records them."""

from __future__ import annotations

import hashlib
import json
import random
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from dejaq.journal.names import SegmentName
from dejaq.journal.schema import OF_CALLERS, OF_SHARED, SCHEMA

# Ten minutes before midnight, so that every history covers two days.
START_MS = 1_790_037_000_000
LEASE_MS = 30_000

Event = dict[str, Any]


@dataclass
class Message:
    id: str
    topic: str
    owner: str
    ts: int
    lease: int = 0
    due: int = 0
    until: int = 0
    attempts: int = 0


@dataclass
class Store:
    """Generates events by simulating the effects of brokers, producers and consumers on pending messages."""

    # The brokers whose journals record the history; with more than one broker the store is shared.
    origins: Sequence[str]
    rng: random.Random
    topics: Sequence[str] = ("mail", "billing")
    now: int = START_MS
    # The last record number of the whole store, and of each broker.
    sequence: int = 0
    recorded: Counter[str] = field(default_factory=Counter)
    events: list[Event] = field(default_factory=list)
    pending: dict[tuple[str, str], Message] = field(default_factory=dict)
    finished: list[tuple[str, str]] = field(default_factory=list)
    number: int = 0

    def record(self, rows: Iterable[Event]) -> None:
        """Add one record, whose events happen at the same time."""
        listed = list(rows)
        if not listed:
            return
        self.sequence += 1
        origin = self.rng.choice(self.origins) if len(self.origins) > 1 else self.origins[0]
        self.recorded[origin] += 1
        shared = len(self.origins) > 1
        for row, event in enumerate(listed):
            self.events.append(
                {
                    **dict.fromkeys((*SCHEMA.names, *OF_SHARED.names, *OF_CALLERS.names)),
                    "lease": 0,
                    **event,
                    "origin": origin,
                    "sequence": self.recorded[origin],
                    "row": row,
                    # The clocks of the brokers differ.
                    "at_ms": self.now + 300 * self.origins.index(origin),
                    "store": "shared" if shared else origin,
                    "ticket": self.sequence if shared else None,
                }
            )

    def step(self) -> None:
        """Generate one random change."""
        self.now += self.rng.choice((1, 20, 400, 5_000, 61_000))
        actions = (self.create, self.create, self.lease, self.lease, self.settle, self.settle, self.own, self.expire)
        self.rng.choice(actions)()

    def create(self) -> None:
        rows = []
        for _ in range(self.rng.randint(1, 6)):
            topic = self.rng.choice(self.topics)
            again = [key for key in self.finished if key not in self.pending]
            if again and self.rng.random() < 0.1:
                topic, name = self.rng.choice(again)
            else:
                self.number += 1
                name = f"m{self.number}"
            day = 86_400_000
            ahead = self.rng.choice((-500, 0, 1_000, 30_000, 2 * day, 90 * day, 2_000 * day))
            message = Message(id=name, topic=topic, owner=self.rng.choice(("shop", "crm")), ts=self.now + ahead)
            self.pending[topic, name] = message
            rows.append(
                _event("created", message, message.owner, ts_ms=message.ts, priority=self.rng.choice((0, 0, 5)))
                | {"body_bytes": self.rng.randint(0, 500), "body_crc": self.rng.choice((7, 8, 2**32 - 1))}
            )
        self.record(rows)

    def lease(self) -> None:
        due = [m for m in self.pending.values() if not m.lease and m.ts <= self.now + 1_000]
        self._expire_and_lease(due[: self.rng.randint(1, 8)])

    def _expire_and_lease(self, chosen: list[Message]) -> None:
        """Expired leases and new leases may be in one record, as in the store."""
        rows = self._expired_rows()
        lease, consumer = self.sequence + 1_000, self.rng.choice(("w1", "w2"))
        for message in chosen:
            message.lease, message.due = lease, message.ts
            message.attempts += 1
            message.until = max(self.now, message.ts) + LEASE_MS
            rows.append(
                _event("leased", message, consumer, ts_ms=message.due, attempts=message.attempts)
                | {"lease": lease, "expires_ms": message.until}
            )
        self.record(rows)

    def expire(self) -> None:
        self.record(self._expired_rows())

    def _expired_rows(self) -> list[Event]:
        rows = []
        for message in self.pending.values():
            if message.lease and message.until <= self.now:
                event = _event("expired", message, "w1") | {"lease": message.lease, "expires_ms": message.until}
                message.ts, message.lease = message.until, 0
                if self.rng.random() < 0.4:
                    # With a back-off the message waits.
                    event["ts_ms"] = message.ts = message.until + 700
                rows.append(event)
        return rows

    def settle(self) -> None:
        held = [m for m in self.pending.values() if m.lease and m.until > self.now]
        rows = []
        for message in held[: self.rng.randint(1, 8)]:
            kind = self.rng.choice(("deleted",) * 3 + ("released", "extended", "recalled", "dead_lettered"))
            event = _event(kind, message, "w1") | {"lease": message.lease}
            handed = max(message.due, self.now - 5) * 1000 + self.rng.randint(0, 2_500)
            if kind in ("deleted", "released", "dead_lettered") and self.rng.random() < 0.9:
                event["handed_us"] = handed
            if kind in ("deleted", "dead_lettered"):
                self._finish(message)
            elif kind == "released":
                message.ts, message.lease = self.now + 500, 0
                event["ts_ms"] = message.ts
            elif kind == "extended":
                message.until = self.now + 2 * LEASE_MS
                event["expires_ms"] = message.until
            else:
                message.ts, message.lease = message.due, 0
                message.attempts -= 1
            rows.append(event)
        self.record(rows)

    def own(self) -> None:
        free = [m for m in self.pending.values() if not m.lease]
        rows = []
        for message in self.rng.sample(free, min(len(free), 3)):
            kind = self.rng.choice(("moved", "edited", "cancelled", "dead_lettered"))
            event = _event(kind, message, message.owner)
            if kind in ("moved", "edited"):
                message.ts = self.now + self.rng.choice((1_000, 86_400_000))
                event["ts_ms"] = message.ts
            else:
                self._finish(message)
            if kind == "edited":
                event |= {"priority": 3, "body_bytes": 77, "body_crc": 99}
            rows.append(event)
        self.record(rows)

    def drop(self, topic: str) -> None:
        """Delete a topic with all its messages; a topic of the same name may follow."""
        self.record([{"kind": "topic_dropped", "topic": topic, "id": "", "actor": ""}])
        for message in [m for m in self.pending.values() if m.topic == topic]:
            self._finish(message)

    def _finish(self, message: Message) -> None:
        del self.pending[message.topic, message.id]
        self.finished.append((message.topic, message.id))


def _event(kind: str, message: Message, actor: str, **values: Any) -> Event:
    return {"kind": kind, "topic": message.topic, "id": message.id, "actor": actor, **values}


def random_store(seed: int, *, steps: int, origins: Sequence[str] = ("store-1",)) -> Store:
    """A store with the history of a number of steps."""
    store = Store(origins, random.Random(seed))
    for _ in range(steps):
        store.step()
    return store


def write_segments(
    directory: Path, events: Sequence[Event], cuts: Iterable[int], *, statistics: bool = True
) -> list[Path]:
    """Write the events of an origin as segments with manifests, cut after each record in `cuts`."""
    directory.mkdir(parents=True, exist_ok=True)
    ends = sorted({*cuts, events[-1]["sequence"]})
    begin, written = events[0]["sequence"], []
    for end in ends:
        part = [event for event in events if begin <= event["sequence"] <= end]
        if part:
            written.append(write_segment(directory, part, begin, end, statistics=statistics))
        begin = end + 1
    return written


def write_segment(directory: Path, events: Sequence[Event], first: int, last: int, *, statistics: bool) -> Path:
    """Write one segment and its manifest."""
    name = SegmentName(events[0]["origin"], first, last)
    path = directory / name.segment
    schema = SCHEMA if events[0]["ticket"] is None else pa.schema([*SCHEMA, *OF_SHARED])
    pq.write_table(pa.Table.from_pylist(list(events), schema=schema), path, write_statistics=statistics)
    write_manifest(path, events=len(events))
    return path


def write_manifest(path: Path, *, events: int) -> None:
    """Write the part of a manifest that the lake reads; only the audit reads the chain and the signature."""
    name = SegmentName.parse(path.name)
    assert name is not None
    manifest = {
        "origin": name.origin,
        "first": name.first,
        "last": name.last,
        "events": events,
        "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
    }
    (path.parent / name.manifest).write_text(json.dumps(manifest))
