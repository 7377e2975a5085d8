from dejaq.protocol.v1 import errors_pb2 as _errors_pb2
from dejaq.protocol.v1 import log_pb2 as _log_pb2
from dejaq.protocol.v1 import history_pb2 as _history_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class SettleKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    SETTLE_KIND_UNSPECIFIED: _ClassVar[SettleKind]
    DELETE: _ClassVar[SettleKind]
    EXTEND: _ClassVar[SettleKind]
    RELEASE: _ClassVar[SettleKind]
    RECALL: _ClassVar[SettleKind]
    REJECT: _ClassVar[SettleKind]
SETTLE_KIND_UNSPECIFIED: SettleKind
DELETE: SettleKind
EXTEND: SettleKind
RELEASE: SettleKind
RECALL: SettleKind
REJECT: SettleKind

class ClientFrame(_message.Message):
    __slots__ = ("request", "hello", "ping", "producer", "consumer", "create", "edit", "cancel", "subscribe", "unsubscribe", "settle", "recalled", "busy", "deletes", "progress", "extends", "log", "renew")
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    HELLO_FIELD_NUMBER: _ClassVar[int]
    PING_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_FIELD_NUMBER: _ClassVar[int]
    CONSUMER_FIELD_NUMBER: _ClassVar[int]
    CREATE_FIELD_NUMBER: _ClassVar[int]
    EDIT_FIELD_NUMBER: _ClassVar[int]
    CANCEL_FIELD_NUMBER: _ClassVar[int]
    SUBSCRIBE_FIELD_NUMBER: _ClassVar[int]
    UNSUBSCRIBE_FIELD_NUMBER: _ClassVar[int]
    SETTLE_FIELD_NUMBER: _ClassVar[int]
    RECALLED_FIELD_NUMBER: _ClassVar[int]
    BUSY_FIELD_NUMBER: _ClassVar[int]
    DELETES_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    EXTENDS_FIELD_NUMBER: _ClassVar[int]
    LOG_FIELD_NUMBER: _ClassVar[int]
    RENEW_FIELD_NUMBER: _ClassVar[int]
    request: int
    hello: Hello
    ping: Ping
    producer: ProducerHandshake
    consumer: ConsumerHandshake
    create: CreateBatch
    edit: EditBatch
    cancel: CancelBatch
    subscribe: Subscribe
    unsubscribe: Unsubscribe
    settle: Settle
    recalled: RecallAnswer
    busy: Busy
    deletes: Deletes
    progress: Progress
    extends: Extends
    log: _log_pb2.LogCommand
    renew: RenewCredentials
    def __init__(self, request: _Optional[int] = ..., hello: _Optional[_Union[Hello, _Mapping]] = ..., ping: _Optional[_Union[Ping, _Mapping]] = ..., producer: _Optional[_Union[ProducerHandshake, _Mapping]] = ..., consumer: _Optional[_Union[ConsumerHandshake, _Mapping]] = ..., create: _Optional[_Union[CreateBatch, _Mapping]] = ..., edit: _Optional[_Union[EditBatch, _Mapping]] = ..., cancel: _Optional[_Union[CancelBatch, _Mapping]] = ..., subscribe: _Optional[_Union[Subscribe, _Mapping]] = ..., unsubscribe: _Optional[_Union[Unsubscribe, _Mapping]] = ..., settle: _Optional[_Union[Settle, _Mapping]] = ..., recalled: _Optional[_Union[RecallAnswer, _Mapping]] = ..., busy: _Optional[_Union[Busy, _Mapping]] = ..., deletes: _Optional[_Union[Deletes, _Mapping]] = ..., progress: _Optional[_Union[Progress, _Mapping]] = ..., extends: _Optional[_Union[Extends, _Mapping]] = ..., log: _Optional[_Union[_log_pb2.LogCommand, _Mapping]] = ..., renew: _Optional[_Union[RenewCredentials, _Mapping]] = ...) -> None: ...

class RenewCredentials(_message.Message):
    __slots__ = ("bearer",)
    BEARER_FIELD_NUMBER: _ClassVar[int]
    bearer: str
    def __init__(self, bearer: _Optional[str] = ...) -> None: ...

class BrokerFrame(_message.Message):
    __slots__ = ("request", "error", "welcome", "pong", "outcomes", "push", "recall", "draining", "log")
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    WELCOME_FIELD_NUMBER: _ClassVar[int]
    PONG_FIELD_NUMBER: _ClassVar[int]
    OUTCOMES_FIELD_NUMBER: _ClassVar[int]
    PUSH_FIELD_NUMBER: _ClassVar[int]
    RECALL_FIELD_NUMBER: _ClassVar[int]
    DRAINING_FIELD_NUMBER: _ClassVar[int]
    LOG_FIELD_NUMBER: _ClassVar[int]
    request: int
    error: _errors_pb2.Error
    welcome: Welcome
    pong: Pong
    outcomes: _errors_pb2.Outcomes
    push: Push
    recall: Recall
    draining: Draining
    log: _log_pb2.LogEvent
    def __init__(self, request: _Optional[int] = ..., error: _Optional[_Union[_errors_pb2.Error, _Mapping]] = ..., welcome: _Optional[_Union[Welcome, _Mapping]] = ..., pong: _Optional[_Union[Pong, _Mapping]] = ..., outcomes: _Optional[_Union[_errors_pb2.Outcomes, _Mapping]] = ..., push: _Optional[_Union[Push, _Mapping]] = ..., recall: _Optional[_Union[Recall, _Mapping]] = ..., draining: _Optional[_Union[Draining, _Mapping]] = ..., log: _Optional[_Union[_log_pb2.LogEvent, _Mapping]] = ...) -> None: ...

