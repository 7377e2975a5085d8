"""Messages by id."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import repeat

from dejaq.domain.headers import decode_headers
from dejaq.domain.message import Message, UnleasedMessages
from dejaq.storage.rocksdb.timeline.far.finder import find_far
from dejaq.storage.rocksdb.timeline.run import Run
from dejaq.storage.rocksdb.timeline.topic_state import TopicState


def get(state: TopicState, ids: Sequence[str]) -> list[Message | None]:
    """The message of each id."""
    unleased, others = get_columns(state, ids)
    messages: list[Message | None] = [None] * len(ids)
    columns = zip(
        unleased.items,
        unleased.buckets,
        unleased.ts,
        unleased.versions,
        unleased.groups,
        unleased.bodies[:],
        unleased.priorities or repeat(0),
        unleased.headers or repeat(b""),
        strict=False,
    )
    for item, bucket, ts, version, group, body, priority, headers in columns:
        messages[item] = Message(
            id=ids[item],
            topic=state.topic.name,
            bucket=bucket,
            ts=ts,
            priority=priority,
            body=body,
            producer_group=group,
            lock_consumer="",
            version=version,
            attempts=0,
            headers=decode_headers(headers) if headers else {},
        )
    for item, other in others:
        messages[item] = other
    return messages


def get_columns(state: TopicState, ids: Sequence[str]) -> tuple[UnleasedMessages, list[tuple[int, Message]]]:
    """The messages of the far future as columns, and the others; each with the position of its id."""
    far = find_far(state, ids)
    items: list[int] = far.items.tolist()
    known = set(items)
    left = [item for item in range(len(ids)) if item not in known] if len(items) < len(ids) else []
    located = state.locate([ids[item] for item in left]) if left else []
    others = [(item, message(state, *at)) for item, at in zip(left, located, strict=True) if at is not None]
    owners: list[int] = far.owners().tolist() if items else []
    names = {number: state.owners.name(number) for number in set(owners)}
    unleased = UnleasedMessages(
        items=items,
        buckets=far.buckets(state.topic.settings.buckets).tolist() if items else (),
        ts=far.times.tolist(),
        versions=far.versions.tolist(),
        groups=[names[number] for number in owners],
        bodies=far.bodies,
        priorities=far.priorities,
        headers=far.headers,
    )
    return unleased, others


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
