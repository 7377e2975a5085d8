from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ScheduleAction(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    SCHEDULE_ACTION_UNSPECIFIED: _ClassVar[ScheduleAction]
    PAUSE: _ClassVar[ScheduleAction]
    RESUME: _ClassVar[ScheduleAction]
    RUN: _ClassVar[ScheduleAction]
    REMOVE: _ClassVar[ScheduleAction]
SCHEDULE_ACTION_UNSPECIFIED: ScheduleAction
PAUSE: ScheduleAction
RESUME: ScheduleAction
RUN: ScheduleAction
REMOVE: ScheduleAction

class Schedule(_message.Message):
    __slots__ = ("name", "expression", "zone", "template", "headers", "priority", "group", "start_ms", "end_ms", "jitter_ms", "skipped_hour", "repeated_hour", "missed", "missed_max", "overlap")
    class HeadersEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    NAME_FIELD_NUMBER: _ClassVar[int]
    EXPRESSION_FIELD_NUMBER: _ClassVar[int]
    ZONE_FIELD_NUMBER: _ClassVar[int]
    TEMPLATE_FIELD_NUMBER: _ClassVar[int]
    HEADERS_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    START_MS_FIELD_NUMBER: _ClassVar[int]
    END_MS_FIELD_NUMBER: _ClassVar[int]
    JITTER_MS_FIELD_NUMBER: _ClassVar[int]
    SKIPPED_HOUR_FIELD_NUMBER: _ClassVar[int]
    REPEATED_HOUR_FIELD_NUMBER: _ClassVar[int]
    MISSED_FIELD_NUMBER: _ClassVar[int]
    MISSED_MAX_FIELD_NUMBER: _ClassVar[int]
    OVERLAP_FIELD_NUMBER: _ClassVar[int]
    name: str
    expression: str
    zone: str
    template: str
    headers: _containers.ScalarMap[str, str]
    priority: int
    group: str
    start_ms: int
    end_ms: int
    jitter_ms: int
    skipped_hour: str
    repeated_hour: str
    missed: str
    missed_max: int
    overlap: str
    def __init__(self, name: _Optional[str] = ..., expression: _Optional[str] = ..., zone: _Optional[str] = ..., template: _Optional[str] = ..., headers: _Optional[_Mapping[str, str]] = ..., priority: _Optional[int] = ..., group: _Optional[str] = ..., start_ms: _Optional[int] = ..., end_ms: _Optional[int] = ..., jitter_ms: _Optional[int] = ..., skipped_hour: _Optional[str] = ..., repeated_hour: _Optional[str] = ..., missed: _Optional[str] = ..., missed_max: _Optional[int] = ..., overlap: _Optional[str] = ...) -> None: ...

class ScheduleInfo(_message.Message):
    __slots__ = ("schedule", "next_ms", "paused", "count", "last_id", "history_ms", "history_outcomes")
    SCHEDULE_FIELD_NUMBER: _ClassVar[int]
    NEXT_MS_FIELD_NUMBER: _ClassVar[int]
    PAUSED_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    LAST_ID_FIELD_NUMBER: _ClassVar[int]
    HISTORY_MS_FIELD_NUMBER: _ClassVar[int]
    HISTORY_OUTCOMES_FIELD_NUMBER: _ClassVar[int]
    schedule: Schedule
    next_ms: int
    paused: bool
    count: int
    last_id: str
    history_ms: _containers.RepeatedScalarFieldContainer[int]
    history_outcomes: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, schedule: _Optional[_Union[Schedule, _Mapping]] = ..., next_ms: _Optional[int] = ..., paused: _Optional[bool] = ..., count: _Optional[int] = ..., last_id: _Optional[str] = ..., history_ms: _Optional[_Iterable[int]] = ..., history_outcomes: _Optional[_Iterable[str]] = ...) -> None: ...

class PutSchedulesRequest(_message.Message):
    __slots__ = ("topic", "schedules", "replace")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    SCHEDULES_FIELD_NUMBER: _ClassVar[int]
    REPLACE_FIELD_NUMBER: _ClassVar[int]
    topic: str
    schedules: _containers.RepeatedCompositeFieldContainer[Schedule]
    replace: bool
    def __init__(self, topic: _Optional[str] = ..., schedules: _Optional[_Iterable[_Union[Schedule, _Mapping]]] = ..., replace: _Optional[bool] = ...) -> None: ...

class ListSchedulesRequest(_message.Message):
    __slots__ = ("topic", "names", "cursor", "limit")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    NAMES_FIELD_NUMBER: _ClassVar[int]
    CURSOR_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    topic: str
    names: _containers.RepeatedScalarFieldContainer[str]
    cursor: bytes
    limit: int
    def __init__(self, topic: _Optional[str] = ..., names: _Optional[_Iterable[str]] = ..., cursor: _Optional[bytes] = ..., limit: _Optional[int] = ...) -> None: ...

class SchedulesResponse(_message.Message):
    __slots__ = ("schedules", "cursor")
    SCHEDULES_FIELD_NUMBER: _ClassVar[int]
    CURSOR_FIELD_NUMBER: _ClassVar[int]
    schedules: _containers.RepeatedCompositeFieldContainer[ScheduleInfo]
    cursor: bytes
    def __init__(self, schedules: _Optional[_Iterable[_Union[ScheduleInfo, _Mapping]]] = ..., cursor: _Optional[bytes] = ...) -> None: ...

class ChangeScheduleRequest(_message.Message):
    __slots__ = ("topic", "name", "action", "key")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    ACTION_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    topic: str
    name: str
    action: ScheduleAction
    key: str
    def __init__(self, topic: _Optional[str] = ..., name: _Optional[str] = ..., action: _Optional[_Union[ScheduleAction, str]] = ..., key: _Optional[str] = ...) -> None: ...

class NextTimesRequest(_message.Message):
    __slots__ = ("topic", "name", "proposed", "count")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    PROPOSED_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    topic: str
    name: str
    proposed: Schedule
    count: int
    def __init__(self, topic: _Optional[str] = ..., name: _Optional[str] = ..., proposed: _Optional[_Union[Schedule, _Mapping]] = ..., count: _Optional[int] = ...) -> None: ...

class NextTimesResponse(_message.Message):
    __slots__ = ("times_ms",)
    TIMES_MS_FIELD_NUMBER: _ClassVar[int]
    times_ms: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, times_ms: _Optional[_Iterable[int]] = ...) -> None: ...
