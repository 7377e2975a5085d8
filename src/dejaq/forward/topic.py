"""DejaQ topics as source and sink."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from dejaq.domain.backoff import Backoff
from dejaq.errors import MEANINGS, Code, Conflict, DejaqError, Refused
from dejaq.forward.base import Parcel, headers_with_key
from dejaq.sdk.changing.transaction import Transaction
from dejaq.sdk.client import Client
from dejaq.sdk.consuming.consumer import Consumer
from dejaq.sdk.consuming.lease import Lease
from dejaq.sdk.producing.producer import Producer

# When a message that the sink refused is offered again.
REFUSED = Backoff.exponential(first=5.0, longest=3_600.0, jitter=0.0)
IN_FLIGHT_BATCHES = 4
# Errors of a broker or of the connection; they do not concern a single message.
_OF_THE_BROKER = frozenset(
    {
        Code.INDEFINITE,
        Code.UNAVAILABLE,
        Code.OVERLOADED,
        Code.DRAINING,
        Code.NO_BROKER,
        Code.CUT_OFF,
        Code.STORE_FAILED,
        Code.STORE_CORRUPT,
    }
)


class TopicSource:
    """A consumer of a topic: due messages are read, and deleted when they are acknowledged."""

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
        return [_parcel(lease) for lease in batch]

    async def ack(self, parcels: Sequence[Parcel]) -> None:
        """Delete them; a message whose lease expired in the meantime is read again, and the sink recognises it."""
        await asyncio.gather(*(_deleted(parcel.token) for parcel in parcels))

    async def reject(self, parcel: Parcel, reason: str) -> None:
        """Release it, due after increasing times."""
        lease: Lease = parcel.token
        try:
            await lease.release(delay=REFUSED.delay_ms(lease.attempts, 0.0) / 1_000)
        except DejaqError:
            # Its lease expires, and the message is delivered again.
            return

    async def close(self) -> None:
        """Return unread messages, and disconnect."""
        if self._consumer is not None:
            await self._consumer.close()


def _parcel(lease: Lease) -> Parcel:
    """A message to forward; one whose body cannot be unpacked is refused, and does not stop the others."""
    body, fault = b"", ""
    try:
        body = lease.body
    except DejaqError as error:
        fault = str(error)
    return Parcel(
        id=lease.id, body=body, ts=None, priority=lease.priority, headers=lease.headers, token=lease, fault=fault
    )


async def _deleted(lease: Lease) -> None:
    if lease.settled:
        return
    try:
        await lease.delete()
    except Conflict as error:
        if error.code is not Code.LEASE_LOST:
            raise


class TopicSink:
    """A producer of a topic: a message that already exists is not created twice."""

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

    def send(self, step: Transaction, parcel: Parcel) -> None:
        """Create a message in a transaction."""
        step.send(
            self.topic,
            parcel.body,
            at=self.due(parcel),
            id=parcel.id,
            priority=parcel.priority,
            headers=headers_with_key(parcel),
        )

    async def write(self, parcels: Sequence[Parcel]) -> Mapping[int, str]:
        """Create them."""
        assert self._producer is not None, "it is written to before it is opened"
        results = await self._producer.send_batch(
            [parcel.body for parcel in parcels],
            at=[self.due(parcel) for parcel in parcels],
            ids=[parcel.id for parcel in parcels],
            priorities=[parcel.priority for parcel in parcels],
            headers=[headers_with_key(parcel) for parcel in parcels],
            results=True,
        )
        failed = results.failed
        for code in failed.values():
            # This does not concern one message: the batch must be written again.
            if code in _OF_THE_BROKER:
                results.raise_for_failures()
        taken = [place for place, code in failed.items() if code in (Code.ID_TAKEN, Code.DUPLICATE_IN_BATCH)]
        same = await self._same([parcels[place] for place in taken])
        repeats = {place for place, is_same in zip(taken, same, strict=True) if is_same}
        return {place: MEANINGS[code] for place, code in failed.items() if place not in repeats}

    async def _same(self, parcels: Sequence[Parcel]) -> list[bool]:
        """Whether the existing messages with these ids are the same, although perhaps at another time."""
        if not parcels:
            return []
        found = await self.client.get(self.topic, [parcel.id for parcel in parcels])
        return [
            there is not None and (there.body, there.producer_group) == (parcel.body, self.group)
            for parcel, there in zip(parcels, found, strict=True)
        ]

    async def close(self) -> None:
        """Wait for outstanding sends, and disconnect."""
        if self._producer is not None:
            await self._producer.close()


class TopicTransfer:
    """Between two topics of one cluster: deleted there and created here in one transaction, so exactly once."""

    def __init__(self, sink: TopicSink) -> None:
        self._sink = sink
        self._possible = True

    async def __call__(self, parcels: Sequence[Parcel]) -> Mapping[int, str] | None:
        """Move messages; None if one of them is refused or the topics are in different stores."""
        if not self._possible:
            return None
        sink = self._sink
        try:
            async with sink.client.transaction(group=sink.group) as step:
                for parcel in parcels:
                    step.delete(parcel.token)
                    sink.send(step, parcel)
        except Refused as refused:
            # One by one, each has an outcome of its own.
            self._possible = refused.code is not Code.DIFFERENT_STORES
            return None
        return {}
