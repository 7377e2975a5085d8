"""Changes by the owner: move, edit and cancel, in batches that may be sent again after an outage."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from dejaq import limits
from dejaq.domain.bodies.large import content_of, is_reference
from dejaq.domain.bodies.packing import shown
from dejaq.domain.headers import decode_header_change
from dejaq.domain.message import Message
from dejaq.errors import Code
from dejaq.protocol.v1 import carrier_pb2 as carrier
from dejaq.sdk.admin.queries import Queries
from dejaq.sdk.gathering import Gathering
from dejaq.sdk.session.connection import BrokerAnswer, Connection

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class NewValues:
    """New values for messages; a None column leaves that field as it is."""

    ids: Sequence[str]
    ts: Sequence[int] | None = None
    bodies: Sequence[bytes] | None = None
    priorities: Sequence[int] | None = None
    headers: Sequence[bytes] | None = None
    versions: Sequence[int] | None = None
    # Whether some bodies are references to large bodies.
    large: bool = False

    def of(self, rows: Sequence[int]) -> NewValues:
        """The change of some rows."""
        if rows == range(len(self.ids)):
            return self
        return NewValues(
            ids=[self.ids[row] for row in rows],
            ts=_pick(self.ts, rows),
            bodies=_pick(self.bodies, rows),
            priorities=_pick(self.priorities, rows),
            headers=_pick(self.headers, rows),
            versions=_pick(self.versions, rows),
            large=self.large,
        )

    def parts(self) -> Iterator[tuple[int, NewValues]]:
        """The parts as (first row, change), each small enough for one request."""
        for start, end in self._cuts():
            yield start, self.of(range(start, end))

    def _cuts(self) -> Iterator[tuple[int, int]]:
        start, size = 0, 0
        for row in range(len(self.ids)):
            body = len(self.bodies[row]) if self.bodies is not None else 0
            if row > start and (row - start >= limits.BATCH_COUNT_MAX or size + body > limits.BATCH_BYTES_MAX):
                yield start, row
                start, size = row, 0
            size += body
        if self.ids:
            yield start, len(self.ids)

    def fill(self, batch: carrier.EditBatch) -> None:
        """Write the columns into a batch of a frame."""
        batch.ids.extend(self.ids)
        batch.ts.extend(self.ts or ())
        batch.bodies.extend(self.bodies or ())
        batch.priorities.extend(self.priorities or ())
        batch.headers.extend(self.headers or ())
        batch.versions.extend(self.versions or ())
        batch.large = self.large

    def stands(self, row: int, message: Message | None) -> bool:
        """Whether `message` already has the values of this row."""
        return (
            message is not None
            and (self.ts is None or message.ts == self.ts[row])
            and (self.bodies is None or _same_body(message, self.bodies[row]))
            and (self.priorities is None or message.priority == self.priorities[row])
            and (self.headers is None or _has_headers(message, self.headers[row]))
        )


def _pick(column: Sequence[T] | None, rows: Sequence[int]) -> Sequence[T] | None:
    return None if column is None else [column[row] for row in rows]


def _has_headers(message: Message, change: bytes) -> bool:
    return all(message.headers.get(name) == value for name, value in decode_header_change(change).items())


def _same_body(message: Message, stored: bytes) -> bool:
    if message.large is not None:
        return content_of(message.large.pack()) == content_of(stored)
    return not is_reference(stored) and message.body == shown(stored)


# A change with more bytes gets a frame of its own. Without its body and headers a row counts as this many bytes.
_GATHERED_BYTES_MAX = 256 * 1024
_ROW_BYTES = 256


@dataclass(frozen=True, slots=True)
class _Request:
    """A change or a cancellation that fits one frame, and its deadline."""

    change: NewValues
    until: float
    cancels: bool = False

    def weight(self) -> int:
        """Its approximate size in bytes."""
        change = self.change
        return len(change.ids) * _ROW_BYTES + sum(map(len, change.bodies or ())) + sum(map(len, change.headers or ()))

    def shape(self) -> tuple[bool, ...]:
        """Requests of one shape may share a frame."""
        change = self.change
        return (
            self.cancels,
            change.large,
            change.ts is None,
            change.bodies is None,
            change.priorities is None,
            change.headers is None,
            change.versions is None,
        )


class Changes:
    """Sends the changes of one producer's topic, and finds out the outcome of changes that an outage left uncertain.

    Small changes that wait at the same time share a frame and a commit.
    """

    def __init__(self, connection: Connection, queries: Queries, topic: str) -> None:
        self._connection = connection
        self._queries = queries
        self._topic = topic
        self._gathering = Gathering(
            self._send,
            weigh=_Request.weight,
            weight_max=_GATHERED_BYTES_MAX,
            shape=_Request.shape,
            # A message may be named only once in a frame.
            names=lambda request: request.change.ids,
        )

    async def edit(self, change: NewValues) -> dict[int, Code]:
        """Apply a change; returns the codes that are not OK, by row.

        A repeat sets the same values again. When a first try may have succeeded and the repeat finds another version,
        the message is read: the first try succeeded exactly when the message has the new values.
        """
        codes: dict[int, Code] = {}
        until = self._connection.until()
        for start, part in change.parts():
            answer = await self._gathering.ask(_Request(part, until))
            doubtful = [row for row, code in answer.codes.items() if code is Code.VERSION_CONFLICT]
            if answer.unsure and doubtful:
                found = await self._queries.get(self._topic, [part.ids[row] for row in doubtful])
                for row, message in zip(doubtful, found, strict=True):
                    if part.stands(row, message):
                        del answer.codes[row]
            codes.update({start + row: code for row, code in answer.codes.items()})
        return codes

    async def cancel(self, ids: Sequence[str], versions: Sequence[int] | None = None) -> dict[int, Code]:
        """Cancel messages; returns the codes that are not OK, by row.

        When a first try may have succeeded, a missing message counts as cancelled, because the result is the requested
        one.
        """
        codes: dict[int, Code] = {}
        until = self._connection.until()
        for start, part in NewValues(ids=ids, versions=versions).parts():
            answer = await self._gathering.ask(_Request(part, until, cancels=True))
            for row, code in answer.codes.items():
                if not (answer.unsure and code is Code.NOT_FOUND):
                    codes[start + row] = code
        return codes

    def _send(self, requests: Sequence[_Request], done: Callable[[list[BrokerAnswer] | Exception], None]) -> None:
        frame = self._connection.frame()
        for request in requests:
            if request.cancels:
                frame.cancel.ids.extend(request.change.ids)
                frame.cancel.versions.extend(request.change.versions or ())
            else:
                request.change.fill(frame.edit)

        def answered(answer: BrokerAnswer | Exception) -> None:
            if isinstance(answer, Exception):
                done(answer)
            elif len(requests) == 1:
                done([answer])
            else:
                done(_divided(answer, [len(request.change.ids) for request in requests]))

        self._connection.begin(frame, min(request.until for request in requests), answered)


def _divided(answer: BrokerAnswer, counts: Sequence[int]) -> list[BrokerAnswer]:
    """The answers to requests of so many rows each that shared a frame."""
    if not answer.codes:
        return [BrokerAnswer({}, answer.unsure) for _ in counts]
    answers: list[BrokerAnswer] = []
    first = 0
    for count in counts:
        codes = {row: answer.codes[first + row] for row in range(count) if first + row in answer.codes}
        answers.append(BrokerAnswer(codes, answer.unsure))
        first += count
    return answers
