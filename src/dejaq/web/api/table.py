"""Every operation of the HTTP API, in the order of the reference page."""

from __future__ import annotations

from collections.abc import Iterator

from dejaq.sdk.admin.access import Caller
from dejaq.sdk.admin.cluster import ClusterInfo, TopicCopies, TopicInfo
from dejaq.sdk.admin.cron import ScheduleInfo
from dejaq.sdk.admin.rights import RightsDecision, RightsQuota, RightsRule
from dejaq.web.api.filters import MessageFilter, OwnerFilter, PageQuery
from dejaq.web.api.operation import BYTES, JSON, NDJSON, ApiOperation, ApiRight
from dejaq.web.api.operations import (
    access,
    bulk,
    by_id,
    cluster,
    dead_letters,
    log_control,
    logs,
    messages,
    receiving,
    requests,
    schedules,
    sending,
    topics,
    transactions,
)
from dejaq.web.api.values import (
    BulkOutcome,
    CountValue,
    ItemOutcome,
    MessageChange,
    MessageList,
    MessageValue,
    NewMessage,
)

BASE = "/api/v1"
_TOPIC = f"{BASE}/topics/{{topic}}"
_MESSAGE = f"{_TOPIC}/messages/{{id}}"
_LEASE = f"{_TOPIC}/leases/{{lease}}"
_SCHEDULE = f"{_TOPIC}/schedules/{{name}}"
_IF_MATCH = {"If-Match": "The version of the message, as an ETag: the change is refused with 412 if it has another."}
_BATCH_KEY = {"Idempotency-Key": "Names the batch: a repeat within a day appends nothing."}
_KEY = {"Idempotency-Key": "Names the request: messages without an id get one that a repeat gets again."}


def operations() -> tuple[ApiOperation, ...]:
    """The table."""
    timelines = (*_of_topics(), *_of_messages(), *_of_several(), *_of_leases(), *_of_dead_letters(), *_of_schedules())
    return (*timelines, *_of_logs(), *_of_cluster(), *_of_access())


def _of_topics() -> Iterator[ApiOperation]:
    read, admin = ApiRight.READ, ApiRight.ADMIN
    yield ApiOperation(
        "GET", f"{BASE}/topics", "listTopics", "List topics", read, topics.list_topics, answer=topics.TopicList
    )
    yield ApiOperation(
        "GET", f"{BASE}/overview", "allTopics", "List topics with their first messages", read, topics.all_topics,
        query=topics.OverviewQuery, answer=topics.Overview,
    )  # fmt: skip
    yield ApiOperation(
        "POST", f"{BASE}/topics", "createTopic", "Create a topic", admin, topics.create_topic,
        body=topics.NewTopic, answer=TopicInfo, status=201,
    )  # fmt: skip
    yield ApiOperation(
        "GET", _TOPIC, "describeTopic", "Describe a topic", read, topics.describe_topic, answer=TopicInfo
    )
    yield ApiOperation(
        "PATCH", _TOPIC, "editTopic", "Change a topic", admin, topics.edit_topic,
        body=topics.TopicChange, answer=TopicInfo,
    )  # fmt: skip
    yield ApiOperation(
        "POST", f"{_TOPIC}/keys:rekey", "rekeyTopic", "Protect the keys of an encrypted topic again", admin,
        topics.rekey_topic, body=topics.RekeyValue, answer=topics.ProtectingKey,
    )  # fmt: skip
    yield ApiOperation(
        "GET", f"{_TOPIC}/copies", "topicCopies", "List the servers of a topic", read, topics.copies, answer=TopicCopies
    )
    yield ApiOperation("DELETE", _TOPIC, "deleteTopic", "Delete a topic", admin, topics.delete_topic, status=204)


