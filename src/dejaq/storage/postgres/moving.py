"""Buckets that go from one shard to another: frozen where they are, copied, and then removed there.

While a bucket is frozen the server refuses every write to it, whoever asks and whatever that one believes of the map.
Each step may be done again: what lies at the target is removed before it is copied, and what has been removed is not
missed. Large bodies go first, each by itself, and most of them before anything is frozen; those that are left where
nobody refers to them any more are reclaimed there.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import asyncpg

from dejaq.domain.large import Reference, reference_of
from dejaq.errors import Unavailable
from dejaq.storage import ranges
from dejaq.storage.postgres.creating import pack, unpack
from dejaq.storage.postgres.database import Link
from dejaq.storage.postgres.keys import LeaseKeys, spans_of
from dejaq.storage.postgres.queries import SQL
from dejaq.storage.postgres.shard import PostgresShard
from dejaq.storage.postgres.uploading import touched
from dejaq.timekeeper.clock import Clock

log = logging.getLogger(__name__)

_ROWS = 2_000
_LOCK_MS = 500
_SESSIONS_GAPS = 10**6


@asynccontextmanager
async def _at_work(shard: PostgresShard) -> AsyncIterator[asyncpg.Connection]:
    """A connection that may write what is frozen."""
    connection = await shard.connect()
    try:
        await connection.execute("SET dejaq.moving = 'on'")
        yield connection
    finally:
        await connection.close()


async def freeze(shard: PostgresShard, places: Sequence[int]) -> None:
    """Refuse writes to these places, and to no others; what was being written is written first."""
    listed = ",".join(map(str, places))
    async with _at_work(shard) as connection:
        await connection.execute(SQL["refuse_moving"])
        while True:
            try:
                async with connection.transaction():
                    # Whoever else waits for the table waits behind this.
                    await connection.execute(f"SET LOCAL lock_timeout = {_LOCK_MS}")
                    await connection.execute(SQL["freeze"].format(places=listed))
                return
            except asyncpg.LockNotAvailableError:
                continue


async def rows_at(shard: PostgresShard, places: Sequence[int]) -> dict[int, int]:
    """How many messages each place has."""
    async with _at_work(shard) as connection:
        return dict(await connection.fetch(SQL["rows_at"], places))


async def bring_bodies(
    source: PostgresShard, target: PostgresShard, places: Sequence[int], clock: Clock
) -> list[Reference]:
    """Have the large bodies that messages of these places refer to at the target too; which are there now."""
    async with _at_work(source) as here:
        bodies = [row["body"] for row in await here.fetch(SQL["moved_references"], places)]
    references = [found for body in bodies if (found := reference_of(body)) is not None]
    absent = await target.bodies.absent(references, clock.now_ms())
    lost = [one for one in absent if not await target.bodies.adopt(one, source.bodies, clock.now_ms())]
    if lost:
        log.warning("%d messages refer to large bodies that are not with them", len(lost))
    return [one for one in references if one not in lost]


async def copy(
    source: PostgresShard, target: PostgresShard, places: Sequence[int], topics: Sequence[int], clock: Clock
) -> int:
    """Copy frozen places with their leases, bodies and what is known of producer sessions; how many messages.

    Raises UNAVAILABLE where that took so long that bodies were taken for abandoned.
    """
    async with _at_work(source) as here, _at_work(target) as there:
        await _join_sessions(here, there, [0, *topics])
        await target.keep_up(await here.fetchval(SQL["moved_version"], places))
        # A message's story goes on there: what is told of it must stand behind what was told here.
        await target.keep_up_ticket(await source.ticket())
        brought = await bring_bodies(source, target, places, clock)
        async with there.transaction():
            await _clear(there, places)
            copied = 0
            async with here.transaction():
                async for rows in _portions(here, places):
                    columns = list(rows[0].keys())
                    await there.copy_records_to_table("message", records=map(tuple, rows), columns=columns)
                    copied += len(rows)
            await there.execute(SQL["count_places"], places, 1)
            await _move_leases(here, there, places)
            if not await touched(Link(there, 0), brought, clock.now_ms()) >= set(brought):
                raise Unavailable("large bodies were removed where they were brought; begin again")
        return copied


async def remove(source: PostgresShard, places: Sequence[int]) -> None:
    """Remove places that were copied; the rows of leases that are there now are not here any more."""
    async with _at_work(source) as here, here.transaction():
        for lease in await here.fetch(SQL["moved_leases"], places):
            gone = {row["id"] for row in await here.fetch(SQL["moved_ids"], places, lease["topic"], lease["id"])}
            found = await here.fetchrow(SQL["lock_lease"], lease["topic"], lease["id"])
            if found is not None:
                left = [key if key not in gone else "" for key in LeaseKeys.unpack(found["keys"]).listed()]
                await _put_lease(here, lease, left, found["next_end"])
        await _clear(here, places)


async def _clear(connection: asyncpg.Connection, places: Sequence[int]) -> None:
    await connection.execute(SQL["count_places"], places, -1)
    await connection.execute(SQL["remove_places"], places)


async def _portions(here: asyncpg.Connection, places: Sequence[int]) -> AsyncIterator[list[asyncpg.Record]]:
    cursor = await here.cursor(SQL["moved_rows"], places)
    while rows := await cursor.fetch(_ROWS):
        yield rows


async def _move_leases(here: asyncpg.Connection, there: asyncpg.Connection, places: Sequence[int]) -> None:
    """Have the rows of leases under the numbers that they have."""
    for lease in await here.fetch(SQL["moved_leases"], places):
        moved = {row["id"] for row in await here.fetch(SQL["moved_ids"], places, lease["topic"], lease["id"])}
        keys = [key if key in moved else "" for key in LeaseKeys.unpack(lease["keys"]).listed()]
        known = await there.fetchrow(SQL["lock_lease"], lease["topic"], lease["id"])
        if known is not None:
            others = LeaseKeys.unpack(known["keys"]).listed()
            count = max(len(keys), len(others))
            keys, others = (column + [""] * (count - len(column)) for column in (keys, others))
            keys = [key or other for key, other in zip(keys, others, strict=True)]
        await _put_lease(there, lease, keys, lease["next_end"])


async def _put_lease(connection: asyncpg.Connection, lease: asyncpg.Record, keys: list[str], next_end: int) -> None:
    packed = LeaseKeys(spans_of(keys))
    if packed.open:
        row = (lease["topic"], lease["id"], next_end, lease["consumer"], packed.pack(), packed.open)
        await connection.execute(SQL["adopt_lease"], *row)
    else:
        await connection.execute(SQL["drop_lease"], lease["topic"], lease["id"])


async def _join_sessions(here: asyncpg.Connection, there: asyncpg.Connection, topics: Sequence[int]) -> None:
    """What producers have done here is known there too."""
    for told in await here.fetch(SQL["sessions_of"], topics):
        while True:
            known = await there.fetchval(SQL["seen"], told["topic"], told["session"])
            if known is None:
                joined, before = told["seen"], b""
            else:
                both = unpack(known)
                for start, end in unpack(told["seen"]):
                    ranges.insert(both, start, end)
                joined, before = pack(both, _SESSIONS_GAPS), known
            if joined == known:
                break
            row = (told["topic"], told["session"], told["used_ms"], joined, before)
            if await there.fetchval(SQL["join_session"], *row) is not None:
                break


async def size_of(shard: PostgresShard) -> int:
    """How many bytes the tables of a shard have."""

    async def look(link: Link) -> int:
        size: int = await link.value("sizes", shard.schema)
        return size

    return await shard.look(look)
