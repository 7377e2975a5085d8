"""Transactions over shards: one shard must have all the named messages."""

from __future__ import annotations

from collections.abc import Iterable

from dejaq.domain.changes import Cancel, Create, Delete, Edit, Release
from dejaq.errors import Code, DejaqError, error_of
from dejaq.storage.postgres.sharding.shard import STRIDE
from dejaq.storage.sharded.placement import is_whole
from dejaq.storage.sharded.routing import Router
from dejaq.storage.sharded.shards import Shards
from dejaq.storage.transactions import Step, Transaction


def bodies_of(transaction: Transaction) -> list[bytes | None]:
    """The bodies that may be references to large bodies."""
    found: list[bytes | None] = []
    for step in transaction.steps:
        if isinstance(step, Create) and step.batch.large:
            found += step.batch.bodies
        elif isinstance(step, Edit) and step.edits.large:
            found += step.edits.bodies or ()
    return found


async def shard_of(transaction: Transaction, shards: Shards, router: Router) -> int | None:
    """The shard that has all the messages of the steps; None for a repeat.

    Raises DIFFERENT_STORES when there is none.
    """
    if all(is_whole(step.topic) for step in transaction.steps):
        return 0
    # Logs are on the first shard.
    places: dict[int, set[str]] = (
        {0: {step.topic.name for step in transaction.log_steps}} if transaction.log_steps else {}
    )
    forgotten: list[int] = []
    for step in transaction.steps:
        found = await _places(step, shards, router)
        for place in found:
            places.setdefault(place, set()).add(step.topic.name)
        if not found and isinstance(step, Delete | Release):
            forgotten.append(step.lease_id % STRIDE)
    if forgotten and await _known(transaction, shards):
        return None
    if len(places) <= 1:
        given = [place for place, shard in enumerate(shards.map.shards) if shard.ordinal in forgotten]
        return next(iter([*places, *given, 0]))
    placed = "; ".join(
        f"of {', '.join(sorted(names))} on shard {shards.map.shards[place].name!r}"
        for place, names in sorted(places.items())
    )
    raise error_of(
        Code.DIFFERENT_STORES,
        f"a transaction stays on one shard, and this one names messages {placed}; topics of one bucket are all on one",
    )


async def _places(step: Step, shards: Shards, router: Router) -> Iterable[int]:
    topic = step.topic
    if isinstance(step, Create):
        batch, count = step.batch, topic.settings.buckets
        return {shards.map.owner(topic, batch.bucket_of(row, count)) for row in range(len(batch))}
    if isinstance(step, Edit | Cancel):
        return await router.rows_of(topic, step.edits.ids if isinstance(step, Edit) else step.ids)
    rows = None if step.rows is None else {row for start, end in step.rows for row in range(start, end)}
    found: list[int] = []
    for place in router.places(topic):
        keys = await shards.ask(place, lambda shard: shard.lease_keys(topic, step.lease_id))
        if keys is not None and any(key and (rows is None or row in rows) for row, key in enumerate(keys)):
            found.append(place)
    return found


async def _known(transaction: Transaction, shards: Shards) -> bool:
    """Whether a shard has committed the transaction."""
    answers = await shards.ask_all({place: lambda shard: shard.has_done(transaction) for place in range(len(shards))})
    for answer in answers.values():
        if isinstance(answer, DejaqError):
            raise answer
    return any(answer is True for answer in answers.values())
