"""A body as people read it: JSON in lines, text, or bytes in hex."""

from __future__ import annotations

import json
from dataclasses import dataclass

SHOWN_BYTES_MAX = 64 * 1024
HEX_BYTES_MAX = 4 * 1024
_ROW = 16


@dataclass(frozen=True, slots=True)
class ShownBody:
    """The forms in which a body can be shown; an empty form does not suit it."""

    text: str
    pretty: str
    hex: str
    size: int
    # Whether only the beginning is shown.
    cut: bool


def shown_body(body: bytes) -> ShownBody:
    """The forms of a body, each of a bounded size."""
    head = body[:SHOWN_BYTES_MAX]
    try:
        text = head.decode("utf-8", "strict" if len(head) == len(body) else "ignore")
    except UnicodeDecodeError:
        text = ""
    pretty = ""
    if len(body) <= SHOWN_BYTES_MAX and text[:1] in ("{", "["):
        try:
            pretty = json.dumps(json.loads(text), indent=2, ensure_ascii=False)
        except (ValueError, RecursionError):
            pretty = ""
    return ShownBody(text, pretty, _hex(body[:HEX_BYTES_MAX]), len(body), len(body) > SHOWN_BYTES_MAX)


def _hex(body: bytes) -> str:
    lines = []
    for start in range(0, len(body), _ROW):
        row = body[start : start + _ROW]
        text = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in row)
        lines.append(f"{start:08x}  {row.hex(' '):<47}  {text}")
    return "\n".join(lines)
