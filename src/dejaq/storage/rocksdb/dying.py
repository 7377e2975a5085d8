"""Dead letters: rows leave their topic and enter another in the same write; and what waits after a lost lease."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from dejaq.domain.batch import IdSpan, Outcomes
from dejaq.domain.dead_letter import (
    EXHAUSTED,
    Death,
    exhausted,
    expiry_delay_ms,
    free_id,
    id_before,
    without_history,
)
from dejaq.domain.ids import bucket_of
from dejaq.domain.transitions import decide_redrive
from dejaq.errors import Code
from dejaq.storage.outbox import CANCELLED, CREATED, DEAD_LETTERED, EXPIRED
from dejaq.storage.rocksdb import masks
from dejaq.storage.rocksdb.database import Batch
from dejaq.storage.rocksdb.image import Draft, Image, Row
from dejaq.storage.rocksdb.lease import Lease, Part
from dejaq.storage.rocksdb.owning import Leaving
from dejaq.storage.rocksdb.run import Run
from dejaq.storage.rocksdb.settling import Settlement


@dataclass(frozen=True, slots=True)
class Dead:
    """A row that leaves for the dead-letter topic, and how it died."""

    run: Run
    row: int
    death: Death


class Arrivals:
    """Rows that come into a topic from another one, under ids that are free there."""

    def __init__(self, image: Image, now: int, batch: Batch) -> None:
        self._image, self._now, self._batch = image, now, batch
        self._draft = Draft()
        self._rows: dict[str, list[tuple[Row, bytes]]] = {}
        self._ids: set[str] = set()

    def taken(self, ids: Sequence[str]) -> Callable[[str], bool]:
        """Whether an id is taken; those that are asked for first are looked up together."""
        there = {one for one, at in zip(ids, self._image.locate(ids), strict=True) if at is not None}
        known = set(ids)

        def is_taken(one: str) -> bool:
            return one in self._ids or one in there or (one not in known and self._image.locate([one])[0] is not None)

        return is_taken

    def add(self, source: Image, run: Run, row: int, message_id: str, headers: bytes) -> None:
        """Take a row of another topic, due now and without attempts."""
        body = source.body(run, row)
        inline, apart = self._image.apart.put(self._batch, body)
        new = Row(
            id=message_id,
            ts=self._now,
            body=inline,
            priority=run.sort_key(row)[1],
            attempts=0,
            headers=headers,
            apart=apart,
        )
        owner = str(run.record.owner)
        bucket = bucket_of(message_id, self._image.topic.settings.buckets)
        self._draft.add(bucket, self._image.owner_number(owner, self._batch), new)
        self._rows.setdefault(owner, []).append((new, body))
        self._ids.add(message_id)

    def enter(self) -> None:
        """Write them."""
        self._image.add_rows(self._batch, self._draft)
        if self._image.outbox is None:
            return
        for owner, rows in self._rows.items():
            self._image.outbox.changed(
                CREATED,
                self._image.topic.name,
                owner=owner,
                ids=[row.id for row, _ in rows],
                ts=[row.ts for row, _ in rows],
                priorities=[row.priority for row, _ in rows],
                bodies=[body for _, body in rows],
            )


def split(image: Image, parts: Sequence[Part], now: int) -> tuple[list[Part], list[Dead]]:
    """The parts without the rows that have had all their leases, and those."""
    limit = image.topic.settings.max_attempts
    alive: list[Part] = []
    dead: list[Dead] = []
    for part in parts:
        # The attempts of a part count the lease that is being given.
        if not part.attempts or max(part.attempts) <= limit:
            alive.append(part)
            continue
        for start, end in _alike(part, limit):
            if exhausted(part.attempts_at(start) - 1, limit):
                dead += [Dead(part.run, row, _exhaustion(image, part, row, now)) for row in range(start, end)]
            else:
                alive.append(part.cut(start, end))
    return alive, dead


def _alike(part: Part, limit: int) -> Iterator[tuple[int, int]]:
    """The rows of a part as ranges that are all dead or all alive."""
    start, stop = part.start, part.start + part.count
    for row in range(part.start + 1, stop):
        if (part.attempts_at(row) > limit) != (part.attempts_at(start) > limit):
            yield start, row
            start = row
    yield start, stop


def _exhaustion(image: Image, part: Part, row: int, now: int) -> Death:
    lost = part.lost
    return Death(
        topic=image.topic.name,
        reason=EXHAUSTED,
        attempts=part.attempts_at(row) - 1,
        at=now,
        due=part.due_at(row),
        first_lease=part.first_at(row),
        last_lease=lost.granted if lost else part.run.last_at(row),
        consumer=lost.consumer if lost else "",
    )


def bury(image: Image, graves: Image, dead: Sequence[Dead], now: int, batch: Batch) -> None:
    """Move rows that no lease holds any more to the dead-letter topic."""
    if image.outbox is not None:
        spans = [IdSpan(count=len(dead), ids=[one.run.id_at(one.row) for one in dead])]
        image.outbox.settled(DEAD_LETTERED, image.topic.name, consumer="", lease_id=0, spans=spans)
    _move(image, graves, dead, now, batch)


def _move(image: Image, graves: Image, dead: Sequence[Dead], now: int, batch: Batch) -> None:
    arrivals = Arrivals(graves, now, batch)
    taken = arrivals.taken([one.run.id_at(one.row) for one in dead])
    leaving: dict[bytes, tuple[Run, int]] = {}
    for one in dead:
        run, row = one.run, one.row
        old_id = run.id_at(row)
        new_id = free_id(old_id, now, taken)
        headers = run.record.headers[row] if run.record.headers else b""
        arrivals.add(
            image, run, row, new_id, one.death.headers(headers, renamed_from="" if new_id == old_id else old_id)
        )
        leaving[run.key] = (run, leaving.get(run.key, (run, 0))[1] | 1 << row)
    for run, rows in leaving.values():
        image.remove_rows(batch, run, rows)
    arrivals.enter()


def reject(
    settlement: Settlement, graves: Image, reason: str, handed_us: Sequence[int], now: int, batch: Batch
) -> None:
    """Move the held rows to the dead-letter topic."""
    image, lease = settlement.image, settlement.lease
    if lease is None or not settlement.held:
        return
    settlement.tell(DEAD_LETTERED, handed_us=handed_us)
    dead = [
        Dead(part.run, row, _rejection(image, lease, part, row, reason, now))
        for part, rows in settlement.parts()
        for row in masks.rows(rows)
    ]
    _move(image, graves, dead, now, batch)
    image.drop_from_lease(batch, lease, settlement.held, gone=True)


def _rejection(image: Image, lease: Lease, part: Part, row: int, reason: str, now: int) -> Death:
    return Death(
        topic=image.topic.name,
        reason=reason,
        attempts=part.attempts_at(row),
        at=now,
        due=part.due_at(row),
        first_lease=part.first_at(row) or lease.granted,
        last_lease=lease.granted,
        consumer=lease.consumer,
    )


def redrive(image: Image, goal: Image, ids: Sequence[str], now: int, batch: Batch) -> Outcomes:
    """Move messages that nobody holds to another topic, as they were before they died."""
    outcomes = Outcomes(len(ids))
    found = image.locate(ids)
    before = [id_before(one, _headers(at)) for one, at in zip(ids, found, strict=True)]
    arrivals = Arrivals(goal, now, batch)
    taken = arrivals.taken(before)
    left: dict[str, list[str]] = {}
    leaving = Leaving()
    for item, at in enumerate(found):
        # An id that stands twice in the batch is gone the second time.
        if at is not None and leaving.has(*at):
            at = None
        standing, holding = image.standing(*at) if at is not None else (None, None)
        code = decide_redrive(standing, now=now)
        if code is Code.OK and taken(before[item]):
            code = Code.ID_TAKEN
        if at is None or code is not Code.OK:
            outcomes.codes[item] = code
            continue
        arrivals.add(image, *at, before[item], without_history(_headers(at)))
        left.setdefault(str(at[0].record.owner), []).append(ids[item])
        leaving.add(*at, holding)
    leaving.leave(image, batch, keep_bodies=False)
    if image.outbox is not None:
        for owner, gone in left.items():
            image.outbox.changed(CANCELLED, image.topic.name, owner=owner, ids=gone)
    arrivals.enter()
    return outcomes


def _headers(at: tuple[Run, int] | None) -> bytes:
    return bytes(at[0].record.headers[at[1]]) if at is not None and at[0].record.headers else b""


def put_back(image: Image, now: int, batch: Batch) -> None:
    """Put the rows of leases that have ended where the topic's back-off says; those that need not wait stay lost."""
    draft = Draft()
    settings = image.topic.settings
    for lease, expires in image.leases.take_ended(now):
        gone = 0
        times: list[int] = []
        spans = image.spans(lease, lease.terms[expires])
        for part in lease.parts:
            waiting = 0
            for row in masks.rows(part.in_run(lease.terms[expires])):
                attempts = part.attempts_at(row)
                spent = exhausted(attempts, settings.max_attempts)
                delay = 0 if spent else expiry_delay_ms(settings, part.run.id_at(row), attempts)
                times.append(expires + delay)
                if delay:
                    waiting |= 1 << row
                    new = image.row(part.run, row, ts=expires + delay, attempts=attempts)
                    new.first, new.last = part.first_at(row) or lease.granted, lease.granted
                    draft.add(image.bucket_of(part.run, new.id), part.run.owner, new)
            if waiting:
                gone |= part.to_lease(waiting)
                image.remove_rows(batch, part.run, waiting, keep_bodies=True)
        if image.outbox is not None and expires not in lease.reported:
            image.outbox.settled(
                EXPIRED,
                image.topic.name,
                consumer=lease.consumer,
                lease_id=lease.id,
                spans=spans,
                expires=expires,
                ts=times,
            )
        _close_ended(image, lease, expires, gone, batch)
    image.add_rows(batch, draft)


def _close_ended(image: Image, lease: Lease, expires: int, gone: int, batch: Batch) -> None:
    image.drop_from_lease(batch, lease, gone, gone=True)
    if expires not in lease.terms:
        return
    image.offer_lost(lease, expires)
    if image.outbox is not None and expires not in lease.reported:
        lease.reported.add(expires)
        image.write_terms(batch, lease)
