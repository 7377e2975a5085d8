"""The queries of the shared store."""

from __future__ import annotations

from collections.abc import Sequence
from weakref import WeakSet

from dejaq import limits
from dejaq.domain.message import Message, UnleasedMessages
from dejaq.domain.topic import Topic
from dejaq.storage.base import Filter, Holder, Page, outermost
from dejaq.storage.copies import Copies
from dejaq.storage.postgres.connection.address import Address
from dejaq.storage.postgres.connection.database import PostgresDatabase, PostgresLink
from dejaq.storage.postgres.connection.failures import DRIVER_ERRORS, failure_of
from dejaq.storage.postgres.operations import owning
from dejaq.storage.postgres.operations.change import places_of
from dejaq.storage.postgres.reading import querying
from dejaq.storage.postgres.reading.snapshot import PostgresSnapshot
from dejaq.storage.postgres.reading.standbys import copies_of

_SNAPSHOT_SLACK_MS = 60_000


_GET_ROWS = 1_000


class PostgresQueries:
    """The queries of a `PostgresStorage`, which change nothing."""

    _address: Address
    _database: PostgresDatabase
    _snapshots: WeakSet[PostgresSnapshot]

    async def get(self, topic: Topic, ids: Sequence[str], now: int) -> list[Message | None]:
        """The messages with the ids."""
        return await self._database.read(lambda link: querying.get(link, topic, ids))

    def columns_rows(self, topic: Topic) -> tuple[int, int]:
        """How many ids a call of `get_columns` may name: the statement itself leaves out what is large."""
        return _GET_ROWS, _GET_ROWS

    async def get_columns(
        self, topic: Topic, ids: Sequence[str], now: int
    ) -> tuple[UnleasedMessages, list[tuple[int, Message]]]:
        """The same, mostly as columns."""
        return await self._database.read(lambda link: querying.get_columns(link, topic, ids))

    async def find_body(self, topic: Topic, digest: bytes) -> bytes | None:
        """No body: small bodies are part of their message's row, and only large ones are shared."""
        return None

    async def holders(self, topic: Topic, ids: Sequence[str], now: int) -> list[Holder | None]:
        """The holder of the live lease of each id."""
        return await self._database.look(lambda link: owning.holders(link, topic, ids, now))

    async def count(self, topic: Topic, where: Filter, now: int) -> int:
        """How many messages match."""
        counts = await self.histogram(topic, where, 2**63, now)
        return sum(rows for _, rows in counts)

    async def histogram(self, topic: Topic, where: Filter, step: int, now: int) -> list[tuple[int, int]]:
        """Counts by step of time."""
        return await self._database.look(lambda link: querying.histogram(link, topic, where, step, now))

    async def browse(self, topic: Topic, where: Filter, cursor: bytes | None, limit: int, now: int) -> Page:
        """One page of messages."""
        return await self._database.look(lambda link: querying.browse(link, topic, where, cursor, limit, now))

    async def oldest(self, topic: Topic, now: int, count: int) -> list[tuple[int, int]]:
        """The oldest available message of each priority."""
        if topic.by_priority:
            asked = (places_of(topic), now, (count + 1) // 2)
            rows = await self._database.read(lambda link: link.fetch("outermost", *asked))
        else:
            rows = await self._database.read(lambda link: link.fetch("oldest", places_of(topic), now))
        return outermost({row["priority"]: row["ts"] for row in rows}, count)

    async def copies(self, topic: Topic) -> list[Copies]:
        """The server, which has all buckets, and its standbys."""
        buckets = topic.settings.buckets
        return [await self._database.read(lambda link: copies_of(link, "", buckets))]

    async def snapshot(self, topic: Topic, now: int) -> PostgresSnapshot:
        """A view of a topic, which holds a connection until the view or the store is closed."""
        self._database.check_working()
        # The server ends the transaction of a frozen broker, as the broker ends one that nobody reads.
        patience = str(limits.SNAPSHOT_IDLE_MS_MAX + _SNAPSHOT_SLACK_MS)
        connection = await self._database.connect(idle_in_transaction_session_timeout=patience)
        try:
            await connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
            counts = await querying.histogram(PostgresLink(connection, 0), topic, Filter(), 2**63, now)
        except BaseException as error:
            connection.terminate()
            if isinstance(error, DRIVER_ERRORS):
                raise failure_of(error, self._address) from None
            raise
        snapshot = PostgresSnapshot(connection, topic, now, sum(rows for _, rows in counts))
        self._snapshots.add(snapshot)
        return snapshot
