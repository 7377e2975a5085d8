"""What keeps the tables small while they are used: dead rows, old sessions and scattered counts."""

from __future__ import annotations

import asyncio
import logging

from dejaq import limits
from dejaq.storage.postgres.change import MINUTE_MS
from dejaq.storage.postgres.database import Database, Link
from dejaq.storage.postgres.failures import DRIVER_ERRORS

log = logging.getLogger(__name__)

# The server looks after its tables once a minute; in that time a busy queue leaves a million dead rows behind.
VACUUM_ROWS = 100_000
_TABLES = "message, lease, journal, counter, session, writer, large_body, large_part"
_HOUR_MS = 3_600_000
_NEAR_MINUTES = 15


class Upkeep:
    """Counts what is left behind, and cleans up beside the work when it is enough."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._task: asyncio.Task[None] | None = None
        self._dead = 0
        self._looked_at: int | None = None
        self.vacuums = 0

    def changed(self, rows: int, now: int) -> None:
        """Rows were rewritten or removed."""
        self._dead += rows
        if self._task is not None and not self._task.done():
            return
        if self._looked_at is None:
            self._looked_at = now
        if self._dead >= VACUUM_ROWS:
            self._dead = 0
            self._start(self._vacuum())
        elif now - self._looked_at >= _HOUR_MS:
            self._looked_at = now
            self._start(self._tidy(now))

    async def close(self) -> None:
        """Wait for what is under way."""
        if self._task is not None:
            await asyncio.wait((self._task,))

    def _start(self, work: object) -> None:
        self._task = asyncio.get_running_loop().create_task(work)  # type: ignore[arg-type]

    async def _vacuum(self) -> None:
        try:
            connection = await self._database.connect()
            try:
                # Cutting the file's end would lock everybody out; the space is used again anyway.
                await connection.execute(f"VACUUM (SKIP_LOCKED, TRUNCATE FALSE) {_TABLES}")
                self.vacuums += 1
            finally:
                await connection.close()
        except DRIVER_ERRORS as error:
            log.debug("the tables were not cleaned: %r", error)

    async def _tidy(self, now: int) -> None:
        async def tidy(link: Link) -> None:
            await link.execute("forget_sessions", now - limits.PRODUCER_SESSION_MS_MAX)
            minute = now // MINUTE_MS
            await link.execute("fold_counters", minute - _NEAR_MINUTES, minute + _NEAR_MINUTES)
            await link.execute("drop_empty_counters")

        try:
            await self._database.change(tidy)
        except Exception as error:  # noqa: BLE001  it is tried again in an hour
            log.warning("old sessions and counts were not cleaned: %s", error)
