"""Write: rows of any DataFrame become scheduled messages, or move or cancel messages by id.

A task names each batch by its content and by the job (or the query and micro-batch) to which it belongs. The broker
remembers the names. So a retried task and a replayed micro-batch add nothing, even when the messages of the first try
were delivered and deleted meanwhile; and a repeated cancel does not report the ids that the first try cancelled as
unknown.
"""

from __future__ import annotations

import hashlib
import secrets
import time
from array import array
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from dejaq.domain.bodies.packing import Compression
from dejaq.domain.ids import ProducerSession
from dejaq.errors import MEANINGS, Code, DejaqError, NoBroker, Unavailable
from dejaq.protocol.blocking import BlockingSession, BlockingTransport
from dejaq.protocol.status import error_from_proto
from dejaq.protocol.v1 import carrier_pb2 as carrier
from dejaq.protocol.v1 import overseer_pb2 as overseer
from dejaq.protocol.version import PROTOCOL, package_version
from pyspark_dejaq.options import Options
from pyspark_dejaq.outcomes import OutcomeFiles
from pyspark_dejaq.rows import BadRow, Rows, pieces, rows_of
from pyspark_dejaq.worker import connect, settle_in

# The number of batches in progress: the broker writes one batch while the next ones are in transit.
_WINDOW = 4
_RETRY_S = 0.2


class WriteError(RuntimeError):
    """Rows were refused; all other rows were written."""


@dataclass
class Written(WriterCommitMessage):
    """The result of one task."""

    rows: int
    refused: int


@dataclass
class _Sent:
    """A batch that waits for its answer."""

    request: int
    frame: carrier.ClientFrame
    rows: Rows


class RowWriter:
    """Sends the rows of one task, several batches at a time, and sends them again after a broken session."""

    def __init__(self, options: Options, scope: str, *, outcomes: OutcomeFiles | None = None) -> None:
        self._options = options
        self._scope = scope
        self._outcomes = outcomes
        self._transport: BlockingTransport | None = None
        self._session: BlockingSession | None = None
        self._request = 0
        self._in_progress: deque[_Sent] = deque()
        self._turn = 0
        # The compression of the topic; None until the broker was asked.
        self._compression: Compression | None = None
        self.written = 0
        self.bad: list[BadRow] = []

    def send(self, rows: Rows) -> None:
        """Send a batch; waits for the oldest batch when enough are in progress."""
        self._refuse(rows.bad, "INVALID")
        if not len(rows):
            return
        self._request += 1
        if self._compression is None:
            self._compression = self._ask_compression()
        frame = rows.frame(self._request, self._options.operation, _name(self._scope, rows), self._compression)
        sent = _Sent(self._request, frame, rows)
        self._in_progress.append(sent)
        # Without a session the frame waits with the other batches in progress; the next session begins with them.
        if self._session is not None:
            self._session.send(frame)
        while len(self._in_progress) >= _WINDOW:
            self._settle_one()

    def finish(self) -> None:
        """Wait for every batch."""
        while self._in_progress:
            self._settle_one()
        self.close()

    def check(self) -> None:
        """Raise an error that prevents all writing, such as an unknown topic; waits for a broker that cannot be
        reached.
        """
        deadline = time.monotonic() + self._options.timeout
        while self._session is None:
            try:
                self._connect()
            except DejaqError as error:
                self._wait_after(error, deadline)
        self.close()

    def _ask_compression(self) -> Compression:
        deadline = time.monotonic() + self._options.timeout
        while True:
            transport = connect(self._options.urls[self._turn % len(self._options.urls)])
            try:
                request = overseer.TopicRequest(name=self._options.topic)
                told = transport.call("Overseer.DescribeTopic", request, overseer.TopicResponse, self._options.timeout)
                return Compression(told.topic.settings.compression or Compression.NONE)
            except DejaqError as error:
                self._turn += 1
                self._wait_after(error, deadline)
            finally:
                transport.close()

    def close(self) -> None:
        """Close the connection."""
        if self._session is not None:
            self._session.close()
        if self._transport is not None:
            self._transport.close()
        self._session = self._transport = None

    def _settle_one(self) -> None:
        deadline = time.monotonic() + self._options.timeout
        while True:
            try:
                if self._session is None:
                    self._connect()
                assert self._session is not None
                answer = self._session.receive(self._options.timeout)
                mine = answer.request in (0, self._in_progress[0].request)
                if mine and answer.WhichOneof("event") == "error":
                    raise error_from_proto(answer.error)
            except DejaqError as error:
                self._wait_after(error, deadline)
                continue
            if answer.request == self._in_progress[0].request:
                self._take(self._in_progress.popleft(), answer)
                return

    def _wait_after(self, error: DejaqError, deadline: float) -> None:
        """Close the broken connection and wait before the next try; raises when the deadline has passed."""
        self.close()
        if not error.retryable:
            raise error
        if time.monotonic() > deadline:
            where = ", ".join(self._options.urls)
            raise NoBroker(
                f"no broker at {where} answered within {self._options.timeout:g} s; check dejaq.url and that it runs",
                details=str(error),
            ) from error
        time.sleep(_RETRY_S)

    def _take(self, sent: _Sent, answer: carrier.BrokerFrame) -> None:
        rows, codes = sent.rows, dict(zip(answer.outcomes.rows, map(Code, answer.outcomes.codes), strict=True))
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

    def _connect(self) -> None:
        """Open a session with the next broker and send again every batch without an answer."""
        url = self._options.urls[self._turn % len(self._options.urls)]
        self._turn += 1
        self._transport = connect(url)
        self._session = session = self._transport.session()
        hello = carrier.Hello(protocol=PROTOCOL, sdk=f"spark/{package_version()}", client="spark")
        handshake = carrier.ProducerHandshake(topic=self._options.topic, group=self._options.group)
        for number, frame in enumerate(
            (carrier.ClientFrame(request=1, hello=hello), carrier.ClientFrame(request=2, producer=handshake)), 1
        ):
            session.send(frame)
            answer = session.receive(self._options.timeout)
            if answer.WhichOneof("event") == "error":
                raise error_from_proto(answer.error)
            if answer.request != number:
                raise Unavailable(f"the broker at {url} answers out of turn")
        # The request numbers of the handshake and of the batches must differ.
        self._request = max(self._request, 2)
        for sent in self._in_progress:
            session.send(sent.frame)


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
        context = TaskContext.get()
        query = context.getLocalProperty("sql.streaming.queryId") if context is not None else ""
        number = context.getLocalProperty("streaming.sql.batchId") if context is not None else ""
        return write_rows(self._options, f"query-{query}-{number}", iterator)
