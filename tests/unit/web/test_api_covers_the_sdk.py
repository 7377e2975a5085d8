"""The HTTP API says everything that one call of the SDK can say: each public method has an operation, or a reason."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from dejaq.sdk.admin.access import AccessCalls
from dejaq.sdk.admin.cron import Cron
from dejaq.sdk.admin.dead_letters import DeadLetters
from dejaq.sdk.admin.rights import Rights
from dejaq.sdk.changing.transaction import Transaction
from dejaq.sdk.client import Client
from dejaq.sdk.consuming.consumer import Consumer
from dejaq.sdk.consuming.lease import Lease
from dejaq.sdk.log.log import Log
from dejaq.sdk.producing.producer import Producer
from dejaq.web.api.table import operations

# What is no call by itself: it opens, holds or iterates something, or is a value of an object.
_LOCAL = "an object of the program, not a call"
_STREAM = "a stream of the program; the API has long polls, pages and offsets"

CALLS: dict[type, dict[str, str]] = {
    Client: {
        **dict.fromkeys(("open", "close", "now_ms"), _LOCAL),
        **dict.fromkeys(("producer", "dead_letters", "log", "cron", "rights"), _LOCAL),
        **dict.fromkeys(("worker", "run_workers", "consumer", "browse"), _STREAM),
        "body_parts": "getBody", "browse_page": "listMessages", "count": "countMessages",
        "create_topic": "createTopic", "delete_topic": "deleteTopic", "describe_topic": "describeTopic",
        "edit_topic": "editTopic", "fan_out": "fanOut", "fetched": "getBody", "get": "getMessages",
        "histogram": "drawHistogram", "history": "readHistory", "info": "readInfo", "ping": "readTime",
        "rekey_topic": "rekeyTopic", "topics": "listTopics", "topics_page": "listTopics", "transaction": "transact",
        "all_topics": "allTopics", "copies": "topicCopies",
        "checkpoint": "the files that it links are on the broker's machine, where dejaq backup removes them",
    },
    Producer: {
        **dict.fromkeys(("open", "close"), _LOCAL),
        "send": "putMessage", "send_batch": "sendMessages", "request": "sendRequest", "reply_to": "takeReply",
        "edit": "editMessage", "edit_batch": "editMessagesById", "move": "editMessagesById", "cancel": "cancelMessage",
        "edit_where": "editMessages", "move_where": "moveMessages", "cancel_where": "cancelMessages",
        "count_where": "moveMessages",
    },
    Consumer: {
        **dict.fromkeys(("open", "close", "now_ms", "busy", "paused", "pause", "resume", "stop"), _LOCAL),
        "take": "takeLeases", "batches": _STREAM,
    },
    Lease: {
        "delete": "replyLease", "extend": "extendLease", "release": "releaseLease", "reject": "rejectLease",
        "progress": "reportProgress", "parts": "getBody", "read": "getBody",
    },
    Transaction: {
        **dict.fromkeys(("append", "cancel", "create", "delete", "edit", "move", "release", "send"), "transact"),
        "commit": "transact",
        "commit_offsets": "the member of a group that commits is a stream",
        "prepare": "it prepares what other steps of a transaction collect in a program; resolvePrepared decides",
    },
    Log: {
        **dict.fromkeys(("open", "close", "target"), _LOCAL),
        **dict.fromkeys(("reader", "group", "worker"), _STREAM),
        "append": "appendToLog", "append_batch": "appendBatch", "append_named": "appendBatch",
        "rollback": "rollbackBatch",
        "read": "readLog", "tail": "readLog", "offsets": "describeLog", "groups": "describeLog",
        "offsets_for_time": "offsetsForTime", "reset_group": "resetGroup", "remove_group": "removeGroup",
        "in_doubt": "listPrepared", "commit_prepared": "resolvePrepared", "abort_prepared": "resolvePrepared",
    },
    AccessCalls: {
        "who_am_i": "readMe", "sessions": "listSessions", "end_session": "endSession", "keys": "listKeys",
        "create_key": "createKey", "revoke_key": "revokeKey",
    },
    Rights: {
        "allow": "addRule", "deny": "addRule", "remove": "removeRule", "list": "listRules", "check": "checkRight",
        "quotas": "listRules", "set_quota": "setQuota",
    },
    Cron: {
        "add": "putSchedule", "add_many": "putSchedule", "all": "listSchedules", "get": "getSchedule",
        "history": "getSchedule", "next": "nextTimes", "preview": "previewSchedule", "pause": "pauseSchedule",
        "resume": "resumeSchedule", "run": "runSchedule", "remove": "removeSchedule",
    },
    DeadLetters: {
        "browse": "listDeadLetters", "count": "countMessages", "where": "listDeadLetters",
        "redrive": "redriveDeadLetters", "purge": "purgeDeadLetters",
    },
}  # fmt: skip
NAMES = {one.name for one in operations()}


def methods_of(kind: type) -> set[str]:
    return {
        name
        for name, member in inspect.getmembers(kind)
        if not name.startswith("_") and not isinstance(member, property) and callable(member)
    }


@pytest.mark.parametrize("kind", CALLS, ids=lambda kind: kind.__name__)
def test_every_method_has_an_operation_or_a_reason(kind: type[Any]) -> None:
    named = CALLS[kind]
    assert methods_of(kind) <= named.keys()
    for method, target in named.items():
        assert hasattr(kind, method), method
        assert target in NAMES or " " in target, f"{method}: {target} is no operation"
