"""Write: rows of any DataFrame become scheduled messages, or move or cancel messages by id.

A task names each batch it sends by what is in it and by the job (or the query and micro-batch) it belongs to. The
broker remembers the names, so a retried task and a replayed micro-batch add nothing, even when the messages of the
first try were delivered and deleted meanwhile.
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

from dejaq.domain.bodies import Compression
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
from pyspark_dejaq.worker import settle_in

# Batches under way at once: the broker writes one while the next are on their way.
_WINDOW = 4
_RETRY_S = 0.2


class WriteError(RuntimeError):
    """Rows were refused; nothing else was lost."""


@dataclass
class Written(WriterCommitMessage):
    """What one task did."""

    rows: int
    refused: int


@dataclass
class _Sent:
    """A batch that waits for its answer; `again` when an earlier session, or task, may have had it done."""

    request: int
    frame: carrier.ClientFrame
    rows: Rows
    again: bool
    on_the_way: bool = False


class RowWriter:
    """Sends the rows of one task, several batches at a time, again after a broken session."""

    def __init__(
        self, options: Options, scope: str, *, again: bool = False, outcomes: OutcomeFiles | None = None
    ) -> None:
        self._options = options
        self._scope = scope
        self._again = again
        self._outcomes = outcomes
        self._transport: BlockingTransport | None = None
        self._session: BlockingSession | None = None
        self._request = 0
        self._under_way: deque[_Sent] = deque()
        self._turn = 0
        # What the topic wants done to bodies; None until it was asked.
        self._compression: Compression | None = None
        self.written = 0
        self.bad: list[BadRow] = []

    def send(self, rows: Rows) -> None:
        """Send a batch; waits for the oldest when enough are under way."""
        self._refuse(rows.bad, "INVALID")
        if not len(rows):
            return
        self._request += 1
        if self._compression is None:
            self._compression = self._ask_compression()
        frame = rows.frame(self._request, self._options.operation, _name(self._scope, rows), self._compression)
        sent = _Sent(self._request, frame, rows, again=self._again)
        self._under_way.append(sent)
        # Without a session the frame waits among those under way, which the next one begins with.
        if self._session is not None:
            self._put(sent)
        while len(self._under_way) >= _WINDOW:
            self._settle_one()

    def finish(self) -> None:
        """Wait for every batch."""
        while self._under_way:
            self._settle_one()
        self.close()

    def check(self) -> None:
        """Raise what stands in the way of writing at all, such as an unknown topic; waits for a broker that is away."""
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
            address = self._options.addresses[self._turn % len(self._options.addresses)]
            transport = BlockingTransport(address)
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
        """Let go of the connection."""
        if self._session is not None:
            self._session.close()
        if self._transport is not None:
            self._transport.close()
        self._session = self._transport = None

    def _put(self, sent: _Sent) -> None:
        assert self._session is not None
        sent.again = sent.again or sent.on_the_way
        sent.on_the_way = True
        self._session.send(sent.frame)

    def _settle_one(self) -> None:
        deadline = time.monotonic() + self._options.timeout
        while True:
            try:
                if self._session is None:
                    self._connect()
                assert self._session is not None
                answer = self._session.receive()
                mine = answer.request in (0, self._under_way[0].request)
                if mine and answer.WhichOneof("event") == "error":
                    raise error_from_proto(answer.error)
            except DejaqError as error:
                self._wait_after(error, deadline)
                continue
            if answer.request == self._under_way[0].request:
                self._take(self._under_way.popleft(), answer)
                return

    def _wait_after(self, error: DejaqError, deadline: float) -> None:
        """Let go of what broke and wait before the next try; raises when there is none."""
        self.close()
        if not error.retryable:
            raise error
        if time.monotonic() > deadline:
            where = ", ".join(self._options.addresses)
            raise NoBroker(
                f"no broker at {where} answered within {self._options.timeout:g} s; check dejaq.url and that it runs",
                details=str(error),
            ) from error
        time.sleep(_RETRY_S)

    def _take(self, sent: _Sent, answer: carrier.BrokerFrame) -> None:
        rows, codes = sent.rows, dict(zip(answer.outcomes.rows, map(Code, answer.outcomes.codes), strict=True))
        if sent.again and self._options.operation == "cancel":
            # What an earlier try has cancelled is not there any more.
            codes = {row: Code.OK if code is Code.NOT_FOUND else code for row, code in codes.items()}
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
        """Open a session with the next broker and send again what has no answer."""
        address = self._options.addresses[self._turn % len(self._options.addresses)]
        self._turn += 1
        self._transport = BlockingTransport(address)
        self._session = session = self._transport.session()
        hello = carrier.Hello(protocol=PROTOCOL, sdk=f"spark/{package_version()}", client="spark")
        handshake = carrier.ProducerHandshake(topic=self._options.topic, group=self._options.group)
        for number, frame in enumerate(
            (carrier.ClientFrame(request=1, hello=hello), carrier.ClientFrame(request=2, producer=handshake)), 1
        ):
            session.send(frame)
            answer = session.receive()
            if answer.WhichOneof("event") == "error":
                raise error_from_proto(answer.error)
            if answer.request != number:
                raise Unavailable(f"the broker at {address} answers out of turn")
        # Requests of the handshake and of the batches must not meet.
        self._request = max(self._request, 2)
        for sent in self._under_way:
            self._put(sent)


def check_topic(options: Options) -> None:
    """Raise on the driver what would stop every task: no broker, an unknown topic, a group that may not."""
    RowWriter(options, "").check()


def _name(scope: str, rows: Rows) -> ProducerSession:
    digest = hashlib.sha256(scope.encode())
    digest.update("\n".join(rows.ids).encode())
    digest.update(array("q", rows.ts).tobytes())
    return ProducerSession.unpack(digest.digest()[:10])


def write_rows(options: Options, scope: str, batches: Iterator[pa.RecordBatch], *, replayed: bool = False) -> Written:
    """Send every row of a task; refused rows are an error, or a file, never silence."""
    settle_in()
    context = TaskContext.get()
    place, attempt = (context.partitionId(), context.attemptNumber()) if context is not None else (0, 0)
    with OutcomeFiles(options, f"{hashlib.sha256(scope.encode()).hexdigest()[:12]}-{place:05d}") as outcomes:
        writer = RowWriter(
            options, scope, again=replayed or attempt > 0, outcomes=outcomes if options.outcomes_path else None
        )
        try:
            for piece in chain.from_iterable(map(pieces, batches)):
                writer.send(rows_of(piece, options.operation))
                if writer.bad and options.mode == "failfast":
                    break
            writer.finish()
        finally:
            writer.close()
        outcomes.refused(writer.bad)
    if writer.bad and options.mode == "failfast":
        first = writer.bad[0]
        raise WriteError(f"{len(writer.bad)} rows were refused; the first is {first.id!r}: {first.reason}")
    return Written(writer.written, len(writer.bad))


class BatchWriter(DataSourceArrowWriter):
    """Batch write. The job's name is made on the driver, so that a retried task has the same."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._scope = f"job-{secrets.token_hex(8)}"

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Send the rows of one task."""
        return write_rows(self._options, self._scope, iterator)


class StreamWriter(DataSourceStreamArrowWriter):
    """Streaming write. A micro-batch is named by the query and its number, which a replay repeats."""

    def __init__(self, options: Options) -> None:
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Send the rows of one task of a micro-batch."""
        context = TaskContext.get()
        query = context.getLocalProperty("sql.streaming.queryId") if context is not None else ""
        number = context.getLocalProperty("streaming.sql.batchId") if context is not None else ""
        # Whether this is a replay cannot be known, so every micro-batch is taken for one.
        return write_rows(self._options, f"query-{query}-{number}", iterator, replayed=True)
