"""Bodies that are stored apart from the timeline, so that moving a message never copies them.

A body is found by a number. One with the bit `LARGE` is that of a large body, and the reference to it lies in the run.
"""

from __future__ import annotations

from collections.abc import Callable

from dejaq import limits
from dejaq.domain.large import is_reference
from dejaq.domain.topic import Topic
from dejaq.storage.rocksdb import keys
from dejaq.storage.rocksdb.database import Batch, Database
from dejaq.storage.rocksdb.large import LARGE, LargeBodies
from dejaq.storage.rocksdb.sharing import SHARED_BYTES_MIN, SharedBodies


class Apart:
    """The bodies of one topic that are stored apart: the large ones, or, where it shares bodies, all but the small."""

    def __init__(
        self, topic: Topic, database: Database, *, number: Callable[[], int], large: LargeBodies | None = None
    ) -> None:
        self._topic = topic.number
        self._database = database
        self._next_number = number
        self._large = large if large is not None else LargeBodies(database, number=number)
        self.shared = SharedBodies(database, topic.number, number=number) if topic.settings.share_bodies else None
        # Bodies above this are stored apart.
        self.inline_bytes_max = limits.INLINE_BODY_BYTES_MAX if self.shared is None else SHARED_BYTES_MIN - 1

    def get(self, number: int) -> bytes:
        """A body by its number."""
        if self.shared is not None:
            body = self.shared.body(number)
        else:
            body = self._database.get(keys.numbered(keys.BODY, self._topic, number))
        if body is None:
            raise KeyError(f"body {number}")
        return body

    def put(self, batch: Batch, body: bytes) -> tuple[bytes, int]:
        """(what goes into the run, number of the body stored apart or 0)."""
        if is_reference(body):
            return body, self._large.use(body, self._topic)
        if len(body) <= self.inline_bytes_max:
            return body, 0
        if self.shared is not None:
            return b"", self.shared.put(batch, body)
        number = self._next_number()
        batch.put(keys.numbered(keys.BODY, self._topic, number), body)
        return b"", number

    def drop(self, batch: Batch, number: int) -> None:
        """A message that has the body goes, or takes another."""
        if number & LARGE:
            self._large.drop(number, self._topic)
        elif self.shared is not None:
            self.shared.drop(batch, number)
        else:
            batch.delete(keys.numbered(keys.BODY, self._topic, number))

    def write(self, batch: Batch) -> None:
        """Put what was counted into the batch of the change."""
        if self.shared is not None:
            self.shared.write(batch)
        self._large.write(batch)

    def missing(self, body: bytes) -> bool:
        """Whether a body refers to a large one that is not there."""
        return self._large.missing(body)
