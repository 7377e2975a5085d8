"""How long segments are kept."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RetentionPolicy:
    """The age in ms and the size of all segments beyond which the oldest are dropped; 0: no limit."""

    age_ms_max: int = 0
    bytes_max: int = 0

    def surplus(self, older: Iterable[int], total: int, created_ms: Callable[[int], int], now_ms: int) -> int:
        """How many of the oldest segments are to go; `older` are the sizes of all but the newest, which always stays.

        `total` is the size of all of them. `created_ms` gives the time of a segment by its place, and is asked only
        while an age may matter. No more segments are looked at than are to go, and one.
        """
        gone = 0
        for size in older:
            too_much = self.bytes_max and total > self.bytes_max
            too_old = self.age_ms_max and created_ms(gone) + self.age_ms_max < now_ms
            if not too_much and not too_old:
                break
            total -= size
            gone += 1
        return gone
