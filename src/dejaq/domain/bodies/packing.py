"""The stored form of bodies: unchanged, or compressed after a mark.

If a stored body begins with the mark, the next byte says what follows: a zstd frame; the body itself, if it begins
with the mark; or the reference to a large body (`domain.large`). Each body is independent, so it can be moved to any
topic. The writing client seals and the reading client opens; brokers and stores see only bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from functools import cache
from hashlib import blake2b
from itertools import repeat
from typing import TYPE_CHECKING

from dejaq import limits
from dejaq.errors import Code, DejaqError, error_of

if TYPE_CHECKING:
    import zstandard

MARK = b"\x93dejaqz"
_PLAIN, _ZSTD = MARK + b"\x00", MARK + b"\x01"
# A reference to a body that is stored in parts (`domain.large`).
_REFERENCE = MARK + b"\x02"
# Stands for a body that the broker could not decrypt: it was damaged, or belongs to another message.
UNREADABLE = MARK + b"\x03"
LEVEL = 3
# Below this size, a frame is rarely smaller than its content.
WORTHWHILE_BYTES = 96


# A body can be named by its digest instead of being sent, because two bodies with the same digest cannot be
# constructed.
DIGEST_BYTES = 32
# In a topic that shares bodies, bodies of this size are named first, and sent if the broker does not have them.
NAMED_BYTES_MIN = 32 * 1024


def digest_of(body: bytes) -> bytes:
    """The digest of a stored body."""
    return blake2b(body, digest_size=DIGEST_BYTES).digest()


class Compression(StrEnum):
    """How clients compress the bodies of a topic."""

    NONE = "none"
    ZSTD = "zstd"


def sealed(body: bytes, compression: Compression = Compression.NONE) -> bytes:
    """The stored form of a body: compressed if the topic asks for it and the result is smaller."""
    if compression is Compression.ZSTD and WORTHWHILE_BYTES <= len(body) <= limits.DECOMPRESSED_BYTES_MAX:
        frame = _compressor().compress(body)
        if len(_ZSTD) + len(frame) < len(body):
            return _ZSTD + frame
    return _PLAIN + body if body.startswith(MARK) else body


def sealed_column(bodies: list[bytes], compression: Compression = Compression.NONE) -> list[bytes]:
    """The stored forms of many bodies."""
    if compression is Compression.NONE and not any_marked(bodies):
        return bodies
    return [sealed(body, compression) for body in bodies]


def opened(stored: bytes, *, bytes_max: int = limits.DECOMPRESSED_BYTES_MAX) -> bytes:
    """The original body. Raises BODY_UNREADABLE, without decompressing it, if a frame is damaged or too large."""
    if not stored.startswith(MARK):
        return stored
    if stored.startswith(_PLAIN):
        return stored[len(_PLAIN) :]
    if stored.startswith(_REFERENCE):
        raise error_of(Code.BODY_UNREADABLE, "the body is large and was not fetched; read it in parts")
    if stored == UNREADABLE:
        raise error_of(
            Code.BODY_UNREADABLE, "the body cannot be decrypted: it was changed in the store, or is another message's"
        )
    if not stored.startswith(_ZSTD):
        raise error_of(Code.BODY_UNREADABLE, "the body is encoded in a way that this release does not support")
    return _decompressed(stored[len(_ZSTD) :], bytes_max)


def opened_column(stored: Sequence[bytes]) -> Sequence[bytes]:
    """The original bodies of many stored ones."""
    return [opened(body) for body in stored] if any_marked(stored) else stored


def shown(stored: bytes) -> bytes:
    """The original body, or the stored bytes if they cannot be decompressed."""
    try:
        return opened(stored)
    except DejaqError:
        return stored


def any_marked(bodies: Sequence[bytes]) -> bool:
    """Whether one of some stored bodies is not the original one."""
    # Text is below the mark, so one comparison with the greatest body is enough for most: 12 ns per body instead of
    # 53.
    return max(bodies, default=b"") >= MARK and any(map(bytes.startswith, bodies, repeat(MARK)))


def _decompressed(frame: bytes, bytes_max: int) -> bytes:
    import zstandard

    try:
        # The frame contains the size of its content; a wrong size is detected when the output is full or is not
        # filled.
        size = zstandard.frame_content_size(frame)
        if not 0 <= size <= bytes_max:
            large = f"{size} bytes" if size >= 0 else "no size"
            raise error_of(
                Code.BODY_UNREADABLE,
                f"the compressed body says it has {large}; at most {bytes_max} are decompressed",
            )
        return _decompressor().decompress(frame, allow_extra_data=False) if size else b""
    except zstandard.ZstdError as error:
        raise error_of(Code.BODY_UNREADABLE, f"the compressed body is damaged: {error}") from None


@cache
def _compressor() -> zstandard.ZstdCompressor:
    import zstandard

    return zstandard.ZstdCompressor(level=LEVEL, write_checksum=True, write_content_size=True)


@cache
def _decompressor() -> zstandard.ZstdDecompressor:
    import zstandard

    return zstandard.ZstdDecompressor(max_window_size=limits.DECOMPRESSED_BYTES_MAX)
