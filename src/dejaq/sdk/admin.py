"""Topics and the cluster, as values."""

from __future__ import annotations

from dataclasses import dataclass

from dejaq.domain.topic import TopicSettings, TopicState
from dejaq.protocol.columns import settings_from_proto
from dejaq.protocol.v1 import overseer_pb2 as overseer


@dataclass(frozen=True, slots=True)
class TopicInfo:
    """A topic with its settings and exact counts. `created` is False where a create found it there already."""

    name: str
    state: TopicState
    settings: TopicSettings
    created_ms: int
    available: int
    waiting: int
    processing: int
    consumers: int
    producers: int
    created: bool = False

    @classmethod
    def from_proto(cls, proto: overseer.TopicInfo, *, created: bool = False) -> TopicInfo:
        """The topic that the broker described."""
        return cls(
            name=proto.name,
            state=TopicState(proto.state),
            settings=settings_from_proto(proto.settings),
            created_ms=proto.created_ms,
            available=proto.available,
            waiting=proto.waiting,
            processing=proto.processing,
            consumers=proto.consumers,
            producers=proto.producers,
            created=created,
        )


@dataclass(frozen=True, slots=True)
class BrokerInfo:
    """A broker, its health (`degradations`, each in a sentence), its clock, and what else is worth knowing."""

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
    # As the broker that was asked sees it: when it last told of itself (0 for itself), its clock, and the way there.
    seen_ms: int = 0
    offset_ms: float = 0.0
    latency_ms: float = 0.0
    sessions: int = 0
    synchronization: str = ""

    @classmethod
    def from_proto(cls, proto: overseer.BrokerInfo) -> BrokerInfo:
        """The broker that the broker described."""
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
    """One session of a client: what it is (`state`), where (`topic`), as `who`, and how far away."""

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
        """The client that the broker described."""
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
class ClusterInfo:
    """The cluster: brokers, topics and clients."""

    cluster: str
    brokers: tuple[BrokerInfo, ...]
    topics: tuple[TopicInfo, ...]
    clients: tuple[ClientInfo, ...]

    @classmethod
    def from_proto(cls, proto: overseer.InfoResponse) -> ClusterInfo:
        """The cluster that the broker described."""
        return cls(
            cluster=proto.cluster,
            brokers=tuple(map(BrokerInfo.from_proto, proto.brokers)),
            topics=tuple(map(TopicInfo.from_proto, proto.topics)),
            clients=tuple(map(ClientInfo.from_proto, proto.clients)),
        )


@dataclass(frozen=True, slots=True)
class Pong:
    """A ping's answer: how long it took, and how far the broker's clock is ahead of ours, give or take."""

    latency_ms: float
    clock_offset_ms: float
    uncertainty_ms: float
