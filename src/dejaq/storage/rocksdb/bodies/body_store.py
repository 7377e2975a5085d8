"""Bodies that are stored separately from the timeline, so that moving a message never copies them.

A body is found by a number. A number with the bit `LARGE` belongs to a large body, whose reference is in the run.
"""

from __future__ import annotations

from collections.abc import Callable

from dejaq import limits
from dejaq.domain.bodies.large import is_reference
from dejaq.domain.topic import Topic
from dejaq.storage.rocksdb.bodies.large import LARGE, LargeBodies
from dejaq.storage.rocksdb.bodies.shared import SHARED_BYTES_MIN, RocksSharedBodies, put_body, stored_body
from dejaq.storage.rocksdb.engine import keys
from dejaq.storage.rocksdb.engine.database import Batch, RocksDatabase


class BodyStore:
    """The separately stored bodies of one topic: large bodies, or, when the topic shares bodies,
    all except small ones.
    """

    def __init__(
        self, topic: Topic, database: RocksDatabase, *, number: Callable[[], int], large: LargeBodies | None = None
    ) -> None:
        self._topic = topic.number
        self._database = database
        self._next_number = number
        self._large = large if large is not None else LargeBodies(database, number=number)
        self.shared = RocksSharedBodies(database, topic.number, number=number) if topic.settings.share_bodies else None
        # Larger bodies are stored separately.
        self.inline_bytes_max = limits.INLINE_BODY_BYTES_MAX if self.shared is None else SHARED_BYTES_MIN - 1

    def get(self, number: int) -> bytes:
        """A body by its number."""
        shared = self.shared
        body = stored_body(self._database, self._topic, number) if shared is None else shared.body(number)
        if body is None:
            raise KeyError(f"body {number}")
        return body

    def put(self, batch: Batch, body: bytes) -> tuple[bytes, int]:
        """(the bytes for the run, the number of the separately stored body or 0)."""
        if is_reference(body):
            return body, self._large.use(body, self._topic)
        if len(body) <= self.inline_bytes_max:
            return body, 0
        if self.shared is not None:
            return b"", self.shared.put(batch, body)
        number = self._next_number()
        put_body(self._database, batch, self._topic, number, body)
        return b"", number

    def drop(self, batch: Batch, number: int) -> None:
        """Count one message less for a body, because the message is deleted or gets another body."""
        if number & LARGE:
            self._large.drop(number, self._topic)
        elif self.shared is not None:
            self.shared.drop(batch, number)
        else:
            batch.delete(keys.numbered(keys.BODY, self._topic, number))

    def write(self, batch: Batch, now: int) -> None:
        """Put the changed counts into the batch of the change."""
        if self.shared is not None:
            self.shared.write(batch)
        self._large.write(batch, now)

    def missing(self, body: bytes) -> bool:
        """Whether a body is a reference to a large body that does not exist."""
        return self._large.missing(body)
