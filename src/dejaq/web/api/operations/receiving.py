"""Receiving: lease messages with a long poll, then settle each by its lease id."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Annotated

import msgspec
from msgspec import Meta
from starlette.requests import Request

from dejaq import limits
from dejaq.errors import Code, error_of
from dejaq.web.api.operation import ApiAnswer, ApiCall
from dejaq.web.api.times import iso_of, parse_time
from dejaq.web.api.values import Epoch, Lease, Seconds, Wait, decoded_body, encoded_body
from dejaq.web.leases import HELD_MAX, HeldByClient


class LeaseRequestValue(msgspec.Struct, forbid_unknown_fields=True):
    """How many messages to lease, how long to wait for the first, and how long the leases are, in seconds."""

    max: Annotated[int, Meta(ge=1, le=HELD_MAX)] = 1
    wait: Wait = 0
    lease: Lease = 30
    consumer: Annotated[str, Meta(min_length=1, max_length=40, pattern=r"^[0-9A-Za-z._-]+$")] = "http"


class LeaseValue(msgspec.Struct, omit_defaults=True):
    """A leased message; `lease` settles it."""

    lease: str
    expires: str
    expires_ms: int
    id: str
    topic: str
    at: str
    ts: int
    priority: int
    attempts: int
    version: int
    headers: dict[str, str]
    body_bytes: int
    body: str | None = None
    body_base64: str | None = None
    wants_reply: bool = False


class LeaseList(msgspec.Struct):
    """The messages that were due; none when the wait ended."""

    leases: list[LeaseValue]


class ExtendValue(msgspec.Struct, forbid_unknown_fields=True):
    """How long the lease lasts from now, in seconds."""

    seconds: Lease


class ReleaseValue(msgspec.Struct, forbid_unknown_fields=True):
    """When the message is delivered again: at a time, after a delay, or at once."""

    at: str | Epoch | None = None
    delay: Seconds | None = None


class RejectValue(msgspec.Struct, forbid_unknown_fields=True):
    """Why the message becomes a dead letter."""

    reason: Annotated[str, Meta(min_length=1, max_length=limits.REASON_CHARS_MAX)]
    error: Annotated[str, Meta(max_length=limits.ERROR_CHARS_MAX)] | None = None


class ReplyToSend(msgspec.Struct, forbid_unknown_fields=True):
    """The reply to the producer that waits for it."""

    body: str | None = None
    body_base64: str | None = None
    headers: dict[str, str] = {}


class ProgressValue(msgspec.Struct, forbid_unknown_fields=True):
    """How far the work is; the owner reads it in `progress` of the message."""

    text: Annotated[str, Meta(max_length=limits.PROGRESS_CHARS_MAX)]


async def take_leases(call: ApiCall) -> ApiAnswer:
    """Lease messages that are due; waits for the first as long as asked. A client that disconnects leases nothing."""
    wanted = call.json(LeaseRequestValue)
    taking = asyncio.ensure_future(
        call.gateway.leases.take(
            call.topic,
            name=wanted.consumer,
            lease_ms=round(wanted.lease * 1_000),
            most=wanted.max,
            wait=wanted.wait,
        )
    )
    leaving = asyncio.ensure_future(disconnected(call.request))
    try:
        await asyncio.wait((taking, leaving), return_when=asyncio.FIRST_COMPLETED)
        if not taking.done():
            taking.cancel()
            with suppress(asyncio.CancelledError):
                await taking
            return ApiAnswer(LeaseList([]))
        return ApiAnswer(LeaseList([lease_value(held) for held in await taking]))
    finally:
        leaving.cancel()
        taking.cancel()


async def disconnected(request: Request) -> None:
    """Wait until the client is gone."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


def lease_value(held: HeldByClient) -> LeaseValue:
    """A leased message as the API answers it."""
    lease = held.lease
    return LeaseValue(
        lease=held.lease_id,
        expires=iso_of(lease.expires_ms),
        expires_ms=lease.expires_ms,
        id=lease.id,
        topic=lease.topic,
        at=iso_of(lease.ts),
        ts=lease.ts,
        priority=lease.priority,
        attempts=lease.attempts,
        version=lease.version,
        headers=dict(lease.headers),
        body_bytes=lease.size,
        wants_reply=lease.wants_reply,
        **encoded_body(lease.body),
    )


async def delete_lease(call: ApiCall) -> ApiAnswer:
    """The message was processed: delete it."""
    lease_id = call.path["lease"]
    await call.leases.find(call.topic, lease_id).delete()
    call.leases.forget(lease_id)
    return ApiAnswer(status=204)


async def extend_lease(call: ApiCall) -> ApiAnswer:
    """Keep the message for longer; answers with the new end of the lease."""
    lease_id = call.path["lease"]
    lease = call.leases.find(call.topic, lease_id)
    await lease.extend(call.json(ExtendValue).seconds)
    return ApiAnswer(lease_value(HeldByClient(lease_id, lease)))


async def release_lease(call: ApiCall) -> ApiAnswer:
    """Give the message back; it is delivered again, to any consumer."""
    lease_id = call.path["lease"]
    target = call.json(ReleaseValue)
    at = parse_time(target.at, call.client.now_ms())
    if at is not None and target.delay is not None:
        raise error_of(Code.INVALID_ARGUMENT, "give one of at and delay")
    await call.leases.find(call.topic, lease_id).release(at=at, delay=target.delay)
    call.leases.forget(lease_id)
    return ApiAnswer(status=204)


async def reject_lease(call: ApiCall) -> ApiAnswer:
    """The message can never be processed: make it a dead letter."""
    lease_id = call.path["lease"]
    why = call.json(RejectValue)
    await call.leases.find(call.topic, lease_id).reject(why.reason, error=why.error)
    call.leases.forget(lease_id)
    return ApiAnswer(status=204)


async def reply_lease(call: ApiCall) -> ApiAnswer:
    """The message was processed: delete it, and answer its producer in the same transaction."""
    lease_id = call.path["lease"]
    reply = call.json(ReplyToSend)
    lease = call.leases.find(call.topic, lease_id)
    await lease.delete(reply=decoded_body(reply.body, reply.body_base64) or b"", headers=reply.headers or None)
    call.leases.forget(lease_id)
    return ApiAnswer(status=204)


async def report_progress(call: ApiCall) -> ApiAnswer:
    """Report how far the work on a leased message is."""
    await call.leases.find(call.topic, call.path["lease"]).progress(call.json(ProgressValue).text)
    return ApiAnswer(status=204)
