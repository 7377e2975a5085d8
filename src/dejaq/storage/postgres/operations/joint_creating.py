"""Create several batches in one statement, and so in one commit, when no row is expected to conflict."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from itertools import chain

import asyncpg

from dejaq.domain.batch import CreateBatch
from dejaq.domain.context import CallContext
from dejaq.domain.topic import Topic
from dejaq.errors import DejaqError
from dejaq.storage.outbox import Outbox
from dejaq.storage.postgres.connection.database import PostgresLink
from dejaq.storage.postgres.keys import looks_generated
from dejaq.storage.postgres.operations import deduplicating
from dejaq.storage.postgres.operations.counting import CountChanges, WrittenSizes
from dejaq.storage.postgres.operations.creating import BatchCounters, Columns
from dejaq.storage.used_sequences import UsedSequences


class NotPlain(DejaqError):
    """An id is taken, or a session or the topic has changed: nothing was created, and each batch is created alone."""


@dataclass(frozen=True, slots=True)
class PlannedCreate:
    """A batch, and the used sequences of its session before and after it."""

    topic: Topic
    batch: CreateBatch
    counters: BatchCounters
    now: int
    context: CallContext

    @property
    def session(self) -> tuple[int, bytes]:
        """The producer session, whose batches are created in order."""
        return self.topic.number, self.batch.session.pack()

    def fits(self, other: PlannedCreate) -> bool:
        """Whether both may be in one statement and one journal record."""
        return self.topic == other.topic and self.context.principal == other.context.principal

    def is_plain(self, used: UsedSequences) -> bool:
        """Whether every row is expected to be created without reading any.

        No row may be refused or used before, or have an id text that may belong to another kind; and the topic
        remembers no ids.
        """
        batch = self.batch
        if batch.refused or batch.large or self.counters.seen(used) or deduplicating.has_window(self.topic, batch):
            return False
        return batch.ids is None or not any(map(looks_generated, batch.ids))

    def use(self, used: UsedSequences) -> None:
        """Count the whole batch as created; raises LIMIT_EXCEEDED when the session has too many gaps."""
        used.acknowledge(self.batch.acknowledged)
        used.check_room(self.counters.gaps)
        self.counters.use(used, [(0, len(self.batch))])


@dataclass(frozen=True, slots=True)
class CreateGroup:
    """Batches for one statement, and the used sequences of their sessions before and after them."""

    plans: Sequence[PlannedCreate]
    sessions: dict[tuple[int, bytes], tuple[UsedSequences, UsedSequences]]


async def create_all(
    link: PostgresLink, group: CreateGroup, origin: int | None, until_ready: Callable[[], Awaitable[None]] | None = None
) -> WrittenSizes:
    """Create all batches; raises `NotPlain`, and creates nothing, when one of them must be created row by row.

    With `until_ready`, in a transaction: the sessions are continued when it returns.
    """
    plans = group.plans
    topic, now = plans[0].topic, max(plan.now for plan in plans)
    counts = CountChanges()
    for plan in plans:
        counts.add(topic.number, plan.batch.ts, plan.batch.owner, held=False)
    rows, listed = counts.columns()
    record = _record(group, now) if origin is not None and topic.settings.journal else b""
    sessions = (
        [session for _, session in group.sessions],
        [after.pack() for _, after in group.sessions.values()],
        [before.pack() for before, _ in group.sessions.values()],
    )
    try:
        await link.value(
            "create_all",
            topic.number,
            now,
            *(sessions if until_ready is None else ((), (), ())),
            plans[0].batch.owner,
            *_columns(plans),
            origin,
            [record] if record else [],
            link.shard,
            rows.minutes,
            rows.owners,
            rows.counts,
            listed.owner,
            listed.minutes,
            listed.counts,
        )
        if until_ready is not None:
            await until_ready()
            await link.value("continue_sessions", topic.number, now, *sessions)
    except (asyncpg.UniqueViolationError, asyncpg.InvalidTextRepresentationError):
        raise NotPlain from None
    return WrittenSizes(len(record), len(listed.minutes))


def _record(group: CreateGroup, now: int) -> bytes:
    outbox = Outbox(0)
    for plan in group.plans:
        outbox.created(plan.topic.name, plan.batch, [(0, len(plan.batch))])
    entry = outbox.take(now, group.plans[0].context.principal)
    return entry[1] if entry is not None else b""


def _columns(plans: Sequence[PlannedCreate]) -> tuple[object, ...]:
    """The place of all rows, then the columns of the rows; a column is empty when all rows have the same value."""
    parts = [Columns(plan.topic, plan.batch) for plan in plans]
    if len(parts) == 1:
        (one,) = parts
        return one.place, one.keys, one.places, one.ts, one.priorities, one.headers, one.bodies, ()
    counts = [len(plan.batch) for plan in plans]
    same_place = not any(part.places for part in parts) and len({part.place for part in parts}) == 1
    same_owner = len({plan.batch.owner for plan in plans}) == 1
    return (
        parts[0].place,
        _joined([part.keys for part in parts]),
        () if same_place else _filled([part.places for part in parts], [part.place for part in parts], counts),
        _joined([part.ts for part in parts]),
        _filled([part.priorities for part in parts], [0] * len(parts), counts),
        _filled([part.headers for part in parts], [b""] * len(parts), counts),
        _joined([part.bodies for part in parts]),
        () if same_owner else _filled([()] * len(parts), [plan.batch.owner for plan in plans], counts),
    )


def _joined(columns: Sequence[Sequence[object]]) -> list[object]:
    return list(chain.from_iterable(columns))


def _filled(columns: Sequence[Sequence[object]], values: Sequence[object], counts: Sequence[int]) -> list[object]:
    """The columns of several batches as one, with the value of each batch where its column is empty."""
    if not any(columns) and set(values) <= {0, b""}:
        return []
    return _joined([column or [value] * count for column, value, count in zip(columns, values, counts, strict=True)])
