"""The used counters of each producer session of a topic, so that a repeated batch is recognised."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import islice

from dejaq import limits
from dejaq.domain import ids
from dejaq.domain.batch import CreateBatch
from dejaq.protocol.v1 import records_pb2 as records
from dejaq.storage.rocksdb.engine import keys
from dejaq.storage.rocksdb.engine.database import Batch, RocksDatabase
from dejaq.storage.transactions import Transaction
from dejaq.storage.used_sequences import UsedSequences

_CACHE_MAX = 10_000
# So many sessions are looked at in one step.
FORGET_SESSIONS = 256
FORGET_EVERY_MS = 3_600_000


class SessionSequences:
    """The used sequences of every session of one topic."""

    def __init__(self, topic: int, database: RocksDatabase) -> None:
        self._topic = topic
        self._database = database
        self._cache: dict[bytes, UsedSequences] = {}
        # The last session that was looked up: a change looks up its session several times.
        self._last: tuple[ids.ProducerSession, UsedSequences] | None = None
        # Sessions whose records are written at the end of a block of `written_once`.
        self._unwritten: dict[bytes, UsedSequences] | None = None

    @contextmanager
    def written_once(self, now: int, batch: Batch) -> Iterator[None]:
        """Within this block, the record of a session is put into `batch` only at the end, however often it is used."""
        unwritten: dict[bytes, UsedSequences] = {}
        self._unwritten = unwritten
        try:
            yield
        finally:
            self._unwritten = None
            for packed, used in unwritten.items():
                self._write(packed, used, now, batch)

    def rows(self, named: CreateBatch | Transaction, count: int) -> set[int]:
        """The rows of a batch whose counters were used before; raises BATCH_NAME_TAKEN when another batch used them."""
        used = self.of(named.session)
        # The next change writes this to disk; until then, the producer repeats it.
        used.acknowledge(named.acknowledged)
        return used.rows(named.sequence, count, named.check)

    def check_room(self, session: ids.ProducerSession) -> None:
        """Raise LIMIT_EXCEEDED when the session has too many gaps for one more batch; after this `add` cannot fail."""
        self.of(session).check_room()

    def add(self, named: CreateBatch | Transaction, rows: list[tuple[int, int]], now: int, batch: Batch) -> None:
        """Mark ranges of rows as used, in `batch`."""
        self.of(named.session).remember(named.sequence, named.check)
        self.use(named.session, [(named.sequence + start, named.sequence + end) for start, end in rows], now, batch)

    def use(self, session: ids.ProducerSession, counters: list[tuple[int, int]], now: int, batch: Batch) -> None:
        """Mark ranges of counters as used, in `batch`."""
        packed, used = session.pack(), self.of(session)
        for start, end in counters:
            used.use(start, end)
        if self._unwritten is None:
            self._write(packed, used, now, batch)
        else:
            self._unwritten[packed] = used

    def _write(self, packed: bytes, used: UsedSequences, now: int, batch: Batch) -> None:
        record = records.SeenCounters(
            used_ms=now,
            ranges=[edge for pair in used.ranges for edge in pair],
            firsts=used.checks.keys(),
            checks=used.checks.values(),
        )
        batch.put(keys.session(self._topic, packed), record.SerializeToString())

    def forget(self, before_ms: int, batch: Batch, start: bytes = b"") -> bytes | None:
        """Drop sessions that were last used before a time; a few from `start` on. Returns where the others begin."""
        prefix = keys.of_topic(keys.SESSION, self._topic)
        found = list(islice(self._database.scan(max(prefix, start), keys.after(prefix)), FORGET_SESSIONS))
        for key, value in found:
            if records.SeenCounters.FromString(value).used_ms < before_ms:
                batch.delete(key)
                self._cache.pop(key[5:], None)
                self._last = None
        return found[-1][0] + b"\0" if len(found) == FORGET_SESSIONS else None

    def of(self, session: ids.ProducerSession) -> UsedSequences:
        """The used sequences of a session."""
        if self._last is not None and self._last[0] is session:
            return self._last[1]
        packed = session.pack()
        used = self._cache.get(packed)
        if used is None:
            value = self._database.get(keys.session(self._topic, packed))
            record = records.SeenCounters.FromString(value or b"")
            edges = list(record.ranges)
            checks = zip(record.firsts, record.checks, strict=True)
            used = UsedSequences(zip(edges[::2], edges[1::2], strict=True), checks)
            if len(self._cache) >= _CACHE_MAX:
                self._cache.pop(next(iter(self._cache)))
            self._cache[packed] = used
        self._last = session, used
        return used


class ForgottenSessions:
    """Once per hour, drops the sessions that no producer can still repeat: a few with each change."""

    def __init__(self, now: int) -> None:
        self._next_at = now
        # What is left of this hour: the sessions of a topic, and from which on.
        self._left: list[tuple[SessionSequences, bytes]] = []

    def is_due(self, now: int) -> bool:
        """Whether there is something to do."""
        return bool(self._left) or now >= self._next_at

    def step(self, books: Callable[[], Iterable[SessionSequences]], now: int, batch: Batch) -> None:
        """Drop a few sessions; `books` has those of every topic."""
        if not self._left:
            self._next_at = now + FORGET_EVERY_MS
            self._left = [(book, b"") for book in books()]
        book, start = self._left.pop()
        rest = book.forget(now - limits.PRODUCER_SESSION_MS_MAX, batch, start)
        if rest is not None:
            self._left.append((book, rest))
