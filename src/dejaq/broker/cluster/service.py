"""The calls of the `Peer` service: what other brokers of the cluster ask of this one."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace

from dejaq.broker.cluster.steward import Steward
from dejaq.broker.delivery.inflight import mask_of
from dejaq.broker.delivery.progress import ProgressReports
from dejaq.broker.delivery.roster import Rosters
from dejaq.domain.context import ANONYMOUS, CallContext, Principal, PrincipalKind
from dejaq.protocol.v1 import overseer_pb2 as overseer
from dejaq.protocol.v1 import peer_pb2 as peer


class PeerService:
    """Answers other brokers."""

    def __init__(
        self,
        *,
        rosters: Rosters,
        reports: ProgressReports,
        steward: Steward,
        describe: Callable[[], Awaitable[overseer.InfoResponse]],
        create_topic: Callable[[CallContext, overseer.CreateTopicRequest], Awaitable[overseer.TopicResponse]],
        woken: Callable[[int, Sequence[int]], None],
    ) -> None:
        """`woken` gets the notices, by the number of the topic: it may be a log."""
        self._rosters = rosters
        self._reports = reports
        self._steward = steward
        self._describe = describe
        self._create_topic = create_topic
        self._woken = woken

    async def notify(self, context: CallContext, request: peer.NudgeRequest) -> peer.NudgeResponse:
        """Wake those who wait for what is now on their timelines."""
        for notice in request.nudges:
            roster = self._rosters.numbered(notice.topic)
            if roster is not None:
                roster.notify_local(notice.ts, notice.buckets)
            self._woken(notice.topic, notice.buckets)
        return peer.NudgeResponse()

    async def recall(self, context: CallContext, request: peer.AskBackRequest) -> peer.AskBackResponse:
        """Ask a consumer for rows; the caller undoes their lease."""
        roster = self._rosters.numbered(request.topic)
        consumer = roster.find(request.consumer) if roster is not None else None
        if consumer is None:
            return peer.AskBackResponse()
        released = await consumer.release_rows(request.lease, list(request.rows))
        consumer.forget(request.lease, released.rows)
        return peer.AskBackResponse(rows=released.rows, ends=[end for end in released.ends if end is not None])

    async def settled(self, context: CallContext, request: peer.SettledRequest) -> peer.SettledResponse:
        """Give consumers the room that transactions at another broker have freed."""
        for one in request.rows:
            roster = self._rosters.numbered(one.topic)
            consumer = roster.find(one.consumer) if roster is not None else None
            if consumer is not None:
                ranges = list(zip(one.ranges[::2], one.ranges[1::2], strict=False))
                consumer.settled(one.lease, mask_of(ranges) if ranges else None)
        return peer.SettledResponse()

    async def progress(self, context: CallContext, request: peer.ProgressRequest) -> peer.ProgressResponse:
        """The last reports of consumers that are connected here."""
        asked = zip(request.ids, request.leases, strict=True)
        return peer.ProgressResponse(texts=[self._reports.here(request.topic, *one) for one in asked])

    async def let_go(self, context: CallContext, request: peer.LetGoRequest) -> peer.LetGoResponse:
        """End the session of a consumer that is now elsewhere."""
        roster = self._rosters.numbered(request.topic)
        if roster is not None:
            await roster.let_go(request.consumer)
        return peer.LetGoResponse()

    async def learn(self, context: CallContext, request: peer.LearnRequest) -> peer.LearnResponse:
        """Read what became of a topic."""
        await self._steward.learn(request.topic)
        return peer.LearnResponse()

    async def describe(self, context: CallContext, request: overseer.InfoRequest) -> overseer.InfoResponse:
        """This broker and its clients."""
        return await self._describe()

    async def create_topic(
        self, context: CallContext, request: peer.ForwardedCreateTopicRequest
    ) -> overseer.TopicResponse:
        """Make a topic here, for a client of another broker."""
        plain = overseer.CreateTopicRequest(name=request.name, settings=request.settings)
        return await self._create_topic(on_behalf_of(context, request.caller), plain)


def caller_of(context: CallContext) -> peer.Caller:
    """The client of a call, for another broker."""
    principal = context.principal
    return peer.Caller(
        name=principal.name,
        kind=principal.kind.value,
        user=principal.user,
        groups=sorted(principal.groups),
        admin=principal.admin,
        request_id=context.request_id,
    )


def on_behalf_of(context: CallContext, caller: peer.Caller) -> CallContext:
    """The context of another broker's call as the context of the client whose call it forwards."""
    return replace(context, principal=_principal_of(caller), request_id=caller.request_id or context.request_id)


def _principal_of(caller: peer.Caller) -> Principal:
    if not caller.name:
        return ANONYMOUS
    try:
        kind = PrincipalKind(caller.kind)
    except ValueError:
        # A kind that only a newer broker knows has no rights of its own here.
        kind = PrincipalKind.ANONYMOUS
    return Principal(caller.name, kind, caller.user, frozenset(caller.groups), caller.admin)