class Hello(_message.Message):
    __slots__ = ("protocol", "sdk", "client", "clock", "role", "topic")
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    SDK_FIELD_NUMBER: _ClassVar[int]
    CLIENT_FIELD_NUMBER: _ClassVar[int]
    CLOCK_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    protocol: int
    sdk: str
    client: str
    clock: str
    role: str
    topic: str
    def __init__(self, protocol: _Optional[int] = ..., sdk: _Optional[str] = ..., client: _Optional[str] = ..., clock: _Optional[str] = ..., role: _Optional[str] = ..., topic: _Optional[str] = ...) -> None: ...

class Welcome(_message.Message):
    __slots__ = ("protocol", "broker", "version", "cluster", "clock", "broker_us", "brokers", "better")
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    BROKER_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_FIELD_NUMBER: _ClassVar[int]
    CLOCK_FIELD_NUMBER: _ClassVar[int]
    BROKER_US_FIELD_NUMBER: _ClassVar[int]
    BROKERS_FIELD_NUMBER: _ClassVar[int]
    BETTER_FIELD_NUMBER: _ClassVar[int]
    protocol: int
    broker: str
    version: str
    cluster: str
    clock: str
    broker_us: int
    brokers: _containers.RepeatedScalarFieldContainer[str]
    better: str
    def __init__(self, protocol: _Optional[int] = ..., broker: _Optional[str] = ..., version: _Optional[str] = ..., cluster: _Optional[str] = ..., clock: _Optional[str] = ..., broker_us: _Optional[int] = ..., brokers: _Optional[_Iterable[str]] = ..., better: _Optional[str] = ...) -> None: ...

class Ping(_message.Message):
    __slots__ = ("client_us", "latency_ms", "clock_offset_ms")
    CLIENT_US_FIELD_NUMBER: _ClassVar[int]
    LATENCY_MS_FIELD_NUMBER: _ClassVar[int]
    CLOCK_OFFSET_MS_FIELD_NUMBER: _ClassVar[int]
    client_us: int
    latency_ms: float
    clock_offset_ms: float
    def __init__(self, client_us: _Optional[int] = ..., latency_ms: _Optional[float] = ..., clock_offset_ms: _Optional[float] = ...) -> None: ...

class Pong(_message.Message):
    __slots__ = ("client_us", "broker_us")
    CLIENT_US_FIELD_NUMBER: _ClassVar[int]
    BROKER_US_FIELD_NUMBER: _ClassVar[int]
    client_us: int
    broker_us: int
    def __init__(self, client_us: _Optional[int] = ..., broker_us: _Optional[int] = ...) -> None: ...

class Draining(_message.Message):
    __slots__ = ("better",)
    BETTER_FIELD_NUMBER: _ClassVar[int]
    better: str
    def __init__(self, better: _Optional[str] = ...) -> None: ...

class ProducerHandshake(_message.Message):
    __slots__ = ("topic", "group")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    topic: str
    group: str
    def __init__(self, topic: _Optional[str] = ..., group: _Optional[str] = ...) -> None: ...

class ConsumerHandshake(_message.Message):
    __slots__ = ("topic", "name")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    topic: str
    name: str
    def __init__(self, topic: _Optional[str] = ..., name: _Optional[str] = ...) -> None: ...

class CreateBatch(_message.Message):
    __slots__ = ("session", "sequence", "bucket", "ids", "ts", "bodies", "priorities", "headers", "relative", "digests", "large", "acknowledged", "check", "relative_rows")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    BUCKET_FIELD_NUMBER: _ClassVar[int]
    IDS_FIELD_NUMBER: _ClassVar[int]
    TS_FIELD_NUMBER: _ClassVar[int]
    BODIES_FIELD_NUMBER: _ClassVar[int]
    PRIORITIES_FIELD_NUMBER: _ClassVar[int]
    HEADERS_FIELD_NUMBER: _ClassVar[int]
    RELATIVE_FIELD_NUMBER: _ClassVar[int]
    DIGESTS_FIELD_NUMBER: _ClassVar[int]
    LARGE_FIELD_NUMBER: _ClassVar[int]
    ACKNOWLEDGED_FIELD_NUMBER: _ClassVar[int]
    CHECK_FIELD_NUMBER: _ClassVar[int]
    RELATIVE_ROWS_FIELD_NUMBER: _ClassVar[int]
    session: bytes
    sequence: int
    bucket: int
    ids: _containers.RepeatedScalarFieldContainer[str]
    ts: _containers.RepeatedScalarFieldContainer[int]
    bodies: _containers.RepeatedScalarFieldContainer[bytes]
    priorities: _containers.RepeatedScalarFieldContainer[int]
    headers: _containers.RepeatedScalarFieldContainer[bytes]
    relative: bool
    digests: _containers.RepeatedScalarFieldContainer[bytes]
    large: bool
    acknowledged: int
    check: int
    relative_rows: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, session: _Optional[bytes] = ..., sequence: _Optional[int] = ..., bucket: _Optional[int] = ..., ids: _Optional[_Iterable[str]] = ..., ts: _Optional[_Iterable[int]] = ..., bodies: _Optional[_Iterable[bytes]] = ..., priorities: _Optional[_Iterable[int]] = ..., headers: _Optional[_Iterable[bytes]] = ..., relative: _Optional[bool] = ..., digests: _Optional[_Iterable[bytes]] = ..., large: _Optional[bool] = ..., acknowledged: _Optional[int] = ..., check: _Optional[int] = ..., relative_rows: _Optional[_Iterable[int]] = ...) -> None: ...

