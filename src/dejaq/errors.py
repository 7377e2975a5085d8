"""Every error of DejaQ: a stable code, and the exception that carries it.

    DejaqError
    ├── Refused                 the request or item was refused; nothing was changed
    │   ├── InvalidArgument     INVALID_ARGUMENT INVALID_ID INVALID_TIME TOO_FAR INVALID_PRIORITY
    │   │                       INVALID_HEADERS INVALID_LEASE INVALID_TOPIC INVALID_SETTING
    │   │                       DUPLICATE_IN_BATCH INVALID_SCHEDULE
    │   ├── LimitExceeded       BODY_TOO_LARGE BATCH_TOO_LARGE LIMIT_EXCEEDED
    │   │                       BODY_UNREADABLE QUOTA_EXCEEDED
    │   ├── Conflict            ID_TAKEN LEASED LEASE_LOST NOT_OWNER VERSION_CONFLICT DIFFERENT_STORES
    │   │                       BATCH_NAME_TAKEN CLAIM_LOST EXPIRED TOO_LATE
    │   ├── Missing             NOT_FOUND TOPIC_NOT_FOUND TOPIC_DELETING BODY_MISSING
    │   │                       OFFSET_OUT_OF_RANGE
    │   ├── TopicExists         TOPIC_EXISTS
    │   ├── OutOfState          OUT_OF_STATE
    │   ├── VersionUnsupported  VERSION_UNSUPPORTED
    │   ├── KeyUnavailable      KEY_UNAVAILABLE
    │   ├── Unauthenticated     UNAUTHENTICATED
    │   └── PermissionDenied    PERMISSION_DENIED
    ├── Unavailable             nothing was changed; the same request may succeed later
    │   │                       UNAVAILABLE DRAINING OVERLOADED CUT_OFF
    │   └── NoBroker            NO_BROKER
    ├── Indefinite              it is unknown whether the request was done; an idempotent retry decides it
    │                           INDEFINITE
    ├── StoreError              the data directory cannot be used
    │                           STORE_LOCKED STORE_CORRUPT STORE_NEWER STORE_FAILED
    ├── PortTaken               PORT_TAKEN
    ├── ClusterRefused          the broker's settings do not allow it to join its cluster
    │                           CLUSTER_REFUSED
    ├── SynchronizationError    the synchronization service does not answer
    │   │                       SYNCHRONIZATION_FAILED
    │   └── SynchronizationFull the synchronization service takes no writes; it has no space left
    │                           SYNCHRONIZATION_FULL
    ├── PipelineError           the lake could not be built or read
    │                           PIPELINE_FAILED
    └── InternalError           INTERNAL

A caller decides by attribute (`code`, `retryable`, `indefinite`, `should_resync`), never by text.
`MEANINGS` has the default message of each code.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from types import MappingProxyType
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
    QUOTA_EXCEEDED = 24
    INVALID_SCHEDULE = 25
    ID_TAKEN = 30
    LEASED = 31
    LEASE_LOST = 32
    NOT_OWNER = 33
    VERSION_CONFLICT = 34
    DIFFERENT_STORES = 35
    BATCH_NAME_TAKEN = 36
    CLAIM_LOST = 37
    EXPIRED = 38
    TOO_LATE = 39
    NOT_FOUND = 40
    TOPIC_NOT_FOUND = 41
    TOPIC_DELETING = 42
    TOPIC_EXISTS = 43
    BODY_MISSING = 44
    OFFSET_OUT_OF_RANGE = 45
    OUT_OF_STATE = 50
    VERSION_UNSUPPORTED = 51
    UNAUTHENTICATED = 52
    PERMISSION_DENIED = 53
    UNAVAILABLE = 60
    DRAINING = 61
    OVERLOADED = 62
    NO_BROKER = 63
    CUT_OFF = 64
    KEY_UNAVAILABLE = 65
    INDEFINITE = 70
    STORE_LOCKED = 80
    STORE_CORRUPT = 81
    STORE_NEWER = 82
    STORE_FAILED = 83
    PORT_TAKEN = 90
    PIPELINE_FAILED = 91
    CLUSTER_REFUSED = 92
    SYNCHRONIZATION_FAILED = 93
    SYNCHRONIZATION_FULL = 94
    INTERNAL = 99

    def __str__(self) -> str:
        return self.name

    def __format__(self, spec: str) -> str:
        return format(int(self), spec) if spec.endswith(("d", "x")) else format(self.name, spec)

    @property
    def succeeded(self) -> bool:
        """True if the item is now in the state that the caller asked for."""
        return self <= Code.ALREADY_EXISTS


MEANINGS: dict[Code, str] = {
    Code.OK: "The change was made.",
    Code.ALREADY_EXISTS: "A message with this id and this content exists, or the topic still remembers its id.",
    Code.INVALID_ARGUMENT: "The request is not valid; correct it and send it again.",
    Code.INVALID_ID: "The id is not valid: an id has 1 to 64 characters of 0-9 A-Z a-z . _ : -",
    Code.INVALID_TIME: "The time is not valid: a time is UTC milliseconds from 0 to the end of the year 9999.",
    Code.TOO_FAR: "The time is further in the future than the topic's max_future_ms allows.",
    Code.INVALID_PRIORITY: "The priority is not a 32-bit signed integer.",
    Code.INVALID_HEADERS: "The headers are not a map of short strings, or they exceed a limit.",
    Code.INVALID_LEASE: "The lease is shorter than the minimum or longer than the topic's max_lease_ms.",
    Code.INVALID_TOPIC: "The topic name is not valid: a name has 1 to 128 characters of 0-9 A-Z a-z . _ -",
    Code.INVALID_SETTING: "A topic setting is outside the allowed range.",
    Code.DUPLICATE_IN_BATCH: "The same batch contains this id twice; only the first one was used.",
    Code.BODY_TOO_LARGE: "The body is larger than the topic's max_body_bytes.",
    Code.BATCH_TOO_LARGE: "The batch has too many items or bytes; split it.",
    Code.LIMIT_EXCEEDED: "The request would exceed a limit of the broker; nothing was changed.",
    Code.BODY_UNREADABLE: "The body is damaged or too large to decompress; `raw_body` has the stored bytes.",
    Code.QUOTA_EXCEEDED: "The caller would exceed its quota of topics or messages; nothing was changed.",
    Code.INVALID_SCHEDULE: "The schedule never runs, or its expression, time zone or template is not valid.",
    Code.ID_TAKEN: "Another message has this id; choose another id, or edit that message.",
    Code.LEASED: "A consumer holds a lease on the message; try again after the lease has ended.",
    Code.LEASE_LOST: "The lease has expired or is held by another consumer; stop: the message is delivered again.",
    Code.NOT_OWNER: "The message belongs to another producer group.",
    Code.VERSION_CONFLICT: "The message has changed since it was read; read it again.",
    Code.DIFFERENT_STORES: "The steps change topics of different stores; a transaction must use one store.",
    Code.BATCH_NAME_TAKEN: "Another batch has this session and sequence; begin a new session and send it again.",
    Code.CLAIM_LOST: "Another member of the group has claimed the bucket since; it reads on from the last commit.",
    Code.EXPIRED: "The time until which the batch may be appended has passed; nothing was appended.",
    Code.TOO_LATE: "The rollback window of the batch has passed, and readers may have it.",
    Code.NOT_FOUND: "No message has this id: it was deleted or cancelled, or it was never created.",
    Code.TOPIC_NOT_FOUND: "No topic has this name; create it first.",
    Code.TOPIC_DELETING: "The topic is being deleted.",
    Code.TOPIC_EXISTS: "A topic with this name and other settings already exists.",
    Code.BODY_MISSING: "The broker does not have the body with this digest; send the body.",
    Code.OFFSET_OUT_OF_RANGE: "The log does not have this offset: it was removed, or nothing was appended there yet.",
    Code.OUT_OF_STATE: "The session's state does not allow this command.",
    Code.VERSION_UNSUPPORTED: "The broker does not support this protocol or SDK version; upgrade the older side.",
    Code.UNAUTHENTICATED: "The broker does not accept the caller's credentials; log in, or give a valid key or token.",
    Code.PERMISSION_DENIED: "The caller has no right to do this; ask an administrator of the broker for it.",
    Code.UNAVAILABLE: "The broker cannot process requests now; nothing was changed.",
    Code.DRAINING: "The broker is shutting down; nothing was changed; use another broker or try again later.",
    Code.OVERLOADED: "The broker has too much work in progress; nothing was changed; try again later.",
    Code.NO_BROKER: "No broker answered; check the address, and that `dejaq serve` is running.",
    Code.CUT_OFF: "The broker is disconnected from its cluster; nothing was changed; use another broker.",
    Code.KEY_UNAVAILABLE: "The key of an encrypted topic cannot be read; check the broker's encryption_keys.",
    Code.INDEFINITE: "It is unknown whether the request was done; repeat it with the same ids.",
    Code.STORE_LOCKED: "Another process uses the data directory.",
    Code.STORE_CORRUPT: "The data directory is damaged; restore it from a backup.",
    Code.STORE_NEWER: "A newer release wrote the data directory; upgrade DejaQ.",
    Code.STORE_FAILED: "The storage failed; the broker acknowledges nothing until the storage works again.",
    Code.PORT_TAKEN: "Another process uses the address.",
    Code.PIPELINE_FAILED: "The pipeline failed; everything that it committed before remains valid.",
    Code.CLUSTER_REFUSED: "The broker's settings do not allow it to join the cluster; change them.",
    Code.SYNCHRONIZATION_FAILED: "The synchronization service does not answer; check its address and its quorum.",
    Code.SYNCHRONIZATION_FULL: "The synchronization service has no space left and takes no writes; free space in it.",
    Code.INTERNAL: "The broker has a defect; the broker's log has the details.",
}


class DejaqError(Exception):
    """The base class of all errors of DejaQ."""

    code: Code = Code.INTERNAL
    retryable: ClassVar[bool] = False
    indefinite: ClassVar[bool] = False
    should_resync: bool = False
    # Whether a broker sent this error. False: the client found no broker, or lost the connection.
    answered: bool = False
    # Whether an earlier try of the same request may have been done, though this one was refused.
    unsure: bool = False
    # The items of a batch that failed, by id, where the error is about several; the other items were done.
    failed: Mapping[str, Code] = MappingProxyType({})

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
        arguments = (type(self), self.message, self.code, self.details, self.throttled_ms)
        return (_rebuild, arguments, {"failed": dict(self.failed)}) if self.failed else (_rebuild, arguments)


def _rebuild(kind: type[DejaqError], message: str, code: Code, details: str, throttled_ms: int) -> DejaqError:
    return kind(message, code=code, details=details, throttled_ms=throttled_ms)


class Refused(DejaqError):
    """The request was refused; nothing was changed."""

    code = Code.INVALID_ARGUMENT


class InvalidArgument(Refused):
    """The request is not valid."""


class LimitExceeded(Refused):
    """The request exceeds a limit."""

    code = Code.LIMIT_EXCEEDED


class Conflict(Refused):
    """The message is not in the state that the change requires."""

    code = Code.LEASED


class Missing(Refused):
    """The message, topic or body that the request names does not exist."""

    code = Code.NOT_FOUND


class TopicExists(Refused):
    """A topic with this name and other settings already exists."""

    code = Code.TOPIC_EXISTS


class OutOfState(Refused):
    """The session's state does not allow the command."""

    code = Code.OUT_OF_STATE


