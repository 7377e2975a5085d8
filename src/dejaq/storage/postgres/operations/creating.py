"""Create: a batch of columns becomes rows, row by row when some of them may conflict."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dejaq import limits
from dejaq.domain.batch import CreateBatch, Outcomes, RowRange
from dejaq.domain.bodies.large import content_of
from dejaq.domain.ids import ProducerSession, bucket_of
from dejaq.domain.topic import Topic
from dejaq.domain.transitions import decide_create
from dejaq.errors import Code, DejaqError, error_of
from dejaq.storage import ranges
from dejaq.storage.postgres.connection.database import PostgresLink
from dejaq.storage.postgres.keys import MARK, keys_of, looks_generated
from dejaq.storage.postgres.operations import deduplicating
from dejaq.storage.postgres.operations.change import TopicTransaction, places_of
from dejaq.storage.postgres.operations.uploading import missing
from dejaq.storage.used_sequences import UsedSequences

# A create may meet a message that is deleted at the same moment; more often than this is not a coincidence.
_TRIES = 20


class Columns:
    """A batch as the columns of the table; a column is empty when all rows have the same value.

    Without listed places all rows go to `place`; without priorities and headers they have 0 and none.
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


@dataclass(frozen=True, slots=True)
class BatchCounters:
    """The counters of a batch's rows: consecutive ones from its sequence on, or, for a part of a batch, listed ones.

    `closed` are counters of the session that need not be stored one by one: they are used, on this or another shard.
    """

    numbers: Sequence[int]
    closed: Sequence[RowRange] = ()
    # The counter of the whole batch's first row, and the check value of the batch.
    first: int = 0
    check: int = 0

    @classmethod
    def of(cls, batch: CreateBatch) -> BatchCounters:
        """The counters of a whole batch."""
        numbers = range(batch.sequence, batch.sequence + len(batch))
        return cls(numbers, first=batch.sequence, check=batch.check)

    @property
    def gaps(self) -> int:
        """How many gaps the batch may leave until its other rows are known to be done."""
        return 0 if isinstance(self.numbers, range) else 2 * limits.BATCH_COUNT_MAX

    def seen(self, used: UsedSequences) -> set[int]:
        """The rows whose counters were used; raises BATCH_NAME_TAKEN when another batch used them."""
        if isinstance(self.numbers, range):
            return used.rows(self.numbers.start, len(self.numbers), self.check)
        return used.rows_of(self.numbers, self.first, self.check)

    def use(self, used: UsedSequences, rows: Sequence[RowRange]) -> None:
        """Record rows as done."""
        for start, end in self.closed:
            used.use(start, end)
        for start, end in rows:
            if isinstance(self.numbers, range):
                used.use(self.numbers[start], self.numbers[end - 1] + 1)
            else:
                for number in self.numbers[start:end]:
                    used.use(number, number + 1)
        if rows:
            used.remember(self.first, self.check)


async def create(
    change: TopicTransaction, batch: CreateBatch, counters: BatchCounters | None = None
) -> tuple[Outcomes, UsedSequences]:
    """Create the rows that can be created, row by row; returns the outcomes, and the used sequences of the session."""
    topic = change.topic
    counters = counters or BatchCounters.of(batch)
    used = await take_session(change, batch.session)
    before = used.pack()
    used.acknowledge(batch.acknowledged)
    outcomes = Outcomes(len(batch), dict(batch.refused))
    for row in counters.seen(used):
        outcomes.codes.setdefault(row, Code.ALREADY_EXISTS)
    if len(outcomes.codes) < len(batch):
        used.check_room(counters.gaps)
    columns = Columns(topic, batch)
    await _check_twins(change, batch, columns, outcomes)
    await _check(change, batch, columns, outcomes)
    await _insert(change, batch, columns, outcomes)
    if deduplicating.has_window(topic, batch):
        await deduplicating.note(change, batch, columns.places, outcomes)
    created = ranges.without(len(batch), outcomes.codes)
    # A row that was refused may yet be created by a later try; only rows that succeeded count as done.
    counters.use(used, ranges.without(len(batch), outcomes.failed))
    if used.pack() != before:
        await put_session(change, batch.session, used)
    if created:
        change.arrived([batch.ts[row] for start, end in created for row in range(start, end)], batch.owner, held=False)
        if change.outbox is not None:
            change.outbox.created(topic.name, batch, created)
    change.gathered.noted = True
    return outcomes, used


