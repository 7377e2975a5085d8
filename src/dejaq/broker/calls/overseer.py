"""The calls of the `Overseer` service: the cluster, its topics, and the time."""

from __future__ import annotations

import asyncio
import logging
from bisect import bisect_right
from pathlib import Path

from dejaq.backup.checkpoint import make_checkpoint
from dejaq.broker.cluster.member import Member
from dejaq.broker.cluster.service import caller_of
from dejaq.broker.context import bound
from dejaq.broker.rights.needs import Claim
from dejaq.broker.sessions.broker_context import BrokerContext
from dejaq.broker.sessions.greeter import Census, Greeter
from dejaq.broker.sessions.session import Session
from dejaq.broker.sessions.state import SessionState
from dejaq.domain.context import CallContext
from dejaq.domain.message import Status
from dejaq.domain.naming.topic_name import NAMESPACE_MARK, check_topic_name, resolved
from dejaq.domain.topic import Encryption, Topic, TopicStage
from dejaq.errors import DejaqError, InvalidArgument, StoreError
from dejaq.protocol.columns import settings_from_proto, settings_to_proto
from dejaq.protocol.v1 import overseer_pb2 as overseer
from dejaq.protocol.v1 import peer_pb2 as peer
from dejaq.protocol.version import package_version
from dejaq.security.rights.matching import creator_name
from dejaq.security.rights.operations import Operation
from dejaq.storage.base import Filter, RotatesKeys, innermost
from dejaq.storage.copies import Copies, Replicates
from dejaq.storage.sharded.placement import Spread

log = logging.getLogger(__name__)

ASK_SECONDS = 1.0
CREATE_SECONDS = 3.0
# After so many topics of a list the event loop does other work.
TOPICS_PER_STEP = 20
# The same for clients; the buckets of each are copied.
CLIENTS_PER_STEP = 50


