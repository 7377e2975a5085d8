"""The other brokers of the cluster, as the rosters see them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from dejaq.broker.assignment.assignment import Seat
from dejaq.domain.batch import RowRange
from dejaq.domain.message import Message
from dejaq.domain.topic import Topic


@dataclass(frozen=True, slots=True)
class ReleasedRows:
    """Rows that a consumer has released, and the ends that their lease may have; None stands for every end."""

    rows: Sequence[int] = ()
    ends: Sequence[int | None] = ()


@dataclass(frozen=True, slots=True)
class RemoteConsumer:
    """A consumer that is connected to another broker."""

    broker: str
    seat: Seat


class Peers(Protocol):
    """The other brokers of the cluster, as far as the rosters need them."""

    def seats(self, topic: Topic) -> Mapping[str, RemoteConsumer]:
        """The subscribed consumers at other brokers, by name."""

    def seat(self, topic: Topic, name: str) -> RemoteConsumer | None:
        """The subscribed consumer of this name at another broker; None where there is none."""

    def entered(self, topic: Topic, name: str) -> asyncio.Task[None] | None:
        """A consumer has connected; returns the task that ends the one of that name elsewhere, if there is one."""

    def changed(self, topic: Topic, names: Iterable[str]) -> None:
        """These consumers of this broker have changed."""

    def notify(self, broker: str, topic: Topic, ts: int, buckets: Iterable[int]) -> None:
        """Notify that broker's consumers of a new message at `ts`; no buckets means all."""

    async def request_recall(
        self, broker: str, topic: Topic, name: str, lease_id: int, rows: Sequence[int]
    ) -> ReleasedRows:
        """Ask a consumer of that broker to release rows that are not yet due; returns the rows it released."""

    async def progress(self, broker: str, topic: Topic, messages: Sequence[Message]) -> list[str]:
        """The last progress report of each message whose consumer is at that broker; empty where there is none."""

    def settled(self, topic: Topic, name: str, lease_id: int, rows: Sequence[RowRange] | None) -> None:
        """A transaction of this broker has settled rows, all when `rows` is None, of a consumer at another broker."""


class NoPeers:
    """The peers of a broker that is alone."""

    def seats(self, topic: Topic) -> Mapping[str, RemoteConsumer]:
        """None."""
        return {}

    def seat(self, topic: Topic, name: str) -> RemoteConsumer | None:
        """None."""
        return None

    def entered(self, topic: Topic, name: str) -> asyncio.Task[None] | None:
        """None: no other broker has a consumer."""
        return None

    def changed(self, topic: Topic, names: Iterable[str]) -> None:
        """Do nothing."""

    def notify(self, broker: str, topic: Topic, ts: int, buckets: Iterable[int]) -> None:
        """Do nothing."""

    async def request_recall(
        self, broker: str, topic: Topic, name: str, lease_id: int, rows: Sequence[int]
    ) -> ReleasedRows:
        """None."""
        return ReleasedRows()

    async def progress(self, broker: str, topic: Topic, messages: Sequence[Message]) -> list[str]:
        """No other broker has reports."""
        return [""] * len(messages)

    def settled(self, topic: Topic, name: str, lease_id: int, rows: Sequence[RowRange] | None) -> None:
        """Do nothing."""
