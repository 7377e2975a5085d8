"""Batches between the wire and the domain: columns stay columns, nothing is done a message at a time.

Everything that arrives is checked for form here (lengths that agree, names that decode) and raises
INVALID_ARGUMENT; what the values may be is for the domain and the broker to say.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import repeat

from dejaq.domain.batch import CreateBatch, IdSpan, LeaseSet, Outcomes, Portion, RowRange, StoredFrames, StoredRuns
from dejaq.domain.bodies.body_block import BodySlices
from dejaq.domain.bodies.large import is_reference, reference_of
from dejaq.domain.bodies.packing import any_marked, shown
from dejaq.domain.headers import decode_headers, encode_headers
from dejaq.domain.id_column import IdColumn
from dejaq.domain.ids import ProducerSession
from dejaq.domain.message import Message, Status, UnleasedMessages, messages_of, status_of
from dejaq.domain.topic import TopicSettings
from dejaq.errors import Code, InvalidArgument
from dejaq.protocol.create_columns import CreateColumns
from dejaq.protocol.v1 import carrier_pb2, errors_pb2, overseer_pb2

_CODES = {int(code): code for code in Code}


def create_from_proto(
    proto: carrier_pb2.CreateBatch,
    *,
    owner: str,
    now: int,
    session: ProducerSession,
    columns: CreateColumns | None = None,
) -> CreateBatch:
    """The batch that a producer sent under a session, its delays counted from `now`.

    `columns` has those columns that were not read into `proto`.
    """
    if proto.acknowledged > proto.sequence:
        raise InvalidArgument(f"acknowledged={proto.acknowledged} is above the batch's own sequence {proto.sequence}")
    ids: IdColumn | None
    ts: Sequence[int]
    bodies: Sequence[bytes]
    if columns is None:
        ids = IdColumn(list(proto.ids)) if proto.ids else None
        ts, bodies = times_from_proto(proto.ts, relative=proto.relative, now=now), list(proto.bodies)
    else:
        ids, bodies = columns.ids, columns.bodies
        ts = times_from_proto(columns.ts, relative=True, now=now) if proto.relative else columns.ts
    return CreateBatch(
        owner=owner,
        session=session,
        sequence=proto.sequence,
        ts=ts,
        bodies=bodies,
        ids=ids,
        bucket=proto.bucket,
        priorities=list(proto.priorities) or None,
        headers=list(proto.headers) or None,
        large=proto.large,
        acknowledged=proto.acknowledged,
        check=proto.check,
        relative_rows=_relative_rows(proto),
    )


def session_from_proto(packed: bytes) -> ProducerSession:
    """The session that names a batch; raises INVALID_ARGUMENT."""
    try:
        return ProducerSession.unpack(packed)
    except ValueError as error:
        raise InvalidArgument(str(error)) from None


def _relative_rows(proto: carrier_pb2.CreateBatch) -> list[RowRange]:
    """The rows whose time was given as a delay; all of them where the batch holds delays."""
    if proto.relative:
        return [(0, len(proto.ts))]
    return ranges_from_proto(proto.relative_rows) or []


def times_from_proto(column: Sequence[int], *, relative: bool, now: int) -> list[int]:
    """A column of times, or of delays counted from `now`."""
    return [now + delay for delay in column] if relative else list(column)


def ranges_from_proto(ranges: Sequence[int]) -> list[RowRange] | None:
    """Pairs of start and end; None, for every row, when there are none."""
    if not ranges:
        return None
    if len(ranges) % 2:
        raise InvalidArgument("ranges are pairs of a start and an end")
    pairs = list(zip(ranges[::2], ranges[1::2], strict=True))
    end_before = 0
    for start, end in pairs:
        if not end_before <= start < end:
            raise InvalidArgument(f"rows {start} to {end} are empty, out of order or named twice")
        end_before = end
    return pairs


def release_times_from_proto(proto: carrier_pb2.Settle, *, now: int) -> int | list[int]:
    """The one time of a release, or one a row, its delays counted from `now`."""
    times = times_from_proto(proto.ts, relative=proto.relative, now=now)
    if not times:
        raise InvalidArgument("a release needs a time, or one a row")
    return times[0] if len(times) == 1 else times


def write_push(push: carrier_pb2.Push, lease: LeaseSet) -> None:
    """Write a lease set into a frame's own Push, so that no column is copied twice.

    Bodies in slices come behind it, and so do ids where all that are listed are in columns.
    """
    push.lease = lease.lease_id
    push.expires = lease.expires
    ids_behind = bool(lease.id_columns())
    for span in lease.spans:
        if span.ids is not None:
            push.spans.add(count=span.count)
            if not ids_behind:
                push.ids.extend(span.ids)
        else:
            push.spans.add(count=span.count, prefix=span.prefix, first=span.first)
    push.ts.extend(lease.ts)
    if not isinstance(lease.bodies, BodySlices):
        push.bodies.extend(lease.bodies)
    if lease.attempts is not None:
        push.attempts.extend(lease.attempts)
    if lease.priorities is not None:
        push.priorities.extend(lease.priorities)
    if lease.headers is not None:
        push.headers.extend(lease.headers)
    if lease.rows is not None:
        push.rows.extend(lease.rows)
    if lease.large:
        push.large = True


def lease_from_proto(push: carrier_pb2.Push, *, consumer: str) -> LeaseSet:
    """The lease set that `write_push` wrote."""
    spans: list[IdSpan] = []
    taken = 0
    for span in push.spans:
        if span.prefix:
            spans.append(IdSpan(count=span.count, prefix=span.prefix, first=span.first))
        else:
            spans.append(IdSpan(count=span.count, ids=push.ids[taken : taken + span.count]))
            taken += span.count
    return LeaseSet(
        lease_id=push.lease,
        consumer=consumer,
        expires=push.expires,
        spans=spans,
        ts=list(push.ts),
        bodies=list(push.bodies),
        attempts=list(push.attempts) or None,
        priorities=list(push.priorities) or None,
        headers=list(push.headers) or None,
        rows=list(push.rows) or None,
        by_priority=push.by_priority,
        large=push.large,
    )


def write_outcomes(proto: errors_pb2.Outcomes, outcomes: Outcomes) -> None:
    """Write the rows that are not plainly OK."""
    if outcomes.codes:
        rows = sorted(outcomes.codes)
        proto.rows.extend(rows)
        proto.codes.extend([int(outcomes.codes[row]) for row in rows])


def code_from_proto(code: int) -> Code:
    """The code that was sent; one of a newer broker counts as INTERNAL."""
    return _CODES.get(code, Code.INTERNAL)


def outcomes_from_proto(proto: errors_pb2.Outcomes, *, count: int) -> Outcomes:
    """The outcomes of a batch of `count` rows; a code of a newer broker counts as INTERNAL."""
    return Outcomes(
        count,
        {row: _CODES.get(code, Code.INTERNAL) for row, code in zip(proto.rows, proto.codes, strict=True)},
    )


def messages_to_proto(
    messages: Sequence[Message], *, now: int, asked: Sequence[int] | None = None, cursor: bytes | None = None
) -> carrier_pb2.MessageColumns:
    """Messages as columns, with their status at `now`."""
    return carrier_pb2.MessageColumns(
        ids=[m.id for m in messages],
        buckets=[m.bucket for m in messages],
        ts=[m.ts for m in messages],
        priorities=[m.priority for m in messages],
        bodies=[m.body for m in messages],
        groups=[m.producer_group for m in messages],
        consumers=[m.lock_consumer for m in messages],
        versions=[m.version for m in messages],
        attempts=[m.attempts for m in messages],
        headers=[encode_headers(m.headers) for m in messages],
        statuses=[m.status(now) for m in messages],
        asked=asked,
        cursor=cursor or b"",
        progress=[m.progress for m in messages] if any(m.progress for m in messages) else None,
    )


def add_unleased(
    proto: carrier_pb2.MessageColumns,
    messages: UnleasedMessages,
    *,
    ids: Sequence[str],
    places: Sequence[int],
    now: int,
) -> None:
    """Add messages that are columns already; `places` has the place of each of the ids in the request."""
    count = len(messages)
    proto.ids.extend([ids[item] for item in messages.items])
    proto.buckets.extend(messages.buckets)
    proto.ts.extend(messages.ts)
    proto.priorities.extend(messages.priorities or [0] * count)
    proto.bodies.extend(messages.bodies[:])
    proto.groups.extend(messages.groups)
    proto.consumers.extend([""] * count)
    proto.versions.extend(messages.versions)
    proto.attempts.extend([0] * count)
    proto.headers.extend(messages.headers or [b""] * count)
    waiting = count and min(messages.ts) > now
    proto.statuses.extend([Status.WAITING] * count if waiting else [status_of(ts, "", now) for ts in messages.ts])
    proto.asked.extend([places[item] for item in messages.items])


def portion_to_proto(portion: Portion) -> carrier_pb2.ScanColumns:
    """A portion of a snapshot as it goes over the wire."""
    proto = carrier_pb2.ScanColumns(
        ts=portion.ts,
        bodies=portion.bodies,
        priorities=portion.priorities,
        attempts=portion.attempts,
        headers=portion.headers,
    )
    for stretch in portion.stretches:
        span = stretch.span
        added = proto.stretches.add(
            bucket=stretch.bucket, group=stretch.owner, version=stretch.version, consumer=stretch.consumer
        )
        added.span.count = span.count
        if span.ids is not None:
            proto.ids.extend(span.ids)
        else:
            added.span.prefix = span.prefix
            added.span.first = span.first
    return proto


def add_stored(proto: carrier_pb2.ScanColumns, stored: StoredRuns) -> None:
    """Add runs to a portion of a snapshot."""
    proto.runs.extend(stored.runs)
    proto.run_buckets.extend(stored.buckets)
    proto.run_versions.extend(stored.versions)
    proto.run_rows.extend(stored.rows)


def add_frames(proto: carrier_pb2.ScanColumns, stored: StoredFrames) -> None:
    """Add the places of runs to a portion of a snapshot."""
    proto.frame_files.extend(stored.files)
    proto.frame_offsets.extend(stored.offsets)
    proto.frame_lengths.extend(stored.lengths)
    proto.frame_buckets.extend(stored.buckets)
    proto.frame_rows_without.extend(stored.without)


def messages_from_proto(proto: carrier_pb2.MessageColumns, *, topic: str) -> list[Message]:
    """The messages that `messages_to_proto` wrote; raises ValueError for columns of different lengths."""
    count = len(proto.ids)
    columns: dict[str, Sequence[object]] = {
        "id": proto.ids,
        "bucket": proto.buckets,
        "ts": proto.ts,
        "priority": proto.priorities,
        "producer_group": proto.groups,
        "lock_consumer": proto.consumers,
        "version": proto.versions,
        "attempts": proto.attempts,
        "headers": [decode_headers(headers) if headers else {} for headers in proto.headers],
        "body": list(proto.bodies),
        "progress": proto.progress or [""] * count,
    }
    if any(len(column) != count for column in columns.values()):
        raise ValueError(f"columns of messages have different lengths: {count} ids")
    large: Iterable[object] = repeat(None)
    if any_marked(proto.bodies):
        large = [reference_of(body) for body in proto.bodies]
        columns["body"] = [b"" if is_reference(body) else shown(body) for body in proto.bodies]
    return messages_of(count, columns | {"topic": repeat(topic), "large": large, "masked": repeat(proto.masked)})


def settings_from_proto(proto: overseer_pb2.TopicSettings) -> TopicSettings:
    """The settings that were given, the rest at their defaults; raises INVALID_SETTING."""
    return TopicSettings.from_dict({field.name: value for field, value in proto.ListFields()})


def settings_to_proto(settings: TopicSettings) -> overseer_pb2.TopicSettings:
    """Every setting of a topic."""
    return overseer_pb2.TopicSettings(**settings.as_dict())  # type: ignore[arg-type]
