"""How long segments are kept."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RetentionPolicy:
    """The age in ms and the size of all segments beyond which the oldest are dropped; 0: no limit."""

    age_ms_max: int = 0
    bytes_max: int = 0

    def surplus(self, sizes: Sequence[int], created_ms: Callable[[int], int], now_ms: int) -> int:
        """How many of the oldest segments are to go; the newest always stays.

        `created_ms` gives the time of a segment by its place, and is asked only while an age may matter.
        """
        total = sum(sizes)
        for place, size in enumerate(sizes[:-1]):
            too_much = self.bytes_max and total > self.bytes_max
            too_old = self.age_ms_max and created_ms(place) + self.age_ms_max < now_ms
            if not too_much and not too_old:
                return place
            total -= size
        return max(0, len(sizes) - 1)
