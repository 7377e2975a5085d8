from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class RekeyTopicRequest(_message.Message):
    __slots__ = ("name", "new_key")
    NAME_FIELD_NUMBER: _ClassVar[int]
    NEW_KEY_FIELD_NUMBER: _ClassVar[int]
    name: str
    new_key: bool
    def __init__(self, name: _Optional[str] = ..., new_key: _Optional[bool] = ...) -> None: ...

class RekeyTopicResponse(_message.Message):
    __slots__ = ("key",)
    KEY_FIELD_NUMBER: _ClassVar[int]
    key: str
    def __init__(self, key: _Optional[str] = ...) -> None: ...

class CheckpointRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class CheckpointResponse(_message.Message):
    __slots__ = ("path",)
    PATH_FIELD_NUMBER: _ClassVar[int]
    path: str
    def __init__(self, path: _Optional[str] = ...) -> None: ...

class InfoRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class InfoResponse(_message.Message):
    __slots__ = ("cluster", "brokers", "topics", "clients", "shards")
    CLUSTER_FIELD_NUMBER: _ClassVar[int]
    BROKERS_FIELD_NUMBER: _ClassVar[int]
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    CLIENTS_FIELD_NUMBER: _ClassVar[int]
    SHARDS_FIELD_NUMBER: _ClassVar[int]
    cluster: str
    brokers: _containers.RepeatedCompositeFieldContainer[BrokerInfo]
    topics: _containers.RepeatedCompositeFieldContainer[TopicInfo]
    clients: _containers.RepeatedCompositeFieldContainer[ClientInfo]
    shards: _containers.RepeatedCompositeFieldContainer[ShardInfo]
    def __init__(self, cluster: _Optional[str] = ..., brokers: _Optional[_Iterable[_Union[BrokerInfo, _Mapping]]] = ..., topics: _Optional[_Iterable[_Union[TopicInfo, _Mapping]]] = ..., clients: _Optional[_Iterable[_Union[ClientInfo, _Mapping]]] = ..., shards: _Optional[_Iterable[_Union[ShardInfo, _Mapping]]] = ...) -> None: ...

class ShardInfo(_message.Message):
    __slots__ = ("name", "buckets", "moving", "state")
    NAME_FIELD_NUMBER: _ClassVar[int]
    BUCKETS_FIELD_NUMBER: _ClassVar[int]
    MOVING_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    name: str
    buckets: int
    moving: int
    state: str
    def __init__(self, name: _Optional[str] = ..., buckets: _Optional[int] = ..., moving: _Optional[int] = ..., state: _Optional[str] = ...) -> None: ...

class BrokerInfo(_message.Message):
    __slots__ = ("id", "address", "version", "storage", "started_ms", "clock_ms", "degradations", "draining", "drift_ms", "notes", "seen_ms", "offset_ms", "latency_ms", "sessions", "synchronization")
    ID_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    STORAGE_FIELD_NUMBER: _ClassVar[int]
    STARTED_MS_FIELD_NUMBER: _ClassVar[int]
    CLOCK_MS_FIELD_NUMBER: _ClassVar[int]
    DEGRADATIONS_FIELD_NUMBER: _ClassVar[int]
    DRAINING_FIELD_NUMBER: _ClassVar[int]
    DRIFT_MS_FIELD_NUMBER: _ClassVar[int]
    NOTES_FIELD_NUMBER: _ClassVar[int]
    SEEN_MS_FIELD_NUMBER: _ClassVar[int]
    OFFSET_MS_FIELD_NUMBER: _ClassVar[int]
    LATENCY_MS_FIELD_NUMBER: _ClassVar[int]
    SESSIONS_FIELD_NUMBER: _ClassVar[int]
    SYNCHRONIZATION_FIELD_NUMBER: _ClassVar[int]
    id: str
    address: str
    version: str
    storage: str
    started_ms: int
    clock_ms: int
    degradations: _containers.RepeatedScalarFieldContainer[str]
    draining: bool
    drift_ms: float
    notes: _containers.RepeatedScalarFieldContainer[str]
    seen_ms: int
    offset_ms: float
    latency_ms: float
    sessions: int
    synchronization: str
    def __init__(self, id: _Optional[str] = ..., address: _Optional[str] = ..., version: _Optional[str] = ..., storage: _Optional[str] = ..., started_ms: _Optional[int] = ..., clock_ms: _Optional[int] = ..., degradations: _Optional[_Iterable[str]] = ..., draining: _Optional[bool] = ..., drift_ms: _Optional[float] = ..., notes: _Optional[_Iterable[str]] = ..., seen_ms: _Optional[int] = ..., offset_ms: _Optional[float] = ..., latency_ms: _Optional[float] = ..., sessions: _Optional[int] = ..., synchronization: _Optional[str] = ...) -> None: ...