class VersionUnsupported(Refused):
    """The client and the broker have no protocol version in common."""

    code = Code.VERSION_UNSUPPORTED


class Unauthenticated(Refused):
    """The broker does not accept the caller's credentials, or the caller has none."""

    code = Code.UNAUTHENTICATED


class PermissionDenied(Refused):
    """The caller has no right to do this."""

    code = Code.PERMISSION_DENIED


class Unavailable(DejaqError):
    """The broker cannot process requests now; nothing was changed."""

    code = Code.UNAVAILABLE
    retryable = True
    should_resync = True


class KeyUnavailable(Refused):
    """The key of an encrypted topic cannot be read; nothing was changed."""

    code = Code.KEY_UNAVAILABLE


class NoBroker(Unavailable):
    """No broker answered."""

    code = Code.NO_BROKER


class Indefinite(DejaqError):
    """It is unknown whether the request was done."""

    code = Code.INDEFINITE
    retryable = True
    indefinite = True


class StoreError(DejaqError):
    """The data directory cannot be used."""

    code = Code.STORE_FAILED


class PortTaken(DejaqError):
    """Another process uses the address."""

    code = Code.PORT_TAKEN


class PipelineError(DejaqError):
    """The lake could not be built or read; everything committed before remains valid."""

    code = Code.PIPELINE_FAILED


