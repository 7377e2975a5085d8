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

from dejaq.domain.bodies.packing import MARK
from dejaq.limits import ID_CHARS_MAX

_OWNER, _SESSION, _FIRST, _ID, _TS, _BODY = 0x0A, 0x12, 0x18, 0x22, 0x2A, 0x32
_VERSIONS, _COUNTED = 0x6A, 0x78
# Ids of fewer rows are searched one by one.
_MANY_ROWS = 32


class Cut(NamedTuple):
    """A run: the fields that its rows share, and the bytes of its columns."""

    owner: str
    session: bytes
    first: int
    ids: bytes
    ts: bytes
    rest: bytes
    rows: int
    # Whether the listed ids are generated ids.
    counted: bool = False


def cut_all(runs: Sequence[bytes]) -> list[Cut] | None:
    """Split runs into their fields; None when one has an unexpected form.

    Most runs of a scan have one owner, listed ids of the same length behind their times, and nothing but bodies behind
    those. They are split here with few steps: this is done for every run, and a run may have few rows. Other bytes may
    look like such a run; `ids_of` finds that they are none.
    """
    head, owner = _head(runs[0]) if runs else (b"", "")
    begin, cuts = len(head), list[Cut | None]()
    for run in runs:
        size = run[begin] if run.startswith(head) and begin < len(run) else 0
        place = begin + 1
        if size & 0x80:
            size, place = _varint(run, begin)
        end = place + size
        rows = size >> 3
        ids_end = end + rows * (run[end + 1] + 2) if end + 1 < len(run) else 0
        if rows and not size & 7 and ids_end < len(run) and run[end] == _ID and run[ids_end] == _BODY:
            cuts.append(Cut(owner, b"", 0, run[end:ids_end], run[place:end], run[ids_end:], rows))
        else:
            cuts.append(cut(run))
    found = [one for one in cuts if one is not None]
    return found if len(found) == len(cuts) else None


def _head(run: bytes) -> tuple[bytes, str]:
    """How a run begins whose owner is followed by its times, and the owner."""
    if not run or run[0] != _OWNER:
        return bytes([_TS]), ""
    size, place = _varint(run, 1)
    return run[: place + size] + bytes([_TS]), run[place : place + size].decode()


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
    # Nobody needs the versions of the rows of a merged run.
    place = _behind_versions(run, place)
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
    place = _behind_versions(run, place)
    counted = run[place : place + 2] == bytes([_COUNTED, 1])
    place += 2 * counted
    if not ids and not session:
        end = _ids_end(run, place, size // 8)
        ids, place = run[place:end], end
    if len(ts) != size or size % 8:
        return None
    return Cut(owner, session, first, ids, ts, run[place:], size // 8, counted)


def _behind_versions(run: bytes, place: int) -> int:
    if place >= len(run) or run[place] != _VERSIONS:
        return place
    size, place = _varint(run, place + 1)
    return place + size


def _ids_end(run: bytes, place: int, rows: int) -> int:
    """The end of so many ids that begin at a place; the place itself where there are none."""
    if place + 1 >= len(run) or run[place] != _ID:
        return place
    # Ids of the same length are the usual case.
    size = run[place + 1]
    end = place + rows * (size + 2)
    if run[place : end : size + 2] == bytes([_ID]) * rows and run[place + 1 : end : size + 2] == bytes([size]) * rows:
        return end
    if rows >= _MANY_ROWS and (end := _ids_end_of_many(run, place, rows)):
        return end
    end = place
    while end + 1 < len(run) and run[end] == _ID:
        end += 2 + run[end + 1]
    return end


def _ids_end_of_many(run: bytes, place: int, rows: int) -> int:
    """The same for ids whose lengths differ; 0 where the bytes have an unexpected form."""
    text = np.frombuffer(run, dtype=np.uint8, offset=place, count=min(rows * (ID_CHARS_MAX + 2), len(run) - place))
    begins = _begins(text)[:rows]
    if len(begins) < rows or begins[-1] + 1 >= len(text):
        return 0
    ends = begins + 2 + text[begins + 1]
    return place + int(ends[-1]) if begins[0] == 0 and (ends[:-1] == begins[1:]).all() else 0


def _begins(text: np.ndarray) -> np.ndarray:
    """Where ids begin, in bytes that begin with ids."""
    begins = np.flatnonzero(text == _ID)
    # The length of an id may be the same byte; then the two bytes are adjacent.
    found: np.ndarray = begins[np.diff(begins, prepend=-2) != 1]
    return found


def ids_of(cuts: Sequence[Cut]) -> pa.Array | None:
    """The listed ids of runs; None when the bytes have an unexpected form."""
    text = np.frombuffer(b"".join([one.ids for one in cuts]), dtype=np.uint8)
    count = sum(one.rows for one in cuts)
    alike = _ids_alike(text, count)
    if alike is not None:
        return alike
    begins = _begins(text)
    if len(begins) != count:
        return None
    lengths = text[begins + 1].astype(np.int32)
    ends = begins + 2 + lengths
    if begins[0] != 0 or ends[-1] != len(text) or (ends[:-1] != begins[1:]).any():
        return None
    kept = np.ones(len(text), dtype=bool)
    kept[begins] = False
    kept[begins + 1] = False
    offsets = np.zeros(count + 1, dtype=np.int32)
    np.cumsum(lengths, out=offsets[1:])
    return pa.StringArray.from_buffers(count, pa.py_buffer(offsets), pa.py_buffer(text[kept]))


def _ids_alike(text: np.ndarray, count: int) -> pa.Array | None:
    """Ids that all have the same length; None for others."""
    width, more = divmod(len(text), count)
    if more or not 2 < width < _ID:
        return None
    rows = text.reshape(count, width)
    if (rows[:, 0] != _ID).any() or (rows[:, 1] != width - 2).any():
        return None
    return _of_one_length(pa.string(), rows[:, 2:])


def _of_one_length(kind: pa.DataType, rows: np.ndarray) -> pa.Array:
    count, size = rows.shape
    offsets = np.arange(0, (count + 1) * size, size, dtype=np.int32) if size else np.zeros(count + 1, dtype=np.int32)
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(rows))]
    return pa.Array.from_buffers(kind, count, buffers)


def bodies_of(cuts: Sequence[Cut]) -> tuple[pa.Array, bool] | None:
    """The bodies of runs and whether one of them may begin with the mark of a packed body, when all have the same
    length and no other bytes follow them; otherwise None.
    """
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
    marked = size >= len(MARK) and bool((rows[:, head] == MARK[0]).any())
    return _of_one_length(pa.binary(), rows[:, head:]), marked


def _varint(text: bytes, place: int) -> tuple[int, int]:
    value, shift = 0, 0
    while text[place] & 0x80:
        value |= (text[place] & 0x7F) << shift
        place, shift = place + 1, shift + 7
    return value | text[place] << shift, place + 1
