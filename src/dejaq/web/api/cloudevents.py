"""CloudEvents in binary mode: the attributes are HTTP headers `ce-*`, and message headers of the same names."""

from __future__ import annotations

import re
from collections.abc import Mapping
from urllib.parse import quote, unquote

PREFIX = "ce-"
CONTENT_TYPE = "content-type"
# Characters of an attribute that are not percent-encoded in an HTTP header.
_SAFE = " !#$&'()*+,/:;=?@[]~"
_NAME = re.compile(r"ce-[a-z0-9]{1,40}")
_KIND = re.compile(r"[A-Za-z0-9!#$&^_.+-]+/[A-Za-z0-9!#$&^_.+-]+(; ?[A-Za-z0-9-]+=[A-Za-z0-9_.\"-]+)*")


def is_event(headers: Mapping[str, str]) -> bool:
    """Whether a request carries a CloudEvent in binary mode."""
    return "ce-specversion" in headers


def message_headers(headers: Mapping[str, str]) -> dict[str, str]:
    """The message headers of a request: its CloudEvents attributes, and the kind of its body."""
    found = {name.lower(): unquote(value) for name, value in headers.items() if _NAME.fullmatch(name.lower())}
    kind = headers.get(CONTENT_TYPE, "")
    return found | ({CONTENT_TYPE: kind} if kind else {})


def response_headers(headers: Mapping[str, str]) -> tuple[str, dict[str, str]]:
    """The kind of a body, empty when the message does not say, and the `ce-*` headers of the response."""
    kind = headers.get(CONTENT_TYPE, "")
    named = ((name, value) for name, value in headers.items() if _NAME.fullmatch(name))
    attributes = {name: quote(value, safe=_SAFE) for name, value in named}
    return kind if _KIND.fullmatch(kind) else "", attributes