class UploadFrame(_message.Message):
    __slots__ = ("head", "part")
    HEAD_FIELD_NUMBER: _ClassVar[int]
    PART_FIELD_NUMBER: _ClassVar[int]
    head: UploadHead
    part: bytes
    def __init__(self, head: _Optional[_Union[UploadHead, _Mapping]] = ..., part: _Optional[bytes] = ...) -> None: ...

class UploadHead(_message.Message):
    __slots__ = ("topic", "bucket", "size", "stored", "digest")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    BUCKET_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    STORED_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    topic: str
    bucket: int
    size: int
    stored: int
    digest: bytes
    def __init__(self, topic: _Optional[str] = ..., bucket: _Optional[int] = ..., size: _Optional[int] = ..., stored: _Optional[int] = ..., digest: _Optional[bytes] = ...) -> None: ...

class BodyReference(_message.Message):
    __slots__ = ("reference",)
    REFERENCE_FIELD_NUMBER: _ClassVar[int]
    reference: bytes
    def __init__(self, reference: _Optional[bytes] = ...) -> None: ...

class DownloadRequest(_message.Message):
    __slots__ = ("topic", "id", "reference", "first_part")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    REFERENCE_FIELD_NUMBER: _ClassVar[int]
    FIRST_PART_FIELD_NUMBER: _ClassVar[int]
    topic: str
    id: str
    reference: bytes
    first_part: int
    def __init__(self, topic: _Optional[str] = ..., id: _Optional[str] = ..., reference: _Optional[bytes] = ..., first_part: _Optional[int] = ...) -> None: ...

class BodyPart(_message.Message):
    __slots__ = ("data",)
    DATA_FIELD_NUMBER: _ClassVar[int]
    data: bytes
    def __init__(self, data: _Optional[bytes] = ...) -> None: ...

class Headers(_message.Message):
    __slots__ = ("entries",)
    class EntriesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    entries: _containers.ScalarMap[str, str]
    def __init__(self, entries: _Optional[_Mapping[str, str]] = ...) -> None: ...

class HeaderChange(_message.Message):
    __slots__ = ("set", "removed")
    class SetEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    SET_FIELD_NUMBER: _ClassVar[int]
    REMOVED_FIELD_NUMBER: _ClassVar[int]
    set: _containers.ScalarMap[str, str]
    removed: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, set: _Optional[_Mapping[str, str]] = ..., removed: _Optional[_Iterable[str]] = ...) -> None: ...

class EditBatch(_message.Message):
    __slots__ = ("ids", "ts", "bodies", "priorities", "headers", "versions", "relative", "large")
    IDS_FIELD_NUMBER: _ClassVar[int]
    TS_FIELD_NUMBER: _ClassVar[int]
    BODIES_FIELD_NUMBER: _ClassVar[int]
    PRIORITIES_FIELD_NUMBER: _ClassVar[int]
    HEADERS_FIELD_NUMBER: _ClassVar[int]
    VERSIONS_FIELD_NUMBER: _ClassVar[int]
    RELATIVE_FIELD_NUMBER: _ClassVar[int]
    LARGE_FIELD_NUMBER: _ClassVar[int]
    ids: _containers.RepeatedScalarFieldContainer[str]
    ts: _containers.RepeatedScalarFieldContainer[int]
    bodies: _containers.RepeatedScalarFieldContainer[bytes]
    priorities: _containers.RepeatedScalarFieldContainer[int]
    headers: _containers.RepeatedScalarFieldContainer[bytes]
    versions: _containers.RepeatedScalarFieldContainer[int]
    relative: bool
    large: bool
    def __init__(self, ids: _Optional[_Iterable[str]] = ..., ts: _Optional[_Iterable[int]] = ..., bodies: _Optional[_Iterable[bytes]] = ..., priorities: _Optional[_Iterable[int]] = ..., headers: _Optional[_Iterable[bytes]] = ..., versions: _Optional[_Iterable[int]] = ..., relative: _Optional[bool] = ..., large: _Optional[bool] = ...) -> None: ...

