"""Keeps the tables small during use: removes dead rows, old sessions and scattered counts."""

from __future__ import annotations

import asyncio
import logging

from dejaq import limits
from dejaq.storage.postgres.connection.database import PostgresDatabase, PostgresLink
from dejaq.storage.postgres.connection.failures import DRIVER_ERRORS
from dejaq.storage.postgres.operations.counting import MINUTE_MS
from dejaq.storage.postgres.queries import SQL

log = logging.getLogger(__name__)

# The server cleans its tables once per minute; in that time a busy queue leaves a million dead rows.
VACUUM_ROWS = 100_000
# A cleaning reads all indexes of the messages, so it waits until this part of the messages is dead.
VACUUM_SHARE = 0.1
# So many rows that an owner changed count as one: they are not where leases read, so they cost nothing but space.
SCATTERED_ROWS = 2
# It pauses so often that it takes about a quarter of a core from deliveries.
_VACUUM_SETTINGS = {"lock_timeout": "0", "vacuum_cost_delay": "1ms", "vacuum_cost_limit": "200"}
_LARGE_TABLES = "large_body, large_part"
_TABLES = "message, lease, journal, counter, count_list, session, writer, large_body, large_part, created_id"
# Lists of counts are joined when there are this many minutes in new ones. Reading as many takes about 10 ms.
JOINED_MINUTES = 60_000
_HOUR_MS = 3_600_000
CLOSE_SECONDS = 5.0
_NEAR_MINUTES = 15
_FORGET_IDS = 20_000


class Upkeep:
    """Counts dead rows, and cleans up in the background when there are enough."""

    def __init__(self, database: PostgresDatabase) -> None:
        self._database = database
        self._task: asyncio.Task[None] | None = None
        self._dead = 0
        self._dead_max = VACUUM_ROWS
        self._listed = 0
        self._large = False
        self._looked_at: int | None = None
        self.vacuums = 0

    def stats(self) -> dict[str, float]:
        """Numbers for the metrics, with those of the connections."""
        return {"retries": self._database.retries, "vacuums": self.vacuums}

    def changed(self, rows: int, now: int, *, listed: int = 0) -> None:
        """Count rows that were rewritten or removed, and minutes that were written in lists of counts."""
        self._dead += rows
        self._listed += listed
        if self._busy:
            return
        if self._looked_at is None:
            self._looked_at = now
        if self._large:
            self._vacuum_large()
        elif self._dead >= self._dead_max:
            self._dead = 0
            self._start(self._vacuum(_TABLES))
        elif self._listed >= JOINED_MINUTES:
            self._listed = 0
            self._start(self._join_lists())
        elif now - self._looked_at >= _HOUR_MS:
            self._looked_at = now
            self._start(self._tidy(now))

    def removed_large(self) -> None:
        """Free the space of large bodies that were removed, now or after the cleaning in progress."""
        self._large = True
        if not self._busy:
            self._vacuum_large()

    def _vacuum_large(self) -> None:
        self._large = False
        self._start(self._vacuum(_LARGE_TABLES))

    @property
    def _busy(self) -> bool:
        return self._task is not None and not self._task.done()

    async def close(self) -> None:
        """Wait for the statements in progress, but not for a long VACUUM, which the server cancels."""
        if self._task is None:
            return
        done, _ = await asyncio.wait((self._task,), timeout=CLOSE_SECONDS)
        if not done:
            self._task.cancel()
            await asyncio.wait((self._task,), timeout=CLOSE_SECONDS)

    def _start(self, work: object) -> None:
        self._task = asyncio.get_running_loop().create_task(work)  # type: ignore[arg-type]

    async def _vacuum(self, tables: str) -> None:
        try:
            connection = await self._database.connect(**_VACUUM_SETTINGS)
            try:
                # Truncating the file would lock all other users out; the space is used again anyway.
                await connection.execute(f"VACUUM (SKIP_LOCKED, TRUNCATE FALSE) {tables}")
                self.vacuums += 1
                messages: float = await connection.fetchval(SQL["message_estimate"])
                self._dead_max = max(VACUUM_ROWS, int(VACUUM_SHARE * messages))
            finally:
                await connection.close()
        except DRIVER_ERRORS as error:
            log.debug("the tables were not cleaned: %r", error)

    async def _join_lists(self) -> None:
        try:
            await self._database.change(lambda link: link.execute("join_lists", JOINED_MINUTES))
        except Exception as error:  # noqa: BLE001  the next lists start it again
            log.warning("lists of counts were not joined: %s", error)

    async def _tidy(self, now: int) -> None:
        async def tidy(link: PostgresLink) -> None:
            await link.execute("forget_sessions", now - limits.PRODUCER_SESSION_MS_MAX)
            minute = now // MINUTE_MS
            await link.execute("list_counters", minute - _NEAR_MINUTES, minute + _NEAR_MINUTES)
            await link.execute("join_lists", 0)
            await link.execute("forget_created_counts", now)

        async def forget(link: PostgresLink) -> bool:
            answer: str = await link.connection.execute(SQL["forget_created"], now, _FORGET_IDS)
            return answer != "DELETE 0"

        try:
            await self._database.change(tidy)
            while await self._database.change(forget):
                pass
        except Exception as error:  # noqa: BLE001  it is tried again in an hour
            log.warning("old sessions and counts were not cleaned: %s", error)
