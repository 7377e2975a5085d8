"""This broker in its cluster: starts and stops what connects it to the other brokers, and looks after it.

What brokers know of each other only makes the cluster fast and fair. Whatever two brokers believe about each other, the
storage accepts one of two conflicting changes and refuses the other.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from math import inf
from typing import TYPE_CHECKING, cast

from dejaq.broker.background import Background
from dejaq.broker.catalog import Catalog
from dejaq.broker.cluster import seats as seats_
from dejaq.broker.cluster import steward as topics_
from dejaq.broker.cluster.clients import Clients
from dejaq.broker.cluster.clock_comparison import ClockComparison
from dejaq.broker.cluster.connections import Connect, PeerConnections
from dejaq.broker.cluster.directory import BrokerDirectory
from dejaq.broker.cluster.member import Member
from dejaq.broker.cluster.membership import Membership
from dejaq.broker.cluster.offsets import Offsets
from dejaq.broker.cluster.placement import Placement
from dejaq.broker.cluster.spreading import MovableSession
from dejaq.broker.cluster.steward import Steward
from dejaq.broker.delivery.roster import Rosters
from dejaq.broker.doctor import Doctor
from dejaq.broker.events import NoListener, TopicListener
from dejaq.broker.shards.shards import MAP, ShardWatch
from dejaq.config import BrokerConfig
from dejaq.domain.topic import Topic
from dejaq.errors import DejaqError
from dejaq.protocol.channel import GrpcTransport
from dejaq.protocol.v1 import peer_pb2 as peer
from dejaq.storage.base import Storage, innermost
from dejaq.storage.sharded.placement import Spread
from dejaq.synchronization.base import RecordChange, Synchronization
from dejaq.synchronization.keys import MEMBERS
from dejaq.timekeeper.clock import Clock

if TYPE_CHECKING:
    from dejaq.storage.sharded.store import ShardedStorage

log = logging.getLogger(__name__)

ROUND_SECONDS = 1.0
LEARN_SECONDS = 2.0
RETRY_SECONDS = 0.2


class Cluster:
    """The parts that connect one broker to the others, and the tasks that keep them up to date."""

    def __init__(
        self,
        *,
        config: BrokerConfig,
        synchronization: Synchronization,
        storage: Storage,
        clock: Clock,
        doctor: Doctor,
        rosters: Rosters,
        catalog: Catalog,
        background: Background,
        sessions: Callable[[], Sequence[MovableSession]],
        connect: Connect = GrpcTransport,
    ) -> None:
        self.own = config.name
        self.synchronization = synchronization
        self.connections = PeerConnections(background=background, connect=connect)
        self.offsets = Offsets()
        self.membership = Membership(
            config=config,
            synchronization=synchronization,
            storage=storage,
            clock=clock,
            doctor=doctor,
            offsets=self.offsets,
            session_count=lambda: len(sessions()),
        )
        self.clocks = ClockComparison(
            membership=self.membership,
            connections=self.connections,
            offsets=self.offsets,
            doctor=doctor,
            clock=clock,
            offset_ms_max=config.offset_ms_max,
        )
        self.clients = self._make_clients(rosters, clock, background)
        self.directory = BrokerDirectory(
            clients=self.clients, membership=self.membership, connections=self.connections, clock=clock
        )
        self.placement = Placement(
            membership=self.membership,
            clients=self.clients,
            catalog=catalog,
            rosters=rosters,
            clock=clock,
            background=background,
            sessions=sessions,
        )
        self.steward = Steward(
            broker=self.own,
            synchronization=synchronization,
            catalog=catalog,
            clock=clock,
            shared=storage.capabilities.shared,
            teach=self._teach,
        )
        # How many rounds of looking after the cluster this broker has completed.
        self.rounds = 0
        self._offset_ms_max = config.offset_ms_max
        self._clock = clock
        self._doctor = doctor
        self._catalog = catalog
        self._background = background
        self._listener: TopicListener = NoListener()
        self._shards = _shard_watch(self.own, storage, synchronization)
        self._tasks: list[asyncio.Task[None]] = []
        self._rescue: asyncio.Task[None] | None = None
        self._round_soon = asyncio.Event()

    def _make_clients(self, rosters: Rosters, clock: Clock, background: Background) -> Clients:
        return Clients(
            own=self.own,
            synchronization=self.synchronization,
            rosters=rosters,
            clock=clock,
            background=background,
            connections=self.connections,
        )

    def connect(self, listener: TopicListener) -> None:
        """Report changes of topics to `listener`, which is constructed after the cluster."""
        self._listener = listener
        self.steward.connect(listener)

    @property
    def members(self) -> dict[str, Member]:
        """Every broker of the cluster, this one included, by id."""
        return self.membership.members

    # What the doctor reads

    def serving_until(self) -> float:
        """Until when this broker may serve, by the monotonic clock."""
        return self.synchronization.serving_until()

    def cut_off_reason(self) -> str | None:
        """Why the membership cannot be renewed; None while it can."""
        return self.synchronization.failure

    def clock_change_ms_max(self) -> float:
        """How far the clock may move before it must be compared with the other clocks."""
        return inf if self.membership.alone else self._offset_ms_max

    def compare_soon(self) -> None:
        """Compare the clocks now: the clock of this broker has jumped."""
        self._round_soon.set()

    # Start and stop

    async def start(self, *, address: str, grpc_address: str = "", peer_address: str = "") -> None:
        """Join; raises CLUSTER_REFUSED, or SYNCHRONIZATION_FAILED when the other brokers cannot be found."""
        await self.synchronization.open()
        await self.membership.join(address=address, grpc_address=grpc_address, peer_address=peer_address)
        if self._shards is not None:
            await self._shards.begin()
        await self.steward.begin()
        read = [asyncio.Event() for _ in range(4)]
        watches = (
            self._watch(MEMBERS, self._members_changed, read[0]),
            self._watch(seats_.PREFIX, self._clients_changed, read[1]),
            self._watch(seats_.OLD_PREFIX, self._clients_changed, read[2]),
            self._watch(topics_.PREFIX, self._topics_changed, read[3]),
        )
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(watch, name="watch of the cluster") for watch in watches]
        self._tasks.append(loop.create_task(self.clients.publish(), name="clients of the cluster"))
        if self._shards is not None:
            self._tasks.append(loop.create_task(self._follow_shards(self._shards), name="shards of the cluster"))
        self._tasks.append(loop.create_task(self._run_rounds(), name="member of the cluster"))
        for event in read:
            await event.wait()

    async def stop(self) -> None:
        """Leave; the other brokers see that at once."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
            self._tasks = []
        await self.connections.close()
        await self.synchronization.close()

    # Changed records

    async def _watch(self, prefix: str, on_change: Callable[[list[RecordChange]], None], read: asyncio.Event) -> None:
        while True:
            try:
                async for changes in self.synchronization.watch(prefix):
                    on_change(changes)
                    read.set()
            except Exception:
                log.exception("the watch of %s failed and begins again", prefix)
                await self._clock.sleep(1.0)

    def _members_changed(self, changes: list[RecordChange]) -> None:
        self.placement.members_published(self.membership.records_changed(changes))
        others = {
            broker: member.peer_address or member.grpc_address for broker, member in self.membership.others.items()
        }
        self.connections.set(others)
        self.offsets.keep(others)

    def _clients_changed(self, changes: list[RecordChange]) -> None:
        self.placement.clients_published(seats_.broker_of(change.key) for change in changes)
        self.clients.records_changed(changes)

    def _topics_changed(self, changes: list[RecordChange]) -> None:
        for topic in self.steward.records_changed(changes):
            self._background.spawn(self._listener.topic_changed(topic), name=f"leave topic {topic.name}")

    async def _follow_shards(self, shards: ShardWatch) -> None:
        while True:
            try:
                async for changes in self.synchronization.watch(MAP):
                    await shards.records_changed(changes)
            except Exception:
                log.exception("the watch of the shard map failed and begins again")
                await self._clock.sleep(RETRY_SECONDS)

    # Rounds

    async def _run_rounds(self) -> None:
        while True:
            self._doctor.report("newer", self._catalog.newer())
            for step in (self.clocks.compare, self.membership.publish_news, self.steward.finish):
                try:
                    await step()
                except DejaqError as error:
                    log.info("a step of looking after the cluster is tried again: %s", error)
                except Exception:
                    log.exception("a step of looking after the cluster is tried again")
            self._doctor.report("synchronization_full", self.synchronization.full)
            try:
                self._check_shards()
                if self._doctor.ready:
                    self.placement.spread()
            except Exception:
                log.exception("the check of shards and sessions failed and is tried again")
            self.rounds += 1
            await self._pause()

    def _check_shards(self) -> None:
        """Report the shards that do not work, and finish a move of buckets whose mover is gone."""
        if self._shards is None:
            return
        self._doctor.report("shards", self._shards.failures())
        if self._shards.left and (self._rescue is None or self._rescue.done()):
            self._rescue = self._background.spawn(self._shards.rescue(self._clock), name="rescue of buckets")

    async def _pause(self) -> None:
        self._round_soon.clear()
        sleep = asyncio.ensure_future(self._clock.sleep(ROUND_SECONDS))
        tasks = [sleep, asyncio.ensure_future(self._round_soon.wait())]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()

    def notify(self, topic: Topic, buckets: Iterable[int]) -> None:
        """Notify every other broker that buckets of a topic have got something; no buckets means all."""
        for broker in self.connections:
            self.connections.notify(broker, topic.number, 0, buckets)

    # Topics

    async def _teach(self, name: str) -> None:
        """Have every other broker read the record of a topic; a broker that does not answer reads it in its watch."""
        request = peer.LearnRequest(topic=name)
        await self.connections.gather(
            self.connections.call(broker, "Peer.Learn", request, peer.LearnResponse, LEARN_SECONDS)
            for broker in self.membership.others
        )

    async def evacuate_others(self, topic: Topic) -> None:
        """Wait until no session at another broker works on a topic; a broker that is gone has no session."""
        request = peer.LearnRequest(topic=topic.name)
        waiting = set(self.membership.others)
        while waiting := waiting & self.members.keys():
            for broker in list(waiting):
                try:
                    await self.connections.call(broker, "Peer.Learn", request, peer.LearnResponse, LEARN_SECONDS)
                    waiting.discard(broker)
                except DejaqError as error:
                    log.info("broker %s still has sessions on topic %s: %s", broker, topic.name, error)
                    await self._clock.sleep(RETRY_SECONDS)


def _shard_watch(broker: str, storage: Storage, synchronization: Synchronization) -> ShardWatch | None:
    storage = innermost(storage)
    if not isinstance(storage, Spread):
        return None
    return ShardWatch(broker=broker, storage=cast("ShardedStorage", storage), synchronization=synchronization)