class CancelBatch(_message.Message):
    __slots__ = ("ids", "versions", "session")
    IDS_FIELD_NUMBER: _ClassVar[int]
    VERSIONS_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    ids: _containers.RepeatedScalarFieldContainer[str]
    versions: _containers.RepeatedScalarFieldContainer[int]
    session: bytes
    def __init__(self, ids: _Optional[_Iterable[str]] = ..., versions: _Optional[_Iterable[int]] = ..., session: _Optional[bytes] = ...) -> None: ...

class Subscribe(_message.Message):
    __slots__ = ("credit_rows", "credit_bytes", "lease_ms", "prefetch_ms", "weight", "rack", "rate")
    CREDIT_ROWS_FIELD_NUMBER: _ClassVar[int]
    CREDIT_BYTES_FIELD_NUMBER: _ClassVar[int]
    LEASE_MS_FIELD_NUMBER: _ClassVar[int]
    PREFETCH_MS_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_FIELD_NUMBER: _ClassVar[int]
    RACK_FIELD_NUMBER: _ClassVar[int]
    RATE_FIELD_NUMBER: _ClassVar[int]
    credit_rows: int
    credit_bytes: int
    lease_ms: int
    prefetch_ms: int
    weight: int
    rack: str
    rate: int
    def __init__(self, credit_rows: _Optional[int] = ..., credit_bytes: _Optional[int] = ..., lease_ms: _Optional[int] = ..., prefetch_ms: _Optional[int] = ..., weight: _Optional[int] = ..., rack: _Optional[str] = ..., rate: _Optional[int] = ...) -> None: ...

class Busy(_message.Message):
    __slots__ = ("ms",)
    MS_FIELD_NUMBER: _ClassVar[int]
    ms: int
    def __init__(self, ms: _Optional[int] = ...) -> None: ...

class Progress(_message.Message):
    __slots__ = ("lease", "id", "text")
    LEASE_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    lease: int
    id: str
    text: str
    def __init__(self, lease: _Optional[int] = ..., id: _Optional[str] = ..., text: _Optional[str] = ...) -> None: ...

class Unsubscribe(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Settle(_message.Message):
    __slots__ = ("kind", "lease", "ranges", "lease_ms", "ts", "relative", "handed_us", "reason", "error", "traceback")
    KIND_FIELD_NUMBER: _ClassVar[int]
    LEASE_FIELD_NUMBER: _ClassVar[int]
    RANGES_FIELD_NUMBER: _ClassVar[int]
    LEASE_MS_FIELD_NUMBER: _ClassVar[int]
    TS_FIELD_NUMBER: _ClassVar[int]
    RELATIVE_FIELD_NUMBER: _ClassVar[int]
    HANDED_US_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    TRACEBACK_FIELD_NUMBER: _ClassVar[int]
    kind: SettleKind
    lease: int
    ranges: _containers.RepeatedScalarFieldContainer[int]
    lease_ms: int
    ts: _containers.RepeatedScalarFieldContainer[int]
    relative: bool
    handed_us: _containers.RepeatedScalarFieldContainer[int]
    reason: str
    error: str
    traceback: str
    def __init__(self, kind: _Optional[_Union[SettleKind, str]] = ..., lease: _Optional[int] = ..., ranges: _Optional[_Iterable[int]] = ..., lease_ms: _Optional[int] = ..., ts: _Optional[_Iterable[int]] = ..., relative: _Optional[bool] = ..., handed_us: _Optional[_Iterable[int]] = ..., reason: _Optional[str] = ..., error: _Optional[str] = ..., traceback: _Optional[str] = ...) -> None: ...

class Deletes(_message.Message):
    __slots__ = ("settles",)
    SETTLES_FIELD_NUMBER: _ClassVar[int]
    settles: _containers.RepeatedCompositeFieldContainer[Settle]
    def __init__(self, settles: _Optional[_Iterable[_Union[Settle, _Mapping]]] = ...) -> None: ...

class Extends(_message.Message):
    __slots__ = ("settles",)
    SETTLES_FIELD_NUMBER: _ClassVar[int]
    settles: _containers.RepeatedCompositeFieldContainer[Settle]
    def __init__(self, settles: _Optional[_Iterable[_Union[Settle, _Mapping]]] = ...) -> None: ...

class IdSpan(_message.Message):
    __slots__ = ("count", "prefix", "first")
    COUNT_FIELD_NUMBER: _ClassVar[int]
    PREFIX_FIELD_NUMBER: _ClassVar[int]
    FIRST_FIELD_NUMBER: _ClassVar[int]
    count: int
    prefix: str
    first: int
    def __init__(self, count: _Optional[int] = ..., prefix: _Optional[str] = ..., first: _Optional[int] = ...) -> None: ...

class Push(_message.Message):
    __slots__ = ("lease", "expires", "spans", "ids", "ts", "bodies", "attempts", "priorities", "headers", "rows", "by_priority", "large")
    LEASE_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_FIELD_NUMBER: _ClassVar[int]
    SPANS_FIELD_NUMBER: _ClassVar[int]
    IDS_FIELD_NUMBER: _ClassVar[int]
    TS_FIELD_NUMBER: _ClassVar[int]
    BODIES_FIELD_NUMBER: _ClassVar[int]
    ATTEMPTS_FIELD_NUMBER: _ClassVar[int]
    PRIORITIES_FIELD_NUMBER: _ClassVar[int]
    HEADERS_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    BY_PRIORITY_FIELD_NUMBER: _ClassVar[int]
    LARGE_FIELD_NUMBER: _ClassVar[int]
    lease: int
    expires: int
    spans: _containers.RepeatedCompositeFieldContainer[IdSpan]
    ids: _containers.RepeatedScalarFieldContainer[str]
    ts: _containers.RepeatedScalarFieldContainer[int]
    bodies: _containers.RepeatedScalarFieldContainer[bytes]
    attempts: _containers.RepeatedScalarFieldContainer[int]
    priorities: _containers.RepeatedScalarFieldContainer[int]
    headers: _containers.RepeatedScalarFieldContainer[bytes]
    rows: _containers.RepeatedScalarFieldContainer[int]
    by_priority: bool
    large: bool
    def __init__(self, lease: _Optional[int] = ..., expires: _Optional[int] = ..., spans: _Optional[_Iterable[_Union[IdSpan, _Mapping]]] = ..., ids: _Optional[_Iterable[str]] = ..., ts: _Optional[_Iterable[int]] = ..., bodies: _Optional[_Iterable[bytes]] = ..., attempts: _Optional[_Iterable[int]] = ..., priorities: _Optional[_Iterable[int]] = ..., headers: _Optional[_Iterable[bytes]] = ..., rows: _Optional[_Iterable[int]] = ..., by_priority: _Optional[bool] = ..., large: _Optional[bool] = ...) -> None: ...

class Recall(_message.Message):
    __slots__ = ("lease", "rows")
    LEASE_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    lease: int
    rows: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, lease: _Optional[int] = ..., rows: _Optional[_Iterable[int]] = ...) -> None: ...

