"""Counters that name batches and transactions within a producer session."""

from __future__ import annotations

from dejaq.errors import Code, DejaqError


class SequenceCounter:
    """The next counter of a sequence, and the counters in use, whose batches may be sent again."""

    __slots__ = ("_open", "next")

    def __init__(self) -> None:
        self.next = 0
        # In ascending order.
        self._open: dict[int, None] = {}

    def take(self, count: int) -> int:
        """Reserve `count` counters and return the first; nobody else gets them. Release them with `done`."""
        first = self.next
        self.next += count
        self._open[first] = None
        return first

    def done(self, first: int) -> None:
        """Release the counters that were reserved from this one on: their batch is never sent again."""
        self._open.pop(first, None)

    @property
    def acknowledged(self) -> int:
        """The counter below which nothing is sent again."""
        return next(iter(self._open), self.next)


def wants_new_session(refused: DejaqError) -> bool:
    """Whether something was refused because of its name, and may be sent under another name."""
    if refused.code is Code.BATCH_NAME_TAKEN:
        # A copy of this process has used the name for something else, so none of our tries was done under it.
        return True
    return refused.code is Code.LIMIT_EXCEEDED and not refused.unsure
