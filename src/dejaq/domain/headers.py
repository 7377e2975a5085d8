"""Headers as bytes: the protobuf wire form of `dejaq.v1.Headers`, and of a change to them, `dejaq.v1.HeaderChange`.

Written by hand, so that the domain and the storage need no protocol package. Entries are in the order of their keys,
so equal maps have equal bytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from dejaq.domain.message import check_headers
from dejaq.errors import Code

# Field 1 and field 2, both length-delimited: the entry of the map and its key, then its value.
_FIRST, _SECOND = 0x0A, 0x12
_LENGTH_BYTES_MAX = 5


def encode_headers(headers: Mapping[str, str]) -> bytes:
    """The bytes of a map; empty for an empty one. Raises ValueError for text that UTF-8 cannot represent."""
    out = bytearray()
    for key in sorted(headers):
        entry = _field(_FIRST, key.encode()) + _field(_SECOND, headers[key].encode())
        out += _field(_FIRST, entry)
    return bytes(out)


def decode_headers(encoded: bytes) -> dict[str, str]:
    """The map in the bytes; the last of equal keys counts. Raises ValueError when the bytes contain anything else."""
    headers: dict[str, str] = {}
    for tag, entry in _fields(encoded):
        if tag != _FIRST:
            raise ValueError(f"headers hold an unknown field with tag {tag}")
        key, value = _entry(entry)
        headers[key] = value
    return headers


def encode_header_change(change: Mapping[str, str | None]) -> bytes:
    """The bytes of a change: the headers to set, and None for each header to remove."""
    kept = {key: value for key, value in change.items() if value is not None}
    removed = sorted(key for key, value in change.items() if value is None)
    return encode_headers(kept) + b"".join(_field(_SECOND, key.encode()) for key in removed)


def decode_header_change(encoded: bytes) -> dict[str, str | None]:
    """The change in the bytes; raises ValueError when the bytes contain anything else."""
    change: dict[str, str | None] = {}
    for tag, content in _fields(encoded):
        if tag == _FIRST:
            key, value = _entry(content)
            change[key] = value
        elif tag == _SECOND:
            change[content.decode()] = None
        else:
            raise ValueError(f"a change of headers holds an unknown field with tag {tag}")
    return change


def edited_headers(present: bytes, change: bytes | None) -> bytes | None:
    """The headers of a message after a change; None where they would exceed a limit.

    A change that only removes headers is always possible.
    """
    if not change:
        return present
    changed = decode_header_change(change)
    merged = {**decode_headers(present), **changed}
    headers = {key: value for key, value in merged.items() if value is not None}
    grows = any(value is not None for value in changed.values())
    return None if grows and check_headers(headers) is not Code.OK else encode_headers(headers)


def _entry(entry: bytes) -> tuple[str, str]:
    key = value = ""
    for part, text in _fields(entry):
        if part == _FIRST:
            key = text.decode()
        elif part == _SECOND:
            value = text.decode()
        else:
            raise ValueError(f"a header holds an unknown field with tag {part}")
    return key, value


def _field(tag: int, content: bytes) -> bytes:
    length = len(content)
    out = bytearray((tag,))
    while length > 0x7F:
        out.append(length & 0x7F | 0x80)
        length >>= 7
    out.append(length)
    return bytes(out) + content


def _fields(encoded: bytes) -> Iterator[tuple[int, bytes]]:
    position = 0
    while position < len(encoded):
        tag = encoded[position]
        length, start = _length(encoded, position + 1)
        position = start + length
        if position > len(encoded):
            raise ValueError("headers are truncated")
        yield tag, encoded[start:position]


def _length(encoded: bytes, position: int) -> tuple[int, int]:
    length = 0
    for index, byte in enumerate(encoded[position : position + _LENGTH_BYTES_MAX]):
        length |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            return length, position + index + 1
    raise ValueError("headers have a broken length")
