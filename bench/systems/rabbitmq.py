"""RabbitMQ: durable queues, persistent messages, publisher confirms; later messages wait in a queue with a TTL."""

from __future__ import annotations

import asyncio
import math
import os
import shutil
import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pika
from pika.adapters.asyncio_connection import AsyncioConnection

from bench.harness.payload import BATCH, Batch
from bench.harness.server import ServerProcess, free_port
from bench.harness.tally import Tally
from bench.systems.base import System

PROGRAM = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")
READY = "ready"
# A message that waits long would delay messages behind it that expire sooner, so it waits in another queue.
WAITING, FAR, FAR_MS = "wait", "far", 30 * 60 * 1_000
UNCONFIRMED_MAX = 4 * BATCH
IDLE_SECONDS = 0.002


class RabbitServer(ServerProcess):
    """A node with its own epmd process."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._epmd_port, self._dist_port = free_port(), free_port()
        self._epmd: subprocess.Popen[bytes] | None = None

    def environment(self) -> Mapping[str, str]:
        return {
            "HOME": str(self.folder),
            "ERL_EPMD_PORT": str(self._epmd_port),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODENAME": f"bench-{self.port}@localhost",
            "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODE_PORT": str(self.port),
            "RABBITMQ_DIST_PORT": str(self._dist_port),
            "RABBITMQ_MNESIA_BASE": str(self.folder / "mnesia"),
            "RABBITMQ_LOG_BASE": str(self.folder / "log"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(self.folder / "plugins"),
            "RABBITMQ_CONF_ENV_FILE": str(self.folder / "none"),
            "RABBITMQ_CONFIG_FILE": str(self.folder / "rabbitmq"),
        }

    def command(self) -> Sequence[str]:
        return [str(PROGRAM)]

    def start(self) -> None:
        (self.folder / "plugins").write_text("[].\n")
        (self.folder / "rabbitmq.conf").write_text(
            "vm_memory_high_watermark.relative = 0.6\ndisk_free_limit.absolute = 100MB\n"
        )
        self._epmd = subprocess.Popen(
            [str(shutil.which("epmd")), "-port", str(self._epmd_port), "-address", "127.0.0.1"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        super().start()

    def stop(self) -> None:
        super().stop()
        if self._epmd is not None:
            self._epmd.terminate()
            self._epmd.wait()
            self._epmd = None


class RabbitClient:
    """One connection and one channel, on asyncio."""

    def __init__(self, address: str) -> None:
        self._port = int(address.rpartition(":")[2])
        self._confirmed = self._published = 0
        self._room = asyncio.Event()
        self._closed = asyncio.Event()

    async def open(self, *, produces: bool) -> None:
        loop = asyncio.get_running_loop()
        opened: asyncio.Future[Any] = loop.create_future()
        self._connection = AsyncioConnection(
            pika.ConnectionParameters(host="127.0.0.1", port=self._port, heartbeat=0),
            on_open_callback=opened.set_result,
            on_open_error_callback=lambda _, error: opened.set_exception(RuntimeError(repr(error))),
            on_close_callback=lambda *_: self._closed.set(),
        )
        await opened
        channel: asyncio.Future[Any] = loop.create_future()
        self._connection.channel(on_open_callback=channel.set_result)
        self._channel = await channel
        dead = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": READY}
        for name, arguments in ((READY, {}), (WAITING, dead), (FAR, dead)):
            declared: asyncio.Future[Any] = loop.create_future()
            self._channel.queue_declare(name, durable=True, arguments=arguments, callback=declared.set_result)
            await declared
        selected: asyncio.Future[Any] = loop.create_future()
        self._channel.confirm_delivery(self._on_confirm, callback=selected.set_result)
        await selected

    async def close(self) -> None:
        if self._connection.is_open:
            self._connection.close()
            await self._closed.wait()

    def _on_confirm(self, frame: Any) -> None:
        if isinstance(frame.method, pika.spec.Basic.Nack):
            raise RuntimeError("RabbitMQ refused a message")
        tag = frame.method.delivery_tag
        self._confirmed = tag if frame.method.multiple else self._confirmed + 1
        self._room.set()

    async def create(self, batches: Iterable[Batch]) -> int:
        created = 0
        for batch in batches:
            self._publish(batch)
            created += len(batch)
            await self._until_unconfirmed(UNCONFIRMED_MAX)
        await self._until_unconfirmed(0)
        return created

    def _publish(self, batch: Batch) -> None:
        now = time.time_ns() // 1_000_000
        at_once = pika.BasicProperties(delivery_mode=2)
        for row, body in enumerate(batch.bodies):
            queue, properties = READY, at_once
            if batch.due_ms is not None:
                wait_ms = max(0, math.ceil(batch.due_ms[row] - now))
                queue = FAR if wait_ms > FAR_MS else WAITING
                properties = pika.BasicProperties(delivery_mode=2, expiration=str(wait_ms))
            self._channel.basic_publish(exchange="", routing_key=queue, body=body, properties=properties)
            self._published += 1

    async def _until_unconfirmed(self, most: int) -> None:
        while self._published - self._confirmed > most:
            self._room.clear()
            await self._room.wait()

    async def consume(self, tally: Tally) -> None:
        unacked, last_tag = 0, 0

        def settle() -> None:
            nonlocal unacked
            if unacked:
                self._channel.basic_ack(last_tag, multiple=True)
                tally.deleted(unacked)
                unacked = 0

        def on_message(_: Any, method: Any, __: Any, body: bytes) -> None:
            nonlocal unacked, last_tag
            tally.taken([body])
            unacked, last_tag = unacked + 1, method.delivery_tag
            if unacked == BATCH:
                settle()

        self._channel.basic_qos(prefetch_count=4 * BATCH)
        consumer = self._channel.basic_consume(READY, on_message_callback=on_message)
        try:
            while not tally.done():
                await asyncio.sleep(IDLE_SECONDS)
                settle()
        finally:
            self._channel.basic_cancel(consumer)


def _version() -> str:
    shown = subprocess.run(["dpkg-query", "-W", "-f=${Version}", "rabbitmq-server"], capture_output=True, text=True)
    return shown.stdout.partition("-")[0] or "unknown"


def _missing() -> str | None:
    if not os.access(PROGRAM, os.X_OK):
        return "rabbitmq-server is not installed"
    return None if shutil.which("epmd") else "Erlang's epmd is not installed"


RABBITMQ = System(
    name="rabbitmq",
    durable=True,
    server=RabbitServer,
    client=RabbitClient,
    version=_version,
    missing=_missing,
    benches=frozenset({"throughput", "accuracy", "burst", "latency"}),
    settings={
        "server": "durable classic queues, no plugins",
        "client": "pika on asyncio, persistent, 4000 unconfirmed; prefetch 4000, acks of up to 1000",
        "later": "TTL per message in a waiting queue, dead-lettered to the ready one",
    },
)
