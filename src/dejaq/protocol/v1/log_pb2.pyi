from dejaq.protocol.v1 import errors_pb2 as _errors_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class LogRecords(_message.Message):
    __slots__ = ("bodies", "keys", "headers")
    BODIES_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    HEADERS_FIELD_NUMBER: _ClassVar[int]
    bodies: _containers.RepeatedScalarFieldContainer[bytes]
    keys: _containers.RepeatedScalarFieldContainer[bytes]
    headers: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, bodies: _Optional[_Iterable[bytes]] = ..., keys: _Optional[_Iterable[bytes]] = ..., headers: _Optional[_Iterable[bytes]] = ...) -> None: ...

class LogCommand(_message.Message):
    __slots__ = ("append", "open", "credit", "commit", "seek", "pause", "release")
    APPEND_FIELD_NUMBER: _ClassVar[int]
    OPEN_FIELD_NUMBER: _ClassVar[int]
    CREDIT_FIELD_NUMBER: _ClassVar[int]
    COMMIT_FIELD_NUMBER: _ClassVar[int]
    SEEK_FIELD_NUMBER: _ClassVar[int]
    PAUSE_FIELD_NUMBER: _ClassVar[int]
    RELEASE_FIELD_NUMBER: _ClassVar[int]
    append: LogAppend
    open: LogOpen
    credit: LogCredit
    commit: LogCommit
    seek: LogSeek
    pause: LogPause
    release: LogRelease
    def __init__(self, append: _Optional[_Union[LogAppend, _Mapping]] = ..., open: _Optional[_Union[LogOpen, _Mapping]] = ..., credit: _Optional[_Union[LogCredit, _Mapping]] = ..., commit: _Optional[_Union[LogCommit, _Mapping]] = ..., seek: _Optional[_Union[LogSeek, _Mapping]] = ..., pause: _Optional[_Union[LogPause, _Mapping]] = ..., release: _Optional[_Union[LogRelease, _Mapping]] = ...) -> None: ...

class LogEvent(_message.Message):
    __slots__ = ("appended", "push", "committed", "assigned", "revoked", "moved", "opened")
    APPENDED_FIELD_NUMBER: _ClassVar[int]
    PUSH_FIELD_NUMBER: _ClassVar[int]
    COMMITTED_FIELD_NUMBER: _ClassVar[int]
    ASSIGNED_FIELD_NUMBER: _ClassVar[int]
    REVOKED_FIELD_NUMBER: _ClassVar[int]
    MOVED_FIELD_NUMBER: _ClassVar[int]
    OPENED_FIELD_NUMBER: _ClassVar[int]
    appended: LogAppended
    push: LogPush
    committed: LogCommitted
    assigned: LogAssigned
    revoked: LogRevoked
    moved: LogMoved
    opened: LogOpened
    def __init__(self, appended: _Optional[_Union[LogAppended, _Mapping]] = ..., push: _Optional[_Union[LogPush, _Mapping]] = ..., committed: _Optional[_Union[LogCommitted, _Mapping]] = ..., assigned: _Optional[_Union[LogAssigned, _Mapping]] = ..., revoked: _Optional[_Union[LogRevoked, _Mapping]] = ..., moved: _Optional[_Union[LogMoved, _Mapping]] = ..., opened: _Optional[_Union[LogOpened, _Mapping]] = ...) -> None: ...

class LogAppend(_message.Message):
    __slots__ = ("topic", "session", "sequence", "client_ms", "timeout_ms", "batches")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    CLIENT_MS_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    BATCHES_FIELD_NUMBER: _ClassVar[int]
    topic: str
    session: bytes
    sequence: int
    client_ms: int
    timeout_ms: int
    batches: _containers.RepeatedCompositeFieldContainer[LogBatch]
    def __init__(self, topic: _Optional[str] = ..., session: _Optional[bytes] = ..., sequence: _Optional[int] = ..., client_ms: _Optional[int] = ..., timeout_ms: _Optional[int] = ..., batches: _Optional[_Iterable[_Union[LogBatch, _Mapping]]] = ...) -> None: ...

class LogBatch(_message.Message):
    __slots__ = ("bucket", "records")
    BUCKET_FIELD_NUMBER: _ClassVar[int]
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    bucket: int
    records: bytes
    def __init__(self, bucket: _Optional[int] = ..., records: _Optional[bytes] = ...) -> None: ...

class LogAppended(_message.Message):
    __slots__ = ("bases", "ts", "codes")
    BASES_FIELD_NUMBER: _ClassVar[int]
    TS_FIELD_NUMBER: _ClassVar[int]
    CODES_FIELD_NUMBER: _ClassVar[int]
    bases: _containers.RepeatedScalarFieldContainer[int]
    ts: _containers.RepeatedScalarFieldContainer[int]
    codes: _containers.RepeatedScalarFieldContainer[_errors_pb2.Code]
    def __init__(self, bases: _Optional[_Iterable[int]] = ..., ts: _Optional[_Iterable[int]] = ..., codes: _Optional[_Iterable[_Union[_errors_pb2.Code, str]]] = ...) -> None: ...

