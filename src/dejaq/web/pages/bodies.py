"""A body as people read it: JSON in lines, text, decompressed, or bytes in hex; a large one in parts."""

from __future__ import annotations

import json
import zlib
from dataclasses import dataclass

import zstandard

PART_BYTES = 64 * 1024
HEX_BYTES_MAX = 4 * 1024
_ROW = 16
_GZIP, _ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"


@dataclass(frozen=True, slots=True)
class ShownBody:
    """The forms in which a part of a body can be shown; an empty form does not suit it."""

    text: str
    pretty: str
    hex: str
    unpacked: str
    # How it was compressed.
    packing: str


def shown_body(body: bytes, offset: int, *, whole: bool) -> ShownBody:
    """The forms of a part that begins at `offset`, each of a bounded size."""
    text = _text(body, whole=whole)
    packing, unpacked = _unpacked(body) if offset == 0 else ("", b"")
    inner = _text(unpacked, whole=len(unpacked) < PART_BYTES)
    return ShownBody(
        text=text,
        pretty=_pretty(text) if whole else "",
        hex=_hex(body[:HEX_BYTES_MAX], offset),
        unpacked=_pretty(inner) or inner or (_hex(unpacked[:HEX_BYTES_MAX], 0) if unpacked else ""),
        packing=packing,
    )


def _text(body: bytes, *, whole: bool) -> str:
    """The text in a body; of a part, without a character that is cut in two."""
    for cut in range(1 if whole else 4):
        for end in range(1 if whole else 4):
            try:
                return body[cut : len(body) - end].decode("utf-8")
            except UnicodeDecodeError:
                continue
    return ""


def _pretty(text: str) -> str:
    if text[:1] not in ("{", "["):
        return ""
    try:
        return json.dumps(json.loads(text), indent=2, ensure_ascii=False)
    except (ValueError, RecursionError):
        return ""


def _unpacked(body: bytes) -> tuple[str, bytes]:
    """How a body was compressed by its producer, and the beginning of what is in it."""
    try:
        if body.startswith(_GZIP):
            return "gzip", zlib.decompressobj(wbits=31).decompress(body, PART_BYTES)
        if body.startswith(_ZSTD):
            with zstandard.ZstdDecompressor(max_window_size=2**23).stream_reader(body) as reader:
                return "zstd", reader.read(PART_BYTES)
    except (zlib.error, zstandard.ZstdError):
        pass
    return "", b""


def _hex(body: bytes, offset: int) -> str:
    lines = []
    for start in range(0, len(body), _ROW):
        row = body[start : start + _ROW]
        text = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in row)
        lines.append(f"{offset + start:08x}  {row.hex(' '):<47}  {text}")
    return "\n".join(lines)
