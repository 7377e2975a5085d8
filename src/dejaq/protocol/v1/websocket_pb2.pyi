from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Optional as _Optional

DESCRIPTOR: _descriptor.FileDescriptor

class Call(_message.Message):
    __slots__ = ("method", "timeout_ms", "request", "bearer")
    METHOD_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    BEARER_FIELD_NUMBER: _ClassVar[int]
    method: str
    timeout_ms: int
    request: bytes
    bearer: str
    def __init__(self, method: _Optional[str] = ..., timeout_ms: _Optional[int] = ..., request: _Optional[bytes] = ..., bearer: _Optional[str] = ...) -> None: ...
