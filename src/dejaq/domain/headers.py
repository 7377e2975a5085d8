"""Headers as bytes: the protobuf wire form of `dejaq.v1.Headers`.

Written by hand, so that the domain and the storage need no protocol package. Entries stand in the order of
their keys, so that equal maps have equal bytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

# Field 1 and field 2, both length-delimited: the entry of the map and its key, then its value.
_FIRST, _SECOND = 0x0A, 0x12
_LENGTH_BYTES_MAX = 5


def encode_headers(headers: Mapping[str, str]) -> bytes:
    """The bytes of a map; empty for an empty one. Raises ValueError for text that UTF-8 cannot hold."""
    out = bytearray()
    for key in sorted(headers):
        entry = _field(_FIRST, key.encode()) + _field(_SECOND, headers[key].encode())
        out += _field(_FIRST, entry)
    return bytes(out)


def decode_headers(encoded: bytes) -> dict[str, str]:
    """The map that the bytes hold, the last of equal keys; raises ValueError when they hold anything else."""
    headers: dict[str, str] = {}
    for tag, entry in _fields(encoded):
        if tag != _FIRST:
            raise ValueError(f"headers hold an unknown field with tag {tag}")
        key = value = ""
        for part, text in _fields(entry):
            if part == _FIRST:
                key = text.decode()
            elif part == _SECOND:
                value = text.decode()
            else:
                raise ValueError(f"a header holds an unknown field with tag {part}")
        headers[key] = value
    return headers


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
            raise ValueError("headers are cut short")
        yield tag, encoded[start:position]


def _length(encoded: bytes, position: int) -> tuple[int, int]:
    length = 0
    for index, byte in enumerate(encoded[position : position + _LENGTH_BYTES_MAX]):
        length |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            return length, position + index + 1
    raise ValueError("headers have a broken length")
