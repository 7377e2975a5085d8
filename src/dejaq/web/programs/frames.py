"""The frames of a program's WebSocket, as JSON text. docs/browser.md describes them."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from dejaq.web.api.operations.receiving import LeaseValue
from dejaq.web.api.values import Epoch, Group, ItemOutcome, Lease, NewMessage, Seconds

FRAME_BYTES_MAX = 2 * 1024 * 1024
MESSAGES_MAX = 1_000
CREDIT_MAX = 1_000
_Number = Annotated[int, Meta(ge=0, le=2**53)]
_Topic = Annotated[str, Meta(min_length=1, max_length=200)]


class Hello(msgspec.Struct, forbid_unknown_fields=True, tag="hello", tag_field="call"):
    """The first frame: an API key or a token, or none where the page has a session."""

    token: Annotated[str, Meta(max_length=8_192)] = ""


class SendCall(msgspec.Struct, forbid_unknown_fields=True, tag="send", tag_field="call"):
    """Create messages."""

    n: _Number
    topic: _Topic
    messages: Annotated[list[NewMessage], Meta(max_length=MESSAGES_MAX)]
    group: Group = "default"


class OpenCall(msgspec.Struct, forbid_unknown_fields=True, tag="open", tag_field="call"):
    """Begin to consume: at most `credit` messages are leased and not settled at one time."""

    n: _Number
    topic: _Topic
    name: Annotated[str, Meta(min_length=1, max_length=40, pattern=r"^[0-9A-Za-z._-]+$")]
    lease: Lease = 30
    credit: Annotated[int, Meta(ge=1, le=CREDIT_MAX)] = 10


class CloseCall(msgspec.Struct, forbid_unknown_fields=True, tag="close", tag_field="call"):
    """End a consumer; its messages that are not settled are delivered again."""

    n: _Number
    consumer: _Number


class SettleCall(msgspec.Struct, forbid_unknown_fields=True, tag="settle", tag_field="call"):
    """Settle or extend a lease: `delete`, `release` (at a time, after a delay), `reject` (why), `extend` (seconds)."""

    n: _Number
    lease: Annotated[str, Meta(max_length=64)]
    how: Annotated[str, Meta(pattern="^(delete|release|reject|extend)$")]
    at: str | Epoch | None = None
    delay: Seconds | None = None
    reason: Annotated[str, Meta(max_length=200)] = ""
    seconds: Lease = 30


Call = SendCall | OpenCall | CloseCall | SettleCall


class Ready(msgspec.Struct):
    """The answer to the first frame: the broker's clock."""

    ready: bool
    now: int


class Answer(msgspec.Struct, omit_defaults=True):
    """The answer to the call `n`: what it has done, or the problem, as the HTTP API describes it."""

    n: int
    results: list[ItemOutcome] | None = None
    consumer: int | None = None
    expires_ms: int | None = None
    error: dict[str, object] | None = None


class Leased(msgspec.Struct):
    """Messages that a consumer has leased, or why it has ended."""

    consumer: int
    leases: list[LeaseValue]
    error: dict[str, object] | None = None
