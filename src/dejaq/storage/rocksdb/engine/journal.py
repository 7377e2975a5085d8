"""The journal's records on disk: read in order, and trimmed from the front.

A record is a frame of the commit log, and the database has its address. Records of older releases, and those that were
copied so that their file of the log can be removed, are in the database itself. They are always the oldest.
"""

from __future__ import annotations

from dejaq.errors import Code, error_of
from dejaq.storage.commit_log.writer import CommitLog
from dejaq.storage.rocksdb.engine import keys
from dejaq.storage.rocksdb.engine.database import Batch, RocksDatabase
from dejaq.storage.rocksdb.engine.frames import unpack_address

_TRIMMED = keys.META + b"trimmed"
# What one look reads at most, since the loop waits for it.
_STEP = 2_000


def extent(database: RocksDatabase) -> tuple[int, int]:
    """The last sequence that was trimmed, and the last that was used."""
    trimmed = int(database.get(_TRIMMED) or b"0")
    found = [
        int.from_bytes(item[0][1:], "big")
        for key in (keys.journal, keys.journal_frame)
        if (item := database.last_item(key(trimmed), key(2**64 - 1))) is not None
    ]
    return trimmed, max([trimmed, *found])


def records_behind(database: RocksDatabase, log: CommitLog, sequences: range, bytes_max: int) -> list[bytes]:
    """Durable records by their sequences, about so many bytes of them."""
    found: list[bytes] = []
    for _, value in database.scan(keys.journal(sequences.start), keys.journal(sequences.stop)):
        found.append(value)
        bytes_max -= len(value)
        if bytes_max <= 0 or len(found) >= _STEP:
            return found
    for _, value in database.scan(keys.journal_frame(sequences.start), keys.journal_frame(sequences.stop)):
        found.append(log.read(unpack_address(value)))
        bytes_max -= len(found[-1])
        if bytes_max <= 0 or len(found) >= _STEP:
            break
    return found


def trim(database: RocksDatabase, up_to: int, batch: Batch) -> None:
    """Remove the records up to a sequence; raises INVALID_ARGUMENT when it was never used."""
    trimmed, last = extent(database)
    if up_to > last:
        raise error_of(Code.INVALID_ARGUMENT, f"the journal ends with record {last}, before {up_to}")
    if up_to > trimmed:
        batch.put(_TRIMMED, str(up_to).encode())
        batch.delete_range(keys.journal(0), keys.journal(up_to + 1))
        batch.delete_range(keys.journal_frame(0), keys.journal_frame(up_to + 1))


def first_file(database: RocksDatabase) -> int | None:
    """The oldest file of the commit log that has a record of the journal.

    A trim that is not durable yet does not count: a crash would bring the records back, and their file must be there.
    """
    for _, value in database.scan_applied(keys.JOURNAL_FRAME, keys.after(keys.JOURNAL_FRAME)):
        return unpack_address(value).file
    return None
