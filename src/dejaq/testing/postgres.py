"""A real PostgreSQL server on a free loopback port, with its data in a directory that goes with it.

    with PostgresServer() as server:
        storage = PostgresStorage(server.dsn, cluster="mine")

It runs as the user `postgres` where this process is root, since the server refuses to run as root. `fsync` is on.
"""

from __future__ import annotations

import atexit
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from dejaq.storage.postgres import schema
from dejaq.storage.postgres.address import Address
from dejaq.storage.postgres.database import Database
from dejaq.storage.postgres.store import PostgresStorage
from dejaq.testing.network import Machine
from dejaq.testing.process import HOST, free_port
from dejaq.testing.waiting import wait_until

_SETTINGS = {
    "unix_socket_directories": "",
    "shared_buffers": "64MB",
    "max_connections": "100",
    "autovacuum_naptime": "10s",
}
_STOP_SECONDS = 20.0
_TABLES = [
    *("message", "lease", "counter", "session", "journal", "origin", "topic", "writer", "parcel", "merge"),
    *("large_body", "large_part"),
]


class ServerMissing(RuntimeError):
    """This machine has no PostgreSQL server; scripts/install_system.sh installs it."""


def programs() -> Path:
    """The directory of the newest PostgreSQL server's programs; raises ServerMissing."""
    versions = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda one: float(one.parts[-3]))
    if versions:
        return versions[-1].parent
    found = shutil.which("initdb")
    if found is None:
        raise ServerMissing("no PostgreSQL server here; run scripts/install_system.sh")
    return Path(found).resolve().parent


class PostgresServer:
    """One server. `settings` are lines of postgresql.conf; a directory that is given is kept at the end."""

    def __init__(
        self, path: Path | None = None, *, settings: Mapping[str, str] | None = None, machine: Machine | None = None
    ) -> None:
        """On a `machine` it listens there, to everybody."""
        self._programs = programs()
        self.host = machine.host if machine is not None else HOST
        self._wrapper = machine.wrapper if machine is not None else []
        self._kept = path is not None
        self._path = path
        self._settings = _SETTINGS | {"listen_addresses": self.host} | dict(settings or {})
        self.port = free_port()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def path(self) -> Path:
        """Its data directory."""
        assert self._path is not None, "the server was never started"
        return self._path

    @property
    def pid(self) -> int:
        """Its process."""
        assert self._process is not None, "the server does not run"
        return self._process.pid

    @property
    def dsn(self) -> str:
        """Where it is, for its administrator."""
        return self.dsn_of("postgres")

    def dsn_of(self, user: str, *, password: str = "", database: str = "postgres") -> str:
        """Where it is, for a user."""
        secret = f":{password}" if password else ""
        return f"postgres://{user}{secret}@{self.host}:{self.port}/{database}"

    def start(self) -> None:
        """Make the directory where it is not there, and run the server until it takes connections."""
        if self._path is None:
            self._path = _new_folder()
        if not (self.path / "PG_VERSION").exists():
            self._make()
        options = [part for name, value in self._settings.items() for part in ("-c", f"{name}={value}")]
        with (self.path / "server.log").open("ab") as log:
            self._process = subprocess.Popen(
                [
                    *self._wrapper,
                    *as_user(),
                    self._programs / "postgres",
                    "-D",
                    self.path,
                    "-p",
                    str(self.port),
                    *options,
                ],
                stdout=log,
                stderr=log,
            )
        self.wait()

    def standby(self) -> PostgresServer:
        """A copy that follows this server and takes no writes; not started yet."""
        path = _new_folder()
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
        """Make a database; where it is."""
        self._run("createdb", "-h", HOST, "-p", str(self.port), "-U", "postgres", name)
        return self.dsn_of("postgres", database=name)

    def wait(self) -> None:
        """Wait until it takes connections."""
        for _ in range(600):
            if self._process is None or self._process.poll() is not None:
                raise RuntimeError(f"the server ended: {self.log()[-2_000:]}")
            ready = self._run("pg_isready", "-q", "-h", self.host, "-p", str(self.port), "-t", "1", check=False)
            if ready == 0:
                return
        raise RuntimeError("the server takes no connections")

    def log(self) -> str:
        """What it said."""
        return (self.path / "server.log").read_text(errors="replace")

    def stop(self, *, fast: bool = True) -> None:
        """End it: connections are cut, what is committed is written."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGINT if fast else signal.SIGQUIT)
            self._process.wait(_STOP_SECONDS)
        self._process = None

    def kill(self) -> None:
        """End it without a word, as a crash does."""
        if self._process is None:
            return
        children = _children(self._process.pid)
        self._process.kill()
        self._process.wait(_STOP_SECONDS)
        self._process = None
        # They notice by themselves that it is gone; before that no other may take the directory.
        wait_until(lambda: not any(map(_runs, children)), within=_STOP_SECONDS, what="the server's processes end")
        (self.path / "postmaster.pid").unlink(missing_ok=True)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End it and remove what is its own."""
        self.stop(fast=True)
        if not self._kept and self._path is not None:
            shutil.rmtree(self._path, ignore_errors=True)

    def _make(self) -> None:
        if as_user():
            shutil.chown(self.path, "postgres", "postgres")
        self.path.chmod(0o700)
        self._run("initdb", "-D", str(self.path), "-A", "trust", "-U", "postgres", "-E", "UTF8", "--locale=C")
        if self.host != HOST:
            with (self.path / "pg_hba.conf").open("a") as rules:
                rules.write("host all all 0.0.0.0/0 trust\n")

    def _run(self, program: str, *arguments: str, check: bool = True) -> int:
        command: Sequence[str | Path] = [*as_user(), self._programs / program, *arguments]
        done = subprocess.run(command, capture_output=True, cwd="/", check=False)
        if check and done.returncode:
            raise RuntimeError(f"{program} failed: {done.stderr.decode(errors='replace')[-2_000:]}")
        return done.returncode


