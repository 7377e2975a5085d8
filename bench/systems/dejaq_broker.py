"""DejaQ itself: `dejaq serve` as a child process, and the SDK as every user has it."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Sequence
from importlib.metadata import version
from urllib.request import urlopen

import dejaq
from bench.harness.figures import Figures
from bench.harness.payload import BATCH, Batch
from bench.harness.server import ServerProcess
from bench.harness.tally import Tally
from bench.harness.window import Window
from bench.systems.base import ALL_BENCHES, OWN_IDS, System
from dejaq.errors import Missing
from dejaq.sdk.consuming.lease import Batch as Leases
from dejaq.sdk.results import Results

TOPIC = "bench"
BUCKETS = 16
CREATES_IN_FLIGHT = 8
DELETES_IN_FLIGHT = 8
IN_FLIGHT_MAX = 50_000
LEASE_SECONDS = 60.0
_BESIDE = {"watched", "tabs", "ordinary", "one_at_a_time"}
NATURAL = OWN_IDS | {"large_backlog", "slow_work", "uptime", "fleet", "topics"} | _BESIDE
GENERATED = frozenset({"generated_ids", "priority", "cron", "transactions"})


class DejaqServer(ServerProcess):
    """A broker on the embedded store."""

    def command(self) -> Sequence[str]:
        data = str(self.folder / "data")
        run = [sys.executable, "-m", "dejaq", "serve"]
        return [*run, "--data", data, "--listen", self.address, "--log-level", "warning"]

    def fsyncs(self) -> int | None:
        """The count that the store keeps."""
        found = metric(self.address, 'dejaq_storage{figure="syncs"}')
        return None if found is None else int(found)


def metric(address: str, name: str) -> float | None:
    """One figure of a broker's metrics, by its name and labels."""
    with urlopen(f"http://{address}/metrics", timeout=10) as answer:
        text = answer.read().decode()
    found = re.search(rf"^{re.escape(name)} (\S+)$", text, re.MULTILINE)
    return float(found.group(1)) if found else None


class DejaqClient:
    """A client with one topic; with natural ids each message has an id from the client."""

    def __init__(self, address: str, *, natural: bool) -> None:
        self._client = dejaq.connect(f"dejaq://{address}")
        self._producer = self._client.producer(TOPIC)
        self._producing = False
        self._natural = natural
        self._sent = 0

    async def open(self, *, produces: bool) -> None:
        await self._client.open()
        try:
            await self._client.describe_topic(TOPIC)
        except Missing:
            await self._client.create_topic(TOPIC, buckets=BUCKETS)
        if produces:
            self._producing = True
            await self._producer.open()

    async def close(self) -> None:
        if self._producing:
            await self._producer.close()
        await self._client.close()

    async def create(self, batches: Iterable[Batch]) -> int:
        window, created = Window(CREATES_IN_FLIGHT), 0
        for batch in batches:
            await window.add(self._create(batch))
            created += len(batch)
        await window.drain()
        return created

    async def _create(self, batch: Batch) -> Results:
        ids = batch.ids if self._natural else None
        return await self._producer.send_batch(batch.bodies, at=batch.due_ms, ids=ids)

    async def create_known(self, batches: Iterable[Batch]) -> list[str]:
        known: list[str] = []
        for batch in batches:
            known.extend((await self._create(batch)).ids)
        return known

    async def consume(self, tally: Tally) -> None:
        window = Window(DELETES_IN_FLIGHT)
        async with self._client.consumer(TOPIC, lease=LEASE_SECONDS, max_in_flight=IN_FLIGHT_MAX) as consumer:
            async for leases in consumer.batches(BATCH):
                tally.taken(leases.bodies)
                await window.add(self._delete(leases, tally))

    async def _delete(self, leases: Leases, tally: Tally) -> None:
        await leases.delete()
        tally.deleted(len(leases))

    async def send(self, body: bytes) -> None:
        self._sent += 1
        await self._producer.send(body, id=f"s-{self._sent:012d}" if self._natural else None)

    async def cancel(self, ids: Sequence[str]) -> None:
        await self._producer.cancel(ids)

    async def move(self, ids: Sequence[str], due_ms: int) -> None:
        await self._producer.move(ids, at=due_ms)

    async def edit(self, ids: Sequence[str], bodies: Sequence[bytes]) -> None:
        await self._producer.edit_batch(ids, bodies=bodies)


async def create_topic(address: str, buckets: int) -> Figures:
    """Create the topic that the clients use."""
    async with dejaq.connect(f"dejaq://{address}") as client:
        await client.create_topic(TOPIC, buckets=buckets)
    return {}


def _generated(address: str) -> DejaqClient:
    return DejaqClient(address, natural=False)


def _natural(address: str) -> DejaqClient:
    return DejaqClient(address, natural=True)


def system(name: str, *, natural: bool) -> System:
    """DejaQ with generated or with natural ids."""
    return System(
        name=name,
        durable=True,
        server=DejaqServer,
        client=_natural if natural else _generated,
        version=lambda: version("dejaq-mq"),
        missing=lambda: None,
        benches=ALL_BENCHES | ({*NATURAL, "connections"} if natural else GENERATED),
        settings={
            "server": f"embedded store, fsync before every ack, {BUCKETS} buckets",
            "client": "SDK, send_batch of 1000, 8 in flight; batches(1000), 8 deletes in flight",
            "ids": "natural" if natural else "generated",
        },
        changes=("cancel", "move", "edit"),
        buckets=create_topic,
    )
