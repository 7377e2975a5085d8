"""What a page can look at: the cluster, a topic, what is due next, a part of a timeline, and lateness."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from dejaq import limits
from dejaq.sdk.client import Client
from dejaq.web.api.times import iso_of
from dejaq.web.api.values import message_value
from dejaq.web.metrics.history import MetricsHistory

DUE_MS = 60_000
DUE_MESSAGES = 100
STEPS_MAX = 2_000
_Ms = Annotated[int, Meta(ge=0, le=limits.TS_MS_MAX)]
_Topic = Annotated[str, Meta(min_length=1, max_length=200)]


class OverviewView(msgspec.Struct, frozen=True, tag="overview", tag_field="kind"):
    """Brokers, topics with exact counts, and clients."""

    async def read(self, client: Client, history: MetricsHistory) -> object:
        """The cluster now, with the rates of its topics."""
        info = await client.info()
        return {
            "cluster": info.cluster,
            "brokers": info.brokers,
            "topics": info.topics,
            "clients": info.clients,
            "rates": history.rates({topic.name for topic in info.topics}),
        }


class DueView(msgspec.Struct, frozen=True, tag="due", tag_field="kind"):
    """What is due within a minute, by the broker's clock."""

    topic: _Topic

    async def read(self, client: Client, history: MetricsHistory) -> object:
        """The first messages of the next minute, and how many there are in each second."""
        now = client.now_ms()
        end = min(now + DUE_MS, limits.TS_MS_MAX)
        page = await client.browse_page(self.topic, start=now, end=end, page_size=DUE_MESSAGES)
        steps = await client.histogram(self.topic, start=now, end=end, step=1.0)
        messages = [message_value(message, now) for message in page.messages]
        for message in messages:
            message.body = message.body_base64 = None
        return {
            "messages": messages,
            "starts": [at for at, _ in steps],
            "counts": [count for _, count in steps],
            "until": iso_of(end),
        }


class TimelineView(msgspec.Struct, frozen=True, tag="timeline", tag_field="kind"):
    """How many messages there are in each step of a stretch of time, and how many of them consumers hold."""

    topic: _Topic
    start: _Ms
    end: _Ms
    step_ms: _Ms

    async def read(self, client: Client, history: MetricsHistory) -> object:
        """The counts now. Waiting and available messages are distinguished by the clock, not by a third query."""
        step = max(1, self.step_ms, -(-(self.end - self.start) // STEPS_MAX)) / 1_000
        if self.end <= self.start:
            return {"starts": [], "counts": [], "held_starts": [], "held_counts": []}
        every = await client.histogram(self.topic, start=self.start, end=self.end, step=step)
        held = await self._held(client, step)
        return {
            "starts": [at for at, _ in every],
            "counts": [count for _, count in every],
            "held_starts": [at for at, _ in held],
            "held_counts": [count for _, count in held],
        }

    async def _held(self, client: Client, step: float) -> list[tuple[int, int]]:
        """The leased messages, which count at the end of their lease; so a stretch far ahead has none."""
        now = client.now_ms()
        if self.end <= now or self.start > now + limits.LEASE_MS_MAX:
            return []
        return await client.histogram(self.topic, start=self.start, end=self.end, step=step, status="processing")


class TopicView(msgspec.Struct, frozen=True, tag="topic", tag_field="kind"):
    """One topic: how many messages it has, and what happens to them per second."""

    topic: _Topic

    async def read(self, client: Client, history: MetricsHistory) -> object:
        """The counts and the rates now."""
        topic = await client.describe_topic(self.topic)
        counts = ("available", "waiting", "processing", "consumers", "producers")
        return {name: getattr(topic, name) for name in counts} | {"rates": history.rates([topic.name]).get(topic.name)}


class LatenessView(msgspec.Struct, frozen=True, tag="lateness", tag_field="kind"):
    """How late messages of one topic, or of all, were pushed."""

    topic: Annotated[str, Meta(max_length=200)] = ""
    fine: bool = False

    async def read(self, client: Client, history: MetricsHistory) -> object:
        """The history of the topics that the caller sees."""
        return await lateness_of(client, history, self.topic, fine=self.fine)


async def lateness_of(client: Client, history: MetricsHistory, topic: str, *, fine: bool) -> dict[str, Any]:
    """The lateness over time, for a page and for the API."""
    found = [await client.describe_topic(topic)] if topic else await client.topics()
    names = {one.name for one in found}
    return {
        "lateness": history.lateness(names, fine=fine),
        "rates": history.rates(names),
        "began_ms": history.began_ms,
        "problem": history.problem,
    }


View = OverviewView | TopicView | DueView | TimelineView | LatenessView


class LiveSubscription(msgspec.Struct):
    """What a page asks for: all its views, each time."""

    views: Annotated[list[View], Meta(max_length=32)]