class RecallAnswer(_message.Message):
    __slots__ = ("lease", "rows")
    LEASE_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    lease: int
    rows: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, lease: _Optional[int] = ..., rows: _Optional[_Iterable[int]] = ...) -> None: ...

class AwaitRequest(_message.Message):
    __slots__ = ("topic", "id", "timeout_ms")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    topic: str
    id: str
    timeout_ms: int
    def __init__(self, topic: _Optional[str] = ..., id: _Optional[str] = ..., timeout_ms: _Optional[int] = ...) -> None: ...

class TransactRequest(_message.Message):
    __slots__ = ("session", "sequence", "steps", "client", "acknowledged", "check")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    CLIENT_FIELD_NUMBER: _ClassVar[int]
    ACKNOWLEDGED_FIELD_NUMBER: _ClassVar[int]
    CHECK_FIELD_NUMBER: _ClassVar[int]
    session: bytes
    sequence: int
    steps: _containers.RepeatedCompositeFieldContainer[Step]
    client: str
    acknowledged: int
    check: int
    def __init__(self, session: _Optional[bytes] = ..., sequence: _Optional[int] = ..., steps: _Optional[_Iterable[_Union[Step, _Mapping]]] = ..., client: _Optional[str] = ..., acknowledged: _Optional[int] = ..., check: _Optional[int] = ...) -> None: ...

class Step(_message.Message):
    __slots__ = ("topic", "actor", "create", "edit", "cancel", "settle", "append", "commit")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    ACTOR_FIELD_NUMBER: _ClassVar[int]
    CREATE_FIELD_NUMBER: _ClassVar[int]
    EDIT_FIELD_NUMBER: _ClassVar[int]
    CANCEL_FIELD_NUMBER: _ClassVar[int]
    SETTLE_FIELD_NUMBER: _ClassVar[int]
    APPEND_FIELD_NUMBER: _ClassVar[int]
    COMMIT_FIELD_NUMBER: _ClassVar[int]
    topic: str
    actor: str
    create: CreateBatch
    edit: EditBatch
    cancel: CancelBatch
    settle: Settle
    append: _log_pb2.LogBatch
    commit: _log_pb2.LogCommit
    def __init__(self, topic: _Optional[str] = ..., actor: _Optional[str] = ..., create: _Optional[_Union[CreateBatch, _Mapping]] = ..., edit: _Optional[_Union[EditBatch, _Mapping]] = ..., cancel: _Optional[_Union[CancelBatch, _Mapping]] = ..., settle: _Optional[_Union[Settle, _Mapping]] = ..., append: _Optional[_Union[_log_pb2.LogBatch, _Mapping]] = ..., commit: _Optional[_Union[_log_pb2.LogCommit, _Mapping]] = ...) -> None: ...

class TransactResponse(_message.Message):
    __slots__ = ("code", "step", "row", "error", "alone")
    CODE_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    ROW_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    ALONE_FIELD_NUMBER: _ClassVar[int]
    code: _errors_pb2.Code
    step: int
    row: int
    error: _errors_pb2.Error
    alone: bool
    def __init__(self, code: _Optional[_Union[_errors_pb2.Code, str]] = ..., step: _Optional[int] = ..., row: _Optional[int] = ..., error: _Optional[_Union[_errors_pb2.Error, _Mapping]] = ..., alone: _Optional[bool] = ...) -> None: ...

