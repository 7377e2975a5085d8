"""What keeps the near rows of a bucket in memory."""

from __future__ import annotations

from typing import Protocol

from dejaq.storage.rocksdb.timeline.run import Run
from dejaq.storage.rocksdb.timeline.window import Source


class Near(Protocol):
    """The part of a bucket that is in memory, up to `cursor` in the order of run keys."""

    cursor: bytes

    def offer(self, source: Source) -> None:
        """Add the next row of a source to the heap."""

    def left_on_disk(self, key: bytes) -> None:
        """Record that a run was written after the cursor."""

    def removed(self, key: bytes) -> None:
        """Record that a run was removed."""

    def retreat(self, key: bytes) -> list[Run]:
        """Drop every run from `key` on."""

    def late_key(self) -> bytes | None:
        """The key behind which a quarter of the runs before the cursor lie; None when there is none."""
