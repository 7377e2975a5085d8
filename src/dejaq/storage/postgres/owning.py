"""Move, edit and cancel: the owner's changes, decided row by row while the rows are locked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import asyncpg

from dejaq.domain.batch import Outcomes
from dejaq.domain.topic import Topic
from dejaq.domain.transitions import Standing, decide_by_owner
from dejaq.errors import Code
from dejaq.storage.base import Edits, Holder
from dejaq.storage.outbox import CANCELLED, EDITED, MOVED
from dejaq.storage.postgres.change import Change
from dejaq.storage.postgres.database import Link
from dejaq.storage.postgres.keys import MARK, LeaseKeys, candidates, id_of
from dejaq.storage.postgres.leasing import lapse
from dejaq.storage.postgres.uploading import missing

T = TypeVar("T")


@dataclass(slots=True)
class _Owned:
    """A message as it stands and as it will."""

    found: asyncpg.Record
    ts: int
    consumer: str
    priority: int
    body: bytes | None = None
    headers: bytes | None = None
    changed: bool = False

    @classmethod
    def of(cls, found: asyncpg.Record) -> _Owned:
        return cls(found, ts=found["ts"], consumer=found["consumer"], priority=found["priority"])

    def decide(self, owner: str, now: int, version: int | None) -> Code:
        # What this call has changed already has a version that nobody can have asked for.
        current = -1 if self.changed else self.found["version"]
        standing = Standing(self.ts, self.found["owner"], self.consumer, current)
        return decide_by_owner(standing, owner=owner, now=now, version=version)


async def _take(change: Change, ids: Sequence[str], *, bodies: bool) -> dict[str, _Owned]:
    query = "take_owned" if bodies else "take_owned_without_bodies"
    records = await change.link.fetch(query, change.topic.number, candidates(dict.fromkeys(ids)))
    return {record["id"]: _Owned.of(record) for record in records}


def _find(owned: dict[str, _Owned], message_id: str) -> str | None:
    """The key of an id: a natural one comes before a generated one of the same text."""
    return next((key for key in (message_id, message_id + MARK) if key in owned), None)


async def edit(change: Change, owner: str, edits: Edits) -> Outcomes:
    """Change what the owner may change; a changed message has a new version and no lock."""
    await lapse(change)
    owned = await _take(change, edits.ids, bodies=edits.bodies is not None)
    gone = await missing(change, edits.bodies) if edits.large and edits.bodies is not None else frozenset()
    outcomes = Outcomes(len(edits.ids))
    for row, message_id in enumerate(edits.ids):
        key = _find(owned, message_id)
        version = _cell(edits.versions, row)
        code = owned[key].decide(owner, change.now, version) if key is not None else Code.NOT_FOUND
        if code is Code.OK and _cell(edits.bodies, row) in gone:
            code = Code.BODY_MISSING
        if key is None or code is not Code.OK:
            outcomes.codes[row] = code
            continue
        message = owned[key]
        message.changed, message.consumer = True, ""
        message.body = _given(edits.bodies, row, message.body)
        message.headers = _given(edits.headers, row, message.headers)
        message.priority = _given(edits.priorities, row, message.priority)
        message.ts = _given(edits.ts, row, message.ts)
    changed = [message for message in owned.values() if message.changed]
    if changed:
        await _write(change, changed)
        _tell(change, owner, edits, changed)
    return outcomes


async def _write(change: Change, changed: Sequence[_Owned]) -> None:
    await change.link.execute(
        "edit",
        change.topic.number,
        [message.found["id"] for message in changed],
        [message.found["version"] for message in changed],
        [message.ts for message in changed],
        [message.priority for message in changed],
        [message.headers for message in changed],
        [message.body for message in changed],
    )
    for message in changed:
        owner = message.found["owner"]
        change.left([message.found["ts"]], owner, held=bool(message.found["consumer"]))
        change.arrived([message.ts], owner, held=False)


def _tell(change: Change, owner: str, edits: Edits, changed: Sequence[_Owned]) -> None:
    if change.outbox is None:
        return
    moved = edits.bodies is None and edits.priorities is None and edits.headers is None
    bodies = [message.found["body"] if message.body is None else message.body for message in changed]
    change.outbox.changed(
        MOVED if moved else EDITED,
        change.topic.name,
        owner=owner,
        ids=[id_of(message.found["id"]) for message in changed],
        ts=[message.ts for message in changed],
        priorities=[] if moved else [message.priority for message in changed],
        bodies=bodies if edits.bodies is not None else [],
    )


async def decide(
    change: Change,
    owner: str,
    ids: Sequence[str],
    versions: Sequence[int | None] | None,
    *,
    edits: Edits | None = None,
) -> Outcomes:
    """What would become of each row, while the messages are locked."""
    owned = await _take(change, ids, bodies=False)
    bodies = edits.bodies if edits is not None and edits.large else None
    gone = await missing(change, bodies) if bodies is not None else frozenset()
    outcomes = Outcomes(len(ids))
    for row, message_id in enumerate(ids):
        key = _find(owned, message_id)
        version = _cell(versions, row)
        code = owned[key].decide(owner, change.now, version) if key is not None else Code.NOT_FOUND
        if code is Code.OK and _cell(bodies, row) in gone:
            code = Code.BODY_MISSING
        if code is not Code.OK:
            outcomes.codes[row] = code
    return outcomes


async def cancel(
    change: Change, owner: str, ids: Sequence[str], versions: Sequence[int | None] | None = None
) -> Outcomes:
    """Remove messages that nobody holds."""
    await lapse(change)
    owned = await _take(change, ids, bodies=False)
    outcomes = Outcomes(len(ids))
    gone: list[_Owned] = []
    for row, message_id in enumerate(ids):
        key = _find(owned, message_id)
        version = versions[row] if versions is not None else None
        code = owned[key].decide(owner, change.now, version) if key is not None else Code.NOT_FOUND
        if key is None or code is not Code.OK:
            outcomes.codes[row] = code
        else:
            gone.append(owned.pop(key))
    if gone:
        keys = [message.found["id"] for message in gone]
        await change.link.execute("remove", change.topic.number, keys, [message.found["version"] for message in gone])
        for message in gone:
            change.left([message.ts], message.found["owner"], held=bool(message.consumer))
        if change.outbox is not None:
            change.outbox.changed(CANCELLED, change.topic.name, owner=owner, ids=list(map(id_of, keys)))
    return outcomes


async def holders(link: Link, topic: Topic, ids: Sequence[str], now: int) -> list[Holder | None]:
    """Who holds the live lease of each id."""
    keys = candidates(ids)
    there = {record["id"] for record in await link.fetch("get_keys", topic.number, keys)}
    held = {record["id"]: record for record in await link.fetch("holders", topic.number, keys, now)}
    versions = list({record["version"] for record in held.values()})
    rows = {
        (lease_id, key): row
        for lease_id, text in await link.fetch("keys_of_leases", topic.number, versions)
        for row, key in enumerate(LeaseKeys.unpack(text).listed())
    }

    def holder(message_id: str) -> Holder | None:
        key = message_id if message_id in there else message_id + MARK
        found = held.get(key)
        row = rows.get((found["version"], key)) if found is not None else None
        if found is None or row is None:
            return None
        return Holder(consumer=found["consumer"], lease_id=found["version"], row=row, due=found["due_ts"])

    return [holder(message_id) for message_id in ids]


def _cell(column: Sequence[T | None] | None, row: int) -> T | None:
    return column[row] if column is not None else None


def _given(column: Sequence[T | None] | None, row: int, otherwise: T) -> T:
    value = _cell(column, row)
    return otherwise if value is None else value
