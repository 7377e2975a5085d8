"""Topics: list, create, change, describe, delete."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from dejaq import limits
from dejaq.domain.message import Message
from dejaq.errors import Code, error_of
from dejaq.sdk.admin.cluster import TopicInfo
from dejaq.sdk.admin.topics import DURATIONS
from dejaq.web.api.operation import ApiAnswer, ApiCall
from dejaq.web.api.operations.logs import LogMessageValue, log_message_value
from dejaq.web.api.values import MessageValue, message_value

_Ms = Annotated[int, Meta(ge=0, le=limits.TS_MS_MAX)]
_Number = Annotated[int, Meta(ge=0, le=2**31 - 1)]


class TopicChange(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """Settings of a topic; one that is absent keeps its value, or gets its default when the topic is created."""

    buckets: _Number | None = None
    max_future_ms: _Ms | None = None
    max_lease_ms: _Ms | None = None
    max_body_bytes: _Ms | None = None
    durability: str | None = None
    kind: str | None = None
    max_attempts: _Number | None = None
    dead_letter: str | None = None
    expiry_backoff: str | None = None
    expires: bool | None = None
    journal: bool | None = None
    client_rate: _Number | None = None
    compression: str | None = None
    share_bodies: bool | None = None
    dedup_ms: _Ms | None = None
    max_dedup_ids: _Number | None = None
    encryption: str | None = None
    keep_ms: _Ms | None = None
    keep_bytes: _Ms | None = None
    rollback_window_ms: _Ms | None = None
    trim_read: bool | None = None
    compact: bool | None = None

    def arguments(self) -> dict[str, object]:
        """The settings that are given, as `Client.create_topic` takes them: durations in seconds."""
        given: dict[str, object] = {}
        for name in self.__struct_fields__:
            value = getattr(self, name)
            if value is None:
                continue
            if name in DURATIONS.values():
                given[name.removesuffix("_ms")] = value / 1_000
            else:
                given[name] = value
        return given


class NewTopic(TopicChange):
    """A topic to create."""

    name: str = ""


class TopicList(msgspec.Struct):
    """Every topic, by name, with exact counts."""

    topics: list[TopicInfo]


class RekeyValue(msgspec.Struct, forbid_unknown_fields=True):
    """With `new_key` the topic also gets another key for all new bodies."""

    new_key: bool = False


class ProtectingKey(msgspec.Struct):
    """The key of the brokers' key provider that protects the keys of the topic now."""

    key: str


class OverviewQuery(msgspec.Struct, forbid_unknown_fields=True):
    """A page of topics: those `after` a name, of the namespace `global`, `~` (own) or `~USER`."""

    after: str = ""
    count: Annotated[int, Meta(ge=1, le=100)] = 20
    namespace: str = ""
    messages: Annotated[int, Meta(ge=1, le=100)] = 10


class OverviewEntry(msgspec.Struct, omit_defaults=True):
    """A topic and its first messages: those due next, or in `log` the last ones of a log."""

    topic: TopicInfo
    messages: list[MessageValue] = msgspec.field(default_factory=list)
    log: list[LogMessageValue] = msgspec.field(default_factory=list)


class Overview(msgspec.Struct):
    """Some topics; `more` follow the last one, and `total` is the number of all of them."""

    topics: list[OverviewEntry]
    more: bool
    total: int


async def list_topics(call: ApiCall) -> ApiAnswer:
    """Every topic with its settings and exact counts."""
    return ApiAnswer(TopicList(await call.client.topics()))


async def all_topics(call: ApiCall) -> ApiAnswer:
    """A page of topics, each with its first messages: those due next, or the last ones of a log."""
    asked: OverviewQuery = call.query
    page = await call.client.all_topics(
        messages=asked.messages, after=asked.after, count=asked.count, namespace=asked.namespace
    )
    now_ms = call.client.now_ms()
    found: list[OverviewEntry] = []
    for entry in page.entries:
        values = OverviewEntry(entry.topic)
        for message in entry.messages:
            if isinstance(message, Message):
                values.messages.append(message_value(message, now_ms))
            else:
                values.log.append(log_message_value(message))
        found.append(values)
    return ApiAnswer(Overview(found, page.more, page.total))


async def copies(call: ApiCall) -> ApiAnswer:
    """The brokers that serve a topic, and the servers that have copies of its messages."""
    return ApiAnswer(await call.client.copies(call.topic))


async def create_topic(call: ApiCall) -> ApiAnswer:
    """Create a topic; a repeat with the same settings changes nothing and answers 200."""
    wanted = call.json(NewTopic)
    settings = wanted.arguments()
    name = str(settings.pop("name", ""))
    if not name:
        raise error_of(Code.INVALID_TOPIC, "give the name of the topic")
    topic = await call.client.create_topic(name, **settings)  # type: ignore[arg-type]
    return ApiAnswer(topic, status=201 if topic.created else 200, headers={"Location": f"/api/v1/topics/{topic.name}"})


async def describe_topic(call: ApiCall) -> ApiAnswer:
    """One topic with its settings and exact counts."""
    return ApiAnswer(await call.client.describe_topic(call.topic))


async def edit_topic(call: ApiCall) -> ApiAnswer:
    """Change settings of a topic while it is in use."""
    settings = call.json(TopicChange).arguments()
    return ApiAnswer(await call.client.edit_topic(call.topic, **settings))  # type: ignore[arg-type]


async def delete_topic(call: ApiCall) -> ApiAnswer:
    """Delete a topic with every message in it."""
    await call.client.delete_topic(call.topic)
    return ApiAnswer(status=204)


async def rekey_topic(call: ApiCall) -> ApiAnswer:
    """Protect the keys of an encrypted topic with the current key of the brokers' key provider."""
    return ApiAnswer(ProtectingKey(await call.client.rekey_topic(call.topic, new_key=call.json(RekeyValue).new_key)))
