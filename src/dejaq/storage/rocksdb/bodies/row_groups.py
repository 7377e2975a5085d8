"""The value of a run in groups of rows, each with a checksum: a row is read and verified without the rest of its run.

    value = head, the columns that are not divided, groups
    head  = a field of `Run`: checksum; sizes; first times, ends and checksums of the groups

Each group is an encoded `Run` with some rows, in the order of their times. Code that needs the whole run gets it
without groups (`joined`).
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Callable, Sequence
from functools import partial
from hashlib import sha256
from itertools import accumulate
from struct import Struct
from typing import NamedTuple

import numpy as np
from isal.isal_zlib import crc32

from dejaq.domain.bodies.body_block import BodyBlock, varint
from dejaq.domain.id_column import IdColumn
from dejaq.errors import Code, error_of
from dejaq.protocol.v1 import records_pb2 as records
from dejaq.storage.rocksdb.timeline.memory.minute_table import Column

# A group has about so many bytes, unless one row is larger, and at most so many rows.
GROUP_BYTES, GROUP_ROWS_MAX = 4 * 1024, 32
# A run with fewer rows is not divided.
ROWS_MIN = 2 * GROUP_ROWS_MAX
# Nor is one whose rows are due together: it is leased as a whole.
SPAN_MS_MIN = 10_000
# Of a sealed run: to seal a group costs as much as to seal some KB.
SEALED_BYTES, SEALED_ROWS_MAX = 16 * 1024, 128
# What is read to find the head; it is mostly smaller.
HEAD_READ_BYTES = 1_024

# Of the fields `groups` and `ts`: the numbers are 14 and 5, the types bytes and packed.
_TAG, _TS_TAG = b"\x72", b"\x2a"
# Checksum of what follows; where the groups begin; rows; rows of a group; sizes of an id and of a body.
_HEAD = Struct("<IIIHhi")
# Where these numbers are in it.
ROWS_AT, PER_GROUP_AT, ID_BYTES_AT, BODY_BYTES_AT, HEAD_BYTES = 8, 12, 14, 16, _HEAD.size
_CRC_BYTES = 4
# First time, end and checksum of a group: all first times come first.
TIME_BYTES, _PLACE = 8, Struct("<II")
PLACE_BYTES, CRC_AT = _PLACE.size, 4
_DIFFERS = -1
_EMPTY = _TAG + b"\0"
_COUNTS = Struct("<II")
_DIGEST_BYTES = 32
# The prefix of an id, which is short; and that of the times has two bytes if they are fewer than these, else three.
ID_HEAD_BYTES, SHORT_TIMES = 2, 16

# Makes a group from the digest and its number, and from what stays readable of it and what does not.
Seal = Callable[[bytes, int, bytes, bytes], bytes]


class GroupPart(NamedTuple):
    """Where a group is in the value, its checksum, and its first row and number of rows."""

    group: int
    start: int
    length: int
    crc: int
    row: int
    rows: int


class RowGroups:
    """The head of a value."""

    __slots__ = ("body_bytes", "count", "id_bytes", "packed", "per_group", "plain", "rows", "start")

    def __init__(self, packed: bytes) -> None:
        _, self.start, self.rows, self.per_group, self.id_bytes, self.body_bytes = _HEAD.unpack_from(packed)
        # Whether every cell has its place: the ids of one size, the bodies too, and no other columns in the groups.
        self.plain = self.id_bytes != _DIFFERS and self.body_bytes != _DIFFERS
        self.count = -(-self.rows // self.per_group)
        self.packed = packed

    def find(self, ts: int) -> int:
        """The last group that may have a row with a time; an earlier one may have some too if it begins with them."""
        return max(0, bisect_right(self._firsts, ts) - 1)

    def begins_with(self, group: int, ts: int) -> bool:
        """Whether the first row of a group, behind another, has a time."""
        return group > 0 and self._firsts[group] == ts

    @property
    def _firsts(self) -> memoryview:
        end = _HEAD.size + TIME_BYTES * self.count
        return memoryview(self.packed)[_HEAD.size : end].cast("q")

    def ids_in(self, rows: int) -> tuple[int, int]:
        """Where the ids are in a group of so many rows whose cells all have their places: behind the times."""
        start = TIME_BYTES * rows + (2 if rows < SHORT_TIMES else 3)
        return start, start + (ID_HEAD_BYTES + self.id_bytes) * rows

    @property
    def digest(self) -> bytes:
        """That of a sealed run."""
        return self.packed[-_DIGEST_BYTES:]

    def part(self, group: int) -> GroupPart:
        """Where a group is."""
        places = _HEAD.size + TIME_BYTES * self.count
        end, crc = _PLACE.unpack_from(self.packed, places + _PLACE.size * group)
        start = _PLACE.unpack_from(self.packed, places + _PLACE.size * (group - 1))[0] if group else 0
        row = group * self.per_group
        return GroupPart(group, self.start + start, end - start, crc, row, min(self.per_group, self.rows - row))


def head_bytes(value: bytes) -> int:
    """How many bytes of a value its head has, of which the beginning is given; 0 for a value without groups."""
    if not value.startswith(_TAG):
        return 0
    length, start = _varint_at(value, 1)
    return start + length


def read_head(value: bytes) -> RowGroups | None:
    """The head that a value begins with; None where it is damaged."""
    length, start = _varint_at(value, 1)
    packed = value[start : start + length]
    if len(packed) < _HEAD.size or crc32(packed[_CRC_BYTES:]) != _HEAD.unpack_from(packed)[0]:
        return None
    return RowGroups(packed)


def is_divided(record: records.Run, ids: IdColumn) -> bool:
    """Whether single rows of a run may be searched: they are many, of several times, and none was leased before."""
    if len(ids) < ROWS_MIN or record.ts[-1] - record.ts[0] < SPAN_MS_MIN:
        return False
    return not (record.session or record.attempts or record.apart or record.firsts or record.lasts)


def divided(
    record: records.Run, ids: IdColumn, block: BodyBlock, seal: Seal | None = None, times: Column | None = None
) -> bytes:
    """The value of a run; `seal` makes each group from what stays readable of it and what does not.

    `times` has the times of the record, if they are a column already.
    """
    if times is None:
        times = np.array(record.ts, dtype=np.int64)
    count, ts = len(ids), times.astype("<i8", copy=False).tobytes()
    size = len(ts) + len(ids.wire) + len(block.data)
    bytes_max, rows_max = (GROUP_BYTES, GROUP_ROWS_MAX) if seal is None else (SEALED_BYTES, SEALED_ROWS_MAX)
    per_group = max(1, min(rows_max, bytes_max * count // size))
    width, others = _width_of(ids), _has_others(record)
    rest = bytes(records.Run(owner=record.owner, versions=record.versions).SerializeToString())
    digest = b"" if seal is None else digest_of(rest, count, per_group)
    groups: Sequence[bytes | memoryview]
    if seal is None and width is not None and block.size is not None and not others:
        groups = _equal_groups(ts, ids.wire, block.data, per_group)
    else:
        groups = _groups(record, ids, block, per_group, None if seal is None else partial(seal, digest))
    id_bytes = _DIFFERS if width is None or others else width - ID_HEAD_BYTES
    body_bytes = _DIFFERS if block.size is None or others else block.size
    firsts = times[::per_group].astype("<i8", copy=False).tobytes()
    places = b"".join(map(_PLACE.pack, accumulate(map(len, groups)), map(crc32, groups)))
    packed_bytes = _HEAD.size + len(firsts) + len(places) + len(digest)
    tag = _TAG + varint(packed_bytes)
    fields = len(tag) + packed_bytes + len(rest), count, per_group, id_bytes, body_bytes
    checked = b"".join((_HEAD.pack(0, *fields)[_CRC_BYTES:], firsts, places, digest))
    return b"".join((tag, crc32(checked).to_bytes(_CRC_BYTES, "little"), checked, rest, *groups))


def _equal_groups(ts: bytes, ids: bytes, bodies: bytes, per_group: int) -> list[memoryview]:
    """The groups of a run of which all ids have one length, and all bodies."""
    count = len(ts) // TIME_BYTES
    whole, left = divmod(count, per_group)
    before = _TS_TAG + varint(TIME_BYTES * per_group)
    columns = before * whole, ts, ids, bodies
    widths = len(before), *(len(column) // count * per_group for column in columns[1:])
    parts = (
        np.frombuffer(column, dtype=np.uint8, count=whole * width).reshape(whole, width)
        for column, width in zip(columns, widths, strict=True)
    )
    data, size = memoryview(np.concatenate(tuple(parts), axis=1)).cast("B"), sum(widths)  # type: ignore[arg-type]
    groups = [data[start : start + size] for start in range(0, len(data), size)]
    if left:
        rest = [column[whole * width :] for column, width in zip(columns[1:], widths[1:], strict=True)]
        groups.append(memoryview(b"".join((_TS_TAG, varint(TIME_BYTES * left), *rest))))
    return groups


def _groups(
    record: records.Run,
    ids: IdColumn,
    block: BodyBlock,
    per_group: int,
    seal: Callable[[int, bytes, bytes], bytes] | None,
) -> list[bytes]:
    """The groups of any run."""
    groups: list[bytes] = []
    others = _has_others(record)
    for start in range(0, len(ids), per_group):
        stop = min(len(ids), start + per_group)
        times = array("q", record.ts[start:stop]).tobytes()
        readable, behind = _TS_TAG + varint(len(times)) + times + IdColumn(ids[start:stop]).wire, b""
        if others:
            readable += records.Run(priorities=record.priorities[start:stop]).SerializeToString()
            behind = records.Run(headers=record.headers[start:stop]).SerializeToString()
        secret = b"".join((block.cut(start, stop), behind))
        groups.append(readable + secret if seal is None else seal(len(groups), readable, secret))
    return groups


def _has_others(record: records.Run) -> bool:
    return bool(record.priorities or record.headers)


def joined(value: bytes) -> bytes:
    """The value of a run without groups, as `join_columns` makes it; raises STORE_CORRUPT where the head is damaged."""
    size = head_bytes(value)
    if not size:
        return value
    groups = read_head(value)
    if groups is None:
        raise error_of(Code.STORE_CORRUPT, "the head of a run is damaged; restore the store from a backup")
    rest = value[size : groups.start]
    if groups.plain and groups.count > 1:
        return _join_plain(groups, rest, value)
    parts = [groups.part(number) for number in range(groups.count)]
    return join_columns(groups, rest, [value[part.start : part.start + part.length] for part in parts])


def _join_plain(groups: RowGroups, rest: bytes, value: bytes) -> bytes:
    """The same for groups whose cells all have their places: all but the last are the rows of a matrix."""
    last = groups.part(groups.count - 1)
    data = np.frombuffer(value, np.uint8, last.start - groups.start, groups.start).reshape(groups.count - 1, -1)
    columns: list[tuple[bytes, ...]] = []
    for cells, rows in ((data, groups.per_group), (np.frombuffer(value, np.uint8, last.length, last.start), last.rows)):
        start, end = groups.ids_in(rows)
        cuts = (cells[..., start - TIME_BYTES * rows : start], cells[..., start:end], cells[..., end:])
        columns.append(tuple(cut.tobytes() for cut in cuts))
    times, ids, bodies = zip(*columns, strict=True)
    return b"".join((rest, _TS_TAG, varint(TIME_BYTES * groups.rows), *times, *ids, *bodies))


def join_columns(groups: RowGroups, rest: bytes, data: Sequence[bytes]) -> bytes:
    """The value of a run without groups, from what is outside of its groups and what is in each.

    The times are in one piece, and so are ids and bodies if all ids have one size. Otherwise an empty field says that
    they are not.
    """
    times, ids, bodies = [], [], []
    left = groups.rows
    for group in data:
        rows = min(groups.per_group, left)
        start, end = groups.ids_in(rows)
        times.append(group[start - TIME_BYTES * rows : start])
        if groups.id_bytes != _DIFFERS:
            ids.append(group[start:end])
            bodies.append(group[end:])
        else:
            bodies.append(group[start:])
        left -= rows
    between = b"" if groups.id_bytes != _DIFFERS else _EMPTY
    return b"".join((rest, _TS_TAG, varint(TIME_BYTES * groups.rows), *times, between, *ids, *bodies))


def digest_of(rest: bytes, rows: int, per_group: int) -> bytes:
    """What binds the groups of a sealed run to the rest of it."""
    return sha256(_COUNTS.pack(rows, per_group) + rest).digest()


def _width_of(ids: IdColumn) -> int | None:
    """The size of each id with its prefix; None where they differ. A prefix has two bytes, as ids are short."""
    return None if ids.length is None else ID_HEAD_BYTES + ids.length


def _varint_at(data: bytes, at: int) -> tuple[int, int]:
    """A number in encoded form, and where it ends."""
    number = shift = 0
    while True:
        byte = data[at]
        at += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number, at
        shift += 7
