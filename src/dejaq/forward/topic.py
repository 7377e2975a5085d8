"""DejaQ topics as source and sink."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from dejaq.domain.backoff import Backoff
from dejaq.errors import MEANINGS, Code, Conflict, DejaqError, Refused
from dejaq.forward.base import Parcel
from dejaq.sdk.client import Client
from dejaq.sdk.consumer import Consumer
from dejaq.sdk.lease import Lease
from dejaq.sdk.producer import Producer

# When a message that the sink refused is offered again.
REFUSED = Backoff.exponential(first=5.0, longest=3_600.0, jitter=0.0)
IN_FLIGHT_BATCHES = 4


class TopicSource:
    """A consumer of a topic: what is due is read, and deleted when it is acknowledged."""

    def __init__(self, client: Client, topic: str, *, name: str = "", batch: int = 500) -> None:
        self._client = client
        self._topic = topic
        self._name = name
        self._batch = batch
        self._consumer: Consumer | None = None

    async def open(self) -> None:
        """Subscribe."""
        consumer = self._client.consumer(
            self._topic, name=self._name, max_in_flight=IN_FLIGHT_BATCHES * self._batch, prefetch=0
        )
        await consumer.open()
        self._consumer = consumer

    async def read(self, limit: int) -> Sequence[Parcel]:
        """What is due."""
        assert self._consumer is not None, "it is read before it is opened"
        batch = await self._consumer.take(limit)
        return [
            Parcel(
                id=lease.id,
                body=lease.body,
                ts=None,
                priority=lease.priority,
                headers=lease.headers,
                token=lease,
            )
            for lease in batch
        ]

    async def ack(self, parcels: Sequence[Parcel]) -> None:
        """Delete them; one whose lease ended meanwhile comes again, and the sink knows it."""
        await asyncio.gather(*(_deleted(parcel.token) for parcel in parcels))

    async def reject(self, parcel: Parcel, reason: str) -> None:
        """Put it back, due later and later."""
        lease: Lease = parcel.token
        try:
            await lease.release(delay=REFUSED.delay_ms(lease.attempts, 0.0) / 1_000)
        except DejaqError:
            # Its lease runs out, and it comes again all the same.
            return

    async def close(self) -> None:
        """Give back what was not read, and disconnect."""
        if self._consumer is not None:
            await self._consumer.close()


async def _deleted(lease: Lease) -> None:
    if lease.settled:
        return
    try:
        await lease.delete()
    except Conflict as error:
        if error.code is not Code.LEASE_LOST:
            raise


class TopicSink:
    """A producer of a topic: a message that is there under its id is not made twice."""

    def __init__(self, client: Client, topic: str, *, group: str = "forward", delay: float = 0.0) -> None:
        self.client = client
        self.topic = topic
        self.group = group
        self.delay = delay
        self._producer: Producer | None = None

    async def open(self) -> None:
        """Connect."""
        producer = self.client.producer(self.topic, group=self.group)
        await producer.open()
        self._producer = producer

    def due(self, parcel: Parcel) -> int:
        """When a message is due here."""
        return (self.client.now_ms() if parcel.ts is None else parcel.ts) + round(self.delay * 1_000)

    async def write(self, parcels: Sequence[Parcel]) -> Mapping[int, str]:
        """Create them."""
        assert self._producer is not None, "it is written to before it is opened"
        results = await self._producer.send_batch(
            [parcel.body for parcel in parcels],
            at=[self.due(parcel) for parcel in parcels],
            ids=[parcel.id for parcel in parcels],
            priorities=[parcel.priority for parcel in parcels],
            headers=[parcel.headers for parcel in parcels],
        )
        failed = results.failed
        for code in failed.values():
            # Not about one message: the batch is to be written again.
            if code in (Code.INDEFINITE, Code.UNAVAILABLE, Code.OVERLOADED, Code.DRAINING, Code.NO_BROKER):
                results.raise_for_failures()
        taken = [place for place, code in failed.items() if code in (Code.ID_TAKEN, Code.DUPLICATE_IN_BATCH)]
        same = await self._same([parcels[place] for place in taken])
        repeats = {place for place, is_same in zip(taken, same, strict=True) if is_same}
        return {place: MEANINGS[code] for place, code in failed.items() if place not in repeats}

    async def _same(self, parcels: Sequence[Parcel]) -> list[bool]:
        """Whether what is there under the ids is these messages, be it at another time by now."""
        if not parcels:
            return []
        found = await self.client.get(self.topic, [parcel.id for parcel in parcels])
        return [
            there is not None and (there.body, there.producer_group) == (parcel.body, self.group)
            for parcel, there in zip(parcels, found, strict=True)
        ]

    async def close(self) -> None:
        """Wait for what was sent, and disconnect."""
        if self._producer is not None:
            await self._producer.close()


class TopicTransfer:
    """Between two topics of one cluster: deleted there and created here in one transaction, so exactly once."""

    def __init__(self, sink: TopicSink) -> None:
        self._sink = sink
        self._possible = True

    async def __call__(self, parcels: Sequence[Parcel]) -> bool:
        """Move messages; False where one of them is refused or the topics live in different stores."""
        if not self._possible:
            return False
        sink = self._sink
        try:
            async with sink.client.transaction(group=sink.group) as step:
                for parcel in parcels:
                    step.delete(parcel.token)
                    step.send(
                        sink.topic,
                        parcel.body,
                        at=sink.due(parcel),
                        id=parcel.id,
                        priority=parcel.priority,
                        headers=parcel.headers,
                    )
        except Refused as refused:
            # One by one, each has an outcome of its own.
            self._possible = refused.code is not Code.DIFFERENT_STORES
            return False
        return True