class TransactManyRequest(_message.Message):
    __slots__ = ("transactions",)
    TRANSACTIONS_FIELD_NUMBER: _ClassVar[int]
    transactions: _containers.RepeatedCompositeFieldContainer[TransactRequest]
    def __init__(self, transactions: _Optional[_Iterable[_Union[TransactRequest, _Mapping]]] = ...) -> None: ...

class TransactManyResponse(_message.Message):
    __slots__ = ("answers",)
    ANSWERS_FIELD_NUMBER: _ClassVar[int]
    answers: _containers.RepeatedCompositeFieldContainer[TransactResponse]
    def __init__(self, answers: _Optional[_Iterable[_Union[TransactResponse, _Mapping]]] = ...) -> None: ...

class GetRequest(_message.Message):
    __slots__ = ("topic", "ids")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    IDS_FIELD_NUMBER: _ClassVar[int]
    topic: str
    ids: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, topic: _Optional[str] = ..., ids: _Optional[_Iterable[str]] = ...) -> None: ...

class Filter(_message.Message):
    __slots__ = ("start", "end", "status", "owner", "consumer", "priority_min", "priority_max", "headers")
    class HeadersEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    START_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    CONSUMER_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_MIN_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_MAX_FIELD_NUMBER: _ClassVar[int]
    HEADERS_FIELD_NUMBER: _ClassVar[int]
    start: int
    end: int
    status: str
    owner: str
    consumer: str
    priority_min: int
    priority_max: int
    headers: _containers.ScalarMap[str, str]
    def __init__(self, start: _Optional[int] = ..., end: _Optional[int] = ..., status: _Optional[str] = ..., owner: _Optional[str] = ..., consumer: _Optional[str] = ..., priority_min: _Optional[int] = ..., priority_max: _Optional[int] = ..., headers: _Optional[_Mapping[str, str]] = ...) -> None: ...

class CountRequest(_message.Message):
    __slots__ = ("topic", "filter")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    FILTER_FIELD_NUMBER: _ClassVar[int]
    topic: str
    filter: Filter
    def __init__(self, topic: _Optional[str] = ..., filter: _Optional[_Union[Filter, _Mapping]] = ...) -> None: ...

class CountResponse(_message.Message):
    __slots__ = ("count",)
    COUNT_FIELD_NUMBER: _ClassVar[int]
    count: int
    def __init__(self, count: _Optional[int] = ...) -> None: ...

class HistogramRequest(_message.Message):
    __slots__ = ("topic", "filter", "step_ms")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    FILTER_FIELD_NUMBER: _ClassVar[int]
    STEP_MS_FIELD_NUMBER: _ClassVar[int]
    topic: str
    filter: Filter
    step_ms: int
    def __init__(self, topic: _Optional[str] = ..., filter: _Optional[_Union[Filter, _Mapping]] = ..., step_ms: _Optional[int] = ...) -> None: ...

class HistogramResponse(_message.Message):
    __slots__ = ("starts", "counts")
    STARTS_FIELD_NUMBER: _ClassVar[int]
    COUNTS_FIELD_NUMBER: _ClassVar[int]
    starts: _containers.RepeatedScalarFieldContainer[int]
    counts: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, starts: _Optional[_Iterable[int]] = ..., counts: _Optional[_Iterable[int]] = ...) -> None: ...

class BrowseRequest(_message.Message):
    __slots__ = ("topic", "filter", "page_size", "cursor")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    FILTER_FIELD_NUMBER: _ClassVar[int]
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    CURSOR_FIELD_NUMBER: _ClassVar[int]
    topic: str
    filter: Filter
    page_size: int
    cursor: bytes
    def __init__(self, topic: _Optional[str] = ..., filter: _Optional[_Union[Filter, _Mapping]] = ..., page_size: _Optional[int] = ..., cursor: _Optional[bytes] = ...) -> None: ...

class SnapshotRequest(_message.Message):
    __slots__ = ("topic", "name", "run", "machine")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    RUN_FIELD_NUMBER: _ClassVar[int]
    MACHINE_FIELD_NUMBER: _ClassVar[int]
    topic: str
    name: str
    run: str
    machine: str
    def __init__(self, topic: _Optional[str] = ..., name: _Optional[str] = ..., run: _Optional[str] = ..., machine: _Optional[str] = ...) -> None: ...

class SnapshotResponse(_message.Message):
    __slots__ = ("snapshot", "buckets", "at_ms", "messages", "keep_ms", "run", "frame_directory", "frame_directory_identity")
    SNAPSHOT_FIELD_NUMBER: _ClassVar[int]
    BUCKETS_FIELD_NUMBER: _ClassVar[int]
    AT_MS_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    KEEP_MS_FIELD_NUMBER: _ClassVar[int]
    RUN_FIELD_NUMBER: _ClassVar[int]
    FRAME_DIRECTORY_FIELD_NUMBER: _ClassVar[int]
    FRAME_DIRECTORY_IDENTITY_FIELD_NUMBER: _ClassVar[int]
    snapshot: str
    buckets: int
    at_ms: int
    messages: int
    keep_ms: int
    run: str
    frame_directory: str
    frame_directory_identity: str
    def __init__(self, snapshot: _Optional[str] = ..., buckets: _Optional[int] = ..., at_ms: _Optional[int] = ..., messages: _Optional[int] = ..., keep_ms: _Optional[int] = ..., run: _Optional[str] = ..., frame_directory: _Optional[str] = ..., frame_directory_identity: _Optional[str] = ...) -> None: ...

