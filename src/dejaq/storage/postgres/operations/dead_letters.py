"""Dead letters: messages move from one topic to another in one commit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import asyncpg

from dejaq.domain.batch import LeaseRequest, Outcomes
from dejaq.domain.dead_letter import Cause, DeadLetterHistory, free_id, id_before, without_history
from dejaq.domain.ids import bucket_of
from dejaq.domain.topic import Topic
from dejaq.domain.transitions import Standing, decide_redrive
from dejaq.errors import Code, error_of
from dejaq.storage.outbox import CANCELLED, CREATED, DEAD_LETTERED
from dejaq.storage.postgres.connection.failures import Overtaken
from dejaq.storage.postgres.keys import MARK, candidates, id_of
from dejaq.storage.postgres.operations.change import TopicTransaction, places_of
from dejaq.storage.postgres.operations.settling import RowsToSettle, asked_of
from dejaq.storage.postgres.sharding import transfers


async def check_live(change: TopicTransaction, topic: Topic) -> None:
    """Raise TOPIC_NOT_FOUND unless the topic accepts messages."""
    if await change.link.value("topic_state", topic.number) in (None, "deleting"):
        raise error_of(Code.TOPIC_NOT_FOUND, f"topic {topic.name!r} does not exist or is being deleted")


async def limit_of(change: TopicTransaction, request: LeaseRequest) -> int:
    """How many leases a message may have; there is no limit without a dead-letter topic."""
    if request.dead_letter is None:
        return 0
    await check_live(change, request.dead_letter)
    return change.topic.settings.max_attempts


@dataclass(frozen=True, slots=True)
class _Move:
    """A message in transit."""

    found: asyncpg.Record
    new_id: str
    headers: bytes


def _transfer_of(target: Topic, move: _Move, now: int) -> transfers.Transfer:
    found = move.found
    return transfers.Transfer(
        topic=target.number,
        bucket=bucket_of(move.new_id, target.settings.buckets),
        priority=found["priority"],
        id=move.new_id,
        owner=found["owner"],
        headers=move.headers,
        body=found["body"],
        sent_ms=now,
    )


async def move(change: TopicTransaction, target: Topic, dead: Sequence[asyncpg.Record], cause: Cause) -> None:
    """Move locked messages to the dead-letter topic; the journal has already recorded that they left."""
    if not dead:
        return
    moves: list[_Move] = []
    new_ids = await _free_ids(change.on(target), [id_of(record["id"]) for record in dead])
    for record, new_id in zip(dead, new_ids, strict=True):
        history = DeadLetterHistory(
            topic=change.topic.name,
            cause=cause,
            attempts=record["attempts"],
            at=change.now,
            due=record["due_ts"],
            first_lease=record["first_lease"] or 0,
            last_lease=record["last_lease"] or 0,
            consumer=record["consumer"],
        )
        old_id = id_of(record["id"])
        headers = history.headers(record["headers"], renamed_from="" if new_id == old_id else old_id)
        moves.append(_Move(record, new_id, headers))
    await _move(change, target, moves)


async def _free_ids(target: TopicTransaction, ids: Sequence[str]) -> list[str]:
    """An id for each message that no message of the other topic has."""
    taken: set[str] = set()
    while True:
        busy = set(taken)
        chosen: list[str] = []
        for message_id in ids:
            chosen.append(free_id(message_id, target.now, busy.__contains__))
            busy.add(chosen[-1])
        met = await _there(target, chosen)
        if not met:
            return chosen
        taken |= met


async def _there(change: TopicTransaction, ids: Sequence[str]) -> set[str]:
    """The ids that exist in the topic."""
    found = await change.link.fetch("get_keys", change.topic.number, candidates(ids))
    return {id_of(record["id"]) for record in found}


async def _move(change: TopicTransaction, target: Topic, moves: Sequence[_Move]) -> None:
    """Take messages out of this topic and put them into the other topic, or record their transfer to it."""
    found = [move.found for move in moves]
    gone = await change.link.fetch(
        "remove", change.topic.number, [one["id"] for one in found], [one["version"] for one in found]
    )
    for one in found:
        change.left([one["ts"]], one["owner"], held=bool(one["consumer"]))
    away, count = change.gathered.away, target.settings.buckets
    sent = [] if away is None else [move for move in moves if away(target, bucket_of(move.new_id, count))]
    if sent:
        await transfers.send(change, target, [_transfer_of(target, move, change.now) for move in sent])
        moves = [move for move in moves if move not in sent]
        found = [move.found for move in moves]
    entered = await change.link.fetch(
        "enter",
        target.number,
        change.now,
        [move.new_id for move in moves],
        places_of(target, [bucket_of(move.new_id, target.settings.buckets) for move in moves]),
        [one["priority"] for one in found],
        [one["owner"] for one in found],
        [move.headers for move in moves],
        [one["body"] for one in found],
    )
    if len(gone) != len(moves) + len(sent) or len(entered) != len(moves):
        raise Overtaken("another took an id in the dead-letter topic meanwhile")
    there = change.on(target)
    there.arrived([change.now] * len(moves), [one["owner"] for one in found], held=False)
    if there.outbox is not None:
        for owner in dict.fromkeys(one["owner"] for one in found):
            own = [move for move in moves if move.found["owner"] == owner]
            there.outbox.changed(
                CREATED,
                target.name,
                owner=owner,
                ids=[move.new_id for move in own],
                ts=[change.now] * len(own),
                priorities=[move.found["priority"] for move in own],
                bodies=[move.found["body"] for move in own],
            )


async def reject(
    change: TopicTransaction, settlement: RowsToSettle, dead_letter: Topic, cause: Cause, handed_us: Sequence[int]
) -> None:
    """Move the rows that are held to the dead-letter topic."""
    dead = settlement.found(await change.link.fetch("take_held", *asked_of(change, settlement)))
    settlement.record(change, DEAD_LETTERED, handed_us=handed_us)
    await move(change, dead_letter, dead, cause)
    settlement.end(change)


async def redrive(change: TopicTransaction, target: Topic, ids: Sequence[str]) -> Outcomes:
    """Move dead letters back to a topic that delivers them."""
    if target.number == change.topic.number:
        raise error_of(Code.INVALID_ARGUMENT, f"{change.topic.name!r} cannot be redriven to itself")
    records = await change.link.fetch("take_owned", change.topic.number, candidates(dict.fromkeys(ids)))
    owned = {record["id"]: record for record in records}
    before = {key: id_before(id_of(key), record["headers"]) for key, record in owned.items()}
    taken = await _there(change.on(target), list(before.values()))
    outcomes = Outcomes(len(ids))
    moves: list[_Move] = []
    for row, message_id in enumerate(ids):
        key = next((one for one in (message_id, message_id + MARK) if one in owned), None)
        found = owned[key] if key is not None else None
        standing = Standing(found["ts"], found["owner"], found["consumer"], found["version"]) if found else None
        code = decide_redrive(standing, now=change.now)
        if key is not None and code is Code.OK and before[key] in taken:
            code = Code.ID_TAKEN
        if found is None or key is None or code is not Code.OK:
            outcomes.codes[row] = code
            continue
        taken.add(before[key])
        del owned[key]
        moves.append(_Move(found, before[key], without_history(found["headers"])))
    if moves:
        _tell_cancelled(change, [move.found for move in moves])
        await _move(change, target, moves)
    return outcomes


def _tell_cancelled(change: TopicTransaction, found: Sequence[asyncpg.Record]) -> None:
    if change.outbox is None:
        return
    for owner in dict.fromkeys(one["owner"] for one in found):
        ids = [id_of(one["id"]) for one in found if one["owner"] == owner]
        change.outbox.changed(CANCELLED, change.topic.name, owner=owner, ids=ids)
