"""Messages to send: ids, due times, and bodies that contain the due time."""

from __future__ import annotations

import random
import string
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from hashlib import blake2b

STAMP_BYTES = 16
BATCH = 1_000
# Messages that stay pending while a bench runs are due this long after its start.
FAR_MS = 6 * 3_600 * 1_000
FAR_PREFIX = "far"
_POOL_BYTES = 1 << 16
_WORD = (1 << 64) - 1


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
    """A number of messages, described so that a client process can create them itself.

    Without `start_ms` they are due at once; with it the first is due then and the rest at `per_s`, or all at that
    millisecond when `per_s` is 0. With `scatter_ms` the times are uniform over that many milliseconds from `start_ms`
    on, in random order, and the ids look random too, as those of applications do.
    """

    count: int
    body_bytes: int = 100
    prefix: str = "m"
    start_ms: int | None = None
    per_s: int = 0
    scatter_ms: int = 0

    def due_ms(self, index: int) -> int:
        """When message `index` is due."""
        assert self.start_ms is not None
        if self.scatter_ms:
            return self.start_ms + _scattered_ms(_mixed(_seed(self.prefix), index), self.scatter_ms)
        return self.start_ms + (index * 1_000 // self.per_s if self.per_s else 0)

    def id_of(self, index: int) -> str:
        """The id of message `index`."""
        return f"{_mixed(_seed(self.prefix), index):016x}" if self.scatter_ms else f"{self.prefix}-{index:012d}"

    def part(self, number: int, parts: int) -> Iterator[tuple[str, bytes, int]]:
        """The messages of one of several clients that share the load, one by one: id, body and time."""
        pool = _pool(self.body_bytes)
        for row in range(number, self.count, parts):
            due_ms = self.due_ms(row)
            yield self.id_of(row), _body(due_ms * 1_000, row, pool, self.body_bytes), due_ms

    def batches(self, size: int = BATCH) -> Iterator[Batch]:
        """The messages in order of time."""
        pool = _pool(self.body_bytes)
        for first in range(0, self.count, size):
            rows = range(first, min(first + size, self.count))
            ids, due = self._named(rows)
            stamps = [0] * len(rows) if due is None else [ms * 1_000 for ms in due]
            yield Batch(
                ids=ids,
                bodies=[_body(stamp, row, pool, self.body_bytes) for stamp, row in zip(stamps, rows, strict=True)],
                due_ms=due,
            )

    def _named(self, rows: range) -> tuple[list[str], list[int] | None]:
        """The ids and times of messages; a scattered load computes one number for both, because it is made often."""
        if not self.scatter_ms or self.start_ms is None:
            due = None if self.start_ms is None else [self.due_ms(row) for row in rows]
            return [self.id_of(row) for row in rows], due
        seed, start_ms, scatter_ms = _seed(self.prefix), self.start_ms, self.scatter_ms
        numbers = [_mixed(seed, row) for row in rows]
        return [f"{number:016x}" for number in numbers], [start_ms + _scattered_ms(n, scatter_ms) for n in numbers]


def stamped(due_us: int, body_bytes: int = 100) -> bytes:
    """One body that is due at `due_us`."""
    return _body(due_us, 0, _pool(body_bytes), body_bytes)


def due_us_of(body: bytes) -> int:
    """The due time in a body, in UTC microseconds."""
    return int(body[:STAMP_BYTES])


def lateness_us(bodies: Sequence[bytes], now_us: int) -> list[int]:
    """How late each body is at `now_us`; negative when it is early."""
    return [now_us - int(body[:STAMP_BYTES]) for body in bodies]


@cache
def _seed(prefix: str) -> int:
    return int.from_bytes(blake2b(prefix.encode(), digest_size=8).digest())


def _mixed(seed: int, index: int) -> int:
    """A number of 64 bits that looks random; no two indexes below 2**64 have the same (splitmix64)."""
    number = (index * 0x9E3779B97F4A7C15 + seed) & _WORD
    number = (number ^ number >> 30) * 0xBF58476D1CE4E5B9 & _WORD
    number = (number ^ number >> 27) * 0x94D049BB133111EB & _WORD
    return number ^ number >> 31


def _scattered_ms(number: int, scatter_ms: int) -> int:
    """A time below `scatter_ms`, from the low bits: ids in order must not mean times in order."""
    return (number & 0xFF_FFFF_FFFF) * scatter_ms >> 40


@cache
def _pool(body_bytes: int) -> bytes:
    """Random letters that cannot be compressed, the same in every run; bodies are cut from them."""
    letters = (string.ascii_letters + string.digits).encode()
    return bytes(random.Random(1).choices(letters, k=_POOL_BYTES + body_bytes))


def _body(stamp_us: int, row: int, pool: bytes, body_bytes: int) -> bytes:
    offset = row * 61 % _POOL_BYTES
    return b"%016d" % stamp_us + pool[offset : offset + max(0, body_bytes - STAMP_BYTES)]
