"""Topics: list, create, change, describe, delete."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from dejaq import limits
from dejaq.errors import Code, error_of
from dejaq.sdk.admin.cluster import TopicInfo
from dejaq.web.api.operation import ApiAnswer, ApiCall

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

    def arguments(self) -> dict[str, object]:
        """The settings that are given, as `Client.create_topic` takes them: durations in seconds."""
        given: dict[str, object] = {}
        for name in self.__struct_fields__:
            value = getattr(self, name)
            if value is None:
                continue
            if name in ("max_future_ms", "max_lease_ms", "dedup_ms"):
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


async def list_topics(call: ApiCall) -> ApiAnswer:
    """Every topic with its settings and exact counts."""
    return ApiAnswer(TopicList(await call.client.topics()))


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
