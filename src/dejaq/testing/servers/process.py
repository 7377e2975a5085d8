"""A broker in a process of its own, which a test can kill, stop, pause and start again.

    async with BrokerProcess(tmp_path / "data") as broker:
        client = dejaq.connect(broker.url)
        ...
        broker.kill()
        await broker.restart()

The port and the data directory stay the same from start to start, and the log is continued. Signals are sent only to
this process, by its id, and it has ended when the block ends.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from dejaq.errors import Code, DejaqError
from dejaq.protocol.v1 import overseer_pb2 as overseer
from dejaq.protocol.websocket.transport import WebSocketTransport
from dejaq.security.client import PLAIN, ClientSecurity
from dejaq.testing.servers.network import Machine
from dejaq.testing.waiting import eventually, wait_until
from dejaq.trial.ports import HOST, free_port

__all__ = ["HOST", "BrokerExited", "BrokerProcess", "free_port"]

READY_SECONDS = 30.0
# The processor time that one turn of the broker's event loop may take. It does not count what other processes take, so
# a test on a busy machine does not fail because of them.
BLOCK_CPU_MS_MAX = 50
EXIT_SECONDS = 20.0
PROBE_SECONDS = 0.5
_BLOCKED = re.compile(r"the event loop was blocked for \d+ ms, with (\d+) ms of processor time")
_START = "from dejaq.cli.main import main; main()"


class BrokerExited(RuntimeError):
    """The broker's process ended although it was needed; the message has the end of its log."""


class BrokerProcess:
    """One `dejaq serve` on a loopback port; without `data` or `storage` its messages are in memory.

    With `grpc` it serves gRPC too, and its `url` is that of its gRPC endpoint.

    `security` is for the question whether the broker is ready. `options` are added to the command line, `env` to the
    environment (`DEJAQ_CRASH_AT` names a crash point). `prelude` is Python that the process runs first, `wrapper` a
    command that runs the process. With a `machine` the broker runs and listens there. Leaving the block raises
    AssertionError when the broker's watchdog reported that something blocked the event loop for more than
    `block_cpu_ms_max` of processor time.
    """

    def __init__(
        self,
        data: Path | None = None,
        *,
        storage: str | None = None,
        port: int | None = None,
        grpc: bool = False,
        options: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        prelude: str = "",
        wrapper: Sequence[str] = (),
        machine: Machine | None = None,
        block_cpu_ms_max: int = BLOCK_CPU_MS_MAX,
        security: ClientSecurity = PLAIN,
    ) -> None:
        self.data = data
        self.host = machine.host if machine is not None else HOST
        self.port = port if port is not None else free_port()
        self._grpc_port = free_port() if grpc else None
        self._storage = storage
        self._options = list(options)
        self._env = dict(env or {})
        self._prelude = prelude
        self._block_cpu_ms_max = block_cpu_ms_max
        self._wrapper = [*(machine.wrapper if machine is not None else ()), *wrapper]
        self._log = tempfile.NamedTemporaryFile(prefix="dejaq-broker-", suffix=".log")  # noqa: SIM115
        self._process: subprocess.Popen[bytes] | None = None
        self._tls = security.tls is not None
        self._transport = WebSocketTransport(self.address, security=security)
        self.starts = 0

    @property
    def address(self) -> str:
        """The `host:port` of the broker, where `/metrics` is too."""
        return f"{self.host}:{self.port}"

    @property
    def url(self) -> str:
        """The address to which a client connects."""
        scheme = ("dejaqs" if self._tls else "dejaq") + ("" if self._grpc_port is None else "+grpc")
        return f"{scheme}://{self.client_address}"

    @property
    def client_address(self) -> str:
        """The `host:port` of the endpoint in `url`."""
        return self.address if self._grpc_port is None else f"{self.host}:{self._grpc_port}"

    @property
    def pid(self) -> int:
        """The id of the process, or of the last one when it has ended."""
        if self._process is None:
            raise RuntimeError("the broker was never started")
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether the process exists, also when it is paused."""
        return self._process is not None and self._process.poll() is None

    @property
    def exit_code(self) -> int | None:
        """The exit code, negative for a signal; None while the process runs."""
        return None if self._process is None else self._process.poll()

    def start(self, *, env: Mapping[str, str] | None = None) -> None:
        """Start the process; `ready` waits until it serves. `env` is for this start only."""
        if self.running:
            raise RuntimeError(f"the broker runs already as process {self.pid}")
        program = [sys.executable, "-c", f"{self._prelude}\n{_START}"]
        command = [*self._wrapper, *program, "serve", "--listen", self.address]
        if self._grpc_port is not None:
            command += ["--grpc", self.client_address]
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
        """Wait until the broker answers; raises BrokerExited when the process ends instead."""

        async def answers() -> bool:
            if not self.running:
                raise BrokerExited(f"exit code {self.exit_code}; its log ends:\n{self.log()[-4_000:]}")
            with socket.socket() as probe:
                # Another program at this port may accept nothing, and then a connection would wait for minutes.
                probe.settimeout(PROBE_SECONDS)
                if probe.connect_ex((self.host, self.port)):
                    return False
            try:
                await self._transport.call("Overseer.Ping", overseer.PingRequest(), overseer.PingResponse, 1.0)
            except DejaqError as error:
                # It serves, and asks for credentials.
                return error.code is Code.UNAUTHENTICATED
            return True

        try:
            await eventually(answers, within=within, what=f"the broker at {self.address} answers", poll=0.02)
        finally:
            await self._transport.close()

    async def exited(self, *, within: float = EXIT_SECONDS) -> int:
        """Wait until the process has ended; returns its exit code, negative for a signal."""
        await eventually(lambda: not self.running, within=within, what=f"process {self.pid} ends")
        assert self.exit_code is not None
        return self.exit_code

    def kill(self) -> None:
        """Kill the process at once, as a power failure would, and wait for its end; does nothing when it has ended."""
        if self._process is not None and self.running:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()

    def terminate(self) -> None:
        """Ask the process to stop; `exited` waits for its end."""
        self._signal(signal.SIGTERM)

    def pause(self) -> None:
        """Pause the process until `resume`."""
        self._signal(signal.SIGSTOP)
        wait_until(lambda: self._state() in "Tt", within=5, what=f"process {self.pid} stops")

    def resume(self) -> None:
        """Let the process continue."""
        self._signal(signal.SIGCONT)

    async def restart(self, *, env: Mapping[str, str] | None = None, within: float = READY_SECONDS) -> None:
        """Kill the process if it runs, start it on the same port and directory, and wait until it serves."""
        self.kill()
        self.start(env=env)
        await self.ready(within=within)

    def log(self) -> str:
        """All log output, over all starts."""
        return Path(self._log.name).read_text(errors="replace")

    def close(self) -> None:
        """Kill the process and remove its log."""
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
        text = self.log()
        if error is not None and self._process is not None:
            error.add_note(f"the broker's log ends:\n{text[-4_000:]}")
        await asyncio.to_thread(self.close)
        if error is None:
            self._check_blocks(text)

    def _check_blocks(self, log: str) -> None:
        """Raise AssertionError when something blocked the broker's event loop for too long."""
        longest = max((int(found[1]) for found in _BLOCKED.finditer(log)), default=0)
        if longest > self._block_cpu_ms_max:
            raise AssertionError(f"the event loop of the broker was blocked for {longest} ms; its log:\n{log[-8_000:]}")

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
