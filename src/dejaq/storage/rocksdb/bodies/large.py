"""Large bodies: their parts, and the number of messages of each topic that refer to each body.

A body is recorded before its first part, and is completed, in one write, after its last part, so that after a crash a
body is either complete or is removed at the next start. Counts change in the same write as the messages. With the last
reference the body is removed, unless a client found it by its digest shortly before and is about to refer to it.
Everything except the parts is in memory.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from dejaq.domain.bodies.large import Declared, Reference, reference_of
from dejaq.domain.bodies.packing import DIGEST_BYTES
from dejaq.errors import Code, error_of
from dejaq.storage.rocksdb.engine import keys
from dejaq.storage.rocksdb.engine.database import Batch, RocksDatabase, new_batch

# The number of a message's body has this bit when the body is large.
LARGE = 1 << 63
# Size, stored bytes, digest, the time until which it is kept without a message, and its state.
_RECORD = struct.Struct(f">QQ{DIGEST_BYTES}sQB")
_CUT, _WHOLE, _FOUND = range(3)
# The kept time of a body that is found repeatedly is written at most once in this time.
_FOUND_STEP_MS = 60_000
_COUNT = struct.Struct(">Q")


@dataclass(slots=True)
class _LargeBody:
    reference: Reference
    keep_until: int
    # Until this time the body is kept without a message, because a client that found it may refer to it.
    found: bool = False
    uses: dict[int, int] = field(default_factory=dict)


class LargeBodies:
    """The large bodies of one store. The effects of a change are kept here until `write` puts them into its batch."""

    def __init__(self, database: RocksDatabase, *, number: Callable[[], int]) -> None:
        self._database = database
        self._next_number = number
        self._bodies: dict[int, _LargeBody] = {}
        self._by_digest: dict[bytes, list[int]] = {}
        self._changed: set[tuple[int, int]] = set()

    def load(self) -> Batch | None:
        """Read the existing bodies; returns the writes that remove uploads that a crash has interrupted."""
        cut = new_batch()
        for key, value in self._database.scan(keys.LARGE, keys.after(keys.LARGE)):
            size, stored, digest, keep_until, state = _RECORD.unpack(value)
            reference = Reference(size=size, stored=stored, digest=digest, number=keys.large_number(key))
            if state == _CUT:
                _remove(cut, reference)
            else:
                self._enter(reference, keep_until, found=state == _FOUND)
        for key, value in self._database.scan(keys.LARGE_USES, keys.after(keys.LARGE_USES)):
            number, topic = keys.large_use_of(key)
            self._bodies[number].uses[topic] = _COUNT.unpack(value)[0]
        return cut if len(cut) else None

    def _enter(self, reference: Reference, keep_until: int, *, found: bool) -> None:
        self._bodies[reference.number] = _LargeBody(reference, keep_until, found)
        self._by_digest.setdefault(reference.digest, []).append(reference.number)

    def _forget(self, number: int) -> Reference:
        reference = self._bodies.pop(number).reference
        numbers = self._by_digest[reference.digest]
        numbers.remove(number)
        if not numbers:
            del self._by_digest[reference.digest]
        return reference

    # Uploads

    def begin(self, batch: Batch, declared: Declared) -> Reference:
        """Record a body whose parts follow."""
        reference = Reference(declared.size, declared.stored, declared.digest, self._next_number())
        batch.put(keys.large(reference.number), _record(reference, 0, _CUT))
        return reference

    def put_part(self, batch: Batch, reference: Reference, part: int, data: bytes) -> None:
        """One part of a body."""
        batch.put(keys.large_part(reference.number, part), data)

    def finish(self, batch: Batch, reference: Reference, keep_until: int) -> None:
        """All parts are stored: from this write on, messages can refer to the body."""
        batch.put(keys.large(reference.number), _record(reference, keep_until, _WHOLE))
        self._enter(reference, keep_until, found=False)

    def abandon(self, batch: Batch, reference: Reference) -> None:
        """Remove an upload that was interrupted, or differs from its declaration."""
        _remove(batch, reference)

    def keep(self, batch: Batch, number: int, until: int) -> None:
        """Keep a body until this time, because a client found it and may refer to it."""
        body = self._bodies[number]
        if body.found and body.keep_until >= until:
            return
        body.keep_until, body.found = max(body.keep_until, until + _FOUND_STEP_MS), True
        batch.put(keys.large(number), _record(body.reference, body.keep_until, _FOUND))

    def alike(self, digest: bytes) -> list[Reference]:
        """The bodies with a digest."""
        return [self._bodies[number].reference for number in self._by_digest.get(digest, ())]

    def stored_part(self, reference: Reference, part: int) -> bytes | None:
        """One part, also of a body whose upload is in progress."""
        return self._database.get(keys.large_part(reference.number, part))

    def part(self, reference: Reference, part: int) -> bytes:
        """One part; raises BODY_MISSING when the body is gone."""
        data = self.stored_part(reference, part) if self._known(reference) else None
        if data is None:
            raise error_of(Code.BODY_MISSING, "the large body does not exist; its message is gone or has another body")
        return data

    def _known(self, reference: Reference) -> bool:
        body = self._bodies.get(reference.number)
        return body is not None and body.reference == reference

    # Messages

    def missing(self, body: bytes) -> bool:
        """Whether a body is a reference to a large body that does not exist."""
        reference = reference_of(body)
        return reference is not None and not self._known(reference)

    def use(self, body: bytes, topic: int) -> int:
        """Count one more message of a topic with this body; returns 0 when its reference has no large body."""
        reference = reference_of(body)
        if reference is None or not self._known(reference):
            return 0
        self._count(reference.number, topic, 1)
        return reference.number | LARGE

    def drop(self, number: int, topic: int) -> None:
        """Count one message less for a body."""
        self._count(number & ~LARGE, topic, -1)

    def _count(self, number: int, topic: int, by: int) -> None:
        uses = self._bodies[number].uses
        uses[topic] = uses.get(topic, 0) + by
        self._changed.add((number, topic))

    def drop_topic(self, topic: int, batch: Batch, now: int) -> None:
        """Remove the references of all messages of a topic."""
        for number, body in self._bodies.items():
            if body.uses.get(topic):
                body.uses[topic] = 0
                self._changed.add((number, topic))
        self.write(batch, now)

    def write(self, batch: Batch, now: int) -> None:
        """Put the changed counts into the batch of the change; a body without a message is removed in the same write.

        A body that a client found shortly before is kept; `reclaim` removes it.
        """
        if not self._changed:
            return
        for number, topic in self._changed:
            count = self._bodies[number].uses[topic]
            if count:
                batch.put(keys.large_use(number, topic), _COUNT.pack(count))
            else:
                del self._bodies[number].uses[topic]
                batch.delete(keys.large_use(number, topic))
        for number in {number for number, _ in self._changed}:
            body = self._bodies[number]
            if not body.uses and not (body.found and body.keep_until > now):
                _remove(batch, self._forget(number))
        self._changed.clear()

    def reclaim(self, batch: Batch, now: int) -> int:
        """Remove the bodies that no message refers to and whose time is over; returns their number."""
        idle = [number for number, body in self._bodies.items() if not body.uses and body.keep_until <= now]
        for number in idle:
            _remove(batch, self._forget(number))
        return len(idle)

    def stats(self) -> dict[str, float]:
        """The number of the bodies, and their size."""
        return {
            "large_bodies": len(self._bodies),
            "large_bytes": sum(body.reference.stored for body in self._bodies.values()),
        }


def _record(reference: Reference, keep_until: int, state: int) -> bytes:
    return _RECORD.pack(reference.size, reference.stored, reference.digest, keep_until, state)


def _remove(batch: Batch, reference: Reference) -> None:
    batch.delete(keys.large(reference.number))
    for key in _part_keys(reference):
        batch.delete(key)


def _part_keys(reference: Reference) -> Iterator[bytes]:
    return (keys.large_part(reference.number, part) for part in range(reference.parts))
