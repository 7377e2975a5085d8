"""Every error DejaQ can answer with: a stable code, and the exception that carries it.

    DejaqError
    ├── Refused                 the request or item was understood and not done; nothing changed
    │   ├── InvalidArgument     INVALID_ARGUMENT INVALID_ID INVALID_TIME TOO_FAR INVALID_PRIORITY
    │   │                       INVALID_HEADERS INVALID_LEASE INVALID_TOPIC INVALID_SETTING
    │   │                       DUPLICATE_IN_BATCH INVALID_SCHEDULE
    │   ├── LimitExceeded       BODY_TOO_LARGE BATCH_TOO_LARGE LIMIT_EXCEEDED
    │                       BODY_UNREADABLE
    │   ├── Conflict            ID_TAKEN LEASED LEASE_LOST NOT_OWNER VERSION_CONFLICT DIFFERENT_STORES
    │   ├── Missing             NOT_FOUND TOPIC_NOT_FOUND TOPIC_DELETING BODY_MISSING
    │   ├── TopicExists         TOPIC_EXISTS
    │   ├── OutOfState          OUT_OF_STATE
    │   └── VersionUnsupported  VERSION_UNSUPPORTED
    ├── Unavailable             nothing changed; the same request may succeed later
    │   │                       UNAVAILABLE DRAINING OVERLOADED CUT_OFF
    │   └── NoBroker            NO_BROKER
    ├── Indefinite              the outcome is unknown; resolved by an idempotent retry
    │                           INDEFINITE
    ├── StoreError              the data directory cannot be used
    │                           STORE_LOCKED STORE_CORRUPT STORE_NEWER STORE_FAILED
    ├── PortTaken               PORT_TAKEN
    ├── ClusterRefused          the broker may not join its cluster as it is set up
    │                           CLUSTER_REFUSED
    ├── SynchronizationError    the synchronization service does not answer
    │                           SYNCHRONIZATION_FAILED
    ├── PipelineError           the lake could not be built or read
    │                           PIPELINE_FAILED
    └── InternalError           INTERNAL

A caller decides by attribute (`code`, `retryable`, `indefinite`, `should_resync`), never by text.
The docstring of a class is its default message.
"""

from __future__ import annotations

from enum import IntEnum
from typing import ClassVar


class Code(IntEnum):
    """The stable number of an outcome; the same numbers are in `proto/dejaq/v1/errors.proto`."""

    OK = 0
    ALREADY_EXISTS = 1
    INVALID_ARGUMENT = 10
    INVALID_ID = 11
    INVALID_TIME = 12
    TOO_FAR = 13
    INVALID_PRIORITY = 14
    INVALID_HEADERS = 15
    INVALID_LEASE = 16
    INVALID_TOPIC = 17
    INVALID_SETTING = 18
    DUPLICATE_IN_BATCH = 19
    BODY_TOO_LARGE = 20
    BATCH_TOO_LARGE = 21
    LIMIT_EXCEEDED = 22
    BODY_UNREADABLE = 23
    INVALID_SCHEDULE = 25
    ID_TAKEN = 30
    LEASED = 31
    LEASE_LOST = 32
    NOT_OWNER = 33
    VERSION_CONFLICT = 34
    DIFFERENT_STORES = 35
    NOT_FOUND = 40
    TOPIC_NOT_FOUND = 41
    TOPIC_DELETING = 42
    TOPIC_EXISTS = 43
    BODY_MISSING = 44
    OUT_OF_STATE = 50
    VERSION_UNSUPPORTED = 51
    UNAVAILABLE = 60
    DRAINING = 61
    OVERLOADED = 62
    NO_BROKER = 63
    CUT_OFF = 64
    INDEFINITE = 70
    STORE_LOCKED = 80
    STORE_CORRUPT = 81
    STORE_NEWER = 82
    STORE_FAILED = 83
    PORT_TAKEN = 90
    PIPELINE_FAILED = 91
    CLUSTER_REFUSED = 92
    SYNCHRONIZATION_FAILED = 93
    INTERNAL = 99

    @property
    def succeeded(self) -> bool:
        """True where the item now stands as its caller asked."""
        return self <= Code.ALREADY_EXISTS


