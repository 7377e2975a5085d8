"""One producer of one topic: creates messages, and changes or cancels those of its group."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from dejaq import limits
from dejaq.broker.carrier.recall import regain
from dejaq.broker.carrier.roster import Roster
from dejaq.broker.metrics import CANCELLED, CREATED, EDITED, REFUSED, REPEATED, Metrics, MetricSpec
from dejaq.domain.batch import CreateBatch, Outcomes, admit
from dejaq.domain.headers import decode_headers
from dejaq.domain.ids import valid_id, valid_ids
from dejaq.domain.message import check_headers
from dejaq.domain.topic import Topic, TopicSettings
from dejaq.domain.transitions import check_ts
from dejaq.errors import Code, InvalidArgument, error_of
from dejaq.protocol.columns import create_from_proto, times_from_proto
from dejaq.protocol.v1 import carrier_pb2 as carrier
from dejaq.storage.base import Edits, Storage
from dejaq.timekeeper.clock import Clock

T = TypeVar("T")
# A batch with more natural ids concerns most buckets anyway, and is not looked at id by id.
NUDGED_ONE_BY_ONE_MAX = 16
_Change = Callable[[list[int]], Awaitable[Outcomes]]


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
        # Pumps run when this one waits for the commit: what is due is leased in the same group commit, which saves
        # a message that is due at once the wait for a second sync (1.5 to 2.5 ms here).
        self._nudge(batch)
        outcomes = await self._storage.create(self.topic, batch, now)
        if self._storage.capabilities.shared:
            # A store that is elsewhere has nothing to lease before it has answered.
            self._nudge(batch)
        self._count(CREATED, outcomes)
        return outcomes

    def _nudge(self, batch: CreateBatch) -> None:
        if batch.ids is None:
            # Generated ids come sorted and in one bucket.
            self._roster.nudge_buckets(batch.ts[0], (batch.bucket,))
        elif len(batch) <= NUDGED_ONE_BY_ONE_MAX:
            rows = [row for row in range(len(batch)) if row not in batch.refused]
            count = self.topic.settings.buckets
            self._roster.nudge_buckets(min(batch.ts), {batch.bucket_of(row, count) for row in rows})
        else:
            self._roster.nudge(min(batch.ts))

    async def edit(self, proto: carrier.EditBatch) -> Outcomes:
        """Change time, body, priority or headers of messages that nobody works on."""
        now = self._clock.now_ms()
        changes = _Changes.from_proto(proto, now=now)
        refused = changes.refused(self.topic.settings, now)

        async def change(rows: list[int]) -> Outcomes:
            return await self._storage.edit(self.topic, self.group, changes.edits(rows), self._clock.now_ms())

        outcomes = await self._each(changes.ids, refused, change)
        if changes.ts:
            self._roster.nudge(min(changes.ts))
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

    def _count(self, metric: MetricSpec, outcomes: Outcomes) -> None:
        self._metrics.add(metric, outcomes.count - len(outcomes.codes), self.topic.name)
        for code, count in Counter(outcomes.codes.values()).items():
            if code is Code.ALREADY_EXISTS:
                self._metrics.add(REPEATED, count, self.topic.name)
            else:
                self._metrics.add(REFUSED, count, code.name)


@dataclass(frozen=True, slots=True)
class _Changes:
    """The columns of an edit; an empty one leaves its field."""

    ids: list[str]
    ts: list[int]
    bodies: list[bytes]
    priorities: list[int]
    headers: list[bytes]
    versions: list[int]

    @classmethod
    def from_proto(cls, proto: carrier.EditBatch, *, now: int) -> _Changes:
        """The changes that were sent; raises when they are malformed or too many."""
        changes = cls(
            ids=list(proto.ids),
            ts=times_from_proto(proto.ts, relative=proto.relative, now=now),
            bodies=list(proto.bodies),
            priorities=list(proto.priorities),
            headers=list(proto.headers),
            versions=list(proto.versions),
        )
        _check_count(len(changes.ids))
        columns = (changes.ts, changes.bodies, changes.priorities, changes.headers)
        if not any(columns):
            raise InvalidArgument("an edit changes nothing: every column is empty")
        if any(len(column) not in (0, len(changes.ids)) for column in (*columns, changes.versions)):
            raise InvalidArgument("the columns of an edit must be empty or as long as its ids")
        size = sum(map(len, changes.bodies)) + sum(map(len, changes.headers))
        if size > limits.BATCH_BYTES_MAX:
            raise error_of(Code.BATCH_TOO_LARGE, f"{size} bytes in one batch; at most {limits.BATCH_BYTES_MAX}")
        return changes

    def refused(self, settings: TopicSettings, now: int) -> dict[int, Code]:
        """The rows that no storage may take."""
        refused = _refused_ids(self.ids)
        for row, ts in enumerate(self.ts):
            code = check_ts(ts, now=now, max_future_ms=settings.max_future_ms)
            if code is not Code.OK:
                refused.setdefault(row, code)
        for row, body in enumerate(self.bodies):
            if len(body) > settings.max_body_bytes:
                refused.setdefault(row, Code.BODY_TOO_LARGE)
        _refuse_headers(self.headers, refused)
        return refused

    def edits(self, rows: list[int]) -> Edits:
        """The changes of some rows, as the storage takes them."""
        return Edits(
            ids=_pick(self.ids, rows),
            ts=_pick(self.ts, rows) or None,
            bodies=_pick(self.bodies, rows) or None,
            priorities=_pick(self.priorities, rows) or None,
            headers=_pick(self.headers, rows) or None,
            versions=_pick(self.versions, rows) or None,
        )


def _pick(column: Sequence[T], rows: list[int]) -> Sequence[T]:
    return [column[row] for row in rows] if column and len(rows) != len(column) else column


def _check_count(count: int) -> None:
    if count == 0:
        raise InvalidArgument("the batch names no message")
    if count > limits.BATCH_COUNT_MAX:
        raise error_of(Code.BATCH_TOO_LARGE, f"{count} items in one batch; at most {limits.BATCH_COUNT_MAX}")


def _refused_ids(ids: Sequence[str]) -> dict[int, Code]:
    if valid_ids(ids):
        return {}
    return {row: Code.INVALID_ID for row, message_id in enumerate(ids) if not valid_id(message_id)}


def _refuse_headers(headers: Sequence[bytes], refused: dict[int, Code]) -> None:
    """Each different map is looked at once: a batch mostly repeats a few."""
    bad = {encoded for encoded in set(headers) if encoded and not _good_headers(encoded)}
    if bad:
        for row, encoded in enumerate(headers):
            if encoded in bad:
                refused.setdefault(row, Code.INVALID_HEADERS)


def _good_headers(encoded: bytes) -> bool:
    # Tags and lengths add at most a dozen bytes to each entry.
    if len(encoded) > limits.HEADERS_BYTES_MAX + 12 * limits.HEADERS_COUNT_MAX:
        return False
    try:
        return check_headers(decode_headers(encoded)) is Code.OK
    except ValueError:
        return False
