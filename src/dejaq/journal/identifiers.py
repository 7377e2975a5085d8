"""The id column of many events at once: generated ids are made by table look-ups, never one by one."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt
import pyarrow as pa

PREFIX_CHARS = 24
_ID_CHARS = 32
# The four hex digits of every 16-bit number, as one 32-bit word each.
_HEX_WORDS = np.frombuffer("".join(f"{number:04x}" for number in range(65_536)).encode(), dtype=np.uint32)


class Identifiers:
    """Ids in the order they are added: spans of generated counters, and listed ids."""

    def __init__(self) -> None:
        self._prefixes: list[bytes] = []
        self._firsts: list[int] = []
        self._counts: list[int] = []
        self._listed: list[str] = []
        # Stretches of one sort: (listed or not, how many).
        self._stretches: list[tuple[bool, int]] = []

    def add_generated(self, prefix: str, first: int, count: int) -> None:
        """Append the ids of `count` consecutive counters."""
        packed = prefix.encode("ascii")
        if len(packed) != PREFIX_CHARS or first + count > 2**32:
            raise ValueError(f"{prefix!r} and counter {first} make no generated id")
        self._prefixes.append(packed)
        self._firsts.append(first)
        self._counts.append(count)
        self._stretch(False, count)

    def add_listed(self, ids: Iterable[str]) -> None:
        """Append ids as they are."""
        before = len(self._listed)
        self._listed.extend(ids)
        self._stretch(True, len(self._listed) - before)

    def array(self) -> pa.StringArray:
        """All ids as one column."""
        generated, listed = self._generated(), pa.array(self._listed, pa.string())
        if not self._listed:
            return generated
        if not self._counts:
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
        counts = np.array(self._counts, dtype=np.int64)
        total = int(counts.sum())
        prefixes = np.frombuffer(b"".join(self._prefixes), dtype=np.uint32).reshape(-1, PREFIX_CHARS // 4)
        words = np.empty((total, _ID_CHARS // 4), dtype=np.uint32)
        words[:, : PREFIX_CHARS // 4] = np.repeat(prefixes, counts, axis=0)
        counters = counting(counts, np.array(self._firsts, dtype=np.int64))
        words[:, -2] = _HEX_WORDS[counters >> 16]
        words[:, -1] = _HEX_WORDS[counters & 0xFFFF]
        offsets = np.arange(0, (total + 1) * _ID_CHARS, _ID_CHARS, dtype=np.int32)
        return pa.StringArray.from_buffers(total, pa.py_buffer(offsets), pa.py_buffer(words))


def counting(counts: npt.NDArray[np.int64], firsts: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """For each (count, first): first, first + 1 and so on, laid end to end."""
    starts = np.cumsum(counts) - counts
    numbers: npt.NDArray[np.int64] = np.arange(int(counts.sum()), dtype=np.int64)
    numbers += np.repeat(firsts - starts, counts)
    return numbers
