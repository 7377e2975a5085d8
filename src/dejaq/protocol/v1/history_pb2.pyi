from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class HistoryRequest(_message.Message):
    __slots__ = ("topic", "id", "cursor", "count")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    CURSOR_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    topic: str
    id: str
    cursor: bytes
    count: int
    def __init__(self, topic: _Optional[str] = ..., id: _Optional[str] = ..., cursor: _Optional[bytes] = ..., count: _Optional[int] = ...) -> None: ...

class HistoryEvent(_message.Message):
    __slots__ = ("at_ms", "kind", "actor", "lease", "expires_ms", "ts_ms", "priority", "attempts", "body_bytes", "body_crc", "handed_us", "origin", "sequence", "row", "ticket", "principal")
    AT_MS_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    ACTOR_FIELD_NUMBER: _ClassVar[int]
    LEASE_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_MS_FIELD_NUMBER: _ClassVar[int]
    TS_MS_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    ATTEMPTS_FIELD_NUMBER: _ClassVar[int]
    BODY_BYTES_FIELD_NUMBER: _ClassVar[int]
    BODY_CRC_FIELD_NUMBER: _ClassVar[int]
    HANDED_US_FIELD_NUMBER: _ClassVar[int]
    ORIGIN_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    ROW_FIELD_NUMBER: _ClassVar[int]
    TICKET_FIELD_NUMBER: _ClassVar[int]
    PRINCIPAL_FIELD_NUMBER: _ClassVar[int]
    at_ms: int
    kind: str
    actor: str
    lease: int
    expires_ms: int
    ts_ms: int
    priority: int
    attempts: int
    body_bytes: int
    body_crc: int
    handed_us: int
    origin: str
    sequence: int
    row: int
    ticket: int
    principal: str
    def __init__(self, at_ms: _Optional[int] = ..., kind: _Optional[str] = ..., actor: _Optional[str] = ..., lease: _Optional[int] = ..., expires_ms: _Optional[int] = ..., ts_ms: _Optional[int] = ..., priority: _Optional[int] = ..., attempts: _Optional[int] = ..., body_bytes: _Optional[int] = ..., body_crc: _Optional[int] = ..., handed_us: _Optional[int] = ..., origin: _Optional[str] = ..., sequence: _Optional[int] = ..., row: _Optional[int] = ..., ticket: _Optional[int] = ..., principal: _Optional[str] = ...) -> None: ...

class HistoryResponse(_message.Message):
    __slots__ = ("events", "cursor", "notes")
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    CURSOR_FIELD_NUMBER: _ClassVar[int]
    NOTES_FIELD_NUMBER: _ClassVar[int]
    events: _containers.RepeatedCompositeFieldContainer[HistoryEvent]
    cursor: bytes
    notes: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, events: _Optional[_Iterable[_Union[HistoryEvent, _Mapping]]] = ..., cursor: _Optional[bytes] = ..., notes: _Optional[_Iterable[str]] = ...) -> None: ...

class HistoryPosition(_message.Message):
    __slots__ = ("broker", "origin", "before")
    BROKER_FIELD_NUMBER: _ClassVar[int]
    ORIGIN_FIELD_NUMBER: _ClassVar[int]
    BEFORE_FIELD_NUMBER: _ClassVar[int]
    broker: str
    origin: str
    before: int
    def __init__(self, broker: _Optional[str] = ..., origin: _Optional[str] = ..., before: _Optional[int] = ...) -> None: ...
