"""One operation of the HTTP API, the request it gets, and the answer it gives."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol, TypeVar

import msgspec
from starlette.requests import Request

from dejaq.errors import Code, error_of
from dejaq.sdk.client import Client
from dejaq.sdk.consuming.lease import Lease
from dejaq.sdk.log.log import Log
from dejaq.web.gateway import Gateway

JSON = "application/json"
NDJSON = "application/x-ndjson"
BYTES = "application/octet-stream"
BODY_BYTES_MAX = 64 * 1024 * 1024

Value = TypeVar("Value")
Query = TypeVar("Query", bound=msgspec.Struct)


class ApiRight(StrEnum):
    """What an operation needs; a read-only gateway allows `read` alone."""

    READ = "read"
    SEND = "send"
    CONSUME = "consume"
    ADMIN = "admin"


class NoQuery(msgspec.Struct, forbid_unknown_fields=True):
    """An operation without query parameters."""


@dataclass(frozen=True, slots=True)
class ApiAnswer:
    """What an operation answers: a value that becomes JSON, bytes, or lines of JSON as they come."""

    value: object = None
    content: bytes | None = None
    lines: AsyncIterator[bytes] | None = None
    status: int = 200
    kind: str = JSON
    headers: Mapping[str, str] = field(default_factory=dict)


class HeldLeases(Protocol):
    """Finds leased messages by the lease id of the API."""

    def find(self, topic: str, lease_id: str) -> Lease:
        """The message; raises LEASE_LOST when the caller does not hold it."""

    def forget(self, lease_id: str) -> None:
        """The message was settled."""


@dataclass(frozen=True, slots=True)
class ApiCall:
    """One request."""

    gateway: Gateway
    request: Request
    query: Any
    path: Mapping[str, str]
    body: bytes

    @property
    def client(self) -> Client:
        """The connection to the brokers."""
        return self.gateway.client

    @property
    def topic(self) -> str:
        """The topic in the path."""
        return self.path["topic"]

    @property
    def log(self) -> Log:
        """The log topic in the path."""
        return self.gateway.log(self.topic)

    @property
    def leases(self) -> HeldLeases:
        """The messages that the caller holds: those of HTTP clients, or of the program whose socket this came by."""
        found: HeldLeases | None = getattr(self.request.state, "leases", None)
        return found if found is not None else self.gateway.leases

    @property
    def kind(self) -> str:
        """The media type of the request's body, without parameters."""
        return self.request.headers.get("content-type", "").partition(";")[0].strip().lower()

    def json(self, kind: type[Value]) -> Value:
        """The request's body; raises INVALID_ARGUMENT when it is not JSON of this form."""
        try:
            return msgspec.json.decode(self.body or b"{}", type=kind)
        except (msgspec.DecodeError, RecursionError) as wrong:
            raise error_of(Code.INVALID_ARGUMENT, f"the request's body is not as described: {wrong}") from None

    @property
    def wants_lines(self) -> bool:
        """Whether the caller accepts NDJSON."""
        return NDJSON in self.request.headers.get("accept", "")

    @property
    def if_match(self) -> int | None:
        """The version that the client saw, from `If-Match`; None without a condition."""
        text = self.request.headers.get("if-match")
        if text is None or text.strip() == "*":
            return None
        digits = text.strip().removeprefix('"').removesuffix('"')
        if not (digits.isascii() and digits.isdecimal() and len(digits) < 19):
            raise error_of(Code.INVALID_ARGUMENT, 'If-Match is the ETag of a message, such as "3"')
        return int(digits)


Handler = Callable[[ApiCall], Awaitable[ApiAnswer]]


@dataclass(frozen=True, slots=True)
class ApiOperation:
    """One row of the table: it drives routing, checks of the request, OpenAPI and the reference page."""

    method: str
    path: str
    name: str
    summary: str
    right: ApiRight
    handle: Handler
    query: type[msgspec.Struct] = NoQuery
    # The form of a JSON body, and the media types that are accepted.
    body: Any = None
    body_kinds: tuple[str, ...] = (JSON,)
    # The form of a JSON answer, and the media types that are given.
    answer: Any = None
    answer_kinds: tuple[str, ...] = (JSON,)
    status: int = 200
    # Whether 207 answers that some of it was refused.
    partly: bool = False
    # Request headers that it understands, with their meanings.
    headers: Mapping[str, str] = field(default_factory=dict)

    @property
    def tag(self) -> str:
        """The group that it belongs to."""
        return self.handle.__module__.rpartition(".")[2].replace("_", " ")
