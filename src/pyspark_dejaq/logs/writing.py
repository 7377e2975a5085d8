"""Appends: rows of any DataFrame become messages of a log.

A task names each batch by the job (or the query and micro-batch), the number of the partition, and its content. The
broker remembers the names for a day. So a retried task and a replayed micro-batch append nothing a second time.
"""

from __future__ import annotations

import hashlib
import secrets
from collections import Counter
from collections.abc import Iterator

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from dejaq.errors import MEANINGS, Code
from dejaq.protocol.v1 import carrier_pb2 as carrier
from dejaq.protocol.v1 import log_pb2
from pyspark_dejaq.asking import topic_of
from pyspark_dejaq.logs.columns import appends_of
from pyspark_dejaq.options import Options
from pyspark_dejaq.sending import TaskSender
from pyspark_dejaq.worker import settle_in
from pyspark_dejaq.writing import WriteError, Written, streaming_scope

_SESSION_BYTES = 10


class LogWriter(TaskSender[tuple[int, int]]):
    """Appends the rows of one task."""

    def __init__(self, options: Options, scope: str) -> None:
        super().__init__(options)
        self._scope = scope
        self._buckets = topic_of(options, options.topic).settings.buckets
        # How often the task has appended the same content: equal batches are different batches.
        self._seen: Counter[bytes] = Counter()
        self._turn_of_bucket = int.from_bytes(hashlib.sha256(scope.encode()).digest()[:4], "big")
        self.written = 0

    def send(self, batch: pa.RecordBatch) -> None:
        """Append the rows of an Arrow batch."""
        if not batch.num_rows:
            return
        self._turn_of_bucket += 1
        for bucket, records, count in appends_of(batch, self._buckets, self._turn_of_bucket):
            digest = hashlib.sha256(f"{self._scope}/{bucket}/".encode() + records).digest()[:_SESSION_BYTES]
            append = log_pb2.LogAppend(topic=self._options.topic, session=digest, sequence=self._seen[digest])
            append.batches.add(bucket=bucket, records=records)
            self._seen[digest] += 1
            # One batch of a bucket is in transit at a time, so that its rows stay in their order.
            while any(sent.content[0] == bucket for sent in self._in_progress):
                self._settle_one()
            self._send(carrier.ClientFrame(log=log_pb2.LogCommand(append=append)), (bucket, count))

    def _take(self, content: tuple[int, int], answer: carrier.BrokerFrame) -> None:
        count = content[1]
        code = Code(answer.log.appended.codes[0])
        if code is not Code.OK:
            raise WriteError(f"a batch of {count} rows was refused by {self._options.topic!r}: {MEANINGS[code]}")
        self.written += count


def append_rows(options: Options, scope: str, batches: Iterator[pa.RecordBatch]) -> Written:
    """Append every row of a task. The first refused batch is an error; what was appended before it stays."""
    settle_in()
    context = TaskContext.get()
    place = context.partitionId() if context is not None else 0
    writer = LogWriter(options, f"{scope}/{place}")
    try:
        for batch in batches:
            writer.send(batch)
        writer.finish()
    finally:
        writer.close()
    return Written(writer.written, 0)


class LogBatchWriter(DataSourceArrowWriter):
    """Batch append. The driver chooses the job's name, so that a retried task has the same name."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._scope = f"job-{secrets.token_hex(8)}"

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Append the rows of one task."""
        return append_rows(self._options, self._scope, iterator)


class LogStreamWriter(DataSourceStreamArrowWriter):
    """Streaming append. The query and its number name a micro-batch; a replay repeats both."""

    def __init__(self, options: Options) -> None:
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Append the rows of one task of a micro-batch."""
        return append_rows(self._options, streaming_scope(), iterator)
