"""Bodies in the form of the wire: one block that is copied from batch to run to push without being decoded.

`CreateBatch`, `Run` and `Push` have their bodies under one field number, so the bytes of that column are the same in
all three: it is encoded once and then copied as a whole.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import accumulate, chain
from struct import Struct
from typing import overload

# Of the field `bodies` of those messages: its number is 6, its type bytes.
_BODY_TAG = 6 << 3 | 2
# So many bodies of one size are taken out with one call.
_STEP = 64


class BodyBlock(Sequence[bytes]):
    """Bodies as an encoded column. A slice of it is a list."""

    __slots__ = ("_ends", "data", "sizes")

    def __init__(self, bodies: Sequence[bytes]) -> None:
        self.sizes = list(map(len, bodies))
        first = self.sizes[0] if self.sizes else 0
        if self.sizes.count(first) == len(self.sizes):
            # The common case: all bodies have one size, and therefore the same prefix.
            head = _head(first)
            width = len(head) + first
            self.data = head.join((b"", *bodies))
            self._ends: Sequence[int] = range(width, width * len(bodies) + 1, width)
        else:
            heads = list(map(_head, self.sizes))
            self.data = b"".join(chain.from_iterable(zip(heads, bodies, strict=True)))
            widths = map(len, heads)
            self._ends = list(accumulate(size + width for size, width in zip(self.sizes, widths, strict=True)))

    @classmethod
    def of_equal(cls, data: bytes, count: int, size: int) -> BodyBlock:
        """Bodies of one size that are encoded already."""
        block = cls(())
        width = len(_head(size)) + size
        block.data, block.sizes, block._ends = data, [size] * count, range(width, width * count + 1, width)
        return block

    def __len__(self) -> int:
        return len(self.sizes)

    def __iter__(self) -> Iterator[bytes]:
        return iter(self[:])

    @property
    def size(self) -> int | None:
        """The size of each body; None where they differ."""
        return self.sizes[0] if self.sizes and isinstance(self._ends, range) else None

    @overload
    def __getitem__(self, row: int) -> bytes: ...

    @overload
    def __getitem__(self, row: slice) -> list[bytes]: ...

    def __getitem__(self, row: int | slice) -> bytes | list[bytes]:
        data = self.data
        if isinstance(row, slice):
            if self.size is not None and row.step is None:
                return self._equal(*row.indices(len(self.sizes))[:2])
            return [data[end - size : end] for end, size in zip(self._ends[row], self.sizes[row], strict=True)]
        end = self._ends[row]
        return data[end - self.sizes[row] : end]

    def _equal(self, start: int, end: int) -> list[bytes]:
        """Rows start to end-1 of bodies of one size: a tenth of the time of a slice for each."""
        size = self.sizes[0]
        width = self._ends[0]
        steps = max(0, end - start) // _STEP
        middle = start + steps * _STEP
        whole = memoryview(self.data)[width * start : width * middle]
        bodies = list(chain.from_iterable(_bodies_of(width - size, size).iter_unpack(whole))) if steps else []
        bodies += [self.data[at - size : at] for at in self._ends[middle:end]]
        return bodies

    def cut(self, start: int, end: int) -> memoryview:
        """Rows start to end-1 in encoded form, not copied."""
        return memoryview(self.data)[self._ends[start - 1] if start else 0 : self._ends[end - 1]]


class BodySlices(Sequence[bytes]):
    """Slices of blocks in sequence. A single body is created when it is needed."""

    __slots__ = ("_pieces", "_rows")

    def __init__(self, pieces: Sequence[tuple[BodyBlock, int, int]]) -> None:
        """Each piece is rows start to end-1 of a block."""
        self._pieces = pieces
        self._rows: list[bytes] | None = None

    def __len__(self) -> int:
        return sum(end - start for _, start, end in self._pieces)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and self._all() == list(other)

    __hash__ = None  # type: ignore[assignment]

    @overload
    def __getitem__(self, row: int) -> bytes: ...

    @overload
    def __getitem__(self, row: slice) -> list[bytes]: ...

    def __getitem__(self, row: int | slice) -> bytes | list[bytes]:
        return self._all()[row]

    def cuts(self) -> list[memoryview]:
        """All rows in encoded form, not copied."""
        return [block.cut(start, end) for block, start, end in self._pieces]

    def _all(self) -> list[bytes]:
        if self._rows is None:
            self._rows = [body for block, start, end in self._pieces for body in block[start:end]]
        return self._rows


def body_bytes(bodies: Sequence[bytes]) -> int:
    """The total size of the bodies; for slices, including the prefix of each body."""
    if isinstance(bodies, BodyBlock):
        return sum(bodies.sizes)
    return sum(map(len, bodies.cuts() if isinstance(bodies, BodySlices) else bodies))


@lru_cache(maxsize=64)
def _bodies_of(head: int, size: int) -> Struct:
    """Some bodies of one size, each behind a prefix."""
    return Struct(f"{head}x{size}s" * _STEP)


@lru_cache(maxsize=1 << 14)
def _head(size: int) -> bytes:
    """The prefix of a body of this size."""
    return bytes((_BODY_TAG,)) + varint(size)


def varint(number: int) -> bytes:
    """A number of at least 0 in encoded form."""
    encoded = bytearray()
    while number > 0x7F:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)
