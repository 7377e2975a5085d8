"""A recorded load: producers that name their messages, consumers with and without faults, and a full drain.

    verdict = await Workload(client, "mail", Load(messages=1_000), seed=7).run()
    assert not verdict.findings, verdict

The same load can run while the broker is killed, paused or slowed down: every call and its outcome is recorded
in a ledger, and the ledger is checked when the topic is empty.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Iterator
from dataclasses import dataclass

from dejaq.errors import DejaqError, Indefinite, Unavailable
from dejaq.sdk.client import Client
from dejaq.sdk.consuming.lease import Lease
from dejaq.sdk.producing.producer import Producer
from dejaq.testing.history.ledger import (
    CallOutcome,
    DeliveryLedger,
    HandOver,
    Send,
    Settle,
    SettlementKind,
    WorkloadVerdict,
)
from dejaq.testing.waiting import eventually

BATCH_MAX = 30
# After so many faults on one message the consumers process it normally, so that a drain ends.
MISBEHAVIOURS_MAX = 3


@dataclass(frozen=True, slots=True)
class Load:
    """The size and rate of the load and its faults; the shares are of all deliveries."""

    messages: int
    producers: int = 2
    consumers: int = 2
    buckets: int = 8
    lease_seconds: float = 1.0
    # Messages are due within this time of being sent.
    ahead_seconds: float = 0.5
    # The average time between two messages of a producer.
    pace_seconds: float = 0.0
    release_share: float = 0.05
    extend_share: float = 0.05
    abandon_share: float = 0.02
    stale_share: float = 0.02
    drain_seconds: float = 60.0


class Workload:
    """One run of a load on one topic. `progress` may be read while it runs."""

    def __init__(self, client: Client, topic: str, load: Load, *, seed: int) -> None:
        self._client = client
        self._topic = topic
        self.load = load
        self._seed = seed
        self._background: set[asyncio.Task[None]] = set()
        self.ledger = DeliveryLedger()
        self.acknowledged = 0
        self.deleted = 0
        # The messages that the drain left in the topic.
        self.left: set[str] = set()

    async def run(self) -> WorkloadVerdict:
        """Produce and consume until all messages are sent and the topic is empty, then check."""
        await self._client.create_topic(self._topic, buckets=self.load.buckets)
        consumers = [asyncio.create_task(self._consume(number)) for number in range(self.load.consumers)]
        try:
            async with asyncio.TaskGroup() as producers:
                for number in range(self.load.producers):
                    producers.create_task(self._produce(number))
            await self._drain(consumers)
        finally:
            for task in [*consumers, *self._background]:
                task.cancel()
            await asyncio.gather(*consumers, *self._background, return_exceptions=True)
        self.left = {message.body.decode() async for page in self._client.browse(self._topic) for message in page}
        return self.ledger.verdict(self.left)

    async def _drain(self, consumers: list[asyncio.Task[None]]) -> None:
        """Wait until the topic is empty and every fault has ended; the verdict reports the messages that are left."""

        async def empty() -> bool:
            for task in consumers:
                if task.done():
                    task.result()
            try:
                return not self._background and await self._client.count(self._topic) == 0
            except DejaqError:
                return False

        try:
            await eventually(empty, within=self.load.drain_seconds, poll=0.05)
        except TimeoutError:
            return

    # Producers

    async def _produce(self, number: int) -> None:
        chance = random.Random(f"{self._seed} producer {number}")
        share = range(number, self.load.messages, self.load.producers)
        async with self._client.producer(self._topic, group=f"group-{number}") as producer:
            for names in _cut([f"message-{index}" for index in share], chance):
                await self._send(producer, names, chance)
                if self.load.pace_seconds:
                    await asyncio.sleep(self.load.pace_seconds * len(names))

    async def _send(self, producer: Producer, names: list[str], chance: random.Random) -> None:
        now = _now_us() // 1_000
        times = [now + round(chance.random() * self.load.ahead_seconds * 1_000) for _ in names]
        sends = [self.ledger.sent(name, ts) for name, ts in zip(names, times, strict=True)]
        bodies = [name.encode() for name in names]
        ids = names if chance.random() < 0.5 else None
        try:
            if len(names) == 1:
                await producer.send(bodies[0], at=times[0], id=ids[0] if ids else None)
            else:
                await producer.send_batch(bodies, at=times, ids=ids)
        except DejaqError as error:
            _note(sends, error)
            return
        for send in sends:
            send.outcome = CallOutcome.OK
        self.acknowledged += len(sends)

    # Consumers

    async def _consume(self, number: int) -> None:
        chance = random.Random(f"{self._seed} consumer {number}")
        name = f"consumer-{number}"
        consumer = self._client.consumer(
            self._topic, name=name, lease=self.load.lease_seconds, max_in_flight=200, auto_extend=False
        )
        async with consumer:
            async for lease in consumer:
                delivery = HandOver(
                    name=lease.body.decode(),
                    consumer=name,
                    version=lease.version,
                    handed_us=_now_us(),
                    expires_ms=lease.expires_ms,
                )
                self.ledger.handed(delivery)
                self._spawn(self._handle(lease, delivery, chance.random()))

    def _spawn(self, work: Awaitable[None]) -> None:
        task = asyncio.ensure_future(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    async def _handle(self, lease: Lease, delivery: HandOver, chance: float) -> None:
        load = self.load
        if len(self.ledger.deliveries[delivery.name]) > MISBEHAVIOURS_MAX:
            chance = 1.0
        if chance < load.abandon_share:
            return
        chance -= load.abandon_share
        if chance < load.release_share:
            at = _now_us() // 1_000 + 50
            await self._settle(delivery, Settle(SettlementKind.RELEASE, _now_us(), at), lease.release(at=at))
            return
        chance -= load.release_share
        if chance < load.extend_share:
            # The broker counts from the time at which it receives the call, so this is the earliest possible end.
            until = _now_us() // 1_000 + round(load.lease_seconds * 2_000)
            await self._settle(
                delivery, Settle(SettlementKind.EXTEND, _now_us(), until), lease.extend(load.lease_seconds * 2)
            )
        elif chance < load.extend_share + load.stale_share:
            await asyncio.sleep(max(0, lease.expires_ms / 1_000 - time.time()) + 0.1)
        settle = Settle(SettlementKind.DELETE, _now_us())
        await self._settle(delivery, settle, lease.delete())
        self.deleted += settle.outcome is CallOutcome.OK

    async def _settle(self, delivery: HandOver, settle: Settle, call: Awaitable[None]) -> None:
        delivery.settles.append(settle)
        try:
            await call
        except DejaqError as error:
            # For a call that was repeated over a broken connection, LEASE_LOST means that the lease has ended, but not
            # whether the first try succeeded and ended it. For a delete the SDK finds out.
            unsure = _unknown(error) or settle.kind is not SettlementKind.DELETE
            settle.outcome = CallOutcome.UNKNOWN if unsure else CallOutcome.REFUSED
        else:
            settle.outcome = CallOutcome.OK
        settle.ended_us = _now_us()


def _cut(names: list[str], chance: random.Random) -> Iterator[list[str]]:
    """The names in groups of different sizes."""
    start = 0
    while start < len(names):
        end = start + chance.choice((1, 1, 5, BATCH_MAX))
        yield names[start:end]
        start = end


def _note(sends: list[Send], error: DejaqError) -> None:
    for send in sends:
        send.outcome = CallOutcome.UNKNOWN if _unknown(error) else CallOutcome.REFUSED


def _unknown(error: DejaqError) -> bool:
    return isinstance(error, Indefinite | Unavailable)


def _now_us() -> int:
    return time.time_ns() // 1_000
