"""Message ids: natural ones from the producer, and the ranges a producer session generates.

A generated id is 32 hex digits: the session's start (48 bits of UTC ms), the bucket (16 bits), the session's number
(32 random bits) and a counter (32 bits). Start and number together name the session, so a batch carries only its
first counter, and the id contains the bucket.
"""

from __future__ import annotations

import re
import string
import zlib
from collections.abc import Sequence
from dataclasses import dataclass

from dejaq.domain.id_column import ID_TAG, SEPARATOR, IdColumn

_ID = re.compile(r"[0-9A-Za-z._:\-]{1,64}")
_IDS = re.compile(r"[0-9A-Za-z._:\-]{1,64}(?:\n[0-9A-Za-z._:\-]{1,64})*")
_GENERATED = re.compile(r"[0-9a-f]{32}")
# What an id has, and how long it may be: the same as in these expressions.
_CHARACTERS, _LENGTH_MAX = (string.ascii_letters + string.digits + "._:-").encode(), 64
GENERATED_LENGTH = 32
COUNTER_MAX = 2**32 - 1
# The hash that spreads natural ids over buckets. It must never change, and it is the same in every language.
bucket_hash = zlib.crc32


@dataclass(frozen=True, slots=True)
class ProducerSession:
    """Names one producer's run of generated ids and of batch sequences."""

    start_ms: int
    number: int

    def pack(self) -> bytes:
        """Ten bytes that sort by start."""
        return self.start_ms.to_bytes(6, "big") + self.number.to_bytes(4, "big")

    @classmethod
    def unpack(cls, packed: bytes) -> ProducerSession:
        """The session that `pack` wrote."""
        if len(packed) != 10:
            raise ValueError("a producer session is ten bytes")
        return cls(int.from_bytes(packed[:6], "big"), int.from_bytes(packed[6:], "big"))

    def prefix(self, bucket: int) -> str:
        """The first 24 digits of every id this session generates in `bucket`."""
        return f"{self.start_ms:012x}{bucket:04x}{self.number:08x}"


# The last two digits of a counter.
_LOW = [f"{number:02x}" for number in range(256)]
_FEW = 8


def valid_id(message_id: str) -> bool:
    """Whether `message_id` has the form of an id."""
    return _ID.fullmatch(message_id) is not None


def valid_ids(ids: Sequence[str]) -> bool:
    """Whether all have the form of an id: one pass of the matcher over the whole column."""
    if isinstance(ids, IdColumn) and ids.are_valid:
        return True
    joined = ids.text if isinstance(ids, IdColumn) else SEPARATOR.join(ids)
    # The matcher cannot distinguish a separator from a line break inside an id; their number can.
    return joined.count("\n") == len(ids) - 1 and _IDS.fullmatch(joined) is not None


def are_valid_cells(wire: bytes, count: int) -> bool:
    """Whether an encoded column has so many ids of one length, all of which have the form of an id."""
    length = wire[len(ID_TAG)]
    head, width = ID_TAG + bytes((length,)), len(ID_TAG) + 1 + length
    if not 1 <= length <= _LENGTH_MAX or len(wire) != count * width:
        return False
    if any(wire[at::width] != head[at : at + 1] * count for at in range(len(head))):
        return False
    # What other characters there are belongs to the prefixes.
    return len(wire.translate(None, _CHARACTERS)) == count * len(head.translate(None, _CHARACTERS))


def generated_ids(prefix: str, first: int, count: int) -> list[str]:
    """The ids of `count` consecutive counters; many of them share a prefix, which makes this three times as fast."""
    if count < _FEW:
        return [f"{prefix}{counter:08x}" for counter in range(first, first + count)]
    ids: list[str] = []
    end = first + count
    while first < end:
        high, low = divmod(first, len(_LOW))
        head, chosen = f"{prefix}{high:06x}", _LOW[low : low + end - first]
        ids += [head + digits for digits in chosen]
        first += len(chosen)
    return ids


def parse_generated(message_id: str) -> tuple[ProducerSession, int, int] | None:
    """(session, bucket, counter) when the id has the generated form, else None.

    A natural id may have that form by chance (a UUID in hex); storage looks it up as natural first.
    """
    if _GENERATED.fullmatch(message_id) is None:
        return None
    session = ProducerSession(int(message_id[:12], 16), int(message_id[16:24], 16))
    return session, int(message_id[12:16], 16), int(message_id[24:], 16)


def bucket_in(generated: str) -> int:
    """The bucket in a generated id."""
    return int(generated[12:16], 16)


def bucket_of(message_id: str, buckets: int) -> int:
    """The bucket of a natural id."""
    return bucket_hash(message_id.encode()) % buckets


def buckets_of(message_id: str, buckets: int) -> list[int]:
    """The buckets in which a message with this id may be, the most likely first.

    An id in generated form may be natural.
    """
    natural = bucket_of(message_id, buckets)
    generated = parse_generated(message_id) if len(message_id) == GENERATED_LENGTH else None
    return [natural] if generated is None or generated[1] >= buckets else [generated[1], natural]
