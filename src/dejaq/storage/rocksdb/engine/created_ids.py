"""The own ids that were created within the deduplication window of a topic.

The time is cut into periods as long as the window. An id is written under the period of its creation, so it is found
in the present period or in the one before. A period that is older is removed as a whole when a new one begins.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from dejaq.domain.topic import Topic
from dejaq.storage.rocksdb.engine import keys
from dejaq.storage.rocksdb.engine.database import Batch, RocksDatabase


class RocksCreatedIds:
    """The created ids of one topic that has a window."""

    def __init__(self, topic: Topic, database: RocksDatabase) -> None:
        self._topic = topic.number
        self._window_ms = topic.settings.dedup_ms
        self._database = database
        # How many ids there are of each period.
        self._counts: dict[int, int] = {}
        # Those that the present write adds: the database does not know of them yet.
        self._new: set[str] = set()

    def load(self) -> None:
        """Read the counts."""
        prefix = keys.of_topic(keys.CREATED_COUNT, self._topic)
        for key, value in self._database.scan(prefix, keys.after(prefix)):
            self._counts[int.from_bytes(key[len(prefix) :], "big")] = int.from_bytes(value, "big")

    def rows(self, ids: Sequence[str], rows: Sequence[int], now: int) -> list[int]:
        """The rows whose ids were created within the window."""
        found = {row for row in rows if ids[row] in self._new}
        for period in self._periods(now):
            prefix = keys.numbered(keys.CREATED, self._topic, period)
            left = [row for row in rows if row not in found]
            times = self._database.get_many([prefix + ids[row].encode() for row in left])
            for row, created in zip(left, times, strict=True):
                if created is not None and now - int.from_bytes(created, "big") < self._window_ms:
                    found.add(row)
        return sorted(found)

    def room(self, limit: int, now: int) -> int:
        """How many more ids can be remembered."""
        return max(0, limit - sum(self._counts[period] for period in self._periods(now)))

    def add(self, ids: Iterable[str], now: int, batch: Batch) -> None:
        """Remember ids that are created now, and forget the periods that are over."""
        period = self._present(now)
        prefix, created = keys.numbered(keys.CREATED, self._topic, period), now.to_bytes(8, "big")
        added = set(ids)
        for message_id in added:
            batch.put(prefix + message_id.encode(), created)
        self._new |= added
        self._counts[period] = self._counts.get(period, 0) + len(added)
        batch.put(keys.numbered(keys.CREATED_COUNT, self._topic, period), self._counts[period].to_bytes(8, "big"))
        for old in [one for one in self._counts if one < period - 1]:
            start = keys.numbered(keys.CREATED, self._topic, old)
            batch.delete_range(start, keys.after(start))
            batch.delete(keys.numbered(keys.CREATED_COUNT, self._topic, old))
            del self._counts[old]

    def written(self) -> None:
        """What was added is in the database."""
        self._new.clear()

    def _present(self, now: int) -> int:
        """The present period; it never goes back, whatever the clock does."""
        return max(now // self._window_ms, *self._counts, 0)

    def _periods(self, now: int) -> list[int]:
        """The periods that may have ids of the window, the later one first."""
        present = self._present(now)
        return [period for period in (present, present - 1) if period in self._counts]
