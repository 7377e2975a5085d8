"""What parts of the broker report to each other, as typed listeners that `connect` gives to them."""

from __future__ import annotations

from math import inf
from typing import Protocol

from dejaq.domain.topic import Topic
from dejaq.errors import DejaqError


class ClusterState(Protocol):
    """What the doctor reads from the cluster."""

    def serving_until(self) -> float:
        """Until when this broker may serve, by the monotonic clock."""

    def cut_off_reason(self) -> str | None:
        """Why the membership cannot be renewed, for people; None while it can."""

    def clock_change_ms_max(self) -> float:
        """How far the clock may move before it must be compared with the clocks of the other brokers."""


class HealthListener(Protocol):
    """Acts on changes of the broker's health."""

    def cut_off(self, error: DejaqError) -> None:
        """Nothing can be served, but the storage works."""

    def storage_failed(self, error: DejaqError) -> None:
        """The storage has failed."""

    async def storage_recovered(self) -> None:
        """The storage works again."""

    def clock_jumped(self) -> None:
        """The clock has jumped."""

    async def readiness_changed(self) -> None:
        """Clients should come to this broker, or no longer."""


class TopicListener(Protocol):
    """Acts on changes of topics."""

    async def topic_closing(self, topic: Topic, error: DejaqError) -> None:
        """A topic is about to be dropped: end what works on it at every broker, and wait for the end."""

    async def topic_dropped(self, topic: Topic) -> None:
        """A topic and its messages are removed from the storage."""

    async def topic_changed(self, topic: Topic) -> None:
        """A topic has other settings or is being deleted: end what works on it at this broker, and wait for the end."""


class SingleBroker:
    """The state of a cluster with one broker."""

    def serving_until(self) -> float:
        """Forever."""
        return inf

    def cut_off_reason(self) -> str | None:
        """None."""
        return None

    def clock_change_ms_max(self) -> float:
        """No limit: there is no clock to compare with."""
        return inf


class NoListener:
    """Listens to every event and does nothing."""

    def cut_off(self, error: DejaqError) -> None:
        """Do nothing."""

    def storage_failed(self, error: DejaqError) -> None:
        """Do nothing."""

    async def storage_recovered(self) -> None:
        """Do nothing."""

    def clock_jumped(self) -> None:
        """Do nothing."""

    async def readiness_changed(self) -> None:
        """Do nothing."""

    async def topic_closing(self, topic: Topic, error: DejaqError) -> None:
        """Do nothing."""

    async def topic_dropped(self, topic: Topic) -> None:
        """Do nothing."""

    async def topic_changed(self, topic: Topic) -> None:
        """Do nothing."""
