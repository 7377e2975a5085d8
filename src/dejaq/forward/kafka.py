"""Kafka topics as source and sink: kafka://host:port[,host:port...]/TOPIC.

A record keeps its key, value, headers and time. librdkafka works in threads of its own; its calls that wait run in a
thread too.

The sink writes each batch in a transaction. The same transaction commits, in a consumer group that has the forwarder's
name, what was written last: the last number of every lane, or the ids of the batch where the source has no order. After
a crash the forwarder with this name reads that, and recognises what it had written.
"""

from __future__ import annotations

import asyncio
import base64
import json
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from hashlib import blake2b
from urllib.parse import urlsplit

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.cimpl import TIMESTAMP_NOT_AVAILABLE

from dejaq import limits
from dejaq.errors import Code, DejaqError, Unavailable, error_of
from dejaq.forward.base import Parcel, headers_with_origin, priority_of, with_key, without_origin

CALL_SECONDS = 10.0
POLL_SECONDS = 0.2
# Another forwarder of the group gets the partitions of one that was killed after this.
SESSION_MS = 10_000
# A group's offset carries at most 4,096 bytes.
METADATA_BYTES = 3_800
# Messages without an order that one transaction writes: their ids must fit into these bytes.
UNORDERED_MAX = 400
_ID_BYTES = 6
# Errors of one record, and not of the server or the connection.
_OF_A_RECORD = frozenset(
    {KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.INVALID_RECORD, KafkaError.INVALID_TIMESTAMP, KafkaError.INVALID_MSG}
)
_TAKEN_OVER = frozenset(
    {
        KafkaError._FENCED,
        KafkaError.PRODUCER_FENCED,
        KafkaError.INVALID_PRODUCER_EPOCH,
        KafkaError.FENCED_INSTANCE_ID,
    }
)
_GIVEN_UP = frozenset({KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT})
_REFUSALS = frozenset(
    {
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError._UNKNOWN_TOPIC,
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.GROUP_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        KafkaError.SASL_AUTHENTICATION_FAILED,
        KafkaError._AUTHENTICATION,
    }
)
# A commit of partitions that another member has by now.
_LOST = frozenset(
    {
        KafkaError.ILLEGAL_GENERATION,
        KafkaError.UNKNOWN_MEMBER_ID,
        KafkaError.REBALANCE_IN_PROGRESS,
        KafkaError.STALE_MEMBER_EPOCH,
        KafkaError._ASSIGNMENT_LOST,
        KafkaError._NO_OFFSET,
        KafkaError._STATE,
    }
)


