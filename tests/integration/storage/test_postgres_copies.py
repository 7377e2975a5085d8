"""The standbys of a PostgreSQL server as the store reports them, and a store that closes while none of them answers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import asyncpg

from dejaq.domain.context import DIRECT_CALL
from dejaq.domain.topic import Topic, TopicSettings
from dejaq.storage.postgres.store import PostgresStorage
from dejaq.testing.servers.postgres import PostgresServer
from dejaq.testing.waiting import eventually, patient

NOW = 1_700_000_000_000


async def test_copies_are_the_standbys_that_a_commit_waits_for() -> None:
    with PostgresServer() as primary, primary.standby() as standby:
        storage = PostgresStorage(primary.dsn)
        await storage.open(NOW)
        topic = Topic("mail", await storage.next_topic_number(), TopicSettings(buckets=4))
        await storage.put_topic(topic, DIRECT_CALL)

        async def copies() -> tuple[int, str]:
            (server,) = await storage.copies(topic)
            assert (server.shard, server.buckets, len(server.standbys)) == ("", 4, 1)
            assert server.standbys[0].lag_bytes is not None
            return server.confirmed, server.standbys[0].state

        await eventually(lambda: _is(copies, (0, "async")), within=20, what="the standby follows")
        connection = await asyncpg.connect(primary.dsn)
        await connection.execute("ALTER SYSTEM SET synchronous_standby_names = 'ANY 1 (*)'")
        await connection.execute("SELECT pg_reload_conf()")
        await connection.close()
        await eventually(lambda: _is(copies, (1, "quorum")), within=20, what="commits wait for it")
        # The store closes although no standby confirms a commit any more.
        standby.close()
        async with asyncio.timeout(patient(20)):
            await storage.close()


async def _is(look: Callable[[], Awaitable[object]], wanted: object) -> bool:
    try:
        return await look() == wanted
    except AssertionError:
        return False
