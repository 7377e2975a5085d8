"""What an owner may do to its messages: change them, cancel them, and ask who holds them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from dejaq.domain.batch import Outcomes
from dejaq.domain.transitions import decide_by_owner
from dejaq.errors import Code
from dejaq.storage.base import Edits, Holder
from dejaq.storage.outbox import CANCELLED, EDITED, MOVED, Outbox
from dejaq.storage.rocksdb.database import Batch
from dejaq.storage.rocksdb.image import Draft, Image, Row
from dejaq.storage.rocksdb.large import LARGE
from dejaq.storage.rocksdb.lease import Lease, Part
from dejaq.storage.rocksdb.run import Run

Holding = tuple[Lease, Part, int]
Value = TypeVar("Value")


class Leaving:
    """Rows that leave their runs and the leases they were lost from, gathered so that each run is written once."""

    def __init__(self) -> None:
        self._rows: dict[bytes, int] = {}
        self._runs: dict[bytes, Run] = {}
        self._lost: list[Holding] = []

    def has(self, run: Run, row: int) -> bool:
        """Whether a row is among them."""
        return bool(self._rows.get(run.key, 0) >> row & 1)

    def add(self, run: Run, row: int, holding: Holding | None) -> None:
        """Add a row and the lease that it was lost from."""
        self._runs[run.key] = run
        self._rows[run.key] = self._rows.get(run.key, 0) | 1 << row
        if holding is not None:
            self._lost.append(holding)

    def leave(self, image: Image, batch: Batch, *, keep_bodies: bool) -> None:
        """Take them out."""
        for key, run in self._runs.items():
            image.remove_rows(batch, run, self._rows[key], keep_bodies=keep_bodies)
        for lease, _, row in self._lost:
            image.drop_from_lease(batch, lease, 1 << row, gone=True)


Located = list[tuple[Run, int] | None]


def decide(
    image: Image,
    owner: str,
    ids: Sequence[str],
    now: int,
    versions: Sequence[int | None] | None = None,
    *,
    edits: Edits | None = None,
    located: Located | None = None,
) -> Outcomes:
    """Whether each message may be changed or cancelled; nothing is done yet. `located` is where they are, if known."""
    outcomes = Outcomes(len(ids))
    for item, at in enumerate(image.locate(ids) if located is None else located):
        code, _ = _decide(image, at, owner, now, versions[item] if versions is not None else None)
        if code is Code.OK and edits is not None and _body_missing(image, edits, item):
            code = Code.BODY_MISSING
        if code is not Code.OK:
            outcomes.codes[item] = code
    return outcomes


def edit(image: Image, owner: str, edits: Edits, now: int, batch: Batch, *, located: Located | None = None) -> Outcomes:
    """Move each message that may be changed into a new run, with its new values."""
    if image.outbox is not None:
        image.lapse(now, batch)
    outcomes = Outcomes(len(edits.ids))
    apart: dict[int, bytes] = {}
    moving: dict[tuple[bytes, int], tuple[Run, Row]] = {}
    leaving = Leaving()
    for item, at in enumerate(image.locate(edits.ids) if located is None else located):
        version = edits.versions[item] if edits.versions is not None else None
        if at is not None and (at[0].key, at[1]) in moving:
            # Changed earlier in this batch: its new version is known to nobody yet.
            if version is not None:
                outcomes.codes[item] = Code.VERSION_CONFLICT
            elif _body_missing(image, edits, item):
                outcomes.codes[item] = Code.BODY_MISSING
            else:
                _apply(image, edits, item, moving[at[0].key, at[1]][1], apart, batch)
            continue
        code, holding = _decide(image, at, owner, now, version)
        if code is Code.OK and _body_missing(image, edits, item):
            code = Code.BODY_MISSING
        if code is not Code.OK or at is None:
            outcomes.codes[item] = code
            continue
        run, row = at
        attempts = holding[1].attempts_at(row) if holding else run.attempts_at(row)
        ts = holding[0].term_of(holding[2]) if holding else run.record.ts[row]
        new = image.row(run, row, ts=ts, attempts=attempts)
        if holding:
            new.first, new.last = holding[1].first_at(row) or holding[0].granted, holding[0].granted
        _apply(image, edits, item, new, apart, batch)
        moving[run.key, row] = (run, new)
        leaving.add(run, row, holding)
    leaving.leave(image, batch, keep_bodies=True)
    draft = Draft()
    for run, new in moving.values():
        draft.add(image.bucket_of(run, new.id), run.owner, new)
    image.add_rows(batch, draft)
    if image.outbox is not None:
        rows = [row for _, row in moving.values()]
        bodies = [_body(image, row, apart) for row in rows] if edits.bodies is not None else []
        _tell_edited(image, image.outbox, owner, edits, rows, bodies)
    return outcomes


def _body_missing(image: Image, edits: Edits, item: int) -> bool:
    body = edits.bodies[item] if edits.large and edits.bodies is not None else None
    return body is not None and image.apart.missing(body)


def _body(image: Image, row: Row, apart: dict[int, bytes]) -> bytes:
    """The body of a changed row, which may not be written yet."""
    if not 0 < row.apart < LARGE:
        return row.body
    return apart[row.apart] if row.apart in apart else image.apart.get(row.apart)


def _tell_edited(image: Image, outbox: Outbox, owner: str, edits: Edits, rows: list[Row], bodies: list[bytes]) -> None:
    """A change of the time alone is a move."""
    moved = edits.bodies is None and edits.priorities is None and edits.headers is None
    outbox.changed(
        MOVED if moved else EDITED,
        image.topic.name,
        owner=owner,
        ids=[row.id for row in rows],
        ts=[row.ts for row in rows],
        priorities=[] if moved else [row.priority for row in rows],
        bodies=bodies,
    )


def _apply(image: Image, edits: Edits, item: int, row: Row, apart: dict[int, bytes], batch: Batch) -> None:
    """Give a row the values of one item; a body that goes apart is also put into `apart`, by its number."""
    row.ts = _value(edits.ts, item, row.ts)
    row.priority = _value(edits.priorities, item, row.priority)
    row.headers = _value(edits.headers, item, row.headers)
    body = edits.bodies[item] if edits.bodies is not None else None
    if body is not None:
        if row.apart:
            image.apart.drop(batch, row.apart)
        row.body, row.apart = image.apart.put(batch, body)
        if row.apart:
            apart[row.apart] = body


def cancel(
    image: Image,
    owner: str,
    ids: Sequence[str],
    now: int,
    batch: Batch,
    *,
    versions: Sequence[int | None] | None = None,
    located: Located | None = None,
) -> Outcomes:
    """Remove each message that may be cancelled."""
    if image.outbox is not None:
        image.lapse(now, batch)
    outcomes = Outcomes(len(ids))
    leaving = Leaving()
    for item, at in enumerate(image.locate(ids) if located is None else located):
        # An id that stands twice in the batch is gone the second time.
        standing = at if at is not None and not leaving.has(*at) else None
        code, holding = _decide(image, standing, owner, now, versions[item] if versions is not None else None)
        if code is not Code.OK or standing is None:
            outcomes.codes[item] = code
            continue
        leaving.add(*standing, holding)
    leaving.leave(image, batch, keep_bodies=False)
    if image.outbox is not None:
        cancelled = [message_id for item, message_id in enumerate(ids) if item not in outcomes.codes]
        image.outbox.changed(CANCELLED, image.topic.name, owner=owner, ids=cancelled)
    return outcomes


def holders(image: Image, ids: Sequence[str], now: int) -> list[Holder | None]:
    """Who holds the live lease of each id."""
    found: list[Holder | None] = []
    for at in image.locate(ids):
        holding = image.standing(*at)[1] if at is not None else None
        if at is None or holding is None or holding[0].term_of(holding[2]) <= now:
            found.append(None)
        else:
            lease, part, lease_row = holding
            found.append(Holder(lease.consumer, lease.id, lease_row, part.due_at(at[1])))
    return found


def _decide(
    image: Image, at: tuple[Run, int] | None, owner: str, now: int, version: int | None
) -> tuple[Code, Holding | None]:
    if at is None:
        return decide_by_owner(None, owner=owner, now=now), None
    standing, holding = image.standing(*at)
    return decide_by_owner(standing, owner=owner, now=now, version=version), holding


def _value(column: Sequence[Value | None] | None, item: int, present: Value) -> Value:
    value = column[item] if column is not None else None
    return present if value is None else value
