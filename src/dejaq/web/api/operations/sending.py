"""Sending: one message by its id, one or many at once, and many as lines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product

import msgspec

from dejaq import limits
from dejaq.domain.ids import valid_id
from dejaq.errors import MEANINGS, Code, DejaqError, Refused, error_of
from dejaq.sdk.times import RelativeTime, delay_us
from dejaq.web.api.cloudevents import is_event, message_headers
from dejaq.web.api.idempotency import id_of_key
from dejaq.web.api.operation import JSON, NDJSON, ApiAnswer, ApiCall
from dejaq.web.api.operations.messages import checked_id
from dejaq.web.api.times import parse_time
from dejaq.web.api.values import Group, ItemOutcome, NewMessage, Priority, Seconds, decoded_body
from dejaq.web.gateway import Gateway


class SendQuery(msgspec.Struct, forbid_unknown_fields=True):
    """The owner of the message; and its time and priority, when the request's body is the message's body."""

    group: Group = "default"
    at: str | None = None
    delay: Seconds | None = None
    priority: Priority = 0


class BatchQuery(msgspec.Struct, forbid_unknown_fields=True):
    """The owner of the messages."""

    group: Group = "default"


class SentBatch(msgspec.Struct):
    """The outcome of each message, in order."""

    results: list[ItemOutcome]


async def put_message(call: ApiCall) -> ApiAnswer:
    """Create the message of this id; a repeat with the same content changes nothing and answers 200.

    JSON describes the message. A body of any other kind is the message's body, also of a CloudEvent in binary mode.
    """
    message_id = checked_id(call)
    query: SendQuery = call.query
    now = call.client.now_ms()
    headers = call.request.headers
    if call.kind == JSON and not is_event(headers):
        new = call.json(NewMessage)
        if new.id not in (None, message_id):
            raise error_of(Code.INVALID_ARGUMENT, "the id in the body differs from the id in the address")
        body = decoded_body(new.body, new.body_base64) or b""
    else:
        new = NewMessage(at=query.at, delay=query.delay, priority=query.priority, headers=message_headers(headers))
        body = call.body
    new.id = message_id
    one = replace(_checked(0, new, "", now), body=body)
    outcome = (await _send_alike(call.gateway, call.topic, query.group, [one], named=True, relative=one.at is None))[0]
    code = Code[outcome.code]
    if not code.succeeded:
        raise error_of(code, outcome.detail)
    created = code is Code.OK
    place = {"Location": f"/api/v1/topics/{call.topic}/messages/{message_id}"} if created else {}
    return ApiAnswer(outcome, status=201 if created else 200, headers=place)


async def post_messages(call: ApiCall) -> ApiAnswer:
    """Send one message, a list, or one per line (NDJSON); the answer has an outcome for each.

    With `Idempotency-Key` messages without an id get one that depends on the key and their position, so that a repeat
    of the request creates nothing twice while the messages exist, or for as long as the topic's `dedup` says.
    """
    by_line = call.kind == NDJSON
    rows, failed = _lines(call.body) if by_line else (_listed(call), {})
    if len(rows) > limits.BATCH_COUNT_MAX:
        raise error_of(Code.BATCH_TOO_LARGE, f"{len(rows)} messages in one request; at most {limits.BATCH_COUNT_MAX}")
    group: str = call.query.group
    own = id_of_key(call.request, call.topic, group)
    outcomes = await send_rows(call.gateway, call.topic, group, rows, failed, own=own)
    if by_line:
        return ApiAnswer(content=b"".join(msgspec.json.encode(one) + b"\n" for one in outcomes), kind=NDJSON)
    status = 201 if all(one.ok for one in outcomes) else 207
    return ApiAnswer(SentBatch(outcomes), status=status)


def _listed(call: ApiCall) -> list[NewMessage | None]:
    found = call.json(NewMessage | list[NewMessage])  # type: ignore[arg-type]
    return list(found) if isinstance(found, list) else [found]


def _lines(body: bytes) -> tuple[list[NewMessage | None], dict[int, DejaqError]]:
    """Each line by itself: a line that is wrong is refused, and the others are sent."""
    rows: list[NewMessage | None] = []
    failed: dict[int, DejaqError] = {}
    for line in body.splitlines():
        if line.strip():
            try:
                rows.append(msgspec.json.decode(line, type=NewMessage))
            except (msgspec.DecodeError, RecursionError) as wrong:
                failed[len(rows)] = error_of(Code.INVALID_ARGUMENT, f"the line is not as described: {wrong}")
                rows.append(None)
    return rows, failed


@dataclass(frozen=True, slots=True)
class _Outgoing:
    """A message that can be sent, and its place in the request."""

    place: int
    id: str | None
    body: bytes
    # Its time, or None when the time counts from the present: then `delay` has the seconds.
    at: int | None
    delay: float
    row: NewMessage


async def send_rows(
    gateway: Gateway,
    topic: str,
    group: str,
    rows: Sequence[NewMessage | None],
    failed: dict[int, DejaqError],
    *,
    own: str = "",
) -> list[ItemOutcome]:
    """Send the rows that are not in `failed`, and give the outcome of each. Rows without an id get one from `own`."""
    now = gateway.client.now_ms()
    ready: list[_Outgoing] = []
    for place, row in enumerate(rows):
        if row is not None:
            try:
                ready.append(_checked(place, row, own, now))
            except Refused as wrong:
                failed[place] = wrong
    outcomes: dict[int, ItemOutcome] = {}
    # An id column, and whether the times are relative, belong to all rows of a batch.
    for named, relative in product((True, False), repeat=2):
        chosen = [one for one in ready if (one.id is not None, one.at is None) == (named, relative)]
        if chosen:
            outcomes |= await _send_alike(gateway, topic, group, chosen, named=named, relative=relative)
    for place, error in failed.items():
        known = rows[place]
        message_id = (known.id or "") if known is not None else ""
        outcomes[place] = ItemOutcome(message_id, error.code.name, False, f"{error.message} {error.details}".strip())
    return [outcomes[place] for place in range(len(rows))]


async def _send_alike(
    gateway: Gateway, topic: str, group: str, chosen: Sequence[_Outgoing], *, named: bool, relative: bool
) -> dict[int, ItemOutcome]:
    async with gateway.producer(topic, group) as producer:
        sent = await producer.send_batch(
            [one.body for one in chosen],
            at=None if relative else [one.at or 0 for one in chosen],
            delay=[one.delay for one in chosen] if relative else None,
            ids=[one.id or "" for one in chosen] if named else None,
            priorities=[one.row.priority for one in chosen],
            headers=[one.row.headers for one in chosen],
            results=True,
        )
    return {
        one.place: _outcome(message_id or one.id or "", code)
        for one, (message_id, code) in zip(chosen, sent.items(), strict=True)
    }


def _checked(place: int, row: NewMessage, own: str, now: int) -> _Outgoing:
    if row.id is not None and not valid_id(row.id):
        raise error_of(Code.INVALID_ID, details=row.id[:80])
    at = parse_time(row.at, now)
    if at is not None and row.delay is not None:
        raise error_of(Code.INVALID_ARGUMENT, "give one of at and delay")
    due = at if at is not None else now + -(-delay_us(row.delay or 0) // 1_000)
    if not 0 <= due <= limits.TS_MS_MAX:
        raise error_of(Code.INVALID_TIME, details=f"{due} ms")
    message_id = row.id if row.id is not None else f"{own}-{place}" if own else None
    body = decoded_body(row.body, row.body_base64) or b""
    if at is None or isinstance(at, RelativeTime):
        return _Outgoing(place, message_id, body, None, (due - now) / 1_000, row)
    return _Outgoing(place, message_id, body, at, 0.0, row)


def _outcome(message_id: str, code: Code) -> ItemOutcome:
    return ItemOutcome(message_id, code.name, code.succeeded, "" if code is Code.OK else MEANINGS[code])