class LogOpen(_message.Message):
    __slots__ = ("topic", "group", "member", "positions", "uncommitted", "credit_bytes", "headers")
    class HeadersEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    MEMBER_FIELD_NUMBER: _ClassVar[int]
    POSITIONS_FIELD_NUMBER: _ClassVar[int]
    UNCOMMITTED_FIELD_NUMBER: _ClassVar[int]
    CREDIT_BYTES_FIELD_NUMBER: _ClassVar[int]
    HEADERS_FIELD_NUMBER: _ClassVar[int]
    topic: str
    group: str
    member: str
    positions: _containers.RepeatedCompositeFieldContainer[LogPosition]
    uncommitted: bool
    credit_bytes: int
    headers: _containers.ScalarMap[str, str]
    def __init__(self, topic: _Optional[str] = ..., group: _Optional[str] = ..., member: _Optional[str] = ..., positions: _Optional[_Iterable[_Union[LogPosition, _Mapping]]] = ..., uncommitted: _Optional[bool] = ..., credit_bytes: _Optional[int] = ..., headers: _Optional[_Mapping[str, str]] = ...) -> None: ...

class LogPosition(_message.Message):
    __slots__ = ("bucket", "offset")
    BUCKET_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    bucket: int
    offset: int
    def __init__(self, bucket: _Optional[int] = ..., offset: _Optional[int] = ...) -> None: ...

class LogOpened(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class LogCredit(_message.Message):
    __slots__ = ("bytes",)
    BYTES_FIELD_NUMBER: _ClassVar[int]
    bytes: int
    def __init__(self, bytes: _Optional[int] = ...) -> None: ...

class LogCommit(_message.Message):
    __slots__ = ("positions", "claims")
    POSITIONS_FIELD_NUMBER: _ClassVar[int]
    CLAIMS_FIELD_NUMBER: _ClassVar[int]
    positions: _containers.RepeatedCompositeFieldContainer[LogPosition]
    claims: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, positions: _Optional[_Iterable[_Union[LogPosition, _Mapping]]] = ..., claims: _Optional[_Iterable[int]] = ...) -> None: ...

class LogCommitted(_message.Message):
    __slots__ = ("codes",)
    CODES_FIELD_NUMBER: _ClassVar[int]
    codes: _containers.RepeatedScalarFieldContainer[_errors_pb2.Code]
    def __init__(self, codes: _Optional[_Iterable[_Union[_errors_pb2.Code, str]]] = ...) -> None: ...

class LogSeek(_message.Message):
    __slots__ = ("position", "number")
    POSITION_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    position: LogPosition
    number: int
    def __init__(self, position: _Optional[_Union[LogPosition, _Mapping]] = ..., number: _Optional[int] = ...) -> None: ...

class LogMoved(_message.Message):
    __slots__ = ("number", "error")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    number: int
    error: _errors_pb2.Error
    def __init__(self, number: _Optional[int] = ..., error: _Optional[_Union[_errors_pb2.Error, _Mapping]] = ...) -> None: ...

class LogPause(_message.Message):
    __slots__ = ("buckets", "resume")
    BUCKETS_FIELD_NUMBER: _ClassVar[int]
    RESUME_FIELD_NUMBER: _ClassVar[int]
    buckets: _containers.RepeatedScalarFieldContainer[int]
    resume: bool
    def __init__(self, buckets: _Optional[_Iterable[int]] = ..., resume: _Optional[bool] = ...) -> None: ...

class LogAssigned(_message.Message):
    __slots__ = ("positions", "claim")
    POSITIONS_FIELD_NUMBER: _ClassVar[int]
    CLAIM_FIELD_NUMBER: _ClassVar[int]
    positions: _containers.RepeatedCompositeFieldContainer[LogPosition]
    claim: int
    def __init__(self, positions: _Optional[_Iterable[_Union[LogPosition, _Mapping]]] = ..., claim: _Optional[int] = ...) -> None: ...

class LogRevoked(_message.Message):
    __slots__ = ("buckets",)
    BUCKETS_FIELD_NUMBER: _ClassVar[int]
    buckets: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, buckets: _Optional[_Iterable[int]] = ...) -> None: ...

class LogRelease(_message.Message):
    __slots__ = ("buckets", "claims")
    BUCKETS_FIELD_NUMBER: _ClassVar[int]
    CLAIMS_FIELD_NUMBER: _ClassVar[int]
    buckets: _containers.RepeatedScalarFieldContainer[int]
    claims: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, buckets: _Optional[_Iterable[int]] = ..., claims: _Optional[_Iterable[int]] = ...) -> None: ...

