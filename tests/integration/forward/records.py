"""Writes and reads records of a Kafka topic in tests, with the client's blocking calls in a thread."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, field

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from dejaq.testing.waiting import eventually

SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Record:
    """One record; `partition` and `offset` are known when it was read."""

    value: bytes | None
    key: bytes | None = None
    headers: dict[str, bytes] = field(default_factory=dict)
    ts: int = 0
    partition: int = -1
    offset: int = -1


class KafkaTopic:
    """A topic of a server."""

    def __init__(self, address: str, name: str) -> None:
        self.address, self.name = address, name
        self.url = f"kafka://{address}/{name}"

    async def create(self, partitions: int = 4, **settings: str) -> None:
        """Create it."""
        new = NewTopic(
            self.name, partitions, 1, config={name.replace("_", "."): text for name, text in settings.items()}
        )
        admin = AdminClient({"bootstrap.servers": self.address})
        await asyncio.to_thread(admin.create_topics([new])[self.name].result, SECONDS)
        await eventually(lambda: self._exists(admin), within=SECONDS, what=f"Kafka shows topic {self.name}")

    def _exists(self, admin: AdminClient) -> bool:
        return admin.list_topics(self.name, SECONDS).topics[self.name].error is None

    async def write(self, records: Iterable[Record]) -> None:
        """Append records."""
        await asyncio.to_thread(self._write, list(records))

    def _write(self, records: list[Record]) -> None:
        producer = Producer({"bootstrap.servers": self.address, "linger.ms": 1})
        for one in records:
            producer.produce(
                self.name,
                one.value,
                key=one.key,
                headers=dict(one.headers),
                timestamp=one.ts,
                partition=one.partition,
            )
        assert not producer.flush(SECONDS)

    async def read(self) -> list[Record]:
        """Every record that is committed, by partition."""
        return await asyncio.to_thread(self._read)

    def _read(self) -> list[Record]:
        settings = {"group.id": "test", "isolation.level": "read_committed", "enable.partition.eof": True}
        consumer = Consumer({"bootstrap.servers": self.address, "auto.offset.reset": "earliest"} | settings)
        partitions = consumer.list_topics(self.name, SECONDS).topics[self.name].partitions
        consumer.assign([TopicPartition(self.name, number, 0) for number in partitions])
        left, found = set(partitions), []
        while left:
            for message in consumer.consume(1_000, 1.0):
                if message.error() is not None:
                    left.discard(message.partition() or 0)
                    continue
                left.add(message.partition() or 0)
                headers = dict(message.headers() or [])
                found.append(
                    Record(
                        message.value(),
                        message.key(),
                        headers,  # type: ignore[arg-type]
                        message.timestamp()[1],
                        message.partition() or 0,
                        message.offset() or 0,
                    )
                )
        consumer.close()
        return sorted(found, key=lambda one: (one.partition, one.offset))
