"""Sets of row numbers as integers: bit i is row i. An operation on a thousand rows costs a hundred nanoseconds."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from dejaq.domain.batch import RowRange

Value = TypeVar("Value")

# Every possible row.
ANY = -1
# So few rows are handled one by one.
_FEW = 16


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


def rows(mask: int) -> Iterable[int]:
    """Each row, ascending."""
    if not mask:
        return ()
    first, end = lowest(mask), mask.bit_length()
    if mask.bit_count() == end - first:
        return range(first, end)
    if end - first <= _FEW:
        return [row for row in range(first, end) if mask >> row & 1]
    bits = np.unpackbits(np.frombuffer(pack(mask), dtype=np.uint8), bitorder="little")
    listed: list[int] = np.flatnonzero(bits).tolist()
    return listed


def flags(mask: int, count: int) -> npt.NDArray[np.bool_]:
    """Whether each of the first `count` rows is in the mask."""
    packed = np.frombuffer(mask.to_bytes((count + 7) // 8, "little"), dtype=np.uint8)
    return np.unpackbits(packed, count=count, bitorder="little").astype(np.bool_)


def of_rows(chosen: Iterable[int]) -> int:
    """These rows."""
    listed = list(chosen)
    if len(listed) <= _FEW:
        mask = 0
        for row in listed:
            mask |= 1 << row
        return mask
    bits = np.zeros(max(listed) + 1, dtype=np.uint8)
    bits[listed] = 1
    return unpack(np.packbits(bits, bitorder="little").tobytes())


def pick(column: Sequence[Value], mask: int) -> list[Value]:
    """The values of the rows, ascending."""
    found = rows(mask)
    return list(column[found.start : found.stop]) if isinstance(found, range) else [column[row] for row in found]


def is_span(mask: int) -> bool:
    """Whether the rows follow each other; the mask must not be empty."""
    shifted = mask >> lowest(mask)
    return not shifted & (shifted + 1)


def pack(mask: int) -> bytes:
    """The mask as bytes, for a record."""
    return mask.to_bytes((mask.bit_length() + 7) // 8, "little")


def unpack(packed: bytes) -> int:
    """The mask that `pack` wrote."""
    return int.from_bytes(packed, "little")
