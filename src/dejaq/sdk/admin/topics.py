"""The calls of a client that create and change topics."""

from __future__ import annotations

import asyncio
from typing import Any

from dejaq.domain.durations import FORMS
from dejaq.errors import Code, DejaqError, error_of
from dejaq.protocol.v1 import overseer_pb2 as overseer
from dejaq.sdk.admin.cluster import TopicInfo
from dejaq.sdk.session.backoff import RetryDelays
from dejaq.sdk.session.seeds import Seeds
from dejaq.sdk.session.settings import ClientSettings
from dejaq.sdk.times import Duration, duration_ms

# How long a setting lasts, by the name that users say: the name that a topic has it under, in milliseconds.
DURATIONS = {"max_future": "max_future_ms", "max_lease": "max_lease_ms", "dedup": "dedup_ms"}
DURATIONS |= {"keep": "keep_ms", "rollback_window": "rollback_window_ms"}


def settings_message(**chosen: Any) -> overseer.TopicSettings:
    """The settings that are not None, in the form of the protocol; raises INVALID_SETTING when one cannot be sent."""
    if (policy := chosen.get("expiry_backoff")) is not None:
        chosen["expiry_backoff"] = str(policy)
    for name, stored in DURATIONS.items():
        if chosen.get(stored) is not None:
            raise error_of(Code.INVALID_SETTING, f"give {name}, such as {name}='24h', in place of {stored}")
        length = chosen.pop(name, None)
        chosen[stored] = None if length is None else _length_ms(name, length)
    try:
        return overseer.TopicSettings(**chosen)
    except (ValueError, TypeError) as error:
        raise error_of(Code.INVALID_SETTING, str(error)) from None


def _length_ms(name: str, length: Duration) -> int:
    ms = duration_ms(length)
    if ms is None:
        raise error_of(Code.INVALID_SETTING, f"{name}={length!r} is not a length of time; {FORMS}, or give a timedelta")
    return ms


async def create_topic(seeds: Seeds, settings: ClientSettings, name: str, chosen: overseer.TopicSettings) -> TopicInfo:
    """Create a topic; wait while a deleted topic of the same name is being removed."""
    until = asyncio.get_running_loop().time() + settings.deadline
    backoff = RetryDelays(seeds.random, deadline=settings.deadline)
    request = overseer.CreateTopicRequest(name=name, settings=chosen)
    while True:
        try:
            answer = await seeds.call("Overseer.CreateTopic", request, overseer.TopicResponse, patience=settings)
            return TopicInfo.from_proto(answer.topic, created=answer.created)
        except DejaqError as error:
            wait = backoff.seconds()
            if error.code is not Code.TOPIC_DELETING or asyncio.get_running_loop().time() + wait > until:
                raise
            await asyncio.sleep(wait)
