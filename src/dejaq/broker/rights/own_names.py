"""Replaces `~/mail` by the caller's full name of the topic, in every field that names a topic."""

from __future__ import annotations

from typing import Any

from google.protobuf.message import Message

from dejaq.domain.naming.topic_name import is_short, resolved

# The fields of each request that name topics; a test compares them with the descriptors.
FIELDS: dict[str, tuple[str, ...]] = {
    "AwaitRequest": ("topic",),
    "BrowseRequest": ("topic",),
    "ChangeScheduleRequest": ("topic",),
    "CheckRightRequest": ("topic",),
    "ConsumerHandshake": ("topic",),
    "CountRequest": ("topic",),
    "CreateTopicRequest": ("name", "settings.dead_letter"),
    "DownloadRequest": ("topic",),
    "EditTopicRequest": ("name", "settings.dead_letter"),
    "GetRequest": ("topic",),
    "Hello": ("topic",),
    "HistogramRequest": ("topic",),
    "HistoryRequest": ("topic",),
    "ListRulesRequest": ("topic",),
    "ListSchedulesRequest": ("topic",),
    "LogCommand": ("append.topic", "open.topic"),
    "LogFetchRequest": ("topic",),
    "LogGroupsRequest": ("topic",),
    "LogOffsetsRequest": ("topic",),
    "LogRemoveGroupRequest": ("topic",),
    "LogResetRequest": ("topic",),
    "LogRollbackRequest": ("topic",),
    "LogPrepareRequest": ("topic",),
    "LogResolveRequest": ("topic",),
    "LogInDoubtRequest": ("topic",),
    "LogStep": ("topic",),
    "LogTimeRequest": ("topic",),
    "NextTimesRequest": ("topic",),
    "ProducerHandshake": ("topic",),
    "PurgeRequest": ("topic",),
    "PutRuleRequest": ("rule.topic",),
    "PutSchedulesRequest": ("topic",),
    "RedriveRequest": ("topic", "target"),
    "SnapshotRequest": ("topic",),
    "Step": ("topic",),
    "RekeyTopicRequest": ("name",),
    "TopicRequest": ("name",),
    "UploadHead": ("topic",),
}


def resolve(request: Message, user: str) -> None:
    """Write full names into a request; raises INVALID_TOPIC when the caller is no user."""
    kind = request.DESCRIPTOR.name
    if kind == "TransactRequest":
        for step in request.steps:
            resolve(step, user)
        return
    if kind == "LogPrepareRequest":
        for step in request.steps:
            resolve(step, user)
    for path in FIELDS.get(kind, ()):
        holder: Any = request
        *parents, name = path.split(".")
        for parent in parents:
            if not holder.HasField(parent):
                break
            holder = getattr(holder, parent)
        else:
            asked = getattr(holder, name)
            if is_short(asked):
                setattr(holder, name, resolved(asked, user))
