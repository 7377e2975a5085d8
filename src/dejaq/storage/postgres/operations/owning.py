"""Move, edit and cancel: the owner's changes, decided row by row while the rows are locked."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TypeVar

import asyncpg

from dejaq.domain.batch import ChangeName, Outcomes
from dejaq.domain.changes import Edits
from dejaq.domain.headers import edited_headers
from dejaq.domain.topic import Topic
from dejaq.domain.transitions import Standing, decide_by_owner
from dejaq.errors import Code
from dejaq.storage import ranges
from dejaq.storage.base import Holder
from dejaq.storage.outbox import CANCELLED, EDITED, MOVED
from dejaq.storage.postgres.connection.database import PostgresLink
from dejaq.storage.postgres.keys import MARK, LeaseKeys, candidates, id_of
from dejaq.storage.postgres.operations.change import TopicTransaction
from dejaq.storage.postgres.operations.creating import BatchCounters, put_session, take_session
from dejaq.storage.postgres.operations.leasing import expire_leases
from dejaq.storage.postgres.operations.uploading import missing
from dejaq.storage.used_sequences import UsedSequences

T = TypeVar("T")


@dataclass(slots=True)
class _Owned:
    """A message before and after its change."""

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
        # A message that this call has changed already has a version that no caller can know.
        current = -1 if self.changed else self.found["version"]
        standing = Standing(self.ts, self.found["owner"], self.consumer, current)
        return decide_by_owner(standing, owner=owner, now=now, version=version)

    def edited_headers(self, edits: Edits, row: int) -> bytes | None:
        """The headers after a row of the edits; None when they would exceed a limit."""
        present: bytes = self.found["headers"] if self.headers is None else self.headers
        return edited_headers(present, _cell(edits.headers, row))


async def _take(change: TopicTransaction, ids: Sequence[str], *, bodies: bool) -> dict[str, _Owned]:
    query = "take_owned" if bodies else "take_owned_without_bodies"
    records = await change.link.fetch(query, change.topic.number, candidates(dict.fromkeys(ids)))
    return {record["id"]: _Owned.of(record) for record in records}


def _find(owned: dict[str, _Owned], message_id: str) -> str | None:
    """The key of an id: a natural id comes before a generated id with the same text."""
    return next((key for key in (message_id, message_id + MARK) if key in owned), None)


async def edit(change: TopicTransaction, owner: str, edits: Edits) -> Outcomes:
    """Change the fields that the owner may change; a changed message has a new version and no lock."""
    await expire_leases(change)
    owned = await _take(change, edits.ids, bodies=edits.bodies is not None)
    gone = await missing(change, edits.bodies) if edits.large and edits.bodies is not None else frozenset()
    outcomes = Outcomes(len(edits.ids))
    for row, message_id in enumerate(edits.ids):
        key = _find(owned, message_id)
        version = _cell(edits.versions, row)
        code = owned[key].decide(owner, change.now, version) if key is not None else Code.NOT_FOUND
        headers = owned[key].edited_headers(edits, row) if key is not None else b""
        if code is Code.OK:
            code = _decide_values(headers, _cell(edits.bodies, row), gone)
        if key is None or code is not Code.OK:
            outcomes.codes[row] = code
            continue
        message = owned[key]
        message.changed, message.consumer = True, ""
        message.body = _given(edits.bodies, row, message.body)
        if _cell(edits.headers, row):
            message.headers = headers
        message.priority = _given(edits.priorities, row, message.priority)
        message.ts = _given(edits.ts, row, message.ts)
    changed = [message for message in owned.values() if message.changed]
    if changed:
        await _write(change, changed)
        _record_edits(change, owner, edits, changed)
    return outcomes


async def _write(change: TopicTransaction, changed: Sequence[_Owned]) -> None:
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


def _record_edits(change: TopicTransaction, owner: str, edits: Edits, changed: Sequence[_Owned]) -> None:
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
    change: TopicTransaction,
    owner: str,
    ids: Sequence[str],
    versions: Sequence[int | None] | None,
    *,
    edits: Edits | None = None,
) -> Outcomes:
    """The outcome that each row would have, while the messages are locked."""
    owned = await _take(change, ids, bodies=False)
    bodies = edits.bodies if edits is not None and edits.large else None
    gone = await missing(change, bodies) if bodies is not None else frozenset()
    outcomes = Outcomes(len(ids))
    for row, message_id in enumerate(ids):
        key = _find(owned, message_id)
        version = _cell(versions, row)
        code = owned[key].decide(owner, change.now, version) if key is not None else Code.NOT_FOUND
        if code is Code.OK and key is not None and edits is not None:
            code = _decide_values(owned[key].edited_headers(edits, row), _cell(bodies, row), gone)
        if code is not Code.OK:
            outcomes.codes[row] = code
    return outcomes


def _decide_values(headers: bytes | None, body: bytes | None, gone: Collection[bytes]) -> Code:
    """Whether a message may have its new values: a large body must exist, and the headers must not exceed a limit."""
    if headers is None:
        return Code.INVALID_HEADERS
    return Code.BODY_MISSING if body is not None and body in gone else Code.OK


async def cancel(
    change: TopicTransaction,
    owner: str,
    ids: Sequence[str],
    versions: Sequence[int | None] | None = None,
    *,
    name: ChangeName | None = None,
) -> Outcomes:
    """Remove messages that nobody holds; messages that were cancelled under the name before are OK."""
    used = await take_session(change, name.session) if name is not None else UsedSequences()
    counters = BatchCounters(name.numbers if name is not None else ())
    done = counters.seen(used)
    if name is not None and len(done) < len(ids):
        used.check_room(counters.gaps)
    await expire_leases(change)
    owned = await _take(change, ids, bodies=False)
    outcomes = Outcomes(len(ids))
    gone: list[_Owned] = []
    for row, message_id in enumerate(ids):
        if row in done:
            continue
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
    if name is not None:
        counters.use(used, ranges.without(len(ids), outcomes.codes))
        await put_session(change, name.session, used)
    return outcomes


async def holders(link: PostgresLink, topic: Topic, ids: Sequence[str], now: int) -> list[Holder | None]:
    """The holder of the live lease of each id."""
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
