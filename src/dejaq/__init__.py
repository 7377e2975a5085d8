"""DejaQ: a scheduled-message queue.

async with dejaq.connect("dejaq://127.0.0.1:7400") as client:
    async with client.producer("mail", group="billing") as producer:
        await producer.send(b"hello", delay=2.5)
    async with client.consumer("mail") as consumer:
        async for lease in consumer:
            await lease.delete()
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dejaq.broker import Broker
    from dejaq.domain.backoff import Backoff
    from dejaq.domain.message import Message, Status
    from dejaq.domain.topic import Durability, TopicKind, TopicSettings, TopicStage
    from dejaq.errors import (
        Code,
        Conflict,
        DejaqError,
        Indefinite,
        InternalError,
        InvalidArgument,
        LimitExceeded,
        Missing,
        NoBroker,
        OutOfState,
        PermissionDenied,
        PortTaken,
        Refused,
        StoreError,
        TopicExists,
        Unauthenticated,
        Unavailable,
        VersionUnsupported,
    )
    from dejaq.sdk.admin.cluster import (
        BrokerInfo,
        ClientInfo,
        ClusterInfo,
        Pong,
        StandbyInfo,
        StoreCopies,
        TopicCopies,
        TopicInfo,
        TopicsPage,
    )
    from dejaq.sdk.admin.cron import Cron, Schedule, ScheduleInfo
    from dejaq.sdk.admin.dead_letters import DeadLetters
    from dejaq.sdk.admin.history import HistoryEvent, MessageHistory
    from dejaq.sdk.admin.overview import AllTopics, TopicEntry
    from dejaq.sdk.admin.queries import MessagePage
    from dejaq.sdk.admin.replies import Reply
    from dejaq.sdk.admin.rights import Rights, RightsDecision, RightsQuota, RightsRule
    from dejaq.sdk.changing.bulk import BulkResult, Where
    from dejaq.sdk.changing.transaction import Transaction
    from dejaq.sdk.client import Client, connect
    from dejaq.sdk.consuming.consumer import Consumer
    from dejaq.sdk.consuming.lease import Batch, Lease
    from dejaq.sdk.log.calls import LogBucketInfo, LogGroupInfo
    from dejaq.sdk.log.group import LogGroup, LogWorker
    from dejaq.sdk.log.log import Log
    from dejaq.sdk.log.messages import AppendedBatch, LogBatch, LogMessage, LogOffset
    from dejaq.sdk.log.reader import LogReader
    from dejaq.sdk.producing.producer import Producer
    from dejaq.sdk.results import FanOut, Results
    from dejaq.sdk.working.codecs import JSON, MSGPACK, Codec
    from dejaq.sdk.working.worker import Postpone, Reject, Worker

# Each public name is imported when it is first used: a client never loads a store, a command line no gRPC.
_HOMES = {
    "dejaq.broker": ("Broker",),
    "dejaq.domain.backoff": ("Backoff",),
    "dejaq.domain.message": ("Message", "Status"),
    "dejaq.domain.topic": ("Durability", "TopicKind", "TopicSettings", "TopicStage"),
    "dejaq.errors": (
        "Code",
        "Conflict",
        "DejaqError",
        "Indefinite",
        "InternalError",
        "InvalidArgument",
        "LimitExceeded",
        "Missing",
        "NoBroker",
        "OutOfState",
        "PermissionDenied",
        "PortTaken",
        "Refused",
        "StoreError",
        "TopicExists",
        "Unauthenticated",
        "Unavailable",
        "VersionUnsupported",
    ),
    "dejaq.sdk.admin.cluster": (
        "BrokerInfo",
        "ClientInfo",
        "ClusterInfo",
        "Pong",
        "StandbyInfo",
        "StoreCopies",
        "TopicCopies",
        "TopicInfo",
        "TopicsPage",
    ),
    "dejaq.sdk.admin.overview": ("AllTopics", "TopicEntry"),
    "dejaq.sdk.admin.history": ("MessageHistory", "HistoryEvent"),
    "dejaq.sdk.admin.queries": ("MessagePage",),
    "dejaq.sdk.admin.rights": ("Rights", "RightsDecision", "RightsQuota", "RightsRule"),
    "dejaq.sdk.changing.bulk": ("BulkResult", "Where"),
    "dejaq.sdk.client": ("Client", "connect"),
    "dejaq.sdk.working.codecs": ("JSON", "MSGPACK", "Codec"),
    "dejaq.sdk.consuming.consumer": ("Consumer",),
    "dejaq.sdk.admin.dead_letters": ("DeadLetters",),
    "dejaq.sdk.admin.cron": ("Cron", "Schedule", "ScheduleInfo"),
    "dejaq.sdk.consuming.lease": ("Batch", "Lease"),
    "dejaq.sdk.log.log": ("Log",),
    "dejaq.sdk.log.calls": ("LogBucketInfo", "LogGroupInfo"),
    "dejaq.sdk.log.group": ("LogGroup", "LogWorker"),
    "dejaq.sdk.log.messages": ("AppendedBatch", "LogBatch", "LogMessage", "LogOffset"),
    "dejaq.sdk.log.reader": ("LogReader",),
    "dejaq.sdk.producing.producer": ("Producer",),
    "dejaq.sdk.admin.replies": ("Reply",),
    "dejaq.sdk.results": ("FanOut", "Results"),
    "dejaq.sdk.working.worker": ("Postpone", "Reject", "Worker"),
    "dejaq.sdk.changing.transaction": ("Transaction",),
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}

__all__ = [
    "JSON",
    "MSGPACK",
    "AllTopics",
    "AppendedBatch",
    "Backoff",
    "Batch",
    "Broker",
    "BrokerInfo",
    "BulkResult",
    "Client",
    "ClientInfo",
    "ClusterInfo",
    "Code",
    "Codec",
    "Conflict",
    "Consumer",
    "Cron",
    "DeadLetters",
    "DejaqError",
    "Durability",
    "FanOut",
    "HistoryEvent",
    "Indefinite",
    "InternalError",
    "InvalidArgument",
    "Lease",
    "LimitExceeded",
    "Log",
    "LogBatch",
    "LogBucketInfo",
    "LogGroup",
    "LogGroupInfo",
    "LogMessage",
    "LogOffset",
    "LogReader",
    "LogWorker",
    "Message",
    "MessageHistory",
    "MessagePage",
    "Missing",
    "NoBroker",
    "OutOfState",
    "PermissionDenied",
    "Pong",
    "PortTaken",
    "Postpone",
    "Producer",
    "Refused",
    "Reject",
    "Reply",
    "Results",
    "Rights",
    "RightsDecision",
    "RightsQuota",
    "RightsRule",
    "Schedule",
    "ScheduleInfo",
    "StandbyInfo",
    "Status",
    "StoreCopies",
    "StoreError",
    "TopicCopies",
    "TopicEntry",
    "TopicExists",
    "TopicInfo",
    "TopicKind",
    "TopicSettings",
    "TopicStage",
    "TopicsPage",
    "Transaction",
    "Unauthenticated",
    "Unavailable",
    "VersionUnsupported",
    "Where",
    "Worker",
    "connect",
]


# Without this condition a type checker would accept every name of this module.
if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        home = _HOME_OF.get(name)
        if home is None:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = getattr(import_module(home), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