class CloseSnapshotRequest(_message.Message):
    __slots__ = ("snapshot",)
    SNAPSHOT_FIELD_NUMBER: _ClassVar[int]
    snapshot: str
    def __init__(self, snapshot: _Optional[str] = ...) -> None: ...

class CloseSnapshotResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ScanRequest(_message.Message):
    __slots__ = ("snapshot", "first_bucket", "end_bucket", "filter", "without_bodies", "runs", "frames", "share", "shares")
    SNAPSHOT_FIELD_NUMBER: _ClassVar[int]
    FIRST_BUCKET_FIELD_NUMBER: _ClassVar[int]
    END_BUCKET_FIELD_NUMBER: _ClassVar[int]
    FILTER_FIELD_NUMBER: _ClassVar[int]
    WITHOUT_BODIES_FIELD_NUMBER: _ClassVar[int]
    RUNS_FIELD_NUMBER: _ClassVar[int]
    FRAMES_FIELD_NUMBER: _ClassVar[int]
    SHARE_FIELD_NUMBER: _ClassVar[int]
    SHARES_FIELD_NUMBER: _ClassVar[int]
    snapshot: str
    first_bucket: int
    end_bucket: int
    filter: Filter
    without_bodies: bool
    runs: bool
    frames: bool
    share: int
    shares: int
    def __init__(self, snapshot: _Optional[str] = ..., first_bucket: _Optional[int] = ..., end_bucket: _Optional[int] = ..., filter: _Optional[_Union[Filter, _Mapping]] = ..., without_bodies: _Optional[bool] = ..., runs: _Optional[bool] = ..., frames: _Optional[bool] = ..., share: _Optional[int] = ..., shares: _Optional[int] = ...) -> None: ...

class Stretch(_message.Message):
    __slots__ = ("span", "bucket", "group", "version", "consumer")
    SPAN_FIELD_NUMBER: _ClassVar[int]
    BUCKET_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    CONSUMER_FIELD_NUMBER: _ClassVar[int]
    span: IdSpan
    bucket: int
    group: str
    version: int
    consumer: str
    def __init__(self, span: _Optional[_Union[IdSpan, _Mapping]] = ..., bucket: _Optional[int] = ..., group: _Optional[str] = ..., version: _Optional[int] = ..., consumer: _Optional[str] = ...) -> None: ...

class ScanColumns(_message.Message):
    __slots__ = ("stretches", "ids", "ts", "bodies", "priorities", "attempts", "headers", "runs", "run_buckets", "run_versions", "run_rows", "frame_files", "frame_offsets", "frame_lengths", "frame_buckets", "frame_rows_without", "masked")
    STRETCHES_FIELD_NUMBER: _ClassVar[int]
    IDS_FIELD_NUMBER: _ClassVar[int]
    TS_FIELD_NUMBER: _ClassVar[int]
    BODIES_FIELD_NUMBER: _ClassVar[int]
    PRIORITIES_FIELD_NUMBER: _ClassVar[int]
    ATTEMPTS_FIELD_NUMBER: _ClassVar[int]
    HEADERS_FIELD_NUMBER: _ClassVar[int]
    RUNS_FIELD_NUMBER: _ClassVar[int]
    RUN_BUCKETS_FIELD_NUMBER: _ClassVar[int]
    RUN_VERSIONS_FIELD_NUMBER: _ClassVar[int]
    RUN_ROWS_FIELD_NUMBER: _ClassVar[int]
    FRAME_FILES_FIELD_NUMBER: _ClassVar[int]
    FRAME_OFFSETS_FIELD_NUMBER: _ClassVar[int]
    FRAME_LENGTHS_FIELD_NUMBER: _ClassVar[int]
    FRAME_BUCKETS_FIELD_NUMBER: _ClassVar[int]
    FRAME_ROWS_WITHOUT_FIELD_NUMBER: _ClassVar[int]
    MASKED_FIELD_NUMBER: _ClassVar[int]
    stretches: _containers.RepeatedCompositeFieldContainer[Stretch]
    ids: _containers.RepeatedScalarFieldContainer[str]
    ts: _containers.RepeatedScalarFieldContainer[int]
    bodies: _containers.RepeatedScalarFieldContainer[bytes]
    priorities: _containers.RepeatedScalarFieldContainer[int]
    attempts: _containers.RepeatedScalarFieldContainer[int]
    headers: _containers.RepeatedScalarFieldContainer[bytes]
    runs: _containers.RepeatedScalarFieldContainer[bytes]
    run_buckets: _containers.RepeatedScalarFieldContainer[int]
    run_versions: _containers.RepeatedScalarFieldContainer[int]
    run_rows: _containers.RepeatedScalarFieldContainer[bytes]
    frame_files: _containers.RepeatedScalarFieldContainer[int]
    frame_offsets: _containers.RepeatedScalarFieldContainer[int]
    frame_lengths: _containers.RepeatedScalarFieldContainer[int]
    frame_buckets: _containers.RepeatedScalarFieldContainer[int]
    frame_rows_without: _containers.RepeatedScalarFieldContainer[bytes]
    masked: bool
    def __init__(self, stretches: _Optional[_Iterable[_Union[Stretch, _Mapping]]] = ..., ids: _Optional[_Iterable[str]] = ..., ts: _Optional[_Iterable[int]] = ..., bodies: _Optional[_Iterable[bytes]] = ..., priorities: _Optional[_Iterable[int]] = ..., attempts: _Optional[_Iterable[int]] = ..., headers: _Optional[_Iterable[bytes]] = ..., runs: _Optional[_Iterable[bytes]] = ..., run_buckets: _Optional[_Iterable[int]] = ..., run_versions: _Optional[_Iterable[int]] = ..., run_rows: _Optional[_Iterable[bytes]] = ..., frame_files: _Optional[_Iterable[int]] = ..., frame_offsets: _Optional[_Iterable[int]] = ..., frame_lengths: _Optional[_Iterable[int]] = ..., frame_buckets: _Optional[_Iterable[int]] = ..., frame_rows_without: _Optional[_Iterable[bytes]] = ..., masked: _Optional[bool] = ...) -> None: ...