def _of_messages() -> Iterator[ApiOperation]:
    read, send = ApiRight.READ, ApiRight.SEND
    yield ApiOperation(
        "GET", f"{_TOPIC}/messages", "listMessages", "List messages", read, messages.list_messages,
        query=PageQuery, answer=MessageList, answer_kinds=(JSON, NDJSON),
    )  # fmt: skip
    yield ApiOperation(
        "POST", f"{_TOPIC}/messages", "sendMessages", "Send messages", send, sending.post_messages,
        query=sending.BatchQuery, body=NewMessage | list[NewMessage], body_kinds=(JSON, NDJSON),
        answer=sending.SentBatch, answer_kinds=(JSON, NDJSON), status=201, headers=_KEY, partly=True,
    )  # fmt: skip
    yield ApiOperation(
        "GET", f"{_TOPIC}/count", "countMessages", "Count messages", read, messages.count_messages,
        query=MessageFilter, answer=CountValue,
    )  # fmt: skip
    yield ApiOperation(
        "GET", f"{_TOPIC}/histogram", "drawHistogram", "Count messages by step of time", read,
        messages.draw_histogram, query=messages.HistogramQuery, answer=messages.HistogramValue,
    )  # fmt: skip
    yield ApiOperation(
        "POST", f"{_TOPIC}/messages:move", "moveMessages", "Move the messages that match", send, bulk.move_messages,
        query=OwnerFilter, body=bulk.MoveTarget, answer=BulkOutcome, answer_kinds=(JSON, NDJSON),
    )  # fmt: skip
    yield ApiOperation(
        "POST", f"{_TOPIC}/messages:edit", "editMessages", "Change the messages that match", send, bulk.edit_messages,
        query=OwnerFilter, body=MessageChange, answer=BulkOutcome, answer_kinds=(JSON, NDJSON),
    )  # fmt: skip
    yield ApiOperation(
        "POST", f"{_TOPIC}/messages:cancel", "cancelMessages", "Cancel the messages that match", send,
        bulk.cancel_messages, query=OwnerFilter, answer=BulkOutcome, answer_kinds=(JSON, NDJSON),
    )  # fmt: skip
    yield ApiOperation(
        "PUT", _MESSAGE, "putMessage", "Create a message under its id", send, sending.put_message,
        query=sending.SendQuery, body=NewMessage, body_kinds=(JSON, BYTES), answer=ItemOutcome, status=201,
    )  # fmt: skip
    yield ApiOperation("GET", _MESSAGE, "getMessage", "Read a message", read, messages.get_message, answer=MessageValue)
    yield ApiOperation(
        "GET", f"{_MESSAGE}/body", "getBody", "Read the body of a message", read, messages.get_body,
        answer_kinds=(BYTES,),
    )  # fmt: skip
    yield ApiOperation(
        "PATCH", _MESSAGE, "editMessage", "Change a message", send, messages.edit_message,
        query=messages.OwnerQuery, body=MessageChange, answer=MessageValue, headers=_IF_MATCH,
    )  # fmt: skip
    yield ApiOperation(
        "DELETE", _MESSAGE, "cancelMessage", "Cancel a message", send, messages.cancel_message,
        query=messages.OwnerQuery, status=204, headers=_IF_MATCH,
    )  # fmt: skip
    yield ApiOperation(
        "GET", f"{_MESSAGE}/history", "readHistory", "Read the life of a message", read, messages.read_history,
        query=messages.HistoryQuery, answer=messages.HistoryValue,
    )  # fmt: skip