MEANINGS: dict[Code, str] = {
    Code.OK: "Done.",
    Code.ALREADY_EXISTS: "A message with this id and content is already there; the create is a repeat.",
    Code.INVALID_ARGUMENT: "The request is malformed; correct it and send it again.",
    Code.INVALID_ID: "An id is 1 to 64 characters of 0-9 A-Z a-z . _ : -",
    Code.INVALID_TIME: "A time is UTC milliseconds from 0 to the end of the year 9999.",
    Code.TOO_FAR: "The time is further ahead than the topic's max_future allows.",
    Code.INVALID_PRIORITY: "A priority is a 32-bit signed integer.",
    Code.INVALID_HEADERS: "Headers are a small map of short strings; see the limits.",
    Code.INVALID_LEASE: "The lease is shorter than the minimum or longer than the topic's max_lease.",
    Code.INVALID_TOPIC: "A topic name is 1 to 128 characters of 0-9 A-Z a-z . _ -",
    Code.INVALID_SETTING: "A topic setting is out of range.",
    Code.DUPLICATE_IN_BATCH: "The id stands earlier in the same batch; the first one counts.",
    Code.BODY_TOO_LARGE: "The body is larger than the topic's max_body.",
    Code.BATCH_TOO_LARGE: "The batch has more items or bytes than the limit; split it.",
    Code.LIMIT_EXCEEDED: "A limit of the broker is reached; try again when there is room.",
    Code.BODY_UNREADABLE: "The compressed body is damaged, or larger than what is unpacked; see `raw_body`.",
    Code.INVALID_SCHEDULE: "The schedule can never run, or its expression, time zone or template cannot be read.",
    Code.ID_TAKEN: "Another message with this id is there; choose another id, or edit that message.",
    Code.LEASED: "A consumer holds a live lease on the message; try again when it ends.",
    Code.LEASE_LOST: "The lease has expired or is held by another; drop the message, it is delivered again.",
    Code.NOT_OWNER: "The message belongs to another producer group.",
    Code.VERSION_CONFLICT: "The message changed since it was read; read it again.",
    Code.DIFFERENT_STORES: "The steps concern topics of different stores; a transaction must stay within one.",
    Code.NOT_FOUND: "No message has this id: it was deleted, cancelled or never created.",
    Code.TOPIC_NOT_FOUND: "No topic has this name; create it first.",
    Code.TOPIC_DELETING: "The topic is being deleted.",
    Code.TOPIC_EXISTS: "A topic with this name and other settings is there.",
    Code.BODY_MISSING: "The broker does not have a body that was named by its digest; send the bodies.",
    Code.OUT_OF_STATE: "The command does not fit the session's state.",
    Code.VERSION_UNSUPPORTED: "The broker does not speak this protocol or SDK version; upgrade the older side.",
    Code.UNAVAILABLE: "The broker cannot serve now; nothing was changed.",
    Code.DRAINING: "The broker is shutting down; nothing was changed; use another or wait for its return.",
    Code.OVERLOADED: "Too much is in flight; nothing was changed; slow down and try again.",
    Code.NO_BROKER: "No broker answered; check the address and that `dejaq serve` runs.",
    Code.CUT_OFF: "The broker is cut off from its cluster; nothing was changed; use another broker.",
    Code.INDEFINITE: "The outcome is unknown; repeat the request with the same ids.",
    Code.STORE_LOCKED: "Another process holds the data directory.",
    Code.STORE_CORRUPT: "The data directory is damaged; restore it from a backup.",
    Code.STORE_NEWER: "The data directory was written by a newer release; upgrade DejaQ.",
    Code.STORE_FAILED: "The storage failed; the broker acknowledges nothing until it works again.",
    Code.PORT_TAKEN: "The address is in use by another process.",
    Code.PIPELINE_FAILED: "The pipeline could not do its work; what was committed before stands.",
    Code.CLUSTER_REFUSED: "The broker may not join the cluster as it is set up; change its settings.",
    Code.SYNCHRONIZATION_FAILED: "The synchronization service does not answer; check its address and its quorum.",
    Code.INTERNAL: "The broker has a fault; the broker's log has the details.",
}


class DejaqError(Exception):
    """Something went wrong in DejaQ."""

    code: Code = Code.INTERNAL
    retryable: ClassVar[bool] = False
    indefinite: ClassVar[bool] = False
    should_resync: bool = False

    def __init__(
        self,
        message: str = "",
        *,
        code: Code | None = None,
        details: str = "",
        throttled_ms: int = 0,
    ) -> None:
        self.code = code if code is not None else type(self).code
        self.message = message or MEANINGS.get(self.code) or (type(self).__doc__ or "")
        self.details = details
        self.throttled_ms = throttled_ms
        super().__init__(self.message)

    def __str__(self) -> str:
        return f"{self.code.name}: {self.message}" + (f" ({self.details})" if self.details else "")

    def __reduce__(self) -> tuple[object, ...]:
        return (_rebuild, (type(self), self.message, self.code, self.details, self.throttled_ms))


