"""A real Patroni cluster of PostgreSQL servers with quorum synchronous replication, each on a machine of its own.

    with PatroniCluster(path, network, etcd=etcd.addresses, configuration=Path("deploy/patroni.yml")) as cluster:
        storage = PostgresStorage(cluster.dsn)
        primary = cluster.primary()
        primary.kill()                  # the server and its Patroni, as a power cut
        cluster.primary(other_than=primary)

The configuration is the administrators' own, for machines 10.0.0.1 and on; only addresses and paths are replaced.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from dejaq.testing.servers.memory_folder import new_folder, remove_folder
from dejaq.testing.servers.network import Machine, Network
from dejaq.testing.servers.postgres import as_user, programs
from dejaq.testing.waiting import wait_until

READY_SECONDS = 90.0
FAILOVER_SECONDS = 60.0
ASK_SECONDS = 1.0
PORT, API_PORT = 5432, 8008
_MACHINES = ("10.0.0.1", "10.0.0.2", "10.0.0.3")
_DATA = "/var/lib/postgresql/15/shop"
_PROGRAMS = "/usr/lib/postgresql/15/bin"


class PatroniServer:
    """One PostgreSQL server and the Patroni process that manages it."""

    def __init__(self, number: int, machine: Machine, folder: Path) -> None:
        self.name = f"shop-{number + 1}"
        self.machine = machine
        self.data = folder / self.name
        self.sockets = folder / f"{self.name}.sockets"
        self._file = folder / f"{self.name}.yml"
        self._log = folder / f"{self.name}.log"
        self._process: subprocess.Popen[bytes] | None = None

    def configure(self, configuration: str, *, etcd: Sequence[str], net: str) -> None:
        """Write its configuration file: the administrators' file, adapted to this machine."""
        self.sockets.mkdir(exist_ok=True)
        if as_user():
            shutil.chown(self.sockets, "postgres", "postgres")
        text = configuration
        for place, address in zip(_MACHINES, etcd, strict=True):
            text = text.replace(f"{place}:2379", address)
        text = text.replace("10.0.0.0/24", net).replace(_MACHINES[0], self.machine.host)
        # On one file system two servers would use the same directory of sockets.
        text = text.replace("/var/run/postgresql", str(self.sockets)).replace(_DATA, str(self.data))
        text = text.replace(_PROGRAMS, str(programs()))
        self._file.write_text(text.replace("shop-1", self.name))
        self._file.chmod(0o644)

    @property
    def running(self) -> bool:
        """Whether its Patroni process runs."""
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Start Patroni, which creates, joins or restores the server."""
        command = [*self.machine.wrapper, *_as_user(), sys.executable, "-m", "patroni", str(self._file)]
        # The server must not inherit the certificates and the locale of the test's environment.
        env = {"PATH": os.environ["PATH"], "LANG": "C.UTF-8", "HOME": str(self.data.parent)}
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd="/", env=env, start_new_session=True
            )

    def kill(self) -> None:
        """Kill the server and its Patroni at once, as a power failure would."""
        if self.machine.wrapper:
            self.machine.kill()
        else:
            for pid in self._processes():
                _end(pid)
        if self._process is not None:
            self._process.wait()
        wait_until(lambda: not self._processes(), within=10, what=f"{self.name} is gone")

    def _processes(self) -> list[int]:
        """Patroni, the postmaster, and their remaining processes."""
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                words = (folder / "cmdline").read_bytes().split(b"\0")
                where = os.fsencode((folder / "cwd").readlink())
            except OSError:
                continue
            if where == os.fsencode(self.data) or os.fsencode(self._file) in words:
                found.append(int(folder.name))
        return found

    def state(self) -> dict[str, Any]:
        """The server's state according to its Patroni; empty when it does not answer."""
        return _ask(f"http://{self.machine.host}:{API_PORT}/patroni")

    @property
    def is_primary(self) -> bool:
        """Whether the server says that it accepts writes."""
        state = self.state()
        return state.get("role") in ("primary", "master") and state.get("state") == "running"

    def log(self) -> str:
        """The log of Patroni and the server."""
        return self._log.read_text(errors="replace") if self._log.exists() else ""