def _of_several() -> Iterator[ApiOperation]:
    """What one request does with several messages or topics, and requests that have a reply."""
    read, send = ApiRight.READ, ApiRight.SEND
    yield ApiOperation(
        "POST", f"{_TOPIC}/messages:get-by-id", "getMessages", "Read several messages", read, by_id.get_messages,
        body=by_id.IdList, answer=by_id.FoundMessages,
    )  # fmt: skip
    yield ApiOperation(
        "POST", f"{_TOPIC}/messages:edit-by-id", "editMessagesById", "Change several messages", send,
        by_id.edit_messages_by_id, query=messages.OwnerQuery, body=list[by_id.ChangeById], answer=sending.SentBatch,
        partly=True,
    )  # fmt: skip
    yield ApiOperation(
        "POST", f"{_TOPIC}/messages:cancel-by-id", "cancelMessagesById", "Cancel several messages", send,
        by_id.cancel_messages_by_id, query=messages.OwnerQuery, body=list[by_id.CancelById],
        answer=sending.SentBatch, partly=True,
    )  # fmt: skip
    yield ApiOperation(
        "POST", f"{BASE}/transactions", "transact", "Make several changes or none", send, transactions.transact,
        query=transactions.TransactionQuery, body=transactions.NewTransaction, answer=transactions.TransactionDone,
        headers=_KEY,
    )  # fmt: skip
    yield ApiOperation(
        "POST", f"{BASE}/fan-out", "fanOut", "Send one message to several topics", send, transactions.fan_out,
        query=transactions.TransactionQuery, body=transactions.NewFanOut, answer=transactions.FanOutDone, status=201,
        headers=_KEY, partly=True,
    )  # fmt: skip
    yield ApiOperation(
        "POST", f"{_TOPIC}/requests", "sendRequest", "Send a message and wait for the reply", send,
        requests.send_request, query=requests.RequestQuery, body=requests.NewRequest, answer=requests.ReplyValue,
        headers=_KEY,
    )  # fmt: skip
    yield ApiOperation(
        "POST", f"{_TOPIC}/requests/{{id}}/reply", "takeReply", "Wait for a reply", send, requests.take_reply,
        query=requests.RequestQuery, body=requests.ReplyWait, answer=requests.ReplyValue,
    )  # fmt: skip


def _of_leases() -> Iterator[ApiOperation]:
    right = ApiRight.CONSUME
    yield ApiOperation(
        "POST", f"{_TOPIC}/leases", "takeLeases", "Lease due messages, with a long poll", right,
        receiving.take_leases, body=receiving.LeaseRequestValue, answer=receiving.LeaseList,
    )  # fmt: skip
    yield ApiOperation(
        "DELETE", _LEASE, "deleteLease", "Delete a leased message", right, receiving.delete_lease, status=204
    )
    yield ApiOperation(
        "POST", f"{_LEASE}/extend", "extendLease", "Extend a lease", right, receiving.extend_lease,
        body=receiving.ExtendValue, answer=receiving.LeaseValue,
    )  # fmt: skip
    yield ApiOperation(
        "POST", f"{_LEASE}/release", "releaseLease", "Give a leased message back", right, receiving.release_lease,
        body=receiving.ReleaseValue, status=204,
    )  # fmt: skip
    yield ApiOperation(
        "POST", f"{_LEASE}/reject", "rejectLease", "Make a leased message a dead letter", right,
        receiving.reject_lease, body=receiving.RejectValue, status=204,
    )  # fmt: skip
    yield ApiOperation(
        "POST", f"{_LEASE}/reply", "replyLease", "Delete a leased message and answer its producer", right,
        receiving.reply_lease, body=receiving.ReplyToSend, status=204,
    )  # fmt: skip
    yield ApiOperation(
        "POST", f"{_LEASE}/progress", "reportProgress", "Report the progress of the work", right,
        receiving.report_progress, body=receiving.ProgressValue, status=204,
    )  # fmt: skip


def _of_dead_letters() -> Iterator[ApiOperation]:
    yield ApiOperation(
        "GET", f"{_TOPIC}/dead-letters", "listDeadLetters", "List dead letters", ApiRight.READ,
        dead_letters.list_dead_letters, query=dead_letters.DeadLetterQuery, answer=MessageList,
    )  # fmt: skip
    yield ApiOperation(
        "POST", f"{_TOPIC}/dead-letters:redrive", "redriveDeadLetters", "Send dead letters back", ApiRight.SEND,
        dead_letters.redrive, body=dead_letters.RedriveChoice, answer=BulkOutcome,
    )  # fmt: skip
    yield ApiOperation(
        "POST", f"{_TOPIC}/dead-letters:purge", "purgeDeadLetters", "Remove dead letters", ApiRight.ADMIN,
        dead_letters.purge, body=dead_letters.DeadLetterChoice, answer=BulkOutcome,
    )  # fmt: skip


