"""A real Redis server on loopback, started and stopped by a test.

async with RedisServer(tmp_path) as redis:
    ...                         # redis.url
"""

from __future__ import annotations

import asyncio
import shutil
import socket
import subprocess
import weakref
from pathlib import Path
from types import TracebackType
from typing import Self

from dejaq.testing.servers.process import HOST, free_port
from dejaq.testing.waiting import eventually

READY_SECONDS = 20.0


class RedisServer:
    """One `redis-server` whose data, synced at every write, is in `path`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.port = free_port()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """The address to which a client connects."""
        return f"redis://{HOST}:{self.port}"

    async def start(self) -> None:
        """Start the server and wait until it answers."""
        self._start()
        await eventually(self._answers, within=READY_SECONDS, what=f"Redis at {self.url} answers", poll=0.02)

    def _start(self) -> None:
        program = shutil.which("redis-server")
        if program is None:
            raise FileNotFoundError("redis-server is not installed; run scripts/install_system.sh")
        options = {"port": str(self.port), "bind": HOST, "dir": str(self.path), "save": "", "appendonly": "yes"}
        arguments = [word for name, value in options.items() for word in (f"--{name}", value)]
        self._process = subprocess.Popen(
            [program, *arguments, "--appendfsync", "always"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        weakref.finalize(self, _end, self._process)

    def kill(self) -> None:
        """Kill the server at once."""
        if self._process is not None:
            _end(self._process)

    def _answers(self) -> bool:
        try:
            with socket.create_connection((HOST, self.port), timeout=1.0) as probe:
                probe.sendall(b"PING\r\n")
                return probe.recv(16).startswith(b"+PONG")
        except OSError:
            return False

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.to_thread(self.kill)


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.kill()
        process.wait()
