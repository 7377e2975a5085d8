"""Changes by the owner: move, edit and cancel, as batches that may be repeated."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from dejaq import limits
from dejaq.domain.bodies import shown
from dejaq.domain.headers import decode_headers
from dejaq.domain.large import content_of, is_reference
from dejaq.domain.message import Message
from dejaq.errors import Code
from dejaq.protocol.v1 import carrier_pb2 as carrier
from dejaq.sdk.connection import Answer, Connection
from dejaq.sdk.gathering import Gathering
from dejaq.sdk.queries import Queries

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Change:
    """New values for messages; a None column leaves that field as it is."""

    ids: Sequence[str]
    ts: Sequence[int] | None = None
    bodies: Sequence[bytes] | None = None
    priorities: Sequence[int] | None = None
    headers: Sequence[bytes] | None = None
    versions: Sequence[int] | None = None
    # Whether some bodies refer to large ones.
    large: bool = False

    def of(self, rows: Sequence[int]) -> Change:
        """The change of some rows."""
        if rows == range(len(self.ids)):
            return self
        return Change(
            ids=[self.ids[row] for row in rows],
            ts=_pick(self.ts, rows),
            bodies=_pick(self.bodies, rows),
            priorities=_pick(self.priorities, rows),
            headers=_pick(self.headers, rows),
            versions=_pick(self.versions, rows),
            large=self.large,
        )

    def parts(self) -> Iterator[tuple[int, Change]]:
        """(first row, change) for parts that fit one request each."""
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
        """Write the columns into a frame's own batch."""
        batch.ids.extend(self.ids)
        batch.ts.extend(self.ts or ())
        batch.bodies.extend(self.bodies or ())
        batch.priorities.extend(self.priorities or ())
        batch.headers.extend(self.headers or ())
        batch.versions.extend(self.versions or ())
        batch.large = self.large

    def stands(self, row: int, message: Message | None) -> bool:
        """Whether `message` has the values of this row already."""
        return (
            message is not None
            and (self.ts is None or message.ts == self.ts[row])
            and (self.bodies is None or _same_body(message, self.bodies[row]))
            and (self.priorities is None or message.priority == self.priorities[row])
            and (self.headers is None or dict(message.headers) == decode_headers(self.headers[row]))
        )


def _pick(column: Sequence[T] | None, rows: Sequence[int]) -> Sequence[T] | None:
    return None if column is None else [column[row] for row in rows]


def _same_body(message: Message, stored: bytes) -> bool:
    if message.large is not None:
        return content_of(message.large.pack()) == content_of(stored)
    return not is_reference(stored) and message.body == shown(stored)


# Changes that weigh more are worth a frame of their own; a row weighs this without its body and headers.
_GATHERED_BYTES_MAX = 256 * 1024
_ROW_BYTES = 256


@dataclass(frozen=True, slots=True)
class _Request:
    """A change or a cancellation that fits one frame, and when it gives up."""

    change: Change
    until: float
    cancels: bool = False

    def weight(self) -> int:
        """About how many bytes it takes."""
        change = self.change
        return len(change.ids) * _ROW_BYTES + sum(map(len, change.bodies or ())) + sum(map(len, change.headers or ()))

    def shape(self) -> tuple[bool, ...]:
        """Requests of one shape may share a frame."""
        change = self.change
        columns = (change.ts, change.bodies, change.priorities, change.headers, change.versions)
        return (self.cancels, change.large, *(column is not None for column in columns))


class Changes:
    """Sends changes of one producer's topic and settles what an outage left in doubt.

    Small ones that wait for one another share a frame and a commit.
    """

    def __init__(self, connection: Connection, queries: Queries, topic: str) -> None:
        self._connection = connection
        self._queries = queries
        self._topic = topic
        self._gathering = Gathering(
            self._send, weigh=_Request.weight, weight_max=_GATHERED_BYTES_MAX, shape=_Request.shape
        )

    async def edit(self, change: Change) -> dict[int, Code]:
        """Apply a change; the codes that are not OK, by row.

        A repeat sets the same values again. Where a first try may have been done and the repeat finds another
        version, the message is read: it has the new values exactly when that first try was done.
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
        """Cancel messages; the codes that are not OK, by row.

        Where a first try may have been done, a message that is not there counts as cancelled: it is gone, as asked.
        """
        codes: dict[int, Code] = {}
        until = self._connection.until()
        for start, part in Change(ids=ids, versions=versions).parts():
            answer = await self._gathering.ask(_Request(part, until, cancels=True))
            for row, code in answer.codes.items():
                if not (answer.unsure and code is Code.NOT_FOUND):
                    codes[start + row] = code
        return codes

    async def _send(self, requests: Sequence[_Request]) -> list[Answer]:
        frame = self._connection.frame()
        for request in requests:
            if request.cancels:
                frame.cancel.ids.extend(request.change.ids)
                frame.cancel.versions.extend(request.change.versions or ())
            else:
                request.change.fill(frame.edit)
        answer = await self._connection.request(frame, min(request.until for request in requests))
        if len(requests) == 1:
            return [answer]
        answers: list[Answer] = []
        first = 0
        for request in requests:
            rows = range(len(request.change.ids))
            codes = {row: answer.codes[first + row] for row in rows if first + row in answer.codes}
            answers.append(Answer(codes, answer.unsure))
            first += len(rows)
        return answers
