"""The standbys of a PostgreSQL server, as the server reports them."""

from __future__ import annotations

import re

from dejaq.storage.copies import Copies, Standby
from dejaq.storage.postgres.connection.database import PostgresLink

# `FIRST 2 (a, b)`, `ANY 2 (*)`, `2 (a, b)`; a list alone means the first of it.
_COUNTED = re.compile(r"\s*(?:(?:first|any)\s+)?(\d+)\s*\(", re.IGNORECASE)
# With these values of synchronous_commit, a commit waits for no standby.
_WAITS_FOR_NONE = ("off", "local")


def confirmed(synchronous_standby_names: str, synchronous_commit: str) -> int:
    """For how many standbys a commit waits with these settings of the server."""
    if synchronous_commit in _WAITS_FOR_NONE or not synchronous_standby_names.strip():
        return 0
    counted = _COUNTED.match(synchronous_standby_names)
    return int(counted[1]) if counted is not None else 1


async def copies_of(link: PostgresLink, shard: str, buckets: int) -> Copies:
    """The standbys of the server behind a connection."""
    rows = await link.fetch("standbys")
    standbys = [Standby(row["name"], row["state"], row["lag"]) for row in rows if row["name"] is not None]
    waits_for = confirmed(rows[0]["names"], rows[0]["waits"])
    return Copies(shard, buckets, waits_for, tuple(standbys))