def _of_schedules() -> Iterator[ApiOperation]:
    read, send = ApiRight.READ, ApiRight.SEND
    info = ScheduleInfo
    yield ApiOperation(
        "GET", f"{_TOPIC}/schedules", "listSchedules", "List schedules", read, schedules.list_schedules,
        answer=schedules.ScheduleList,
    )  # fmt: skip
    yield ApiOperation(
        "POST", f"{_TOPIC}/schedules:preview", "previewSchedule", "Compute the times of a new schedule", read,
        schedules.preview_times, query=schedules.TimesQuery, body=schedules.ScheduleValue,
        answer=schedules.ScheduleTimes,
    )  # fmt: skip
    yield ApiOperation("GET", _SCHEDULE, "getSchedule", "Read a schedule", read, schedules.get_schedule, answer=info)
    yield ApiOperation(
        "PUT", _SCHEDULE, "putSchedule", "Add or change a schedule", send, schedules.put_schedule,
        body=schedules.ScheduleValue, answer=info,
    )  # fmt: skip
    yield ApiOperation(
        "DELETE", _SCHEDULE, "removeSchedule", "Remove a schedule", send, schedules.remove_schedule, status=204
    )
    yield ApiOperation(
        "GET", f"{_SCHEDULE}/next", "nextTimes", "Compute the next times of a schedule", read, schedules.next_times,
        query=schedules.TimesQuery, answer=schedules.ScheduleTimes,
    )  # fmt: skip
    yield ApiOperation(
        "POST", f"{_SCHEDULE}/pause", "pauseSchedule", "Pause a schedule", send, schedules.pause_schedule, answer=info
    )
    yield ApiOperation(
        "POST", f"{_SCHEDULE}/resume", "resumeSchedule", "Resume a schedule", send, schedules.resume_schedule,
        answer=info,
    )  # fmt: skip
    yield ApiOperation(
        "POST", f"{_SCHEDULE}/run", "runSchedule", "Run a schedule now", send, schedules.run_schedule,
        answer=schedules.RunValue,
    )  # fmt: skip


def _of_logs() -> Iterator[ApiOperation]:
    log, group = f"{_TOPIC}/log", f"{_TOPIC}/log/groups/{{group}}"
    yield ApiOperation(
        "GET", log, "describeLog", "Describe a log and its groups", ApiRight.READ, logs.describe_log,
        answer=logs.LogDescription,
    )  # fmt: skip
    yield ApiOperation(
        "GET", f"{log}/messages", "readLog", "Read messages of a log", ApiRight.READ, logs.read_log,
        query=logs.LogReadQuery, answer=logs.LogMessageList,
    )  # fmt: skip
    yield ApiOperation(
        "POST", f"{log}/messages", "appendToLog", "Append a message to a log", ApiRight.SEND, logs.append_message,
        body=logs.NewLogMessage, answer=logs.LogPlace, status=201,
    )  # fmt: skip
    yield ApiOperation(
        "POST", f"{log}/batches", "appendBatch", "Append several messages to a log", ApiRight.SEND, logs.append_batch,
        body=list[logs.NewLogMessage], answer=logs.LogBatchPlaces, status=201, headers=_BATCH_KEY,
    )  # fmt: skip
    yield ApiOperation(
        "POST", f"{log}/batches:rollback", "rollbackBatch", "Take out a batch", ApiRight.SEND,
        log_control.rollback_batch, body=log_control.BatchName, status=204,
    )  # fmt: skip
    yield ApiOperation(
        "GET", f"{log}/offsets", "offsetsForTime", "Find the offsets of a time", ApiRight.READ,
        log_control.offsets_for_time, query=log_control.OffsetsQuery, answer=log_control.OffsetsOfTime,
    )  # fmt: skip
    yield ApiOperation(
        "GET", f"{log}/prepared", "listPrepared", "List prepared transactions", ApiRight.READ,
        log_control.list_prepared, answer=log_control.PreparedList,
    )  # fmt: skip
    yield ApiOperation(
        "POST", f"{log}/prepared/{{name}}", "resolvePrepared", "Commit or abort a prepared transaction",
        ApiRight.SEND, log_control.resolve_prepared, body=log_control.Resolution, status=204,
    )  # fmt: skip
    yield ApiOperation(
        "POST", f"{group}/reset", "resetGroup", "Set the offsets of a group", ApiRight.ADMIN, logs.reset_group,
        body=logs.LogReset, answer=logs.LogOffsets,
    )  # fmt: skip
    yield ApiOperation("DELETE", group, "removeGroup", "Forget a group", ApiRight.ADMIN, logs.remove_group, status=204)


