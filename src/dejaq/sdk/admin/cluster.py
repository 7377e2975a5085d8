"""Topics and the cluster, as values."""

from __future__ import annotations

from dataclasses import dataclass

from dejaq.domain.topic import TopicSettings, TopicStage
from dejaq.protocol.columns import settings_from_proto
from dejaq.protocol.v1 import overseer_pb2 as overseer


@dataclass(frozen=True, slots=True)
class TopicInfo:
    """A topic with its settings and exact counts.

    `created` is False when a create call found that the topic existed.
    """

    name: str
    state: TopicStage
    settings: TopicSettings
    created_ms: int
    available: int
    waiting: int
    processing: int
    consumers: int
    producers: int
    created: bool = False
    # The user or the key that created it; empty where callers have no names.
    creator: str = ""

    @classmethod
    def from_proto(cls, proto: overseer.TopicInfo, *, created: bool = False) -> TopicInfo:
        """The topic that the broker's answer describes."""
        return cls(
            name=proto.name,
            state=TopicStage(proto.state),
            settings=settings_from_proto(proto.settings),
            created_ms=proto.created_ms,
            available=proto.available,
            waiting=proto.waiting,
            processing=proto.processing,
            consumers=proto.consumers,
            producers=proto.producers,
            created=created,
            creator=proto.creator,
        )


@dataclass(frozen=True, slots=True)
class TopicsPage:
    """Some topics of a namespace; `more` follow the last one, and `total` is the number of all of them."""

    topics: list[TopicInfo]
    more: bool
    total: int


@dataclass(frozen=True, slots=True)
class StandbyInfo:
    """A server that follows another one.

    `state` is `sync` or `quorum` when commits wait for it, `potential` when it takes the place of one that fails,
    `async` when no commit waits for it, and `unknown` when the broker may not see it. `lag_bytes` is how much of the
    server's log it does not have on disk yet.
    """

    name: str
    state: str
    lag_bytes: int | None


@dataclass(frozen=True, slots=True)
class StoreCopies:
    """A server of the storage, how many `buckets` of a topic it has, and its standbys; `shard` is empty without shards.

    A change is acknowledged when the server and `confirmed` of its standbys have it on disk.
    """

    shard: str
    buckets: int
    confirmed: int
    standbys: tuple[StandbyInfo, ...]


@dataclass(frozen=True, slots=True)
class TopicCopies:
    """The brokers that serve a topic, as (id, address), and the servers that have copies of its messages.

    There are no `stores` when each broker has a store of its own.
    """

    brokers: tuple[tuple[str, str], ...]
    stores: tuple[StoreCopies, ...]

    @classmethod
    def from_proto(cls, proto: overseer.CopiesResponse) -> TopicCopies:
        """The copies that the broker's answer describes."""
        return cls(
            brokers=tuple((broker.id, broker.address) for broker in proto.brokers),
            stores=tuple(
                StoreCopies(store.shard, store.buckets, store.confirmed, tuple(map(_standby, store.standbys)))
                for store in proto.stores
            ),
        )


def _standby(proto: overseer.StandbyInfo) -> StandbyInfo:
    return StandbyInfo(proto.name, proto.state, proto.lag_bytes if proto.HasField("lag_bytes") else None)


@dataclass(frozen=True, slots=True)
class BrokerInfo:
    """A broker, its health (`degradations`, each one a sentence), its clock, and details for diagnosis."""

    id: str
    address: str
    version: str
    storage: str
    started_ms: int
    clock_ms: int
    degradations: tuple[str, ...]
    draining: bool
    drift_ms: float
    notes: tuple[str, ...] = ()
    # From the view of the broker that was asked: the last report of this broker (0 for itself), its clock, the round
    # trip.
    seen_ms: int = 0
    offset_ms: float = 0.0
    latency_ms: float = 0.0
    sessions: int = 0
    synchronization: str = ""

    @classmethod
    def from_proto(cls, proto: overseer.BrokerInfo) -> BrokerInfo:
        """The broker that the broker's answer describes."""
        return cls(
            id=proto.id,
            address=proto.address,
            version=proto.version,
            storage=proto.storage,
            started_ms=proto.started_ms,
            clock_ms=proto.clock_ms,
            degradations=tuple(proto.degradations),
            draining=proto.draining,
            drift_ms=proto.drift_ms,
            notes=tuple(proto.notes),
            seen_ms=proto.seen_ms,
            offset_ms=proto.offset_ms,
            latency_ms=proto.latency_ms,
            sessions=proto.sessions,
            synchronization=proto.synchronization,
        )


@dataclass(frozen=True, slots=True)
class ClientInfo:
    """One session of a client: its kind and `state`, its topic, its user (`who`), and its round-trip time."""

    id: str
    name: str
    sdk: str
    state: str
    topic: str
    who: str
    latency_ms: float
    clock_offset_ms: float
    inflight: int
    buckets: tuple[int, ...]
    weight: int
    rack: str
    broker: str

    @classmethod
    def from_proto(cls, proto: overseer.ClientInfo) -> ClientInfo:
        """The client that the broker's answer describes."""
        return cls(
            id=proto.id,
            name=proto.name,
            sdk=proto.sdk,
            state=proto.state,
            topic=proto.topic,
            who=proto.who,
            latency_ms=proto.latency_ms,
            clock_offset_ms=proto.clock_offset_ms,
            inflight=proto.inflight,
            buckets=tuple(proto.buckets),
            weight=proto.weight,
            rack=proto.rack,
            broker=proto.broker,
        )


@dataclass(frozen=True, slots=True)
class StorageShard:
    """A shard of the storage: its buckets, those that are being moved, and `joining`, `leaving` or an empty state."""

    name: str
    buckets: int
    moving: int
    state: str


@dataclass(frozen=True, slots=True)
class ClusterInfo:
    """The cluster: brokers, topics, clients, and the shards of its storage for callers with the right `operate`."""

    cluster: str
    brokers: tuple[BrokerInfo, ...]
    topics: tuple[TopicInfo, ...]
    clients: tuple[ClientInfo, ...]
    shards: tuple[StorageShard, ...] = ()

    @classmethod
    def from_proto(cls, proto: overseer.InfoResponse) -> ClusterInfo:
        """The cluster that the broker's answer describes."""
        return cls(
            cluster=proto.cluster,
            brokers=tuple(map(BrokerInfo.from_proto, proto.brokers)),
            topics=tuple(map(TopicInfo.from_proto, proto.topics)),
            clients=tuple(map(ClientInfo.from_proto, proto.clients)),
            shards=tuple(StorageShard(one.name, one.buckets, one.moving, one.state) for one in proto.shards),
        )


@dataclass(frozen=True, slots=True)
class Pong:
    """The answer to a ping: how long it took, how far the broker's clock is ahead of ours, and how exact that number
    is.
    """

    latency_ms: float
    clock_offset_ms: float
    uncertainty_ms: float
