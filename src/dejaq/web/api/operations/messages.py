"""Messages: read, change and cancel one by its id; list, count and draw many."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from dejaq import limits
from dejaq.domain.ids import valid_id
from dejaq.domain.message import Message
from dejaq.errors import Code, error_of
from dejaq.sdk.admin.history import HistoryEvent
from dejaq.web.api.cloudevents import response_headers
from dejaq.web.api.filters import MessageFilter, PageQuery, conditions_of, cursor_of, next_link, opaque
from dejaq.web.api.operation import BYTES, NDJSON, ApiAnswer, ApiCall
from dejaq.web.api.times import parse_time
from dejaq.web.api.values import (
    CountValue,
    Group,
    MessageChange,
    MessageList,
    decoded_body,
    message_value,
)


class OwnerQuery(msgspec.Struct, forbid_unknown_fields=True):
    """The producer group that owns the message."""

    group: Group = "default"


class HistogramQuery(MessageFilter):
    """A filter with a start and an end, and the length of each step in milliseconds."""

    step_ms: Annotated[int, Meta(ge=1, le=limits.TS_MS_MAX)] = 1_000


class HistogramValue(msgspec.Struct):
    """How many messages are due in each step that has messages, as two columns."""

    starts: list[int]
    counts: list[int]


class HistoryQuery(msgspec.Struct, forbid_unknown_fields=True):
    """How much of a history to search."""

    limit: Annotated[int, Meta(ge=1, le=limits.HISTORY_EVENTS_MAX)] = 200
    cursor: str | None = None


class HistoryValue(msgspec.Struct):
    """What the journals know of a message, the oldest event first; `next` searches further back."""

    events: list[HistoryEvent]
    notes: list[str]
    next: str | None


def checked_id(call: ApiCall) -> str:
    """The id in the path; raises INVALID_ID."""
    message_id = call.path["id"]
    if not valid_id(message_id):
        raise error_of(Code.INVALID_ID, details=message_id[:80])
    return message_id


async def found_message(call: ApiCall, *, fetch_large: bool = False) -> Message:
    """The message in the path; raises NOT_FOUND."""
    message_id = checked_id(call)
    (message,) = await call.client.get(call.topic, [message_id], fetch_large=fetch_large)
    if message is None:
        raise error_of(Code.NOT_FOUND, f"topic {call.topic} has no message {message_id}")
    return message


async def get_message(call: ApiCall) -> ApiAnswer:
    """One message; the ETag is its version. A large body is only read by `/body`."""
    message = await found_message(call)
    return ApiAnswer(message_value(message, call.client.now_ms()), headers={"ETag": f'"{message.version}"'})


async def get_body(call: ApiCall) -> ApiAnswer:
    """The body alone, as bytes; headers of a CloudEvent come back as `ce-*`."""
    message = await found_message(call, fetch_large=True)
    kind, headers = response_headers(message.headers)
    # A browser must not run what a producer sent, whatever kind the producer named.
    safe = {"Content-Disposition": "attachment", "Content-Security-Policy": "default-src 'none'; sandbox"}
    return ApiAnswer(
        content=message.body, kind=kind or BYTES, headers={**headers, **safe, "ETag": f'"{message.version}"'}
    )


async def edit_message(call: ApiCall) -> ApiAnswer:
    """Change one message of its owner; with `If-Match` only if it still has this version."""
    change = call.json(MessageChange)
    message_id = checked_id(call)
    async with call.gateway.producer(call.topic, call.query.group) as producer:
        await producer.edit(
            message_id,
            body=decoded_body(change.body, change.body_base64),
            at=parse_time(change.at, call.client.now_ms()),
            delay=change.delay,
            priority=change.priority,
            headers=change.headers,
            version=call.if_match,
        )
    return await get_message(call)


async def cancel_message(call: ApiCall) -> ApiAnswer:
    """Remove one message of its owner; with `If-Match` only if it still has this version."""
    message_id = checked_id(call)
    async with call.gateway.producer(call.topic, call.query.group) as producer:
        await producer.cancel(message_id, versions=call.if_match)
    return ApiAnswer(status=204)


async def list_messages(call: ApiCall) -> ApiAnswer:
    """A page of messages in the order of their time; NDJSON with `Accept: application/x-ndjson`."""
    query: PageQuery = call.query
    now = call.client.now_ms()
    page = await call.client.browse_page(
        call.topic, page_size=query.limit, cursor=cursor_of(query.cursor), **conditions_of(query, now)
    )
    values = [message_value(message, now) for message in page.messages]
    if not query.bodies:
        for value in values:
            value.body = value.body_base64 = None
    cursor = opaque(page.cursor)
    headers = next_link(call, cursor)
    if call.wants_lines:
        lines = b"".join(msgspec.json.encode(value) + b"\n" for value in values)
        return ApiAnswer(content=lines, kind=NDJSON, headers=headers)
    return ApiAnswer(MessageList(values, cursor), headers=headers)


async def count_messages(call: ApiCall) -> ApiAnswer:
    """How many messages match, exactly."""
    where = conditions_of(call.query, call.client.now_ms())
    return ApiAnswer(CountValue(await call.client.count(call.topic, **where)))


async def draw_histogram(call: ApiCall) -> ApiAnswer:
    """How many messages match in each step of time, exactly."""
    where = conditions_of(call.query, call.client.now_ms())
    start, end = where.get("start"), where.get("end")
    if start is None or end is None:
        raise error_of(Code.INVALID_ARGUMENT, "a histogram needs a start and an end")
    steps = await call.client.histogram(
        call.topic,
        start=start,
        end=end,
        step=call.query.step_ms / 1_000,
        status=where.get("status"),
        group=where.get("group"),
        consumer=where.get("consumer"),
        priorities=where.get("priorities"),
        headers=where.get("headers"),
    )
    return ApiAnswer(HistogramValue([at for at, _ in steps], [number for _, number in steps]))


async def read_history(call: ApiCall) -> ApiAnswer:
    """What the journals of all brokers know of the message, also when it is gone."""
    query: HistoryQuery = call.query
    found = await call.client.history(
        call.topic, checked_id(call), count=query.limit, seconds=2.0, cursor=cursor_of(query.cursor)
    )
    cursor = opaque(found.cursor)
    return ApiAnswer(HistoryValue(list(found.events), list(found.notes), cursor), headers=next_link(call, cursor))
