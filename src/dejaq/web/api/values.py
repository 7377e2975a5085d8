"""The forms of requests and answers."""

from __future__ import annotations

import base64
import binascii
from typing import Annotated

import msgspec
from msgspec import Meta

from dejaq import limits
from dejaq.domain.message import Message
from dejaq.errors import Code, error_of
from dejaq.sdk.changing.bulk import BulkResult
from dejaq.web.api.times import iso_of

Seconds = Annotated[float, Meta(ge=-1e9, le=1e9)]
Wait = Annotated[float, Meta(ge=0, le=30)]
Priority = Annotated[int, Meta(ge=limits.PRIORITY_MIN, le=limits.PRIORITY_MAX)]
Epoch = Annotated[int, Meta(ge=0, le=limits.TS_MS_MAX)]
Lease = Annotated[float, Meta(ge=limits.LEASE_MS_MIN / 1_000, le=limits.LEASE_MS_MAX / 1_000)]
Group = Annotated[str, Meta(max_length=limits.GROUP_CHARS_MAX)]


class MessageValue(msgspec.Struct, omit_defaults=True):
    """A message. Its body is `body` when it is text, otherwise `body_base64`; a large body is read by itself."""

    id: str
    topic: str
    at: str
    ts: int
    status: str
    priority: int
    attempts: int
    version: int
    group: str
    consumer: str
    bucket: int
    headers: dict[str, str]
    body_bytes: int
    body: str | None = None
    body_base64: str | None = None
    large: bool = False
    progress: str = ""


class NewMessage(msgspec.Struct, forbid_unknown_fields=True):
    """A message to send: its time is `at`, or `delay` seconds from now, or now."""

    id: str | None = None
    body: str | None = None
    body_base64: str | None = None
    at: str | Epoch | None = None
    delay: Seconds | None = None
    priority: Priority = 0
    headers: dict[str, str] = {}


class MessageChange(msgspec.Struct, forbid_unknown_fields=True):
    """What changes of a message; what is absent stays. A header whose value is null is removed."""

    body: str | None = None
    body_base64: str | None = None
    at: str | Epoch | None = None
    delay: Seconds | None = None
    priority: Priority | None = None
    headers: dict[str, str | None] | None = None


class ItemOutcome(msgspec.Struct, omit_defaults=True):
    """What happened to one message of a batch."""

    id: str
    code: str
    ok: bool
    detail: str = ""


class BulkOutcome(msgspec.Struct):
    """What happened to all messages that matched: how many were changed, how many refused and why, with examples."""

    matched: int
    done: int
    refused: dict[str, int]
    examples: dict[str, str]
    dry_run: bool


class MessageList(msgspec.Struct):
    """A page of messages; `next` asks for the next page, and is null after the last."""

    messages: list[MessageValue]
    next: str | None


class CountValue(msgspec.Struct):
    """An exact number."""

    count: int


def encoded_body(body: bytes) -> dict[str, str]:
    """A body as `body` or `body_base64`."""
    try:
        return {"body": body.decode("utf-8")}
    except UnicodeDecodeError:
        return {"body_base64": base64.b64encode(body).decode("ascii")}


def decoded_body(text: str | None, encoded: str | None) -> bytes | None:
    """The bytes of `body` or `body_base64`; None when neither is given."""
    if encoded is None:
        return None if text is None else text.encode("utf-8", "surrogatepass")
    if text is not None:
        raise error_of(Code.INVALID_ARGUMENT, "give one of body and body_base64")
    try:
        return base64.b64decode(encoded, validate=True)
    except (binascii.Error, ValueError):
        raise error_of(Code.INVALID_ARGUMENT, "body_base64 is not base64") from None


def message_value(message: Message, now_ms: int) -> MessageValue:
    """A message as the API answers it."""
    return MessageValue(
        id=message.id,
        topic=message.topic,
        at=iso_of(message.ts),
        ts=message.ts,
        status=str(message.status(now_ms)),
        priority=message.priority,
        attempts=message.attempts,
        version=message.version,
        group=message.producer_group,
        consumer=message.lock_consumer,
        bucket=message.bucket,
        headers=dict(message.headers),
        body_bytes=message.size,
        large=message.large is not None,
        progress=message.progress,
        **({} if message.large is not None else encoded_body(message.body)),
    )


def bulk_outcome(result: BulkResult) -> BulkOutcome:
    """The outcome of a bulk change as the API answers it."""
    return BulkOutcome(
        matched=result.matched,
        done=result.done,
        refused={code.name: count for code, count in result.refused.items()},
        examples={message_id: code.name for message_id, code in result.examples.items()},
        dry_run=False,
    )