class PatroniCluster:
    """Three servers; one accepts writes, and a write counts when a second server has it."""

    def __init__(
        self, network: Network, *, etcd: Sequence[str], configuration: Path, path: Path | None = None, size: int = 3
    ) -> None:
        self._kept = path is not None
        self.path = path or new_folder("patroni")
        self.path.mkdir(exist_ok=True)
        self.path.chmod(0o755)
        if as_user():
            shutil.chown(self.path, "postgres", "postgres")
        self.servers = [
            PatroniServer(number, network.machine(f"postgres-{number}"), self.path) for number in range(size)
        ]
        # On loopback a connection comes from 127.0.0.1, whatever its target address.
        net = "127.0.0.0/8" if network.reason else f"{network.host.rpartition('.')[0]}.0/24"
        for server in self.servers:
            server.configure(configuration.read_text(), etcd=etcd, net=net)

    @property
    def dsn(self) -> str:
        """The address for its administrator: all hosts; the driver finds the host that accepts writes."""
        hosts = ",".join(f"{server.machine.host}:{PORT}" for server in self.servers)
        return f"postgres://postgres:change-me-1@{hosts}/postgres"

    def start(self) -> None:
        """Start every server that does not run, and wait until the cluster is complete."""
        for server in self.servers:
            if not server.running:
                server.start()
        self.whole()

    def members(self) -> list[dict[str, Any]]:
        """The members according to the first server that answers."""
        for server in self.servers:
            found: list[dict[str, Any]] = _ask(f"http://{server.machine.host}:{API_PORT}/cluster").get("members", [])
            if found:
                return found
        return []

    def whole(self, *, within: float = READY_SECONDS) -> None:
        """Wait until one server leads and the others stream from it as parts of its quorum."""
        roles = sorted(["leader", *["quorum_standby"] * (len(self.servers) - 1)])

        def is_whole() -> bool:
            members = self.members()
            streaming = all(member.get("state") in ("running", "streaming") for member in members)
            return streaming and sorted(member.get("role", "") for member in members) == roles

        try:
            wait_until(is_whole, within=within, what="the cluster of Patroni is whole", poll=0.1)
        except TimeoutError as error:
            error.add_note(f"members: {self.members()}")
            for server in self.servers:
                error.add_note(f"{server.name} says:\n{server.log()[-3_000:]}")
            raise

    def primary(self, *, other_than: PatroniServer | None = None, within: float = FAILOVER_SECONDS) -> PatroniServer:
        """The server that accepts writes; waits until there is one."""
        candidates = [server for server in self.servers if server is not other_than]
        deadline = time.monotonic() + within
        while time.monotonic() < deadline:
            for server in candidates:
                if server.is_primary:
                    return server
            time.sleep(0.05)
        raise TimeoutError(f"no primary within {within:g} s: {self.members()}")

    def close(self) -> None:
        """Stop every server and remove its files."""
        for server in self.servers:
            server.kill()
        if not self._kept:
            remove_folder(self.path)

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _as_user() -> list[str]:
    """Like `as_user`; this Python starts the server, and may be in a directory that only root can read."""
    command = as_user()
    look = ["--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search"]
    return [*command[:-1], *look, command[-1]] if command else []


def _ask(url: str) -> dict[str, Any]:
    # Our own machines are reached without a proxy.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(url, timeout=ASK_SECONDS) as answer:
            found: dict[str, Any] = json.load(answer)
            return found
    except urllib.error.HTTPError as error:
        # A standby answers 503 when it is asked whether it is the primary; the answer still has its state.
        try:
            found = json.load(error)
        except ValueError:
            return {}
        return found
    except (OSError, ValueError):
        return {}


def _end(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return
