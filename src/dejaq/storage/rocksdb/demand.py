"""How the buckets of a topic are asked for, which says how new messages had better lie."""

from __future__ import annotations

from collections.abc import Sequence

# A consumer asks about once a second or more. When others come to help it, what waits leaves at a tenth of the speed.
_LATELY_MS = 2_000
_WAITING_MAX = 50_000


class Demand:
    """Remembers who asked last: one consumer for all buckets, or one of several for some."""

    def __init__(self, buckets: int) -> None:
        self._buckets = buckets
        self._whole_at = 0
        # Whether only some were asked for since then.
        self.shared = False

    def note(self, buckets: Sequence[int], now: int) -> bool:
        """Take note of a lease call; whether it is for all buckets."""
        whole = len(set(buckets)) == self._buckets
        self.shared = not whole
        self._whole_at = now if whole else 0
        return whole

    def met(self, waiting: int, now: int) -> bool:
        """Whether one consumer leases from all buckets and, with so many messages waiting, is not far behind."""
        return now - self._whole_at <= _LATELY_MS and waiting <= _WAITING_MAX