class OverseerService:
    """Answers about the broker as a whole; available in every state of a client."""

    def __init__(self, *, broker: BrokerContext, greeter: Greeter) -> None:
        self._broker = broker
        self._greeter = greeter
        self._started_ms = broker.clock.now_ms()
        # Where it is reached, known once it listens.
        self.address = "in-process"

    async def info(self, context: CallContext, request: overseer.InfoRequest) -> overseer.InfoResponse:
        """Brokers, topics and clients of the whole cluster; a silent broker is shown as it last published itself."""
        info = await self.describe(context=context)
        cluster = self._broker.cluster
        others = [member for member in cluster.members.values() if member.id != cluster.own]
        answers = await cluster.connections.gather(
            cluster.connections.call(
                member.id, "Peer.Describe", request, overseer.InfoResponse, bound(context, ASK_SECONDS)
            )
            for member in others
        )
        for member, answer in zip(others, answers, strict=True):
            if isinstance(answer, DejaqError):
                info.brokers.append(_silent(member))
            else:
                _add(info, answer)
        silent = {member.id for member, answer in zip(others, answers, strict=True) if isinstance(answer, DejaqError)}
        for broker in info.brokers[1:]:
            sample = cluster.offsets.best(broker.id)
            known = cluster.members.get(broker.id)
            reported_ms = known.seen_ms if known is not None else 0
            broker.seen_ms = reported_ms if broker.id in silent else self._broker.clock.now_ms()
            if sample is not None:
                broker.offset_ms, broker.latency_ms = sample.offset_ms, sample.round_trip_ms / 2
        info.shards.extend(await self._shards())
        await self._reduce(context, info)
        return info

    async def _shards(self) -> list[overseer.ShardInfo]:
        """The shards of the storage, with the buckets that each has."""
        storage = innermost(self._broker.storage)
        if not isinstance(storage, Spread):
            return []
        placed = storage.map
        found = [overseer.ShardInfo(name=shard.name) for shard in placed.shards]
        for shard in found:
            if shard.name == placed.changing:
                shard.state = "leaving" if placed.leaving else "joining"
        for number, topic in enumerate(self._broker.catalog.all(), 1):
            for bucket in range(topic.settings.buckets):
                shard = found[placed.owner(topic, bucket)]
                shard.buckets += 1
                shard.moving += placed.frozen(topic, bucket)
            if number % TOPICS_PER_STEP == 0:
                await asyncio.sleep(0)
        return found

    async def _reduce(self, context: CallContext, info: overseer.InfoResponse) -> None:
        """Leave out the clients of topics that the caller may not see, and what names topics."""
        guard = self._broker.guard
        if guard.operates(context):
            return
        seen = {topic.name for topic in await self._seen(context, self._broker.catalog.all())}
        topics = [topic for topic in info.topics if topic.name in seen]
        clients = [client for client in info.clients if client.topic in seen]
        del info.topics[:], info.clients[:], info.shards[:]
        info.topics.extend(topics)
        info.clients.extend(clients)
        for broker in info.brokers:
            del broker.notes[:]

    async def describe(self, *, counts: bool = True, context: CallContext | None = None) -> overseer.InfoResponse:
        """What this broker alone has to say; the counts of the topics are the storage's, and the same everywhere."""
        topics = self._broker.catalog.all()
        census = self._greeter.census()
        # The counts come first: they may find that the storage is damaged.
        outlines = await self._topics(topics, context) if counts else await _outlines(topics, census)
        return overseer.InfoResponse(
            cluster=self._broker.config.cluster,
            brokers=[self._broker_info()],
            topics=outlines,
            clients=await self._clients(),
        )

    async def ping(self, context: CallContext, request: overseer.PingRequest) -> overseer.PingResponse:
        """The broker's time."""
        return overseer.PingResponse(client_us=request.client_us, broker_us=self._broker.clock.now_us())

    async def create_topic(self, context: CallContext, request: overseer.CreateTopicRequest) -> overseer.TopicResponse:
        """Make a topic, or find the same one, at the least loaded broker that answers in time."""
        self._broker.doctor.admit("create_topic")
        cluster = self._broker.cluster
        forwarded = peer.ForwardedCreateTopicRequest(
            name=request.name, settings=request.settings, caller=caller_of(context)
        )
        for member in cluster.placement.recommended():
            if member.id == cluster.own:
                break
            try:
                answer = await cluster.connections.call(
                    member.id, "Peer.CreateTopic", forwarded, overseer.TopicResponse, bound(context, CREATE_SECONDS)
                )
                await cluster.steward.learn(request.name)
                return answer
            except DejaqError as error:
                if not error.retryable:
                    raise
                log.info("broker %s did not make topic %s: %s", member.id, request.name, error)
        return await self.create_topic_here(context, request)

    async def create_topic_here(
        self, context: CallContext, request: overseer.CreateTopicRequest
    ) -> overseer.TopicResponse:
        """Make a topic, or find the same one."""
        self._broker.doctor.admit("create_topic")
        if self._broker.catalog.named(request.name) is None:
            self._broker.quotas.check_topics(context)
        steward = self._broker.cluster.steward
        topic, created = await steward.create(
            context, request.name, settings_from_proto(request.settings), creator_name(context.principal)
        )
        if topic.settings.max_attempts:
            # At once, so that a broker with too many topics reports it to the caller.
            await self._broker.dead_letters.topic_for(context, topic)
        return overseer.TopicResponse(topic=(await self._topics([topic]))[0], created=created)

    async def rekey_topic(
        self, context: CallContext, request: overseer.RekeyTopicRequest
    ) -> overseer.RekeyTopicResponse:
        """Protect the keys of an encrypted topic with the provider's current key."""
        self._broker.doctor.admit("rekey_topic")
        topic = self._broker.catalog.live(request.name)
        storage = self._broker.storage
        if topic.settings.encryption is Encryption.NONE or not isinstance(storage, RotatesKeys):
            raise InvalidArgument(f"topic {topic.name!r} is not encrypted")
        steward = self._broker.cluster.steward
        key = await steward.rekey(context, topic.name, storage, new_key=request.new_key)
        return overseer.RekeyTopicResponse(key=key)

    async def edit_topic(self, context: CallContext, request: overseer.EditTopicRequest) -> overseer.TopicResponse:
        """Change settings of a topic; its clients come back by themselves."""
        self._broker.doctor.admit("create_topic")
        values = {field.name: value for field, value in request.settings.ListFields()}
        topic = await self._broker.cluster.steward.edit(context, request.name, values)
        if topic.settings.max_attempts:
            await self._broker.dead_letters.topic_for(context, topic)
        return overseer.TopicResponse(topic=(await self._topics([topic]))[0])

    async def describe_topic(self, context: CallContext, request: overseer.TopicRequest) -> overseer.TopicResponse:
        """One topic, with its numbers where the caller may inspect it."""
        guard = self._broker.guard
        if not guard.sees(context, request.name):
            guard.require(context, "Overseer.DescribeTopic", ((Claim(Operation.INSPECT, request.name),),))
        topic = self._broker.catalog.find(request.name)
        capabilities = self._broker.storage.capabilities
        shared = capabilities.shared_inline_bytes_max if topic.settings.share_bodies else 0
        info = _outline(topic, Census()) if request.settings_only else (await self._topics([topic], context))[0]
        return overseer.TopicResponse(topic=info, inline_body_bytes_max=shared)

    async def list_topics(
        self, context: CallContext, request: overseer.ListTopicsRequest
    ) -> overseer.ListTopicsResponse:
        """The topics after a name that the caller may see, and their numbers."""
        seen = await self._seen(context, self._in_namespace(context, request.namespace))
        first = bisect_right(seen, request.after, key=lambda topic: topic.name)
        page = seen[first : first + request.count] if request.count else seen[first:]
        more = first + len(page) < len(seen)
        return overseer.ListTopicsResponse(topics=await self._topics(page, context), more=more, total=len(seen))

    def _in_namespace(self, context: CallContext, namespace: str) -> list[Topic]:
        """The topics of a namespace, in the order of their names."""
        topics = self._broker.catalog.all()
        if not namespace:
            return topics
        if namespace == "global":
            return [topic for topic in topics if not topic.name.startswith(NAMESPACE_MARK)]
        # The topic `t` stands for any of the namespace.
        name = resolved(f"{namespace}/t", context.principal.user)
        check_topic_name(name)
        return [topic for topic in topics if topic.name.startswith(name[:-1])]

    async def _seen(self, context: CallContext, topics: list[Topic]) -> list[Topic]:
        """Those that the caller may see."""
        guard = self._broker.guard
        if guard.trusts(context):
            return topics
        seen: list[Topic] = []
        for number, topic in enumerate(topics, 1):
            if guard.sees(context, topic.name):
                seen.append(topic)
            if number % TOPICS_PER_STEP == 0:
                await asyncio.sleep(0)
        return seen

    async def copies(self, context: CallContext, request: overseer.TopicRequest) -> overseer.CopiesResponse:
        """The brokers that serve a topic, and the servers that have copies of its messages."""
        topic = self._broker.catalog.usable(request.name)
        cluster, storage = self._broker.cluster, innermost(self._broker.storage)
        answer = overseer.CopiesResponse(brokers=[overseer.ServingBroker(id=cluster.own, address=self.address)])
        for member in cluster.members.values():
            if member.id != cluster.own:
                answer.brokers.add(id=member.id, address=member.shown_address)
        if isinstance(storage, Replicates):
            answer.stores.extend(_store_copies(copies) for copies in await storage.copies(topic))
        return answer

    async def delete_topic(self, context: CallContext, request: overseer.TopicRequest) -> overseer.TopicResponse:
        """Mark a topic as deleting; its messages are removed in the background."""
        self._broker.doctor.admit("delete_topic")
        topic = await self._broker.cluster.steward.delete(context, request.name)
        return overseer.TopicResponse(topic=_outline(topic, self._greeter.census()))

    async def checkpoint(
        self, context: CallContext, request: overseer.CheckpointRequest
    ) -> overseer.CheckpointResponse:
        """Link the files of the store as they are now, to be copied from."""
        self._broker.doctor.admit("checkpoint")
        config, recorder = self._broker.config, self._broker.recorder
        path = await make_checkpoint(
            innermost(self._broker.storage),
            Path(config.data) if config.data is not None else None,
            recorder.place.directory,
            held=recorder.held(),
            now_ms=self._broker.clock.now_ms(),
        )
        return overseer.CheckpointResponse(path=str(path))

    async def _topics(self, topics: list[Topic], context: CallContext | None = None) -> list[overseer.TopicInfo]:
        """Topics with their numbers: those that the caller may inspect, or all."""
        census = self._greeter.census()
        infos = await _outlines(topics, census)
        if context is not None and not self._broker.guard.trusts(context):
            allowed = [self._broker.guard.allows(context, Operation.INSPECT, topic.name) for topic in topics]
            counted = [(topic, info) for topic, info, one in zip(topics, infos, allowed, strict=True) if one]
        else:
            counted = list(zip(topics, infos, strict=True))
        # With a failed storage the numbers are left out, so that the rest can still be seen.
        if self._broker.storage.failure is None:
            try:
                await self._count(counted)
            except StoreError:
                self._broker.doctor.look()
        return infos

    async def _count(self, counted: list[tuple[Topic, overseer.TopicInfo]]) -> None:
        now = self._broker.clock.now_ms()
        for topic, info in counted:
            # Three counts of a topic take some tenths of a millisecond.
            await asyncio.sleep(0)
            if topic.is_log:
                info.available = await self._kept(topic, now)
                continue
            for status in Status:
                count = await self._broker.storage.count(topic, Filter(status=status), now)
                setattr(info, status.value, count)

    async def _kept(self, topic: Topic, now: int) -> int:
        """How many messages a log keeps."""
        if topic.state is not TopicStage.LIVE:
            return 0
        return sum(one.count for one in await self._broker.logs.storage.offsets(topic, now))

    def _broker_info(self) -> overseer.BrokerInfo:
        doctor = self._broker.doctor
        return overseer.BrokerInfo(
            id=self._broker.config.name,
            address=self.address,
            version=package_version(),
            storage=self._broker.storage.capabilities.label,
            started_ms=self._started_ms,
            clock_ms=self._broker.clock.now_ms(),
            degradations=list(doctor.degradations.values()),
            draining=doctor.draining,
            drift_ms=doctor.drift_ms,
            notes=self._notes(),
            sessions=len(self._greeter),
            synchronization=self._broker.cluster.synchronization.name,
        )

    def _notes(self) -> list[str]:
        place = self._broker.recorder.place
        if place.directory is None:
            return [place.note]
        silent = sorted(topic.name for topic in self._broker.catalog.all() if not topic.settings.journal)
        return [f"no journal is kept of {', '.join(silent)}"] if silent else []

    async def _clients(self) -> list[overseer.ClientInfo]:
        clients: list[overseer.ClientInfo] = []
        for session in list(self._greeter):
            clients.append(self._client(session))
            if len(clients) % CLIENTS_PER_STEP == 0:
                await asyncio.sleep(0)
        return clients

    def _client(self, session: Session) -> overseer.ClientInfo:
        reading = self._broker.pinger.reading(session.number)
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
            broker=self._broker.config.name,
        )


