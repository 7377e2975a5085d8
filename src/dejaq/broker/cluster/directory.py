"""The consumers at other brokers: the rosters find them here, and reach them through calls to their brokers."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping, Sequence

from dejaq.broker.cluster.clients import Clients
from dejaq.broker.cluster.connections import PeerConnections
from dejaq.broker.cluster.membership import Membership
from dejaq.broker.delivery.leaser import NOTICE_MS_MAX
from dejaq.broker.delivery.peers import ReleasedRows, RemoteConsumer
from dejaq.domain.batch import RowRange
from dejaq.domain.message import Message
from dejaq.domain.topic import Topic
from dejaq.errors import DejaqError
from dejaq.protocol.v1 import peer_pb2 as peer
from dejaq.timekeeper.clock import Clock

log = logging.getLogger(__name__)

ASK_SECONDS = 1.0


class BrokerDirectory:
    """Implements the `Peers` of the rosters."""

    def __init__(self, *, clients: Clients, membership: Membership, connections: PeerConnections, clock: Clock) -> None:
        self._clients = clients
        self._membership = membership
        self._connections = connections
        self._clock = clock

    def seats(self, topic: Topic) -> Mapping[str, RemoteConsumer]:
        """The subscribed consumers at other brokers, by name."""
        return self._clients.seats(topic)

    def seat(self, topic: Topic, name: str) -> RemoteConsumer | None:
        """The subscribed consumer of this name at another broker; None where there is none."""
        return self._clients.seat(topic, name)

    def entered(self, topic: Topic, name: str) -> asyncio.Task[None] | None:
        """A consumer has connected here; returns the task that ends the one of that name elsewhere, if there is one."""
        return self._clients.entered(topic, name, self._membership.members)

    def changed(self, topic: Topic, names: Iterable[str]) -> None:
        """These consumers that are connected here have changed."""
        self._clients.changed(topic, names)

    def notify(self, broker: str, topic: Topic, ts: int, buckets: Iterable[int]) -> None:
        """Notify another broker of messages that are due soon."""
        if ts <= self._clock.now_ms() + NOTICE_MS_MAX:
            self._connections.notify(broker, topic.number, ts, buckets)

    async def request_recall(
        self, broker: str, topic: Topic, name: str, lease_id: int, rows: Sequence[int]
    ) -> ReleasedRows:
        """Ask a consumer at another broker to release rows that are not yet due; none when that broker is silent."""
        request = peer.AskBackRequest(topic=topic.number, consumer=name, lease=lease_id, rows=rows)
        try:
            answer = await self._connections.call(broker, "Peer.AskBack", request, peer.AskBackResponse, ASK_SECONDS)
        except DejaqError as error:
            log.info("a message at broker %s was not recalled: %s", broker, error)
            return ReleasedRows()
        # A broker of release 0.2 or older does not say the ends.
        return ReleasedRows(list(answer.rows), list(answer.ends) or (None,))

    async def progress(self, broker: str, topic: Topic, messages: Sequence[Message]) -> list[str]:
        """The progress reports of messages at another broker; empty when that broker does not answer."""
        ids, leases = [message.id for message in messages], [message.version for message in messages]
        request = peer.ProgressRequest(topic=topic.number, ids=ids, leases=leases)
        try:
            answer = await self._connections.call(broker, "Peer.Progress", request, peer.ProgressResponse, ASK_SECONDS)
        except DejaqError as error:
            log.info("broker %s did not answer with progress reports: %s", broker, error)
            return [""] * len(messages)
        return list(answer.texts)

    def settled(self, topic: Topic, name: str, lease_id: int, rows: Sequence[RowRange] | None) -> None:
        """Report settled rows to the broker of the consumer, or to every other broker where that one is not known."""
        place = self._clients.place_of(topic.number, name)
        flat = [bound for one in rows or () for bound in one]
        settled = peer.SettledRows(topic=topic.number, consumer=name, lease=lease_id, ranges=flat)
        for broker in self._connections if place is None else (place.broker,):
            self._connections.settled(broker, settled)
