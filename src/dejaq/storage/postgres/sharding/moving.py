"""Moves buckets from one shard to another: they are frozen, copied, and then removed from the old shard.

While a bucket is frozen, the server refuses every write to it, from any broker and under any version of the map. Each
step may be repeated: rows at the target are removed before they are copied again, and removed rows are not needed any
more. Large bodies are copied first, one by one, and most of them before anything is frozen; bodies that stay behind
without references are reclaimed there.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager

import asyncpg

from dejaq.domain.bodies.large import Reference, reference_of
from dejaq.errors import Unavailable
from dejaq.storage.postgres.connection.database import PostgresLink
from dejaq.storage.postgres.connection.failures import DRIVER_ERRORS
from dejaq.storage.postgres.keys import LeaseKeys, spans_of
from dejaq.storage.postgres.operations.uploading import touched
from dejaq.storage.postgres.queries import SQL
from dejaq.storage.postgres.sharding.shard import PostgresShard
from dejaq.storage.used_sequences import UsedSequences
from dejaq.timekeeper.clock import Clock

log = logging.getLogger(__name__)

# Raises, just before a commit, when another process now moves the buckets.
Check = Callable[[], Awaitable[None]]
_ROWS = 2_000
_LOCK_MS = 500
_IDLE_MS = 60_000
_CLOSE_SECONDS = 5.0


@asynccontextmanager
async def _at_work(shard: PostgresShard) -> AsyncIterator[asyncpg.Connection]:
    """A connection that may write frozen buckets; raises STORE_FAILED when the server or the connection fails."""
    connection = await shard.connect()
    try:
        await connection.execute("SET dejaq.moving = 'on'")
        # One side waits while the other copies.
        await connection.execute(f"SET idle_in_transaction_session_timeout = {_IDLE_MS}")
        yield connection
    except DRIVER_ERRORS as error:
        raise shard.failure_of(error) from None
    finally:
        try:
            await connection.close(timeout=_CLOSE_SECONDS)
        except DRIVER_ERRORS:
            connection.terminate()


async def freeze(shard: PostgresShard, places: Sequence[int]) -> None:
    """Refuse writes to these places, and to no others; writes in progress are completed first."""
    listed = ",".join(map(str, places))
    async with _at_work(shard) as connection:
        await connection.execute(SQL["refuse_moving"])
        while True:
            try:
                async with connection.transaction():
                    # Other transactions that need the table wait until this one ends.
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
    """Copy the large bodies that messages of these places refer to; returns the bodies that the target has now."""
    async with _at_work(source) as here:
        bodies = [row["body"] for row in await here.fetch(SQL["moved_references"], places)]
    references = [found for body in bodies if (found := reference_of(body)) is not None]
    absent = await target.bodies.absent(references, clock.now_ms())
    lost = [one for one in absent if not await target.bodies.adopt(one, source.bodies, clock.now_ms())]
    if lost:
        log.warning("%d messages refer to large bodies that are not with them", len(lost))
    return [one for one in references if one not in lost]


async def copy(
    source: PostgresShard,
    target: PostgresShard,
    places: Sequence[int],
    topics: Sequence[int],
    clock: Clock,
    *,
    check: Check,
) -> int:
    """Copy frozen places with their leases, bodies and the used sequences of producer sessions; returns the message
    count.

    Raises UNAVAILABLE when that took so long that bodies were treated as abandoned.
    """
    async with _at_work(source) as here, _at_work(target) as there:
        await _join_sessions(here, there, [0, *topics])
        await target.keep_up(await here.fetchval(SQL["moved_version"], places))
        # The journal continues at the target: its records must have higher numbers than the records written here.
        await target.keep_up_ticket(await source.ticket())
        brought = await bring_bodies(source, target, places, clock)
        async with there.transaction():
            await _clear(there, places)
            copied = 0
            async with here.transaction():
                async for rows in _portions(here, places, "moved_rows"):
                    columns = list(rows[0].keys())
                    await there.copy_records_to_table("message", records=map(tuple, rows), columns=columns)
                    copied += len(rows)
            await there.execute(SQL["count_places"], places, 1)
            await _copy_created(here, there, places)
            await _move_leases(here, there, places)
            if not await touched(PostgresLink(there, 0), brought, clock.now_ms()) >= set(brought):
                raise Unavailable("large bodies were removed where they were brought; begin again")
            await check()
        return copied


async def remove(source: PostgresShard, places: Sequence[int], *, check: Check) -> None:
    """Remove places that were copied; the rows of their leases are at the target now."""
    async with _at_work(source) as here, here.transaction():
        for lease in await here.fetch(SQL["moved_leases"], places):
            gone = {row["id"] for row in await here.fetch(SQL["moved_ids"], places, lease["topic"], lease["id"])}
            found = await here.fetchrow(SQL["lock_lease"], lease["topic"], lease["id"])
            if found is not None:
                left = [key if key not in gone else "" for key in LeaseKeys.unpack(found["keys"]).listed()]
                await _put_lease(here, lease, left, found["next_end"])
        await _clear(here, places)
        await check()


async def _clear(connection: asyncpg.Connection, places: Sequence[int]) -> None:
    await connection.execute(SQL["count_places"], places, -1)
    await connection.execute(SQL["remove_places"], places)
    await connection.execute(SQL["count_created"], places, -1)
    await connection.execute(SQL["remove_created"], places)


async def _copy_created(here: asyncpg.Connection, there: asyncpg.Connection, places: Sequence[int]) -> None:
    """Copy the ids that were created within a deduplication window."""
    async with here.transaction():
        async for rows in _portions(here, places, "moved_created"):
            columns = list(rows[0].keys())
            await there.copy_records_to_table("created_id", records=map(tuple, rows), columns=columns)
    await there.execute(SQL["count_created"], places, 1)


async def _portions(here: asyncpg.Connection, places: Sequence[int], query: str) -> AsyncIterator[list[asyncpg.Record]]:
    cursor = await here.cursor(SQL[query], places)
    while rows := await cursor.fetch(_ROWS):
        yield rows


async def _move_leases(here: asyncpg.Connection, there: asyncpg.Connection, places: Sequence[int]) -> None:
    """Copy the rows of leases with their numbers."""
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
    """Copy the used sequences of producers."""
    for stored in await here.fetch(SQL["sessions_of"], topics):
        while True:
            known = await there.fetchval(SQL["seen"], stored["topic"], stored["session"])
            if known is None:
                joined, before = stored["seen"], b""
            else:
                both = UsedSequences.unpack(known)
                both.join(UsedSequences.unpack(stored["seen"]))
                joined, before = both.pack(), known
            if joined == known:
                break
            row = (stored["topic"], stored["session"], stored["used_ms"], joined, before)
            if await there.fetchval(SQL["join_session"], *row) is not None:
                break


async def size_of(shard: PostgresShard) -> int:
    """The size of the tables of a shard in bytes."""

    async def look(link: PostgresLink) -> int:
        size: int = await link.value("sizes", shard.schema)
        return size

    return await shard.look(look)
