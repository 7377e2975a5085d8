"""Sets of row numbers as integers: bit i is row i. An operation on a thousand rows costs a hundred nanoseconds."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from dejaq.domain.batch import RowRange

# Every possible row.
ANY = -1


def full(count: int) -> int:
    """Rows 0 to count-1."""
    return (1 << count) - 1


def span(start: int, end: int) -> int:
    """Rows start to end-1."""
    return ((1 << (end - start)) - 1) << start


def of_ranges(ranges: Iterable[RowRange]) -> int:
    """The union of the ranges."""
    mask = 0
    for start, end in ranges:
        mask |= span(start, end)
    return mask


def lowest(mask: int) -> int:
    """The smallest row; the mask must not be empty."""
    return (mask & -mask).bit_length() - 1


def ranges(mask: int) -> Iterator[RowRange]:
    """The mask as ascending ranges."""
    base = 0
    while mask:
        skip = (mask & -mask).bit_length() - 1
        mask >>= skip
        base += skip
        length = (~mask & (mask + 1)).bit_length() - 1
        yield base, base + length
        mask >>= length
        base += length


def rows(mask: int) -> Iterator[int]:
    """Each row, ascending."""
    for start, end in ranges(mask):
        yield from range(start, end)


def pack(mask: int) -> bytes:
    """The mask as bytes, for a record."""
    return mask.to_bytes((mask.bit_length() + 7) // 8, "little")


def unpack(packed: bytes) -> int:
    """The mask that `pack` wrote."""
    return int.from_bytes(packed, "little")