def _stat(pid: int) -> list[str]:
    """What the system tells of a process, from its state on; nothing of one that is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def _children(pid: int) -> list[int]:
    everybody = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdecimal()]
    return [one for one in everybody if _stat(one)[1:2] == [str(pid)]]


def _runs(pid: int) -> bool:
    return _stat(pid)[:1] not in ([], ["Z"])


def _new_folder() -> Path:
    """What is tried is seldom the disk: where there is a disk in memory, syncs cost nothing."""
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    return Path(tempfile.mkdtemp(prefix="dejaq-postgres-", dir=memory))


def as_user() -> list[str]:
    """The command that runs another as the user `postgres`, where that is needed.

    Not by `subprocess` itself: that would fork, which a process that uses gRPC does not always survive.
    """
    return ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups", "--"] if os.geteuid() == 0 else []


@lru_cache(maxsize=1)
def shared_server() -> PostgresServer:
    """One server for all tests of this process."""
    server = PostgresServer()
    server.start()
    atexit.register(server.close)
    return server


class FreshStorage(PostgresStorage):
    """A storage that is empty when it is first opened; `place` is shared by those over the same contents."""

    def __init__(self, place: dict[str, bool], dsn: str, **options: Any) -> None:
        super().__init__(dsn, **options)
        self._place = place

    async def open(self, now: int) -> None:
        """Open it, and at the first time of its place remove what others left."""
        if not self._place.get("emptied"):
            self._place["emptied"] = True
            await empty(self._database, self._address)
        await super().open(now)


async def empty(database: Database, address: Address) -> None:
    """Remove what a store holds, and make it where it is not there."""
    connection = await database.connect()
    await schema.check(connection, address)
    await connection.execute(";".join(f"DELETE FROM {table}" for table in _TABLES))
    # Which shard has a bucket depends on the topic's number; what is tried again must come out the same.
    await connection.execute("ALTER SEQUENCE topic_number RESTART")
    await connection.close()
