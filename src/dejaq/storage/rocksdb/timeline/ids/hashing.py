"""The hash of an id: two checks with different polynomials, so that ids that look alike do not collide.

Ids may have the same hash, so a caller that finds an entry compares the id itself. Both checks are linear: the hash of
an id is the exclusive or of one number per character, which depends on the character and on how far it is from the end.
So a column of ids of one length is hashed with table lookups for all characters together.
"""

from __future__ import annotations

from binascii import crc_hqx
from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import repeat
from zlib import crc32

import numpy as np
import numpy.typing as npt

from dejaq.domain.id_column import ID_TAG, IdColumn

Numbers = npt.NDArray[np.uint64]
Positions = npt.NDArray[np.int64]

# The first 32 of the 48 bits of a hash are its print, of which every entry has a copy in memory.
PRINT_SHIFT = 16
# Shorter columns are hashed id by id.
_COLUMN_MIN = 24
# A smaller part of a column is taken id by id.
_PART = 8
# The prefix of an encoded id.
_HEAD_BYTES = len(ID_TAG) + 1
_CHARACTERS = 256
# The tables of so many lengths are kept.
_LENGTHS_MAX = 16
# No valid id is longer.
_LENGTH_MAX = 64


def hashes_of(ids: Iterable[str]) -> list[int]:
    """The hash of each id, one after the other."""
    encoded = list(map(str.encode, ids))
    seconds = map(crc_hqx, encoded, repeat(0))
    return [first << PRINT_SHIFT | second for first, second in zip(map(crc32, encoded), seconds, strict=True)]


def hash_column(ids: Sequence[str]) -> Numbers:
    """The hash of each id as a column; it is kept with an `IdColumn`, because several steps of a change need it."""
    if not isinstance(ids, IdColumn) and len(ids) < _COLUMN_MIN:
        return np.array(hashes_of(ids), dtype=np.uint64)
    column = ids if isinstance(ids, IdColumn) else IdColumn(ids)
    if column.hashes is None:
        characters = characters_of(column) if len(column) >= _COLUMN_MIN else None
        if characters is None:
            column.hashes = np.array(hashes_of(column), dtype=np.uint64)
        else:
            column.hashes = _hash_cells(characters)
    hashes: Numbers = column.hashes
    return hashes


def note_distinct(ids: IdColumn) -> None:
    """Note whether all ids have different hashes, and are different therefore."""
    hashes = np.sort(hash_column(ids))
    ids.are_distinct = not bool((hashes[1:] == hashes[:-1]).any())


def bucket_of_hash(hashed: int, buckets: int) -> int:
    """The bucket of the natural id with a hash, of which the first part is the hash that spreads ids over buckets."""
    return (hashed >> PRINT_SHIFT) % buckets


def bucket_column(hashes: Numbers, buckets: int) -> Numbers:
    """The bucket of each natural id with a hash."""
    return (hashes >> np.uint64(PRINT_SHIFT)) % np.uint64(buckets)


def _hash_cells(characters: npt.NDArray[np.uint8]) -> Numbers:
    """The hash of each row of characters."""
    length = characters.shape[1]
    table, offsets = _tables(length)
    hashes: Numbers = np.bitwise_xor.reduce(table.take(characters.T + offsets, mode="clip"), axis=0)
    return hashes


def characters_of(ids: Sequence[str]) -> npt.NDArray[np.uint8] | None:
    """The ids as the rows of a matrix; None unless all have one length, which a valid id may have."""
    cells = _cells_of(ids if isinstance(ids, IdColumn) else IdColumn(ids))
    return None if cells is None else cells[:, _HEAD_BYTES:]


def _cells_of(ids: IdColumn) -> npt.NDArray[np.uint8] | None:
    """The encoded ids as the rows of a matrix; None unless all have one length, which a valid id may have."""
    length = ids.length
    if length is None or not 0 < length <= _LENGTH_MAX:
        return None
    return np.frombuffer(ids.wire, dtype=np.uint8).reshape(len(ids), _HEAD_BYTES + length)


def picked(ids: IdColumn, rows: Positions) -> IdColumn:
    """Some of the ids, in the order of `rows`, with their hashes."""
    cells = _cells_of(ids) if len(rows) * _PART > len(ids) else None
    if cells is None:
        column = IdColumn([ids[row] for row in rows.tolist()])
    else:
        column = IdColumn.of_cells(cells.take(rows, axis=0).tobytes(), len(rows))
    column.hashes = hash_column(ids)[rows]
    return column


def _hash(packed: bytes) -> int:
    return crc32(packed) << PRINT_SHIFT | crc_hqx(packed, 0)


@lru_cache(maxsize=_LENGTHS_MAX)
def _tables(length: int) -> tuple[Numbers, npt.NDArray[np.int64]]:
    """What each character at each position adds to the hash of an id of a length, and where each position begins."""
    table = np.concatenate([_table(length - 1 - place) for place in range(length)])
    # What a row of zeros has is in the part of the first position.
    table[:_CHARACTERS] ^= np.uint64(_hash(bytes(length)))
    return table, np.arange(0, len(table), _CHARACTERS, dtype=np.int64)[:, None]


@lru_cache(maxsize=_LENGTH_MAX)
def _table(behind: int) -> Numbers:
    """What each character adds to the hash of an id in which so many characters are behind it."""
    zeros = bytes(behind)
    nothing = _hash(b"\0" + zeros)
    return np.array([_hash(bytes((value,)) + zeros) ^ nothing for value in range(_CHARACTERS)], dtype=np.uint64)
