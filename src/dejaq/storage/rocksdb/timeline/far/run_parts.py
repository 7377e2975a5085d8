"""Reads a part of the value of a run, which may be a frame of the commit log, without the rest of it."""

from __future__ import annotations

from typing import NamedTuple

from isal.isal_zlib import crc32

from dejaq.errors import Code, StoreError, error_of
from dejaq.storage.commit_log.record import FrameAddress
from dejaq.storage.rocksdb.bodies.row_groups import HEAD_READ_BYTES, GroupPart, RowGroups, head_bytes, read_head
from dejaq.storage.rocksdb.engine.database import RocksDatabase


class RunPlace(NamedTuple):
    """Where the value of a run is: a frame of the log, to which the database has a pointer; or in the database."""

    key: bytes
    stored: bytes
    address: FrameAddress | None


def groups_at(database: RocksDatabase, place: RunPlace) -> RowGroups | None:
    """The head of the value of a run; None for a value without groups. Raises STORE_CORRUPT where it is damaged."""
    beginning = _bytes_at(database, place, 0, HEAD_READ_BYTES)
    at = database.values.head_at(place.key, beginning)
    size = 0 if at is None else head_bytes(beginning[at:])
    if at is None or not size:
        return None
    if at + size > len(beginning):
        beginning = _bytes_at(database, place, 0, at + size)
    groups = read_head(beginning[at:])
    if groups is None:
        raise damaged(database, place, "the head of a run")
    # Places are from the head on.
    groups.start += at
    return groups


def rows_at(database: RocksDatabase, place: RunPlace, groups: RowGroups, part: GroupPart) -> bytes:
    """A group of rows; raises STORE_CORRUPT where it is damaged."""
    data = _bytes_at(database, place, part.start, part.length)
    if crc32(data) != part.crc or len(data) != part.length:
        raise damaged(database, place, rows_of(part.row, part.rows))
    return database.values.opened_group(place.key, groups, part.group, data)


def _bytes_at(database: RocksDatabase, place: RunPlace, start: int, length: int) -> bytes:
    if place.address is None:
        return place.stored[start : start + length]
    frame = None if database.overlay.empty else database.overlay.frame(place.stored)
    if frame is not None:
        return frame[start : start + length]
    assert database.log is not None
    try:
        return database.log.read_part(place.address, start, length)
    except StoreError as error:
        database.on_fault(error)
        raise


def rows_of(first: int, count: int) -> str:
    """How a group of rows is named in an error."""
    return f"rows {first} to {first + count - 1} of a run"


def damaged(database: RocksDatabase, place: RunPlace, what: str) -> StoreError:
    """The error for a part of a run that is damaged, which is also reported to the store."""
    address = place.address
    where = "the database" if address is None else f"the frame at {address.offset} of file {address.file} of the log"
    error = error_of(
        Code.STORE_CORRUPT, f"{database.path.parent} is damaged; restore it from a backup", details=f"{what} in {where}"
    )
    assert isinstance(error, StoreError)
    database.on_fault(error)
    return error
