"""Transfers: messages that move from one shard to another without being lost or duplicated.

A message leaves its topic and becomes a transfer record on its shard in one commit. On the target shard, the arrival
of the message and the name of the transfer are one commit too, so a transfer may be repeated any number of times.
Then the record is removed.
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
from dejaq.storage.postgres.connection.failures import Overtaken
from dejaq.storage.postgres.keys import candidates, id_of
from dejaq.storage.postgres.operations.change import TopicTransaction, places_of
from dejaq.storage.postgres.operations.uploading import missing


@dataclass(frozen=True, slots=True)
class Transfer:
    """A message in transit; it gets a number and a name when it is sent."""

    topic: int
    bucket: int
    priority: int
    id: str
    owner: str
    headers: bytes
    body: bytes
    # When it was first sent.
    sent_ms: int
    number: int = 0
    name: bytes = b""


async def send(change: TopicTransaction, target: Topic, transfers: Sequence[Transfer]) -> None:
    """Record messages for another shard; when they arrive, the other shard finds out whether their ids are free."""
    change.gathered.sent = True
    await change.link.execute(
        "send",
        target.number,
        [transfer.sent_ms for transfer in transfers],
        [secrets.token_bytes(16) for _ in transfers],
        [transfer.bucket for transfer in transfers],
        [transfer.priority for transfer in transfers],
        [transfer.id for transfer in transfers],
        [transfer.owner for transfer in transfers],
        [transfer.headers for transfer in transfers],
        [transfer.body for transfer in transfers],
    )


async def receive(change: TopicTransaction, transfers: Sequence[Transfer], lost: Collection[bytes] = ()) -> None:
    """Add messages to a topic, each once; a message whose id is taken gets another id.

    A topic that is gone accepts nothing.

    Raises UNAVAILABLE when a large body that a message refers to is not here, unless it is `lost` everywhere.
    """
    link, topic = change.link, change.topic
    if await link.value("topic_state", topic.number) is None:
        return
    names = await link.fetch("take_transfers", [transfer.name for transfer in transfers], change.now)
    change.gathered.noted = True
    fresh = {record["session"] for record in names}
    new = [transfer for transfer in transfers if transfer.name in fresh]
    if not await missing(change, [transfer.body for transfer in new]) <= set(lost):
        raise Unavailable("a large body has not come with its message; it is brought again")
    new = await _with_free_ids(change, new)
    away = change.gathered.away
    # Another id may belong to another shard.
    onward = [transfer for transfer in new if away is not None and away(topic, transfer.bucket)]
    if onward:
        await send(change, topic, onward)
        new = [transfer for transfer in new if transfer not in onward]
    if new:
        await _enter(change, new)


async def _with_free_ids(change: TopicTransaction, transfers: Sequence[Transfer]) -> list[Transfer]:
    """The transfers with ids that no message here has."""
    taken: set[str] = set()
    while True:
        busy = set(taken)
        found = [_renamed(transfer, change.topic, busy) for transfer in transfers]
        keys = candidates([transfer.id for transfer in found])
        met = {id_of(record["id"]) for record in await change.link.fetch("get_keys", change.topic.number, keys)}
        if not met:
            return found
        taken |= met


def _renamed(transfer: Transfer, topic: Topic, busy: set[str]) -> Transfer:
    """The transfer under the next free id; the search continues from an id that another shard chose."""
    headers = decode_headers(transfer.headers)
    first, passed = headers.get(ID, transfer.id), set[str]()
    while (chosen := free_id(first, transfer.sent_ms, passed.__contains__)) != transfer.id:
        passed.add(chosen)
    chosen = free_id(first, transfer.sent_ms, lambda one: one in passed or one in busy)
    busy.add(chosen)
    if chosen == transfer.id:
        return transfer
    bucket = bucket_of(chosen, topic.settings.buckets)
    return replace(transfer, id=chosen, bucket=bucket, headers=encode_headers(dict(headers) | {ID: first}))


async def _enter(change: TopicTransaction, transfers: Sequence[Transfer]) -> None:
    topic = change.topic
    entered = await change.link.fetch(
        "enter",
        topic.number,
        change.now,
        [transfer.id for transfer in transfers],
        places_of(topic, [transfer.bucket for transfer in transfers]),
        [transfer.priority for transfer in transfers],
        [transfer.owner for transfer in transfers],
        [transfer.headers for transfer in transfers],
        [transfer.body for transfer in transfers],
    )
    if len(entered) != len(transfers):
        raise Overtaken("another took the id of a message that arrives")
    change.arrived([change.now] * len(transfers), [transfer.owner for transfer in transfers], held=False)
    if change.outbox is None:
        return
    for owner in dict.fromkeys(transfer.owner for transfer in transfers):
        own = [transfer for transfer in transfers if transfer.owner == owner]
        change.outbox.changed(
            CREATED,
            topic.name,
            owner=owner,
            ids=[transfer.id for transfer in own],
            ts=[change.now] * len(own),
            priorities=[transfer.priority for transfer in own],
            bodies=[transfer.body for transfer in own],
        )
