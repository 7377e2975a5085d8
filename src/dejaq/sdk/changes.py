"""Changes by the owner: move, edit and cancel, as batches that may be repeated."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from dejaq import limits
from dejaq.domain.bodies import shown
from dejaq.domain.headers import decode_headers
from dejaq.domain.message import Message
from dejaq.errors import Code
from dejaq.protocol.v1 import carrier_pb2 as carrier
from dejaq.sdk.connection import Connection
from dejaq.sdk.queries import Queries


@dataclass(frozen=True, slots=True)
class Change:
    """New values for messages; a None column leaves that field as it is."""

    ids: Sequence[str]
    ts: Sequence[int] | None = None
    bodies: Sequence[bytes] | None = None
    priorities: Sequence[int] | None = None
    headers: Sequence[bytes] | None = None
    versions: Sequence[int] | None = None

    def parts(self) -> Iterator[tuple[int, Change]]:
        """(first row, change) for parts that fit one request each."""
        for start, end in self._cuts():
            rows = slice(start, end)
            yield (
                start,
                Change(
                    ids=self.ids[rows],
                    ts=None if self.ts is None else self.ts[rows],
                    bodies=None if self.bodies is None else self.bodies[rows],
                    priorities=None if self.priorities is None else self.priorities[rows],
                    headers=None if self.headers is None else self.headers[rows],
                    versions=None if self.versions is None else self.versions[rows],
                ),
            )

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

    def stands(self, row: int, message: Message | None) -> bool:
        """Whether `message` has the values of this row already."""
        return (
            message is not None
            and (self.ts is None or message.ts == self.ts[row])
            and (self.bodies is None or message.body == shown(self.bodies[row]))
            and (self.priorities is None or message.priority == self.priorities[row])
            and (self.headers is None or dict(message.headers) == decode_headers(self.headers[row]))
        )


class Changes:
    """Sends changes of one producer's topic and settles what an outage left in doubt."""

    def __init__(self, connection: Connection, queries: Queries, topic: str) -> None:
        self._connection = connection
        self._queries = queries
        self._topic = topic

    async def edit(self, change: Change) -> dict[int, Code]:
        """Apply a change; the codes that are not OK, by row.

        A repeat sets the same values again. Where a first try may have been done and the repeat finds another
        version, the message is read: it has the new values exactly when that first try was done.
        """
        codes: dict[int, Code] = {}
        until = self._connection.until()
        for start, part in change.parts():
            frame = self._connection.frame()
            part.fill(frame.edit)
            answer = await self._connection.request(frame, until)
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
        for start in range(0, len(ids), limits.BATCH_COUNT_MAX):
            frame = self._connection.frame()
            frame.cancel.ids.extend(ids[start : start + limits.BATCH_COUNT_MAX])
            frame.cancel.versions.extend((versions or ())[start : start + limits.BATCH_COUNT_MAX])
            answer = await self._connection.request(frame, until)
            for row, code in answer.codes.items():
                if not (answer.unsure and code is Code.NOT_FOUND):
                    codes[start + row] = code
        return codes
