"""The frames of a program's WebSocket, as JSON text. docs/browser.md describes them."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from dejaq import limits
from dejaq.web.api.operations.receiving import LeaseValue, ReplyToSend
from dejaq.web.api.values import Epoch, Group, ItemOutcome, Lease, NewMessage, Seconds
from dejaq.web.live.hub import VIEWS_PER_CLIENT_MAX as VIEWS_MAX
from dejaq.web.live.views import View

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
    """Settle or extend a lease: `delete`, with a `reply` or without, `release` (at a time, after a delay), `reject`
    (why), `extend` (seconds), or report `progress` (text).
    """

    n: _Number
    lease: Annotated[str, Meta(max_length=64)]
    how: Annotated[str, Meta(pattern="^(delete|release|reject|extend|progress)$")]
    at: str | Epoch | None = None
    delay: Seconds | None = None
    reason: Annotated[str, Meta(max_length=200)] = ""
    seconds: Lease = 30
    reply: ReplyToSend | None = None
    text: Annotated[str, Meta(max_length=limits.PROGRESS_CHARS_MAX)] = ""


class WatchCall(msgspec.Struct, forbid_unknown_fields=True, tag="watch", tag_field="call"):
    """What the program looks at from now on, in place of what it looked at before."""

    n: _Number
    views: Annotated[list[View], Meta(max_length=VIEWS_MAX)]


class OperationCall(msgspec.Struct, forbid_unknown_fields=True, tag="operation", tag_field="call"):
    """Run an operation of the HTTP API by its `operationId`."""

    n: _Number
    operation: Annotated[str, Meta(max_length=64)]
    path: dict[str, str] = {}
    query: dict[str, str | float | bool | list[str]] = {}
    headers: dict[str, str] = {}
    # Empty when it is absent.
    body: msgspec.Raw = msgspec.Raw()


Call = SendCall | OpenCall | CloseCall | SettleCall | WatchCall | OperationCall


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
    status: int | None = None
    value: msgspec.Raw | None = None
    error: dict[str, object] | None = None


class Leased(msgspec.Struct):
    """Messages that a consumer has leased, or why it has ended."""

    consumer: int
    leases: list[LeaseValue]
    error: dict[str, object] | None = None