class LogPush(_message.Message):
    __slots__ = ("slices",)
    SLICES_FIELD_NUMBER: _ClassVar[int]
    slices: _containers.RepeatedCompositeFieldContainer[LogSlice]
    def __init__(self, slices: _Optional[_Iterable[_Union[LogSlice, _Mapping]]] = ...) -> None: ...

class LogSlice(_message.Message):
    __slots__ = ("bucket", "base", "count", "ts", "aborted", "records")
    BUCKET_FIELD_NUMBER: _ClassVar[int]
    BASE_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    TS_FIELD_NUMBER: _ClassVar[int]
    ABORTED_FIELD_NUMBER: _ClassVar[int]
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    bucket: int
    base: int
    count: int
    ts: int
    aborted: bool
    records: bytes
    def __init__(self, bucket: _Optional[int] = ..., base: _Optional[int] = ..., count: _Optional[int] = ..., ts: _Optional[int] = ..., aborted: _Optional[bool] = ..., records: _Optional[bytes] = ...) -> None: ...

class LogOffsetsRequest(_message.Message):
    __slots__ = ("topic",)
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    topic: str
    def __init__(self, topic: _Optional[str] = ...) -> None: ...

class LogBucketOffsets(_message.Message):
    __slots__ = ("start", "stable", "next", "bytes")
    START_FIELD_NUMBER: _ClassVar[int]
    STABLE_FIELD_NUMBER: _ClassVar[int]
    NEXT_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    start: int
    stable: int
    next: int
    bytes: int
    def __init__(self, start: _Optional[int] = ..., stable: _Optional[int] = ..., next: _Optional[int] = ..., bytes: _Optional[int] = ...) -> None: ...

class LogOffsetsResponse(_message.Message):
    __slots__ = ("buckets",)
    BUCKETS_FIELD_NUMBER: _ClassVar[int]
    buckets: _containers.RepeatedCompositeFieldContainer[LogBucketOffsets]
    def __init__(self, buckets: _Optional[_Iterable[_Union[LogBucketOffsets, _Mapping]]] = ...) -> None: ...

class LogTimeRequest(_message.Message):
    __slots__ = ("topic", "ts")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    TS_FIELD_NUMBER: _ClassVar[int]
    topic: str
    ts: int
    def __init__(self, topic: _Optional[str] = ..., ts: _Optional[int] = ...) -> None: ...

class LogTimeResponse(_message.Message):
    __slots__ = ("offsets",)
    OFFSETS_FIELD_NUMBER: _ClassVar[int]
    offsets: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, offsets: _Optional[_Iterable[int]] = ...) -> None: ...

class LogFetchRequest(_message.Message):
    __slots__ = ("topic", "bucket", "start", "end", "bytes_max", "uncommitted", "headers")
    class HeadersEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    BUCKET_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    BYTES_MAX_FIELD_NUMBER: _ClassVar[int]
    UNCOMMITTED_FIELD_NUMBER: _ClassVar[int]
    HEADERS_FIELD_NUMBER: _ClassVar[int]
    topic: str
    bucket: int
    start: int
    end: int
    bytes_max: int
    uncommitted: bool
    headers: _containers.ScalarMap[str, str]
    def __init__(self, topic: _Optional[str] = ..., bucket: _Optional[int] = ..., start: _Optional[int] = ..., end: _Optional[int] = ..., bytes_max: _Optional[int] = ..., uncommitted: _Optional[bool] = ..., headers: _Optional[_Mapping[str, str]] = ...) -> None: ...

class LogFetchResponse(_message.Message):
    __slots__ = ("slices", "next")
    SLICES_FIELD_NUMBER: _ClassVar[int]
    NEXT_FIELD_NUMBER: _ClassVar[int]
    slices: _containers.RepeatedCompositeFieldContainer[LogSlice]
    next: int
    def __init__(self, slices: _Optional[_Iterable[_Union[LogSlice, _Mapping]]] = ..., next: _Optional[int] = ...) -> None: ...

class LogRollbackRequest(_message.Message):
    __slots__ = ("topic", "session", "sequence")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    topic: str
    session: bytes
    sequence: int
    def __init__(self, topic: _Optional[str] = ..., session: _Optional[bytes] = ..., sequence: _Optional[int] = ...) -> None: ...

class LogRollbackResponse(_message.Message):
    __slots__ = ("bucket", "base", "count")
    BUCKET_FIELD_NUMBER: _ClassVar[int]
    BASE_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    bucket: int
    base: int
    count: int
    def __init__(self, bucket: _Optional[int] = ..., base: _Optional[int] = ..., count: _Optional[int] = ...) -> None: ...

class LogGroupsRequest(_message.Message):
    __slots__ = ("topic",)
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    topic: str
    def __init__(self, topic: _Optional[str] = ...) -> None: ...

