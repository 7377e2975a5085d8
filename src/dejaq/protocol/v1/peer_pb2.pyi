from dejaq.protocol.v1 import access_pb2 as _access_pb2
from dejaq.protocol.v1 import history_pb2 as _history_pb2
from dejaq.protocol.v1 import overseer_pb2 as _overseer_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Caller(_message.Message):
    __slots__ = ("name", "kind", "user", "groups", "admin", "request_id")
    NAME_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    USER_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    ADMIN_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    name: str
    kind: str
    user: str
    groups: _containers.RepeatedScalarFieldContainer[str]
    admin: bool
    request_id: str
    def __init__(self, name: _Optional[str] = ..., kind: _Optional[str] = ..., user: _Optional[str] = ..., groups: _Optional[_Iterable[str]] = ..., admin: _Optional[bool] = ..., request_id: _Optional[str] = ...) -> None: ...

class ForwardedCreateTopicRequest(_message.Message):
    __slots__ = ("name", "settings", "caller")
    NAME_FIELD_NUMBER: _ClassVar[int]
    SETTINGS_FIELD_NUMBER: _ClassVar[int]
    CALLER_FIELD_NUMBER: _ClassVar[int]
    name: str
    settings: _overseer_pb2.TopicSettings
    caller: Caller
    def __init__(self, name: _Optional[str] = ..., settings: _Optional[_Union[_overseer_pb2.TopicSettings, _Mapping]] = ..., caller: _Optional[_Union[Caller, _Mapping]] = ...) -> None: ...

class Nudge(_message.Message):
    __slots__ = ("topic", "ts", "buckets")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    TS_FIELD_NUMBER: _ClassVar[int]
    BUCKETS_FIELD_NUMBER: _ClassVar[int]
    topic: int
    ts: int
    buckets: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, topic: _Optional[int] = ..., ts: _Optional[int] = ..., buckets: _Optional[_Iterable[int]] = ...) -> None: ...

class NudgeRequest(_message.Message):
    __slots__ = ("nudges",)
    NUDGES_FIELD_NUMBER: _ClassVar[int]
    nudges: _containers.RepeatedCompositeFieldContainer[Nudge]
    def __init__(self, nudges: _Optional[_Iterable[_Union[Nudge, _Mapping]]] = ...) -> None: ...

class NudgeResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class AskBackRequest(_message.Message):
    __slots__ = ("topic", "consumer", "lease", "rows")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    CONSUMER_FIELD_NUMBER: _ClassVar[int]
    LEASE_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    topic: int
    consumer: str
    lease: int
    rows: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, topic: _Optional[int] = ..., consumer: _Optional[str] = ..., lease: _Optional[int] = ..., rows: _Optional[_Iterable[int]] = ...) -> None: ...

class AskBackResponse(_message.Message):
    __slots__ = ("rows", "ends")
    ROWS_FIELD_NUMBER: _ClassVar[int]
    ENDS_FIELD_NUMBER: _ClassVar[int]
    rows: _containers.RepeatedScalarFieldContainer[int]
    ends: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, rows: _Optional[_Iterable[int]] = ..., ends: _Optional[_Iterable[int]] = ...) -> None: ...

class SettledRows(_message.Message):
    __slots__ = ("topic", "consumer", "lease", "ranges")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    CONSUMER_FIELD_NUMBER: _ClassVar[int]
    LEASE_FIELD_NUMBER: _ClassVar[int]
    RANGES_FIELD_NUMBER: _ClassVar[int]
    topic: int
    consumer: str
    lease: int
    ranges: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, topic: _Optional[int] = ..., consumer: _Optional[str] = ..., lease: _Optional[int] = ..., ranges: _Optional[_Iterable[int]] = ...) -> None: ...

class SettledRequest(_message.Message):
    __slots__ = ("rows",)
    ROWS_FIELD_NUMBER: _ClassVar[int]
    rows: _containers.RepeatedCompositeFieldContainer[SettledRows]
    def __init__(self, rows: _Optional[_Iterable[_Union[SettledRows, _Mapping]]] = ...) -> None: ...

class SettledResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ProgressRequest(_message.Message):
    __slots__ = ("topic", "ids", "leases")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    IDS_FIELD_NUMBER: _ClassVar[int]
    LEASES_FIELD_NUMBER: _ClassVar[int]
    topic: int
    ids: _containers.RepeatedScalarFieldContainer[str]
    leases: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, topic: _Optional[int] = ..., ids: _Optional[_Iterable[str]] = ..., leases: _Optional[_Iterable[int]] = ...) -> None: ...

class ProgressResponse(_message.Message):
    __slots__ = ("texts",)
    TEXTS_FIELD_NUMBER: _ClassVar[int]
    texts: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, texts: _Optional[_Iterable[str]] = ...) -> None: ...

class LetGoRequest(_message.Message):
    __slots__ = ("topic", "consumer")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    CONSUMER_FIELD_NUMBER: _ClassVar[int]
    topic: int
    consumer: str
    def __init__(self, topic: _Optional[int] = ..., consumer: _Optional[str] = ...) -> None: ...

class LetGoResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class LearnRequest(_message.Message):
    __slots__ = ("topic",)
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    topic: str
    def __init__(self, topic: _Optional[str] = ...) -> None: ...

class LearnResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...