class ClusterRefused(DejaqError):
    """The broker's settings do not allow it to join the cluster."""

    code = Code.CLUSTER_REFUSED


class SynchronizationError(DejaqError):
    """The synchronization service does not answer."""

    code = Code.SYNCHRONIZATION_FAILED
    retryable = True


class SynchronizationFull(SynchronizationError):
    """The synchronization service takes no writes: it has no space left. Nothing was changed."""

    code = Code.SYNCHRONIZATION_FULL
    retryable = False


class InternalError(DejaqError):
    """The broker has a defect."""

    code = Code.INTERNAL


_CLASSES: tuple[tuple[type[DejaqError], frozenset[Code]], ...] = (
    (InvalidArgument, frozenset(c for c in Code if 10 <= c <= 19 or c is Code.INVALID_SCHEDULE)),
    (LimitExceeded, frozenset(c for c in Code if 20 <= c <= 24)),
    (Conflict, frozenset(c for c in Code if 30 <= c <= 39)),
    (Missing, frozenset({*(c for c in Code if 40 <= c <= 42), Code.BODY_MISSING, Code.OFFSET_OUT_OF_RANGE})),
    (TopicExists, frozenset({Code.TOPIC_EXISTS})),
    (OutOfState, frozenset({Code.OUT_OF_STATE})),
    (VersionUnsupported, frozenset({Code.VERSION_UNSUPPORTED})),
    (Unauthenticated, frozenset({Code.UNAUTHENTICATED})),
    (PermissionDenied, frozenset({Code.PERMISSION_DENIED})),
    (Unavailable, frozenset({Code.UNAVAILABLE, Code.DRAINING, Code.OVERLOADED, Code.CUT_OFF})),
    (KeyUnavailable, frozenset({Code.KEY_UNAVAILABLE})),
    (NoBroker, frozenset({Code.NO_BROKER})),
    (Indefinite, frozenset({Code.INDEFINITE})),
    (StoreError, frozenset(c for c in Code if 80 <= c <= 83)),
    (PortTaken, frozenset({Code.PORT_TAKEN})),
    (PipelineError, frozenset({Code.PIPELINE_FAILED})),
    (ClusterRefused, frozenset({Code.CLUSTER_REFUSED})),
    (SynchronizationError, frozenset({Code.SYNCHRONIZATION_FAILED})),
    (SynchronizationFull, frozenset({Code.SYNCHRONIZATION_FULL})),
)
_CLASS_OF: dict[Code, type[DejaqError]] = {code: kind for kind, codes in _CLASSES for code in codes}


def error_class(code: Code) -> type[DejaqError]:
    """The exception class that carries `code`."""
    return _CLASS_OF.get(code, InternalError)


def error_of(code: Code, message: str = "", *, details: str = "", throttled_ms: int = 0) -> DejaqError:
    """The exception for `code`, with its documented meaning as the default message."""
    return error_class(code)(message, code=code, details=details, throttled_ms=throttled_ms)
