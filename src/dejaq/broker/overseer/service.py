"""The calls of the `Overseer` service: the cluster, its topics, and the time."""

from __future__ import annotations

from dejaq.broker.carrier.session import Session, SessionState
from dejaq.broker.overseer.greeter import Census, Greeter
from dejaq.broker.parts import Parts
from dejaq.domain.message import Status
from dejaq.domain.topic import Topic
from dejaq.protocol.columns import settings_from_proto, settings_to_proto
from dejaq.protocol.v1 import overseer_pb2 as overseer
from dejaq.protocol.version import package_version
from dejaq.storage.base import Filter


class OverseerService:
    """Answers about the broker as a whole; available in every state of a client."""

    def __init__(self, *, parts: Parts, greeter: Greeter) -> None:
        self._parts = parts
        self._greeter = greeter
        self._started_ms = parts.clock.now_ms()
        # Where it is reached, known once it listens.
        self.address = "in-process"

    async def info(self, request: overseer.InfoRequest) -> overseer.InfoResponse:
        """Brokers, topics and clients."""
        return overseer.InfoResponse(
            cluster=self._parts.config.cluster,
            brokers=[self._broker()],
            topics=await self._topics(self._parts.catalog.all()),
            clients=[self._client(session) for session in self._greeter],
        )

    async def ping(self, request: overseer.PingRequest) -> overseer.PingResponse:
        """The broker's time."""
        return overseer.PingResponse(client_us=request.client_us, broker_us=self._parts.clock.now_us())

    async def create_topic(self, request: overseer.CreateTopicRequest) -> overseer.TopicResponse:
        """Make a topic, or find the same one."""
        self._parts.doctor.admit("create_topic")
        topic, created = await self._parts.catalog.create(request.name, settings_from_proto(request.settings))
        return overseer.TopicResponse(topic=(await self._topics([topic]))[0], created=created)

    async def describe_topic(self, request: overseer.TopicRequest) -> overseer.TopicResponse:
        """One topic and its numbers."""
        topic = self._parts.catalog.find(request.name)
        return overseer.TopicResponse(topic=(await self._topics([topic]))[0])

    async def list_topics(self, request: overseer.ListTopicsRequest) -> overseer.ListTopicsResponse:
        """Every topic and its numbers."""
        return overseer.ListTopicsResponse(topics=await self._topics(self._parts.catalog.all()))

    async def delete_topic(self, request: overseer.TopicRequest) -> overseer.TopicResponse:
        """Mark a topic as deleting; the rest goes on in the background."""
        self._parts.doctor.admit("delete_topic")
        topic = await self._parts.catalog.delete(request.name)
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
            storage=self._parts.storage.capabilities.name,
            started_ms=self._started_ms,
            clock_ms=self._parts.clock.now_ms(),
            degradations=list(doctor.degradations.values()),
            draining=doctor.draining,
            drift_ms=doctor.drift_ms,
            notes=self._notes(),
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
