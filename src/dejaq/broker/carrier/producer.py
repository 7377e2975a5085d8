"""One producer of one topic: creates messages, and changes or cancels those of its group."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from dejaq import limits
from dejaq.broker.carrier.recall import regain
from dejaq.broker.carrier.roster import Roster
from dejaq.broker.metrics import CANCELLED, CREATED, EDITED, REFUSED, REPEATED, Metrics
from dejaq.domain.batch import Outcomes, admit
from dejaq.domain.headers import decode_headers
from dejaq.domain.ids import valid_id, valid_ids
from dejaq.domain.message import check_headers
from dejaq.domain.topic import Topic
from dejaq.domain.transitions import check_ts
from dejaq.errors import Code, InvalidArgument, error_of
from dejaq.protocol.columns import create_from_proto, times_from_proto
from dejaq.protocol.v1 import carrier_pb2 as carrier
from dejaq.storage.base import Edits, Storage
from dejaq.timekeeper.clock import Clock

T = TypeVar("T")


class Producer:
    """A producer group in a live session."""

    def __init__(
        self, *, group: str, topic: Topic, roster: Roster, storage: Storage, clock: Clock, metrics: Metrics
    ) -> None:
        self.group = group
        self.topic = topic
        self._roster = roster
        self._storage = storage
        self._clock = clock
        self._metrics = metrics

    async def create(self, proto: carrier.CreateBatch) -> Outcomes:
        """Create the messages that can be admitted; each of the others has its own refusal."""
        now = self._clock.now_ms()
        batch = create_from_proto(proto, owner=self.group, now=now)
        admit(batch, self.topic.settings, now)
        if batch.headers is not None:
            _refuse_headers(batch.headers, batch.refused)
        outcomes = await self._storage.create(self.topic, batch, now)
        # Sorted where the ids are generated, and then all in one bucket.
        if batch.ids is None:
            self._roster.nudge(batch.ts[0], batch.bucket)
        else:
            self._roster.nudge(min(batch.ts))
        self._count(CREATED, outcomes)
        return outcomes

    async def edit(self, proto: carrier.EditBatch) -> Outcomes:
        """Change time, body, priority or headers of messages that nobody works on."""
        now = self._clock.now_ms()
        edits = _edits_from_proto(proto, now=now)
        refused = self._refused_edits(edits, now)

        async def change(rows: list[int]) -> Outcomes:
            at = self._clock.now_ms()
            return await self._storage.edit(self.topic, self.group, _some(edits, rows), at)

        outcomes = await self._each(edits.ids, refused, change)
        self._roster.nudge(min(edits.ts) if edits.ts else now)  # type: ignore[type-var]
        self._count(EDITED, outcomes)
        return outcomes

    async def cancel(self, proto: carrier.CancelBatch) -> Outcomes:
        """Remove messages that nobody works on."""
        ids = list(proto.ids)
        _check_count(len(ids))
        refused = _refused_ids(ids)

        async def change(rows: list[int]) -> Outcomes:
            at = self._clock.now_ms()
            return await self._storage.cancel(self.topic, self.group, [ids[row] for row in rows], at)

        outcomes = await self._each(ids, refused, change)
        self._count(CANCELLED, outcomes)
        return outcomes

    async def _each(self, ids: Sequence[str], refused: dict[int, Code], change: _Change) -> Outcomes:
        """Do `change` to the rows that are not refused, and once more to those that could be recalled."""
        rows = [row for row in range(len(ids)) if row not in refused]
        outcomes = Outcomes(len(ids), refused)
        if rows:
            done = await change(rows)
            for place, code in done.codes.items():
                outcomes.codes[rows[place]] = code
        await regain(
            storage=self._storage,
            clock=self._clock,
            topic=self.topic,
            roster=self._roster,
            ids=ids,
            outcomes=outcomes,
            redo=change,
        )
        return outcomes

    def _refused_edits(self, edits: Edits, now: int) -> dict[int, Code]:
        settings = self.topic.settings
        _check_count(len(edits.ids))
        size = sum(map(len, edits.bodies or ())) + sum(map(len, edits.headers or ()))  # type: ignore[arg-type]
        if size > limits.BATCH_BYTES_MAX:
            raise error_of(Code.BATCH_TOO_LARGE, f"{size} bytes in one batch; at most {limits.BATCH_BYTES_MAX}")
        refused = _refused_ids(edits.ids)
        for row, ts in enumerate(edits.ts or ()):
            code = check_ts(ts, now=now, max_future_ms=settings.max_future_ms)  # type: ignore[arg-type]
            if code is not Code.OK:
                refused.setdefault(row, code)
        for row, body in enumerate(edits.bodies or ()):
            if len(body) > settings.max_body_bytes:  # type: ignore[arg-type]
                refused.setdefault(row, Code.BODY_TOO_LARGE)
        if edits.headers is not None:
            _refuse_headers(edits.headers, refused)  # type: ignore[arg-type]
        return refused

    def _count(self, metric: object, outcomes: Outcomes) -> None: ...
