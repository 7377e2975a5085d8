"""Messages by id."""

from __future__ import annotations

from collections.abc import Sequence

from dejaq.domain.headers import decode_headers
from dejaq.domain.message import Message
from dejaq.storage.rocksdb.timeline.far.finder import FarRow, find_far
from dejaq.storage.rocksdb.timeline.run import Run
from dejaq.storage.rocksdb.timeline.topic_state import TopicState


def get(state: TopicState, ids: Sequence[str]) -> list[Message | None]:
    """The message of each id."""
    far = find_far(state, ids)
    others = [item for item in range(len(ids)) if item not in far]
    messages: list[Message | None] = [None] * len(ids)
    for item, row in far.items():
        messages[item] = _far_message(state, ids[item], row)
    for item, at in zip(others, state.locate([ids[item] for item in others]) if others else (), strict=True):
        messages[item] = message(state, *at) if at is not None else None
    return messages


def _far_message(state: TopicState, message_id: str, row: FarRow) -> Message:
    return Message(
        id=message_id,
        topic=state.topic.name,
        bucket=row.bucket(state.topic.settings.buckets),
        ts=row.ts,
        priority=row.priority,
        body=row.body,
        producer_group=row.owner,
        lock_consumer="",
        version=row.version,
        attempts=0,
        headers=decode_headers(row.headers) if row.headers else {},
    )


def message(state: TopicState, run: Run, row: int) -> Message:
    """A row as its owner sees it."""
    standing, holding = state.standing(run, row)
    record, message_id = run.record, run.id_at(row)
    return Message(
        id=message_id,
        topic=state.topic.name,
        bucket=state.bucket_of(run, message_id),
        ts=standing.ts,
        priority=run.sort_key(row)[1],
        body=state.body(run, row),
        producer_group=record.owner,
        lock_consumer=standing.lock_consumer,
        version=standing.version,
        attempts=holding[1].attempts_at(row) if holding else run.attempts_at(row),
        headers=decode_headers(record.headers[row]) if record.headers else {},
    )
