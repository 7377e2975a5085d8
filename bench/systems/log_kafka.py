"""Kafka, one server in KRaft mode: its default, which leaves writing to the operating system, and with an fsync for
each append.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

from confluent_kafka import Consumer, KafkaException, Message, Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from bench.harness.payload import BATCH, Batch
from bench.harness.server import ServerProcess
from bench.harness.tally import Tally
from bench.systems.base import LOG_BENCHES, System
from dejaq.testing.servers.kafka import JARS, kafka_command, kafka_missing

TOPIC, GROUP = "log", "bench"
PARTITIONS = 4
CALL_SECONDS = 30.0
POLL_SECONDS = 0.05
COMMIT_MESSAGES = 50_000
# The settings of kafka-server-start.sh.
JVM = ("-Xms1G", "-Xmx1G", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20", "-XX:InitiatingHeapOccupancyPercent=35")


class KafkaBench(ServerProcess):
    """A server; `flush` syncs the log before every acknowledgement."""

    def __init__(self, folder: Path, *, flush: bool) -> None:
        super().__init__(folder)
        self._flush = flush

    def command(self) -> Sequence[str]:
        settings = {"log.flush.interval.messages": "1"} if self._flush else {}
        return kafka_command(self.folder, self.port, settings=settings, jvm=JVM)


class KafkaClient:
    """A producer or a consumer of librdkafka, which works in threads of its own."""

    def __init__(self, address: str) -> None:
        self._servers: dict[str, str | int | float | bool] = {"bootstrap.servers": address}
        self._producer: Producer | None = None
        self._consumer: Consumer | None = None
        self._polling: asyncio.Task[None] | None = None

    async def open(self, *, produces: bool) -> None:
        admin = AdminClient(self._servers)
        with suppress(KafkaException):
            admin.create_topics([NewTopic(TOPIC, PARTITIONS, 1)])[TOPIC].result(CALL_SECONDS)
        if produces:
            self._producer = Producer(
                self._servers
                | {"acks": "all", "linger.ms": 2, "batch.size": 1_000_000, "queue.buffering.max.messages": 2_000_000}
                | {"queue.buffering.max.kbytes": 1_000_000, "delivery.report.only.error": False}
            )
        else:
            settings = {"group.id": GROUP, "auto.offset.reset": "earliest", "enable.auto.commit": False}
            self._consumer = Consumer(self._servers | settings | {"fetch.wait.max.ms": 5, "fetch.min.bytes": 1})
            self._consumer.subscribe([TOPIC])

    async def close(self) -> None:
        if self._polling is not None:
            self._polling.cancel()
        if self._consumer is not None:
            self._consumer.close()

    async def create(self, batches: Iterable[Batch]) -> int:
        producer = self._producer
        assert producer is not None
        created = 0
        for batch in batches:
            producer.produce_batch(TOPIC, [{"value": body} for body in batch.bodies])
            producer.poll(0)
            created += len(batch)
        if producer.flush(CALL_SECONDS):
            raise RuntimeError("Kafka did not acknowledge everything")
        return created

    async def consume(self, tally: Tally) -> None:
        consumer = self._consumer
        assert consumer is not None
        loop, owed = asyncio.get_running_loop(), 0
        while not tally.done():
            messages = consumer.consume(BATCH, 0)
            if not messages:
                messages = await loop.run_in_executor(None, consumer.consume, 1, POLL_SECONDS)
            else:
                await asyncio.sleep(0)
            bodies = [message.value() or b"" for message in messages if message.error() is None]
            if not bodies:
                continue
            tally.taken(bodies)
            owed += len(bodies)
            if owed >= COMMIT_MESSAGES:
                consumer.commit(asynchronous=True)
                owed = 0
            tally.deleted(len(bodies))
        with suppress(KafkaException):
            consumer.commit(asynchronous=False)

    async def send(self, body: bytes) -> None:
        producer, loop = self._producer, asyncio.get_running_loop()
        assert producer is not None
        done: asyncio.Future[None] = loop.create_future()

        def answered(error: object, message: Message) -> None:
            if error is None:
                done.set_result(None)
            else:
                done.set_exception(RuntimeError(str(error)))

        producer.produce(TOPIC, body, on_delivery=answered)
        if self._polling is None:
            self._polling = asyncio.ensure_future(self._poll(producer))
        await done

    async def _poll(self, producer: Producer) -> None:
        """Call the callbacks of what was acknowledged, in this thread: cheaper than one hand-over per message."""
        while True:
            producer.poll(0)
            await asyncio.sleep(0.0002)


def _version() -> str:
    return next(JARS.glob("kafka_*.jar")).stem.rpartition("-")[2]


def system(name: str, *, flush: bool) -> System:
    """Kafka with one policy of syncing."""
    return System(
        name=name,
        durable=flush,
        server=lambda folder: KafkaBench(folder, flush=flush),
        client=KafkaClient,
        version=_version,
        missing=kafka_missing,
        benches=LOG_BENCHES,
        settings={
            "server": f"KRaft, one server, {PARTITIONS} partitions, "
            + ("log.flush.interval.messages=1" if flush else "default: no fsync before an ack"),
            "client": "confluent-kafka, produce_batch of 1000, acks=all, linger 2 ms; consume(1000), commits every "
            f"{COMMIT_MESSAGES:,} messages",
        },
    )
