"""A set of row numbers as the bits of one integer.

A thousand consecutive rows are added, tested or removed in half a microsecond; with a set this was a quarter of the
time that a consumer spends on a batch.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator


class RowSet:
    """The rows of a lease that have something in common."""

    __slots__ = ("_mask",)

    def __init__(self, rows: Iterable[int] = ()) -> None:
        self._mask = _mask_of(rows)

    def __bool__(self) -> bool:
        return self._mask != 0

    def __len__(self) -> int:
        return self._mask.bit_count()

    def __contains__(self, row: object) -> bool:
        return isinstance(row, int) and self._mask >> row & 1 == 1

    def __iter__(self) -> Iterator[int]:
        """Each row, ascending."""
        mask = self._mask
        return (row for row in range(mask.bit_length()) if mask >> row & 1)

    def update(self, rows: Iterable[int]) -> None:
        """Add rows."""
        self._mask |= _mask_of(rows)

    def difference_update(self, rows: Iterable[int]) -> None:
        """Remove those of the rows that the set contains."""
        self._mask &= ~_mask_of(rows)

    def discard(self, row: int) -> None:
        """Remove one row if the set contains it."""
        self._mask &= ~(1 << row)

    def issuperset(self, rows: Iterable[int]) -> bool:
        """Whether the set contains all of these rows."""
        return not _mask_of(rows) & ~self._mask


def _mask_of(rows: Iterable[int]) -> int:
    if isinstance(rows, range) and rows.step == 1:
        return ((1 << len(rows)) - 1) << rows.start if rows else 0
    mask = 0
    for row in rows:
        mask |= 1 << row
    return mask
