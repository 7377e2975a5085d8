"""Sends deletes and extensions to the broker: one frame for all of a kind that wait, also when they belong to several
leases.

A burst of 100,000 messages in batches of a thousand took 130 ms of CPU time in broker and consumers together with one
frame per batch, and takes 85 ms with shared frames. A consumer that holds rows of ten thousand leases extends them with
160 frames.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dejaq import limits
from dejaq.protocol.v1 import carrier_pb2 as carrier
from dejaq.sdk.gathering import Gathering
from dejaq.sdk.session.connection import BrokerAnswer, Connection

# Since these versions of the protocol a frame may delete, or extend, rows of several leases.
PROTOCOL_SINCE = {carrier.DELETE: 2, carrier.EXTEND: 3}


@dataclass(frozen=True, slots=True)
class _Settle:
    """One delete or extension, and its deadline."""

    settle: carrier.Settle
    until: float

    def rows(self) -> list[int]:
        """The row numbers that it names."""
        edges = self.settle.ranges
        return [row for start, end in zip(edges[::2], edges[1::2], strict=True) for row in range(start, end)]


class SharedSettles:
    """Sends changes of one kind over a connection: deletes, or extensions."""

    def __init__(self, connection: Connection, kind: carrier.SettleKind) -> None:
        self._connection, self._kind = connection, kind
        self._gathering = Gathering(self._send, weigh=lambda _: 1, weight_max=limits.SETTLES_MAX, shape=self._shape)

    def send(self, settle: carrier.Settle) -> asyncio.Future[BrokerAnswer]:
        """Change the rows in `settle`; the answer has the codes that are not OK, by row of its lease."""
        return self._gathering.ask(_Settle(settle, self._connection.until()))

    def begin(self, settle: carrier.Settle, done: Callable[[BrokerAnswer | Exception], None]) -> None:
        """Change the rows in `settle`; `done` is called with the answer. It leaves with the next `flush`."""
        self._gathering.add(_Settle(settle, self._connection.until()), done)

    def flush(self) -> None:
        """Send now what waits for the end of this turn of the event loop."""
        self._gathering.flush()

    def _shape(self, one: _Settle) -> int:
        """Before the version of the protocol that has shared frames, each has a shape of its own."""
        return 0 if self._connection.protocol >= PROTOCOL_SINCE[self._kind] else id(one)

    def _send(self, settles: Sequence[_Settle], done: Callable[[list[BrokerAnswer] | Exception], None]) -> None:
        frame = self._connection.frame()
        every = [one.settle for one in settles]
        if len(every) == 1:
            frame.settle.CopyFrom(every[0])
        elif self._kind == carrier.DELETE:
            frame.deletes.settles.extend(every)
        else:
            frame.extends.settles.extend(every)

        def answered(answer: BrokerAnswer | Exception) -> None:
            if isinstance(answer, Exception):
                done(answer)
            elif len(settles) == 1:
                done([answer])
            else:
                done(_divided(answer, settles))

        self._connection.begin(frame, min(one.until for one in settles), answered)


def _divided(answer: BrokerAnswer, settles: Sequence[_Settle]) -> list[BrokerAnswer]:
    """The answers to settles that shared a frame: there the rows are numbered through all of them."""
    if not answer.codes:
        return [BrokerAnswer({}, answer.unsure) for _ in settles]
    answers: list[BrokerAnswer] = []
    first = 0
    for one in settles:
        rows = one.rows()
        codes = {row: answer.codes[place] for place, row in enumerate(rows, first) if place in answer.codes}
        first += len(rows)
        answers.append(BrokerAnswer(codes, answer.unsure))
    return answers
