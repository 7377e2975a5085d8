"""Which counters each producer session has used, so that a repeated batch is recognised for what it is."""

from __future__ import annotations

from dejaq import limits
from dejaq.domain import ids
from dejaq.errors import Code, error_of
from dejaq.protocol.v1 import records_pb2 as records
from dejaq.storage.ranges import insert, within
from dejaq.storage.rocksdb import keys
from dejaq.storage.rocksdb.database import Batch, Database

_CACHE_MAX = 10_000


class Seen:
    """The counters of every session of a topic: sorted disjoint ranges, one in the usual case."""

    def __init__(self, topic: int, database: Database) -> None:
        self._topic = topic
        self._database = database
        self._cache: dict[bytes, list[list[int]]] = {}

    def rows(self, session: ids.ProducerSession, sequence: int, count: int) -> set[int]:
        """The rows of a batch whose counters were used before."""
        return within(self._ranges(session.pack()), sequence, count)

    def check_room(self, session: ids.ProducerSession, more: int) -> None:
        """Raise LIMIT_EXCEEDED when so many more ranges might be too many; `add` cannot fail after this."""
        if len(self._ranges(session.pack())) + more > limits.PRODUCER_SESSION_GAPS_MAX:
            raise error_of(Code.LIMIT_EXCEEDED, "the session has too many gaps in its sequence; begin a new one")

    def add(
        self,
        session: ids.ProducerSession,
        sequence: int,
        rows: list[tuple[int, int]],
        now: int,
        batch: Batch,
    ) -> None:
        """Mark ranges of rows as used, in `batch`."""
        packed = session.pack()
        ranges = self._ranges(packed)
        for start, end in rows:
            insert(ranges, sequence + start, sequence + end)
        if len(ranges) > limits.PRODUCER_SESSION_GAPS_MAX:
            self._cache.pop(packed, None)
            raise error_of(
                Code.LIMIT_EXCEEDED,
                "the producer session has too many gaps in its sequence; open a new producer",
            )
        record = records.SeenCounters(used_ms=now, ranges=[edge for pair in ranges for edge in pair])
        batch.put(keys.session(self._topic, packed), record.SerializeToString())

    def forget(self, before_ms: int, batch: Batch) -> int:
        """Drop the sessions that were last used before a time; how many."""
        prefix = keys.of_topic(keys.SESSION, self._topic)
        dropped = 0
        for key, value in self._database.scan(prefix, keys.after(prefix)):
            if records.SeenCounters.FromString(value).used_ms < before_ms:
                batch.delete(key)
                self._cache.pop(key[5:], None)
                dropped += 1
        return dropped

    def _ranges(self, packed: bytes) -> list[list[int]]:
        ranges = self._cache.get(packed)
        if ranges is None:
            value = self._database.get(keys.session(self._topic, packed))
            edges = list(records.SeenCounters.FromString(value).ranges) if value is not None else []
            ranges = [list(pair) for pair in zip(edges[::2], edges[1::2], strict=True)]
            if len(self._cache) >= _CACHE_MAX:
                self._cache.pop(next(iter(self._cache)))
            self._cache[packed] = ranges
        return ranges