class LogGroup(_message.Message):
    __slots__ = ("name", "committed", "members")
    NAME_FIELD_NUMBER: _ClassVar[int]
    COMMITTED_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    name: str
    committed: _containers.RepeatedCompositeFieldContainer[LogPosition]
    members: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, name: _Optional[str] = ..., committed: _Optional[_Iterable[_Union[LogPosition, _Mapping]]] = ..., members: _Optional[_Iterable[str]] = ...) -> None: ...

class LogGroupsResponse(_message.Message):
    __slots__ = ("groups",)
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    groups: _containers.RepeatedCompositeFieldContainer[LogGroup]
    def __init__(self, groups: _Optional[_Iterable[_Union[LogGroup, _Mapping]]] = ...) -> None: ...

class LogResetRequest(_message.Message):
    __slots__ = ("topic", "group", "positions")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    POSITIONS_FIELD_NUMBER: _ClassVar[int]
    topic: str
    group: str
    positions: _containers.RepeatedCompositeFieldContainer[LogPosition]
    def __init__(self, topic: _Optional[str] = ..., group: _Optional[str] = ..., positions: _Optional[_Iterable[_Union[LogPosition, _Mapping]]] = ...) -> None: ...

class LogResetResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class LogRemoveGroupRequest(_message.Message):
    __slots__ = ("topic", "group")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    topic: str
    group: str
    def __init__(self, topic: _Optional[str] = ..., group: _Optional[str] = ...) -> None: ...

class LogRemoveGroupResponse(_message.Message):
    __slots__ = ("removed",)
    REMOVED_FIELD_NUMBER: _ClassVar[int]
    removed: bool
    def __init__(self, removed: _Optional[bool] = ...) -> None: ...

class LogStep(_message.Message):
    __slots__ = ("topic", "actor", "append", "commit")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    ACTOR_FIELD_NUMBER: _ClassVar[int]
    APPEND_FIELD_NUMBER: _ClassVar[int]
    COMMIT_FIELD_NUMBER: _ClassVar[int]
    topic: str
    actor: str
    append: LogBatch
    commit: LogCommit
    def __init__(self, topic: _Optional[str] = ..., actor: _Optional[str] = ..., append: _Optional[_Union[LogBatch, _Mapping]] = ..., commit: _Optional[_Union[LogCommit, _Mapping]] = ...) -> None: ...

class LogPrepareRequest(_message.Message):
    __slots__ = ("topic", "name", "steps", "timeout_ms")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    topic: str
    name: str
    steps: _containers.RepeatedCompositeFieldContainer[LogStep]
    timeout_ms: int
    def __init__(self, topic: _Optional[str] = ..., name: _Optional[str] = ..., steps: _Optional[_Iterable[_Union[LogStep, _Mapping]]] = ..., timeout_ms: _Optional[int] = ...) -> None: ...

class LogPrepareResponse(_message.Message):
    __slots__ = ("code", "step", "row")
    CODE_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    ROW_FIELD_NUMBER: _ClassVar[int]
    code: _errors_pb2.Code
    step: int
    row: int
    def __init__(self, code: _Optional[_Union[_errors_pb2.Code, str]] = ..., step: _Optional[int] = ..., row: _Optional[int] = ...) -> None: ...

class LogResolveRequest(_message.Message):
    __slots__ = ("topic", "name", "commit")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    COMMIT_FIELD_NUMBER: _ClassVar[int]
    topic: str
    name: str
    commit: bool
    def __init__(self, topic: _Optional[str] = ..., name: _Optional[str] = ..., commit: _Optional[bool] = ...) -> None: ...

class LogResolveResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class LogInDoubtRequest(_message.Message):
    __slots__ = ("topic",)
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    topic: str
    def __init__(self, topic: _Optional[str] = ...) -> None: ...

class LogPrepared(_message.Message):
    __slots__ = ("name", "prepared_ms", "deadline_ms", "messages", "offsets")
    NAME_FIELD_NUMBER: _ClassVar[int]
    PREPARED_MS_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_MS_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    OFFSETS_FIELD_NUMBER: _ClassVar[int]
    name: str
    prepared_ms: int
    deadline_ms: int
    messages: int
    offsets: int
    def __init__(self, name: _Optional[str] = ..., prepared_ms: _Optional[int] = ..., deadline_ms: _Optional[int] = ..., messages: _Optional[int] = ..., offsets: _Optional[int] = ...) -> None: ...

class LogInDoubtResponse(_message.Message):
    __slots__ = ("transactions",)
    TRANSACTIONS_FIELD_NUMBER: _ClassVar[int]
    transactions: _containers.RepeatedCompositeFieldContainer[LogPrepared]
    def __init__(self, transactions: _Optional[_Iterable[_Union[LogPrepared, _Mapping]]] = ...) -> None: ...
