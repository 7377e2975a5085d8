"""Connections to the server, and changes that are made exactly once however often the connection breaks.

A change is a transaction. When the server refuses to serialize it, or the connection is lost before its commit, the
change is undone, and it is repeated until the time limit. When the connection is lost *during* the commit, the outcome
is unknown: every change also increments the counter in its connection's row, and this counter shows the outcome. It is
read in a transaction that writes, so that the commit of this transaction proves, on every replica, what it read. A
commit is never cancelled: when the caller is cancelled, the commit continues.
"""

from __future__ import annotations

import asyncio
import logging
import random
import socket
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import asyncpg

from dejaq.crashpoints import crash_at
from dejaq.errors import Code, DejaqError, Indefinite, StoreError, Unavailable
from dejaq.storage.postgres.connection.address import Address
from dejaq.storage.postgres.connection.connecting import connect
from dejaq.storage.postgres.connection.failures import (
    DRIVER_ERRORS,
    ErrorKind,
    failure_of,
    kind_of,
    sentence_of,
    tells_of_damage,
)
from dejaq.storage.postgres.queries import SQL

log = logging.getLogger(__name__)
Result = TypeVar("Result")

SHARDS = 64
CONNECT_SECONDS = 5.0
# How long the row of a broken connection is kept: until the outcome of every change of the connection is known.
WRITER_SECONDS = 600.0
# How long a silent peer counts as alive; a server that waits for its standbys still answers keep-alive packets.
_SILENCE_SECONDS = 10
_PAUSE_SECONDS_MIN, _PAUSE_SECONDS_MAX = 0.01, 0.5
# A broker that freezes within a transaction loses its connection, and with it its locks, before the time limit of
# others ends. A statement that waits longer for a lock ends with an error, and is then repeated.
IDLE_MS = 5_000
LOCK_MS = 4_000
# Every statement is written for its index, so the planner has no choice to make. It must not be misled by a table that
# was empty when it was last analysed: reading rows is expensive, and pages are in memory.
_SETTINGS = {
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
class PostgresLink:
    """One connection, and its row in the table of writers."""

    connection: asyncpg.Connection
    writer: int
    # How many changes it has made, including the change in progress.
    changes: int = 0
    # The server reported that a commit was not replicated as required.
    doubtful: bool = False

    @property
    def shard(self) -> int:
        """The shard of the counters that this connection updates."""
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


Work = Callable[[PostgresLink], Awaitable[Result]]


class PostgresDatabase:
    """A few connections to one server, opened when they are needed."""

    def __init__(self, address: Address, *, connections: int, patience_ms: int) -> None:
        self.address = address
        # The name of the connections at the server.
        self.name = "dejaq"
        self._patience = patience_ms / 1_000
        self._free: list[PostgresLink] = []
        # The writers of connections that broke, and the times.
        self._broken: deque[tuple[float, int]] = deque()
        self._room = asyncio.Semaphore(connections)
        # Long reads leave connections for changes.
        self._looking = asyncio.Semaphore(max(1, connections // 2))
        self._tasks: set[asyncio.Task[Any]] = set()
        self._failure: str | None = "the store is not open"
        # Whether the server has reported that the stored data is damaged.
        self.corrupt = False
        self.retries = 0

    @property
    def failure(self) -> str | None:
        """The reason why no requests are accepted, or None."""
        return self._failure

    async def connect(self, **settings: str) -> asyncpg.Connection:
        """A new connection to the server that accepts writes."""
        connection = await connect(
            self.address.dsn,
            seconds=CONNECT_SECONDS,
            # The query of a lease grows with its buckets, and planning it takes longer than running it.
            max_cacheable_statement_size=0,
            server_settings=_SETTINGS
            | {
                "search_path": f'"{self.address.schema}"',
                "application_name": self.name,
                # The server notices when a broker's machine is gone.
                "tcp_keepalives_idle": "5",
                "tcp_keepalives_interval": "2",
                "tcp_keepalives_count": "3",
                "idle_in_transaction_session_timeout": str(IDLE_MS),
                "lock_timeout": str(LOCK_MS),
                "tcp_user_timeout": str(_SILENCE_SECONDS * 1_000),
            }
            | settings,
        )
        endpoint = connection._transport.get_extra_info("socket")
        if endpoint is not None and endpoint.family in (socket.AF_INET, socket.AF_INET6):
            _keep_alive(endpoint)
        return connection

    async def open(self, check: Callable[[asyncpg.Connection], Awaitable[None]]) -> None:
        """Connect to the server, check its schema, write something, and accept requests from then on."""
        for link in self._drain():
            self._break(link)
        connection = await self.connect()
        try:
            await check(connection)
            self._free.append(await self._new_link(connection))
        except BaseException:
            connection.terminate()
            raise
        self._failure = None
        self.corrupt = False

    async def close(self) -> None:
        """Wait for the statements in progress, then close the connections."""
        self._failure = "the store is not open"
        if self._tasks:
            # A read may take any time; nothing is cancelled, because it may be a commit.
            _, left = await asyncio.wait(self._tasks, timeout=2 * self._patience)
            if left:
                log.warning("%d requests to %s are left without an answer", len(left), self.address)
        links = self._drain()
        if links:
            await self._forget(links)
        for link in links:
            await self._leave(link)

    def fail(self, reason: str) -> None:
        """Accept no more requests until `recover` succeeds."""
        if self._failure is None:
            log.warning("the store fails: %s", reason)
            self._failure = reason

    def check_working(self) -> None:
        """Raise STORE_FAILED unless requests are accepted."""
        if self._failure is not None:
            code = Code.STORE_CORRUPT if self.corrupt else Code.STORE_FAILED
            raise StoreError(f"the storage takes no requests: {self._failure}", code=code)

    # Changes and reads

    async def change(self, work: Work[Result], *, relaxed: bool = False) -> Result:
        """Do `work` in a transaction and commit it exactly once."""
        begin = "BEGIN; SET LOCAL synchronous_commit TO off" if relaxed else "BEGIN"
        return await self._patiently(self._change(work, begin))

    async def step(self, work: Work[Result]) -> Result:
        """Do `work`, a single statement that commits by itself; doing it twice must do no harm."""
        return await self._patiently(self._change(work, ""))

    async def once(self, work: Work[None]) -> None:
        """Do `work`, a single statement that commits by itself and counts the change, exactly once."""
        await self._patiently(self._change(work, "", counted=True))

    async def read(self, work: Work[Result]) -> Result:
        """Do `work`, a single statement that only reads, without a time limit."""
        return await self._patiently(self._change(work, ""), limited=False)

    async def look(self, work: Work[Result]) -> Result:
        """Do `work`, which only reads, in one view of the database, without a time limit."""
        # It holds no locks, and may compute for a long time between two statements.
        begin = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY; SET LOCAL idle_in_transaction_session_timeout = 0"
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
        # Twice the time limit: the change ends by itself, unless its commit neither succeeds nor fails.
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
                elif kind_of(error) is ErrorKind.STANDS:
                    if not isinstance(error, DRIVER_ERRORS):
                        log.exception("a change failed by a fault of our own")
                    self._note(error)
                    raise failure_of(error, self.address) from None
                if loop.time() >= deadline and kind_of(error) is ErrorKind.AGAIN:
                    # Other changes block this one for that long; the server itself works.
                    raise Unavailable(
                        "other changes to the same messages took too long; nothing was changed",
                        details=sentence_of(error, self.address),
                    ) from None
                if loop.time() >= deadline:
                    self.fail(sentence_of(error, self.address))
                    raise failure_of(error, self.address) from None
                self.retries += 1
                log.debug("a change is made again: %r", error)
                await asyncio.sleep(pause * random.uniform(0.5, 1.0))
                pause = min(2 * pause, _PAUSE_SECONDS_MAX)

    async def _resolve(self, attempt: _Attempt[Any], deadline: float) -> bool:
        """Whether the change of an interrupted commit is durable; raises Indefinite if no server answers in time."""
        writer, change = attempt.receipt
        if not change:
            return False

        async def look(link: PostgresLink) -> bool:
            count = await link.value("change_of_writer", writer)
            return count is not None and count >= change

        loop = asyncio.get_running_loop()
        pause = _PAUSE_SECONDS_MIN
        while True:
            try:
                return await self._with_link(_Attempt(look, "BEGIN"))
            except Exception as error:  # noqa: BLE001  `kind_of` says what it means
                if isinstance(error, DejaqError) or kind_of(error) is ErrorKind.STANDS or loop.time() >= deadline:
                    self.fail(sentence_of(error, self.address))
                    raise Indefinite(
                        "the storage failed during a commit; the outcome is unknown",
                        details=sentence_of(error, self.address),
                    ) from None
                await asyncio.sleep(pause)
                pause = min(2 * pause, _PAUSE_SECONDS_MAX)

    def _note(self, error: Exception) -> None:
        """Stop the store when a fault also affects every other request."""
        state = getattr(error, "sqlstate", "") or ""
        if tells_of_damage(error):
            self.corrupt = True
        if state[:2] in ("53", "58", "28", "3F", "XX") or state in ("42501", "42P01"):
            self.fail(sentence_of(error, self.address))

    async def _with_link(self, attempt: _Attempt[Result]) -> Result:
        async with self._room:
            link = self._free.pop() if self._free else await self._another_link()
            try:
                result = await attempt.run(link)
            except BaseException as error:
                await self._return_connection(link, error)
                raise
            if link.doubtful:
                self._break(link)
                raise asyncpg.ConnectionDoesNotExistError("a commit was not replicated as it should be")
            self._free.append(link)
            return result

    async def _another_link(self) -> PostgresLink:
        connection = await self.connect()
        try:
            return await self._new_link(connection)
        except BaseException:
            connection.terminate()
            raise

    async def _new_link(self, connection: asyncpg.Connection) -> PostgresLink:
        link = PostgresLink(connection, await connection.fetchval(SQL["new_writer"]))
        await self._forget_broken(connection)

        def heard(_: asyncpg.Connection, message: asyncpg.PostgresLogMessage) -> None:
            # 01000 at a commit: the wait for the standbys was cancelled, so the change is on this server only.
            if message.sqlstate == "01000" and "replicat" in str(message):
                link.doubtful = True

        link.connection.add_log_listener(heard)
        return link

    async def _return_connection(self, link: PostgresLink, error: BaseException) -> None:
        """Keep a connection whose request was only refused; close one that is broken or in an unknown state."""
        connection = link.connection
        refused = isinstance(error, DejaqError) or (
            isinstance(error, asyncpg.PostgresError) and kind_of(error) is not ErrorKind.LOST
        )
        if refused and not connection.is_closed():
            try:
                if connection.is_in_transaction():
                    await connection.execute("ROLLBACK")
                self._free.append(link)
                return
            except Exception as another:  # noqa: BLE001  whatever it is, the connection is not used again
                log.debug("a connection is dropped: %r", another)
        self._break(link)

    def _break(self, link: PostgresLink) -> None:
        link.connection.terminate()
        self._broken.append((asyncio.get_running_loop().time(), link.writer))

    async def _forget_broken(self, connection: asyncpg.Connection) -> None:
        """Remove the rows of connections that broke long ago; a remaining row does no harm."""
        before = asyncio.get_running_loop().time() - WRITER_SECONDS
        writers = [writer for at, writer in self._broken if at <= before]
        if writers:
            await connection.execute(SQL["drop_writers"], writers, timeout=CONNECT_SECONDS)
            for _ in writers:
                self._broken.popleft()

    def _drain(self) -> list[PostgresLink]:
        links, self._free = self._free, []
        return links

    async def _forget(self, links: list[PostgresLink]) -> None:
        writers = [link.writer for link in links] + [writer for _, writer in self._broken]
        try:
            # A commit that waits for a standby which is away would keep the broker from stopping.
            await links[0].connection.execute("SET synchronous_commit TO local", timeout=CONNECT_SECONDS)
            await links[0].connection.execute(SQL["drop_writers"], writers, timeout=CONNECT_SECONDS)
            self._broken.clear()
        except Exception as error:  # noqa: BLE001  a few rows too many do no harm
            log.debug("writers are left behind: %r", error)

    async def _leave(self, link: PostgresLink) -> None:
        try:
            await link.connection.close(timeout=CONNECT_SECONDS)
        except DRIVER_ERRORS:
            link.connection.terminate()


class _Attempt(Generic[Result]):
    """One try of a change, and its progress."""

    def __init__(self, work: Work[Result], begin: str, *, counted: bool = False) -> None:
        """A `counted` try without a `begin` is one statement, which counts the change; it has no result."""
        self._work = work
        self._begin = begin
        self._counted = counted
        self._results: list[Result] = []
        self._ending = False
        # The writer, and the number of its change; 0 when nothing was changed.
        self.receipt = (0, 0)

    def result(self) -> Any:
        """The result of the work."""
        return self._results[0] if self._results else None

    def may_stand(self, kind: ErrorKind) -> bool:
        """Whether the change may be committed although the try ended with an error of this kind."""
        # A statement that the server refuses is undone completely; for a refused commit this is not certain.
        return self._ending and (kind is ErrorKind.LOST or (kind is ErrorKind.STANDS and bool(self._begin)))

    async def run(self, link: PostgresLink) -> Result:
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
    """Detect a peer that is gone, however long an answer takes."""
    endpoint.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (
        ("TCP_KEEPIDLE", 2),
        ("TCP_KEEPINTVL", 2),
        ("TCP_KEEPCNT", 4),
        ("TCP_USER_TIMEOUT", _SILENCE_SECONDS * 1_000),
    ):
        if hasattr(socket, name):
            endpoint.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
