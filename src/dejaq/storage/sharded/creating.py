"""Create over several shards: each row goes to the shard of its bucket and keeps the counter that names it."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import replace

from dejaq.domain.batch import CreateBatch, Outcomes, RowRange, ranges_of_rows
from dejaq.domain.bodies.large import content_of
from dejaq.domain.context import CallContext
from dejaq.domain.headers import decode_headers
from dejaq.domain.message import Message
from dejaq.domain.topic import Topic
from dejaq.domain.transitions import decide_create
from dejaq.errors import Code, DejaqError, Indefinite
from dejaq.storage import ranges
from dejaq.storage.postgres.connection.failures import Moving
from dejaq.storage.postgres.operations.creating import BatchCounters
from dejaq.storage.postgres.sharding.shard import PostgresShard
from dejaq.storage.sharded.bodies import ShardedBodies
from dejaq.storage.sharded.routing import Router
from dejaq.storage.sharded.shards import Ask, Shards
from dejaq.storage.used_sequences import UsedSequences

_SESSIONS_KNOWN_MAX = 10_000
# At most this many ranges of used counters are sent to a shard.
_CLOSED_MAX = 32


class Creator:
    """Creates batches, and remembers the counters that a producer session has used on all shards.

    Each shard records the counters that it has used. The counters between them belong to other shards; a shard that
    knows them as used need not store the gaps. Only acknowledged counters are sent, so that a shard that gets a bucket
    treats no unused counter as used.
    """

    def __init__(self, shards: Shards, router: Router, bodies: ShardedBodies) -> None:
        self._shards = shards
        self._bodies = bodies
        self._router = router
        self._done: OrderedDict[tuple[int, bytes], UsedSequences] = OrderedDict()

    async def create(self, topic: Topic, batch: CreateBatch, now: int, context: CallContext) -> Outcomes:
        """Create the admitted rows; raises INDEFINITE when a shard fails, because another may have created its rows."""
        return await self._shards.until_moved(lambda: self._create(topic, batch, now, context))

    async def _create(self, topic: Topic, batch: CreateBatch, now: int, context: CallContext) -> Outcomes:
        if len(self._router.places(topic)) == 1:
            return await self._shards.ask(0, lambda shard: self._whole(shard, topic, batch, now, context))
        session = (topic.number, batch.session.pack())
        known = self._done.get(session) or UsedSequences()
        closed = [(start, end) for start, end in known.ranges] if len(known.ranges) <= _CLOSED_MAX else []
        known_codes = dict.fromkeys(known.rows(batch.sequence, len(batch), batch.check), Code.ALREADY_EXISTS)
        known_codes |= await self._twins(topic, batch)
        if known_codes:
            batch = replace(batch, refused={**known_codes, **batch.refused})
        if len(batch.refused) == len(batch):
            return Outcomes(len(batch), dict(batch.refused))
        await self._shards.steady(topic, self._buckets(topic, batch))
        rows_of = self._cut(topic, batch)

        def of(rows: Sequence[int]) -> Ask[Outcomes]:
            return lambda shard: self._part(shard, topic, batch, rows, closed, now, context)

        answers = await self._shards.ask_all({place: of(rows) for place, rows in rows_of.items()})
        errors = [answer for answer in answers.values() if isinstance(answer, DejaqError)]
        if errors:
            if any(isinstance(error, Moving) for error in errors):
                # Rows that were created on other shards are known by their counters.
                raise Moving
            if len(answers) == 1 or (all(not error.indefinite for error in errors) and len(errors) == len(answers)):
                raise errors[0]
            raise Indefinite("a part of the batch was not created; repeat it", details=errors[0].message)
        outcomes = Outcomes(len(batch))
        for place, answer in answers.items():
            if isinstance(answer, Outcomes):
                outcomes.codes.update({rows_of[place][number]: code for number, code in answer.codes.items()})
        self._note(session, batch, outcomes)
        return outcomes

    async def _whole(
        self, shard: PostgresShard, topic: Topic, batch: CreateBatch, now: int, context: CallContext
    ) -> Outcomes:
        if batch.large:
            await self._bodies.bring(shard, batch.bodies, now)
        return await shard.create(topic, batch, now, context)

    async def _part(
        self,
        shard: PostgresShard,
        topic: Topic,
        batch: CreateBatch,
        rows: Sequence[int],
        closed: Sequence[RowRange],
        now: int,
        context: CallContext,
    ) -> Outcomes:
        if batch.large:
            await self._bodies.bring(shard, [batch.bodies[row] for row in rows], now)
        if isinstance(rows, range):
            return await shard.create(topic, batch, now, context, replace(BatchCounters.of(batch), closed=closed))
        counters = BatchCounters([batch.sequence + row for row in rows], closed, batch.sequence, batch.check)
        return await shard.create(topic, _cut_to(batch, rows), now, context, counters)

    def _buckets(self, topic: Topic, batch: CreateBatch) -> set[int]:
        if batch.ids is None:
            return {batch.bucket}
        return {batch.bucket_of(row, topic.settings.buckets) for row in range(len(batch))}

    def _cut(self, topic: Topic, batch: CreateBatch) -> dict[int, Sequence[int]]:
        """The rows of each shard."""
        owner = self._shards.map.owner
        if batch.ids is None:
            return {owner(topic, batch.bucket): range(len(batch))}
        found: dict[int, list[int]] = {}
        for row in range(len(batch)):
            found.setdefault(owner(topic, batch.bucket_of(row, topic.settings.buckets)), []).append(row)
        return {place: range(len(batch)) if len(found) == 1 else rows for place, rows in found.items()}

    async def _twins(self, topic: Topic, batch: CreateBatch) -> dict[int, Code]:
        """Natural ids with the text of generated ids that are on other shards."""
        if batch.ids is None or len(self._router.places(topic)) == 1:
            return {}
        codes: dict[int, Code] = {}
        for row, message_id in enumerate(batch.ids):
            twin = self._router.twin(topic, message_id)
            if twin is not None and twin != self._router.home(topic, message_id) and row not in batch.refused:
                there = await self._router.find(twin, topic, message_id)
                if there is not None:
                    codes[row] = decide_create(exists=True, same_content=_same(batch, row, there))
        return codes

    def _note(self, session: tuple[int, bytes], batch: CreateBatch, outcomes: Outcomes) -> None:
        done = self._done.pop(session, None) or UsedSequences()
        done.acknowledge(batch.acknowledged)
        for start, end in ranges.without(len(batch), outcomes.failed):
            done.use(batch.sequence + start, batch.sequence + end)
            done.remember(batch.sequence, batch.check)
        self._done[session] = done
        if len(self._done) > _SESSIONS_KNOWN_MAX:
            self._done.popitem(last=False)


def _cut_to(batch: CreateBatch, rows: Sequence[int]) -> CreateBatch:
    assert batch.ids is not None
    return replace(
        batch,
        ids=[batch.ids[row] for row in rows],
        ts=[batch.ts[row] for row in rows],
        bodies=[batch.bodies[row] for row in rows],
        priorities=None if batch.priorities is None else [batch.priorities[row] for row in rows],
        headers=None if batch.headers is None else [batch.headers[row] for row in rows],
        refused={number: batch.refused[row] for number, row in enumerate(rows) if row in batch.refused},
        relative_rows=_relative_of(batch, rows),
    )


def _relative_of(batch: CreateBatch, rows: Sequence[int]) -> Sequence[RowRange]:
    if not batch.relative_rows:
        return ()
    relative = {row for start, end in batch.relative_rows for row in range(start, end)}
    return ranges_of_rows(number for number, row in enumerate(rows) if row in relative)


def _same(batch: CreateBatch, row: int, there: Message) -> bool:
    headers = decode_headers(batch.headers[row]) if batch.headers is not None else {}
    return batch.accepts_time(row, there.ts) and (
        there.producer_group,
        there.priority,
        content_of(there.body),
        dict(there.headers),
    ) == (
        batch.owner,
        batch.priorities[row] if batch.priorities is not None else 0,
        content_of(batch.bodies[row]),
        headers,
    )
