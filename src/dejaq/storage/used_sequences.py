"""The used counters of a producer session, so that a repeated batch is recognised.

A batch is named by its session and the counter of its first row. A repeat has the same name and the same check value,
which the SDK computes from the content: two processes that are copies of one process may use one name for different
batches.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence

from dejaq import limits
from dejaq.errors import Code, error_of
from dejaq.storage import ranges

# Marks a pair as a check value: counters have 32 bits.
_CHECK = 1 << 63


class UsedSequences:
    """The used counters of one session, as sorted disjoint ranges, and the check values of its latest batches.

    A producer reports the counter below which everything was answered and nothing is sent again. The gaps below it are
    closed, so that there are few ranges, and no check values are kept for them.
    """

    __slots__ = ("_acknowledged", "checks", "ranges")

    def __init__(self, used: Iterable[Sequence[int]] = (), checks: Iterable[tuple[int, int]] = ()) -> None:
        self.ranges = [list(pair) for pair in used]
        # The check values by the first counter of the batch.
        self.checks = dict(checks)
        self._acknowledged = 0

    def copy(self) -> UsedSequences:
        """A copy with the same contents."""
        return UsedSequences(self.ranges, self.checks.items())

    def rows(self, first: int, count: int, check: int = 0) -> set[int]:
        """The rows of a batch whose counters were used; raises BATCH_NAME_TAKEN when another batch used them."""
        found = ranges.within(self.ranges, first, count)
        if found or first in self.checks:
            self._compare(first, check)
        return found

    def rows_of(self, numbers: Sequence[int], first: int = 0, check: int = 0) -> set[int]:
        """The same for listed counters of the batch that begins at `first`."""
        found = {row for row, number in enumerate(numbers) if ranges.within(self.ranges, number, 1)}
        if found or first in self.checks:
            self._compare(first, check)
        return found

    def _compare(self, first: int, check: int) -> None:
        # Counters that were used without check values are identified by their name.
        if not check or not self.checks or self.checks.get(first) == check:
            return
        if first not in self.checks and len(self.checks) >= limits.PRODUCER_SESSION_GAPS_MAX:
            # The check value may have been dropped to make room for later values.
            return
        raise error_of(Code.BATCH_NAME_TAKEN)

    def check_room(self, more: int = 0) -> None:
        """Raise LIMIT_EXCEEDED when there are too many gaps for one more batch; `more` gaps above the usual limit are
        allowed.
        """
        if len(self.ranges) > limits.PRODUCER_SESSION_GAPS_MAX + more:
            raise error_of(
                Code.LIMIT_EXCEEDED, "the producer session has too many gaps in its sequence; begin a new one"
            )

    def acknowledge(self, below: int) -> None:
        """Record that everything below this counter was answered, and is never sent again."""
        if below <= self._acknowledged:
            return
        self._acknowledged = below
        ranges.insert(self.ranges, 0, below)
        # They are in the order of their use. One that came late stays until those before it go, which does no harm.
        for first in list(self.checks):
            if first >= below:
                return
            del self.checks[first]

    def use(self, start: int, end: int) -> None:
        """Record that the counters from start to end-1 are used."""
        ranges.insert(self.ranges, start, end)

    def remember(self, first: int, check: int) -> None:
        """Record the check value of a batch, some rows of which were created."""
        if not check:
            return
        self.checks[first] = check
        if len(self.checks) > limits.PRODUCER_SESSION_GAPS_MAX:
            del self.checks[min(self.checks)]

    def join(self, other: UsedSequences) -> None:
        """Add the counters of the same session from another store."""
        for start, end in other.ranges:
            self.use(start, end)
        for first, check in other.checks.items():
            self.remember(first, check)

    def pack(self) -> bytes:
        """The bytes that `unpack` reads."""
        edges = [edge for pair in self.ranges for edge in pair]
        edges += [number for first, check in self.checks.items() for number in (_CHECK | first, check)]
        return struct.pack(f">{len(edges)}Q", *edges)

    @classmethod
    def unpack(cls, packed: bytes) -> UsedSequences:
        """The used counters of a session."""
        edges = struct.unpack(f">{len(packed) // 8}Q", packed)
        pairs = list(zip(edges[::2], edges[1::2], strict=True))
        at = next((place for place, (start, _) in enumerate(pairs) if start & _CHECK), len(pairs))
        return cls(pairs[:at], [(start ^ _CHECK, check) for start, check in pairs[at:]])