class ClientInfo(_message.Message):
    __slots__ = ("id", "name", "sdk", "state", "topic", "who", "latency_ms", "clock_offset_ms", "inflight", "buckets", "weight", "rack", "broker")
    ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    SDK_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    WHO_FIELD_NUMBER: _ClassVar[int]
    LATENCY_MS_FIELD_NUMBER: _ClassVar[int]
    CLOCK_OFFSET_MS_FIELD_NUMBER: _ClassVar[int]
    INFLIGHT_FIELD_NUMBER: _ClassVar[int]
    BUCKETS_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_FIELD_NUMBER: _ClassVar[int]
    RACK_FIELD_NUMBER: _ClassVar[int]
    BROKER_FIELD_NUMBER: _ClassVar[int]
    id: str
    name: str
    sdk: str
    state: str
    topic: str
    who: str
    latency_ms: float
    clock_offset_ms: float
    inflight: int
    buckets: _containers.RepeatedScalarFieldContainer[int]
    weight: int
    rack: str
    broker: str
    def __init__(self, id: _Optional[str] = ..., name: _Optional[str] = ..., sdk: _Optional[str] = ..., state: _Optional[str] = ..., topic: _Optional[str] = ..., who: _Optional[str] = ..., latency_ms: _Optional[float] = ..., clock_offset_ms: _Optional[float] = ..., inflight: _Optional[int] = ..., buckets: _Optional[_Iterable[int]] = ..., weight: _Optional[int] = ..., rack: _Optional[str] = ..., broker: _Optional[str] = ...) -> None: ...

class PingRequest(_message.Message):
    __slots__ = ("client_us",)
    CLIENT_US_FIELD_NUMBER: _ClassVar[int]
    client_us: int
    def __init__(self, client_us: _Optional[int] = ...) -> None: ...

class PingResponse(_message.Message):
    __slots__ = ("client_us", "broker_us")
    CLIENT_US_FIELD_NUMBER: _ClassVar[int]
    BROKER_US_FIELD_NUMBER: _ClassVar[int]
    client_us: int
    broker_us: int
    def __init__(self, client_us: _Optional[int] = ..., broker_us: _Optional[int] = ...) -> None: ...