class _Topic:
    """A topic of a cluster."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self.topic = parts.path.strip("/")
        self.servers = parts.netloc.rpartition("@")[2]
        if not self.topic or "/" in self.topic or not self.servers or "@" in parts.netloc:
            raise error_of(Code.INVALID_ARGUMENT, f"{url!r} is not kafka://HOST:PORT/TOPIC")
        self._mark = ""

    def _settings(self) -> dict[str, str | int | float | bool]:
        # What is wrong is raised by the calls; the log of the library would repeat it many times.
        return {"bootstrap.servers": self.servers, "log_level": 0, "reconnect.backoff.max.ms": 1_000}

    @contextmanager
    def _telling(self) -> Iterator[None]:
        """Convert errors of Kafka to errors of DejaQ."""
        try:
            yield
        except KafkaException as error:
            raise self._converted(error.args[0]) from None

    def _converted(self, error: KafkaError) -> DejaqError:
        where = f"Kafka at {self.servers}, topic {self.topic!r}: {error.str()}"
        if error.code() in _REFUSALS:
            return error_of(Code.INVALID_ARGUMENT, where)
        if error.code() in _TAKEN_OVER:
            return error_of(Code.OUT_OF_STATE, f"{where}; another forwarder with this name has taken over")
        return Unavailable(where)

    def _look(self, consumer: Consumer) -> None:
        """Check that the cluster answers and has the topic."""
        with self._telling():
            found = consumer.list_topics(self.topic, timeout=CALL_SECONDS)
            topic = found.topics[self.topic]
            if topic.error is not None:
                raise KafkaException(topic.error)
            self._mark = f"{zlib.crc32(f'{found.cluster_id}/{self.topic}'.encode()):08x}"


class KafkaSource(_Topic):
    """A member of a consumer group; the group's offsets say what was moved."""

    def __init__(self, url: str, *, name: str, group: str) -> None:
        super().__init__(url)
        # Groups of Kafka are those of a cluster, not of a topic.
        self._name, self._group = name, f"{group}-from-{self.topic}"
        self._consumer: Consumer | None = None
        self._reading: asyncio.Future[list[Message]] | None = None

    async def open(self) -> None:
        """Join the group; it begins with the oldest record."""
        consumer = Consumer(
            self._settings()
            # A forwarder that returns with its name has its partitions at once.
            | {"group.id": self._group, "group.instance.id": self._name, "enable.auto.commit": False}
            | {"auto.offset.reset": "earliest", "isolation.level": "read_committed", "session.timeout.ms": SESSION_MS}
        )
        try:
            await asyncio.to_thread(self._look, consumer)
        except BaseException:
            consumer.close()
            raise
        self._consumer = consumer
        # What was read and not acknowledged of partitions that come back is read again.
        consumer.subscribe([self.topic])

    async def read(self, limit: int) -> Sequence[Parcel]:
        """The next records of the partitions that this member has."""
        consumer = self._consumer
        assert consumer is not None, "it is read before it is opened"
        while True:
            if self._reading is None:
                self._reading = asyncio.ensure_future(asyncio.to_thread(consumer.consume, limit, POLL_SECONDS))
            with self._telling():
                # A cancelled call leaves it to the next one.
                messages = await asyncio.shield(self._reading)
            self._reading = None
            parcels = []
            for message in messages:
                error = message.error()
                if error is None:
                    parcels.append(self._parcel(message))
                elif error.code() in _REFUSALS or error.code() in _TAKEN_OVER:
                    raise self._converted(error)
            if parcels:
                return parcels

    def _parcel(self, message: Message) -> Parcel:
        kind, ts = message.timestamp()
        headers = {name: (value or b"").decode(errors="replace") for name, value in _headers_of(message)}
        headers = without_origin(headers)
        number, partition, value = message.offset() or 0, message.partition() or 0, message.value()
        if value is None:
            headers["kafka-null"] = "true"
        lane = f"kafka:{self._mark}:{partition}"
        return Parcel(
            id=f"{lane}:{number}",
            body=value or b"",
            ts=None if kind == TIMESTAMP_NOT_AVAILABLE else min(max(ts, 0), limits.TS_MS_MAX),
            priority=priority_of(headers),
            headers=headers,
            key=message.key() or b"",
            lane=lane,
            number=number,
            token=(partition, number),
        )

    async def ack(self, parcels: Sequence[Parcel]) -> None:
        """Commit the offsets. What another member has by now is read again there."""
        consumer = self._consumer
        assert consumer is not None, "it is read before it is opened"
        ends: dict[int, int] = {}
        for parcel in parcels:
            partition, offset = parcel.token
            ends[partition] = max(ends.get(partition, 0), offset + 1)
        offsets = [TopicPartition(self.topic, partition, end) for partition, end in ends.items()]
        with self._telling():
            try:
                await asyncio.to_thread(lambda: consumer.commit(offsets=offsets, asynchronous=False))
            except KafkaException as error:
                if error.args[0].code() not in _LOST:
                    raise

    async def reject(self, parcel: Parcel, reason: str) -> None:
        """It remains in the topic; the group continues behind it."""
        await self.ack([parcel])

    async def close(self) -> None:
        """Leave the group."""
        consumer, self._consumer = self._consumer, None
        if self._reading is not None:
            with suppress(KafkaException):
                await self._reading
        if consumer is not None:
            await asyncio.to_thread(consumer.close)


def _headers_of(message: Message) -> list[tuple[str, bytes | None]]:
    found = message.headers()
    return list(found.items()) if isinstance(found, dict) else list(found or ())  # type: ignore[arg-type]


