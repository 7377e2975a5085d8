from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class RightsQuota(_message.Message):
    __slots__ = ("principal", "topics", "rate", "pending", "topics_used", "pending_used", "bytes", "bytes_used")
    PRINCIPAL_FIELD_NUMBER: _ClassVar[int]
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    RATE_FIELD_NUMBER: _ClassVar[int]
    PENDING_FIELD_NUMBER: _ClassVar[int]
    TOPICS_USED_FIELD_NUMBER: _ClassVar[int]
    PENDING_USED_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    BYTES_USED_FIELD_NUMBER: _ClassVar[int]
    principal: str
    topics: int
    rate: int
    pending: int
    topics_used: int
    pending_used: int
    bytes: int
    bytes_used: int
    def __init__(self, principal: _Optional[str] = ..., topics: _Optional[int] = ..., rate: _Optional[int] = ..., pending: _Optional[int] = ..., topics_used: _Optional[int] = ..., pending_used: _Optional[int] = ..., bytes: _Optional[int] = ..., bytes_used: _Optional[int] = ...) -> None: ...

class QuotaRequest(_message.Message):
    __slots__ = ("quota",)
    QUOTA_FIELD_NUMBER: _ClassVar[int]
    quota: RightsQuota
    def __init__(self, quota: _Optional[_Union[RightsQuota, _Mapping]] = ...) -> None: ...

class QuotaResponse(_message.Message):
    __slots__ = ("quota",)
    QUOTA_FIELD_NUMBER: _ClassVar[int]
    quota: RightsQuota
    def __init__(self, quota: _Optional[_Union[RightsQuota, _Mapping]] = ...) -> None: ...

class ListQuotasRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListQuotasResponse(_message.Message):
    __slots__ = ("quotas",)
    QUOTAS_FIELD_NUMBER: _ClassVar[int]
    quotas: _containers.RepeatedCompositeFieldContainer[RightsQuota]
    def __init__(self, quotas: _Optional[_Iterable[_Union[RightsQuota, _Mapping]]] = ...) -> None: ...

class RightsRule(_message.Message):
    __slots__ = ("id", "effect", "principal", "operations", "topic", "group", "made_by", "made_ms")
    ID_FIELD_NUMBER: _ClassVar[int]
    EFFECT_FIELD_NUMBER: _ClassVar[int]
    PRINCIPAL_FIELD_NUMBER: _ClassVar[int]
    OPERATIONS_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    MADE_BY_FIELD_NUMBER: _ClassVar[int]
    MADE_MS_FIELD_NUMBER: _ClassVar[int]
    id: str
    effect: str
    principal: str
    operations: _containers.RepeatedScalarFieldContainer[str]
    topic: str
    group: str
    made_by: str
    made_ms: int
    def __init__(self, id: _Optional[str] = ..., effect: _Optional[str] = ..., principal: _Optional[str] = ..., operations: _Optional[_Iterable[str]] = ..., topic: _Optional[str] = ..., group: _Optional[str] = ..., made_by: _Optional[str] = ..., made_ms: _Optional[int] = ...) -> None: ...

class ListRulesRequest(_message.Message):
    __slots__ = ("principal", "topic")
    PRINCIPAL_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    principal: str
    topic: str
    def __init__(self, principal: _Optional[str] = ..., topic: _Optional[str] = ...) -> None: ...

class ListRulesResponse(_message.Message):
    __slots__ = ("rules",)
    RULES_FIELD_NUMBER: _ClassVar[int]
    rules: _containers.RepeatedCompositeFieldContainer[RightsRule]
    def __init__(self, rules: _Optional[_Iterable[_Union[RightsRule, _Mapping]]] = ...) -> None: ...

class PutRuleRequest(_message.Message):
    __slots__ = ("rule",)
    RULE_FIELD_NUMBER: _ClassVar[int]
    rule: RightsRule
    def __init__(self, rule: _Optional[_Union[RightsRule, _Mapping]] = ...) -> None: ...

class RuleResponse(_message.Message):
    __slots__ = ("rule", "created")
    RULE_FIELD_NUMBER: _ClassVar[int]
    CREATED_FIELD_NUMBER: _ClassVar[int]
    rule: RightsRule
    created: bool
    def __init__(self, rule: _Optional[_Union[RightsRule, _Mapping]] = ..., created: _Optional[bool] = ...) -> None: ...

class RemoveRuleRequest(_message.Message):
    __slots__ = ("id",)
    ID_FIELD_NUMBER: _ClassVar[int]
    id: str
    def __init__(self, id: _Optional[str] = ...) -> None: ...

class RemoveRuleResponse(_message.Message):
    __slots__ = ("rule",)
    RULE_FIELD_NUMBER: _ClassVar[int]
    rule: RightsRule
    def __init__(self, rule: _Optional[_Union[RightsRule, _Mapping]] = ...) -> None: ...

class CheckRightRequest(_message.Message):
    __slots__ = ("operation", "topic", "group", "principals")
    OPERATION_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    PRINCIPALS_FIELD_NUMBER: _ClassVar[int]
    operation: str
    topic: str
    group: str
    principals: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, operation: _Optional[str] = ..., topic: _Optional[str] = ..., group: _Optional[str] = ..., principals: _Optional[_Iterable[str]] = ...) -> None: ...

class CheckRightResponse(_message.Message):
    __slots__ = ("allowed", "reason", "rule", "enforced")
    ALLOWED_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    RULE_FIELD_NUMBER: _ClassVar[int]
    ENFORCED_FIELD_NUMBER: _ClassVar[int]
    allowed: bool
    reason: str
    rule: RightsRule
    enforced: bool
    def __init__(self, allowed: _Optional[bool] = ..., reason: _Optional[str] = ..., rule: _Optional[_Union[RightsRule, _Mapping]] = ..., enforced: _Optional[bool] = ...) -> None: ...
