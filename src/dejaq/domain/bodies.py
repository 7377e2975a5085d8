"""Bodies as they are stored: as they are, or compressed behind a mark.

A stored body that begins with the mark says by the next byte what follows: a zstd frame; or, for a body that happens to
begin with the mark itself, the body; or where a large body is (`domain.large`). Each says so for itself, so that it can
be moved to any topic. Who writes seals, who reads opens; brokers and stores see only bytes.
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
LEVEL = 3
# Below this a frame is hardly ever smaller than what is in it.
WORTHWHILE_BYTES = 96


# By its digest a body can be named instead of sent: no two bodies are known, or can be made, that share one.
DIGEST_BYTES = 32
# Bodies of this size are named first, where a topic shares bodies, and sent when the broker does not have them.
NAMED_BYTES_MIN = 32 * 1024


def digest_of(body: bytes) -> bytes:
    """The digest of a stored body."""
    return blake2b(body, digest_size=DIGEST_BYTES).digest()


class Compression(StrEnum):
    """What is done to the bodies of a topic on their way in."""

    NONE = "none"
    ZSTD = "zstd"


def sealed(body: bytes, compression: Compression = Compression.NONE) -> bytes:
    """A body as it is stored: compressed where that is wanted and makes it smaller."""
    if compression is Compression.ZSTD and WORTHWHILE_BYTES <= len(body) <= limits.DECOMPRESSED_BYTES_MAX:
        frame = _compressor().compress(body)
        if len(_ZSTD) + len(frame) < len(body):
            return _ZSTD + frame
    return _PLAIN + body if body.startswith(MARK) else body


def sealed_column(bodies: list[bytes], compression: Compression = Compression.NONE) -> list[bytes]:
    """Many bodies as they are stored."""
    if compression is Compression.NONE and not _any_marked(bodies):
        return bodies
    return [sealed(body, compression) for body in bodies]


def opened(stored: bytes, *, bytes_max: int = limits.DECOMPRESSED_BYTES_MAX) -> bytes:
    """The body that was stored. Raises BODY_UNREADABLE, without unpacking it, when a frame is damaged or too large."""
    if not stored.startswith(MARK):
        return stored
    if stored.startswith(_PLAIN):
        return stored[len(_PLAIN) :]
    if stored.startswith(_REFERENCE):
        raise error_of(Code.BODY_UNREADABLE, "the body is large and was not fetched; read it in parts")
    if not stored.startswith(_ZSTD):
        raise error_of(Code.BODY_UNREADABLE, "the body is packed in a way that this release does not know")
    return _decompressed(stored[len(_ZSTD) :], bytes_max)


def opened_column(stored: Sequence[bytes]) -> Sequence[bytes]:
    """Many bodies that were stored."""
    return [opened(body) for body in stored] if _any_marked(stored) else stored


def shown(stored: bytes) -> bytes:
    """The body that was stored, or the stored bytes themselves when they cannot be unpacked."""
    try:
        return opened(stored)
    except DejaqError:
        return stored


def _any_marked(bodies: Sequence[bytes]) -> bool:
    # Text is below the mark, so that one look at the greatest is enough for most: 12 ns a body instead of 53.
    return max(bodies, default=b"") >= MARK and any(map(bytes.startswith, bodies, repeat(MARK)))


def _decompressed(frame: bytes, bytes_max: int) -> bytes:
    import zstandard

    try:
        # The frame says how large its content is; a lie is found when that much is full or was not filled.
        size = zstandard.frame_content_size(frame)
        if not 0 <= size <= bytes_max:
            large = f"{size} bytes" if size >= 0 else "no size"
            raise error_of(
                Code.BODY_UNREADABLE,
                f"the compressed body says it has {large}; at most {bytes_max} are unpacked",
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
