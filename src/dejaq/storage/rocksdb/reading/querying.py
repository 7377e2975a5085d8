"""Messages by id."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import repeat

from dejaq.domain.headers import decode_headers
from dejaq.domain.message import Message
from dejaq.storage.rocksdb.timeline.far.far_rows import FarRows
from dejaq.storage.rocksdb.timeline.far.finder import find_far
from dejaq.storage.rocksdb.timeline.run import Run
from dejaq.storage.rocksdb.timeline.topic_state import TopicState


def get(state: TopicState, ids: Sequence[str]) -> list[Message | None]:
    """The message of each id."""
    far = find_far(state, ids)
    messages: list[Message | None] = [None] * len(ids)
    for item, found in zip(far.items.tolist(), _far_messages(state, ids, far), strict=True):
        messages[item] = found
    others = [item for item, found in enumerate(messages) if found is None]
    for item, at in zip(others, state.locate([ids[item] for item in others]) if others else (), strict=True):
        messages[item] = message(state, *at) if at is not None else None
    return messages


def _far_messages(state: TopicState, ids: Sequence[str], far: FarRows) -> Iterator[Message]:
    owners = {number: state.owners.name(number) for number in set(far.owners().tolist())}
    columns = zip(
        far.items.tolist(),
        far.owners().tolist(),
        far.buckets(state.topic.settings.buckets).tolist(),
        far.times.tolist(),
        far.versions.tolist(),
        far.bodies[:],
        far.priorities or repeat(0),
        far.headers or repeat(b""),
        strict=False,
    )
    for item, owner, bucket, ts, version, body, priority, headers in columns:
        yield Message(
            id=ids[item],
            topic=state.topic.name,
            bucket=bucket,
            ts=ts,
            priority=priority,
            body=body,
            producer_group=owners[owner],
            lock_consumer="",
            version=version,
            attempts=0,
            headers=decode_headers(headers) if headers else {},
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
