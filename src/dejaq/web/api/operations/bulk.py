"""Changes of all messages of one owner that match: move, edit, cancel; with `dry_run` only a count."""

from __future__ import annotations

import msgspec

from dejaq.errors import Code, error_of
from dejaq.web.api.filters import OwnerFilter, where_of
from dejaq.web.api.operation import ApiAnswer, ApiCall
from dejaq.web.api.times import parse_time
from dejaq.web.api.values import BulkOutcome, Epoch, MessageChange, Seconds, bulk_outcome, decoded_body


class MoveTarget(msgspec.Struct, forbid_unknown_fields=True):
    """The new time: `at`, `delay` seconds from now, or `shift` seconds from the time of each message."""

    at: str | Epoch | None = None
    delay: Seconds | None = None
    shift: Seconds | None = None


async def _dry_run(call: ApiCall) -> ApiAnswer:
    query: OwnerFilter = call.query
    where = where_of(query, call.client.now_ms())
    if where.is_empty and not query.all:
        raise error_of(Code.INVALID_ARGUMENT, "an empty filter matches every message of the group; pass all=true")
    async with call.gateway.producer(call.topic, query.group) as producer:
        matched = await producer.count_where(where)
    return ApiAnswer(BulkOutcome(matched=matched, done=0, refused={}, examples={}, dry_run=True))


async def move_messages(call: ApiCall) -> ApiAnswer:
    """Give every message that matches another time, or shift each."""
    target = call.json(MoveTarget)
    now = call.client.now_ms()
    if [target.at, target.delay, target.shift].count(None) != 2:
        raise error_of(Code.INVALID_ARGUMENT, "give one of at, delay and shift")
    at = parse_time(target.at, now)
    query: OwnerFilter = call.query
    if query.dry_run:
        return await _dry_run(call)
    async with call.gateway.producer(call.topic, query.group) as producer:
        result = await producer.move_where(
            where_of(query, now), at=at, delay=target.delay, shift=target.shift, everything=query.all
        )
    return ApiAnswer(bulk_outcome(result))


async def edit_messages(call: ApiCall) -> ApiAnswer:
    """Change every message that matches."""
    change = call.json(MessageChange)
    now = call.client.now_ms()
    at, body = parse_time(change.at, now), decoded_body(change.body, change.body_base64)
    query: OwnerFilter = call.query
    if query.dry_run:
        return await _dry_run(call)
    async with call.gateway.producer(call.topic, query.group) as producer:
        result = await producer.edit_where(
            where_of(query, now),
            body=body,
            at=at,
            delay=change.delay,
            priority=change.priority,
            headers=change.headers,
            everything=query.all,
        )
    return ApiAnswer(bulk_outcome(result))


async def cancel_messages(call: ApiCall) -> ApiAnswer:
    """Remove every message that matches."""
    query: OwnerFilter = call.query
    if query.dry_run:
        return await _dry_run(call)
    async with call.gateway.producer(call.topic, query.group) as producer:
        result = await producer.cancel_where(where_of(query, call.client.now_ms()), everything=query.all)
    return ApiAnswer(bulk_outcome(result))
