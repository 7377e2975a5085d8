"""The calls of the `Overseer` service: the cluster, its topics, and the time."""

from __future__ import annotations

import logging

from dejaq.broker.carrier.session import Session, SessionState
from dejaq.broker.cluster.member import Member
from dejaq.broker.overseer.greeter import Census, Greeter
from dejaq.broker.parts import Parts
from dejaq.domain.message import Status
from dejaq.domain.topic import Topic
from dejaq.errors import DejaqError
from dejaq.protocol.columns import settings_from_proto, settings_to_proto
from dejaq.protocol.v1 import overseer_pb2 as overseer
from dejaq.protocol.version import package_version
from dejaq.storage.base import Filter

log = logging.getLogger(__name__)

ASK_SECONDS = 1.0
CREATE_SECONDS = 3.0


class OverseerService:
    """Answers about the broker as a whole; available in every state of a client."""

    def __init__(self, *, parts: Parts, greeter: Greeter) -> None:
        self._parts = parts
        self._greeter = greeter
        self._started_ms = parts.clock.now_ms()
        # Where it is reached, known once it listens.
        self.address = "in-process"

    async def info(self, request: overseer.InfoRequest) -> overseer.InfoResponse:
        """Brokers, topics and clients of the whole cluster; of a broker that is silent, what it told last."""
        info = await self.describe()
        cluster = self._parts.cluster
        others = [member for member in cluster.members.values() if member.id != cluster.own]
        answers = await cluster.peers.gather(
            cluster.peers.call(member.id, "Peer.Describe", request, overseer.InfoResponse, ASK_SECONDS)
            for member in others
        )
        for member, answer in zip(others, answers, strict=True):
            if isinstance(answer, DejaqError):
                info.brokers.append(_silent(member))
            else:
                _add(info, answer)
        for broker in info.brokers[1:]:
            sample = cluster.offsets.best(broker.id)
            broker.seen_ms = cluster.members[broker.id].seen_ms if broker.id in cluster.members else 0
            if sample is not None:
                broker.offset_ms, broker.latency_ms = sample.offset_ms, sample.round_trip_ms / 2
        return info

    async def describe(self, *, counts: bool = True) -> overseer.InfoResponse:
        """What this broker alone has to say; the counts of the topics are the storage's, and the same everywhere."""
        topics = self._parts.catalog.all()
        census = self._greeter.census()
        return overseer.InfoResponse(
            cluster=self._parts.config.cluster,
            brokers=[self._broker()],
            topics=await self._topics(topics) if counts else [_outline(topic, census) for topic in topics],
            clients=[self._client(session) for session in self._greeter],
        )

    async def ping(self, request: overseer.PingRequest) -> overseer.PingResponse:
        """The broker's time."""
        return overseer.PingResponse(client_us=request.client_us, broker_us=self._parts.clock.now_us())

    async def create_topic(self, request: overseer.CreateTopicRequest) -> overseer.TopicResponse:
        """Make a topic, or find the same one, at the least loaded broker that answers in time."""
        self._parts.doctor.admit("create_topic")
        cluster = self._parts.cluster
        for member in cluster.recommended():
            if member.id == cluster.own:
                break
            try:
                answer = await cluster.peers.call(
                    member.id, "Peer.CreateTopic", request, overseer.TopicResponse, CREATE_SECONDS
                )
                await cluster.steward.learn(request.name)
                return answer
            except DejaqError as error:
                if not error.retryable:
                    raise
                log.info("broker %s did not make topic %s: %s", member.id, request.name, error)
        return await self.create_topic_here(request)

    async def create_topic_here(self, request: overseer.CreateTopicRequest) -> overseer.TopicResponse:
        """Make a topic, or find the same one."""
        self._parts.doctor.admit("create_topic")
        steward = self._parts.cluster.steward
        topic, created = await steward.create(request.name, settings_from_proto(request.settings))
        if topic.settings.max_attempts:
            # At once, so that a broker with too many topics says so to who made it.
            await self._parts.graves.topic_for(topic)
        return overseer.TopicResponse(topic=(await self._topics([topic]))[0], created=created)

    async def describe_topic(self, request: overseer.TopicRequest) -> overseer.TopicResponse:
        """One topic and its numbers."""
        topic = self._parts.catalog.find(request.name)
        capabilities = self._parts.storage.capabilities
        shared = capabilities.shared_inline_bytes_max if topic.settings.share_bodies else 0
        return overseer.TopicResponse(topic=(await self._topics([topic]))[0], inline_body_bytes_max=shared)

    async def list_topics(self, request: overseer.ListTopicsRequest) -> overseer.ListTopicsResponse:
        """Every topic and its numbers."""
        return overseer.ListTopicsResponse(topics=await self._topics(self._parts.catalog.all()))

    async def delete_topic(self, request: overseer.TopicRequest) -> overseer.TopicResponse:
        """Mark a topic as deleting; the rest goes on in the background."""
        self._parts.doctor.admit("delete_topic")
        topic = await self._parts.cluster.steward.delete(request.name)
        return overseer.TopicResponse(topic=_outline(topic, self._greeter.census()))

    async def _topics(self, topics: list[Topic]) -> list[overseer.TopicInfo]:
        census = self._greeter.census()
        infos = [_outline(topic, census) for topic in topics]
        # With a failed storage the numbers are left out, so that the rest can still be seen.
        if self._parts.storage.failure is None:
            now = self._parts.clock.now_ms()
            for topic, info in zip(topics, infos, strict=True):
                for status in Status:
                    count = await self._parts.storage.count(topic, Filter(status=status), now)
                    setattr(info, status.value, count)
        return infos

    def _broker(self) -> overseer.BrokerInfo:
        doctor = self._parts.doctor
        return overseer.BrokerInfo(
            id=self._parts.config.name,
            address=self.address,
            version=package_version(),
            storage=self._parts.storage.capabilities.label,
            started_ms=self._started_ms,
            clock_ms=self._parts.clock.now_ms(),
            degradations=list(doctor.degradations.values()),
            draining=doctor.draining,
            drift_ms=doctor.drift_ms,
            notes=self._notes(),
            sessions=len(self._greeter),
            synchronization=self._parts.cluster.synchronization.name,
        )

    def _notes(self) -> list[str]:
        place = self._parts.recorder.place
        if place.directory is None:
            return [place.note]
        silent = sorted(topic.name for topic in self._parts.catalog.all() if not topic.settings.journal)
        return [f"no journal is kept of {', '.join(silent)}"] if silent else []

    def _client(self, session: Session) -> overseer.ClientInfo:
        reading = self._parts.pinger.reading(session.number)
        consumer, producer = session.consumer, session.producer
        return overseer.ClientInfo(
            id=f"{session.number}@{session.peer}",
            name=session.client,
            sdk=session.sdk,
            state=session.state,
            topic=session.topic.name if session.topic is not None else "",
            who=producer.group if producer else consumer.name if consumer else "",
            latency_ms=reading.latency_ms,
            clock_offset_ms=reading.clock_offset_ms,
            inflight=consumer.inflight.rows if consumer else 0,
            buckets=list(consumer.buckets) if consumer else [],
            weight=consumer.seat.weight if consumer else 0,
            rack=consumer.rack if consumer else "",
            broker=self._parts.config.name,
        )


