"""The id column of many events at once: generated ids are made by table look-ups, never one by one."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from dejaq.domain.id_column import SEPARATOR

PREFIX_CHARS = 24
_ID_CHARS = 32
# The four hex digits of every 16-bit number, as one 32-bit word each.
_HEX_WORDS = np.frombuffer("".join(f"{number:04x}" for number in range(65_536)).encode(), dtype=np.uint32)


class Identifiers:
    """Ids in the order they are added: spans of generated counters, and listed ids.

    The memory for `rows` ids, and for more if necessary, is reused: new memory would cost more than making the ids.
    """

    def __init__(self, rows: int) -> None:
        # One generated id is a row of 32 characters: a prefix, and a counter that is spelled when all are there.
        self._chars = np.empty((rows, _ID_CHARS), dtype=np.uint8)
        self._counters = np.empty(rows, dtype=np.int64)
        self._steps = np.arange(rows, dtype=np.int64)
        self._offsets = np.arange(0, (rows + 1) * _ID_CHARS, _ID_CHARS, dtype=np.int32)
        self.clear()

    def clear(self) -> None:
        """Start again."""
        self._generated_count = 0
        self._listed: list[str] = []
        self._listed_count = 0
        # Stretches of one sort: (listed or not, how many).
        self._stretches: list[tuple[bool, int]] = []

    def add_generated(self, prefix: str, first: int, count: int) -> None:
        """Append the ids of `count` consecutive counters."""
        packed = prefix.encode("ascii")
        if len(packed) != PREFIX_CHARS or first + count > 2**32:
            raise ValueError(f"{prefix!r} and counter {first} make no generated id")
        start = self._generated_count
        end = self._generated_count = start + count
        if end > len(self._counters):
            self._grow(end)
        self._chars[start:end].view("V32")[:] = np.void(packed + bytes(8))
        np.add(self._steps[:count], first, out=self._counters[start:end])
        self._stretch(False, count)

    def _grow(self, rows: int) -> None:
        larger = Identifiers(2 * rows)
        larger._chars[: len(self._chars)] = self._chars
        larger._counters[: len(self._counters)] = self._counters
        self._chars, self._counters = larger._chars, larger._counters
        self._steps, self._offsets = larger._steps, larger._offsets

    def add_listed(self, text: str, count: int) -> None:
        """Append ids that are one text, with one id per line."""
        self._listed.append(text)
        self._listed_count += count
        self._stretch(True, count)

    def array(self) -> pa.StringArray:
        """All ids as one column, which holds until the next is added."""
        generated = self._generated()
        if not self._listed:
            return generated
        listed = lines_of(SEPARATOR.join(self._listed), self._listed_count)
        if not self._generated_count:
            return listed
        pieces: list[pa.Array] = []
        positions = {False: 0, True: 0}
        for is_listed, count in self._stretches:
            source = listed if is_listed else generated
            pieces.append(source.slice(positions[is_listed], count))
            positions[is_listed] += count
        return pa.concat_arrays(pieces)

    def _stretch(self, is_listed: bool, count: int) -> None:
        if self._stretches and self._stretches[-1][0] is is_listed:
            count += self._stretches.pop()[1]
        self._stretches.append((is_listed, count))

    def _generated(self) -> pa.StringArray:
        total = self._generated_count
        words, counters = self._chars.view(np.uint32), self._counters[:total]
        words[:total, -2] = _HEX_WORDS[counters >> 16]
        words[:total, -1] = _HEX_WORDS[counters & 0xFFFF]
        return pa.StringArray.from_buffers(
            total, pa.py_buffer(self._offsets[: total + 1]), pa.py_buffer(self._chars[:total])
        )


def lines_of(text: str, count: int) -> pa.StringArray:
    """A column of the lines of a text, found and closed up by vectors."""
    packed = np.frombuffer(text.encode(), dtype=np.uint8)
    breaks = packed == ord(SEPARATOR)
    offsets = np.empty(count + 1, dtype=np.int32)
    offsets[0], offsets[-1] = 0, len(packed) - count + 1
    offsets[1:-1] = np.flatnonzero(breaks) - np.arange(count - 1)
    return pa.StringArray.from_buffers(count, pa.py_buffer(offsets), pa.py_buffer(packed[~breaks]))


def strings_of(texts: Sequence[str]) -> pa.StringArray:
    """A column of texts. Built by hand, since `pyarrow.array` brings in the whole of pandas to look at a list."""
    packed = [text.encode() for text in texts]
    offsets = np.zeros(len(packed) + 1, dtype=np.int32)
    np.cumsum(np.fromiter(map(len, packed), dtype=np.int32, count=len(packed)), out=offsets[1:])
    return pa.StringArray.from_buffers(len(packed), pa.py_buffer(offsets), pa.py_buffer(b"".join(packed)))
