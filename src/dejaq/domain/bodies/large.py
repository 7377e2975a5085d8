"""Large bodies: stored in parts, and named by a reference, which is the message's body.

A reference is a stored body like any other, so it moves with the message. It names the content by digest and size,
and the place in the store by a number. Each part is sealed separately (`domain.bodies`), and all but the last contain
`PART_BYTES` of the body.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b

from dejaq import limits
from dejaq.domain.bodies.packing import DIGEST_BYTES, MARK, Compression, opened, sealed
from dejaq.errors import Code, error_of

PART_BYTES = limits.PART_BYTES_MAX
# With the bytes that the client's packing may add to a part, and encryption at rest.
SEALED_PART_BYTES_MAX = PART_BYTES + len(MARK) + 1
STORED_PART_BYTES_MAX = SEALED_PART_BYTES_MAX + 16
_PREFIX = MARK + b"\x02"
_FIELDS = struct.Struct(f">QQ{DIGEST_BYTES}sQ")
_NUMBER_BYTES = 8
REFERENCE_BYTES = len(_PREFIX) + _FIELDS.size


@dataclass(frozen=True, slots=True)
class Declared:
    """The declaration of an upload: the size of the body, the stored size of its parts, and their digest."""

    size: int
    stored: int
    digest: bytes

    @property
    def parts(self) -> int:
        """The number of parts."""
        return -(-self.size // PART_BYTES)

    def accepts(self, count: int, stored: int, digest: bytes) -> bool:
        """Whether so many parts, of so many bytes and with this digest, are the declared body."""
        return (count, stored, digest) == (self.parts, self.stored, self.digest)

    def check(self, bytes_max: int) -> None:
        """Raise BODY_TOO_LARGE or INVALID_ARGUMENT if no such body is possible."""
        if self.size > bytes_max:
            raise error_of(Code.BODY_TOO_LARGE, details=f"{self.size} bytes, at most {bytes_max}")
        overhead = self.parts * (SEALED_PART_BYTES_MAX - PART_BYTES)
        if self.size < 1 or not 1 <= self.stored <= self.size + overhead or len(self.digest) != DIGEST_BYTES:
            raise error_of(Code.INVALID_ARGUMENT, f"{self.stored} bytes in parts cannot be a body of {self.size} bytes")


@dataclass(frozen=True, slots=True)
class Reference(Declared):
    """A large body in a store, under a number that the store gave."""

    number: int

    def pack(self) -> bytes:
        """The body of a message that refers to it."""
        return _PREFIX + _FIELDS.pack(self.size, self.stored, self.digest, self.number)


def is_reference(body: bytes) -> bool:
    """Whether a stored body refers to a large one."""
    return len(body) == REFERENCE_BYTES and body.startswith(_PREFIX)


def any_reference(bodies: Sequence[bytes]) -> bool:
    """Whether one of many stored bodies refers to a large one."""
    return REFERENCE_BYTES in map(len, bodies) and any(map(is_reference, bodies))


def reference_of(body: bytes) -> Reference | None:
    """The reference in a stored body; None for an ordinary body."""
    if not is_reference(body):
        return None
    size, stored, digest, number = _FIELDS.unpack_from(body, len(_PREFIX))
    return Reference(size=size, stored=stored, digest=digest, number=number)


def content_of(body: bytes) -> bytes:
    """The bytes that identify the content of a stored body: the body, or a reference without its place in the store."""
    return body[:-_NUMBER_BYTES] if is_reference(body) else body


def size_of(body: bytes) -> int:
    """The bytes of a stored body, or of the large one that it refers to."""
    reference = reference_of(body)
    return len(body) if reference is None else reference.size


class Seal:
    """Counts and digests the parts of a body as they arrive."""

    def __init__(self, *, part_bytes_max: int = STORED_PART_BYTES_MAX) -> None:
        self._part_bytes_max = part_bytes_max
        self.count = 0
        self.stored = 0
        self._hash = blake2b(digest_size=DIGEST_BYTES)

    def add(self, part: bytes) -> None:
        """Add the next part in stored form."""
        if not 1 <= len(part) <= self._part_bytes_max:
            raise error_of(Code.INVALID_ARGUMENT, f"a part has 1 to {self._part_bytes_max} bytes, not {len(part)}")
        self.count += 1
        self.stored += len(part)
        self._hash.update(len(part).to_bytes(4, "big"))
        self._hash.update(part)

    def over(self, declared: Declared) -> bool:
        """Whether more than the declared size has arrived."""
        return self.count > declared.parts or self.stored > declared.stored

    def fits(self, declared: Declared) -> bool:
        """Whether all parts have arrived and match the digest."""
        return declared.accepts(self.count, self.stored, self._hash.digest())

    def declared(self, size: int) -> Declared:
        """The declaration of a body of this size."""
        return Declared(size=size, stored=self.stored, digest=self._hash.digest())


def sealed_parts(body: bytes, compression: Compression = Compression.NONE) -> Iterator[bytes]:
    """A body in stored parts."""
    for start in range(0, len(body), PART_BYTES):
        yield sealed(body[start : start + PART_BYTES], compression)


def declare(parts: Iterable[bytes], size: int) -> Declared:
    """The declaration of a body with these parts."""
    seal = Seal()
    for part in parts:
        seal.add(part)
    return seal.declared(size)


class Unsealing:
    """Opens the parts of a body one after the other and raises BODY_UNREADABLE when they are not the body."""

    def __init__(self, reference: Reference) -> None:
        self._reference = reference
        self._seal = Seal()
        self._size = 0

    def open(self, part: bytes) -> bytes:
        """The next part of the body."""
        self._seal.add(part)
        opened_part = opened(part, bytes_max=PART_BYTES)
        self._size += len(opened_part)
        if self._seal.over(self._reference) or self._size > self._reference.size:
            raise self._wrong()
        return opened_part

    def finish(self) -> None:
        """Check that everything arrived and matches the reference."""
        if not self._seal.fits(self._reference) or self._size != self._reference.size:
            raise self._wrong()

    def _wrong(self) -> Exception:
        return error_of(Code.BODY_UNREADABLE, "the parts of the large body are not those that were uploaded")
