"""Which messages a request concerns, from its query parameters."""

from __future__ import annotations

import base64
import binascii
from typing import Annotated
from urllib.parse import urlencode

import msgspec
from msgspec import Meta

from dejaq import limits
from dejaq.errors import Code, error_of
from dejaq.sdk.admin.queries import Conditions
from dejaq.sdk.changing.bulk import Where
from dejaq.web.api.operation import ApiCall
from dejaq.web.api.times import parse_time
from dejaq.web.api.values import Group, Priority

PAGE = 100


class MessageFilter(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """`start <= time < end`, the status, the owner, the consumer, priorities, and headers as `name:value`."""

    start: str | None = None
    end: str | None = None
    status: str | None = None
    group: Group | None = None
    consumer: str | None = None
    priority_min: Priority | None = None
    priority_max: Priority | None = None
    header: list[str] = []


class PageQuery(MessageFilter):
    """A filter, and the part of what matches."""

    limit: Annotated[int, Meta(ge=1, le=limits.BROWSE_PAGE_MAX)] = PAGE
    cursor: str | None = None
    bodies: bool = True


class OwnerFilter(msgspec.Struct, forbid_unknown_fields=True):
    """The messages of one owner that a bulk change concerns; without a condition, `all` must be true."""

    group: Group = "default"
    start: str | None = None
    end: str | None = None
    priority_min: Priority | None = None
    priority_max: Priority | None = None
    header: list[str] = []
    all: bool = False
    dry_run: bool = False


def conditions_of(where: MessageFilter, now_ms: int) -> Conditions:
    """The filter as the client takes it."""
    return Conditions(
        start=parse_time(where.start, now_ms),
        end=parse_time(where.end, now_ms),
        status=where.status or None,
        group=where.group or None,
        consumer=where.consumer or None,
        priorities=_priorities(where.priority_min, where.priority_max),
        headers=headers_of(where.header),
    )


def where_of(where: OwnerFilter, now_ms: int) -> Where:
    """The filter of a bulk change as the client takes it."""
    return Where(
        start=parse_time(where.start, now_ms),
        end=parse_time(where.end, now_ms),
        priorities=_priorities(where.priority_min, where.priority_max),
        headers=headers_of(where.header),
    )


def _priorities(low: int | None, high: int | None) -> tuple[int, int] | None:
    if low is None and high is None:
        return None
    return (
        limits.PRIORITY_MIN if low is None else low,
        limits.PRIORITY_MAX if high is None else high,
    )


def headers_of(texts: list[str]) -> dict[str, str] | None:
    """The headers in parameters such as `kind:mail`; None without any."""
    found: dict[str, str] = {}
    for text in texts:
        name, colon, value = text.partition(":")
        if not name or not colon:
            raise error_of(Code.INVALID_ARGUMENT, f"{text[:60]!r} is not a header; write name:value")
        found[name] = value
    return found or None


def opaque(cursor: bytes) -> str | None:
    """A cursor as text; None after the last page."""
    return base64.urlsafe_b64encode(cursor).decode("ascii").rstrip("=") if cursor else None


def cursor_of(text: str | None) -> bytes:
    """The cursor behind its text."""
    if not text:
        return b""
    try:
        return base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        raise error_of(Code.INVALID_ARGUMENT, "the cursor is not one that this API gave") from None


def next_link(call: ApiCall, cursor: str | None) -> dict[str, str]:
    """The `Link` header to the next page."""
    if cursor is None:
        return {}
    kept = [(name, value) for name, value in call.request.query_params.multi_items() if name != "cursor"]
    return {"Link": f'<{call.request.url.path}?{urlencode([*kept, ("cursor", cursor)])}>; rel="next"'}