class RedriveRequest(_message.Message):
    __slots__ = ("topic", "target", "ids")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    TARGET_FIELD_NUMBER: _ClassVar[int]
    IDS_FIELD_NUMBER: _ClassVar[int]
    topic: str
    target: str
    ids: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, topic: _Optional[str] = ..., target: _Optional[str] = ..., ids: _Optional[_Iterable[str]] = ...) -> None: ...

class PurgeRequest(_message.Message):
    __slots__ = ("topic", "ids")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    IDS_FIELD_NUMBER: _ClassVar[int]
    topic: str
    ids: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, topic: _Optional[str] = ..., ids: _Optional[_Iterable[str]] = ...) -> None: ...

class MessageColumns(_message.Message):
    __slots__ = ("ids", "buckets", "ts", "priorities", "bodies", "groups", "consumers", "versions", "attempts", "headers", "statuses", "asked", "cursor", "progress", "masked")
    IDS_FIELD_NUMBER: _ClassVar[int]
    BUCKETS_FIELD_NUMBER: _ClassVar[int]
    TS_FIELD_NUMBER: _ClassVar[int]
    PRIORITIES_FIELD_NUMBER: _ClassVar[int]
    BODIES_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    CONSUMERS_FIELD_NUMBER: _ClassVar[int]
    VERSIONS_FIELD_NUMBER: _ClassVar[int]
    ATTEMPTS_FIELD_NUMBER: _ClassVar[int]
    HEADERS_FIELD_NUMBER: _ClassVar[int]
    STATUSES_FIELD_NUMBER: _ClassVar[int]
    ASKED_FIELD_NUMBER: _ClassVar[int]
    CURSOR_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    MASKED_FIELD_NUMBER: _ClassVar[int]
    ids: _containers.RepeatedScalarFieldContainer[str]
    buckets: _containers.RepeatedScalarFieldContainer[int]
    ts: _containers.RepeatedScalarFieldContainer[int]
    priorities: _containers.RepeatedScalarFieldContainer[int]
    bodies: _containers.RepeatedScalarFieldContainer[bytes]
    groups: _containers.RepeatedScalarFieldContainer[str]
    consumers: _containers.RepeatedScalarFieldContainer[str]
    versions: _containers.RepeatedScalarFieldContainer[int]
    attempts: _containers.RepeatedScalarFieldContainer[int]
    headers: _containers.RepeatedScalarFieldContainer[bytes]
    statuses: _containers.RepeatedScalarFieldContainer[str]
    asked: _containers.RepeatedScalarFieldContainer[int]
    cursor: bytes
    progress: _containers.RepeatedScalarFieldContainer[str]
    masked: bool
    def __init__(self, ids: _Optional[_Iterable[str]] = ..., buckets: _Optional[_Iterable[int]] = ..., ts: _Optional[_Iterable[int]] = ..., priorities: _Optional[_Iterable[int]] = ..., bodies: _Optional[_Iterable[bytes]] = ..., groups: _Optional[_Iterable[str]] = ..., consumers: _Optional[_Iterable[str]] = ..., versions: _Optional[_Iterable[int]] = ..., attempts: _Optional[_Iterable[int]] = ..., headers: _Optional[_Iterable[bytes]] = ..., statuses: _Optional[_Iterable[str]] = ..., asked: _Optional[_Iterable[int]] = ..., cursor: _Optional[bytes] = ..., progress: _Optional[_Iterable[str]] = ..., masked: _Optional[bool] = ...) -> None: ...
