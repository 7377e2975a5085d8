"""Changes to a key-value store as one value: recorded in order, encoded for the log, decoded for replay."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from itertools import accumulate, pairwise
from struct import Struct

PUT, DELETE, DELETE_RANGE = 0, 1, 2
_COUNT = Struct("<I")
# Four bytes on every platform that CPython supports.
_LENGTHS = "I"


class Operations:
    """Puts, deletes and range deletes in the order in which they are to be done.

    `parts` has two entries for each operation: key and value, key and nothing, or the start and end of a range.
    """

    __slots__ = ("kinds", "parts")

    def __init__(self) -> None:
        self.kinds = bytearray()
        self.parts: list[bytes] = []

    def __len__(self) -> int:
        return len(self.kinds)

    def __iter__(self) -> Iterator[tuple[int, bytes, bytes]]:
        return zip(self.kinds, self.parts[::2], self.parts[1::2], strict=True)

    def put(self, key: bytes, value: bytes) -> None:
        """Set a key."""
        self.kinds.append(PUT)
        self.parts += (key, value)

    def delete(self, key: bytes) -> None:
        """Remove a key."""
        self.kinds.append(DELETE)
        self.parts += (key, b"")

    def delete_range(self, start: bytes, end: bytes) -> None:
        """Remove every key with start <= key < end."""
        self.kinds.append(DELETE_RANGE)
        self.parts += (start, end)

    def encode(self) -> bytes:
        """One block of bytes: the count, the kinds, the lengths of all parts, the parts."""
        lengths = array(_LENGTHS, map(len, self.parts))
        return b"".join((_COUNT.pack(len(self.kinds)), self.kinds, lengths.tobytes(), *self.parts))

    @classmethod
    def decode(cls, data: bytes) -> Operations:
        """Read what `encode` wrote; raises ValueError when it is not that."""
        found = cls()
        if not data:
            return found
        (count,) = _COUNT.unpack_from(data)
        begin = _COUNT.size + count
        found.kinds = bytearray(data[_COUNT.size : begin])
        lengths = array(_LENGTHS)
        end = begin + 2 * count * lengths.itemsize
        lengths.frombytes(data[begin:end])
        stops = list(accumulate(lengths, initial=end))
        if len(found.kinds) != count or len(lengths) != 2 * count or stops[-1] != len(data):
            raise ValueError("the operations of a record are not whole")
        found.parts = [data[start:stop] for start, stop in pairwise(stops)]
        return found
