"""The segments of a store that is being opened, and their settings."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from dejaq.storage.commit_log.files import DiskFiles
from dejaq.storage.rocksdb.engine import keys
from dejaq.storage.rocksdb.engine.database import RocksDatabase
from dejaq.storage.rocksdb.log import records
from dejaq.storage.segments.files import OPEN_MAX, SegmentFiles


@dataclass(frozen=True, slots=True)
class SegmentSettings:
    """When batches are moved into segments, and how large these become."""

    # About the size of a segment, of the contents of its batches.
    bytes: int = 64 * 1024 * 1024
    # A bucket with less stays in the commit log while that becomes too long.
    least_bytes: int = 256 * 1024
    # So many small segments that follow each other become one.
    merged: int = 8
    # A log that is compacted is moved when it has so much, or half of what its segments have.
    compacted_bytes: int = 1024 * 1024
    # The keys that one pass of a compaction has in memory.
    keys: int = 250_000


@dataclass(frozen=True, slots=True)
class OpenedSegments:
    """The segment files of a store that was just opened, and the numbers of those that are not used."""

    files: SegmentFiles
    unused: list[int]
    settings: SegmentSettings

    @classmethod
    def open(cls, path: Path, database: RocksDatabase, settings: SegmentSettings) -> OpenedSegments:
        """Open a directory; raises STORE_CORRUPT where a segment is missing or is cut off."""
        files = SegmentFiles(DiskFiles(path, open_max=OPEN_MAX))
        scan = database.scan(keys.LOG_SEGMENT, keys.after(keys.LOG_SEGMENT))
        return cls(files, files.check(records.unpack_segment(*item) for item in scan), settings)
