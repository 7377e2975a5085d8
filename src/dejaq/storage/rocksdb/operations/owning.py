"""The operations of an owner on its messages: edit them, cancel them, and find their holders."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import numpy as np

from dejaq.domain.batch import ChangeName, Outcomes
from dejaq.domain.changes import Edits
from dejaq.domain.headers import edited_headers
from dejaq.domain.transitions import decide_by_owner
from dejaq.errors import Code
from dejaq.storage.base import Holder
from dejaq.storage.outbox import CANCELLED, EDITED, MOVED, Outbox
from dejaq.storage.rocksdb.bodies.large import LARGE
from dejaq.storage.rocksdb.engine.database import Batch
from dejaq.storage.rocksdb.operations.far_rows import FarColumns, decide_far, remove_far, write_far
from dejaq.storage.rocksdb.timeline.draft import Draft, DraftRow, draft_of
from dejaq.storage.rocksdb.timeline.far.far_rows import NO_ROWS, FarRows
from dejaq.storage.rocksdb.timeline.far.finder import find_far
from dejaq.storage.rocksdb.timeline.lease import LeasePart, LeaseState
from dejaq.storage.rocksdb.timeline.run import Run
from dejaq.storage.rocksdb.timeline.topic_state import TopicState

Holding = tuple[LeaseState, LeasePart, int]
Value = TypeVar("Value")


class Leaving:
    """Rows that leave their runs and their expired leases, gathered so that each run is written once."""

    def __init__(self) -> None:
        self._rows: dict[bytes, int] = {}
        self._runs: dict[bytes, Run] = {}
        self._lost: list[Holding] = []

    def has(self, run: Run, row: int) -> bool:
        """Whether it contains a row."""
        return bool(self._rows.get(run.key, 0) >> row & 1)

    def add(self, run: Run, row: int, holding: Holding | None) -> None:
        """Add a row and its expired lease."""
        self._runs[run.key] = run
        self._rows[run.key] = self._rows.get(run.key, 0) | 1 << row
        if holding is not None:
            self._lost.append(holding)

    def leave(self, state: TopicState, batch: Batch, *, keep_bodies: bool) -> None:
        """Remove the rows from their runs and leases."""
        for key, run in self._runs.items():
            state.remove_rows(batch, run, self._rows[key], keep_bodies=keep_bodies)
        for lease, _, row in self._lost:
            state.drop_from_lease(batch, lease, 1 << row, gone=True)


Located = list[tuple[Run, int] | None]


def decide(
    state: TopicState,
    owner: str,
    ids: Sequence[str],
    now: int,
    versions: Sequence[int | None] | None = None,
    *,
    edits: Edits | None = None,
    located: Located | None = None,
) -> Outcomes:
    """Whether each message may be changed or cancelled; nothing is changed yet.

    `located` has their places, if known.
    """
    outcomes = Outcomes(len(ids))
    for item, at in enumerate(state.locate(ids) if located is None else located):
        code, _ = _decide(state, at, owner, now, versions[item] if versions is not None else None)
        if code is Code.OK and edits is not None and at is not None:
            code = _decide_values(state, edits, item, _headers(at))
        if code is not Code.OK:
            outcomes.codes[item] = code
    return outcomes


def edit(
    state: TopicState, owner: str, edits: Edits, now: int, batch: Batch, *, located: Located | None = None
) -> Outcomes:
    """Move each message that may be changed into a new run, with its new values."""
    if state.outbox is not None:
        state.expire_leases(now, batch)
    outcomes = Outcomes(len(edits.ids))
    small = _is_small(state, edits)
    far, rest = _divide(state, edits.ids, located) if small else (NO_ROWS, _all(state, edits.ids, located))
    _edit_far(state, owner, edits, far, now, batch, outcomes)
    apart: dict[int, bytes] = {}
    moving: dict[tuple[bytes, int], tuple[Run, DraftRow]] = {}
    leaving = Leaving()
    for item, at in rest:
        version = edits.versions[item] if edits.versions is not None else None
        if at is not None and (at[0].key, at[1]) in moving:
            # The message was changed earlier in this batch: no caller can know its new version yet.
            new = moving[at[0].key, at[1]][1]
            code = Code.VERSION_CONFLICT if version is not None else _decide_values(state, edits, item, new.headers)
            if code is Code.OK:
                _apply(state, edits, item, new, apart, batch)
            else:
                outcomes.codes[item] = code
            continue
        code, holding = _decide(state, at, owner, now, version)
        if code is Code.OK and at is not None:
            code = _decide_values(state, edits, item, _headers(at))
        if code is not Code.OK or at is None:
            outcomes.codes[item] = code
            continue
        run, row = at
        attempts = holding[1].attempts_at(row) if holding else run.attempts_at(row)
        ts = holding[0].term_of(holding[2]) if holding else run.record.ts[row]
        new = draft_of(run, row, ts=ts, attempts=attempts)
        if holding:
            new.first, new.last = holding[1].first_at(row) or holding[0].granted, holding[0].granted
        _apply(state, edits, item, new, apart, batch)
        moving[run.key, row] = (run, new)
        leaving.add(run, row, holding)
    leaving.leave(state, batch, keep_bodies=True)
    draft = Draft()
    for run, new in moving.values():
        draft.add(state.bucket_of(run, new.id), run.owner, new)
    state.add_rows(batch, draft)
    if state.outbox is not None:
        rows = [row for _, row in moving.values()]
        _record_edited(
            state,
            state.outbox,
            owner,
            edits,
            ids=[row.id for row in rows],
            ts=[row.ts for row in rows],
            priorities=[row.priority for row in rows],
            bodies=[_body(state, row, apart) for row in rows] if edits.bodies is not None else [],
        )
    return outcomes


def _all(state: TopicState, ids: Sequence[str], located: Located | None) -> list[tuple[int, tuple[Run, int] | None]]:
    return list(enumerate(state.locate(ids) if located is None else located))


def _divide(
    state: TopicState, ids: Sequence[str], located: Located | None
) -> tuple[FarRows, list[tuple[int, tuple[Run, int] | None]]]:
    """The rows that are changed as columns; and the places of the others, with the positions of their ids.

    An id that occurs twice is changed in order, which columns cannot do.
    """
    if located is not None or len(set(ids)) < len(ids) or not (far := find_far(state, ids)):
        return NO_ROWS, _all(state, ids, located)
    if len(far) == len(ids):
        return far, []
    known = set(far.items.tolist())
    items = [item for item in range(len(ids)) if item not in known]
    return far, list(zip(items, state.locate([ids[item] for item in items]), strict=True))


def _is_small(state: TopicState, edits: Edits) -> bool:
    """Whether every new body is stored with its row."""
    sizes = (len(body) for body in edits.bodies or () if body is not None)
    return not edits.large and max(sizes, default=0) <= state.body_store.inline_bytes_max


def _edit_far(
    state: TopicState, owner: str, edits: Edits, far: FarRows, now: int, batch: Batch, outcomes: Outcomes
) -> None:
    """Write the rows that may be changed again, with their new values."""
    rows, refused = decide_far(state, far, owner, now, edits.versions)
    outcomes.codes.update(refused)
    headers: Sequence[bytes] = rows.headers
    if edits.headers is not None:
        items = rows.items.tolist()
        present = rows.headers or [b""] * len(items)
        changed = [edited_headers(old, edits.headers[item]) for item, old in zip(items, present, strict=True)]
        good = [at for at, new in enumerate(changed) if new is not None]
        headers = [new for new in changed if new is not None]
        if len(good) < len(items):
            outcomes.codes.update({items[at]: Code.INVALID_HEADERS for at, new in enumerate(changed) if new is None})
            rows = rows.picked(np.array(good, dtype=np.int64))
    if not len(rows):
        return
    items = rows.items.tolist()
    columns = FarColumns(
        ids=[edits.ids[item] for item in items],
        hashes=rows.hashes,
        ts=rows.times if edits.ts is None else np.array(_values(edits.ts, items, rows.times.tolist()), dtype=np.int64),
        bodies=_values(edits.bodies, items, rows.bodies),
        priorities=_values(edits.priorities, items, rows.priorities or [0] * len(items)),
        headers=headers,
        buckets=rows.buckets(state.topic.settings.buckets),
    )
    remove_far(state, batch, rows)
    write_far(state, batch, owner, columns)
    if state.outbox is not None:
        _record_edited(
            state,
            state.outbox,
            owner,
            edits,
            ids=columns.ids,
            ts=columns.ts.tolist(),
            priorities=columns.priorities or [0] * len(items),
            bodies=columns.bodies if edits.bodies is not None else [],
        )


def _values(column: Sequence[Value | None] | None, items: Sequence[int], present: Sequence[Value]) -> Sequence[Value]:
    """The new value of each of the items, or the present one of a row that keeps it."""
    if column is None:
        return present
    new = [column[item] for item in items]
    return [old if one is None else one for one, old in zip(new, present, strict=True)]


def _decide_values(state: TopicState, edits: Edits, item: int, headers: bytes) -> Code:
    """Whether a message may have its new values: a large body must exist, and the headers must not exceed a limit."""
    if edits.headers is not None and edited_headers(headers, edits.headers[item]) is None:
        return Code.INVALID_HEADERS
    body = edits.bodies[item] if edits.large and edits.bodies is not None else None
    return Code.BODY_MISSING if body is not None and state.body_store.missing(body) else Code.OK


def _headers(at: tuple[Run, int]) -> bytes:
    run, row = at
    return bytes(run.record.headers[row]) if run.record.headers else b""


def _body(state: TopicState, row: DraftRow, apart: dict[int, bytes]) -> bytes:
    """The body of a changed row, which may not be written yet."""
    if not 0 < row.apart < LARGE:
        return row.body
    return apart[row.apart] if row.apart in apart else state.body_store.get(row.apart)


def _record_edited(
    state: TopicState,
    outbox: Outbox,
    owner: str,
    edits: Edits,
    *,
    ids: Sequence[str],
    ts: Sequence[int],
    priorities: Sequence[int],
    bodies: Sequence[bytes],
) -> None:
    """A change of the time alone is a move."""
    moved = edits.bodies is None and edits.priorities is None and edits.headers is None
    outbox.changed(
        MOVED if moved else EDITED,
        state.topic.name,
        owner=owner,
        ids=ids,
        ts=ts,
        priorities=[] if moved else priorities,
        bodies=bodies,
        mask=state.database.values.mask(state.topic.number),
    )


def _apply(state: TopicState, edits: Edits, item: int, row: DraftRow, apart: dict[int, bytes], batch: Batch) -> None:
    """Give a row the values of one item; a separately stored body is also put into `apart`, by its number."""
    row.ts = _value(edits.ts, item, row.ts)
    row.priority = _value(edits.priorities, item, row.priority)
    if edits.headers is not None:
        row.headers = edited_headers(row.headers, edits.headers[item]) or b""
    body = edits.bodies[item] if edits.bodies is not None else None
    if body is not None:
        if row.apart:
            state.body_store.drop(batch, row.apart)
        row.body, row.apart = state.body_store.put(batch, body)
        if row.apart:
            apart[row.apart] = body


def cancel(
    state: TopicState,
    owner: str,
    ids: Sequence[str],
    now: int,
    batch: Batch,
    *,
    versions: Sequence[int | None] | None = None,
    located: Located | None = None,
    name: ChangeName | None = None,
) -> Outcomes:
    """Remove each message that may be cancelled; messages that were cancelled under the name before are OK."""
    done = _done_before(state, name) if name is not None else frozenset()
    if state.outbox is not None:
        state.expire_leases(now, batch)
    outcomes = Outcomes(len(ids))
    far, rest = _divide(state, ids, located)
    if done and len(far):
        far = far.picked(
            np.array([at for at, item in enumerate(far.items.tolist()) if item not in done], dtype=np.int64)
        )
    allowed, outcomes.codes = decide_far(state, far, owner, now, versions)
    if len(allowed):
        remove_far(state, batch, allowed)
    leaving = Leaving()
    for item, at in rest:
        if item in done:
            continue
        # An id that occurs twice in the batch is gone the second time.
        standing = at if at is not None and not leaving.has(*at) else None
        code, holding = _decide(state, standing, owner, now, versions[item] if versions is not None else None)
        if code is not Code.OK or standing is None:
            outcomes.codes[item] = code
            continue
        leaving.add(*standing, holding)
    leaving.leave(state, batch, keep_bodies=False)
    gone = [item for item in range(len(ids)) if item not in outcomes.codes and item not in done]
    if name is not None and gone:
        rows = [(name.numbers[item], name.numbers[item] + 1) for item in gone]
        state.sequences.use(name.session, rows, now, batch)
    if state.outbox is not None:
        cancelled = [ids[item] for item in gone]
        state.outbox.changed(CANCELLED, state.topic.name, owner=owner, ids=cancelled)
    return outcomes


def _done_before(state: TopicState, name: ChangeName) -> frozenset[int]:
    """The rows that were cancelled under the name; raises LIMIT_EXCEEDED, before any change, when there is no room."""
    done = frozenset(state.sequences.of(name.session).rows_of(name.numbers))
    if len(done) < len(name.numbers):
        state.sequences.check_room(name.session)
    return done


def holders(state: TopicState, ids: Sequence[str], now: int) -> list[Holder | None]:
    """The holder of the live lease of each id."""
    found: list[Holder | None] = []
    for at in state.locate(ids):
        holding = state.standing(*at)[1] if at is not None else None
        if at is None or holding is None or holding[0].term_of(holding[2]) <= now:
            found.append(None)
        else:
            lease, part, lease_row = holding
            found.append(Holder(lease.consumer, lease.id, lease_row, part.due_at(at[1])))
    return found


def _decide(
    state: TopicState, at: tuple[Run, int] | None, owner: str, now: int, version: int | None
) -> tuple[Code, Holding | None]:
    if at is None:
        return decide_by_owner(None, owner=owner, now=now), None
    standing, holding = state.standing(*at)
    return decide_by_owner(standing, owner=owner, now=now, version=version), holding


def _value(column: Sequence[Value | None] | None, item: int, present: Value) -> Value:
    value = column[item] if column is not None else None
    return present if value is None else value
