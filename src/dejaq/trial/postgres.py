"""A PostgreSQL server on a free loopback port.

It runs as the user `postgres` where this process is root, since the server refuses to run as root. `fsync` is on.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from dejaq.trial.ports import HOST, free_port

_SETTINGS = {
    "unix_socket_directories": "",
    "shared_buffers": "64MB",
    "max_connections": "100",
    "autovacuum_naptime": "10s",
}
STOP_SECONDS = 20.0


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


class PostgresProcess:
    """One server with its data in `path`. `settings` are lines of postgresql.conf."""

    def __init__(
        self,
        path: Path | None = None,
        *,
        settings: Mapping[str, str] | None = None,
        host: str = HOST,
        wrapper: Sequence[str] = (),
    ) -> None:
        """On another `host` it accepts all clients; `wrapper` is the command that runs a program there."""
        self._programs = programs()
        self.host = host
        self._wrapper = list(wrapper)
        self._path = path
        self._settings = _SETTINGS | {"listen_addresses": self.host} | dict(settings or {})
        self.port = free_port()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def path(self) -> Path:
        """Its data directory."""
        assert self._path is not None, "the server has no directory yet"
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
        """Make the data directory if it is empty, and run the server until it takes connections."""
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
            self._process.wait(STOP_SECONDS)
        self._process = None

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


def as_user() -> list[str]:
    """The command that runs another as the user `postgres`, where that is needed.

    Not by `subprocess` itself: that would fork, which a process that uses gRPC does not always survive.
    """
    return ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups", "--"] if os.geteuid() == 0 else []