class KafkaSink(_Topic):
    """Writes records in transactions, each message once."""

    def __init__(self, url: str, *, name: str) -> None:
        super().__init__(url)
        self._id = f"dejaq-forward-{name}-to-{self.topic}"
        self._producer: Producer | None = None
        # One that has not taken over yet.
        self._beginning: Producer | None = None
        self._consumer: Consumer | None = None
        # What the last transactions have written: the last number of each lane, and ids of messages without one.
        self._lanes: dict[str, int] = {}
        self._ids: frozenset[str] = frozenset()
        self._writing = asyncio.Lock()

    async def open(self) -> None:
        """Take over from an earlier forwarder of this name, and read what it has written."""
        await asyncio.to_thread(self._open)

    def _open(self) -> None:
        self._consumer = Consumer(self._settings() | {"group.id": self._id, "enable.auto.commit": False})
        self._look(self._consumer)
        self._begin()

    def _begin(self) -> None:
        """Begin with a new producer, which ends the transaction of an earlier one."""
        assert self._consumer is not None
        if self._beginning is None:
            self._beginning = Producer(
                self._settings()
                | {"transactional.id": self._id, "linger.ms": 0, "partitioner": "murmur2_random"}
                | {"message.max.bytes": 2 * limits.BODY_BYTES_MAX, "transaction.timeout.ms": 60_000}
            )
        with self._telling():
            try:
                self._beginning.init_transactions(CALL_SECONDS)
            except KafkaException as error:
                # After a time-out it continues in the background, and would fence another producer later.
                if not error.args[0].retriable() and error.args[0].code() != KafkaError._TIMED_OUT:
                    self._beginning = None
                raise
            producer, self._beginning = self._beginning, None
            (found,) = self._consumer.committed([TopicPartition(self.topic, 0)], timeout=CALL_SECONDS)
        self._lanes, self._ids = _unpacked(found.metadata or "")
        self._producer = producer

    async def write(self, parcels: Sequence[Parcel]) -> Mapping[int, str]:
        """Write those that are not there yet."""
        async with self._writing:
            return await asyncio.to_thread(self._write, list(parcels))

    def _write(self, parcels: list[Parcel]) -> dict[int, str]:
        refused: dict[int, str] = {}
        if self._producer is None:
            self._begin()
        fresh = [place for place, parcel in enumerate(parcels) if not self._has(parcel)]
        for first in range(0, len(fresh), UNORDERED_MAX):
            refused |= self._write_some(parcels, fresh[first : first + UNORDERED_MAX])
        return refused

    def _has(self, parcel: Parcel) -> bool:
        if parcel.lane:
            return parcel.number <= self._lanes.get(parcel.lane, -1)
        return _short(parcel.id) in self._ids

    def _write_some(self, parcels: list[Parcel], places: list[int]) -> dict[int, str]:
        """Write in one transaction; or, when a record is refused, each by itself."""
        try:
            self._transact([parcels[place] for place in places])
        except _RecordRefused as error:
            if len(places) == 1:
                return {places[0]: str(error)}
            refused: dict[int, str] = {}
            for place in places:
                refused |= self._write_some(parcels, [place])
            return refused
        return {}

    def _transact(self, parcels: list[Parcel]) -> None:
        if self._producer is None:
            self._begin()
        producer, consumer = self._producer, self._consumer
        assert producer is not None, "it is written to before it is opened"
        assert consumer is not None, "it is written to before it is opened"
        lanes = dict(self._lanes)
        for parcel in parcels:
            if parcel.lane:
                # The lanes that were used last are the last ones.
                lanes[parcel.lane] = max(parcel.number, lanes.pop(parcel.lane, -1))
        ids = frozenset(_short(parcel.id) for parcel in parcels if not parcel.lane)
        metadata, lanes = _packed(lanes, ids)
        errors: list[KafkaError] = []
        try:
            producer.begin_transaction()
            for parcel in parcels:
                self._produce(producer, parcel, errors)
            if producer.flush(CALL_SECONDS) and not errors:
                raise Unavailable(f"Kafka at {self.servers} did not answer")
            if errors:
                # The error of one record makes the library give up the others of the transaction.
                raise KafkaException(next((one for one in errors if one.code() in _OF_A_RECORD), errors[0]))
            mark = TopicPartition(self.topic, 0, 0, metadata)
            producer.send_offsets_to_transaction([mark], consumer.consumer_group_metadata(), CALL_SECONDS)
            producer.commit_transaction(CALL_SECONDS)
        except BaseException as error:
            # The next producer ends this transaction, and reads what was written.
            self._producer = None
            # The library wraps a fatal error so when it calls back afterwards.
            cause = error.__cause__ if isinstance(error, SystemError) else error
            if not isinstance(cause, KafkaException):
                raise
            why: KafkaError = cause.args[0]
            # The library may name only the records that it gave up because of another one.
            if why.code() in _OF_A_RECORD or (why.code() in _GIVEN_UP and len(parcels) > 1):
                raise _RecordRefused(why.str()) from None
            raise self._converted(why) from None
        self._lanes, self._ids = lanes, ids

    def _produce(self, producer: Producer, parcel: Parcel, errors: list[KafkaError]) -> None:
        def answered(error: KafkaError | None, message: Message) -> None:
            if error is not None:
                errors.append(error)

        parcel = with_key(parcel)
        headers = headers_with_origin(parcel)
        null = headers.pop("kafka-null", "") == "true" and not parcel.body
        while True:
            try:
                producer.produce(
                    self.topic,
                    None if null else parcel.body,
                    key=parcel.key or None,
                    headers={name: value.encode() for name, value in headers.items()},
                    timestamp=parcel.ts or 0,
                    on_delivery=answered,
                )
                return
            except BufferError:
                producer.poll(0.1)

    async def close(self) -> None:
        """Disconnect, when what is being written is."""
        async with self._writing:
            self._producer = self._beginning = None
            consumer, self._consumer = self._consumer, None
            if consumer is not None:
                await asyncio.to_thread(consumer.close)


class _RecordRefused(Exception):
    """Kafka refuses a record of the transaction."""


def _short(message_id: str) -> str:
    return base64.b64encode(blake2b(message_id.encode(), digest_size=_ID_BYTES).digest()).decode()


def _packed(lanes: dict[str, int], ids: frozenset[str]) -> tuple[str, dict[str, int]]:
    """What a transaction commits about itself, and the lanes in it: those used last, as many as fit."""
    names = list(lanes)
    while True:
        kept = {name: lanes[name] for name in names}
        text = json.dumps({"lanes": kept, "ids": "".join(sorted(ids))}, separators=(",", ":"))
        if len(text) <= METADATA_BYTES or not names:
            return text, kept
        del names[: max(1, len(names) // 8)]


def _unpacked(text: str) -> tuple[dict[str, int], frozenset[str]]:
    try:
        found = json.loads(text or "{}")
    except ValueError:
        return {}, frozenset()
    ids, size = found.get("ids", ""), len(_short(""))
    return dict(found.get("lanes", {})), frozenset(ids[at : at + size] for at in range(0, len(ids), size))
