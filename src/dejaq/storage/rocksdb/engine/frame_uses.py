"""How many bytes of each file of the commit log are frames of runs that exist.

The counts are kept by topic and file, and are written in the same batch as the change itself: one small record per
change that adds or removes runs. A file that has been without such frames since a change which is in the tables of the
database is not needed for runs any more.
"""

from __future__ import annotations

from collections.abc import Iterable
from struct import Struct

from dejaq.storage.commit_log.record import FRAME_HEADER_BYTES, FrameAddress
from dejaq.storage.rocksdb.engine import keys
from dejaq.storage.rocksdb.engine.database import Batch, RocksDatabase
from dejaq.storage.rocksdb.engine.frames import NewFrame

_COUNT = Struct(">IQ")


class FrameUses:
    """The counts in memory, with every change that was taken."""

    def __init__(self) -> None:
        # Frames and bytes, by topic and file.
        self._counts: dict[tuple[int, int], tuple[int, int]] = {}
        self._bytes: dict[int, int] = {}
        # The last change that removed a frame of the file.
        self._changed: dict[int, int] = {}
        # Frames of this file before this offset were moved, also if a run in memory does not say so.
        self._moved: tuple[int, int] = (0, 0)

    def load(self, database: RocksDatabase, files: Iterable[int], sequence: int) -> None:
        """Read the counts at a start, which knows of no earlier change than its own sequence."""
        for key, value in database.scan(keys.LOG_USE, keys.after(keys.LOG_USE)):
            place = keys.log_use_of(key)
            self._counts[place] = unpack_count(value)
            self._bytes[place[1]] = self._bytes.get(place[1], 0) + self._counts[place][1]
        self._changed = dict.fromkeys(files, sequence)

    def record(self, batch: Batch, sequence: int) -> None:
        """Count what a change adds and removes, and put the counts into its batch."""
        changed: set[tuple[int, int]] = set()
        for frame in batch.frames:
            if frame.topic is not None and frame.address is not None:
                changed.add(self._add(frame.topic, frame.address, 1))
        for topic, stored in batch.released:
            address = stored.address if isinstance(stored, NewFrame) else stored
            if address is not None and self._is_counted(topic, address):
                changed.add(self._add(topic, address, -1))
                self._changed[address.file] = sequence
        for topic, file, frames, size in batch.released_of_files:
            if (topic, file) in self._counts:
                changed.add(self._change(topic, file, -frames, -size))
                self._changed[file] = sequence
        for topic in batch.dropped_topics:
            for place in [place for place in self._counts if place[0] == topic]:
                self._bytes[place[1]] -= self._counts.pop(place)[1]
                self._changed[place[1]] = sequence
        for place in changed:
            count = self._counts.get(place, (0, 0))
            if count[0]:
                batch.put(keys.log_use(*place), _COUNT.pack(*count))
            else:
                self._counts.pop(place, None)
                batch.delete(keys.log_use(*place))

    def _is_counted(self, topic: int, address: FrameAddress) -> bool:
        moved = address.file == self._moved[0] and address.offset < self._moved[1]
        return not moved and (topic, address.file) in self._counts

    def _add(self, topic: int, address: FrameAddress, sign: int) -> tuple[int, int]:
        return self._change(topic, address.file, sign, sign * (FRAME_HEADER_BYTES + address.length))

    def _change(self, topic: int, file: int, frames: int, size: int) -> tuple[int, int]:
        place = topic, file
        before = self._counts.get(place, (0, 0))
        self._counts[place] = before[0] + frames, before[1] + size
        self._bytes[file] = self._bytes.get(file, 0) + size
        return place

    def topics_of(self, file: int) -> list[int]:
        """The topics that have frames in a file."""
        return [topic for topic, number in self._counts if number == file]

    def moved(self, file: int, offset: int) -> None:
        """Frames of a file before an offset are not frames any more."""
        self._moved = file, offset

    def live_bytes(self, file: int) -> int:
        """How many bytes of a file are needed for runs."""
        return self._bytes.get(file, 0)

    def is_free(self, file: int, flushed: int) -> bool:
        """Whether a file has no frame of a run, also not for the tables of the database, which end with a change."""
        return not self._bytes.get(file) and self._changed.get(file, 0) <= flushed

    def forget(self, file: int) -> None:
        """A file was removed."""
        self._bytes.pop(file, None)
        self._changed.pop(file, None)

    @property
    def total_bytes(self) -> int:
        """How many bytes of the log are needed for runs."""
        return sum(self._bytes.values())


def unpack_count(value: bytes) -> tuple[int, int]:
    """Frames and bytes."""
    frames, size = _COUNT.unpack(value)
    return frames, size
