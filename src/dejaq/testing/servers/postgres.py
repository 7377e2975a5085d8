"""A real PostgreSQL server on a free loopback port, with its data in a directory that is removed with it.

    with PostgresServer() as server:
        storage = PostgresStorage(server.dsn, cluster="mine")

It runs as the user `postgres` where this process is root, since the server refuses to run as root. `fsync` is on.
"""

from __future__ import annotations

import atexit
import shutil
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from dejaq.storage.postgres.connection import schema
from dejaq.storage.postgres.connection.address import Address
from dejaq.storage.postgres.connection.database import PostgresDatabase
from dejaq.storage.postgres.store import PostgresStorage
from dejaq.testing.servers.memory_folder import new_folder, remove_folder
from dejaq.testing.servers.network import Machine
from dejaq.testing.waiting import wait_until
from dejaq.trial.ports import HOST
from dejaq.trial.postgres import STOP_SECONDS, PostgresProcess, ServerMissing, as_user, programs

__all__ = ["FreshStorage", "PostgresServer", "ServerMissing", "as_user", "empty", "programs", "shared_server"]

_TABLES = [
    *(
        "message",
        "lease",
        "counter",
        "count_list",
        "session",
        "journal",
        "origin",
        "topic",
        "writer",
        "parcel",
        "merge",
    ),
    *("large_body", "large_part", "created_id", "created_count"),
    *("log_bucket", "log_batch", "log_window", "log_name", "log_session", "log_offset"),
    *("log_member", "log_holder", "log_prepared"),
]


class PostgresServer(PostgresProcess):
    """One server for tests, with copies and crashes. A directory that is given is not removed at the end."""

    def __init__(
        self, path: Path | None = None, *, settings: Mapping[str, str] | None = None, machine: Machine | None = None
    ) -> None:
        """On a `machine` the server listens on that machine's address and accepts every client."""
        super().__init__(
            path,
            settings=settings,
            host=machine.host if machine is not None else HOST,
            wrapper=machine.wrapper if machine is not None else (),
        )
        self._kept = path is not None

    def start(self) -> None:
        """Make the directory where there is none, and run the server until it takes connections."""
        if self._path is None:
            self._path = new_folder("postgres")
        super().start()

    def standby(self) -> PostgresServer:
        """A copy that replicates this server and accepts no writes; it is not started yet."""
        path = new_folder("postgres")
        if as_user():
            shutil.chown(path, "postgres", "postgres")
        self._run(
            "pg_basebackup",
            "-h",
            self.host,
            "-p",
            str(self.port),
            "-U",
            "postgres",
            "-D",
            str(path),
            "-R",
            "-X",
            "stream",
        )
        follower = PostgresServer(path, settings=self._settings)
        follower._kept = False
        return follower

    def new_database(self, name: str) -> str:
        """Create a database and return its address."""
        self._run("createdb", "-h", HOST, "-p", str(self.port), "-U", "postgres", name)
        return self.dsn_of("postgres", database=name)

    def kill(self) -> None:
        """Kill the server without warning, as a crash does."""
        if self._process is None:
            return
        children = _children(self._process.pid)
        self._process.kill()
        self._process.wait(STOP_SECONDS)
        self._process = None
        # The child processes notice by themselves that the server is gone; until then no other server may use the
        # directory.
        wait_until(lambda: not any(map(_runs, children)), within=STOP_SECONDS, what="the server's processes end")
        (self.path / "postmaster.pid").unlink(missing_ok=True)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Stop the server and remove its own files."""
        self.stop(fast=True)
        if not self._kept and self._path is not None:
            remove_folder(self._path)


def _stat(pid: int) -> list[str]:
    """The entries of /proc/PID/stat from the process's state on; empty when the process is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def _children(pid: int) -> list[int]:
    everybody = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdecimal()]
    return [one for one in everybody if _stat(one)[1:2] == [str(pid)]]


def _runs(pid: int) -> bool:
    return _stat(pid)[:1] not in ([], ["Z"])


@lru_cache(maxsize=1)
def shared_server() -> PostgresServer:
    """One server for all tests of this process."""
    server = PostgresServer()
    server.start()
    atexit.register(server.close)
    return server


class FreshStorage(PostgresStorage):
    """A storage that is empty when it is first opened; storages over the same contents share `place`."""

    def __init__(self, place: dict[str, bool], dsn: str, **options: Any) -> None:
        super().__init__(dsn, **options)
        self._place = place

    async def open(self, now: int) -> None:
        """Open the storage; the first time for its place, remove the contents that others left."""
        if not self._place.get("emptied"):
            self._place["emptied"] = True
            await empty(self._database, self._address)
        await super().open(now)


async def empty(database: PostgresDatabase, address: Address) -> None:
    """Remove the contents of a store, and create its schema if it does not exist."""
    connection = await database.connect()
    await schema.check(connection, address)
    await connection.execute(";".join(f"DELETE FROM {table}" for table in _TABLES))
    # The shard of a bucket depends on the topic's number; a repeated test must have the same result.
    await connection.execute("ALTER SEQUENCE topic_number RESTART")
    await connection.close()
