"""Connections to the server, and changes that are made once however often the connection breaks.

A change is a transaction. The server's refusal to serialize it, or a lost connection before its commit, undoes it,
and it is made again until the patience ends. A connection lost *during* the commit leaves the outcome unknown: every
change also counts up a row of its connection, and that count tells. It is looked at in a transaction that writes, so
that its own commit vouches, on every replica, for what it saw. Nothing ever cancels a commit: a caller that goes away
leaves it running.
"""

from __future__ import annotations

import asyncio
import logging
import random
import socket
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import asyncpg

from dejaq.crashpoints import crash_at
from dejaq.errors import Code, DejaqError, Indefinite, StoreError
from dejaq.storage.postgres.address import Address
from dejaq.storage.postgres.connecting import connect
from dejaq.storage.postgres.failures import DRIVER_ERRORS, Kind, failure_of, kind_of, sentence_of
from dejaq.storage.postgres.queries import SQL

log = logging.getLogger(__name__)
Result = TypeVar("Result")

SHARDS = 64
CONNECT_SECONDS = 5.0
# How long a silent peer is taken for alive; a server that waits for its standbys answers these.
_SILENCE_SECONDS = 10
_PAUSE_SECONDS_MIN, _PAUSE_SECONDS_MAX = 0.01, 0.5
# Every statement is made for its index; the planner has nothing to weigh, and must not be led astray by a table that
# was empty when it last looked: rows are dear, pages are in memory.
_SETTINGS = {
    "application_name": "dejaq",
    "jit": "off",
    "enable_seqscan": "off",
    "enable_bitmapscan": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
    "enable_sort": "off",
    "seq_page_cost": "0.1",
    "random_page_cost": "0.1",
    "cpu_tuple_cost": "0.1",
    "cpu_index_tuple_cost": "0.05",
    "plan_cache_mode": "force_generic_plan",
    "timezone": "UTC",
}


@dataclass(slots=True, eq=False)
class Link:
    """One connection, and its row in the table of writers."""

    connection: asyncpg.Connection
    writer: int
    # How many changes it made, with the one that is being made.
    changes: int = 0
    # The server said that a commit was not replicated as it should be.
    doubtful: bool = False

    @property
    def shard(self) -> int:
        """The shard of the counters that it keeps to."""
        return self.writer % SHARDS

    async def fetch(self, name: str, *arguments: object) -> list[asyncpg.Record]:
        """The rows of a named query."""
        records: list[asyncpg.Record] = await self.connection.fetch(SQL[name], *arguments)
        return records

    async def value(self, name: str, *arguments: object) -> Any:
        """The first value of a named query."""
        return await self.connection.fetchval(SQL[name], *arguments)

    async def execute(self, name: str, *arguments: object) -> None:
        """Run a named query."""
        await self.connection.execute(SQL[name], *arguments)


Work = Callable[[Link], Awaitable[Result]]


