"""The journal's records in the store: what is behind a sequence, and where they begin and end."""

from __future__ import annotations

from dejaq.storage.rocksdb import keys
from dejaq.storage.rocksdb.database import Database

TRIMMED = keys.META + b"trimmed"
# What one look into the journal reads at most, since the loop waits for it.
_STEP = 2_000


def behind(database: Database, after: int, bytes_max: int) -> list[bytes]:
    """The records behind a sequence, about so many bytes of them."""
    found: list[bytes] = []
    for _, value in database.scan(keys.journal(after + 1), keys.after(keys.JOURNAL)):
        found.append(value)
        bytes_max -= len(value)
        if bytes_max <= 0 or len(found) >= _STEP:
            break
    return found


def ends(database: Database) -> tuple[int, int]:
    """The last sequence that was trimmed, and the last that was used."""
    trimmed = int(database.get(TRIMMED) or b"0")
    last = database.last_item(keys.journal(trimmed), keys.journal(2**64 - 1))
    return trimmed, trimmed if last is None else int.from_bytes(last[0][1:], "big")