def _rebuild(kind: type[DejaqError], message: str, code: Code, details: str, throttled_ms: int) -> DejaqError:
    return kind(message, code=code, details=details, throttled_ms=throttled_ms)


class Refused(DejaqError):
    """The request was understood and not done; nothing changed."""

    code = Code.INVALID_ARGUMENT


class InvalidArgument(Refused):
    """The request is malformed."""


class LimitExceeded(Refused):
    """A limit was exceeded."""

    code = Code.LIMIT_EXCEEDED


class Conflict(Refused):
    """The message is not in the state the change needs."""

    code = Code.LEASED


class Missing(Refused):
    """What the request names is not there."""

    code = Code.NOT_FOUND


class TopicExists(Refused):
    """A topic with this name and other settings is there."""

    code = Code.TOPIC_EXISTS


class OutOfState(Refused):
    """The command does not fit the session's state."""

    code = Code.OUT_OF_STATE


class VersionUnsupported(Refused):
    """The two sides do not share a protocol version."""

    code = Code.VERSION_UNSUPPORTED


class Unavailable(DejaqError):
    """The broker cannot serve now; nothing was changed."""

    code = Code.UNAVAILABLE
    retryable = True
    should_resync = True


class NoBroker(Unavailable):
    """No broker answered."""

    code = Code.NO_BROKER


class Indefinite(DejaqError):
    """The outcome is unknown."""

    code = Code.INDEFINITE
    retryable = True
    indefinite = True


class StoreError(DejaqError):
    """The data directory cannot be used."""

    code = Code.STORE_FAILED


class PortTaken(DejaqError):
    """The address is in use by another process."""

    code = Code.PORT_TAKEN


class PipelineError(DejaqError):
    """The lake could not be built or read; what was committed before stands."""

    code = Code.PIPELINE_FAILED


class ClusterRefused(DejaqError):
    """The broker may not join the cluster as it is set up."""

    code = Code.CLUSTER_REFUSED


class SynchronizationError(DejaqError):
    """The synchronization service does not answer."""

    code = Code.SYNCHRONIZATION_FAILED
    retryable = True


class InternalError(DejaqError):
    """The broker has a fault."""

    code = Code.INTERNAL


_CLASSES: tuple[tuple[type[DejaqError], frozenset[Code]], ...] = (
    (InvalidArgument, frozenset(c for c in Code if 10 <= c <= 19 or c is Code.INVALID_SCHEDULE)),
    (LimitExceeded, frozenset(c for c in Code if 20 <= c <= 23)),
    (Conflict, frozenset(c for c in Code if 30 <= c <= 35)),
    (Missing, frozenset({*(c for c in Code if 40 <= c <= 42), Code.BODY_MISSING})),
    (TopicExists, frozenset({Code.TOPIC_EXISTS})),
    (OutOfState, frozenset({Code.OUT_OF_STATE})),
    (VersionUnsupported, frozenset({Code.VERSION_UNSUPPORTED})),
    (Unavailable, frozenset({Code.UNAVAILABLE, Code.DRAINING, Code.OVERLOADED, Code.CUT_OFF})),
    (NoBroker, frozenset({Code.NO_BROKER})),
    (Indefinite, frozenset({Code.INDEFINITE})),
    (StoreError, frozenset(c for c in Code if 80 <= c <= 83)),
    (PortTaken, frozenset({Code.PORT_TAKEN})),
    (PipelineError, frozenset({Code.PIPELINE_FAILED})),
    (ClusterRefused, frozenset({Code.CLUSTER_REFUSED})),
    (SynchronizationError, frozenset({Code.SYNCHRONIZATION_FAILED})),
)
_CLASS_OF: dict[Code, type[DejaqError]] = {code: kind for kind, codes in _CLASSES for code in codes}


def error_class(code: Code) -> type[DejaqError]:
    """The exception class that carries `code`."""
    return _CLASS_OF.get(code, InternalError)


def error_of(code: Code, message: str = "", *, details: str = "", throttled_ms: int = 0) -> DejaqError:
    """The exception for `code`, with its documented meaning as the default message."""
    return error_class(code)(message, code=code, details=details, throttled_ms=throttled_ms)
