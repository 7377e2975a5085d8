"""Move, edit and cancel in one statement, when every message may be changed; otherwise `owning` decides row by row.

A move or a cancellation is one statement with its record and its counts. The record of an edit has times and priorities
that the messages had before, so its statement is followed by another one in the same transaction.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import compress
from operator import itemgetter, not_

import asyncpg

from dejaq.domain.batch import Outcomes
from dejaq.domain.changes import Cancel, Edit, Edits
from dejaq.errors import DejaqError
from dejaq.storage.outbox import CANCELLED, EDITED, MOVED
from dejaq.storage.postgres.keys import looks_generated
from dejaq.storage.postgres.operations.change import TopicTransaction
from dejaq.storage.postgres.operations.counting import LISTED_MIN, WrittenSizes
from dejaq.storage.postgres.operations.leasing import expire_leases


class NotAll(DejaqError):
    """Not every message may be changed, or some were changed before: nothing is changed, and the rows must be read."""


def is_plain(change: Edit | Cancel) -> bool:
    """Whether every message of a change is expected to be changed, without its content being read."""
    if isinstance(change, Cancel) and change.name is not None:
        return False
    ids = change.edits.ids if isinstance(change, Edit) else change.ids
    # A message that is named twice is changed twice. The server accepts no zero byte, which no id has. The text of a
    # generated id may also be a natural id, which then comes first.
    if not ids or len(set(ids)) < len(ids) or any("\x00" in one or looks_generated(one) for one in ids):
        return False
    if isinstance(change, Cancel):
        return True
    edits = change.edits
    if _only_moves(edits):
        return edits.headers is None and edits.ts is not None and None not in edits.ts
    # Headers are merged with those of the message, and the journal gets the body that a row leaves as it is.
    return not (edits.large or edits.headers is not None or (edits.bodies is not None and None in edits.bodies))


def is_one_statement(change: Edit | Cancel) -> bool:
    """Whether a plain change is a move or a cancellation."""
    return isinstance(change, Cancel) or _only_moves(change.edits)


def _only_moves(edits: Edits) -> bool:
    return edits.bodies is None and edits.priorities is None


async def edit_all(change: TopicTransaction, owner: str, edits: Edits) -> Outcomes:
    """Change the bodies or priorities of all messages, and their times if they are given; raises `NotAll`."""
    await expire_leases(change)
    rows = await change.link.fetch(
        "edit_all",
        change.topic.number,
        edits.ids,
        edits.ts or (),
        edits.priorities or (),
        edits.bodies or (),
        edits.versions or (),
        owner,
        change.now,
    )
    if len(rows) < len(edits.ids):
        raise NotAll
    rows.sort(key=itemgetter(0))
    _, ts, before, held, priorities = zip(*rows, strict=True)
    if edits.ts is not None or any(held):
        _leave(change, owner, before, held)
        change.arrived(ts, owner, held=False)
    if change.outbox is not None:
        change.outbox.changed(
            EDITED,
            change.topic.name,
            owner=owner,
            ids=list(edits.ids),
            ts=ts,
            priorities=priorities,
            bodies=[body for body in edits.bodies or () if body is not None],
        )
    return Outcomes(len(edits.ids))


async def move_all(change: TopicTransaction, owner: str, edits: Edits) -> WrittenSizes:
    """Move all messages in one statement that may commit by itself; raises `NotAll`."""
    # A plain move has a time for every message.
    ts = [one for one in edits.ts or () if one is not None]
    if change.outbox is not None:
        change.outbox.changed(MOVED, change.topic.name, owner=owner, ids=list(edits.ids), ts=ts)
    return await _run(change, "move_all", edits.ids, edits.versions or (), ts, owner)


async def cancel_all(
    change: TopicTransaction, owner: str, ids: Sequence[str], versions: Sequence[int | None] | None
) -> WrittenSizes:
    """Remove all messages in one statement that may commit by itself; raises `NotAll`."""
    if change.outbox is not None:
        change.outbox.changed(CANCELLED, change.topic.name, owner=owner, ids=list(ids))
    return await _run(change, "cancel_all", ids, versions or (), owner)


async def _run(change: TopicTransaction, statement: str, *columns: object) -> WrittenSizes:
    link = change.link
    entry = change.outbox.take(change.now, change.context.principal) if change.outbox is not None else None
    records = [entry[1]] if entry is not None else []
    link.changes += 1
    own = (change.origin, records, link.shard, LISTED_MIN - 1, link.writer, link.changes)
    try:
        listed: int = await link.value(statement, change.topic.number, *columns, *own)
    except asyncpg.InvalidTextRepresentationError:
        raise NotAll from None
    return WrittenSizes(sum(map(len, records)), listed)


def _leave(change: TopicTransaction, owner: str, ts: Sequence[int], held: Sequence[bool]) -> None:
    if any(held):
        change.left(list(compress(ts, held)), owner, held=True)
        ts = list(compress(ts, map(not_, held)))
    change.left(ts, owner, held=False)
