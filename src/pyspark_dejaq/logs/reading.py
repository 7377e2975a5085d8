"""Reads of a log by offsets: a batch between two places, or a stream. One partition per bucket, or part of one.

An offset of a stream is, for each bucket, the offset of the next message. Offsets are assigned once and batches never
change, so a range of offsets always names the same messages, and a replayed micro-batch has the same rows.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from dejaq.errors import DejaqError
from dejaq.protocol.v1 import log_pb2
from dejaq.sdk.log.messages import LogBatch
from pyspark_dejaq.asking import ask
from pyspark_dejaq.logs.columns import log_record_batch
from pyspark_dejaq.options import TS_END, OptionError, Options
from pyspark_dejaq.worker import forget_transport, settle_in, transport_to

_FETCH_BYTES = 1024 * 1024
# Spark asks for the latest offset every few milliseconds; the broker is asked at most this often.
_ASK_EVERY_S = 0.2
_RETRY_S = 0.2

Offsets = dict[str, int]


@dataclass
class OffsetRange(InputPartition):
    """The messages of a bucket from `start` to before `end`."""

    urls: tuple[str, ...]
    topic: str
    bucket: int
    start: int
    end: int
    include_body: bool
    fail_on_data_loss: bool
    timeout: float


@dataclass(frozen=True, slots=True)
class BucketBounds:
    """What a bucket has: messages from `start` to before `stable`, where committed readers stop."""

    start: int
    stable: int


class LogPlaces:
    """What the brokers say of the offsets of a log."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.topic = options.need("subscribe")

    def now(self) -> list[BucketBounds]:
        """The offsets of every bucket."""
        request = log_pb2.LogOffsetsRequest(topic=self.topic)
        answer = ask(self.options, "Log.Offsets", request, log_pb2.LogOffsetsResponse)
        return [BucketBounds(one.start, one.stable) for one in answer.buckets]

    def at(self, ms: int) -> list[int]:
        """The first offset of a time in every bucket."""
        request = log_pb2.LogTimeRequest(topic=self.topic, ts=ms)
        return list(ask(self.options, "Log.OffsetsForTime", request, log_pb2.LogTimeResponse).offsets)

    def begin(self, held: Sequence[BucketBounds]) -> dict[int, int]:
        """Where the options say that reading begins."""
        options = self.options
        if options.start:
            at = self.at(options.start)
            return {bucket: min(max(at[bucket], one.start), one.stable) for bucket, one in enumerate(held)}
        start = options.starting_offsets
        if isinstance(start, dict):
            return _named(start, held, "startingOffsets", "start")
        return {bucket: one.stable if start == "latest" else one.start for bucket, one in enumerate(held)}

    def end(self, held: Sequence[BucketBounds]) -> dict[int, int]:
        """Where the options say that a batch ends."""
        options = self.options
        if options.end < TS_END:
            at = self.at(options.end)
            return {bucket: min(at[bucket], one.stable) for bucket, one in enumerate(held)}
        if isinstance(options.ending_offsets, dict):
            return _named(options.ending_offsets, held, "endingOffsets", "stable")
        return {bucket: one.stable for bucket, one in enumerate(held)}


def _named(given: Mapping[str, int], held: Sequence[BucketBounds], option: str, default: str) -> dict[int, int]:
    """The offsets that an option names; -1 is the end and -2 the beginning, as in Spark's Kafka source."""
    found: dict[int, int] = {bucket: getattr(one, default) for bucket, one in enumerate(held)}
    for name, offset in given.items():
        if not name.isdigit() or int(name) >= len(held):
            raise OptionError(f"{option} names bucket {name!r}; the log has the buckets 0 to {len(held) - 1}")
        one = held[int(name)]
        found[int(name)] = one.stable if offset == -1 else one.start if offset == -2 else offset
    return found


