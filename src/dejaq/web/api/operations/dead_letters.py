"""Dead letters: list, send back, remove."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from dejaq import limits
from dejaq.domain.dead_letter import REASON, TOPIC
from dejaq.errors import Code, Missing, error_of
from dejaq.web.api.filters import PageQuery, conditions_of, cursor_of, next_link, opaque
from dejaq.web.api.operation import ApiAnswer, ApiCall
from dejaq.web.api.times import parse_time
from dejaq.web.api.values import BulkOutcome, MessageList, bulk_outcome, message_value


class DeadLetterQuery(PageQuery):
    """A filter on the time of death, and the reason."""

    reason: str | None = None


class DeadLetterChoice(msgspec.Struct, forbid_unknown_fields=True):
    """Which dead letters: those of `ids`, or all that match the other conditions; without any, `all` must be true."""

    ids: Annotated[list[str], Meta(max_length=limits.BATCH_COUNT_MAX)] | None = None
    start: str | None = None
    end: str | None = None
    reason: str | None = None
    group: str | None = None
    all: bool = False
    dry_run: bool = False


class RedriveChoice(DeadLetterChoice):
    """Which dead letters, and another topic to move them to."""

    to: str | None = None


async def list_dead_letters(call: ApiCall) -> ApiAnswer:
    """A page of dead letters of a topic, oldest first; their `dejaq-dead-*` headers say why, when and how often."""
    query: DeadLetterQuery = call.query
    now = call.client.now_ms()
    where = conditions_of(query, now)
    headers = {**(where["headers"] or {}), TOPIC: call.topic}
    if query.reason is not None:
        headers[REASON] = query.reason
    where["headers"] = headers
    place = await call.client.dead_letters(call.topic).where()
    try:
        page = await call.client.browse_page(place, page_size=query.limit, cursor=cursor_of(query.cursor), **where)
    except Missing:
        # It is created with the first dead letter; a topic that does not exist is an error.
        await call.client.describe_topic(call.topic)
        return ApiAnswer(MessageList([], None))
    cursor = opaque(page.cursor)
    return ApiAnswer(
        MessageList([message_value(message, now) for message in page.messages], cursor),
        headers=next_link(call, cursor),
    )


async def redrive(call: ApiCall) -> ApiAnswer:
    """Move dead letters back to their topic or another one, due now, with zero attempts."""
    choice = call.json(RedriveChoice)
    return await _each(call, choice, to=choice.to)


async def purge(call: ApiCall) -> ApiAnswer:
    """Remove dead letters permanently."""
    return await _each(call, call.json(DeadLetterChoice), purged=True)


async def _each(call: ApiCall, choice: DeadLetterChoice, *, to: str | None = None, purged: bool = False) -> ApiAnswer:
    now = call.client.now_ms()
    where = {
        "start": parse_time(choice.start, now),
        "end": parse_time(choice.end, now),
        "reason": choice.reason,
        "group": choice.group or None,
    }
    if choice.ids is None and not choice.all and not any(value is not None for value in where.values()):
        raise error_of(Code.INVALID_ARGUMENT, "an empty choice matches every dead letter of the topic; pass all=true")
    letters = call.client.dead_letters(call.topic)
    if choice.dry_run:
        matched = len(choice.ids) if choice.ids is not None else await letters.count(**where)  # type: ignore[arg-type]
        return ApiAnswer(BulkOutcome(matched=matched, done=0, refused={}, examples={}, dry_run=True))
    if purged:
        result = await letters.purge(choice.ids, results=True, **where)  # type: ignore[arg-type]
    else:
        result = await letters.redrive(choice.ids, to=to, results=True, **where)  # type: ignore[arg-type]
    return ApiAnswer(bulk_outcome(result))
