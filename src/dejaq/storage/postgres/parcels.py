"""Parcels: messages that go from one shard to another without being lost or doubled.

A message leaves its shard and becomes a parcel there in one commit. Where it goes, its arrival and the note of the
parcel's name are one commit too; so it may be brought any number of times. Then the parcel is forgotten.
"""

from __future__ import annotations

import secrets
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from dejaq.domain.dead_letter import ID, free_id
from dejaq.domain.headers import decode_headers, encode_headers
from dejaq.domain.ids import bucket_of
from dejaq.domain.topic import Topic
from dejaq.errors import Unavailable
from dejaq.storage.outbox import CREATED
from dejaq.storage.postgres.change import Change, places_of
from dejaq.storage.postgres.failures import Overtaken
from dejaq.storage.postgres.keys import candidates, id_of
from dejaq.storage.postgres.uploading import missing


@dataclass(frozen=True, slots=True)
class Parcel:
    """A message on its way; it has a number and a name when it is sent."""

    topic: int
    bucket: int
    priority: int
    id: str
    owner: str
    headers: bytes
    body: bytes
    # When it was sent first.
    sent_ms: int
    number: int = 0
    name: bytes = b""


async def send(change: Change, target: Topic, parcels: Sequence[Parcel]) -> None:
    """Leave messages for another shard; whether their ids are free there is seen when they arrive."""
    change.gathered.sent = True
    await change.link.execute(
        "send",
        target.number,
        [parcel.sent_ms for parcel in parcels],
        [secrets.token_bytes(16) for _ in parcels],
        [parcel.bucket for parcel in parcels],
        [parcel.priority for parcel in parcels],
        [parcel.id for parcel in parcels],
        [parcel.owner for parcel in parcels],
        [parcel.headers for parcel in parcels],
        [parcel.body for parcel in parcels],
    )


async def receive(change: Change, parcels: Sequence[Parcel], lost: Collection[bytes] = ()) -> None:
    """Take messages into a topic, each once; one whose id is taken gets another. A topic that is gone takes nothing.

    Raises UNAVAILABLE where a large body is not here that one refers to, unless that is `lost` everywhere.
    """
    link, topic = change.link, change.topic
    if await link.value("topic_state", topic.number) is None:
        return
    names = await link.fetch("take_parcels", [parcel.name for parcel in parcels], change.now)
    change.gathered.noted = True
    fresh = {record["session"] for record in names}
    new = [parcel for parcel in parcels if parcel.name in fresh]
    if not await missing(change, [parcel.body for parcel in new]) <= set(lost):
        raise Unavailable("a large body has not come with its message; it is brought again")
    new = await _with_free_ids(change, new)
    away = change.gathered.away
    # Another id may belong to another shard.
    onward = [parcel for parcel in new if away is not None and away(topic, parcel.bucket)]
    if onward:
        await send(change, topic, onward)
        new = [parcel for parcel in new if parcel not in onward]
    if new:
        await _enter(change, new)


async def _with_free_ids(change: Change, parcels: Sequence[Parcel]) -> list[Parcel]:
    """The parcels under ids that nothing here has."""
    taken: set[str] = set()
    while True:
        busy = set(taken)
        found = [_renamed(parcel, change.topic, busy) for parcel in parcels]
        keys = candidates([parcel.id for parcel in found])
        met = {id_of(record["id"]) for record in await change.link.fetch("get_keys", change.topic.number, keys)}
        if not met:
            return found
        taken |= met


def _renamed(parcel: Parcel, topic: Topic, busy: set[str]) -> Parcel:
    """The parcel under the next id that is not busy; an id that another shard chose goes on from there."""
    told = decode_headers(parcel.headers)
    first, passed = told.get(ID, parcel.id), set[str]()
    while (chosen := free_id(first, parcel.sent_ms, passed.__contains__)) != parcel.id:
        passed.add(chosen)
    chosen = free_id(first, parcel.sent_ms, lambda one: one in passed or one in busy)
    busy.add(chosen)
    if chosen == parcel.id:
        return parcel
    bucket = bucket_of(chosen, topic.settings.buckets)
    return replace(parcel, id=chosen, bucket=bucket, headers=encode_headers(dict(told) | {ID: first}))


async def _enter(change: Change, parcels: Sequence[Parcel]) -> None:
    topic = change.topic
    entered = await change.link.fetch(
        "enter",
        topic.number,
        change.now,
        [parcel.id for parcel in parcels],
        places_of(topic, [parcel.bucket for parcel in parcels]),
        [parcel.priority for parcel in parcels],
        [parcel.owner for parcel in parcels],
        [parcel.headers for parcel in parcels],
        [parcel.body for parcel in parcels],
    )
    if len(entered) != len(parcels):
        raise Overtaken("another took the id of a message that arrives")
    change.arrived([change.now] * len(parcels), [parcel.owner for parcel in parcels], held=False)
    if change.outbox is None:
        return
    for owner in dict.fromkeys(parcel.owner for parcel in parcels):
        own = [parcel for parcel in parcels if parcel.owner == owner]
        change.outbox.changed(
            CREATED,
            topic.name,
            owner=owner,
            ids=[parcel.id for parcel in own],
            ts=[change.now] * len(own),
            priorities=[parcel.priority for parcel in own],
            bodies=[parcel.body for parcel in own],
        )