async def take_session(change: TopicTransaction, session: ProducerSession) -> UsedSequences:
    """The used sequences of a session; the session is locked until this change is committed."""
    packed = await change.link.value("take_session", change.topic.number, session.pack(), change.now)
    if packed is None:
        raise await _missing(change.link, change.topic)
    return UsedSequences.unpack(packed)


async def put_session(change: TopicTransaction, session: ProducerSession, used: UsedSequences) -> None:
    """Store the used sequences of a session."""
    await change.link.execute("put_seen", change.topic.number, session.pack(), used.pack())
    change.gathered.noted = True


async def decide(change: TopicTransaction, batch: CreateBatch) -> Outcomes:
    """The outcome that each row would have, while the session is locked; nothing is created."""
    topic = change.topic
    used = await take_session(change, batch.session)
    outcomes = Outcomes(len(batch), dict(batch.refused))
    for row in used.rows(batch.sequence, len(batch), batch.check):
        outcomes.codes.setdefault(row, Code.ALREADY_EXISTS)
    columns = Columns(topic, batch)
    await _check_twins(change, batch, columns, outcomes)
    await _check(change, batch, columns, outcomes, every=True)
    return outcomes


async def _check(
    change: TopicTransaction, batch: CreateBatch, columns: Columns, outcomes: Outcomes, *, every: bool = False
) -> None:
    """Find the rows that cannot be created, before any row is created.

    These are rows whose id is taken by a message or remembered, rows that refer to a missing large body, and rows
    beyond a limit. Rows that conflict only with a message are found when they are inserted, unless `every` row is
    requested.
    """
    window = deduplicating.has_window(change.topic, batch)
    if not (every or window or batch.large):
        return
    left = {columns.keys[row]: row for row in range(len(batch)) if row not in outcomes.codes}
    if left:
        await _compare(change, batch, columns, outcomes, left)
    if window:
        await deduplicating.check(change, batch, columns.places, outcomes)
    if batch.large:
        gone = await missing(change, batch.bodies)
        for row, body in enumerate(batch.bodies):
            if body in gone:
                outcomes.codes.setdefault(row, Code.BODY_MISSING)
    if window and not change.gathered.decided:
        await deduplicating.check_room(change, batch, outcomes)


async def _missing(link: PostgresLink, topic: Topic) -> DejaqError:
    state = await link.value("topic_state", topic.number)
    if state is None:
        return error_of(Code.TOPIC_NOT_FOUND, f"topic {topic.name!r} is not in this store")
    return error_of(Code.TOPIC_DELETING, f"topic {topic.name!r} is being deleted")


async def _check_twins(change: TopicTransaction, batch: CreateBatch, columns: Columns, outcomes: Outcomes) -> None:
    """The id is taken when a natural id has the text of an existing generated id."""
    if batch.ids is None:
        return
    suspects = [row for row, one in enumerate(batch.ids) if row not in outcomes.codes and looks_generated(one)]
    if suspects:
        await _compare(change, batch, columns, outcomes, {columns.keys[row] + MARK: row for row in suspects})


async def _insert(change: TopicTransaction, batch: CreateBatch, columns: Columns, outcomes: Outcomes) -> None:
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
    change: TopicTransaction, batch: CreateBatch, columns: Columns, outcomes: Outcomes, taken: dict[str, int]
) -> None:
    """Decide the outcomes of the rows whose keys exist."""
    for found in await change.link.fetch("contents", change.topic.number, list(taken)):
        row = taken[found["id"]]
        body = content_of(found["body"])
        same = batch.accepts_time(row, found["asked_ts"]) and (
            found["owner"],
            found["priority"],
            found["headers"],
            body,
        ) == (
            batch.owner,
            columns.priorities[row] if columns.priorities else 0,
            columns.headers[row] if columns.headers else b"",
            content_of(batch.bodies[row]),
        )
        outcomes.codes[row] = decide_create(exists=True, same_content=same)
