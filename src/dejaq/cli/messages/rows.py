"""Rows of `dejaq produce --file`: one JSON object per line."""

from __future__ import annotations

import base64
import binascii
import json
from dataclasses import dataclass, field
from typing import Any

from dejaq.cli.terminal.times import When, parse_when

KNOWN = frozenset({"id", "body", "body_base64", "at", "delay", "priority", "headers"})
# Further fields that `dejaq browse --json` prints, so that its output can be used as input.
PASSED_OVER = frozenset({"topic", "bucket", "ts", "status", "group", "consumer", "version", "attempts"})


class RowError(ValueError):
    """The line does not describe a message."""


@dataclass(frozen=True, slots=True)
class InputRow:
    """One message to send."""

    line: int
    body: bytes
    when: When
    id: str | None = None
    priority: int = 0
    headers: dict[str, str] = field(default_factory=dict)


def parse_row(text: str, line: int) -> InputRow:
    """The row on one line; RowError says what is wrong with it."""
    try:
        values = json.loads(text)
    except ValueError as wrong:
        raise RowError(f"not JSON: {wrong}") from None
    if not isinstance(values, dict):
        raise RowError('not a JSON object such as {"body": "hello", "delay": 5}')
    unknown = sorted(set(values) - KNOWN - PASSED_OVER)
    if unknown:
        raise RowError(f"unknown field {unknown[0]!r}; known: {', '.join(sorted(KNOWN))}")
    message_id = values.get("id")
    if message_id is not None and not isinstance(message_id, str):
        raise RowError("'id' must be a string")
    priority = values.get("priority", 0)
    if not isinstance(priority, int) or isinstance(priority, bool):
        raise RowError("'priority' must be an integer")
    return InputRow(
        line=line,
        body=_body(values),
        when=_when(values),
        id=message_id,
        priority=priority,
        headers=_headers(values),
    )


def _body(values: dict[str, Any]) -> bytes:
    if ("body" in values) == ("body_base64" in values):
        raise RowError("give one of 'body' and 'body_base64'")
    if "body" in values:
        if not isinstance(values["body"], str):
            raise RowError("'body' must be a string; for other JSON, send it as text")
        try:
            return values["body"].encode("utf-8")
        except UnicodeEncodeError:
            raise RowError("'body' has half a surrogate pair; send such bytes as 'body_base64'") from None
    try:
        return base64.b64decode(values["body_base64"], validate=True)
    except (binascii.Error, ValueError, TypeError):
        raise RowError("'body_base64' must be base64") from None


def _when(values: dict[str, Any]) -> When:
    at, delay = values.get("at"), values.get("delay")
    if at is not None and delay is not None:
        raise RowError("give one of 'at' and 'delay'")
    if delay is not None:
        if isinstance(delay, bool) or not isinstance(delay, int | float) or not abs(delay) < 1e12:
            raise RowError("'delay' must be seconds")
        return When(round(delay * 1000), relative=True)
    if at is None:
        return When(0, relative=True)
    if isinstance(at, bool) or not isinstance(at, int | str):
        raise RowError("'at' must be a string or epoch milliseconds")
    try:
        return parse_when(str(at))
    except ValueError as wrong:
        raise RowError(str(wrong)) from None


def _headers(values: dict[str, Any]) -> dict[str, str]:
    headers = values.get("headers") or {}
    if not isinstance(headers, dict) or not all(isinstance(value, str) for value in headers.values()):
        raise RowError("'headers' must map strings to strings")
    return headers
