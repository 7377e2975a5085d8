"""Create: a batch of columns becomes rows, in one statement where nothing stands in the way."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import asyncpg

from dejaq import limits
from dejaq.domain.batch import CreateBatch, Outcomes, RowRange
from dejaq.domain.ids import bucket_of
from dejaq.domain.large import content_of
from dejaq.domain.topic import Topic
from dejaq.domain.transitions import decide_create
from dejaq.errors import Code, DejaqError, error_of
from dejaq.storage import ranges
from dejaq.storage.outbox import Outbox
from dejaq.storage.postgres.change import Change, minutes_of, places_of
from dejaq.storage.postgres.database import Link
from dejaq.storage.postgres.keys import MARK, keys_of, looks_generated
from dejaq.storage.postgres.uploading import missing

Ranges = list[list[int]]
# A create meets a message that is deleted at the same moment; more often than this it is no accident.
_TRIES = 20


class Taken(DejaqError):
    """An id is taken: the batch must be looked at row by row."""


class Columns:
    """A batch as the columns of the table; one that says the same of every row is empty.

    Without listed places all rows go to `place`, without priorities and headers they have 0 and none.
    """

    def __init__(self, topic: Topic, batch: CreateBatch) -> None:
        self.keys = keys_of(batch)
        (self.place,) = places_of(topic, [batch.bucket])
        buckets = [bucket_of(one, topic.settings.buckets) for one in batch.ids or ()]
        self.places = places_of(topic, buckets)
        self.ts = batch.ts
        self.priorities = batch.priorities or ()
        self.headers = batch.headers or ()
        self.bodies = batch.bodies

    def of(self, rows: Sequence[int] | None) -> tuple[Sequence[object], ...]:
        """The columns of some rows, or of all."""
        columns = (self.keys, self.places, self.ts, self.priorities, self.headers, self.bodies)
        return columns if rows is None else tuple([column[row] for row in rows] if column else () for column in columns)


def unpack(seen: bytes) -> Ranges:
    """The ranges of counters that a session has used."""
    edges = struct.unpack(f">{len(seen) // 8}Q", seen)
    return [list(pair) for pair in zip(edges[::2], edges[1::2], strict=True)]


def pack(seen: Ranges, more: int = 0) -> bytes:
    """The bytes that `unpack` reads; raises LIMIT_EXCEEDED where there are too many gaps, `more` than usual allowed."""
    if len(seen) > limits.PRODUCER_SESSION_GAPS_MAX + more:
        raise error_of(
            Code.LIMIT_EXCEEDED, "the producer session has too many gaps in its sequence; open a new producer"
        )
    return struct.pack(f">{2 * len(seen)}Q", *(edge for pair in seen for edge in pair))


@dataclass(frozen=True, slots=True)
class Counters:
    """The counters of a batch's rows: those from its sequence on, or, of a part of a batch, those that are listed.

    `closed` are counters of the session that need not be known one by one: they are done, here or on another shard.
    """

    numbers: Sequence[int]
    closed: Sequence[RowRange] = ()

    @classmethod
    def of(cls, batch: CreateBatch) -> Counters:
        """Those of a whole batch."""
        return cls(range(batch.sequence, batch.sequence + len(batch)))

    @property
    def gaps(self) -> int:
        """How many gaps it may leave until the rest of the batch is known to be done."""
        return 0 if isinstance(self.numbers, range) else 2 * limits.BATCH_COUNT_MAX

    def seen(self, seen: Ranges) -> set[int]:
        """The rows whose counters were used."""
        if isinstance(self.numbers, range):
            return ranges.within(seen, self.numbers.start, len(self.numbers))
        return {row for row, number in enumerate(self.numbers) if ranges.within(seen, number, 1)}

    def use(self, seen: Ranges, rows: Iterable[RowRange]) -> None:
        """Take note of rows that are done."""
        for start, end in self.closed:
            ranges.insert(seen, start, end)
        for start, end in rows:
            if isinstance(self.numbers, range):
                ranges.insert(seen, self.numbers[start], self.numbers[end - 1] + 1)
            else:
                for number in self.numbers[start:end]:
                    ranges.insert(seen, number, number + 1)


def is_plain(batch: CreateBatch, counters: Counters, seen: Ranges) -> bool:
    """Whether every row is expected to be created: none refused, none seen, none of a text that may be another's."""
    if batch.refused or batch.large or counters.seen(seen):
        return False
    return batch.ids is None or not any(map(looks_generated, batch.ids))


async def create_all(
    link: Link, topic: Topic, batch: CreateBatch, now: int, *, counters: Counters, seen: Ranges, origin: int | None
) -> tuple[Ranges, int] | None:
    """Create a whole batch in one statement; None when its session stands otherwise.

    Otherwise the session's ranges then, and the bytes that the journal was told.

    Raises `Taken` when one of the ids is there.
    """
    columns = Columns(topic, batch)
    after = [list(pair) for pair in seen]
    counters.use(after, [(0, len(batch))])
    record: list[bytes] = []
    if origin is not None and topic.settings.journal:
        outbox = Outbox(0)
        outbox.created(topic.name, batch, [(0, len(batch))])
        entry = outbox.take(now)
        record = [entry[1]] if entry is not None else []
    minutes = minutes_of(batch.ts)
    try:
        done = await link.value(
            "create_all",
            topic.number,
            batch.session.pack(),
            now,
            pack(after, counters.gaps),
            pack(seen, len(seen)),
            batch.owner,
            *columns.of(None),
            origin,
            record,
            link.shard,
            list(minutes.keys()),
            list(minutes.values()),
            columns.place,
        )
    except asyncpg.UniqueViolationError:
        raise Taken from None
    return (after, sum(map(len, record))) if done else None


