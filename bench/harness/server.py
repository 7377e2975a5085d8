"""A server as a child process: started on a free port, watched, stopped by its process id."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import psutil

START_SECONDS = 60.0
STOP_SECONDS = 30.0


class ServerFailed(Exception):
    """A server did not start; the message has the end of its log."""


def exit_at_sigterm() -> None:
    """Let SIGTERM end this program as Ctrl-C does, so that its servers are stopped and their data is removed."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))


def free_port() -> int:
    """A port of loopback that nobody uses now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class ServerProcess:
    """A child process that serves `port`; subclasses choose its command."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_port()
        self.address = f"127.0.0.1:{self.port}"
        self._child: subprocess.Popen[bytes] | None = None

    def command(self) -> Sequence[str]:
        """The command to run."""
        raise NotImplementedError

    def environment(self) -> Mapping[str, str]:
        """Variables to add to the environment."""
        return {}

    def user(self) -> str | None:
        """The user to run as; None for the current user."""
        return None

    def start(self) -> None:
        """Start the process, and return when the port answers."""
        with (self.folder / "server.log").open("ab") as log:
            self._child = subprocess.Popen(
                self.command(),
                cwd=self.folder,
                env={**os.environ, **self.environment()},
                user=self.user(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        self.wait_ready()

    def wait_ready(self) -> None:
        """Wait until it answers; raises ServerFailed."""
        self._wait_for_port(self.port)

    def _wait_for_port(self, port: int) -> None:
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            assert self._child is not None
            if self._child.poll() is not None:
                raise ServerFailed(f"ended with code {self._child.returncode}: {self._log_end()}")
            with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
                return
            time.sleep(0.005)
        self.stop()
        raise ServerFailed(f"did not answer within {START_SECONDS:.0f} s: {self._log_end()}")

    def _log_end(self) -> str:
        return (self.folder / "server.log").read_text(errors="replace")[-500:]

    def stop(self) -> None:
        """Ask the process to end, and kill it when it does not."""
        child, self._child = self._child, None
        if child is None:
            return
        child.terminate()
        try:
            child.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()

    @property
    def pid(self) -> int:
        """The child's process id."""
        assert self._child is not None
        return self._child.pid

    @property
    def pids(self) -> Sequence[int]:
        """The processes whose CPU time and memory are measured."""
        return [self.pid]

    def fsyncs(self) -> int | None:
        """Unknown, unless a subclass can find out."""
        return None


def cpu_seconds(pid: int) -> float:
    """CPU time of a process and all of its descendants, including ended ones."""
    root = psutil.Process(pid)
    total = 0.0
    for process in [root, *root.children(recursive=True)]:
        with suppress(psutil.NoSuchProcess):
            times = process.cpu_times()
            total += times.user + times.system + times.children_user + times.children_system
    return total


def rss_mb(pid: int) -> float:
    """Resident memory of a process and its descendants in MB; shared memory counts once."""
    root = psutil.Process(pid)
    family = [root, *root.children(recursive=True)]
    if len(family) == 1:
        return round(float(root.memory_info().rss) / 1e6, 1)
    total = 0
    for process in family:
        with suppress(psutil.NoSuchProcess):
            total += process.memory_full_info().pss
    return round(total / 1e6, 1)
