"""Bodies of the memory store: large bodies, and bodies that messages share.

To find out whether a message refers to a large body, the store reads every message.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass, field

from dejaq import limits
from dejaq.domain.bodies.large import Declared, Reference, Seal, reference_of
from dejaq.domain.bodies.packing import digest_of
from dejaq.domain.topic import Topic
from dejaq.errors import Code, error_of

# The same values as in the embedded store.
SHARED_BYTES_MIN = 256
KEY_BYTES = 16


@dataclass(slots=True)
class _KeptBody:
    reference: Reference
    parts: list[bytes]
    keep_until: int = field(default=0)


class MemoryBodies:
    """Implements `storage.base.Bodies` in memory; `referring` returns the body of every message."""

    def __init__(self, referring: Callable[[], Iterable[bytes]]) -> None:
        self._referring = referring
        self._bodies: dict[int, _KeptBody] = {}
        self._number = 0

    def missing(self, body: bytes | None) -> bool:
        """Whether a body is a reference to a large body that does not exist."""
        reference = reference_of(body) if body is not None else None
        return reference is not None and not self._known(reference)

    def _known(self, reference: Reference) -> bool:
        body = self._bodies.get(reference.number)
        return body is not None and body.reference == reference

    async def upload(
        self, topic: Topic, bucket: int, declared: Declared, parts: AsyncIterator[bytes], now: int
    ) -> Reference:
        """Receive all parts, then store the body."""
        seal, taken = Seal(), []
        async for part in parts:
            seal.add(part)
            if seal.over(declared):
                break
            taken.append(part)
        if not seal.fits(declared):
            raise error_of(Code.INVALID_ARGUMENT, "the parts of the upload are not what its head says")
        if topic.settings.share_bodies:
            for body in self._bodies.values():
                if body.parts == taken:
                    body.keep_until = max(body.keep_until, now + limits.UPLOAD_KEEP_MS)
                    return body.reference
        self._number += 1
        reference = Reference(declared.size, declared.stored, declared.digest, self._number)
        self._bodies[self._number] = _KeptBody(reference, taken, now + limits.UPLOAD_KEEP_MS)
        return reference

    async def find(self, topic: Topic, bucket: int, declared: Declared, now: int) -> Reference | None:
        """A body with this digest."""
        for body in self._bodies.values():
            known = body.reference
            if (known.digest, known.size, known.stored) == (declared.digest, declared.size, declared.stored):
                body.keep_until = max(body.keep_until, now + limits.UPLOAD_KEEP_MS)
                return known
        return None

    async def part(self, topic: Topic, bucket: int, reference: Reference, part: int) -> bytes:
        """One part."""
        if not self._known(reference) or not 0 <= part < reference.parts:
            raise error_of(Code.BODY_MISSING, "the large body does not exist; its message is gone or has another body")
        return self._bodies[reference.number].parts[part]

    def used(self) -> set[int]:
        """The numbers of the bodies that messages refer to."""
        return {reference.number for body in self._referring() if (reference := reference_of(body)) is not None}

    def drop(self, reference: Reference) -> None:
        """Remove a body before its time, because the store that is compared with this one has removed it."""
        self._bodies.pop(reference.number, None)

    async def reclaim(self, now: int) -> int:
        """Remove the bodies that nobody refers to and whose time is over."""
        used = self.used()
        idle = [n for n, body in self._bodies.items() if n not in used and body.keep_until <= now]
        for number in idle:
            del self._bodies[number]
        return len(idle)


@dataclass(slots=True)
class _Shared:
    body: bytes
    digest: bytes
    uses: int = 0


class MemorySharedBodies:
    """Bodies of one topic that are stored once: found by 128 bits of their digest, then compared byte for byte."""

    def __init__(self, digest: Callable[[bytes], bytes] = digest_of, *, bytes_min: int = SHARED_BYTES_MIN) -> None:
        self._digest = digest
        self._bytes_min = bytes_min
        self._found: dict[bytes, list[_Shared]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._found.values()))

    def take(self, body: bytes) -> bytes:
        """The one object for all messages with this body; counts one more message."""
        if len(body) < self._bytes_min:
            return body
        digest = self._digest(body)
        alike = self._found.setdefault(digest[:KEY_BYTES], [])
        shared = next((one for one in alike if one.body == body), None)
        if shared is None:
            shared = _Shared(body, digest)
            alike.append(shared)
        shared.uses += 1
        return shared.body

    def drop(self, body: bytes) -> None:
        """Count one message less for this body; with the last message, the body is removed."""
        if len(body) < self._bytes_min:
            return
        key = self._digest(body)[:KEY_BYTES]
        shared = next(one for one in self._found[key] if one.body == body)
        shared.uses -= 1
        if not shared.uses:
            self._found[key].remove(shared)
            if not self._found[key]:
                del self._found[key]

    def find(self, digest: bytes) -> bytes | None:
        """The body that matches all bits of a digest."""
        return next((one.body for one in self._found.get(digest[:KEY_BYTES], ()) if one.digest == digest), None)
