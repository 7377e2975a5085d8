from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class WhoAmIRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class WhoAmIResponse(_message.Message):
    __slots__ = ("principal", "kind", "user", "groups", "session", "device", "expires_ms")
    PRINCIPAL_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    USER_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_MS_FIELD_NUMBER: _ClassVar[int]
    principal: str
    kind: str
    user: str
    groups: _containers.RepeatedScalarFieldContainer[str]
    session: str
    device: str
    expires_ms: int
    def __init__(self, principal: _Optional[str] = ..., kind: _Optional[str] = ..., user: _Optional[str] = ..., groups: _Optional[_Iterable[str]] = ..., session: _Optional[str] = ..., device: _Optional[str] = ..., expires_ms: _Optional[int] = ...) -> None: ...

class CreateKeyRequest(_message.Message):
    __slots__ = ("user", "groups", "label", "lifetime_ms")
    USER_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    LABEL_FIELD_NUMBER: _ClassVar[int]
    LIFETIME_MS_FIELD_NUMBER: _ClassVar[int]
    user: str
    groups: _containers.RepeatedScalarFieldContainer[str]
    label: str
    lifetime_ms: int
    def __init__(self, user: _Optional[str] = ..., groups: _Optional[_Iterable[str]] = ..., label: _Optional[str] = ..., lifetime_ms: _Optional[int] = ...) -> None: ...

class CreateKeyResponse(_message.Message):
    __slots__ = ("key", "secret")
    KEY_FIELD_NUMBER: _ClassVar[int]
    SECRET_FIELD_NUMBER: _ClassVar[int]
    key: ApiKeyInfo
    secret: str
    def __init__(self, key: _Optional[_Union[ApiKeyInfo, _Mapping]] = ..., secret: _Optional[str] = ...) -> None: ...

class ApiKeyInfo(_message.Message):
    __slots__ = ("id", "user", "groups", "label", "made_by", "made_ms", "expires_ms")
    ID_FIELD_NUMBER: _ClassVar[int]
    USER_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    LABEL_FIELD_NUMBER: _ClassVar[int]
    MADE_BY_FIELD_NUMBER: _ClassVar[int]
    MADE_MS_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_MS_FIELD_NUMBER: _ClassVar[int]
    id: str
    user: str
    groups: _containers.RepeatedScalarFieldContainer[str]
    label: str
    made_by: str
    made_ms: int
    expires_ms: int
    def __init__(self, id: _Optional[str] = ..., user: _Optional[str] = ..., groups: _Optional[_Iterable[str]] = ..., label: _Optional[str] = ..., made_by: _Optional[str] = ..., made_ms: _Optional[int] = ..., expires_ms: _Optional[int] = ...) -> None: ...

class ListKeysRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListKeysResponse(_message.Message):
    __slots__ = ("keys",)
    KEYS_FIELD_NUMBER: _ClassVar[int]
    keys: _containers.RepeatedCompositeFieldContainer[ApiKeyInfo]
    def __init__(self, keys: _Optional[_Iterable[_Union[ApiKeyInfo, _Mapping]]] = ...) -> None: ...

class RevokeKeyRequest(_message.Message):
    __slots__ = ("id",)
    ID_FIELD_NUMBER: _ClassVar[int]
    id: str
    def __init__(self, id: _Optional[str] = ...) -> None: ...

class RevokeKeyResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListSessionsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListSessionsResponse(_message.Message):
    __slots__ = ("sessions",)
    SESSIONS_FIELD_NUMBER: _ClassVar[int]
    sessions: _containers.RepeatedCompositeFieldContainer[OpenSession]
    def __init__(self, sessions: _Optional[_Iterable[_Union[OpenSession, _Mapping]]] = ...) -> None: ...

class OpenSession(_message.Message):
    __slots__ = ("id", "principal", "device", "broker", "streams", "peers", "since_ms", "expires_ms", "logins")
    ID_FIELD_NUMBER: _ClassVar[int]
    PRINCIPAL_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    BROKER_FIELD_NUMBER: _ClassVar[int]
    STREAMS_FIELD_NUMBER: _ClassVar[int]
    PEERS_FIELD_NUMBER: _ClassVar[int]
    SINCE_MS_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_MS_FIELD_NUMBER: _ClassVar[int]
    LOGINS_FIELD_NUMBER: _ClassVar[int]
    id: str
    principal: str
    device: str
    broker: str
    streams: int
    peers: _containers.RepeatedScalarFieldContainer[str]
    since_ms: int
    expires_ms: int
    logins: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, id: _Optional[str] = ..., principal: _Optional[str] = ..., device: _Optional[str] = ..., broker: _Optional[str] = ..., streams: _Optional[int] = ..., peers: _Optional[_Iterable[str]] = ..., since_ms: _Optional[int] = ..., expires_ms: _Optional[int] = ..., logins: _Optional[_Iterable[str]] = ...) -> None: ...

class EndSessionRequest(_message.Message):
    __slots__ = ("id",)
    ID_FIELD_NUMBER: _ClassVar[int]
    id: str
    def __init__(self, id: _Optional[str] = ...) -> None: ...

class EndSessionResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...
