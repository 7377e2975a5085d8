"""How consumers lease from the buckets of a topic; this decides how new messages are stored."""

from __future__ import annotations

from collections.abc import Sequence

# A consumer leases about once per second or more often. When other consumers help it, the waiting messages leave at a
# tenth of the speed.
_LATELY_MS = 2_000
_WAITING_MAX = 50_000
# A consumer that has at least one bucket in so many finds its rows in runs over several buckets by itself.
_CONSUMERS_FEW = 8


class Demand:
    """Remembers the last leases: by one consumer for all buckets, or by several consumers for some buckets each."""

    def __init__(self, buckets: int) -> None:
        self._buckets = buckets
        self._whole_at = 0
        # Whether only some buckets were requested since then, and whether they were few.
        self.shared = self.shared_by_many = False

    def note(self, buckets: Sequence[int], now: int) -> bool:
        """Note whether a lease call is for all buckets; returns the answer."""
        whole = len(set(buckets)) == self._buckets
        self.shared = not whole
        self.shared_by_many = len(buckets) * _CONSUMERS_FEW < self._buckets
        self._whole_at = now if whole else 0
        return whole

    def met(self, waiting: int, now: int) -> bool:
        """Whether one consumer leases from all buckets and, with so many waiting messages, does not fall far behind."""
        return now - self._whole_at <= _LATELY_MS and waiting <= _WAITING_MAX