async def _outlines(topics: list[Topic], census: Census) -> list[overseer.TopicInfo]:
    """What is known of each topic without the storage."""
    outlines: list[overseer.TopicInfo] = []
    for topic in topics:
        outlines.append(_outline(topic, census))
        if len(outlines) % TOPICS_PER_STEP == 0:
            await asyncio.sleep(0)
    return outlines


def _outline(topic: Topic, census: Census) -> overseer.TopicInfo:
    return overseer.TopicInfo(
        name=topic.name,
        state=topic.state,
        settings=settings_to_proto(topic.settings),
        created_ms=topic.created_ms,
        creator=topic.creator,
        consumers=census[topic.number, SessionState.CONSUMER] + census[topic.number, SessionState.SUBSCRIBED],
        producers=census[topic.number, SessionState.PRODUCER],
    )


def _store_copies(copies: Copies) -> overseer.StoreCopies:
    standbys = [
        overseer.StandbyInfo(name=standby.name, state=standby.state, lag_bytes=standby.lag_bytes)
        for standby in copies.standbys
    ]
    return overseer.StoreCopies(
        shard=copies.shard, buckets=copies.buckets, confirmed=copies.confirmed, standbys=standbys
    )


def _silent(member: Member) -> overseer.BrokerInfo:
    """A broker that is in the cluster and does not answer."""
    return overseer.BrokerInfo(
        id=member.id,
        address=member.shown_address,
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
