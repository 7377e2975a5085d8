"""Write: rows of any DataFrame become scheduled messages, or move or cancel messages by id.

A task names each batch it sends by what is in it and by the job (or the query and micro-batch) it belongs to. The
broker remembers the names, so a retried task and a replayed micro-batch add nothing, even when the messages of the
first try were delivered and deleted meanwhile.
"""

from __future__ import annotations

import hashlib
import json
import secrets
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from dejaq.domain.ids import ProducerSession
from dejaq.errors import MEANINGS, Code, DejaqError, Unavailable
from dejaq.protocol.blocking import BlockingSession, BlockingTransport
from dejaq.protocol.status import error_from_proto
from dejaq.protocol.v1 import carrier_pb2 as carrier
from dejaq.protocol.version import PROTOCOL, package_version
from pyspark_dejaq.options import Options
from pyspark_dejaq.rows import BadRow, Rows, rows_of

_WINDOW = 4
_BATCH_ROWS = 2_000
_RETRY_S = 0.2


class WriteError(RuntimeError):
    """Rows were refused; nothing else was lost."""


@dataclass
class Written(WriterCommitMessage):
    """What one task did."""

    rows: int
    refused: int


class RowWriter:
    """Sends the rows of one task, several batches at a time, again after a broken session."""

    def __init__(self, options: Options, scope: str) -> None:
        self._options = options
        self._scope = scope
        self._transport: BlockingTransport | None = None
        self._session: BlockingSession | None = None
        self._request = 0
        self._under_way: deque[tuple[int, carrier.ClientFrame, Rows]] = deque()
        self._turn = 0
        self.written = 0
        self.bad: list[BadRow] = []

    def send(self, rows: Rows) -> None:
        """Send a batch; waits for the oldest when enough are under way."""
        self.bad += rows.bad
        if not len(rows):
            return
        self._request += 1
        frame = rows.frame(self._request, self._options.operation, _name(self._scope, rows))
        self._under_way.append((self._request, frame, rows))
        self._put(frame)
        while len(self._under_way) >= _WINDOW:
            self._settle_one()

    def finish(self) -> None:
        """Wait for every batch."""
        while self._under_way:
            self._settle_one()
        self.close()

    def close(self) -> None:
        """Let go of the connection."""
        if self._session is not None:
            self._session.close()
        if self._transport is not None:
            self._transport.close()
        self._session = self._transport = None

    def _put(self, frame: carrier.ClientFrame) -> None:
        # Without a session the frame waits among those under way, which the next one begins with.
        if self._session is not None:
            self._session.send(frame)

    def _settle_one(self) -> None:
        deadline = time.monotonic() + self._options.timeout
        while True:
            try:
                if self._session is None:
                    self._connect()
                assert self._session is not None
                answer = self._session.receive()
                if answer.request == 0 and answer.WhichOneof("event") == "error":
                    raise error_from_proto(answer.error)
            except DejaqError as error:
                if not error.retryable or time.monotonic() > deadline:
                    raise
                self.close()
                time.sleep(_RETRY_S)
                continue
            if answer.request == self._under_way[0][0]:
                if answer.WhichOneof("event") == "error":
                    error = error_from_proto(answer.error)
                    if not error.retryable or time.monotonic() > deadline:
                        raise error
                    self.close()
                    time.sleep(_RETRY_S)
                    continue
                _, _, rows = self._under_way.popleft()
                self._take(rows, answer)
                return

    def _take(self, rows: Rows, answer: carrier.BrokerFrame) -> None:
        outcomes = answer.outcomes
        refused = {
            row: Code(code) for row, code in zip(outcomes.rows, outcomes.codes, strict=True) if not Code(code).succeeded
        }
        self.written += len(rows) - len(refused)
        self.bad += [BadRow(rows.ids[row], f"{code.name}: {MEANINGS[code]}") for row, code in refused.items()]

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
        for _, frame, _ in self._under_way:
            session.send(frame)


def _name(scope: str, rows: Rows) -> ProducerSession:
    digest = hashlib.sha256(scope.encode())
    digest.update("\n".join(rows.ids).encode())
    digest.update(json.dumps(rows.ts).encode())
    packed = digest.digest()[:10]
    return ProducerSession.unpack(packed)


def write_rows(options: Options, scope: str, batches: Iterator[pa.RecordBatch]) -> Written:
    """Send every row of a task; refused rows are an error, or a file, never silence."""
    writer = RowWriter(options, scope)
    try:
        for batch in batches:
            for start in range(0, batch.num_rows, _BATCH_ROWS):
                for rows in rows_of(batch.slice(start, _BATCH_ROWS), options.operation).split():
                    writer.send(rows)
                if writer.bad and options.mode == "failfast":
                    break
            if writer.bad and options.mode == "failfast":
                break
        writer.finish()
    finally:
        writer.close()
    if writer.bad:
        _report(options, scope, writer.bad)
    return Written(writer.written, len(writer.bad))


def _report(options: Options, scope: str, bad: list[BadRow]) -> None:
    if options.mode == "failfast":
        first = bad[0]
        raise WriteError(f"{len(bad)} rows were refused; the first is {first.id!r}: {first.reason}")
    context = TaskContext.get()
    place = context.partitionId() if context is not None else 0
    directory = Path(options.bad_rows_path)
    directory.mkdir(parents=True, exist_ok=True)
    name = hashlib.sha256(scope.encode()).hexdigest()[:12]
    lines = [json.dumps({"id": row.id, "reason": row.reason}) for row in bad]
    (directory / f"refused-{name}-{place:05d}.jsonl").write_text("\n".join(lines) + "\n")


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
        return write_rows(self._options, f"query-{query}-{number}", iterator)
