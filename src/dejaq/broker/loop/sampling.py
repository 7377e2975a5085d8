"""Figures of topics and messages for the metrics."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from dejaq.broker.metrics import Labels
from dejaq.domain.message import Status
from dejaq.domain.topic import Topic, TopicStage
from dejaq.storage.base import Filter, Storage


async def count_by_status(storage: Storage, topic: Topic, now: int) -> dict[Labels, float]:
    """The messages of a topic by status. Waiting messages are the rest: counting them one by one would delay others."""
    total = await storage.count(topic, Filter(), now)
    available = await storage.count(topic, Filter(status=Status.AVAILABLE), now)
    processing = await storage.count(topic, Filter(status=Status.PROCESSING), now)
    counts = {
        Status.AVAILABLE: available,
        Status.PROCESSING: processing,
        Status.WAITING: max(0, total - available - processing),
    }
    return {(topic.name, status.value): count for status, count in counts.items()}


def topic_states(topics: Iterable[Topic]) -> dict[Labels, float]:
    """The number of topics in each state."""
    states = Counter(topic.state for topic in topics)
    return {(state.value,): states[state] for state in TopicStage}