def _of_access() -> Iterator[ApiOperation]:
    read, admin = ApiRight.READ, ApiRight.ADMIN
    yield ApiOperation("GET", f"{BASE}/me", "readMe", "Describe the caller", read, access.read_me, answer=Caller)
    yield ApiOperation(
        "GET", f"{BASE}/sessions", "listSessions", "List sessions", read, access.list_sessions,
        answer=access.SessionList,
    )  # fmt: skip
    yield ApiOperation(
        "DELETE", f"{BASE}/sessions/{{session}}", "endSession", "End a session", admin, access.end_session, status=204
    )
    yield ApiOperation(
        "GET", f"{BASE}/keys", "listKeys", "List API keys", read, access.list_keys, answer=access.KeyList
    )
    yield ApiOperation(
        "POST", f"{BASE}/keys", "createKey", "Make an API key", admin, access.create_key,
        body=access.NewKey, answer=access.KeyMade, status=201,
    )  # fmt: skip
    yield ApiOperation(
        "DELETE", f"{BASE}/keys/{{key}}", "revokeKey", "Revoke an API key", admin, access.revoke_key, status=204
    )
    yield ApiOperation(
        "GET", f"{BASE}/rights", "listRules", "List rules and quotas", read, access.list_rules, answer=access.RuleList
    )
    yield ApiOperation(
        "POST", f"{BASE}/rights", "addRule", "Allow or deny something", admin, access.add_rule,
        body=access.NewRule, answer=RightsRule, status=201,
    )  # fmt: skip
    yield ApiOperation(
        "POST", f"{BASE}/rights:quota", "setQuota", "Limit a principal", admin, access.set_quota,
        body=access.NewQuota, answer=RightsQuota,
    )  # fmt: skip
    yield ApiOperation(
        "GET", f"{BASE}/rights:check", "checkRight", "Explain a right", read, access.check_right,
        query=access.CheckQuery, answer=RightsDecision,
    )  # fmt: skip
    yield ApiOperation(
        "DELETE", f"{BASE}/rights/{{rule}}", "removeRule", "Remove a rule", admin, access.remove_rule, status=204
    )


def _of_cluster() -> Iterator[ApiOperation]:
    read = ApiRight.READ
    yield ApiOperation(
        "GET", f"{BASE}/info", "readInfo", "Describe the cluster", read, cluster.read_info, answer=ClusterInfo
    )
    yield ApiOperation(
        "GET", f"{BASE}/lateness", "readLateness", "Lateness and rates over time", read, cluster.read_lateness,
        query=cluster.LatenessQuery, answer=cluster.LatenessValue,
    )  # fmt: skip
    yield ApiOperation(
        "GET", f"{BASE}/time", "readTime", "Read the broker's clock", read, cluster.read_time, answer=cluster.TimeValue
    )
