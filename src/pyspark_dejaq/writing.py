"""Write: rows of any DataFrame become scheduled messages, or move or cancel messages by id.

A task names each batch by its content and by the job (or the query and micro-batch) to which it belongs. The broker
remembers the names. So a retried task and a replayed micro-batch add nothing, even when the messages of the first try
were delivered and deleted meanwhile; and a repeated cancel does not report the ids that the first try cancelled as
unknown.
"""

from __future__ import annotations

import hashlib
import secrets
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from dejaq.domain.bodies.packing import Compression
from dejaq.domain.ids import ProducerSession
from dejaq.errors import MEANINGS, Code
from dejaq.protocol.v1 import carrier_pb2 as carrier
from pyspark_dejaq.asking import topic_of
from pyspark_dejaq.options import Options
from pyspark_dejaq.outcomes import OutcomeFiles
from pyspark_dejaq.rows import BadRow, Rows, pieces, rows_of
from pyspark_dejaq.sending import TaskSender
from pyspark_dejaq.worker import settle_in


class WriteError(RuntimeError):
    """Rows were refused; all other rows were written."""


@dataclass
class Written(WriterCommitMessage):
    """The result of one task."""

    rows: int
    refused: int


class RowWriter(TaskSender[Rows]):
    """Sends the rows of one task, several batches at a time, and sends them again after a broken session."""

    def __init__(self, options: Options, scope: str, *, outcomes: OutcomeFiles | None = None) -> None:
        super().__init__(options)
        self._scope = scope
        self._outcomes = outcomes
        # The compression of the topic; None until the broker was asked.
        self._compression: Compression | None = None
        self.written = 0
        self.bad: list[BadRow] = []

    def send(self, rows: Rows) -> None:
        """Send a batch; waits for the oldest batch when enough are in progress."""
        self._refuse(rows.bad, "INVALID")
        if not len(rows):
            return
        if self._compression is None:
            self._compression = self._ask_compression()
        self._send(rows.frame(self._options.operation, _name(self._scope, rows), self._compression), rows)

    def _ask_compression(self) -> Compression:
        settings = topic_of(self._options, self._options.topic).settings
        return Compression(settings.compression or Compression.NONE)

    def _handshake(self) -> Sequence[carrier.ClientFrame]:
        producer = carrier.ProducerHandshake(topic=self._options.topic, group=self._options.group)
        return [carrier.ClientFrame(producer=producer)]

    def _take(self, rows: Rows, answer: carrier.BrokerFrame) -> None:
        codes = dict(zip(answer.outcomes.rows, map(Code, answer.outcomes.codes), strict=True))
        refused = {row: code for row, code in codes.items() if not code.succeeded}
        self.written += len(rows) - len(refused)
        self.bad += [BadRow(rows.ids[row], f"{code.name}: {MEANINGS[code]}") for row, code in refused.items()]
        if self._outcomes is not None:
            named = ((rows.ids[row], codes.get(row, Code.OK)) for row in range(len(rows)))
            self._outcomes.add(
                (message_id, code.name, "" if code.succeeded else MEANINGS[code]) for message_id, code in named
            )

    def _refuse(self, bad: list[BadRow], outcome: str) -> None:
        self.bad += bad
        if self._outcomes is not None:
            self._outcomes.add((row.id, outcome, row.reason) for row in bad)


def check_topic(options: Options) -> None:
    """Raise, on the driver, an error that would stop every task: no broker, an unknown topic, a group without the
    right.
    """
    RowWriter(options, "").check()


def _name(scope: str, rows: Rows) -> ProducerSession:
    """A name for the batch, from its job and its content: a batch with other bodies, headers or priorities has another
    name.
    """
    digest = hashlib.sha256(scope.encode())
    for numbers in (rows.ts, rows.priorities):
        digest.update(array("q", [len(numbers), *numbers]).tobytes())
    for texts in ([one.encode() for one in rows.ids], rows.headers, rows.bodies):
        # The lengths show where one column ends and the next begins.
        digest.update(array("q", [len(texts), *map(len, texts)]).tobytes())
        digest.update(b"".join(texts))
    return ProducerSession.unpack(digest.digest()[:10])


def write_rows(options: Options, scope: str, batches: Iterator[pa.RecordBatch]) -> Written:
    """Send every row of a task; refused rows are an error or are written to a file, and are never ignored."""
    settle_in()
    context = TaskContext.get()
    place, attempt = (context.partitionId(), context.taskAttemptId()) if context is not None else (0, 0)
    task = f"{hashlib.sha256(scope.encode()).hexdigest()[:12]}-{place:05d}"
    with OutcomeFiles(options, task, attempt=attempt) as outcomes:
        writer = RowWriter(options, scope, outcomes=outcomes if options.outcomes_path else None)
        try:
            for piece in chain.from_iterable(pieces(batch, options.operation) for batch in batches):
                writer.send(rows_of(piece, options.operation))
                if writer.bad and options.mode == "failfast":
                    break
            writer.finish()
        finally:
            writer.close()
        outcomes.refused(writer.bad)
    if writer.bad and options.mode == "failfast":
        first = writer.bad[0]
        named = "one without an id" if first.id is None else repr(first.id)
        raise WriteError(f"{len(writer.bad)} rows were refused; the first is {named}: {first.reason}")
    return Written(writer.written, len(writer.bad))


class BatchWriter(DataSourceArrowWriter):
    """Batch write. The driver chooses the job's name, so that a retried task has the same name."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._scope = f"job-{secrets.token_hex(8)}"

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Send the rows of one task."""
        return write_rows(self._options, self._scope, iterator)


class StreamWriter(DataSourceStreamArrowWriter):
    """Streaming write. The query and its number name a micro-batch; a replay repeats both."""

    def __init__(self, options: Options) -> None:
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Send the rows of one task of a micro-batch."""
        return write_rows(self._options, streaming_scope(), iterator)


def streaming_scope() -> str:
    """The name of the micro-batch in which this task runs."""
    context = TaskContext.get()
    query = context.getLocalProperty("sql.streaming.queryId") if context is not None else ""
    number = context.getLocalProperty("streaming.sql.batchId") if context is not None else ""
    return f"query-{query}-{number}"
