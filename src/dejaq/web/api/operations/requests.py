"""Requests: send a message and wait until its consumer replies."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextlib import suppress
from typing import Annotated, Literal

import msgspec
from msgspec import Meta
from starlette.requests import ClientDisconnect

from dejaq.errors import Code, error_of
from dejaq.sdk.admin.replies import Reply
from dejaq.web.api.idempotency import id_of_key
from dejaq.web.api.operation import ApiAnswer, ApiCall
from dejaq.web.api.operations.messages import checked_id
from dejaq.web.api.operations.receiving import disconnected
from dejaq.web.api.times import times_of
from dejaq.web.api.values import Group, NewMessage, decoded_body, encoded_body

# How long a request may wait from now on, for the time of its message and the reply.
TOTAL_SECONDS_MAX = 60
_Timeout = Annotated[float, Meta(gt=0, le=30)]


class RequestQuery(msgspec.Struct, forbid_unknown_fields=True):
    """The owner of the message."""

    group: Group = "default"


class NewRequest(NewMessage, forbid_unknown_fields=True, kw_only=True):
    """A message whose sender waits for the reply for `timeout` seconds from its time; `keep` is the reply that counts
    when there are several.
    """

    timeout: _Timeout = 20
    keep: Literal["first", "last"] = "first"


class ReplyValue(msgspec.Struct, omit_defaults=True):
    """The reply to the message with this id."""

    id: str
    headers: dict[str, str]
    body: str | None = None
    body_base64: str | None = None


class ReplyWait(msgspec.Struct, forbid_unknown_fields=True):
    """How long to wait for the reply, in seconds."""

    timeout: _Timeout = 20


async def send_request(call: ApiCall) -> ApiAnswer:
    """Send one message and wait until its consumer replies; answers with the reply. 503 and `INDEFINITE` when none
    comes in time: the message stays, and `takeReply` gets a later reply.

    With an id, or an `Idempotency-Key`, a repeat waits for the same reply.
    """
    new = call.json(NewRequest)
    own = id_of_key(call.request, "request", call.topic, call.query.group)
    now = call.client.now_ms()
    when = times_of(new.at, new.delay, now)
    left = (when.get("at", now) - now) / 1_000 if "at" in when else when.get("delay", 0.0)
    if left + new.timeout > TOTAL_SECONDS_MAX:
        raise error_of(Code.INVALID_ARGUMENT, f"the reply must come within {TOTAL_SECONDS_MAX} seconds from now")
    async with call.gateway.producer(call.topic, call.query.group) as producer:
        reply = await _unless_gone(
            call,
            producer.request(
                decoded_body(new.body, new.body_base64) or b"",
                timeout=new.timeout,
                id=new.id or own or None,
                priority=new.priority,
                headers=new.headers or None,
                keep=new.keep,
                **when,
            ),
        )
    return ApiAnswer(_value(reply))


async def take_reply(call: ApiCall) -> ApiAnswer:
    """Wait for the reply to a message that was sent with `sendRequest`, and take it."""
    wanted = call.json(ReplyWait)
    message_id = checked_id(call)
    async with call.gateway.producer(call.topic, call.query.group) as producer:
        return ApiAnswer(_value(await _unless_gone(call, producer.reply_to(message_id, timeout=wanted.timeout))))


async def _unless_gone(call: ApiCall, waiting: Coroutine[object, object, Reply]) -> Reply:
    """Wait for a reply; a client that disconnects takes none."""
    task = asyncio.ensure_future(waiting)
    leaving = asyncio.ensure_future(disconnected(call.request))
    try:
        await asyncio.wait((task, leaving), return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientDisconnect
        return await task
    finally:
        for one in (task, leaving):
            one.cancel()
        with suppress(asyncio.CancelledError, Exception):
            await task


def _value(reply: Reply) -> ReplyValue:
    return ReplyValue(reply.id, dict(reply.headers), **encoded_body(reply.body))
