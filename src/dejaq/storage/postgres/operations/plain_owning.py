"""Move, edit and cancel in one statement, when every message may be changed; otherwise `owning` decides row by row."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import compress
from operator import itemgetter, not_

from dejaq.domain.batch import ChangeName, Outcomes
from dejaq.domain.changes import Cancel, Edit, Edits
from dejaq.errors import DejaqError
from dejaq.storage.outbox import CANCELLED, EDITED, MOVED
from dejaq.storage.postgres.keys import looks_generated
from dejaq.storage.postgres.operations.change import TopicTransaction
from dejaq.storage.postgres.operations.creating import BatchCounters, put_session, take_session
from dejaq.storage.postgres.operations.leasing import expire_leases


class NotAll(DejaqError):
    """Not every message may be changed, or some were changed before: nothing is changed, and the rows must be read."""


def is_plain(change: Edit | Cancel) -> bool:
    """Whether every message of a change is expected to be changed, without its content being read."""
    ids = change.edits.ids if isinstance(change, Edit) else change.ids
    # A message that is named twice is changed twice. The server accepts no zero byte, which no id has. The text of a
    # generated id may also be a natural id, which then comes first.
    if len(set(ids)) < len(ids) or any("\x00" in one or looks_generated(one) for one in ids):
        return False
    if isinstance(change, Cancel):
        return True
    edits = change.edits
    # Headers are merged with those of the message, and the journal gets the body that a row leaves as it is.
    return not (edits.large or edits.headers is not None or (edits.bodies is not None and None in edits.bodies))


async def edit_all(change: TopicTransaction, owner: str, edits: Edits) -> Outcomes:
    """Change all messages; raises `NotAll`."""
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
    _leave(change, owner, list(map(itemgetter("due_ts"), rows)), list(map(itemgetter("held"), rows)))
    rows.sort(key=itemgetter("place"))
    ts = list(map(itemgetter("ts"), rows))
    change.arrived(ts, owner, held=False)
    if change.outbox is not None:
        moved = edits.bodies is None and edits.priorities is None
        change.outbox.changed(
            MOVED if moved else EDITED,
            change.topic.name,
            owner=owner,
            ids=list(edits.ids),
            ts=ts,
            priorities=[] if moved else list(map(itemgetter("priority"), rows)),
            bodies=[body for body in edits.bodies or () if body is not None],
        )
    return Outcomes(len(edits.ids))


async def cancel_all(
    change: TopicTransaction,
    owner: str,
    ids: Sequence[str],
    versions: Sequence[int | None] | None,
    name: ChangeName | None,
) -> Outcomes:
    """Remove all messages; raises `NotAll`."""
    if name is not None:
        used = await take_session(change, name.session)
        counters = BatchCounters(name.numbers)
        if counters.seen(used):
            raise NotAll
        used.check_room(counters.gaps)
        counters.use(used, [(0, len(ids))])
        await put_session(change, name.session, used)
    await expire_leases(change)
    rows = await change.link.fetch("remove_all", change.topic.number, ids, versions or (), owner, change.now)
    if len(rows) < len(ids):
        raise NotAll
    _leave(change, owner, list(map(itemgetter("ts"), rows)), list(map(itemgetter("held"), rows)))
    if change.outbox is not None:
        change.outbox.changed(CANCELLED, change.topic.name, owner=owner, ids=list(ids))
    return Outcomes(len(ids))


def _leave(change: TopicTransaction, owner: str, ts: list[int], held: list[bool]) -> None:
    if any(held):
        change.left(list(compress(ts, held)), owner, held=True)
        ts = list(compress(ts, map(not_, held)))
    change.left(ts, owner, held=False)
