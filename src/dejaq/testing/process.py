"""A broker in a process of its own, to be killed, stopped, paused and started again.

    async with BrokerProcess(tmp_path / "data") as broker:
        client = dejaq.connect(broker.url)
        ...
        broker.kill()
        await broker.restart()

The port and the data directory stay the same from start to start, and the log goes on. Signals are sent to this one
process by its id, and it is gone when the block ends.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import weakref
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from dejaq.errors import DejaqError
from dejaq.protocol.channel import GrpcTransport
from dejaq.protocol.v1 import overseer_pb2 as overseer
from dejaq.testing.network import Machine
from dejaq.testing.waiting import eventually, wait_until

READY_SECONDS = 30.0
EXIT_SECONDS = 20.0
HOST = "127.0.0.1"
# Below the ports that the kernel gives to outgoing connections: a client that keeps trying a closed port among
# those can be connected to itself, and then holds the port that the broker wants back.
_PORTS = range(20_000, 32_000)
_START = "from dejaq.cli.main import main; main()"


class BrokerExited(RuntimeError):
    """The broker's process ended although it was needed; the message has the end of its log."""


def free_port() -> int:
    """A loopback port that nobody listens on."""
    for _ in range(1_000):
        port = random.choice(_PORTS)
        with socket.socket() as probe, suppress(OSError):
            probe.bind((HOST, port))
            return port
    raise OSError("no free port on loopback")


class BrokerProcess:
    """One `dejaq serve` on a loopback port; without `data` or `storage` its messages live in memory.

    `options` are added to the command line, `env` to the environment (`DEJAQ_CRASH_AT` names a crash point).
    `prelude` is Python that the process runs first, `wrapper` a command that it is run by; it may be put on a
    `machine`, and then listens there.
    """

    def __init__(
        self,
        data: Path | None = None,
        *,
        storage: str | None = None,
        port: int | None = None,
        options: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        prelude: str = "",
        wrapper: Sequence[str] = (),
        machine: Machine | None = None,
    ) -> None:
        self.data = data
        self.host = machine.host if machine is not None else HOST
        self.port = port if port is not None else free_port()
        self._storage = storage
        self._options = list(options)
        self._env = dict(env or {})
        self._prelude = prelude
        self._wrapper = [*(machine.wrapper if machine is not None else ()), *wrapper]
        self._log = tempfile.NamedTemporaryFile(prefix="dejaq-broker-", suffix=".log")  # noqa: SIM115
        self._process: subprocess.Popen[bytes] | None = None
        self._transport = GrpcTransport(self.address)
        self.starts = 0

    @property
    def address(self) -> str:
        """host:port."""
        return f"{self.host}:{self.port}"

    @property
    def url(self) -> str:
        """What a client connects to."""
        return f"dejaq://{self.address}"

    @property
    def pid(self) -> int:
        """The process, the last one when it has ended."""
        if self._process is None:
            raise RuntimeError("the broker was never started")
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether the process lives, be it paused."""
        return self._process is not None and self._process.poll() is None

    @property
    def exit_code(self) -> int | None:
        """What it ended with, negative for a signal; None before its end."""
        return None if self._process is None else self._process.poll()

    def start(self, *, env: Mapping[str, str] | None = None) -> None:
        """Start the process; `ready` says when it serves. `env` holds for this start only."""
        if self.running:
            raise RuntimeError(f"the broker runs already as process {self.pid}")
        program = [sys.executable, "-c", f"{self._prelude}\n{_START}"]
        command = [*self._wrapper, *program, "serve", "--listen", self.address]
        if self.data is not None:
            command += ["--data", str(self.data)]
        elif self._storage is not None:
            command += ["--storage", self._storage]
        else:
            command += ["--memory"]
        self._process = subprocess.Popen(
            [*command, *self._options],
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=subprocess.STDOUT,
            env={**os.environ, **self._env, **(env or {})},
        )
        self.starts += 1
        # For a test that is ended without leaving its block.
        weakref.finalize(self, _end, self._process)

    async def ready(self, *, within: float = READY_SECONDS) -> None:
        """Wait until it answers; BrokerExited when it ends instead."""

        async def answers() -> bool:
            if not self.running:
                raise BrokerExited(f"exit code {self.exit_code}; its log ends:\n{self.log()[-4_000:]}")
            with socket.socket() as probe:
                if probe.connect_ex((self.host, self.port)):
                    return False
            with suppress(DejaqError):
                await self._transport.call("Overseer.Ping", overseer.PingRequest(), overseer.PingResponse, 1.0)
                return True
            return False

        try:
            await eventually(answers, within=within, what=f"the broker at {self.address} answers", poll=0.02)
        finally:
            await self._transport.close()

    async def exited(self, *, within: float = EXIT_SECONDS) -> int:
        """Wait until the process has ended; its exit code, negative for a signal."""
        await eventually(lambda: not self.running, within=within, what=f"process {self.pid} ends")
        assert self.exit_code is not None
        return self.exit_code

    def kill(self) -> None:
        """End it at once, as a power cut would, and wait for that; nothing when it has ended."""
        if self._process is not None and self.running:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()

    def terminate(self) -> None:
        """Ask it to stop; `exited` waits for that."""
        self._signal(signal.SIGTERM)

    def pause(self) -> None:
        """Stop it in its tracks until `resume`."""
        self._signal(signal.SIGSTOP)
        wait_until(lambda: self._state() in "Tt", within=5, what=f"process {self.pid} stops")

    def resume(self) -> None:
        """Let it go on."""
        self._signal(signal.SIGCONT)

    async def restart(self, *, env: Mapping[str, str] | None = None, within: float = READY_SECONDS) -> None:
        """Kill it if it runs, start it on the same port and directory, and wait until it serves."""
        self.kill()
        self.start(env=env)
        await self.ready(within=within)

    def log(self) -> str:
        """Everything that it has written, over all starts."""
        return Path(self._log.name).read_text(errors="replace")

    def close(self) -> None:
        """Kill it and drop its log."""
        self.kill()
        self._log.close()

    async def __aenter__(self) -> Self:
        try:
            self.start()
            await self.ready()
        except BaseException:
            self.close()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None and self._process is not None:
            error.add_note(f"the broker's log ends:\n{self.log()[-4_000:]}")
        await asyncio.to_thread(self.close)

    def _signal(self, number: signal.Signals) -> None:
        if self._process is None or not self.running:
            raise BrokerExited(f"exit code {self.exit_code}; its log ends:\n{self.log()[-4_000:]}")
        self._process.send_signal(number)

    def _state(self) -> str:
        """The process's state as the kernel writes it: R, S, T, ..."""
        stat = Path(f"/proc/{self.pid}/stat").read_text()
        return stat.rpartition(")")[2].split()[0]


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.kill()
        process.wait()
