"""Log topics: append, read by offsets, groups with their lag, and resets."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from dejaq import limits
from dejaq.errors import Code, error_of
from dejaq.sdk.log.calls import Start
from dejaq.sdk.log.messages import LogMessage
from dejaq.sdk.times import to_datetime
from dejaq.web.api.filters import headers_of
from dejaq.web.api.idempotency import id_of_key
from dejaq.web.api.operation import ApiAnswer, ApiCall
from dejaq.web.api.times import iso_of, parse_time
from dejaq.web.api.values import decoded_body, encoded_body

READ_MAX = 1_000
_Bucket = Annotated[int, Meta(ge=0, le=2**31 - 1)]
_Count = Annotated[int, Meta(ge=1, le=READ_MAX)]


class NewLogMessage(msgspec.Struct, forbid_unknown_fields=True):
    """A message to append; messages with one key are in one bucket, in order."""

    body: str | None = None
    body_base64: str | None = None
    key: Annotated[str, Meta(max_length=1_024)] = ""
    headers: dict[str, str] = {}
    bucket: _Bucket | None = None


class LogPlace(msgspec.Struct):
    """Where a message was appended."""

    bucket: int
    offset: int


_Rows = Annotated[list[NewLogMessage], Meta(min_length=1, max_length=limits.BATCH_COUNT_MAX)]


class LogBatchPlace(msgspec.Struct):
    """Where a batch was appended; its name rolls it back."""

    name: str
    bucket: int
    offset: int
    count: int


class LogBatchPlaces(msgspec.Struct):
    """Where the messages were appended, by batch."""

    batches: list[LogBatchPlace]


class LogReadQuery(msgspec.Struct, forbid_unknown_fields=True):
    """Which messages: `tail` is how many of the last ones; or `bucket` from `offset` on. Headers are `name:value`."""

    tail: _Count | None = None
    bucket: _Bucket | None = None
    offset: Annotated[int, Meta(ge=0)] | None = None
    limit: _Count = 100
    uncommitted: bool = False
    header: list[str] = []


class LogMessageValue(msgspec.Struct, omit_defaults=True):
    """A message of a log."""

    bucket: int
    offset: int
    at: str
    ts: int
    key: str
    headers: dict[str, str]
    body: str | None = None
    body_base64: str | None = None
    rolled_back: bool = False


class LogMessageList(msgspec.Struct, omit_defaults=True):
    """Messages of a log; `next` is the offset to read from after them."""

    messages: list[LogMessageValue]
    next: int | None = None


class LogBucketValue(msgspec.Struct):
    """The offsets of a bucket: messages before `stable` can no longer be rolled back."""

    bucket: int
    start: int
    stable: int
    next: int
    bytes: int


class LogGroupValue(msgspec.Struct):
    """A group: what it has committed of each bucket, its members, and how many messages it has left."""

    name: str
    committed: dict[int, int]
    members: list[str]
    lag: int


class LogDescription(msgspec.Struct):
    """The buckets and the groups of a log."""

    buckets: list[LogBucketValue]
    groups: list[LogGroupValue]


class LogReset(msgspec.Struct, forbid_unknown_fields=True):
    """Where a group reads on: "beginning", "latest", an offset, or a time; of one bucket or of all."""

    to: str | int
    bucket: _Bucket | None = None
    dry_run: bool = False


class LogOffsets(msgspec.Struct):
    """The offsets of a group after a reset, or those that a dry run has found."""

    offsets: dict[int, int]
    dry_run: bool


async def append_message(call: ApiCall) -> ApiAnswer:
    """Append one message; answers when it is durable."""
    new = call.json(NewLogMessage)
    body = decoded_body(new.body, new.body_base64) or b""
    place = await call.log.append(body, key=new.key.encode(), headers=new.headers or None, bucket=new.bucket)
    return ApiAnswer(LogPlace(place.bucket, place.offset), status=201)


async def append_batch(call: ApiCall) -> ApiAnswer:
    """Append many messages; answers when all are durable. Messages without a key are one batch of one bucket.

    With `Idempotency-Key`, which needs the `bucket`, they are one batch, and a repeat within a day appends nothing.
    """
    rows: list[NewLogMessage] = call.json(_Rows)
    buckets = {row.bucket for row in rows}
    if len(buckets) > 1:
        raise error_of(Code.INVALID_ARGUMENT, "all messages of a request name the same bucket, or none does")
    bucket = buckets.pop()
    bodies = [decoded_body(row.body, row.body_base64) or b"" for row in rows]
    keys = [row.key.encode() for row in rows] if any(row.key for row in rows) else None
    headers = [row.headers for row in rows] if any(row.headers for row in rows) else None
    if name := id_of_key(call.request, "append", call.topic):
        if bucket is None:
            raise error_of(Code.INVALID_ARGUMENT, "an Idempotency-Key needs the bucket of the messages")
        one = await call.log.append_named(
            bodies, bucket=bucket, name=f"{name[:20]}/0", keys=keys or (), headers=headers or ()
        )
        found = [one]
    else:
        found = await call.log.append_batch(bodies, keys=keys, headers=headers, bucket=bucket)
    batches = [LogBatchPlace(one.name, one.bucket, one.base, one.count) for one in found]
    return ApiAnswer(LogBatchPlaces(batches), status=201)


async def read_log(call: ApiCall) -> ApiAnswer:
    """The last messages of the log, or those of one bucket from an offset on, without waiting for more."""
    query: LogReadQuery = call.query
    headers = headers_of(query.header)
    if query.bucket is None:
        if query.offset is not None:
            raise error_of(Code.INVALID_ARGUMENT, "an offset needs its bucket")
        tail = await call.log.tail(query.tail or query.limit, uncommitted=query.uncommitted, headers=headers)
        return ApiAnswer(LogMessageList([log_message_value(message) for message in tail]))
    held = await call.log.offsets()
    if query.bucket >= len(held):
        raise error_of(Code.INVALID_ARGUMENT, f"topic {call.topic!r} has {len(held)} buckets, not {query.bucket}")
    start = query.offset if query.offset is not None else held[query.bucket].start
    found: list[LogMessage] = []
    async for batch in call.log.read(
        start={query.bucket: start}, buckets=(query.bucket,), uncommitted=query.uncommitted, headers=headers
    ):
        found.extend(batch)
        if len(found) >= query.limit:
            break
    if len(found) >= query.limit:
        found = found[: query.limit]
        following = found[-1].offset + 1
    else:
        # Everything up to the end was looked at, also what lacks the headers.
        end = held[query.bucket].next if query.uncommitted else held[query.bucket].stable
        following = max([start, end, *(message.offset + 1 for message in found[-1:])])
    return ApiAnswer(LogMessageList([log_message_value(message) for message in found], following))


def log_message_value(message: LogMessage) -> LogMessageValue:
    """A message of a log as the API answers it."""
    return LogMessageValue(
        bucket=message.bucket,
        offset=message.offset,
        at=iso_of(message.ts_ms),
        ts=message.ts_ms,
        key=message.key.decode("utf-8", "backslashreplace"),
        headers=message.headers,
        rolled_back=message.aborted,
        **encoded_body(message.body),
    )


async def describe_log(call: ApiCall) -> ApiAnswer:
    """The offsets of each bucket, and the groups with their lag."""
    buckets, groups = await call.log.offsets(), await call.log.groups()
    return ApiAnswer(
        LogDescription(
            [LogBucketValue(place, one.start, one.stable, one.next, one.bytes) for place, one in enumerate(buckets)],
            [LogGroupValue(one.name, dict(one.committed), list(one.members), one.lag) for one in groups],
        )
    )


async def reset_group(call: ApiCall) -> ApiAnswer:
    """Set the offsets of a group; its members read on from there. A dry run changes nothing."""
    wanted = call.json(LogReset)
    start: Start
    if isinstance(wanted.to, int) or wanted.to in ("beginning", "latest"):
        start = wanted.to
    elif wanted.to.isdecimal() and len(wanted.to) < 12:
        start = int(wanted.to)
    else:
        at = parse_time(wanted.to, call.client.now_ms())
        if at is None:
            raise error_of(Code.INVALID_ARGUMENT, "give where the group reads on")
        start = to_datetime(int(at))
    buckets = None if wanted.bucket is None else [wanted.bucket]
    offsets = await call.log.reset_group(call.path["group"], start, buckets=buckets, dry_run=wanted.dry_run)
    return ApiAnswer(LogOffsets(offsets, wanted.dry_run))


async def remove_group(call: ApiCall) -> ApiAnswer:
    """Forget a group that has no members."""
    if not await call.log.remove_group(call.path["group"]):
        raise error_of(Code.NOT_FOUND, f"topic {call.topic!r} has no group {call.path['group']!r}")
    return ApiAnswer(status=204)
