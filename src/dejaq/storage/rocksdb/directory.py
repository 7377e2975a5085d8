"""The directory of generated ids: which run holds a counter of a producer session."""

from __future__ import annotations

from collections.abc import Callable

from dejaq.domain.ids import ProducerSession
from dejaq.storage.rocksdb import keys

# Behind the bucket, a place has so many bytes; then the entry has the number of its rows.
_PLACE_BYTES = 20


class Directory:
    """Finds the runs of many ids; neighbours share one look."""

    def __init__(self, topic: int, last_item: Callable[[bytes, bytes], tuple[bytes, bytes] | None]) -> None:
        self._topic = topic
        self._last_item = last_item
        self._latest: dict[tuple[int, ProducerSession], tuple[int, int, bytes]] = {}

    def find(self, session: ProducerSession, bucket: int, counter: int) -> tuple[bytes, int] | None:
        """(place of the run, counter), or None when no run has it."""
        first, end, place = self._latest.get((bucket, session), (0, 0, b""))
        if not first <= counter < end:
            packed = session.pack()
            entry = self._last_item(
                keys.directory(self._topic, bucket, packed, 0), keys.directory(self._topic, bucket, packed, counter)
            )
            if entry is None:
                return None
            first = int.from_bytes(entry[0][-4:], "big")
            end = first + int.from_bytes(entry[1][_PLACE_BYTES:], "big")
            place = bucket.to_bytes(2, "big") + entry[1][:_PLACE_BYTES]
            self._latest[bucket, session] = first, end, place
        return (place, counter) if counter < end else None
