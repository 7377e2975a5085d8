"""Builds the parts of a broker, starts them in order, and stops them in the opposite one."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping
from math import inf
from random import SystemRandom

from dejaq.broker import metrics as told
from dejaq.broker.background import Background
from dejaq.broker.carrier.balancer import Balancer
from dejaq.broker.carrier.bodies import Bodies
from dejaq.broker.carrier.graves import Graves
from dejaq.broker.carrier.loader import Loader
from dejaq.broker.carrier.queries import Queries
from dejaq.broker.carrier.replies import Replies
from dejaq.broker.carrier.roster import Rosters
from dejaq.broker.carrier.session import Session
from dejaq.broker.carrier.snapshots import Snapshots
from dejaq.broker.carrier.throttles import Throttles
from dejaq.broker.carrier.transactions import Transactions
from dejaq.broker.cluster.cluster import Cluster
from dejaq.broker.cluster.service import PeerService
from dejaq.broker.cron.service import CronService
from dejaq.broker.cron.unit import CronUnit
from dejaq.broker.doctor import Doctor
from dejaq.broker.inprocess import InProcessTransport
from dejaq.broker.metrics import Labels, Metrics
from dejaq.broker.overseer.catalog import Catalog
from dejaq.broker.overseer.greeter import Greeter
from dejaq.broker.overseer.pinger import Pinger
from dejaq.broker.overseer.service import OverseerService
from dejaq.broker.parts import Parts
from dejaq.broker.recorder import Recorder
from dejaq.broker.server import Server
from dejaq.broker.services import Services, services_of
from dejaq.config import BrokerConfig
from dejaq.domain.message import Status
from dejaq.domain.topic import Topic, TopicState
from dejaq.errors import Code, DejaqError, error_of
from dejaq.storage.base import Filter, Storage
from dejaq.synchronization.base import Synchronization
from dejaq.synchronization.local import LocalSynchronization
from dejaq.timekeeper.clock import Clock

log = logging.getLogger(__name__)

SAMPLE_SECONDS = 5.0
# The most topics whose messages are counted for the metrics in one sample.
SAMPLE_TOPICS_MAX = 100
# The most priorities of a topic whose oldest message is told.
SAMPLE_PRIORITIES_MAX = 16
FINISH_SECONDS = 10.0


class Central:
    """One broker."""

    def __init__(
        self, *, config: BrokerConfig, storage: Storage, clock: Clock, synchronization: Synchronization | None = None
    ) -> None:
        config.check()
        self.config = config
        self.storage = storage
        self.clock = clock
        self.metrics = Metrics()
        self.background = Background()
        self.rosters = Rosters()
        self.pinger = Pinger()
        self.doctor = Doctor(
            storage=storage,
            clock=clock,
            memory_bytes_max=config.memory_bytes_max,
            drift_ms_max=config.drift_ms_max,
        )
        self.catalog = Catalog(storage=storage, clock=clock, background=self.background, topics_max=config.topics_max)
        self.recorder = Recorder(config=config, storage=storage, clock=clock, doctor=self.doctor, metrics=self.metrics)
        self.cluster = self._make_cluster(synchronization)
        self.graves = Graves(
            storage=storage,
            clock=clock,
            catalog=self.catalog,
            create_topic=self.cluster.steward.create,
            rosters=self.rosters,
            metrics=self.metrics,
        )
        self._parts = Parts(
            config=config,
            clock=clock,
            storage=storage,
            metrics=self.metrics,
            background=self.background,
            doctor=self.doctor,
            catalog=self.catalog,
            rosters=self.rosters,
            throttles=Throttles(clock),
            pinger=self.pinger,
            recorder=self.recorder,
            cluster=self.cluster,
            graves=self.graves,
        )
        self.greeter = Greeter(
            make_session=lambda number, peer: Session(number=number, peer=peer, parts=self._parts),
            sessions_max=config.sessions_max,
            connections_max=config.connections_max,
        )
        self.balancer = Balancer(clock=clock, rosters=self.rosters, background=self.background)
        self.loader = Loader(storage=storage, clock=clock, rosters=self.rosters, prefetch_ms_max=config.prefetch_ms_max)
        self._overseer = OverseerService(parts=self._parts, greeter=self.greeter)
        self._snapshots = Snapshots(
            storage=storage,
            clock=clock,
            find_topic=self.catalog.live,
            delivers=lambda: any(roster.dealt for roster in self.rosters),
        )
        self.services = self._make_services()
        self.server: Server | None = None
        # Where the metrics are, with the real port, while they are exposed.
        self.metrics_address: str | None = None
        self._close_metrics: Callable[[], None] | None = None
        self._loops: list[asyncio.Task[None]] = []
        self._transports: list[InProcessTransport] = []
        self._pending: dict[Labels, float] = {}
        self._oldest: dict[Labels, float] = {}
        self._connect()

    def _make_cluster(self, synchronization: Synchronization | None) -> Cluster:
        return Cluster(
            config=self.config,
            synchronization=synchronization if synchronization is not None else LocalSynchronization(),
            storage=self.storage,
            clock=self.clock,
            doctor=self.doctor,
            rosters=self.rosters,
            catalog=self.catalog,
            background=self.background,
            sessions=lambda: list(self.greeter),
            producers=lambda: self.greeter.producers(),
        )

    def _make_services(self) -> Services:
        transactions = Transactions(self._parts)
        # Names of transactions must not repeat between brokers that were started at once.
        chance = SystemRandom()
        self.cron = CronUnit(self._parts, transactions, chance)
        self.replies = Replies(self._parts)
        transactions.arrived = self.replies.arrived
        self.bodies = Bodies(self._parts)
        return services_of(
            overseer=self._overseer,
            peer=PeerService(
                rosters=self.rosters,
                steward=self.cluster.steward,
                describe=lambda: self._overseer.describe(counts=False),
                create_topic=self._overseer.create_topic_here,
            ),
            queries=Queries(storage=self.storage, clock=self.clock, find_topic=self.catalog.live),
            snapshots=self._snapshots,
            transactions=transactions,
            cron=CronService(self._parts, transactions, self.cron, chance),
            replies=self.replies,
            bodies=self.bodies,
            graves=self.graves,
            greeter=self.greeter,
            metrics=self.metrics,
        )

    def _storage_failed(self, error: DejaqError) -> None:
        """Snapshots and sessions belong to the store as it was opened; clients begin anew with the next."""
        self._snapshots.close_all()
        self.greeter.end_all(error)

    def _connect(self) -> None:
        self.rosters.outside = self.cluster
        self.catalog.evacuate = self._evacuate
        self.catalog.dropped = self.cluster.steward.dropped
        self.cluster.steward.evacuate = self._evacuate_here
        self.doctor.serving_until = self.cluster.synchronization.serving_until
        self.doctor.why_cut_off = lambda: self.cluster.synchronization.failure
        self.doctor.stray_ms_max = lambda: inf if self.cluster.alone else self.config.offset_ms_max
        self.doctor.on_cut_off = self.greeter.end_all
        self.doctor.on_jump = self.cluster.compare_soon
        self.doctor.on_storage_failed = self._storage_failed
        self.doctor.on_storage_back = self.cluster.steward.begin
        self.doctor.on_change = self._tell_health
        gauge = self.metrics.gauge
        gauge(told.SESSIONS, lambda: {(state,): n for state, n in self.greeter.states().items()})
        gauge(told.TOPICS, self._topic_states)
        gauge(told.INFLIGHT, self._inflight)
        gauge(told.PENDING, lambda: self._pending)
        gauge(told.OLDEST, lambda: self._oldest)
        gauge(told.DRIFT, lambda: {(): self.doctor.drift_ms / 1_000})
        gauge(told.CLIENT_OFFSET, lambda: {(): self.pinger.worst().clock_offset_ms / 1_000})
        gauge(told.CLIENT_LATENCY, lambda: {(): self.pinger.worst().latency_ms / 1_000})
        gauge(told.DEGRADED, lambda: {(name,): 1.0 for name in self.doctor.degradations})
        gauge(told.MEMORY, lambda: {(): self.doctor.memory_bytes})
        gauge(told.MEMBERS, lambda: {(): len(self.cluster.members)})
        gauge(told.PEER_OFFSET, lambda: {(broker,): ms / 1_000 for broker, ms in self.cluster.offsets_ms().items()})
        gauge(told.NUDGES, lambda: {(): self.cluster.peers.nudges_sent})
        gauge(told.STORAGE, self._storage_stats)

    @property
    def address(self) -> str | None:
        """host:port that it listens on, with the real port; None without a network."""
        return self.server.address if self.server is not None else None

    async def start(self) -> None:
        """Open the store, finish what a crash cut short, and serve; raises, with nothing left open, when it cannot."""
        await self.storage.open(self.clock.now_ms())
        try:
            await self.recorder.start()
            if self.config.listen is not None:
                self.server = Server(services=self.services, config=self.config)
                await self.server.bind()
                self._overseer.address = self.server.address
            await self.cluster.start(self.address or "in-process")
            if self.config.metrics is not None:
                self.metrics_address, self._close_metrics = self.metrics.expose(self.config.metrics)
            if self.server is not None:
                await self.server.start()
        except BaseException:
            await self._close()
            raise
        loop = asyncio.get_running_loop()
        self._loops = [
            loop.create_task(self._keep(self.doctor.run, "doctor"), name="doctor"),
            loop.create_task(self._keep(self.loader.run, "loader"), name="loader"),
            loop.create_task(self._keep(self.balancer.run, "balancer"), name="balancer"),
            loop.create_task(self._keep(self.replies.run, "expiry"), name="expiry"),
            loop.create_task(self._keep(self.bodies.run, "reclaim of bodies"), name="bodies"),
            loop.create_task(self._keep(self.cron.run, "cron unit"), name="cron"),
            loop.create_task(self._keep(self._sample, "sampler"), name="sampler"),
        ]
        log.info("broker %s serves at %s", self.config.name, self.address or "in-process only")

    def transport(self) -> InProcessTransport:
        """A way to this broker that needs no network."""
        transport = InProcessTransport(self.services)
        self._transports.append(transport)
        return transport

    async def drain(self) -> None:
        """Take no new work, tell the clients, and wait for them to leave, up to the limit."""
        await self.doctor.start_draining()
        # Nobody is sent here any more.
        self.background.spawn(self.cluster.publish(), name="tell of draining")
        self.greeter.close(error_of(Code.DRAINING))
        for session in self.greeter:
            self.background.spawn(session.drain(), name=f"drain session {session.number}")
        for roster in self.rosters:
            roster.redeal()
        await self._within(self.greeter.empty(), self.config.drain_ms / 1_000)

    async def _within(self, work: Coroutine[None, None, None], seconds: float) -> None:
        task = asyncio.ensure_future(work)
        await asyncio.wait((task,), timeout=seconds)
        task.cancel()

    async def stop(self, *, drain: bool = True) -> None:
        """Drain, then end what is left and close the store; everything acknowledged is kept."""
        if not self._loops:
            return
        if drain:
            await self.drain()
        sessions = list(self.greeter)
        self.greeter.end_all(error_of(Code.DRAINING))
        await self._within(self.greeter.empty(), FINISH_SECONDS)
        for session in sessions:
            await self._within(session.finished(), FINISH_SECONDS)
        for transport in self._transports:
            await transport.close()
        await self._close()

    async def _close(self) -> None:
        if self.server is not None:
            await self.server.stop()
            self.server = None
        for loop in self._loops:
            loop.cancel()
        if self._loops:
            await asyncio.wait(self._loops)
            self._loops = []
        await self.background.finish(FINISH_SECONDS)
        if self._close_metrics is not None:
            await asyncio.to_thread(self._close_metrics)
            self._close_metrics = self.metrics_address = None
        self._snapshots.close_all()
        await self.cluster.stop()
        await self.recorder.stop()
        await self.storage.close()

    async def _keep(self, work: Callable[[], object], name: str) -> None:
        """Run a loop of the broker for good: a fault in it is logged, and it goes on."""
        while True:
            try:
                await work()  # type: ignore[misc]
            except Exception:
                log.exception("the %s failed and starts again", name)
                await self.clock.sleep(1.0)

    async def _evacuate(self, topic: Topic, error: DejaqError) -> None:
        await self.greeter.evacuate(topic, error)
        self.rosters.forget(topic)
        await self.cluster.evacuate_others(topic)

    async def _evacuate_here(self, topic: Topic) -> None:
        await self.greeter.evacuate(topic, error_of(Code.TOPIC_DELETING, f"topic {topic.name!r} is being deleted"))
        self.rosters.forget(topic)

    async def _tell_health(self) -> None:
        if self.server is not None:
            await self.server.set_serving(self.doctor.ready)

    async def _sample(self) -> None:
        while True:
            now = self.clock.now_ms()
            pending: dict[Labels, float] = {}
            oldest: dict[Labels, float] = {}
            for topic in self.catalog.all()[:SAMPLE_TOPICS_MAX]:
                try:
                    pending |= await self._count(topic, now)
                    if topic.by_priority:
                        for priority, ts in await self.storage.oldest(topic, now, SAMPLE_PRIORITIES_MAX):
                            oldest[topic.name, str(priority)] = (now - ts) / 1_000
                except DejaqError as error:
                    log.debug("counting %s: %s", topic.name, error)
            self._pending, self._oldest = pending, oldest
            await self.clock.sleep(SAMPLE_SECONDS)

    async def _count(self, topic: Topic, now: int) -> dict[Labels, float]:
        """Messages by status. What waits is the rest: to count it row by row would hold up what is due next."""
        total = await self.storage.count(topic, Filter(), now)
        available = await self.storage.count(topic, Filter(status=Status.AVAILABLE), now)
        processing = await self.storage.count(topic, Filter(status=Status.PROCESSING), now)
        counts = {
            Status.AVAILABLE: available,
            Status.PROCESSING: processing,
            Status.WAITING: max(0, total - available - processing),
        }
        return {(topic.name, status.value): count for status, count in counts.items()}

    def _topic_states(self) -> Mapping[Labels, float]:
        topics = self.catalog.all()
        return {(state.value,): sum(topic.state is state for topic in topics) for state in TopicState}

    def _inflight(self) -> Mapping[Labels, float]:
        return {(roster.topic.name,): sum(consumer.inflight.rows for consumer in roster) for roster in self.rosters}

    def _storage_stats(self) -> Mapping[Labels, float]:
        # Optional: a storage that keeps figures of its own offers them by this name.
        stats = getattr(self.storage, "stats", None)
        return {(name,): float(value) for name, value in stats().items()} if stats is not None else {}
