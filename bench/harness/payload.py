"""Messages to send: ids, due times, and bodies that say when they are due."""

from __future__ import annotations

import random
import string
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache

STAMP_BYTES = 16
BATCH = 1_000
_POOL_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class Batch:
    """Messages that are created together, as columns. Without `due_ms` they are due when they are created."""

    ids: Sequence[str]
    bodies: Sequence[bytes]
    due_ms: Sequence[int] | None = None

    def __len__(self) -> int:
        return len(self.bodies)


@dataclass(frozen=True, slots=True)
class Load:
    """So many messages, described so that a client process can make them itself.

    Without `start_ms` they are due at once; with it the first is due then and the rest at `per_s`, or all at that
    millisecond when `per_s` is 0.
    """

    count: int
    body_bytes: int = 100
    prefix: str = "m"
    start_ms: int | None = None
    per_s: int = 0

    def due_ms(self, index: int) -> int:
        """When message `index` is due."""
        assert self.start_ms is not None
        return self.start_ms + (index * 1_000 // self.per_s if self.per_s else 0)

    def batches(self, size: int = BATCH) -> Iterator[Batch]:
        """The messages in order of time."""
        pool = _pool(self.body_bytes)
        for first in range(0, self.count, size):
            rows = range(first, min(first + size, self.count))
            due = None if self.start_ms is None else [self.due_ms(row) for row in rows]
            stamps = [0] * len(rows) if due is None else [ms * 1_000 for ms in due]
            yield Batch(
                ids=[f"{self.prefix}-{row:012d}" for row in rows],
                bodies=[_body(stamp, row, pool, self.body_bytes) for stamp, row in zip(stamps, rows, strict=True)],
                due_ms=due,
            )


def stamped(due_us: int, body_bytes: int = 100) -> bytes:
    """One body that is due at `due_us`."""
    return _body(due_us, 0, _pool(body_bytes), body_bytes)


def due_us_of(body: bytes) -> int:
    """When a body says it is due, in UTC microseconds."""
    return int(body[:STAMP_BYTES])


def lateness_us(bodies: Sequence[bytes], now_us: int) -> list[int]:
    """How late each body is at `now_us`; negative when it is early."""
    return [now_us - int(body[:STAMP_BYTES]) for body in bodies]


@cache
def _pool(body_bytes: int) -> bytes:
    """Letters that do not compress away, the same in every run, to cut fillings from."""
    letters = (string.ascii_letters + string.digits).encode()
    return bytes(random.Random(1).choices(letters, k=_POOL_BYTES + body_bytes))


def _body(stamp_us: int, row: int, pool: bytes, body_bytes: int) -> bytes:
    offset = row * 61 % _POOL_BYTES
    return b"%016d" % stamp_us + pool[offset : offset + max(0, body_bytes - STAMP_BYTES)]
