"""Large bodies: parts under a number of their own, and how many messages of each topic refer to them.

A body is entered before its first part and finished, in one write, behind its last, so that a crash leaves a body that
is whole or one that the next start removes. Counts change in the same write as the messages; with the last of them the
body goes. All of this but the parts is in memory.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from dejaq.domain.bodies import DIGEST_BYTES
from dejaq.domain.large import Declared, Reference, reference_of
from dejaq.errors import Code, error_of
from dejaq.storage.rocksdb import keys
from dejaq.storage.rocksdb.database import Batch, Database, new_batch

# Where a message's body lies: a number with this bit is that of a large one.
LARGE = 1 << 63
# Size, stored bytes, digest, until when it is kept without a message, and whether it is whole.
_RECORD = struct.Struct(f">QQ{DIGEST_BYTES}sQ?")
_COUNT = struct.Struct(">Q")


@dataclass(slots=True)
class _Body:
    reference: Reference
    keep_until: int
    uses: dict[int, int] = field(default_factory=dict)


class LargeBodies:
    """The large bodies of one store. What a change does to them is kept here until `write` puts it into its batch."""

    def __init__(self, database: Database, *, number: Callable[[], int]) -> None:
        self._database = database
        self._next_number = number
        self._bodies: dict[int, _Body] = {}
        self._by_digest: dict[bytes, list[int]] = {}
        self._changed: set[tuple[int, int]] = set()

    def load(self) -> Batch | None:
        """Read what is there; what to write to be rid of uploads that a crash has cut."""
        cut = new_batch()
        for key, value in self._database.scan(keys.LARGE, keys.after(keys.LARGE)):
            size, stored, digest, keep_until, whole = _RECORD.unpack(value)
            reference = Reference(size=size, stored=stored, digest=digest, number=keys.large_number(key))
            if whole:
                self._enter(reference, keep_until)
            else:
                _remove(cut, reference)
        for key, value in self._database.scan(keys.LARGE_USES, keys.after(keys.LARGE_USES)):
            number, topic = keys.large_use_of(key)
            self._bodies[number].uses[topic] = _COUNT.unpack(value)[0]
        return cut if len(cut) else None

    def _enter(self, reference: Reference, keep_until: int) -> None:
        self._bodies[reference.number] = _Body(reference, keep_until)
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
        """A place for a body whose parts come next."""
        reference = Reference(declared.size, declared.stored, declared.digest, self._next_number())
        batch.put(keys.large(reference.number), _record(reference, 0, whole=False))
        return reference

    def put_part(self, batch: Batch, reference: Reference, part: int, data: bytes) -> None:
        """One part of a body."""
        batch.put(keys.large_part(reference.number, part), data)

    def finish(self, batch: Batch, reference: Reference, keep_until: int) -> None:
        """All parts are there: from this write on it can be referred to."""
        batch.put(keys.large(reference.number), _record(reference, keep_until, whole=True))
        self._enter(reference, keep_until)

    def abandon(self, batch: Batch, reference: Reference) -> None:
        """An upload was cut, or was not what it said."""
        _remove(batch, reference)

    def keep(self, number: int, until: int) -> None:
        """Somebody is about to refer to a body."""
        body = self._bodies[number]
        body.keep_until = max(body.keep_until, until)

    def alike(self, digest: bytes) -> list[Reference]:
        """The bodies that have a digest."""
        return [self._bodies[number].reference for number in self._by_digest.get(digest, ())]

    def stored_part(self, reference: Reference, part: int) -> bytes | None:
        """One part, also of a body whose upload is under way."""
        return self._database.get(keys.large_part(reference.number, part))

    def part(self, reference: Reference, part: int) -> bytes:
        """One part; raises BODY_MISSING where the body is gone."""
        data = self.stored_part(reference, part) if self._known(reference) else None
        if data is None:
            raise error_of(Code.BODY_MISSING, "the large body is not there; its message is gone or has another")
        return data

    def _known(self, reference: Reference) -> bool:
        body = self._bodies.get(reference.number)
        return body is not None and body.reference == reference

    # Messages

    def missing(self, body: bytes) -> bool:
        """Whether a body refers to one that is not there."""
        reference = reference_of(body)
        return reference is not None and not self._known(reference)

    def use(self, body: bytes, topic: int) -> int:
        """Count one more message of a topic that has this body; 0 where it refers to none that is there."""
        reference = reference_of(body)
        if reference is None or not self._known(reference):
            return 0
        self._count(reference.number, topic, 1)
        return reference.number | LARGE

    def drop(self, number: int, topic: int) -> None:
        """One message less has a body."""
        self._count(number & ~LARGE, topic, -1)

    def _count(self, number: int, topic: int, by: int) -> None:
        uses = self._bodies[number].uses
        uses[topic] = uses.get(topic, 0) + by
        self._changed.add((number, topic))

    def drop_topic(self, topic: int, batch: Batch) -> None:
        """Every message of a topic goes."""
        for number, body in self._bodies.items():
            if body.uses.get(topic):
                body.uses[topic] = 0
                self._changed.add((number, topic))
        self.write(batch)

    def write(self, batch: Batch) -> None:
        """Put the counts that changed into the batch of the change; a body without a message goes with it."""
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
            if not self._bodies[number].uses:
                _remove(batch, self._forget(number))
        self._changed.clear()

    def reclaim(self, batch: Batch, now: int) -> int:
        """Remove the bodies that no message refers to and whose time is over; how many."""
        idle = [number for number, body in self._bodies.items() if not body.uses and body.keep_until <= now]
        for number in idle:
            _remove(batch, self._forget(number))
        return len(idle)

    def stats(self) -> dict[str, float]:
        """How many there are, and what they take."""
        return {
            "large_bodies": len(self._bodies),
            "large_bytes": sum(body.reference.stored for body in self._bodies.values()),
        }


def _record(reference: Reference, keep_until: int, *, whole: bool) -> bytes:
    return _RECORD.pack(reference.size, reference.stored, reference.digest, keep_until, whole)


def _remove(batch: Batch, reference: Reference) -> None:
    batch.delete(keys.large(reference.number))
    for key in _part_keys(reference):
        batch.delete(key)


def _part_keys(reference: Reference) -> Iterator[bytes]:
    return (keys.large_part(reference.number, part) for part in range(reference.parts))
