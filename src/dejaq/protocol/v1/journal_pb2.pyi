from dejaq.protocol.v1 import carrier_pb2 as _carrier_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class EventKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    EVENT_KIND_UNSPECIFIED: _ClassVar[EventKind]
    EVENT_CREATED: _ClassVar[EventKind]
    EVENT_LEASED: _ClassVar[EventKind]
    EVENT_EXTENDED: _ClassVar[EventKind]
    EVENT_RELEASED: _ClassVar[EventKind]
    EVENT_EXPIRED: _ClassVar[EventKind]
    EVENT_MOVED: _ClassVar[EventKind]
    EVENT_EDITED: _ClassVar[EventKind]
    EVENT_CANCELLED: _ClassVar[EventKind]
    EVENT_DELETED: _ClassVar[EventKind]
    EVENT_DEAD_LETTERED: _ClassVar[EventKind]
    EVENT_RECALLED: _ClassVar[EventKind]
    EVENT_TOPIC_DROPPED: _ClassVar[EventKind]
EVENT_KIND_UNSPECIFIED: EventKind
EVENT_CREATED: EventKind
EVENT_LEASED: EventKind
EVENT_EXTENDED: EventKind
EVENT_RELEASED: EventKind
EVENT_EXPIRED: EventKind
EVENT_MOVED: EventKind
EVENT_EDITED: EventKind
EVENT_CANCELLED: EventKind
EVENT_DELETED: EventKind
EVENT_DEAD_LETTERED: EventKind
EVENT_RECALLED: EventKind
EVENT_TOPIC_DROPPED: EventKind

class Events(_message.Message):
    __slots__ = ("kind", "topic", "actor", "lease", "expires", "spans", "ids", "ts", "priorities", "attempts", "body_bytes", "body_crcs", "handed_us", "joined")
    KIND_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    ACTOR_FIELD_NUMBER: _ClassVar[int]
    LEASE_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_FIELD_NUMBER: _ClassVar[int]
    SPANS_FIELD_NUMBER: _ClassVar[int]
    IDS_FIELD_NUMBER: _ClassVar[int]
    TS_FIELD_NUMBER: _ClassVar[int]
    PRIORITIES_FIELD_NUMBER: _ClassVar[int]
    ATTEMPTS_FIELD_NUMBER: _ClassVar[int]
    BODY_BYTES_FIELD_NUMBER: _ClassVar[int]
    BODY_CRCS_FIELD_NUMBER: _ClassVar[int]
    HANDED_US_FIELD_NUMBER: _ClassVar[int]
    JOINED_FIELD_NUMBER: _ClassVar[int]
    kind: EventKind
    topic: str
    actor: str
    lease: int
    expires: int
    spans: _containers.RepeatedCompositeFieldContainer[_carrier_pb2.IdSpan]
    ids: _containers.RepeatedScalarFieldContainer[str]
    ts: _containers.RepeatedScalarFieldContainer[int]
    priorities: _containers.RepeatedScalarFieldContainer[int]
    attempts: _containers.RepeatedScalarFieldContainer[int]
    body_bytes: _containers.RepeatedScalarFieldContainer[int]
    body_crcs: _containers.RepeatedScalarFieldContainer[int]
    handed_us: _containers.RepeatedScalarFieldContainer[int]
    joined: str
    def __init__(self, kind: _Optional[_Union[EventKind, str]] = ..., topic: _Optional[str] = ..., actor: _Optional[str] = ..., lease: _Optional[int] = ..., expires: _Optional[int] = ..., spans: _Optional[_Iterable[_Union[_carrier_pb2.IdSpan, _Mapping]]] = ..., ids: _Optional[_Iterable[str]] = ..., ts: _Optional[_Iterable[int]] = ..., priorities: _Optional[_Iterable[int]] = ..., attempts: _Optional[_Iterable[int]] = ..., body_bytes: _Optional[_Iterable[int]] = ..., body_crcs: _Optional[_Iterable[int]] = ..., handed_us: _Optional[_Iterable[int]] = ..., joined: _Optional[str] = ...) -> None: ...

class JournalRecord(_message.Message):
    __slots__ = ("sequence", "at_ms", "events", "ticket", "principal")
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    AT_MS_FIELD_NUMBER: _ClassVar[int]
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    TICKET_FIELD_NUMBER: _ClassVar[int]
    PRINCIPAL_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    at_ms: int
    events: _containers.RepeatedCompositeFieldContainer[Events]
    ticket: int
    principal: str
    def __init__(self, sequence: _Optional[int] = ..., at_ms: _Optional[int] = ..., events: _Optional[_Iterable[_Union[Events, _Mapping]]] = ..., ticket: _Optional[int] = ..., principal: _Optional[str] = ...) -> None: ...