async def create(change: Change, batch: CreateBatch, counters: Counters | None = None) -> tuple[Outcomes, Ranges]:
    """Create what can be created, row by row; the outcomes, and the session's ranges then."""
    link, topic = change.link, change.topic
    counters = counters or Counters.of(batch)
    packed = await link.value("take_session", topic.number, batch.session.pack(), change.now)
    if packed is None:
        raise await _missing(link, topic)
    seen = unpack(packed)
    outcomes = Outcomes(len(batch), dict(batch.refused))
    for row in counters.seen(seen):
        outcomes.codes.setdefault(row, Code.ALREADY_EXISTS)
    columns = Columns(topic, batch)
    await _check_twins(change, batch, columns, outcomes)
    if batch.large:
        await _check_large(change, batch, columns, outcomes)
    await _insert(change, batch, columns, outcomes)
    created = ranges.without(len(batch), outcomes.codes)
    # A row that was refused may yet be created by a later try; only what stands counts as done.
    counters.use(seen, ranges.without(len(batch), outcomes.failed))
    after = pack(seen, counters.gaps)
    if after != packed:
        await link.execute("put_seen", topic.number, batch.session.pack(), after)
    if created:
        change.arrived([batch.ts[row] for start, end in created for row in range(start, end)], batch.owner, held=False)
        if change.outbox is not None:
            change.outbox.created(topic.name, batch, created)
    change.gathered.noted = True
    return outcomes, seen


async def decide(change: Change, batch: CreateBatch) -> Outcomes:
    """What would become of each row, while the session is taken; nothing is created."""
    topic = change.topic
    packed = await change.link.value("take_session", topic.number, batch.session.pack(), change.now)
    if packed is None:
        raise await _missing(change.link, topic)
    outcomes = Outcomes(len(batch), dict(batch.refused))
    for row in ranges.within(unpack(packed), batch.sequence, len(batch)):
        outcomes.codes.setdefault(row, Code.ALREADY_EXISTS)
    columns = Columns(topic, batch)
    await _check_twins(change, batch, columns, outcomes)
    if batch.large:
        await _check_large(change, batch, columns, outcomes)
        return outcomes
    left = {columns.keys[row]: row for row in range(len(batch)) if row not in outcomes.codes}
    if left:
        await _compare(change, batch, columns, outcomes, left)
    return outcomes


async def _check_large(change: Change, batch: CreateBatch, columns: Columns, outcomes: Outcomes) -> None:
    """Find the rows that are there, and then those that refer to large bodies that are not."""
    left = {columns.keys[row]: row for row in range(len(batch)) if row not in outcomes.codes}
    if left:
        await _compare(change, batch, columns, outcomes, left)
    gone = await missing(change, batch.bodies)
    for row, body in enumerate(batch.bodies):
        if body in gone:
            outcomes.codes.setdefault(row, Code.BODY_MISSING)


async def _missing(link: Link, topic: Topic) -> DejaqError:
    state = await link.value("topic_state", topic.number)
    if state is None:
        return error_of(Code.TOPIC_NOT_FOUND, f"topic {topic.name!r} is not in this store")
    return error_of(Code.TOPIC_DELETING, f"topic {topic.name!r} is being deleted")


async def _check_twins(change: Change, batch: CreateBatch, columns: Columns, outcomes: Outcomes) -> None:
    """A natural id may have the text of a generated one that is there: then it is taken."""
    if batch.ids is None:
        return
    suspects = [row for row, one in enumerate(batch.ids) if row not in outcomes.codes and looks_generated(one)]
    if suspects:
        await _compare(change, batch, columns, outcomes, {columns.keys[row] + MARK: row for row in suspects})


async def _insert(change: Change, batch: CreateBatch, columns: Columns, outcomes: Outcomes) -> None:
    left = [row for row in range(len(batch)) if row not in outcomes.codes]
    for _ in range(_TRIES):
        if not left:
            return
        rows = columns.of(left)
        made = await change.link.fetch("create_free", change.topic.number, batch.owner, *rows, columns.place)
        keys = {record["id"] for record in made}
        taken = {columns.keys[row]: row for row in left if columns.keys[row] not in keys}
        if not taken:
            return
        await _compare(change, batch, columns, outcomes, taken)
        left = [row for row in taken.values() if row not in outcomes.codes]
    raise error_of(Code.UNAVAILABLE, "the ids of a batch come and go faster than they can be taken")


async def _compare(
    change: Change, batch: CreateBatch, columns: Columns, outcomes: Outcomes, taken: dict[str, int]
) -> None:
    """Say what becomes of the rows whose keys are there."""
    for found in await change.link.fetch("contents", change.topic.number, list(taken)):
        row = taken[found["id"]]
        body = content_of(found["body"])
        same = (found["asked_ts"], found["owner"], found["priority"], found["headers"], body) == (
            batch.ts[row],
            batch.owner,
            columns.priorities[row] if columns.priorities else 0,
            columns.headers[row] if columns.headers else b"",
            content_of(batch.bodies[row]),
        )
        outcomes.codes[row] = decide_create(exists=True, same_content=same)
