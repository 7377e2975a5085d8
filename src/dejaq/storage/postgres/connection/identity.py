"""The records of a store in PostgreSQL about itself: its identity, and its place among the shards of a storage."""

from __future__ import annotations

import json
import secrets
from typing import Any

from dejaq.storage.postgres.connection.database import PostgresLink


async def identify(link: PostgresLink) -> str:
    """The store's identity; the first user of the store creates it."""
    await link.execute("make_identity", secrets.token_hex(16))
    name: str = await link.value("identity")
    return name


async def shard_record(link: PostgresLink) -> dict[str, Any] | None:
    """The record of the shard that this store is, or None if it is no shard."""
    found = await link.value("shard")
    record: dict[str, Any] | None = json.loads(found) if found is not None else None
    return record
