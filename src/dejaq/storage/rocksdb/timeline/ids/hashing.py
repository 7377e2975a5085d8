"""The hash of an id: two checks with different polynomials, so that ids that look alike do not collide.

Ids may have the same hash, so a caller that finds an entry compares the id itself. Both checks are linear: the hash of
an id is the exclusive or of one number per character, which depends on the character and on how far it is from the end.
So a column of ids of one length is hashed with one table lookup per character position, for all ids together.
"""

from __future__ import annotations

from binascii import crc_hqx
from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import repeat
from zlib import crc32

import numpy as np
import numpy.typing as npt

from dejaq.domain.id_column import SEPARATOR, IdColumn, line_width

Numbers = npt.NDArray[np.uint64]

# The first 32 of the 48 bits of a hash are its print, of which every entry has a copy in memory.
PRINT_SHIFT = 16
# Shorter columns are hashed id by id.
_COLUMN_MIN = 24
# A smaller part of a column is taken id by id.
_PART = 8
# No valid id takes more with its separator.
_WIDTH_MAX = 65


def hashes_of(ids: Iterable[str]) -> list[int]:
    """The hash of each id, one after the other."""
    encoded = list(map(str.encode, ids))
    seconds = map(crc_hqx, encoded, repeat(0))
    return [first << PRINT_SHIFT | second for first, second in zip(map(crc32, encoded), seconds, strict=True)]


def hash_column(ids: Sequence[str]) -> Numbers:
    """The hash of each id as a column; it is kept with an `IdColumn`, because several steps of a change need it."""
    if not isinstance(ids, IdColumn):
        return _hash_text(SEPARATOR.join(ids), ids)
    if ids.hashes is None:
        ids.hashes = _hash_text(ids.text, ids)
    hashes: Numbers = ids.hashes
    return hashes


def bucket_of_hash(hashed: int, buckets: int) -> int:
    """The bucket of the natural id with a hash, of which the first part is the hash that spreads ids over buckets."""
    return (hashed >> PRINT_SHIFT) % buckets


def bucket_column(hashes: Numbers, buckets: int) -> Numbers:
    """The bucket of each natural id with a hash."""
    return (hashes >> np.uint64(PRINT_SHIFT)) % np.uint64(buckets)


def _hash_text(text: str, ids: Sequence[str]) -> Numbers:
    """The hashes of ids, which `text` has one per line."""
    lines = lines_of(text, len(ids)) if len(ids) >= _COLUMN_MIN else None
    if lines is None or lines.shape[1] > _WIDTH_MAX:
        return np.array(hashes_of(ids), dtype=np.uint64)
    length = lines.shape[1] - 1
    columns = np.ascontiguousarray(lines.T)
    hashes = np.full(len(ids), _hash_of_zeros(length), dtype=np.uint64)
    for place in range(length):
        hashes ^= _table(length - 1 - place).take(columns[place])
    return hashes


def lines_of(text: str, count: int) -> npt.NDArray[np.uint8] | None:
    """The ids that `text` has one per line, each with its line break, as the rows of a matrix; None unless all have
    one length.
    """
    packed = text.encode()
    width = line_width(packed, count)
    if width is None:
        return None
    return np.frombuffer(packed + b"\n", dtype=np.uint8).reshape(count, width)


def picked(ids: IdColumn, rows: Sequence[int]) -> IdColumn:
    """Some of the ids, in the order of `rows`, with their hashes."""
    lines = lines_of(ids.text, len(ids)) if len(rows) * _PART > len(ids) else None
    if lines is None:
        column = IdColumn([ids[row] for row in rows])
    else:
        column = IdColumn.of_text(lines[list(rows)].tobytes()[:-1].decode(), len(rows))
    column.hashes = hash_column(ids)[list(rows)]
    return column


def _hash(packed: bytes) -> int:
    return crc32(packed) << PRINT_SHIFT | crc_hqx(packed, 0)


@lru_cache(maxsize=_WIDTH_MAX)
def _hash_of_zeros(length: int) -> int:
    return _hash(bytes(length))


@lru_cache(maxsize=_WIDTH_MAX)
def _table(behind: int) -> Numbers:
    """What each character adds to the hash of an id in which so many characters are behind it."""
    zeros = bytes(behind)
    nothing = _hash(b"\0" + zeros)
    return np.array([_hash(bytes((value,)) + zeros) ^ nothing for value in range(256)], dtype=np.uint64)
