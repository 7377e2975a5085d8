"""A cluster on one machine that outlives the process that starts it: for trials, and for `dejaq cluster`."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from dejaq.synchronization.etcd.child import EtcdChild, EtcdPlace
from dejaq.testing.postgres import PostgresServer
from dejaq.testing.process import HOST, free_port
from dejaq.testing.waiting import wait_until

READY_SECONDS = 60.0
END_SECONDS = 20.0
PORT_FIRST = 7400
NAME = "trial"


class TrialCluster:
    """Brokers, one PostgreSQL and some etcd below one directory."""

    def __init__(self, directory: Path, *, brokers: int = 3, etcd: int = 1) -> None:
        self._directory = directory
        self._postgres = PostgresServer(directory / "postgres")
        places = [
            EtcdPlace(
                name=f"etcd-{number}",
                data=directory / f"etcd-{number}",
                client=f"{HOST}:{free_port()}",
                peer=f"{HOST}:{free_port()}",
            )
            for number in range(etcd)
        ]
        # Ports are others at each start, and etcd keeps its own: what it remembers is not needed.
        self._etcd = [EtcdChild(place, [(one.name, one.peer) for one in places]) for place in places]
        self._ports = [_port(PORT_FIRST + number) for number in range(brokers)]
        self._processes: list[subprocess.Popen[bytes]] = []

    @property
    def url(self) -> str:
        """What a client connects to."""
        return f"dejaq://{','.join(f'{HOST}:{port}' for port in self._ports)}"

    @property
    def brokers(self) -> list[tuple[str, int]]:
        """Address and process of each broker."""
        return [(f"{HOST}:{port}", one.pid) for port, one in zip(self._ports, self._processes, strict=True)]

    @property
    def servers(self) -> dict[str, int]:
        """The other processes, by name."""
        etcd = {child.place.name: child.pid for child in self._etcd if child.pid is not None}
        return {"postgres": self._postgres.pid, **etcd}

    def start(self) -> Iterator[str]:
        """Start everything, and tell each step; all is ready at the end."""
        self._directory.mkdir(parents=True, exist_ok=True)
        # PostgreSQL runs as a user of its own, who must get in.
        self._directory.chmod(0o755)
        yield "starting PostgreSQL"
        self._postgres_start()
        yield "starting etcd"
        for child in self._etcd:
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

    def _postgres_start(self) -> None:
        path = self._directory / "postgres"
        path.mkdir(exist_ok=True)
        (path / "postmaster.pid").unlink(missing_ok=True)
        self._postgres.start()

    def _broker(self, number: int, port: int, synchronization: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "dejaq", "serve", "--listen", f"{HOST}:{port}"]
        command += ["--storage", self._postgres.dsn, "--synchronization", synchronization]
        command += ["--cluster", NAME, "--broker", f"broker-{number}"]
        with self._log(number).open("wb") as log:
            # The directory in its environment is how `end` knows it.
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
                last = text.strip().splitlines()[-1:] or ["without a word"]
                raise RuntimeError(f"broker-{number} ended: {last[0]}")
            return "serving dejaq://" in text

        wait_until(serves, within=READY_SECONDS, what=f"broker-{number} serves; see {self._log(number)}", poll=0.05)

    def stop(self) -> None:
        """End what was started."""
        for process in self._processes:
            process.kill()
        for child in self._etcd:
            child.kill()
        self._postgres.stop()


def running(pids: Mapping[str, int], directory: Path) -> list[str]:
    """Those of the processes that still run and are the cluster's own."""
    return [name for name, pid in pids.items() if _ours(pid, directory)]


def end(pids: Mapping[str, int], directory: Path) -> list[str]:
    """Ask processes to stop and wait for it, then kill; gives the names of those that ran."""
    there = running(pids, directory)
    for name in there:
        # To PostgreSQL an interrupt is the fast shutdown: it does not wait for clients.
        os.kill(pids[name], signal.SIGINT if name == "postgres" else signal.SIGTERM)
    for name in there:
        try:
            wait_until(lambda name=name: not _ours(pids[name], directory), within=END_SECONDS, what=name)  # type: ignore[misc]
        except TimeoutError:
            os.kill(pids[name], signal.SIGKILL)
    return there


def remove(directory: Path) -> None:
    """Remove the data of a cluster that does not run."""
    shutil.rmtree(directory)


def _ours(pid: int, directory: Path) -> bool:
    """Whether the process lives and belongs to the cluster of this directory: numbers are used again."""
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
    """This port if it is free, else another."""
    with socket.socket() as probe:
        try:
            probe.bind((HOST, wanted))
            return wanted
        except OSError:
            return free_port()