class TopicSettings(_message.Message):
    __slots__ = ("buckets", "max_future_ms", "max_lease_ms", "max_body_bytes", "durability", "journal", "kind", "max_attempts", "dead_letter", "expiry_backoff", "client_rate", "compression", "share_bodies", "dedup_ms", "max_dedup_ids", "expires", "encryption", "keep_ms", "keep_bytes", "rollback_window_ms", "trim_read", "compact")
    BUCKETS_FIELD_NUMBER: _ClassVar[int]
    MAX_FUTURE_MS_FIELD_NUMBER: _ClassVar[int]
    MAX_LEASE_MS_FIELD_NUMBER: _ClassVar[int]
    MAX_BODY_BYTES_FIELD_NUMBER: _ClassVar[int]
    DURABILITY_FIELD_NUMBER: _ClassVar[int]
    JOURNAL_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    MAX_ATTEMPTS_FIELD_NUMBER: _ClassVar[int]
    DEAD_LETTER_FIELD_NUMBER: _ClassVar[int]
    EXPIRY_BACKOFF_FIELD_NUMBER: _ClassVar[int]
    CLIENT_RATE_FIELD_NUMBER: _ClassVar[int]
    COMPRESSION_FIELD_NUMBER: _ClassVar[int]
    SHARE_BODIES_FIELD_NUMBER: _ClassVar[int]
    DEDUP_MS_FIELD_NUMBER: _ClassVar[int]
    MAX_DEDUP_IDS_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_FIELD_NUMBER: _ClassVar[int]
    ENCRYPTION_FIELD_NUMBER: _ClassVar[int]
    KEEP_MS_FIELD_NUMBER: _ClassVar[int]
    KEEP_BYTES_FIELD_NUMBER: _ClassVar[int]
    ROLLBACK_WINDOW_MS_FIELD_NUMBER: _ClassVar[int]
    TRIM_READ_FIELD_NUMBER: _ClassVar[int]
    COMPACT_FIELD_NUMBER: _ClassVar[int]
    buckets: int
    max_future_ms: int
    max_lease_ms: int
    max_body_bytes: int
    durability: str
    journal: bool
    kind: str
    max_attempts: int
    dead_letter: str
    expiry_backoff: str
    client_rate: int
    compression: str
    share_bodies: bool
    dedup_ms: int
    max_dedup_ids: int
    expires: bool
    encryption: str
    keep_ms: int
    keep_bytes: int
    rollback_window_ms: int
    trim_read: bool
    compact: bool
    def __init__(self, buckets: _Optional[int] = ..., max_future_ms: _Optional[int] = ..., max_lease_ms: _Optional[int] = ..., max_body_bytes: _Optional[int] = ..., durability: _Optional[str] = ..., journal: _Optional[bool] = ..., kind: _Optional[str] = ..., max_attempts: _Optional[int] = ..., dead_letter: _Optional[str] = ..., expiry_backoff: _Optional[str] = ..., client_rate: _Optional[int] = ..., compression: _Optional[str] = ..., share_bodies: _Optional[bool] = ..., dedup_ms: _Optional[int] = ..., max_dedup_ids: _Optional[int] = ..., expires: _Optional[bool] = ..., encryption: _Optional[str] = ..., keep_ms: _Optional[int] = ..., keep_bytes: _Optional[int] = ..., rollback_window_ms: _Optional[int] = ..., trim_read: _Optional[bool] = ..., compact: _Optional[bool] = ...) -> None: ...

class TopicInfo(_message.Message):
    __slots__ = ("name", "state", "settings", "created_ms", "available", "waiting", "processing", "consumers", "producers", "creator")
    NAME_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    SETTINGS_FIELD_NUMBER: _ClassVar[int]
    CREATED_MS_FIELD_NUMBER: _ClassVar[int]
    AVAILABLE_FIELD_NUMBER: _ClassVar[int]
    WAITING_FIELD_NUMBER: _ClassVar[int]
    PROCESSING_FIELD_NUMBER: _ClassVar[int]
    CONSUMERS_FIELD_NUMBER: _ClassVar[int]
    PRODUCERS_FIELD_NUMBER: _ClassVar[int]
    CREATOR_FIELD_NUMBER: _ClassVar[int]
    name: str
    state: str
    settings: TopicSettings
    created_ms: int
    available: int
    waiting: int
    processing: int
    consumers: int
    producers: int
    creator: str
    def __init__(self, name: _Optional[str] = ..., state: _Optional[str] = ..., settings: _Optional[_Union[TopicSettings, _Mapping]] = ..., created_ms: _Optional[int] = ..., available: _Optional[int] = ..., waiting: _Optional[int] = ..., processing: _Optional[int] = ..., consumers: _Optional[int] = ..., producers: _Optional[int] = ..., creator: _Optional[str] = ...) -> None: ...

class CreateTopicRequest(_message.Message):
    __slots__ = ("name", "settings")
    NAME_FIELD_NUMBER: _ClassVar[int]
    SETTINGS_FIELD_NUMBER: _ClassVar[int]
    name: str
    settings: TopicSettings
    def __init__(self, name: _Optional[str] = ..., settings: _Optional[_Union[TopicSettings, _Mapping]] = ...) -> None: ...

