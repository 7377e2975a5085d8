"""Bodies that are stored once, however many messages of a topic have them.

A body is found by 128 bits of its digest and then compared byte for byte; two different bodies with the same 128 bits
are stored separately. The number of messages with a body is counted in the same atomic write as the change itself; with
the last message the body is removed.
"""

from __future__ import annotations

import struct
from collections.abc import Callable

from dejaq.domain.bodies.packing import DIGEST_BYTES, digest_of
from dejaq.storage.rocksdb.engine import keys
from dejaq.storage.rocksdb.engine.database import Batch, RocksDatabase

# A smaller body costs less in its run than as a reference.
SHARED_BYTES_MIN = 256
CACHE_BYTES_MAX = 4 * 1024 * 1024
KEY_BYTES = 16
_USES = struct.Struct(f">Q{DIGEST_BYTES}s")


class RocksSharedBodies:
    """The shared bodies of one topic. The effects of a change are kept here until `write` puts them into its batch."""

    def __init__(
        self,
        database: RocksDatabase,
        topic: int,
        *,
        number: Callable[[], int],
        digest: Callable[[bytes], bytes] = digest_of,
    ) -> None:
        self._database = database
        self._topic = topic
        self._next_number = number
        self._digest = digest
        self._uses: dict[int, tuple[int, bytes]] = {}
        self._found: dict[bytes, list[int]] = {}
        self._changed: set[bytes] = set()
        self._fresh: dict[int, bytes] = {}
        # Bodies that were read recently: a body of many messages is requested often.
        self._cache: dict[int, bytes] = {}
        self._cached_bytes = 0

    def put(self, batch: Batch, body: bytes) -> int:
        """The number of a body; counts one more message for it."""
        digest = self._database.values.digest(self._topic, self._digest(body))
        numbers = self._numbers(digest)
        for number in numbers:
            if self.body(number) == body:
                self._uses[number] = (self._count(number)[0] + 1, digest)
                return number
        number = self._next_number()
        numbers.append(number)
        self._changed.add(digest[:KEY_BYTES])
        self._uses[number] = (1, digest)
        self._fresh[number] = body
        put_body(self._database, batch, self._topic, number, body)
        return number

    def find(self, digest: bytes) -> bytes | None:
        """The body that matches all 256 bits of a digest; two bodies never have the same digest."""
        digest = self._database.values.digest(self._topic, digest)
        numbers = self._numbers(digest)
        # No change runs meanwhile, and the result of a search need not be cached.
        self._found.clear()
        for number in numbers:
            if self._count(number)[1] == digest:
                return self.body(number)
        return None

    def drop(self, batch: Batch, number: int) -> None:
        """Count one message less for a body; with the last message, the body is removed."""
        count, digest = self._count(number)
        self._uses[number] = (count - 1, digest)
        if count == 1:
            self._numbers(digest).remove(number)
            self._changed.add(digest[:KEY_BYTES])
            self._fresh.pop(number, None)
            self._cached_bytes -= len(self._cache.pop(number, b""))
            batch.delete(keys.numbered(keys.BODY, self._topic, number))

    def write(self, batch: Batch) -> None:
        """Put the changed counts into the batch of the change."""
        for number, (count, digest) in self._uses.items():
            key = keys.numbered(keys.USES, self._topic, number)
            if count:
                batch.put(key, _USES.pack(count, digest))
            else:
                batch.delete(key)
        for changed in self._changed:
            key, numbers = keys.digest(self._topic, changed), self._found[changed]
            if numbers:
                batch.put(key, struct.pack(f">{len(numbers)}Q", *numbers))
            else:
                batch.delete(key)
        self._uses, self._found, self._fresh, self._changed = {}, {}, {}, set()

    def _count(self, number: int) -> tuple[int, bytes]:
        known = self._uses.get(number)
        if known is None:
            stored = self._database.get(keys.numbered(keys.USES, self._topic, number))
            if stored is None:
                raise KeyError(f"uses of body {number}")
            count, digest = _USES.unpack(stored)
            known = (count, digest)
        return known

    def _numbers(self, digest: bytes) -> list[int]:
        key = digest[:KEY_BYTES]
        known = self._found.get(key)
        if known is None:
            stored = self._database.get(keys.digest(self._topic, key)) or b""
            known = self._found[key] = list(struct.unpack(f">{len(stored) // 8}Q", stored))
        return known

    def body(self, number: int) -> bytes | None:
        """A body by its number, which no other body ever has."""
        known = self._fresh.get(number) or self._cache.get(number)
        if known is None:
            known = stored_body(self._database, self._topic, number)
            if known is not None:
                self._remember(number, known)
        return known

    def _remember(self, number: int, body: bytes) -> None:
        self._cache[number] = body
        self._cached_bytes += len(body)
        while self._cached_bytes > CACHE_BYTES_MAX:
            oldest = next(iter(self._cache))
            self._cached_bytes -= len(self._cache.pop(oldest))


def put_body(database: RocksDatabase, batch: Batch, topic: int, number: int, body: bytes) -> None:
    """Write a body that is stored apart."""
    key = keys.numbered(keys.BODY, topic, number)
    batch.put(key, database.values.body(key, body))


def stored_body(database: RocksDatabase, topic: int, number: int) -> bytes | None:
    """A body that is stored apart; None where there is none."""
    key = keys.numbered(keys.BODY, topic, number)
    value = database.get(key)
    return None if value is None else database.values.opened_body(key, value)
