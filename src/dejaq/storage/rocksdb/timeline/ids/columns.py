"""Entries of ids as columns: the hash of the id, the number of the run that it arrived in, and the time of its message.

An entry is never changed. An id that leaves gets a second entry, which removes the first; when both meet in a merge,
neither is written again. So an id is listed under a run as often as it was added and not removed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from dejaq.storage.rocksdb.timeline.ids.hashing import PRINT_SHIFT, Numbers

Prints = npt.NDArray[np.uint32]
Rows = npt.NDArray[np.intp]

_WORD = np.dtype("<u8")
# What an entry takes on disk.
ENTRY_BYTES = 24
# Above a hash of 48 bits, a word has room for the positions of so many entries.
_POSITION_BITS = 16
_POSITIONS = np.arange(1 << _POSITION_BITS, dtype=np.uint64)


def prints_of(hashes: Numbers) -> Prints:
    """The prints of hashes."""
    return (hashes >> np.uint64(PRINT_SHIFT)).astype(np.uint32)


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


NO_ENTRIES = Entries(*(np.zeros(0, dtype=np.uint64) for _ in Entries._fields))


def pack_pieces(entries: Entries, size: int) -> bytes:
    """What `pack` writes of each so many entries, one after the other; the last piece has the rest."""
    count = len(entries.hashes)
    whole = count // size
    words = np.empty((whole, len(entries), size), dtype=_WORD)
    for at, column in enumerate(entries):
        words[:, at] = column[: whole * size].reshape(whole, size)
    return words.tobytes() + entries.cut(whole * size, count).pack()


def unpack_pieces(words: Numbers, size: int) -> Entries:
    """The columns of pieces of so many entries that follow each other, of which the last may have fewer."""
    whole = len(words) // (3 * size)
    columns = words[: 3 * size * whole].reshape(whole, 3, size)
    entries = Entries(*(columns[:, at].reshape(-1) for at in range(3)))
    rest = words[3 * size * whole :].reshape(3, -1)
    return Entries(*map(np.concatenate, zip(entries, rest, strict=True))) if rest.size else entries


def unpack(packed: bytes) -> Entries:
    """The columns that `pack` wrote."""
    words = np.frombuffer(packed, dtype=_WORD)
    rows = len(words) // 3
    return Entries(words[:rows], words[rows : 2 * rows], words[2 * rows :])


def entries_at(words: Numbers, at: Rows, widths: Rows) -> Entries:
    """The entries whose hashes are at these places of pieces, which have so many entries."""
    return Entries(words[at], words[at + widths], words[at + 2 * widths])


def positions(ordered: npt.NDArray[Any], wanted: npt.NDArray[Any]) -> tuple[Rows, Rows]:
    """Where values are in a column in order: pairs of a position in `wanted` and one in `ordered`."""
    low = ordered.searchsorted(wanted)
    rows = np.flatnonzero(ordered.take(low, mode="clip") == wanted)
    low = low[rows]
    if not len(rows) or not (ordered.take(low + 1, mode="clip") == wanted[rows]).any():
        return rows, low
    counts = ordered.searchsorted(wanted[rows], side="right") - low
    firsts = np.cumsum(counts) - counts
    return rows.repeat(counts), (low - firsts).repeat(counts) + np.arange(int(counts.sum()))


def order_of(hashes: Numbers) -> npt.NDArray[np.int64]:
    """The positions of hashes in their order; those of equal hashes keep theirs.

    A hash and its position are sorted as one number where both fit in: an eighth of the time of `argsort`.
    """
    if len(hashes) > len(_POSITIONS):
        return np.argsort(hashes, kind="stable")
    placed = np.sort(hashes << np.uint64(_POSITION_BITS) | _POSITIONS[: len(hashes)])
    return (placed & np.uint64(len(_POSITIONS) - 1)).astype(np.int64)


def joined(pieces: Sequence[Entries]) -> Entries:
    """All entries in order, without the pairs of an entry and the one that removes it."""
    columns = [np.concatenate(column) for column in zip(*pieces, strict=True)]
    order = order_of(columns[0])
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