class EditTopicRequest(_message.Message):
    __slots__ = ("name", "settings")
    NAME_FIELD_NUMBER: _ClassVar[int]
    SETTINGS_FIELD_NUMBER: _ClassVar[int]
    name: str
    settings: TopicSettings
    def __init__(self, name: _Optional[str] = ..., settings: _Optional[_Union[TopicSettings, _Mapping]] = ...) -> None: ...

class TopicRequest(_message.Message):
    __slots__ = ("name", "settings_only")
    NAME_FIELD_NUMBER: _ClassVar[int]
    SETTINGS_ONLY_FIELD_NUMBER: _ClassVar[int]
    name: str
    settings_only: bool
    def __init__(self, name: _Optional[str] = ..., settings_only: _Optional[bool] = ...) -> None: ...

class TopicResponse(_message.Message):
    __slots__ = ("topic", "created", "inline_body_bytes_max")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    CREATED_FIELD_NUMBER: _ClassVar[int]
    INLINE_BODY_BYTES_MAX_FIELD_NUMBER: _ClassVar[int]
    topic: TopicInfo
    created: bool
    inline_body_bytes_max: int
    def __init__(self, topic: _Optional[_Union[TopicInfo, _Mapping]] = ..., created: _Optional[bool] = ..., inline_body_bytes_max: _Optional[int] = ...) -> None: ...

class CopiesResponse(_message.Message):
    __slots__ = ("brokers", "stores")
    BROKERS_FIELD_NUMBER: _ClassVar[int]
    STORES_FIELD_NUMBER: _ClassVar[int]
    brokers: _containers.RepeatedCompositeFieldContainer[ServingBroker]
    stores: _containers.RepeatedCompositeFieldContainer[StoreCopies]
    def __init__(self, brokers: _Optional[_Iterable[_Union[ServingBroker, _Mapping]]] = ..., stores: _Optional[_Iterable[_Union[StoreCopies, _Mapping]]] = ...) -> None: ...

class ServingBroker(_message.Message):
    __slots__ = ("id", "address")
    ID_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    id: str
    address: str
    def __init__(self, id: _Optional[str] = ..., address: _Optional[str] = ...) -> None: ...

class StoreCopies(_message.Message):
    __slots__ = ("shard", "buckets", "confirmed", "standbys")
    SHARD_FIELD_NUMBER: _ClassVar[int]
    BUCKETS_FIELD_NUMBER: _ClassVar[int]
    CONFIRMED_FIELD_NUMBER: _ClassVar[int]
    STANDBYS_FIELD_NUMBER: _ClassVar[int]
    shard: str
    buckets: int
    confirmed: int
    standbys: _containers.RepeatedCompositeFieldContainer[StandbyInfo]
    def __init__(self, shard: _Optional[str] = ..., buckets: _Optional[int] = ..., confirmed: _Optional[int] = ..., standbys: _Optional[_Iterable[_Union[StandbyInfo, _Mapping]]] = ...) -> None: ...

class StandbyInfo(_message.Message):
    __slots__ = ("name", "state", "lag_bytes")
    NAME_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    LAG_BYTES_FIELD_NUMBER: _ClassVar[int]
    name: str
    state: str
    lag_bytes: int
    def __init__(self, name: _Optional[str] = ..., state: _Optional[str] = ..., lag_bytes: _Optional[int] = ...) -> None: ...

class ListTopicsRequest(_message.Message):
    __slots__ = ("after", "count", "namespace")
    AFTER_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    after: str
    count: int
    namespace: str
    def __init__(self, after: _Optional[str] = ..., count: _Optional[int] = ..., namespace: _Optional[str] = ...) -> None: ...

class ListTopicsResponse(_message.Message):
    __slots__ = ("topics", "more", "total")
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    MORE_FIELD_NUMBER: _ClassVar[int]
    TOTAL_FIELD_NUMBER: _ClassVar[int]
    topics: _containers.RepeatedCompositeFieldContainer[TopicInfo]
    more: bool
    total: int
    def __init__(self, topics: _Optional[_Iterable[_Union[TopicInfo, _Mapping]]] = ..., more: _Optional[bool] = ..., total: _Optional[int] = ...) -> None: ...
