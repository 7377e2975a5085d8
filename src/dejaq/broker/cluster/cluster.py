"""This broker among the others: it joins, tells of itself, watches them, and deals with them.

Everything here is a hint that makes things fast and fair. Whatever two brokers believe about each other, the storage
lets one change through and refuses the other.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, cast

from dejaq import limits
from dejaq.broker.background import Background
from dejaq.broker.carrier.dealer import Seat
from dejaq.broker.carrier.roster import Far, Rosters
from dejaq.broker.cluster import member as members_
from dejaq.broker.cluster import seats as seats_
from dejaq.broker.cluster import steward as topics_
from dejaq.broker.cluster.member import Member, Process
from dejaq.broker.cluster.offsets import Offsets, Sample
from dejaq.broker.cluster.peers import Connect, Peers
from dejaq.broker.cluster.seats import Seats
from dejaq.broker.cluster.selector import Advice, recommend
from dejaq.broker.cluster.shards import MAP, ShardWatch
from dejaq.broker.cluster.spreading import Spreading
from dejaq.broker.cluster.steward import Steward
from dejaq.broker.doctor import Doctor
from dejaq.broker.overseer.catalog import Catalog
from dejaq.config import BrokerConfig
from dejaq.domain.topic import Topic
from dejaq.errors import ClusterRefused, DejaqError
from dejaq.protocol.channel import GrpcTransport
from dejaq.protocol.v1 import overseer_pb2 as overseer
from dejaq.protocol.v1 import peer_pb2 as peer
from dejaq.protocol.version import package_version
from dejaq.storage.base import Storage
from dejaq.storage.sharded.placement import Spread
from dejaq.synchronization.base import Change, Record, Synchronization
from dejaq.timekeeper.clock import Clock

if TYPE_CHECKING:
    from dejaq.broker.carrier.session import Session
    from dejaq.storage.sharded.store import ShardedStorage

log = logging.getLogger(__name__)

TELL_SECONDS = 1.0
ASK_SECONDS = 1.0
FAREWELL_SECONDS = 2.0
RETRY_SECONDS = 0.2
# What lies further ahead is found in time by the look around that every pump takes each second.
NUDGE_MS_MAX = limits.PREFETCH_MS_MAX + 2_000
CLUSTER = "cluster"


class Cluster:
    """One broker's place in its cluster. It is the rosters' `Outside`."""

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
        sessions: Callable[[], Sequence[Session]],
        producers: Callable[[], Mapping[int, Iterable[str]]],
        connect: Connect = GrpcTransport,
    ) -> None:
        self.own = config.name
        self.synchronization = synchronization
        self.peers = Peers(background=background, connect=connect)
        self.steward = Steward(
            broker=self.own,
            synchronization=synchronization,
            catalog=catalog,
            clock=clock,
            shared=storage.capabilities.shared,
        )
        self.members: dict[str, Member] = {}
        self.offsets = Offsets()
        self._config = config
        self._storage = storage
        self._clock = clock
        self._doctor = doctor
        self._rosters = rosters
        self._catalog = catalog
        self._background = background
        self._sessions = sessions
        self._producers = producers
        self._seats = Seats()
        self._shards = (
            ShardWatch(broker=self.own, storage=cast("ShardedStorage", storage), synchronization=synchronization)
            if isinstance(storage, Spread)
            else None
        )
        self._spreading = Spreading(own=self.own, clock=clock, sessions=sessions, consumers=self._consumers_at)
        self._stamps: dict[tuple[int, str], int] = {}
        self._address = ""
        self._started_ms = clock.now_ms()
        self._process = Process.here(clock.identity)
        self._record: Record | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._rescue: asyncio.Task[None] | None = None
        self._clients_changed = asyncio.Event()
        self._compare = asyncio.Event()
        # Whom clients were sent to since it last told of itself, and of its clients.
        self._sent: Counter[str] = Counter()
        self._sent_consumers: Counter[str] = Counter()

    @property
    def alone(self) -> bool:
        """Whether no other broker is there."""
        return len(self.members) <= 1

    # Life

    async def start(self, address: str) -> None:
        """Join; raises CLUSTER_REFUSED, or SYNCHRONIZATION_FAILED when the others cannot be found."""
        self._address = self._config.advertise or address
        await self.synchronization.open()
        await self._check_storage()
        await self._join()
        if self._shards is not None:
            await self._shards.begin()
        self.steward.teach = self._teach
        await self.steward.begin()
        seen = [asyncio.Event() for _ in range(3)]
        watches = (
            self._watch(members_.PREFIX, self._members_told, seen[0]),
            self._watch(seats_.PREFIX, self._clients_told, seen[1]),
            self._watch(topics_.PREFIX, self._topics_told, seen[2]),
        )
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(watch, name="watch of the cluster") for watch in watches]
        self._tasks.append(loop.create_task(self._tell_of_clients(), name="clients of the cluster"))
        if self._shards is not None:
            self._tasks.append(loop.create_task(self._follow_shards(self._shards), name="shards of the cluster"))
        self._tasks.append(loop.create_task(self._tell_of_self(), name="member of the cluster"))
        for event in seen:
            await event.wait()

    async def stop(self) -> None:
        """Leave, at once for the others."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
            self._tasks = []
        await self.peers.close()
        await self.synchronization.close()

    async def _check_storage(self) -> None:
        """All brokers of one name must keep their messages in one place."""
        # Optional: a storage that others can use too has an identity that is kept in it.
        identity = str(getattr(self._storage, "identity", ""))
        value = json.dumps({"storage": identity}).encode()
        record = await self.synchronization.put(CLUSTER, value, expected=0) or await self.synchronization.get(CLUSTER)
        there = json.loads(record.value)["storage"] if record is not None else identity
        if identity and there and there != identity:
            raise ClusterRefused(
                f"cluster {self._config.cluster!r} keeps its messages in another storage ({there}, not {identity}); "
                "use that storage, or give this cluster another name with --cluster"
            )

    async def _join(self) -> None:
        key = members_.PREFIX + self.own
        first: Record | None = None
        until = self._clock.monotonic() + self._config.member_ttl + 2
        while True:
            self._record = await self.synchronization.put(key, self._self().encode(), expected=0, bound=True)
            if self._record is not None:
                break
            there = await self.synchronization.get(key)
            if there is None:
                continue
            other = Member.decode(there.value, there.token)
            if other.process.surely_dead(self._process):
                await self.synchronization.remove(key, expected=there.revision)
                continue
            # A record that changes is one that is kept alive; one that does not, runs out.
            first = first or there
            if there.revision != first.revision or self._clock.monotonic() > until:
                raise ClusterRefused(
                    f"a broker named {self.own!r} already serves cluster {self._config.cluster!r} at {other.address}; "
                    "give this one another name with --broker"
                )
            await self._clock.sleep(RETRY_SECONDS)
        others = [record for record in await self.synchronization.under(members_.PREFIX) if record.key != key]
        if others and not self._storage.capabilities.shared:
            raise ClusterRefused(
                f"cluster {self._config.cluster!r} has other brokers, and the storage "
                f"{self._storage.capabilities.name!r} cannot be shared with them; use one that can, or another cluster"
            )

    async def _watch(self, prefix: str, told: Callable[[list[Change]], None], seen: asyncio.Event) -> None:
        while True:
            try:
                async for changes in self.synchronization.watch(prefix):
                    told(changes)
                    seen.set()
            except Exception:
                log.exception("the watch of %s failed and begins anew", prefix)
                await self._clock.sleep(1.0)

    def _mind_shards(self) -> None:
        """Say which shards do not work, and see to buckets that were left on their way."""
        if self._shards is None:
            return
        self._doctor.report("shards", self._shards.failures())
        if self._shards.left and (self._rescue is None or self._rescue.done()):
            self._rescue = self._background.spawn(self._shards.rescue(self._clock), name="rescue of buckets")

    async def _follow_shards(self, shards: ShardWatch) -> None:
        while True:
            try:
                async for changes in self.synchronization.watch(MAP):
                    await shards.told(changes)
            except Exception:
                log.exception("the map of the shards is followed anew")
                await self._clock.sleep(RETRY_SECONDS)

    # Members

    def _self(self) -> Member:
        worst = max((s.round_trip_ms for b in self.members if (s := self.offsets.best(b)) is not None), default=0.0)
        return Member(
            id=self.own,
            address=self._address,
            version=package_version(),
            storage=self._storage.capabilities.label,
            started_ms=self._started_ms,
            seen_ms=self._clock.now_ms(),
            sessions=len(self._sessions()),
            latency_ms=round(worst / 2, 3),
            drift_ms=round(self._doctor.drift_ms, 3),
            draining=self._doctor.draining,
            ready=self._doctor.ready,
            degradations=tuple(s for name, s in self._doctor.degradations.items() if name != "draining"),
            process=self._process,
        )

    def _members_told(self, changes: list[Change]) -> None:
        for change in changes:
            broker = change.key.removeprefix(members_.PREFIX)
            if change.record is None:
                if self.members.pop(broker, None) is not None and broker != self.own:
                    log.info("broker %s has left the cluster", broker)
            else:
                if broker not in self.members and broker != self.own:
                    log.info("broker %s is in the cluster", broker)
                self.members[broker] = Member.decode(change.record.value, change.record.token)
                self._sent.pop(broker, None)
        others = {broker: member.address for broker, member in self.members.items() if broker != self.own}
        self.peers.set(others)
        self.offsets.keep(others)

    async def _tell_of_self(self) -> None:
        while True:
            try:
                self._doctor.report("newer", self._catalog.newer())
                await self._compare_clocks()
                await self._publish()
                await self.steward.finish()
                self._mind_shards()
                self._spread()
            except DejaqError as error:
                log.info("the cluster was not told of this broker: %s", error)
            except Exception:
                log.exception("the cluster was not told of this broker")
            await self._pause()

    async def _pause(self) -> None:
        self._compare.clear()
        tasks = [asyncio.ensure_future(self._clock.sleep(TELL_SECONDS)), asyncio.ensure_future(self._compare.wait())]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()

    def compare_soon(self) -> None:
        """Compare the clocks now: this one has jumped."""
        self._compare.set()

    async def publish(self) -> None:
        """Tell the others how this broker is, now."""
        try:
            await self._publish()
        except DejaqError as error:
            log.info("the cluster was not told of this broker: %s", error)

    async def _publish(self) -> None:
        key = members_.PREFIX + self.own
        for _ in range(2):
            expected = self._record.revision if self._record is not None else 0
            record = await self.synchronization.put(key, self._self().encode(), expected=expected, bound=True)
            if record is not None:
                self._record = record
                return
            # Cut off for a while, the record was written anew without our doing.
            there = await self.synchronization.get(key)
            if there is not None and Member.decode(there.value, 0).process != self._process:
                raise ClusterRefused(f"another process has taken the place of broker {self.own!r}")
            self._record = there

    async def _compare_clocks(self) -> None:
        others = {broker: member for broker, member in self.members.items() if broker != self.own}
        gap_ms = self._doctor.clock_gap_ms
        answered = await asyncio.gather(*(self._ping(broker) for broker in others))
        own_token = self._record.token if self._record is not None else 0
        tokens = {broker: member.token for broker, member in others.items()}
        deviation = self.offsets.deviation_ms(tokens, own_token=own_token)
        if abs(deviation) > self._config.offset_ms_max:
            way = "ahead of" if deviation > 0 else "behind"
            self._doctor.report(
                "drift",
                f"the clock is {abs(deviation):.0f} ms {way} those of the other brokers, more than "
                f"{self._config.offset_ms_max} ms; set it right",
            )
        elif any(answered) or not others:
            # What was measured before may be of another time than the clock shows now.
            self._doctor.trust_clock(gap_ms)
            self._doctor.report("drift", None)
        self._doctor.look()

    def offsets_ms(self) -> dict[str, float]:
        """How far each other clock is from this one, as well as is known."""
        best = {broker: self.offsets.best(broker) for broker in self.members if broker != self.own}
        return {broker: sample.offset_ms for broker, sample in best.items() if sample is not None}

    async def _ping(self, broker: str) -> bool:
        """Measure how far another clock is; whether it answered."""
        sent_us, sent = self._clock.now_us(), self._clock.monotonic()
        try:
            request = overseer.PingRequest(client_us=sent_us)
            answer = await self.peers.call(broker, "Overseer.Ping", request, overseer.PingResponse, ASK_SECONDS)
        except DejaqError as error:
            log.debug("broker %s does not answer: %s", broker, error)
            return False
        took_ms = (self._clock.monotonic() - sent) * 1_000
        offset_ms = (answer.broker_us - sent_us) / 1_000 - took_ms / 2
        self.offsets.add(broker, Sample(offset_ms=offset_ms, round_trip_ms=took_ms))
        return True

    # Clients

    async def _tell_of_clients(self) -> None:
        while True:
            await self._clients_changed.wait()
            self._clients_changed.clear()
            consumers: dict[int, dict[str, tuple[int, Seat | None]]] = {}
            for roster in self._rosters:
                number = roster.topic.number
                named = {name: (self._stamps.get((number, name), 0), seat) for name, seat in roster.names.items()}
                if named:
                    consumers[number] = named
            try:
                value = seats_.encode(consumers, self._producers())
                await self.synchronization.put(seats_.PREFIX + self.own, value, bound=True)
            except DejaqError as error:
                log.info("the cluster was not told of the clients: %s", error)
                self._clients_changed.set()
                await self._clock.sleep(RETRY_SECONDS)

    def _clients_told(self, changes: list[Change]) -> None:
        for change in changes:
            broker = change.key.removeprefix(seats_.PREFIX)
            if broker == self.own:
                continue
            self._sent_consumers.pop(broker, None)
            for number in self._seats.tell(broker, None if change.record is None else change.record.value):
                self._seats_changed(number)

    def _seats_changed(self, number: int) -> None:
        roster = self._rosters.numbered(number)
        if roster is None:
            return
        for name, place in self._seats.of(number).items():
            if roster.find(name) is not None and place.stamp > self._stamps.get((number, name), 0):
                self._background.spawn(roster.let_go(name), name=f"let {name} go to {place.broker}")
        roster.take_seats()

    # What the rosters ask for

    def seats(self, topic: Topic) -> Mapping[str, Far]:
        """The subscribed consumers that are connected elsewhere, by name."""
        places = self._seats.of(topic.number).items()
        return {name: Far(place.broker, place.seat) for name, place in places if place.seat is not None}

    def entered(self, topic: Topic, name: str) -> asyncio.Task[None] | None:
        """A consumer came here; gives the farewell of the one of that name elsewhere, if there is one."""
        place = self._seats.of(topic.number).get(name)
        last = max(self._stamps.get((topic.number, name), 0), place.stamp if place is not None else 0)
        self._stamps[topic.number, name] = max(self._clock.now_us(), last + 1)
        if place is None or place.broker not in self.members:
            return None
        return self._background.spawn(self._take_over(place.broker, topic, name), name=f"take {name} over")

    async def _take_over(self, broker: str, topic: Topic, name: str) -> None:
        request = peer.LetGoRequest(topic=topic.number, consumer=name)
        try:
            await self.peers.call(broker, "Peer.LetGo", request, peer.LetGoResponse, FAREWELL_SECONDS)
        except DejaqError as error:
            log.info("broker %s did not let go of consumer %s: %s", broker, name, error)

    def changed(self, topic: Topic) -> None:
        """The consumers that are connected here are others now."""
        self._clients_changed.set()

    def nudge(self, broker: str, topic: Topic, ts: int, buckets: Iterable[int]) -> None:
        """Tell another broker of something that is due soon."""
        if ts <= self._clock.now_ms() + NUDGE_MS_MAX:
            self.peers.nudge(broker, topic.number, ts, buckets)

    async def ask_back(self, broker: str, topic: Topic, name: str, lease_id: int, rows: Sequence[int]) -> list[int]:
        """Ask a consumer at another broker for rows that are not yet due; none when that broker does not answer."""
        request = peer.AskBackRequest(topic=topic.number, consumer=name, lease=lease_id, rows=rows)
        try:
            answer = await self.peers.call(broker, "Peer.AskBack", request, peer.AskBackResponse, ASK_SECONDS)
        except DejaqError as error:
            log.info("broker %s was not asked for a message back: %s", broker, error)
            return []
        return list(answer.rows)

    # Topics

    def _topics_told(self, changes: list[Change]) -> None:
        for topic in self.steward.told(changes):
            if self.steward.evacuate is not None:
                self._background.spawn(self._evacuate(topic), name=f"leave topic {topic.name}")

    async def _evacuate(self, topic: Topic) -> None:
        if self.steward.evacuate is not None:
            await self.steward.evacuate(topic)

    async def _teach(self, name: str) -> None:
        """Have every other broker learn of a topic; who does not answer will see it in its watch."""
        request = peer.LearnRequest(topic=name)
        others = [broker for broker in self.members if broker != self.own]
        await self.peers.gather(
            self.peers.call(broker, "Peer.Learn", request, peer.LearnResponse, FAREWELL_SECONDS) for broker in others
        )

    async def evacuate_others(self, topic: Topic) -> None:
        """Wait until nobody at another broker works on a topic; a broker that is gone has nobody."""
        request = peer.LearnRequest(topic=topic.name)
        waiting = {broker for broker in self.members if broker != self.own}
        while waiting := waiting & self.members.keys():
            for broker in list(waiting):
                try:
                    await self.peers.call(broker, "Peer.Learn", request, peer.LearnResponse, FAREWELL_SECONDS)
                    waiting.discard(broker)
                except DejaqError as error:
                    log.info("broker %s has not left topic %s yet: %s", broker, topic.name, error)
                    await self._clock.sleep(RETRY_SECONDS)

    # Choosing

    def recommended(self) -> list[Member]:
        """The brokers to use, the least loaded first."""
        return recommend(self.members.values(), own=self.own, load=self._load)

    def advise(self, *, topic: str, role: str) -> Advice:
        """Where a client that has come here should go: the consumers of a topic are spread, then all sessions."""
        load = self._load
        if role == "consumer" and (found := self._catalog.named(topic)) is not None:
            load = partial(self._consumers, found)
        best = recommend(self.members.values(), own=self.own, load=load)
        better = best[0] if best and best[0].id != self.own else None
        if better is not None:
            self._sent[better.id] += 1
            self._sent_consumers[better.id] += role == "consumer"
        unwell = [member for member in self.members.values() if not member.well]
        addresses = tuple(member.address for member in [*best, *unwell])
        return Advice(addresses, better.address if better is not None else "")

    def _load(self, member: Member) -> int:
        # Those who were sent there since it last told are on their way.
        return len(self._sessions()) if member.id == self.own else member.sessions + self._sent[member.id]

    def _consumers(self, topic: Topic, member: Member) -> int:
        if member.id == self.own:
            # The one that asks is not yet among them.
            return len(self._rosters.of(topic)) + 1
        return self._consumers_at(topic.number, member)

    def _consumers_at(self, number: int, member: Member) -> int:
        there = sum(place.broker == member.id for place in self._seats.of(number).values())
        return there + self._sent_consumers[member.id]

    def _spread(self) -> None:
        """Ask clients to move to brokers that have clearly less to do."""
        if not self._doctor.ready:
            return
        for session, target in self._spreading.moves(self.members, self._sent):
            log.info("session %d is asked to go on at %s", session.number, target.id)
            self._sent[target.id] += 1
            self._sent_consumers[target.id] += session.consumer is not None
            self._background.spawn(session.move(target.address), name=f"move session {session.number}")
