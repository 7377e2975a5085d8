"""The journal's records on disk: read in order, and trimmed from the front."""

from __future__ import annotations

from dejaq.errors import Code, error_of
from dejaq.storage.rocksdb import keys
from dejaq.storage.rocksdb.database import Batch, Database

_TRIMMED = keys.META + b"trimmed"
# What one look reads at most, since the loop waits for it.
_STEP = 2_000


def extent(database: Database) -> tuple[int, int]:
    """The last sequence that was trimmed, and the last that was used."""
    trimmed = int(database.get(_TRIMMED) or b"0")
    last = database.last_item(keys.journal(trimmed), keys.journal(2**64 - 1))
    return trimmed, trimmed if last is None else int.from_bytes(last[0][1:], "big")


def records_behind(database: Database, after: int, bytes_max: int) -> list[bytes]:
    """The records behind a sequence, about so many bytes of them."""
    found: list[bytes] = []
    for _, value in database.scan(keys.journal(after + 1), keys.after(keys.JOURNAL)):
        found.append(value)
        bytes_max -= len(value)
        if bytes_max <= 0 or len(found) >= _STEP:
            break
    return found


def trim(database: Database, up_to: int, batch: Batch) -> None:
    """Remove the records up to a sequence; raises INVALID_ARGUMENT when it was never used."""
    trimmed, last = extent(database)
    if up_to > last:
        raise error_of(Code.INVALID_ARGUMENT, f"the journal ends with record {last}, before {up_to}")
    if up_to > trimmed:
        batch.put(_TRIMMED, str(up_to).encode())
        batch.delete_range(keys.journal(0), keys.journal(up_to + 1))
