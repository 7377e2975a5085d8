"""Reads a part of the value of a run, which may be a frame of the commit log, without the rest of it."""

from __future__ import annotations

from isal.isal_zlib import crc32

from dejaq.errors import Code, StoreError, error_of
from dejaq.storage.rocksdb.bodies.row_groups import HEAD_READ_BYTES, GroupPart, RowGroups, head_bytes, read_head
from dejaq.storage.rocksdb.engine.database import RocksDatabase
from dejaq.storage.rocksdb.engine.frames import address_in


def groups_at(database: RocksDatabase, key: bytes, stored: bytes) -> RowGroups | None:
    """The head of the value of a run, which the database has or has a pointer to; None for a value without groups.

    Raises STORE_CORRUPT where it is damaged.
    """
    beginning = _bytes_at(database, stored, 0, HEAD_READ_BYTES)
    at = database.values.head_at(key, beginning)
    size = 0 if at is None else head_bytes(beginning[at:])
    if at is None or not size:
        return None
    if at + size > len(beginning):
        beginning = _bytes_at(database, stored, 0, at + size)
    groups = read_head(beginning[at:])
    if groups is None:
        raise _damaged(database, stored, "the head of a run")
    # Places are from the head on.
    groups.start += at
    return groups


def rows_at(database: RocksDatabase, key: bytes, stored: bytes, groups: RowGroups, part: GroupPart) -> bytes:
    """A group of rows; raises STORE_CORRUPT where it is damaged."""
    data = _bytes_at(database, stored, part.start, part.length)
    if crc32(data) != part.crc or len(data) != part.length:
        raise _damaged(database, stored, f"rows {part.row} to {part.row + part.rows - 1} of a run")
    return database.values.opened_group(key, groups.digest, part.group, data)


def _bytes_at(database: RocksDatabase, stored: bytes, start: int, length: int) -> bytes:
    address = address_in(stored)
    if address is None:
        return stored[start : start + length]
    frame = None if database.overlay.empty else database.overlay.frame(stored)
    if frame is not None:
        return frame[start : start + length]
    assert database.log is not None
    try:
        return database.log.read_part(address, start, length)
    except StoreError as error:
        database.on_fault(error)
        raise


def _damaged(database: RocksDatabase, stored: bytes, what: str) -> StoreError:
    address = address_in(stored)
    place = "the database" if address is None else f"the frame at {address.offset} of file {address.file} of the log"
    error = error_of(
        Code.STORE_CORRUPT, f"{database.path.parent} is damaged; restore it from a backup", details=f"{what} in {place}"
    )
    assert isinstance(error, StoreError)
    database.on_fault(error)
    return error
