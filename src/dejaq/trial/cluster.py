"""A cluster on one machine that continues after the process that starts it ends: for trials, and
for `dejaq cluster`.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from dejaq.errors import Code, PortTaken, error_of
from dejaq.synchronization.etcd.child import EtcdChild, EtcdPlace
from dejaq.trial.ports import HOST, free_port
from dejaq.trial.postgres import PostgresProcess, as_user
from dejaq.trial.waiting import wait_until

READY_SECONDS = 60.0
END_SECONDS = 20.0
PORT_FIRST = 7400
NAME = "trial"
# Marks a directory as the directory of a trial cluster, and has the ports of its servers.
MARK = "trial.json"
# All names that a trial cluster creates in its directory.
_MADE = re.compile(r"postgres|etcd-\d+(\.log)?|broker-\d+(\.log)?|cluster\.json|trial\.json")


class TrialCluster:
    """Brokers, one PostgreSQL server and some etcd servers below one directory."""

    def __init__(self, directory: Path, *, brokers: int = 3, etcd: int = 1, port: int | None = None) -> None:
        """With `port` the brokers take this port and the ones after it; without, 7400 and the next, or free ones."""
        self._directory = directory
        self._postgres = PostgresProcess(directory / "postgres")
        # The map of the shards contains the address of PostgreSQL, and etcd stores its own: both must keep their ports.
        kept = _kept_ports(directory)
        self._postgres.port = kept.get("postgres", self._postgres.port)
        places = [
            EtcdPlace(
                name=f"etcd-{number}",
                data=directory / f"etcd-{number}",
                client=f"{HOST}:{kept.get(f'etcd-{number}-client') or free_port()}",
                peer=f"{HOST}:{kept.get(f'etcd-{number}-peer') or free_port()}",
            )
            for number in range(etcd)
        ]
        self._etcd = [EtcdChild(place, [(one.name, one.peer) for one in places]) for place in places]
        # Another number of etcd servers is a new etcd cluster.
        self._fresh = len([name for name in kept if name.endswith("-client")]) != etcd
        self._ports = [_port(PORT_FIRST + number) for number in range(brokers)]
        if port is not None:
            self._ports = [_need(port + number) for number in range(brokers)]
        self._processes: list[subprocess.Popen[bytes]] = []

    @property
    def url(self) -> str:
        """The address that a client connects to."""
        return f"dejaq://{','.join(f'{HOST}:{port}' for port in self._ports)}"

    @property
    def brokers(self) -> list[tuple[str, int]]:
        """Address and process id of each broker."""
        return [(f"{HOST}:{port}", one.pid) for port, one in zip(self._ports, self._processes, strict=True)]

    @property
    def servers(self) -> dict[str, int]:
        """The other processes, by name."""
        etcd = {child.place.name: child.pid for child in self._etcd if child.pid is not None}
        return {"postgres": self._postgres.pid, **etcd}

    def start(self) -> Iterator[str]:
        """Start everything and yield a description of each step; at the end all of it is ready."""
        check_own(self._directory)
        self._directory.mkdir(parents=True, exist_ok=True)
        # PostgreSQL runs as a user of its own, which must be able to enter.
        self._directory.chmod(0o755)
        _check_entry(self._directory)
        (self._directory / MARK).write_text(json.dumps(self._ports_in_use(), indent=2))
        yield "starting PostgreSQL"
        self._postgres_start()
        yield "starting etcd"
        for child in self._etcd:
            if self._fresh:
                shutil.rmtree(child.place.data, ignore_errors=True)
            child.start()
        yield f"starting {len(self._ports)} brokers"
        synchronization = f"etcd://{','.join(child.place.client for child in self._etcd)}"
        for number, port in enumerate(self._ports):
            self._processes.append(self._broker(number, port, synchronization))
        for number, process in enumerate(self._processes):
            self._wait(number, process)
        for child in self._etcd:
            child.detach()

    def _ports_in_use(self) -> dict[str, int]:
        ports = {"postgres": self._postgres.port}
        for child in self._etcd:
            for kind, address in (("client", child.place.client), ("peer", child.place.peer)):
                ports[f"{child.place.name}-{kind}"] = int(address.rpartition(":")[2])
        return ports

    def _postgres_start(self) -> None:
        path = self._directory / "postgres"
        path.mkdir(exist_ok=True)
        (path / "postmaster.pid").unlink(missing_ok=True)
        self._postgres.start()

    def _broker(self, number: int, port: int, synchronization: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "dejaq", "serve", "--listen", f"{HOST}:{port}"]
        command += ["--storage", self._postgres.dsn, "--synchronization", synchronization]
        command += ["--cluster", NAME, "--broker", f"broker-{number}"]
        # The directory of its journal.
        command += ["--data", str(self._directory / f"broker-{number}")]
        with self._log(number).open("wb") as log:
            # `end` finds the process by the directory in its environment.
            env = {**os.environ, "DEJAQ_TRIAL": str(self._directory)}
            return subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=env, start_new_session=True
            )

    def _log(self, number: int) -> Path:
        return self._directory / f"broker-{number}.log"

    def _wait(self, number: int, process: subprocess.Popen[bytes]) -> None:
        def serves() -> bool:
            text = self._log(number).read_text(errors="replace")
            if process.poll() is not None:
                last = text.strip().splitlines()[-1:] or ["its log is empty"]
                raise RuntimeError(f"broker-{number} ended: {last[0]}")
            return "serving dejaq://" in text

        wait_until(serves, within=READY_SECONDS, what=f"broker-{number} serves; see {self._log(number)}", poll=0.05)

    def stop(self) -> None:
        """Stop everything that was started."""
        for process in self._processes:
            process.kill()
        for child in self._etcd:
            child.kill()
        self._postgres.stop()


def running(pids: Mapping[str, int], directory: Path) -> list[str]:
    """The processes that still run and belong to the cluster."""
    return [name for name, pid in pids.items() if _ours(pid, directory)]


def end(pids: Mapping[str, int], directory: Path) -> list[str]:
    """Ask processes to stop and wait for their end, then kill them; returns the names of those that ran."""
    there = running(pids, directory)
    for name in there:
        # PostgreSQL does not wait for its clients when it is interrupted.
        os.kill(pids[name], signal.SIGINT if name == "postgres" else signal.SIGTERM)
    for name in there:
        try:
            wait_until(lambda name=name: not _ours(pids[name], directory), within=END_SECONDS, what=name)  # type: ignore[misc]
        except TimeoutError:
            os.kill(pids[name], signal.SIGKILL)
    return there


def check_own(directory: Path) -> None:
    """Raise INVALID_ARGUMENT when a directory has files that no trial cluster created."""
    if directory.is_dir() and any(directory.iterdir()) and not _is_own(directory):
        raise error_of(
            Code.INVALID_ARGUMENT, f"{directory} holds files that are not of a trial cluster; choose a new directory"
        )


def _is_own(directory: Path) -> bool:
    # A cluster of release 0.1.0 left only the second file.
    return (directory / MARK).exists() or (directory / "postgres" / "PG_VERSION").exists()


def remove(directory: Path) -> list[str]:
    """Remove the data of a cluster that does not run, and nothing else; returns the names of other files."""
    if not _is_own(directory):
        raise error_of(Code.INVALID_ARGUMENT, f"{directory} holds no trial cluster; nothing was removed")
    for path in directory.iterdir():
        if _MADE.fullmatch(path.name):
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()
    left = sorted(path.name for path in directory.iterdir())
    if not left:
        directory.rmdir()
    return left


def _kept_ports(directory: Path) -> dict[str, int]:
    """The ports that the servers used at an earlier start."""
    try:
        ports: dict[str, int] = json.loads((directory / MARK).read_text())
    except (OSError, ValueError):
        return {}
    # If another process uses one of them now, etcd starts again without its data.
    return ports if all(_port(port) == port for port in ports.values()) else {}


def _check_entry(directory: Path) -> None:
    """Raise INVALID_ARGUMENT when the user that runs PostgreSQL may not enter a directory."""
    user = as_user()
    for place in [*reversed(directory.resolve().parents), directory.resolve()] if user else []:
        if subprocess.run([*user, "test", "-x", str(place)], cwd="/", check=False).returncode:
            raise error_of(
                Code.INVALID_ARGUMENT,
                f"PostgreSQL does not run as root but as the user postgres, who may not enter {place}; choose another "
                f"--dir, or allow it with: chmod o+x {place}",
            )


def _ours(pid: int, directory: Path) -> bool:
    """Whether the process runs and belongs to the cluster of this directory: process ids are used again."""
    try:
        if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
            return False
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
        environment = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return False
    mark = str(directory).encode()
    return mark in command or b"DEJAQ_TRIAL=" + mark in environment


def _port(wanted: int) -> int:
    """This port if it is free, else another one."""
    with socket.socket() as probe:
        # As servers do: remains of old connections do not count as a use of the port.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, wanted))
            return wanted
        except OSError:
            return free_port()


def _need(port: int) -> int:
    """This port; raises PORT_TAKEN when it is not free."""
    if _port(port) != port:
        raise PortTaken(f"{HOST}:{port} is in use by another process; choose another --port")
    return port
