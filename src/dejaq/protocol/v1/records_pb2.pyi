from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable
from typing import ClassVar as _ClassVar, Optional as _Optional

DESCRIPTOR: _descriptor.FileDescriptor

class Run(_message.Message):
    __slots__ = ("owner", "session", "first", "ids", "ts", "bodies", "priorities", "attempts", "headers", "apart", "firsts", "lasts", "versions", "groups", "counted")
    OWNER_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    FIRST_FIELD_NUMBER: _ClassVar[int]
    IDS_FIELD_NUMBER: _ClassVar[int]
    TS_FIELD_NUMBER: _ClassVar[int]
    BODIES_FIELD_NUMBER: _ClassVar[int]
    PRIORITIES_FIELD_NUMBER: _ClassVar[int]
    ATTEMPTS_FIELD_NUMBER: _ClassVar[int]
    HEADERS_FIELD_NUMBER: _ClassVar[int]
    APART_FIELD_NUMBER: _ClassVar[int]
    FIRSTS_FIELD_NUMBER: _ClassVar[int]
    LASTS_FIELD_NUMBER: _ClassVar[int]
    VERSIONS_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    COUNTED_FIELD_NUMBER: _ClassVar[int]
    owner: str
    session: bytes
    first: int
    ids: _containers.RepeatedScalarFieldContainer[str]
    ts: _containers.RepeatedScalarFieldContainer[int]
    bodies: _containers.RepeatedScalarFieldContainer[bytes]
    priorities: _containers.RepeatedScalarFieldContainer[int]
    attempts: _containers.RepeatedScalarFieldContainer[int]
    headers: _containers.RepeatedScalarFieldContainer[bytes]
    apart: _containers.RepeatedScalarFieldContainer[int]
    firsts: _containers.RepeatedScalarFieldContainer[int]
    lasts: _containers.RepeatedScalarFieldContainer[int]
    versions: _containers.RepeatedScalarFieldContainer[int]
    groups: bytes
    counted: bool
    def __init__(self, owner: _Optional[str] = ..., session: _Optional[bytes] = ..., first: _Optional[int] = ..., ids: _Optional[_Iterable[str]] = ..., ts: _Optional[_Iterable[int]] = ..., bodies: _Optional[_Iterable[bytes]] = ..., priorities: _Optional[_Iterable[int]] = ..., attempts: _Optional[_Iterable[int]] = ..., headers: _Optional[_Iterable[bytes]] = ..., apart: _Optional[_Iterable[int]] = ..., firsts: _Optional[_Iterable[int]] = ..., lasts: _Optional[_Iterable[int]] = ..., versions: _Optional[_Iterable[int]] = ..., groups: _Optional[bytes] = ..., counted: _Optional[bool] = ...) -> None: ...

class Lease(_message.Message):
    __slots__ = ("consumer", "runs", "starts", "counts", "dues", "attempts", "expires", "granted_ms", "firsts")
    CONSUMER_FIELD_NUMBER: _ClassVar[int]
    RUNS_FIELD_NUMBER: _ClassVar[int]
    STARTS_FIELD_NUMBER: _ClassVar[int]
    COUNTS_FIELD_NUMBER: _ClassVar[int]
    DUES_FIELD_NUMBER: _ClassVar[int]
    ATTEMPTS_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_FIELD_NUMBER: _ClassVar[int]
    GRANTED_MS_FIELD_NUMBER: _ClassVar[int]
    FIRSTS_FIELD_NUMBER: _ClassVar[int]
    consumer: str
    runs: _containers.RepeatedScalarFieldContainer[bytes]
    starts: _containers.RepeatedScalarFieldContainer[int]
    counts: _containers.RepeatedScalarFieldContainer[int]
    dues: _containers.RepeatedScalarFieldContainer[int]
    attempts: _containers.RepeatedScalarFieldContainer[int]
    expires: int
    granted_ms: int
    firsts: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, consumer: _Optional[str] = ..., runs: _Optional[_Iterable[bytes]] = ..., starts: _Optional[_Iterable[int]] = ..., counts: _Optional[_Iterable[int]] = ..., dues: _Optional[_Iterable[int]] = ..., attempts: _Optional[_Iterable[int]] = ..., expires: _Optional[int] = ..., granted_ms: _Optional[int] = ..., firsts: _Optional[_Iterable[int]] = ...) -> None: ...

class Terms(_message.Message):
    __slots__ = ("expires", "masks", "reported")
    EXPIRES_FIELD_NUMBER: _ClassVar[int]
    MASKS_FIELD_NUMBER: _ClassVar[int]
    REPORTED_FIELD_NUMBER: _ClassVar[int]
    expires: _containers.RepeatedScalarFieldContainer[int]
    masks: _containers.RepeatedScalarFieldContainer[bytes]
    reported: _containers.RepeatedScalarFieldContainer[bool]
    def __init__(self, expires: _Optional[_Iterable[int]] = ..., masks: _Optional[_Iterable[bytes]] = ..., reported: _Optional[_Iterable[bool]] = ...) -> None: ...

class SeenCounters(_message.Message):
    __slots__ = ("used_ms", "ranges", "firsts", "checks")
    USED_MS_FIELD_NUMBER: _ClassVar[int]
    RANGES_FIELD_NUMBER: _ClassVar[int]
    FIRSTS_FIELD_NUMBER: _ClassVar[int]
    CHECKS_FIELD_NUMBER: _ClassVar[int]
    used_ms: int
    ranges: _containers.RepeatedScalarFieldContainer[int]
    firsts: _containers.RepeatedScalarFieldContainer[int]
    checks: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, used_ms: _Optional[int] = ..., ranges: _Optional[_Iterable[int]] = ..., firsts: _Optional[_Iterable[int]] = ..., checks: _Optional[_Iterable[int]] = ...) -> None: ...
