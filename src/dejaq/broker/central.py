"""Constructs the parts of a broker, starts them in order, and stops them in the opposite order."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from itertools import islice
from random import SystemRandom
from zlib import crc32

from dejaq.broker import metrics as specs
from dejaq.broker.access.endpoint_tls import EndpointTls
from dejaq.broker.access.setup import make_access
from dejaq.broker.background import Background
from dejaq.broker.calls.access import AccessService
from dejaq.broker.calls.bodies import BodyCalls
from dejaq.broker.calls.dead_letters import DeadLetterCalls
from dejaq.broker.calls.history import HistoryCalls
from dejaq.broker.calls.logs import LogService
from dejaq.broker.calls.overseer import OverseerService
from dejaq.broker.calls.queries import QueryCalls
from dejaq.broker.calls.query_budget import QueryBudget
from dejaq.broker.calls.replies import ReplyCalls
from dejaq.broker.calls.rights import RightsCalls
from dejaq.broker.calls.snapshots import Snapshots
from dejaq.broker.calls.transactions import Transactions
from dejaq.broker.catalog import Catalog
from dejaq.broker.cluster.cluster import Cluster
from dejaq.broker.cluster.service import PeerService
from dejaq.broker.cluster.users import StorageUsers
from dejaq.broker.cron.service import CronService
from dejaq.broker.cron.unit import CronUnit
from dejaq.broker.delivery.balancer import Balancer
from dejaq.broker.delivery.dead_letters import DeadLetterTopics
from dejaq.broker.delivery.loader import Loader
from dejaq.broker.delivery.progress import ProgressReports
from dejaq.broker.delivery.roster import Rosters
from dejaq.broker.doctor import Doctor
from dejaq.broker.inprocess import InProcessTransport
from dejaq.broker.log.topics import LogTopics
from dejaq.broker.loop.sampling import count_by_status, topic_states
from dejaq.broker.loop.watchdog import Watchdog
from dejaq.broker.metrics import REST, TOPIC_SERIES_MAX, Labels, Metrics
from dejaq.broker.reactions import Reactions
from dejaq.broker.recorder import Recorder
from dejaq.broker.rights.setup import RightsParts, make_rights
from dejaq.broker.server import Server
from dejaq.broker.services import Calls, Services, peer_calls_of, services_of
from dejaq.broker.sessions.broker_context import BrokerContext
from dejaq.broker.sessions.greeter import Greeter
from dejaq.broker.sessions.pinger import Pinger
from dejaq.broker.sessions.session import Session
from dejaq.broker.sessions.throttles import Throttles
from dejaq.broker.websocket.server import WebSocketServer
from dejaq.config import BrokerConfig, join_address, split_address
from dejaq.domain.topic import Topic
from dejaq.errors import Code, DejaqError, error_of
from dejaq.protocol.channel import GrpcTransport
from dejaq.protocol.websocket.connecting import UNIX
from dejaq.security.settings import load_settings
from dejaq.storage.base import Storage
from dejaq.synchronization.base import Synchronization
from dejaq.synchronization.local import LocalSynchronization
from dejaq.timekeeper.alarms import Alarms
from dejaq.timekeeper.clock import Clock

log = logging.getLogger(__name__)

SAMPLE_SECONDS = 5.0
# The most priorities of a topic whose oldest message is published as a metric.
SAMPLE_PRIORITIES_MAX = 16
FINISH_SECONDS = 10.0


class Central:
    """One broker."""

    def __init__(
        self,
        *,
        config: BrokerConfig,
        storage: Storage,
        clock: Clock,
        synchronization: Synchronization | None = None,
        shares_loop: bool = False,
    ) -> None:
        config.check()
        self.config, self.storage, self.clock = config, storage, clock
        self.metrics = Metrics()
        self.tls = EndpointTls(config, clock)
        self.auth = load_settings(config.auth) if config.auth is not None else None
        self.background = Background()
        self.rosters, self.pinger = Rosters(), Pinger()
        self.doctor = Doctor.of(config, storage, clock)
        self.watchdog = self._make_watchdog(shares_loop=shares_loop)
        self.catalog = Catalog(storage=storage, clock=clock, background=self.background, topics_max=config.topics_max)
        self.recorder = Recorder(config=config, storage=storage, clock=clock, doctor=self.doctor, metrics=self.metrics)
        self.cluster = self._make_cluster(synchronization)
        self.rights = self._make_rights()
        parts = (self.auth, self.catalog, self.cluster.synchronization, storage, clock, self.metrics)
        self.access = make_access(*parts, self.rights.audit.refused_caller, self.rights.audit.entered)
        self.dead_letters = DeadLetterTopics(
            clock=clock, catalog=self.catalog, create_topic=self.cluster.steward.create, rosters=self.rosters
        )
        self.alarms, self.logs = Alarms(clock, phase_ms=crc32(config.name.encode())), self._make_logs()
        self._broker = self._make_broker_context()
        self.greeter = self._make_greeter()
        self.balancer = Balancer(clock=clock, rosters=self.rosters, background=self.background)
        self.loader = Loader(storage=storage, clock=clock, rosters=self.rosters, prefetch_ms_max=config.prefetch_ms_max)
        self._overseer = OverseerService(broker=self._broker, greeter=self.greeter)
        self._access_service = AccessService(self._broker, self.access.ledger)
        self._snapshots = self._make_snapshots()
        self.services = self._make_services()
        self.server: WebSocketServer | None = None
        self.grpc: Server | None = None
        # Every address that is served, in the order in which they begin to serve.
        self._servers: list[Server | WebSocketServer] = []
        self._peer_server: Server | None = None
        self._has_peers = synchronization is not None
        self._peer_calls = self._make_peer_calls()
        # Where the metrics are, with the real port, while they are exposed.
        self.metrics_address: str | None = None
        self._close_metrics: Callable[[], None] | None = None
        self._loops: list[asyncio.Task[None]] = []
        self._transports: list[InProcessTransport] = []
        self._pending, self._oldest = dict[Labels, float](), dict[Labels, float]()
        self._connect()

    def _make_broker_context(self) -> BrokerContext:
        return BrokerContext(
            config=self.config,
            clock=self.clock,
            storage=self.storage,
            metrics=self.metrics,
            background=self.background,
            doctor=self.doctor,
            catalog=self.catalog,
            guard=self.rights.guard,
            quotas=self.rights.quotas,
            gate=self.access.gate,
            rosters=self.rosters,
            throttles=Throttles(self.clock),
            pinger=self.pinger,
            recorder=self.recorder,
            cluster=self.cluster,
            dead_letters=self.dead_letters,
            reports=ProgressReports(self.rosters),
            alarms=self.alarms,
            logs=self.logs,
        )

    def _make_watchdog(self, *, shares_loop: bool) -> Watchdog:
        return Watchdog(
            block_ms=self.config.loop_block_ms,
            lag_ms_max=self.config.loop_lag_ms_max,
            report=self.doctor.report,
            shares_loop=shares_loop,
        )

    def _make_rights(self) -> RightsParts:
        return make_rights(
            config=self.config,
            storage=self.storage,
            clock=self.clock,
            catalog=self.catalog,
            synchronization=self.cluster.synchronization,
            doctor=self.doctor,
            metrics=self.metrics,
            changed=lambda: self.background.spawn(self.greeter.check_rights(), name="check of rights"),
            has_admins=self.auth is not None and bool(self.auth.admins),
        )

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
            connect=partial(GrpcTransport, security=self.tls.to_peers),
        )

    def _make_greeter(self) -> Greeter:
        return Greeter(
            make_session=lambda number, context: Session(number=number, context=context, broker=self._broker),
            sessions_max=self.config.sessions_max,
            connections_max=self.config.connections_max,
            streams=self.access.gate.streams,
        )

    def _make_logs(self) -> LogTopics:
        parts = (self.storage, self.catalog, self.clock, self.metrics, self.doctor, self.background, self.rights.quotas)
        return LogTopics(*parts, broker=self.config.name, notify=self.cluster.notify)

    def _make_snapshots(self) -> Snapshots:
        return Snapshots(
            storage=self.storage,
            clock=self.clock,
            find_topic=self.catalog.live,
            delivers=lambda: any(roster.has_subscribers for roster in self.rosters),
        )

    def _make_peer_calls(self) -> Calls:
        service = PeerService(
            rosters=self.rosters,
            reports=self._broker.reports,
            steward=self.cluster.steward,
            describe=lambda: self._overseer.describe(counts=False),
            create_topic=self._overseer.create_topic_here,
            woken=self.logs.woken,
        )
        return peer_calls_of(
            access=self._access_service,
            peer=service,
            overseer=self._overseer,
            histories=self.histories,
            metrics=self.metrics,
        )

    def _make_services(self) -> Services:
        self.replies = ReplyCalls(self._broker)
        self.histories = HistoryCalls(self._broker)
        transactions = Transactions(self._broker, self.replies)
        # Names of transactions must not repeat between brokers that were started at once.
        chance = SystemRandom()
        self.cron = CronUnit(self._broker, transactions, chance)
        self.bodies = BodyCalls(self._broker)
        return services_of(
            overseer=self._overseer,
            queries=QueryCalls(
                storage=self.storage,
                clock=self.clock,
                find_topic=self.catalog.live,
                reports=self._broker.reports,
                budget=QueryBudget(self.clock, self.metrics),
            ),
            histories=self.histories,
            snapshots=self._snapshots,
            transactions=transactions,
            cron=CronService(self._broker, transactions, self.cron, chance),
            replies=self.replies,
            bodies=self.bodies,
            logs=LogService(self._broker),
            dead_letters=DeadLetterCalls(self._broker),
            greeter=self.greeter,
            rights=RightsCalls(self.rights),
            guard=self.rights.guard,
            audit=self.rights.audit,
            access=self._access_service,
            gate=self.access.gate,
            metrics=self.metrics,
        )

    def _connect(self) -> None:
        """Connect what cannot be constructed in order, each by one call."""
        self.reactions = Reactions(
            greeter=self.greeter,
            snapshots=self._snapshots,
            rosters=self.rosters,
            cluster=self.cluster,
            publish_readiness=self._publish_readiness,
        )
        self.rights.guard.topic_of_snapshot = self._snapshots.topic_of
        self.rosters.connect(self.cluster.directory)
        self.catalog.connect(self.reactions)
        self.cluster.connect(self.reactions)
        self.doctor.connect(self.cluster, self.reactions)
        self.metrics.distribution(specs.LOOP_LAG, self.watchdog.lag)
        self._connect_gauges()

    def _connect_gauges(self) -> None:
        gauge = self.metrics.gauge
        gauge(specs.SESSIONS, lambda: {(state,): n for state, n in self.greeter.states().items()})
        gauge(specs.TOPICS, lambda: topic_states(self.catalog.all()))
        gauge(specs.INFLIGHT, self._inflight)
        gauge(specs.PENDING, lambda: self._pending)
        gauge(specs.OLDEST, lambda: self._oldest)
        gauge(specs.DRIFT, lambda: {(): self.doctor.drift_ms / 1_000})
        gauge(specs.CLIENT_OFFSET, lambda: {(): self.pinger.worst().clock_offset_ms / 1_000})
        gauge(specs.CLIENT_LATENCY, lambda: {(): self.pinger.worst().latency_ms / 1_000})
        gauge(specs.DEGRADED, lambda: {(name,): 1.0 for name in self.doctor.degradations})
        gauge(specs.MEMORY, lambda: {(): self.doctor.memory_bytes})
        gauge(specs.MEMBERS, lambda: {(): len(self.cluster.members)})
        gauge(
            specs.PEER_OFFSET,
            lambda: {(broker,): ms / 1_000 for broker, ms in self.cluster.clocks.offsets_ms().items()},
        )
        gauge(specs.NOTICES, lambda: {(): self.cluster.connections.notices_sent})
        gauge(specs.STORAGE, lambda: {(name,): float(value) for name, value in self.storage.stats().items()})
        gauge(specs.SECURITY_WAITING, self.rights.audit.waiting)
        self.access.gate.connect(gauge)
        self.tls.connect(gauge)

    @property
    def address(self) -> str | None:
        """host:port that it listens on, with the real port; None without a network."""
        return self.server.address if self.server is not None else None

    async def start(self) -> None:
        """Open the storage, finish what a crash interrupted, and serve; raises with nothing left open."""
        users = StorageUsers(
            storage=self.storage, cluster=self.config.cluster, alone=not self._has_peers, clock=self.clock
        )
        self.tls.load()
        users.announce()
        await self.storage.open(self.clock.now_ms())
        try:
            await users.check()
            await self.recorder.start()
            await self._bind()
            await self.cluster.start(
                address=self.address or "",
                grpc_address=self.grpc.address if self.grpc is not None else "",
                peer_address=self.peer_address,
            )
            await self.rights.start()
            await self.access.ledger.load()
            if self.config.metrics is not None:
                self.metrics_address, self._close_metrics = self.metrics.expose(self.config.metrics, self.tls.clients)
            for server in self._servers:
                await server.start()
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
            loop.create_task(self._keep(self._snapshots.run, "sweep of snapshots"), name="snapshots"),
            loop.create_task(self._keep(self.cron.run, "cron unit"), name="cron"),
            loop.create_task(self._keep(self.rights.book.run, "watch of the rules"), name="rules"),
            loop.create_task(self._keep(self.rights.quotas.run, "count of quotas"), name="quotas"),
            loop.create_task(self._keep(self.rights.audit.run, "security log"), name="security log"),
            loop.create_task(self._keep(self.logs.run, "retention of logs"), name="logs"),
            loop.create_task(self._keep(self._sample, "sampler"), name="sampler"),
            loop.create_task(self._keep(self.access.gate.run, "check of callers"), name="gate"),
            loop.create_task(self._keep(self.access.ledger.run, "watch of the keys"), name="ledger"),
            loop.create_task(self._keep(lambda: self.tls.run(lambda: self._servers), "reload of TLS"), name="tls"),
        ]
        self.watchdog.start()
        log.info("broker %s serves at %s", self.config.name, self.address or "in-process only")

    async def _bind(self) -> None:
        """Take every address; other brokers have one of their own, and a broker that is alone has none for them."""
        listen, grpc, unix = self.config.listen, self.config.grpc, self.config.unix
        near = self.config.peer_listen or (join_address(split_address(listen)[0], 0) if listen is not None else None)
        if self._has_peers and near is not None:
            self._peer_server = Server(
                services=self._peer_calls, config=self.config, listen=near, tls=self.tls.peers, key="peer_listen"
            )
            self._servers.append(self._peer_server)
        if grpc is not None:
            self.grpc = Server(
                services=self.services, config=self.config, listen=grpc, tls=self.tls.clients, key="grpc"
            )
            self._servers.append(self.grpc)
        if listen is not None:
            self.server = self._websocket_server(listen)
        if unix is not None:
            self._websocket_server(f"{UNIX}{unix}")
        for server in self._servers:
            await server.bind()
        if self.server is not None:
            self._overseer.address = self.server.address
            self.server.refer_grpc_to(self.grpc.address if self.grpc is not None else None)

    def _websocket_server(self, listen: str) -> WebSocketServer:
        server = WebSocketServer(
            services=self.services,
            config=self.config,
            listen=listen,
            metrics=self.metrics,
            tls=self.tls.clients,
            auth=self.auth,
        )
        self._servers.append(server)
        return server

    @property
    def peer_address(self) -> str:
        """host:port at which other brokers call, with the real port; empty for a broker that is alone."""
        return self._peer_server.address if self._peer_server is not None else ""

    def transport(self) -> InProcessTransport:
        """A transport to this broker that needs no network."""
        transport = InProcessTransport(self.services)
        self._transports.append(transport)
        return transport

    async def drain(self) -> None:
        """Accept no new work, notify the clients, and wait until they have left, up to the limit of time."""
        await self.doctor.start_draining()
        # Other brokers send no more clients here.
        self.background.spawn(self.cluster.membership.publish(), name="publish draining")
        self.greeter.close(error_of(Code.DRAINING))
        for session in self.greeter:
            self.background.spawn(session.drain(), name=f"drain session {session.number}")
        for roster in self.rosters:
            roster.reassign_all()
        await self._within(self.greeter.empty(), self.config.drain_ms / 1_000)

    async def _within(self, work: Coroutine[None, None, None], seconds: float) -> None:
        task = asyncio.ensure_future(work)
        await asyncio.wait((task,), timeout=seconds)
        task.cancel()

    async def stop(self, *, drain: bool = True) -> None:
        """Drain, then end the sessions that are left and close the storage; everything acknowledged is kept."""
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
        self.watchdog.stop()
        for server in reversed(self._servers):
            await server.stop()
        self._servers = []
        self.server = self.grpc = self._peer_server = None
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
        await self.rights.audit.stop()
        await self.storage.close()

    async def _keep(self, work: Callable[[], object], name: str) -> None:
        """Run a loop of the broker until it is cancelled: an error is logged, and the loop starts again."""
        while True:
            try:
                await work()  # type: ignore[misc]
            except Exception:
                log.exception("the %s failed and is started again", name)
                await self.clock.sleep(1.0)

    async def _publish_readiness(self) -> None:
        for server in self._servers:
            await server.set_serving(self.doctor.ready)

    async def _sample(self) -> None:
        while True:
            now = self.clock.now_ms()
            pending: dict[Labels, float] = {}
            oldest: dict[Labels, float] = {}
            self.metrics.choose_topics({topic.name for topic in self.catalog.all()})
            for topic in self._sampled():
                try:
                    pending |= await count_by_status(self.storage, topic, now)
                    if topic.by_priority:
                        for priority, ts in await self.storage.oldest(topic, now, SAMPLE_PRIORITIES_MAX):
                            oldest[topic.name, str(priority)] = (now - ts) / 1_000
                except DejaqError as error:
                    log.debug("counting %s: %s", topic.name, error)
            self._pending, self._oldest = pending, oldest
            await self.clock.sleep(SAMPLE_SECONDS)

    def _sampled(self) -> list[Topic]:
        """The topics with series of their own, and others while few topics have such series."""
        topics = self.catalog.all()
        shown = self.metrics.shown
        return [
            *(topic for name in sorted(shown) if (topic := self.catalog.named(name)) is not None),
            *islice((topic for topic in topics if topic.name not in shown), max(TOPIC_SERIES_MAX - len(shown), 0)),
        ]

    def _inflight(self) -> Mapping[Labels, float]:
        shown = self.metrics.shown
        rows: Counter[Labels] = Counter()
        for roster in self.rosters:
            name = roster.topic.name
            own = name in shown or len(rows) < TOPIC_SERIES_MAX
            rows[(name if own else REST,)] += sum(one.inflight.rows for one in roster)
        return rows
