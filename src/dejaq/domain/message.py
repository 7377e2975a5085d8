"""A message, its status, and the forms its id, priority and headers may take."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import repeat

from dejaq import limits
from dejaq.domain.bodies.body_block import body_bytes
from dejaq.domain.bodies.large import Reference
from dejaq.errors import Code

# How the value of a header begins that the broker encrypted, and the bytes that its seal adds before base64.
SEALED = "dejaq-sealed:"
SEALED_BYTES = 6 + 16 + 1


class Status(StrEnum):
    """The status of a message; derived from its time, its holder and the clock, never stored."""

    AVAILABLE = "available"
    WAITING = "waiting"
    PROCESSING = "processing"


@dataclass(frozen=True, slots=True)
class Message:
    """One message as its owner sees it.

    `ts` is its position on the timeline: the producer's time, or the lease's end while it is leased.
    """

    id: str
    topic: str
    bucket: int
    ts: int
    priority: int
    body: bytes
    producer_group: str
    lock_consumer: str
    version: int
    attempts: int
    headers: Mapping[str, str] = field(default_factory=dict)
    # The reference to a large body that was not fetched; `body` is then empty.
    large: Reference | None = None
    # The last report of its consumer (`lease.progress`), while the consumer works on the message; only `get` has it.
    progress: str = ""
    # Whether the caller has no right to read the body, which is empty then.
    masked: bool = False

    @property
    def size(self) -> int:
        """The bytes of its body, fetched or not."""
        return len(self.body) if self.large is None else self.large.size

    def status(self, now: int) -> Status:
        """The status at `now`, in UTC milliseconds."""
        return status_of(self.ts, self.lock_consumer, now)


def messages_of(count: int, columns: Mapping[str, Iterable[object]]) -> list[Message]:
    """Messages from a column of this length for each of their fields: a third of the time of a call per message."""
    messages = list(map(object.__new__, repeat(Message, count)))
    for name, column in columns.items():
        deque(map(getattr(Message, name).__set__, messages, column), maxlen=0)
    return messages


@dataclass(frozen=True, slots=True)
class UnleasedMessages:
    """Messages that no consumer has had yet, by the positions of the ids that they answer.

    Priorities and headers, which are encoded, are empty if no message has one.
    """

    items: Sequence[int]
    buckets: Sequence[int]
    ts: Sequence[int]
    versions: Sequence[int]
    groups: Sequence[str]
    bodies: Sequence[bytes]
    priorities: Sequence[int]
    headers: Sequence[bytes]

    def __len__(self) -> int:
        return len(self.items)

    @property
    def size(self) -> int:
        """The bytes of bodies and headers."""
        return body_bytes(self.bodies) + sum(map(len, self.headers))


NONE_UNLEASED = UnleasedMessages((), (), (), (), (), (), (), ())


def status_of(ts: int, lock_consumer: str, now: int) -> Status:
    """Derive a status; the order of the tests is part of the contract."""
    if ts <= now:
        return Status.AVAILABLE
    return Status.PROCESSING if lock_consumer else Status.WAITING


def _value_bytes(value: str) -> int:
    """The bytes of a header's value; of a sealed one those that it had before, so that a store counts like a client."""
    if value.startswith(SEALED):
        return max((len(value) - len(SEALED)) // 4 * 3 - SEALED_BYTES, 0)
    return len(value.encode())


def check_headers(headers: Mapping[str, str]) -> Code:
    """OK, or INVALID_HEADERS when the map is too large or holds something other than strings."""
    if len(headers) > limits.HEADERS_COUNT_MAX:
        return Code.INVALID_HEADERS
    size = 0
    for key, value in headers.items():
        if not isinstance(key, str) or not isinstance(value, str) or not key:
            return Code.INVALID_HEADERS
        size += len(key.encode()) + _value_bytes(value)
    return Code.OK if size <= limits.HEADERS_BYTES_MAX else Code.INVALID_HEADERS