class LogBatchReader(DataSourceReader):
    """Reads a log between two places, once."""

    def __init__(self, options: Options) -> None:
        self._log = LogPlaces(options)

    def partitions(self) -> Sequence[InputPartition]:
        """The buckets, large ones in several parts."""
        held = self._log.now()
        begin, end = self._log.begin(held), self._log.end(held)
        return _ranges(self._log, begin, end, held)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The messages of one part."""
        assert isinstance(partition, OffsetRange)
        return read_offsets(partition)


class LogStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Streams a log. Only messages that can no longer be rolled back are read."""

    def __init__(self, options: Options) -> None:
        self._log = LogPlaces(options)
        self._held: list[BucketBounds] = []
        self._asked_at: float | None = None
        self._available: Offsets | None = None

    def initialOffset(self) -> Offsets:  # noqa: N802  Spark's name
        """Where the options say."""
        return _text(self._log.begin(self._log.now()))

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802  Spark's name
        """About as many messages as the option allows in one micro-batch."""
        limit = self._log.options.max_per_trigger
        return ReadMaxRows(limit) if limit else ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802  Spark's name
        """Read only the messages that exist now."""
        self._asked_at = None
        self._available = self._last()

    def reportLatestOffset(self) -> Offsets | None:  # noqa: N802  Spark's name
        """The latest offset that a query could read."""
        return self._last() or None

    def latestOffset(self, start: Offsets, limit: ReadLimit) -> Offsets:  # noqa: N802  Spark's name
        """The end of the next micro-batch: from each bucket the share of the limit that its waiting messages have."""
        end = self._available if self._available is not None else self._last()
        waiting = {bucket: max(0, last - start.get(bucket, 0)) for bucket, last in end.items()}
        total = sum(waiting.values())
        if not isinstance(limit, ReadMaxRows) or total <= limit.max_rows:
            return _sorted({bucket: max(last, start.get(bucket, 0)) for bucket, last in end.items()})
        left, reached = limit.max_rows, dict(start)
        for bucket, count in waiting.items():
            # At least one message of a bucket that has some, so that none of them is never read.
            some = min(count, left, -(-count * limit.max_rows // total))
            reached[bucket] = start.get(bucket, 0) + some
            left -= some
        return _sorted(reached)

    def partitions(self, start: Offsets, end: Offsets) -> Sequence[InputPartition]:
        """One partition per bucket with new messages, or several."""
        held = self._log.now()
        first = {bucket: start.get(str(bucket), 0) for bucket in range(len(held))}
        last = {bucket: end.get(str(bucket), first[bucket]) for bucket in first}
        return _ranges(self._log, first, last, held)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The messages of one part."""
        assert isinstance(partition, OffsetRange)
        return read_offsets(partition)

    def _last(self) -> Offsets:
        now = time.monotonic()
        if self._asked_at is None or now - self._asked_at >= _ASK_EVERY_S:
            self._held = self._log.now()
            self._asked_at = time.monotonic()
        return _text({bucket: one.stable for bucket, one in enumerate(self._held)})


def _ranges(
    log: LogPlaces, begin: Mapping[int, int], end: Mapping[int, int], held: Sequence[BucketBounds]
) -> list[InputPartition]:
    """Partitions for the messages between two places; raises an error where some of them are gone or do not exist."""
    options = log.options
    total = sum(max(0, end[bucket] - begin[bucket]) for bucket in begin)
    most = max(1, -(-total // options.min_partitions))
    parts: list[InputPartition] = []
    for bucket, one in enumerate(held):
        first, last = begin[bucket], end[bucket]
        if first < one.start and first < last and options.fail_on_data_loss:
            raise OptionError(_lost(log.topic, bucket, first, min(one.start, last)))
        if last > one.stable:
            raise OptionError(
                f"bucket {bucket} of log {log.topic!r} ends at offset {one.stable}, before {last}: the topic was made "
                "again, or the offset does not exist yet"
            )
        first = max(first, one.start)
        while first < last:
            stop = min(last, first + most)
            parts.append(
                OffsetRange(
                    options.urls,
                    log.topic,
                    bucket,
                    first,
                    stop,
                    options.include_body,
                    options.fail_on_data_loss,
                    options.timeout,
                )
            )
            first = stop
    return parts


def read_offsets(part: OffsetRange) -> Iterator[pa.RecordBatch]:
    """The messages of a range of offsets. A batch that was rolled back is left out; its offsets stay used."""
    settle_in()
    at = part.start
    while at < part.end:
        request = log_pb2.LogFetchRequest(
            topic=part.topic, bucket=part.bucket, start=at, end=part.end, bytes_max=_FETCH_BYTES
        )
        answer = _patiently(part, request)
        batches = [LogBatch.of(one).part(at, part.end) for one in answer.slices]
        batches = [batch for batch in batches if len(batch)]
        if part.fail_on_data_loss and (not batches or batches[0].base > at):
            _check_not_lost(part, at)
        if batches:
            yield log_record_batch(batches, part.topic, bodies=part.include_body)
        if answer.next <= at:
            return
        at = answer.next


def _check_not_lost(part: OffsetRange, at: int) -> None:
    """Raise an error when retention has removed the messages at an offset, which are then not those of a rollback."""
    request = log_pb2.LogOffsetsRequest(topic=part.topic)
    options = Options(urls=part.urls, timeout=part.timeout)
    held = ask(options, "Log.Offsets", request, log_pb2.LogOffsetsResponse).buckets[part.bucket]
    if held.start > at:
        raise OptionError(_lost(part.topic, part.bucket, at, held.start))


def _lost(topic: str, bucket: int, first: int, end: int) -> str:
    return (
        f"the log {topic!r} does not have the offsets {first} to {end - 1} of bucket {bucket} any more: retention has "
        "removed them. Keep the log longer, or set failOnDataLoss to false to continue without them"
    )


def _patiently(part: OffsetRange, request: log_pb2.LogFetchRequest) -> log_pb2.LogFetchResponse:
    """The answer of a broker, over the connection that the tasks of this process share."""
    deadline = time.monotonic() + part.timeout
    turn = 0
    while True:
        url = part.urls[turn % len(part.urls)]
        try:
            return transport_to(url).call("Log.Fetch", request, log_pb2.LogFetchResponse, part.timeout)
        except DejaqError as error:
            forget_transport(url)
            if not error.retryable or time.monotonic() > deadline:
                raise
            turn += 1
            time.sleep(_RETRY_S)


def _text(offsets: Mapping[int, int]) -> Offsets:
    return _sorted({str(bucket): offset for bucket, offset in offsets.items()})


def _sorted(offsets: Offsets) -> Offsets:
    """Spark compares offsets as JSON text, so the order of the keys matters."""
    return dict(sorted(offsets.items(), key=lambda item: int(item[0])))