def _outline(topic: Topic, census: Census) -> overseer.TopicInfo:
    return overseer.TopicInfo(
        name=topic.name,
        state=topic.state,
        settings=settings_to_proto(topic.settings),
        created_ms=topic.created_ms,
        consumers=census[topic.number, SessionState.CONSUMER] + census[topic.number, SessionState.SUBSCRIBED],
        producers=census[topic.number, SessionState.PRODUCER],
    )


def _silent(member: Member) -> overseer.BrokerInfo:
    """A broker that is in the cluster and does not answer."""
    return overseer.BrokerInfo(
        id=member.id,
        address=member.address,
        version=member.version,
        storage=member.storage,
        started_ms=member.started_ms,
        clock_ms=member.seen_ms,
        degradations=[*member.degradations, "it does not answer"],
        draining=member.draining,
        drift_ms=member.drift_ms,
        sessions=member.sessions,
    )


def _add(info: overseer.InfoResponse, other: overseer.InfoResponse) -> None:
    """Add what another broker says; the clients of a topic are the sum over the brokers."""
    info.brokers.extend(other.brokers)
    info.clients.extend(other.clients)
    topics = {topic.name: topic for topic in info.topics}
    for topic in other.topics:
        known = topics.get(topic.name)
        if known is None:
            info.topics.append(topic)
        else:
            known.consumers += topic.consumers
            known.producers += topic.producers