class Database:
    """A few connections to one server, opened when they are needed."""

    def __init__(self, address: Address, *, connections: int, patience_ms: int) -> None:
        self.address = address
        self._patience = patience_ms / 1_000
        self._free: list[Link] = []
        self._room = asyncio.Semaphore(connections)
        # Long looks leave connections to those who change something.
        self._looking = asyncio.Semaphore(max(1, connections // 2))
        self._tasks: set[asyncio.Task[Any]] = set()
        self._failure: str | None = "the store is not open"
        self.retries = 0

    @property
    def failure(self) -> str | None:
        """Why nothing is taken, or None."""
        return self._failure

    async def connect(self, **settings: str) -> asyncpg.Connection:
        """A new connection to the server that takes writes."""
        connection = await connect(
            self.address.dsn,
            seconds=CONNECT_SECONDS,
            # The query of a lease grows with its buckets, and to plan it takes longer than to run it.
            max_cacheable_statement_size=0,
            server_settings=_SETTINGS | {"search_path": f'"{self.address.schema}"'} | settings,
        )
        endpoint = connection._transport.get_extra_info("socket")
        if endpoint is not None and endpoint.family in (socket.AF_INET, socket.AF_INET6):
            _keep_alive(endpoint)
        return connection

    async def open(self, check: Callable[[asyncpg.Connection], Awaitable[None]]) -> None:
        """Reach the server, check what is there, write something, and take requests from then on."""
        for link in self._drain():
            link.connection.terminate()
        connection = await self.connect()
        try:
            await check(connection)
            self._free.append(await self._new_link(connection))
        except BaseException:
            connection.terminate()
            raise
        self._failure = None

    async def close(self) -> None:
        """Wait for what is under way, then leave the server."""
        self._failure = "the store is not open"
        if self._tasks:
            await asyncio.wait(self._tasks)
        links = self._drain()
        if links:
            await self._forget(links)
        for link in links:
            await self._leave(link)

    def fail(self, reason: str) -> None:
        """Take no more requests until somebody recovers the store."""
        if self._failure is None:
            log.warning("the store fails: %s", reason)
            self._failure = reason

    def check_working(self) -> None:
        """Raise STORE_FAILED unless requests are taken."""
        if self._failure is not None:
            raise StoreError(f"the storage takes no requests: {self._failure}", code=Code.STORE_FAILED)

    # Changes and looks

    async def change(self, work: Work[Result], *, relaxed: bool = False) -> Result:
        """Do `work` in a transaction and commit it, once."""
        begin = "BEGIN; SET LOCAL synchronous_commit TO off" if relaxed else "BEGIN"
        return await self._patiently(self._change(work, begin))

    async def step(self, work: Work[Result]) -> Result:
        """Do `work`, a single statement that commits by itself; doing it twice must do no harm."""
        return await self._patiently(self._change(work, ""))

    async def once(self, work: Work[None]) -> None:
        """Do `work`, a single statement that commits by itself and counts the change, once."""
        await self._patiently(self._change(work, "", counted=True))

    async def read(self, work: Work[Result]) -> Result:
        """Do `work`, a single statement that only reads, however long it takes."""
        return await self._patiently(self._change(work, ""), limited=False)

    async def look(self, work: Work[Result]) -> Result:
        """Do `work`, which only reads, in one view of the database, however long it takes."""
        begin = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"
        async with self._looking:
            return await self._patiently(self._change(work, begin), limited=False)

    async def _patiently(self, change: Coroutine[Any, Any, Result], *, limited: bool = True) -> Result:
        try:
            self.check_working()
        except DejaqError:
            change.close()
            raise
        task = asyncio.get_running_loop().create_task(change)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        # Twice the patience: the change gives up by itself, unless its commit neither comes nor fails.
        done, _ = await asyncio.wait((task,), timeout=2 * self._patience if limited else None)
        if not done:
            self.fail(f"{self.address} does not answer")
            raise Indefinite(f"{self.address} has not answered in time; the outcome is unknown")
        return task.result()

    async def _change(self, work: Work[Result], begin: str, *, counted: bool = False) -> Result:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._patience
        pause = _PAUSE_SECONDS_MIN
        while True:
            attempt = _Attempt[Result](work, begin, counted=counted)
            try:
                return await self._with_link(attempt)
            except DejaqError:
                raise
            except Exception as error:
                if attempt.may_stand(kind_of(error)):
                    if await self._resolve(attempt, deadline):
                        result: Result = attempt.result()
                        return result
                elif kind_of(error) is Kind.STANDS:
                    if not isinstance(error, DRIVER_ERRORS):
                        log.exception("a change failed by a fault of our own")
                    self._note(error)
                    raise failure_of(error, self.address) from None
                if loop.time() >= deadline:
                    self.fail(sentence_of(error, self.address))
                    raise failure_of(error, self.address) from None
                self.retries += 1
                log.debug("a change is made again: %r", error)
                await asyncio.sleep(pause * random.uniform(0.5, 1.0))
                pause = min(2 * pause, _PAUSE_SECONDS_MAX)

    async def _resolve(self, attempt: _Attempt[Any], deadline: float) -> bool:
        """Whether a change whose commit was cut is there for good; raises Indefinite when nobody can tell in time."""
        writer, change = attempt.receipt
        if not change:
            return False

        async def look(link: Link) -> bool:
            count = await link.value("change_of_writer", writer)
            return count is not None and count >= change

        loop = asyncio.get_running_loop()
        pause = _PAUSE_SECONDS_MIN
        while True:
            try:
                return await self._with_link(_Attempt(look, "BEGIN"))
            except Exception as error:  # noqa: BLE001  `kind_of` says what it means
                if isinstance(error, DejaqError) or kind_of(error) is Kind.STANDS or loop.time() >= deadline:
                    self.fail(sentence_of(error, self.address))
                    raise Indefinite(
                        "the storage failed during a commit; the outcome is unknown",
                        details=sentence_of(error, self.address),
                    ) from None
                await asyncio.sleep(pause)
                pause = min(2 * pause, _PAUSE_SECONDS_MAX)

    def _note(self, error: Exception) -> None:
        """A fault that stands for every other request too stops the store."""
        state = getattr(error, "sqlstate", "") or ""
        if state[:2] in ("53", "58", "28", "3F", "XX") or state in ("42501", "42P01"):
            self.fail(sentence_of(error, self.address))

    async def _with_link(self, attempt: _Attempt[Result]) -> Result:
        async with self._room:
            link = self._free.pop() if self._free else await self._new_link(await self.connect())
            try:
                result = await attempt.run(link)
            except BaseException as error:
                await self._put_back(link, error)
                raise
            if link.doubtful:
                link.connection.terminate()
                raise asyncpg.ConnectionDoesNotExistError("a commit was not replicated as it should be")
            self._free.append(link)
            return result

    async def _new_link(self, connection: asyncpg.Connection) -> Link:
        link = Link(connection, await connection.fetchval(SQL["new_writer"]))

        def heard(_: asyncpg.Connection, message: asyncpg.PostgresLogMessage) -> None:
            # 01000 at a commit: the wait for the standbys was cancelled, the change is on this server only.
            if message.sqlstate == "01000" and "replicat" in str(message):
                link.doubtful = True

        link.connection.add_log_listener(heard)
        return link

    async def _put_back(self, link: Link, error: BaseException) -> None:
        """Keep a connection that only refused; drop one that is gone or in an unknown state."""
        connection = link.connection
        refused = isinstance(error, DejaqError) or (
            isinstance(error, asyncpg.PostgresError) and kind_of(error) is not Kind.LOST
        )
        if refused and not connection.is_closed():
            try:
                if connection.is_in_transaction():
                    await connection.execute("ROLLBACK")
                self._free.append(link)
                return
            except Exception as another:  # noqa: BLE001  whatever it is, the connection is not used again
                log.debug("a connection is dropped: %r", another)
        connection.terminate()

    def _drain(self) -> list[Link]:
        links, self._free = self._free, []
        return links

    async def _forget(self, links: list[Link]) -> None:
        try:
            await links[0].connection.execute(SQL["drop_writers"], [link.writer for link in links])
        except Exception as error:  # noqa: BLE001  a few rows too many do no harm
            log.debug("writers are left behind: %r", error)

    async def _leave(self, link: Link) -> None:
        try:
            await link.connection.close(timeout=CONNECT_SECONDS)
        except DRIVER_ERRORS:
            link.connection.terminate()


class _Attempt(Generic[Result]):
    """One try of a change, and how far it came."""

    def __init__(self, work: Work[Result], begin: str, *, counted: bool = False) -> None:
        """A `counted` one without a `begin` is one statement, which counts the change; it has no result."""
        self._work = work
        self._begin = begin
        self._counted = counted
        self._results: list[Result] = []
        self._ending = False
        # The writer, and the number of its change; 0 where nothing was changed.
        self.receipt = (0, 0)

    def result(self) -> Any:
        """What the work gave."""
        return self._results[0] if self._results else None

    def may_stand(self, kind: Kind) -> bool:
        """Whether the change may be there although it ended with an error of this kind."""
        # A statement that the server refuses is undone with everything; of a commit this is not so sure.
        return self._ending and (kind is Kind.LOST or (kind is Kind.STANDS and bool(self._begin)))

    async def run(self, link: Link) -> Result:
        """Begin, work, commit."""
        crash_at("storage.before_write")
        if not self._begin:
            if self._counted:
                self.receipt, self._ending = (link.writer, link.changes + 1), True
            result = await self._work(link)
            crash_at("storage.after_sync")
            return result
        changes = link.changes
        await link.connection.execute(self._begin)
        self._results.append(await self._work(link))
        self.receipt = (link.writer, link.changes if link.changes > changes else 0)
        self._ending = True
        crash_at("storage.after_write")
        await link.connection.execute("COMMIT")
        crash_at("storage.after_sync")
        return self._results[0]


def _keep_alive(endpoint: socket.socket) -> None:
    """Notice a peer that is gone, however long an answer takes."""
    endpoint.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (
        ("TCP_KEEPIDLE", 2),
        ("TCP_KEEPINTVL", 2),
        ("TCP_KEEPCNT", 4),
        ("TCP_USER_TIMEOUT", _SILENCE_SECONDS * 1_000),
    ):
        if hasattr(socket, name):
            endpoint.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
