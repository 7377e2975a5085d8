"""beanstalkd with a binlog, over a plain socket with pipelined commands, because no maintained client pipelines."""

from __future__ import annotations

import asyncio
import math
import shutil
import socket
import subprocess
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from bench.harness.payload import BATCH, Batch
from bench.harness.server import ServerProcess
from bench.harness.tally import Tally
from bench.systems.base import System

LEASE_SECONDS = 60
WAIT_SECONDS = 1


class BeanstalkdServer(ServerProcess):
    """beanstalkd with its own fsync interval, or with one fsync per write."""

    def __init__(self, folder: Path, *, each: bool) -> None:
        super().__init__(folder)
        self._each = each

    def command(self) -> Sequence[str]:
        base = [str(shutil.which("beanstalkd")), "-l", "127.0.0.1", "-p", str(self.port), "-b", str(self.folder)]
        return [*base, "-f", "0"] if self._each else base


class BeanstalkdClient:
    """One connection on the default tube."""

    def __init__(self, address: str) -> None:
        self._port = int(address.rpartition(":")[2])

    async def open(self, *, produces: bool) -> None:
        self._socket = socket.create_connection(("127.0.0.1", self._port))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._file = self._socket.makefile("rb", buffering=1 << 18)

    async def close(self) -> None:
        self._file.close()
        self._socket.close()

    async def create(self, batches: Iterable[Batch]) -> int:
        return len(await self.create_known(batches))

    async def create_known(self, batches: Iterable[Batch]) -> list[str]:
        known: list[str] = []
        waiting = 0
        for batch in batches:
            self._socket.sendall(b"".join(_puts(batch)))
            known.extend(self._inserted(waiting))
            waiting = len(batch)
        known.extend(self._inserted(waiting))
        return known

    def _inserted(self, count: int) -> list[str]:
        return [self._expect(b"INSERTED")[1].decode() for _ in range(count)]

    def _expect(self, word: bytes) -> list[bytes]:
        line = self._file.readline().split()
        if not line or line[0] != word:
            raise RuntimeError(f"beanstalkd answered {line!r} and not {word!r}")
        return line

    async def consume(self, tally: Tally) -> None:
        asked = 1
        while not tally.done():
            # One reserve that waits, followed by reserves that do not wait: as many as the last answers suggest.
            command = b"reserve-with-timeout %d\r\n" % WAIT_SECONDS + b"reserve-with-timeout 0\r\n" * (asked - 1)
            self._socket.sendall(command)
            jobs = [job for job in (self._reserved() for _ in range(asked)) if job is not None]
            if jobs:
                tally.taken([body for _, body in jobs])
                self._delete([job_id for job_id, _ in jobs])
                tally.deleted(len(jobs))
            asked = min(BATCH, asked * 4) if len(jobs) == asked else max(1, len(jobs))
            await asyncio.sleep(0)

    def _reserved(self) -> tuple[bytes, bytes] | None:
        line = self._file.readline().split()
        if line[0] in (b"TIMED_OUT", b"DEADLINE_SOON"):
            return None
        if line[0] != b"RESERVED":
            raise RuntimeError(f"beanstalkd answered {line!r}")
        return line[1], self._file.read(int(line[2]) + 2)[:-2]

    def _delete(self, ids: Sequence[bytes]) -> None:
        self._socket.sendall(b"".join([b"delete %s\r\n" % job_id for job_id in ids]))
        for _ in ids:
            self._expect(b"DELETED")

    async def cancel(self, ids: Sequence[str]) -> None:
        self._delete([job_id.encode() for job_id in ids])


def _puts(batch: Batch) -> list[bytes]:
    if batch.due_ms is None:
        delays = [0] * len(batch)
    else:
        now = time.time()
        # beanstalkd only knows whole seconds; rounded up, so that nothing is early.
        delays = [max(0, math.ceil(due / 1_000 - now)) for due in batch.due_ms]
    return [
        b"put 0 %d %d %d\r\n%s\r\n" % (delay, LEASE_SECONDS, len(body), body)
        for delay, body in zip(delays, batch.bodies, strict=True)
    ]


def _version() -> str:
    shown = subprocess.run(["beanstalkd", "-v"], capture_output=True, text=True, check=True)
    return (shown.stdout or shown.stderr).split()[-1]


def system(name: str, *, each: bool) -> System:
    """beanstalkd with one fsync policy."""
    return System(
        name=name,
        durable=each,
        server=lambda folder: BeanstalkdServer(folder, each=each),
        client=BeanstalkdClient,
        version=_version,
        missing=lambda: None if shutil.which("beanstalkd") else "beanstalkd is not installed",
        benches=frozenset({"throughput", "accuracy", "burst", "mutate", "latency"}),
        settings={
            "server": "binlog, fsync each write" if each else "binlog, fsync every 50 ms",
            "client": "plain socket, up to 1000 commands in flight",
            "later": "whole seconds, rounded up",
        },
        changes=("cancel",),
    )
