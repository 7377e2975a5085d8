from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Code(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    OK: _ClassVar[Code]
    ALREADY_EXISTS: _ClassVar[Code]
    INVALID_ARGUMENT: _ClassVar[Code]
    INVALID_ID: _ClassVar[Code]
    INVALID_TIME: _ClassVar[Code]
    TOO_FAR: _ClassVar[Code]
    INVALID_PRIORITY: _ClassVar[Code]
    INVALID_HEADERS: _ClassVar[Code]
    INVALID_LEASE: _ClassVar[Code]
    INVALID_TOPIC: _ClassVar[Code]
    INVALID_SETTING: _ClassVar[Code]
    DUPLICATE_IN_BATCH: _ClassVar[Code]
    BODY_TOO_LARGE: _ClassVar[Code]
    BATCH_TOO_LARGE: _ClassVar[Code]
    LIMIT_EXCEEDED: _ClassVar[Code]
    BODY_UNREADABLE: _ClassVar[Code]
    QUOTA_EXCEEDED: _ClassVar[Code]
    INVALID_SCHEDULE: _ClassVar[Code]
    ID_TAKEN: _ClassVar[Code]
    LEASED: _ClassVar[Code]
    LEASE_LOST: _ClassVar[Code]
    NOT_OWNER: _ClassVar[Code]
    VERSION_CONFLICT: _ClassVar[Code]
    DIFFERENT_STORES: _ClassVar[Code]
    BATCH_NAME_TAKEN: _ClassVar[Code]
    CLAIM_LOST: _ClassVar[Code]
    EXPIRED: _ClassVar[Code]
    TOO_LATE: _ClassVar[Code]
    NOT_FOUND: _ClassVar[Code]
    TOPIC_NOT_FOUND: _ClassVar[Code]
    TOPIC_DELETING: _ClassVar[Code]
    TOPIC_EXISTS: _ClassVar[Code]
    BODY_MISSING: _ClassVar[Code]
    OFFSET_OUT_OF_RANGE: _ClassVar[Code]
    OUT_OF_STATE: _ClassVar[Code]
    VERSION_UNSUPPORTED: _ClassVar[Code]
    UNAUTHENTICATED: _ClassVar[Code]
    PERMISSION_DENIED: _ClassVar[Code]
    UNAVAILABLE: _ClassVar[Code]
    DRAINING: _ClassVar[Code]
    OVERLOADED: _ClassVar[Code]
    NO_BROKER: _ClassVar[Code]
    CUT_OFF: _ClassVar[Code]
    KEY_UNAVAILABLE: _ClassVar[Code]
    INDEFINITE: _ClassVar[Code]
    STORE_LOCKED: _ClassVar[Code]
    STORE_CORRUPT: _ClassVar[Code]
    STORE_NEWER: _ClassVar[Code]
    STORE_FAILED: _ClassVar[Code]
    PORT_TAKEN: _ClassVar[Code]
    PIPELINE_FAILED: _ClassVar[Code]
    CLUSTER_REFUSED: _ClassVar[Code]
    SYNCHRONIZATION_FAILED: _ClassVar[Code]
    SYNCHRONIZATION_FULL: _ClassVar[Code]
    INTERNAL: _ClassVar[Code]
OK: Code
ALREADY_EXISTS: Code
INVALID_ARGUMENT: Code
INVALID_ID: Code
INVALID_TIME: Code
TOO_FAR: Code
INVALID_PRIORITY: Code
INVALID_HEADERS: Code
INVALID_LEASE: Code
INVALID_TOPIC: Code
INVALID_SETTING: Code
DUPLICATE_IN_BATCH: Code
BODY_TOO_LARGE: Code
BATCH_TOO_LARGE: Code
LIMIT_EXCEEDED: Code
BODY_UNREADABLE: Code
QUOTA_EXCEEDED: Code
INVALID_SCHEDULE: Code
ID_TAKEN: Code
LEASED: Code
LEASE_LOST: Code
NOT_OWNER: Code
VERSION_CONFLICT: Code
DIFFERENT_STORES: Code
BATCH_NAME_TAKEN: Code
CLAIM_LOST: Code
EXPIRED: Code
TOO_LATE: Code
NOT_FOUND: Code
TOPIC_NOT_FOUND: Code
TOPIC_DELETING: Code
TOPIC_EXISTS: Code
BODY_MISSING: Code
OFFSET_OUT_OF_RANGE: Code
OUT_OF_STATE: Code
VERSION_UNSUPPORTED: Code
UNAUTHENTICATED: Code
PERMISSION_DENIED: Code
UNAVAILABLE: Code
DRAINING: Code
OVERLOADED: Code
NO_BROKER: Code
CUT_OFF: Code
KEY_UNAVAILABLE: Code
INDEFINITE: Code
STORE_LOCKED: Code
STORE_CORRUPT: Code
STORE_NEWER: Code
STORE_FAILED: Code
PORT_TAKEN: Code
PIPELINE_FAILED: Code
CLUSTER_REFUSED: Code
SYNCHRONIZATION_FAILED: Code
SYNCHRONIZATION_FULL: Code
INTERNAL: Code

class Error(_message.Message):
    __slots__ = ("code", "message", "details", "retryable", "indefinite", "throttled_ms", "should_resync")
    CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    DETAILS_FIELD_NUMBER: _ClassVar[int]
    RETRYABLE_FIELD_NUMBER: _ClassVar[int]
    INDEFINITE_FIELD_NUMBER: _ClassVar[int]
    THROTTLED_MS_FIELD_NUMBER: _ClassVar[int]
    SHOULD_RESYNC_FIELD_NUMBER: _ClassVar[int]
    code: Code
    message: str
    details: str
    retryable: bool
    indefinite: bool
    throttled_ms: int
    should_resync: bool
    def __init__(self, code: _Optional[_Union[Code, str]] = ..., message: _Optional[str] = ..., details: _Optional[str] = ..., retryable: _Optional[bool] = ..., indefinite: _Optional[bool] = ..., throttled_ms: _Optional[int] = ..., should_resync: _Optional[bool] = ...) -> None: ...

class Outcomes(_message.Message):
    __slots__ = ("rows", "codes", "throttled_ms")
    ROWS_FIELD_NUMBER: _ClassVar[int]
    CODES_FIELD_NUMBER: _ClassVar[int]
    THROTTLED_MS_FIELD_NUMBER: _ClassVar[int]
    rows: _containers.RepeatedScalarFieldContainer[int]
    codes: _containers.RepeatedScalarFieldContainer[Code]
    throttled_ms: int
    def __init__(self, rows: _Optional[_Iterable[int]] = ..., codes: _Optional[_Iterable[_Union[Code, str]]] = ..., throttled_ms: _Optional[int] = ...) -> None: ...
