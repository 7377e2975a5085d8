"""A log topic of DejaQ: batches that are acknowledged after their fsync, and a group that commits what it has read."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from importlib.metadata import version

import dejaq
from bench.harness.payload import BATCH, Batch
from bench.harness.tally import Tally
from bench.harness.window import Window
from bench.systems.base import LOG_BENCHES, System
from bench.systems.dejaq_broker import DejaqServer
from dejaq.errors import Conflict, Missing

TOPIC, GROUP = "log", "bench"
BUCKETS = 16
APPENDS_IN_FLIGHT = 8
WINDOW_BYTES = 8 * 1024 * 1024
# The broker sends more when half of the window is committed, so a commit is made before that.
COMMIT_BYTES = WINDOW_BYTES // 8


class DejaqLogClient:
    """A client with one log."""

    def __init__(self, address: str) -> None:
        self._client = dejaq.connect(f"dejaq://{address}")
        self._log = self._client.log(TOPIC)

    async def open(self, *, produces: bool) -> None:
        await self._client.open()
        try:
            await self._client.describe_topic(TOPIC)
        except Missing:
            # Another client may create it at the same time.
            with suppress(Conflict):
                await self._client.create_topic(TOPIC, kind="log", buckets=BUCKETS)
        if produces:
            await self._log.open()

    async def close(self) -> None:
        await self._log.close()
        await self._client.close()

    async def create(self, batches: Iterable[Batch]) -> int:
        window, created = Window(APPENDS_IN_FLIGHT), 0
        for batch in batches:
            await window.add(self.append(batch))
            created += len(batch)
        await window.drain()
        return created

    async def append(self, batch: Batch) -> None:
        """Append one batch."""
        await self._log.append_batch(batch.bodies)

    async def consume(self, tally: Tally) -> None:
        owed = 0
        async with self._log.group(GROUP, window_bytes=WINDOW_BYTES) as member:
            async for batch in member.batches(BATCH):
                bodies = list(batch.bodies)
                tally.taken(bodies)
                owed += batch.size
                if owed >= COMMIT_BYTES:
                    await member.commit()
                    owed = 0
                tally.deleted(len(bodies))

    async def send(self, body: bytes) -> None:
        await self._log.append(body)


def system(name: str) -> System:
    """A log on the embedded store."""
    return System(
        name=name,
        durable=True,
        server=DejaqServer,
        client=DejaqLogClient,
        version=lambda: version("dejaq-mq"),
        missing=lambda: None,
        benches=LOG_BENCHES | {"log_beside"},
        settings={
            "server": f"log topic on the embedded store, fsync before every ack, {BUCKETS} buckets",
            "client": f"SDK, append_batch of {BATCH}, {APPENDS_IN_FLIGHT} in flight; a group that reads batches and "
            "commits every MiB; append with 64 in flight",
        },
    )
