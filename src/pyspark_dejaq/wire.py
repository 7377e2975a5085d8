"""Reads runs from their bytes with vectors, so that no object is created for a row.

The columns of a run are in the order of their field numbers (see `Run` in records.proto), except that a merged run has
its ids behind its times. Ids contain neither the byte that begins an id nor the byte that begins the times, so a search
finds both, and the lengths between them show whether the result is right.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

_OWNER, _SESSION, _FIRST, _ID, _TS, _BODY = 0x0A, 0x12, 0x18, 0x22, 0x2A, 0x32


class Cut(NamedTuple):
    """A run: the fields that its rows share, and the bytes of its columns."""

    owner: str
    session: bytes
    first: int
    ids: bytes
    ts: bytes
    rest: bytes
    rows: int


def cut(run: bytes) -> Cut | None:
    """Split a run into its fields; None when it has an unexpected form."""
    owner, session, first, ids, place = "", b"", 0, b"", 0
    if run[place] == _OWNER:
        size, place = _varint(run, place + 1)
        owner, place = run[place : place + size].decode(), place + size
    if run[place] == _SESSION:
        size, place = _varint(run, place + 1)
        session, place = run[place : place + size], place + size
    if run[place] == _FIRST:
        first, place = _varint(run, place + 1)
    if run[place] == _ID:
        end = run.find(_TS, place)
        # The byte may be the length of an id: then it follows the byte that begins an id.
        while end > 0 and run[end - 1] == _ID:
            end = run.find(_TS, end + 1)
        if end < 0:
            return None
        ids, place = run[place:end], end
    if run[place] != _TS:
        return None
    size, place = _varint(run, place + 1)
    ts, place = run[place : place + size], place + size
    if not ids and not session:
        end = _ids_end(run, place, size // 8)
        ids, place = run[place:end], end
    return Cut(owner, session, first, ids, ts, run[place:], size // 8) if len(ts) == size and size % 8 == 0 else None


def _ids_end(run: bytes, place: int, rows: int) -> int:
    """The end of so many ids that begin at a place; the place itself where there are none."""
    if place + 1 >= len(run) or run[place] != _ID:
        return place
    # Ids of the same length are the usual case.
    size = run[place + 1]
    end = place + rows * (size + 2)
    if run[place : end : size + 2] == bytes([_ID]) * rows and run[place + 1 : end : size + 2] == bytes([size]) * rows:
        return end
    end = place
    while end + 1 < len(run) and run[end] == _ID:
        end += 2 + run[end + 1]
    return end


def ids_of(cuts: Sequence[Cut]) -> pa.Array | None:
    """The listed ids of runs; None when the bytes have an unexpected form."""
    text = np.frombuffer(b"".join([one.ids for one in cuts]), dtype=np.uint8)
    begins = np.flatnonzero(text == _ID)
    # The length of an id may be the same byte; then the two bytes are adjacent.
    begins = begins[np.diff(begins, prepend=-2) != 1]
    count = sum(one.rows for one in cuts)
    if len(begins) != count:
        return None
    lengths = text[begins + 1].astype(np.int64)
    ends = begins + 2 + lengths
    if begins[0] != 0 or ends[-1] != len(text) or (ends[:-1] != begins[1:]).any():
        return None
    kept = np.ones(len(text), dtype=bool)
    kept[begins] = False
    kept[begins + 1] = False
    offsets = np.zeros(count + 1, dtype=np.int32)
    np.cumsum(lengths, out=offsets[1:])
    return pa.StringArray.from_buffers(count, pa.py_buffer(offsets), pa.py_buffer(text[kept]))


def bodies_of(cuts: Sequence[Cut]) -> pa.Array | None:
    """The bodies of runs, when all have the same length and no other bytes follow them; otherwise None."""
    rests = [one.rest for one in cuts]
    if not rests[0] or rests[0][0] != _BODY:
        return None
    size, head = _varint(rests[0], 1)
    count, width = sum(one.rows for one in cuts), head + size
    if any(len(one.rest) != one.rows * width for one in cuts):
        return None
    rows = np.frombuffer(b"".join(rests), dtype=np.uint8).reshape(count, width)
    if (rows[:, :head] != rows[0, :head]).any():
        return None
    offsets = np.arange(0, (count + 1) * size, size, dtype=np.int32) if size else np.zeros(count + 1, dtype=np.int32)
    data = np.ascontiguousarray(rows[:, head:])
    return pa.BinaryArray.from_buffers(pa.binary(), count, [None, pa.py_buffer(offsets), pa.py_buffer(data)])


def _varint(text: bytes, place: int) -> tuple[int, int]:
    value, shift = 0, 0
    while text[place] & 0x80:
        value |= (text[place] & 0x7F) << shift
        place, shift = place + 1, shift + 7
    return value | text[place] << shift, place + 1
