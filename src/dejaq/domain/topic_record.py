"""A topic as a record of a store or of the cluster: JSON, because there are few records and people may read them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from dejaq.domain.topic import CREATOR, KEYS, Topic, TopicSettings, TopicStage


def write_topic(topic: Topic) -> bytes:
    """The record of a topic."""
    record = {
        "name": topic.name,
        "number": topic.number,
        "state": str(topic.state),
        "created_ms": topic.created_ms,
        "settings": topic.settings_record(),
    }
    return json.dumps(record, sort_keys=True).encode()


def read_topic(value: bytes) -> Topic:
    """The topic that `write_topic` wrote."""
    return topic_of(json.loads(value))


def topic_of(record: Mapping[str, Any]) -> Topic:
    """The topic of a record's values."""
    stored = dict(record["settings"])
    creator = str(stored.pop(CREATOR, ""))
    keys = str(stored.pop(KEYS, ""))
    settings, newer = TopicSettings.from_record(stored)
    return Topic(
        name=record["name"],
        number=record["number"],
        settings=settings,
        state=TopicStage(record["state"]),
        created_ms=record["created_ms"],
        newer=newer,
        creator=creator,
        keys=keys,
    )
