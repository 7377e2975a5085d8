"""Entries of ids as columns: the hash of the id, the number of the run that it arrived in, and the time of its message.

An entry is never changed. An id that leaves gets a second entry, which removes the first; when both meet in a merge,
neither is written again. So an id is listed under a run as often as it was added and not removed.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from dejaq.storage.rocksdb.timeline.ids.hashing import PRINT_SHIFT, Numbers

Prints = npt.NDArray[np.uint32]

_WORD = np.dtype("<u8")
# An entry has three words.
ENTRY_BYTES = 3 * 8


def prints_of(hashes: Numbers) -> Prints:
    """The prints of hashes."""
    return (hashes >> np.uint64(PRINT_SHIFT)).astype(np.uint32)


def print_of(hashed: int) -> int:
    """The print of one hash."""
    return hashed >> PRINT_SHIFT


class Entries(NamedTuple):
    """Entries in the order of their hashes. A stamp is twice the time, and one more where the entry removes another."""

    hashes: Numbers
    numbers: Numbers
    stamps: Numbers

    @property
    def prints(self) -> Prints:
        """The prints of the hashes."""
        return prints_of(self.hashes)

    def cut(self, start: int, end: int) -> Entries:
        """Entries start to end-1."""
        return Entries(self.hashes[start:end], self.numbers[start:end], self.stamps[start:end])

    def pack(self) -> bytes:
        """The columns, one after the other."""
        return b"".join(column.astype(_WORD, copy=False).tobytes() for column in self)


def entries_of(hashes: Sequence[int] | Numbers, numbers: Sequence[int], stamps: Sequence[int]) -> Entries:
    """Entries from columns in any order; the result is not sorted yet."""
    return Entries(*(np.array(column, dtype=np.uint64) for column in (hashes, numbers, stamps)))


def unpack(packed: bytes) -> Entries:
    """The columns that `pack` wrote."""
    words = np.frombuffer(packed, dtype=_WORD)
    rows = len(words) // 3
    return Entries(words[:rows], words[rows : 2 * rows], words[2 * rows :])


def entry_at(packed: bytes, row: int) -> tuple[int, int, int]:
    """Hash, number and stamp of one entry of what `pack` wrote."""
    hashed, number, stamp = _words_of(len(packed) // ENTRY_BYTES).unpack_from(packed, 8 * row)
    return hashed, number, stamp


@lru_cache
def _words_of(count: int) -> struct.Struct:
    """The three words of an entry in columns of so many."""
    between = 8 * (count - 1)
    return struct.Struct(f"<Q{between}xQ{between}xQ")


def joined(pieces: Sequence[Entries]) -> Entries:
    """All entries in order, without the pairs of an entry and the one that removes it."""
    columns = [np.concatenate(column) for column in zip(*pieces, strict=True)]
    order = np.argsort(columns[0], kind="stable")
    entries = Entries(*(column[order] for column in columns))
    same = entries.hashes[1:] == entries.hashes[:-1]
    return _without_pairs(entries, same) if same.any() else entries


def _without_pairs(entries: Entries, same: npt.NDArray[np.bool_]) -> Entries:
    """Only entries with a hash that occurs twice are sorted by number and stamp, and compared."""
    among = np.zeros(len(entries.hashes), dtype=np.bool_)
    among[1:] |= same
    among[:-1] |= same
    rows = np.flatnonzero(among)
    # A stable sort by hash after that one by number and stamp: each entry is next to the one that removes it.
    rows = rows[np.lexsort((entries.stamps[rows], entries.numbers[rows], entries.hashes[rows]))]
    hashes, numbers, stamps = (column[rows] for column in entries)
    removed = (
        (hashes[1:] == hashes[:-1])
        & (numbers[1:] == numbers[:-1])
        & (stamps[1:] == stamps[:-1] + np.uint64(1))
        & (stamps[1:] & np.uint64(1)).astype(np.bool_)
    )
    keep = np.ones(len(entries.hashes), dtype=np.bool_)
    keep[rows[1:][removed]] = False
    keep[rows[:-1][removed]] = False
    return Entries(*(column[keep] for column in entries))
