"""One producer of one topic: creates messages, and changes or cancels those of its group."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from dejaq import limits
from dejaq.broker.delivery.leaser import NOTICE_MS_MAX
from dejaq.broker.delivery.prepared import PreparedChange, only
from dejaq.broker.delivery.recall import recall_and_retry
from dejaq.broker.delivery.roster import Roster
from dejaq.broker.metrics import CANCELLED, CREATED, EDITED, NAMED, REFUSED, REPEATED, Metrics, MetricSpec
from dejaq.broker.sessions.admission import EditColumns, check_count, refuse_headers, refused_ids, versions_of
from dejaq.domain.batch import ChangeName, CreateBatch, Outcomes, admit
from dejaq.domain.changes import Cancel, Create, Edit
from dejaq.domain.context import CallContext
from dejaq.domain.ids import ProducerSession
from dejaq.domain.topic import Topic
from dejaq.errors import Code, InvalidArgument, Refused, error_of
from dejaq.protocol.columns import create_from_proto, session_from_proto
from dejaq.protocol.create_columns import CreateColumns
from dejaq.protocol.v1 import carrier_pb2 as carrier
from dejaq.storage.base import BeginsChanges, Storage, apply_one
from dejaq.timekeeper.clock import Clock

T = TypeVar("T")
# A batch with more natural ids concerns most buckets anyway, and is not looked at id by id.
NOTIFIED_ONE_BY_ONE_MAX = 16
_Change = Callable[[list[int]], Awaitable[Outcomes]]


class ConnectedProducer:
    """A producer group in a live session."""

    def __init__(
        self, *, group: str, topic: Topic, roster: Roster, storage: Storage, clock: Clock, metrics: Metrics
    ) -> None:
        self.group = group
        self.topic = topic
        self._roster = roster
        self._storage = storage
        self._look_at = storage.look_at if isinstance(storage, BeginsChanges) else None
        self._shared = storage.capabilities.shared
        self._clock = clock
        self._metrics = metrics
        # The last session that named a batch, packed and as an object.
        self._session: tuple[bytes, ProducerSession] | None = None

    async def create(self, context: CallContext, proto: carrier.CreateBatch) -> Outcomes:
        """Create the messages that can be admitted; each of the others has its own refusal."""
        if proto.digests:
            proto = await self._with_bodies(proto)
        return await self.prepare(proto).apply(self._storage, context)

    def prepare(self, proto: carrier.CreateBatch, columns: CreateColumns | None = None) -> PreparedChange:
        """Check a batch whose bodies are all there; raises what refuses it as a whole.

        `columns` has those columns that were not read into `proto`.
        """
        if columns is not None and self._look_at is not None:
            self._look_at(columns.ids)
        now, session = self._clock.now_ms(), self._session_of(proto.session)
        batch = create_from_proto(proto, owner=self.group, now=now, session=session, columns=columns)
        admit(batch, self.topic.settings, now)
        if batch.headers is not None:
            refuse_headers(batch.headers, batch.refused)
        shared = self._shared
        if not shared:
            # Pumps run when this one waits for the commit: what is due is leased in the same group commit, which saves
            # a message that is due at once the wait for a second sync (1.5 to 2.5 ms here).
            self._notify(batch)

        def finish(answers: Sequence[Outcomes | Refused]) -> Outcomes:
            outcomes = only(answers)
            if shared:
                # A store that is elsewhere has nothing to lease before it has answered.
                self._notify(batch)
            self._count(CREATED, outcomes)
            return outcomes

        return PreparedChange((Create(self.topic, batch),), now, finish)

    def _session_of(self, packed: bytes) -> ProducerSession:
        """The session that names a batch, which is nearly always that of the batch before."""
        if self._session is None or self._session[0] != packed:
            self._session = packed, session_from_proto(packed)
        return self._session[1]

    async def _with_bodies(self, proto: carrier.CreateBatch) -> carrier.CreateBatch:
        """The batch with the bodies that it names in their places."""
        storage = self._storage
        if not self.topic.settings.share_bodies:
            raise error_of(Code.BODY_MISSING, f"topic {self.topic.name!r} shares no bodies; send them")
        if len(proto.digests) != len(proto.bodies):
            raise InvalidArgument(f"{len(proto.digests)} digests for {len(proto.bodies)} bodies")
        size = 0
        # A copy: a client in the same process may send its own again.
        whole = carrier.CreateBatch()
        whole.CopyFrom(proto)
        for row, digest in enumerate(proto.digests):
            if digest:
                body = await storage.find_body(self.topic, digest)
                if body is None:
                    raise error_of(Code.BODY_MISSING)
                size += len(body)
                if size > limits.BATCH_BYTES_MAX:
                    raise error_of(Code.BATCH_TOO_LARGE)
                whole.bodies[row] = body
                self._metrics.add(NAMED, 1, self.topic.name)
        return whole

    def _notify(self, batch: CreateBatch) -> None:
        if not self._roster.has_consumers:
            return
        if batch.ids is None:
            # Generated ids come sorted and in one bucket.
            self._roster.notify_buckets(batch.ts[0], (batch.bucket,))
        elif len(batch) <= NOTIFIED_ONE_BY_ONE_MAX:
            rows = [row for row in range(len(batch)) if row not in batch.refused]
            count = self.topic.settings.buckets
            self._roster.notify_buckets(min(batch.ts), {batch.bucket_of(row, count) for row in rows})
        elif not self._roster.is_fleet:
            self._roster.notify(min(batch.ts))
        elif times := self._first_times(batch):
            self._roster.notify_each(times)

    def _first_times(self, batch: CreateBatch) -> dict[int, int]:
        """The first time in each bucket, of the messages that are so near that a consumer may not find them itself."""
        count, until = self.topic.settings.buckets, self._clock.now_ms() + NOTICE_MS_MAX
        times: dict[int, int] = {}
        for row, ts in enumerate(batch.ts):
            if ts <= until and row not in batch.refused:
                bucket = batch.bucket_of(row, count)
                times[bucket] = min(ts, times.get(bucket, ts))
        return times

    async def edit(self, context: CallContext, proto: carrier.EditBatch) -> Outcomes:
        """Change time, body, priority or headers of messages that nobody works on."""
        now = self._clock.now_ms()
        changes = EditColumns.from_proto(proto, now=now)
        refused = changes.refused(self.topic.settings, now)

        async def change(rows: list[int]) -> Outcomes:
            return await apply_one(
                self._storage, Edit(self.topic, self.group, changes.edits(rows)), self._clock.now_ms(), context
            )

        outcomes = await self._each(context, changes.ids, refused, change, changes.versions)
        if changes.ts:
            self._roster.notify(min(changes.ts))
        self._count(EDITED, outcomes)
        return outcomes

    async def cancel(self, context: CallContext, proto: carrier.CancelBatch) -> Outcomes:
        """Remove messages that nobody works on."""
        ids = list(proto.ids)
        check_count(len(ids))
        refused, versions = refused_ids(ids), versions_of(proto)
        name = _name_of(proto)

        async def change(rows: list[int]) -> Outcomes:
            at, chosen = self._clock.now_ms(), [ids[row] for row in rows]
            seen = None if versions is None else [versions[row] for row in rows]
            named = None if name is None else name.of(rows)
            return await apply_one(self._storage, Cancel(self.topic, self.group, chosen, seen, named), at, context)

        outcomes = await self._each(context, ids, refused, change, versions)
        self._count(CANCELLED, outcomes)
        return outcomes

    async def _each(
        self,
        context: CallContext,
        ids: Sequence[str],
        refused: dict[int, Code],
        change: _Change,
        versions: list[int | None] | None,
    ) -> Outcomes:
        """Do `change` to the rows that are not refused, and once more to those that could be recalled."""
        rows = [row for row in range(len(ids)) if row not in refused]
        outcomes = Outcomes(len(ids), refused)
        if rows:
            done = await change(rows)
            for place, code in done.codes.items():
                outcomes.codes[rows[place]] = code
        await recall_and_retry(
            context,
            storage=self._storage,
            clock=self._clock,
            topic=self.topic,
            roster=self._roster,
            ids=ids,
            outcomes=outcomes,
            redo=change,
            versions=versions or None,
        )
        return outcomes

    def _count(self, metric: MetricSpec, outcomes: Outcomes) -> None:
        self._metrics.add(metric, outcomes.count - len(outcomes.codes), self.topic.name)
        if not outcomes.codes:
            return
        for code, count in Counter(outcomes.codes.values()).items():
            if code is Code.ALREADY_EXISTS:
                self._metrics.add(REPEATED, count, self.topic.name)
            else:
                self._metrics.add(REFUSED, count, code.name)


def _name_of(proto: carrier.CancelBatch) -> ChangeName | None:
    """The name of a batch that has one."""
    if not proto.session:
        return None
    if len(proto.ids) > limits.NAMED_CHANGES_MAX:
        raise error_of(
            Code.INVALID_ARGUMENT,
            f"a named batch of {len(proto.ids):,} cancels; at most {limits.NAMED_CHANGES_MAX:,} share a name",
        )
    try:
        session = ProducerSession.unpack(proto.session)
    except ValueError as wrong:
        raise error_of(Code.INVALID_ARGUMENT, str(wrong)) from None
    return ChangeName(session, range(len(proto.ids)))
