"""The calls of the `Peer` service: what other brokers of the cluster ask of this one."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from dejaq.broker.carrier.roster import Rosters
from dejaq.broker.cluster.steward import Steward
from dejaq.protocol.v1 import overseer_pb2 as overseer
from dejaq.protocol.v1 import peer_pb2 as peer


class PeerService:
    """Answers other brokers."""

    def __init__(
        self,
        *,
        rosters: Rosters,
        steward: Steward,
        describe: Callable[[], Awaitable[overseer.InfoResponse]],
        create_topic: Callable[[overseer.CreateTopicRequest], Awaitable[overseer.TopicResponse]],
    ) -> None:
        self._rosters = rosters
        self._steward = steward
        self._describe = describe
        self._create_topic = create_topic

    async def nudge(self, request: peer.NudgeRequest) -> peer.NudgeResponse:
        """Wake those who wait for what is now on their timelines."""
        for nudge in request.nudges:
            roster = self._rosters.numbered(nudge.topic)
            if roster is not None:
                roster.nudge_here(nudge.ts, nudge.buckets)
        return peer.NudgeResponse()

    async def ask_back(self, request: peer.AskBackRequest) -> peer.AskBackResponse:
        """Ask a consumer for rows; the caller undoes their lease."""
        roster = self._rosters.numbered(request.topic)
        consumer = roster.find(request.consumer) if roster is not None else None
        if consumer is None:
            return peer.AskBackResponse()
        rows = await consumer.ask_back(request.lease, list(request.rows))
        consumer.forget(request.lease, rows)
        return peer.AskBackResponse(rows=rows)

    async def let_go(self, request: peer.LetGoRequest) -> peer.LetGoResponse:
        """End the session of a consumer that is now elsewhere."""
        roster = self._rosters.numbered(request.topic)
        if roster is not None:
            await roster.let_go(request.consumer)
        return peer.LetGoResponse()

    async def learn(self, request: peer.LearnRequest) -> peer.LearnResponse:
        """Read what became of a topic."""
        await self._steward.learn(request.topic)
        return peer.LearnResponse()

    async def describe(self, request: overseer.InfoRequest) -> overseer.InfoResponse:
        """This broker and its clients."""
        return await self._describe()

    async def create_topic(self, request: overseer.CreateTopicRequest) -> overseer.TopicResponse:
        """Make a topic here."""
        return await self._create_topic(request)
