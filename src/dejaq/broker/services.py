"""The broker's calls by name, whatever carries them: gRPC and the in-process transport serve the same table."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from google.protobuf.message import Message

from dejaq.broker.carrier.bodies import Bodies
from dejaq.broker.carrier.graves import Graves
from dejaq.broker.carrier.queries import Queries
from dejaq.broker.carrier.replies import Replies
from dejaq.broker.carrier.session import Frames, Send
from dejaq.broker.carrier.snapshots import Snapshots
from dejaq.broker.carrier.transactions import Transactions
from dejaq.broker.cluster.service import PeerService
from dejaq.broker.cron.service import CronService
from dejaq.broker.metrics import ERRORS, Metrics
from dejaq.broker.overseer.greeter import Greeter
from dejaq.broker.overseer.service import OverseerService
from dejaq.errors import DejaqError, InternalError, StoreError, Unavailable

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Services:
    """What a client can call: unary calls, server streams, client streams, and the session."""

    unary: dict[str, Callable[[Any], Awaitable[Message]]]
    streams: dict[str, Callable[[Any], AsyncIterator[Message]]]
    uploads: dict[str, Callable[[Any], Awaitable[Message]]]
    session: Callable[[Frames, Send, str], Awaitable[None]]
    metrics: Metrics

    async def call(self, method: str, request: Message) -> Message:
        """Answer a unary call; raises a DejaqError and nothing else."""
        try:
            return await self.unary[method](request)
        except Exception as error:  # noqa: BLE001 - whatever it is, the caller gets an error of ours
            raise self._told(method, error) from None

    async def stream(self, method: str, request: Message) -> AsyncIterator[Message]:
        """Answer a server-streaming call; raises a DejaqError and nothing else."""
        try:
            async for response in self.streams[method](request):
                yield response
        except Exception as error:  # noqa: BLE001 - whatever it is, the caller gets an error of ours
            raise self._told(method, error) from None

    async def upload(self, method: str, requests: AsyncIterator[Message]) -> Message:
        """Answer a client-streaming call; raises a DejaqError and nothing else."""
        try:
            return await self.uploads[method](requests)
        except Exception as error:  # noqa: BLE001 - whatever it is, the caller gets an error of ours
            raise self._told(method, error) from None

    def _told(self, method: str, error: Exception) -> DejaqError:
        if isinstance(error, StoreError):
            error = Unavailable("the broker's storage does not work now", details=str(error))
        elif not isinstance(error, DejaqError):
            log.error("%s failed", method, exc_info=error)
            error = InternalError()
        self.metrics.add(ERRORS, 1, error.code.name)
        return error


def services_of(
    *,
    overseer: OverseerService,
    peer: PeerService,
    queries: Queries,
    snapshots: Snapshots,
    transactions: Transactions,
    graves: Graves,
    cron: CronService,
    replies: Replies,
    bodies: Bodies,
    greeter: Greeter,
    metrics: Metrics,
) -> Services:
    """The table of every call, named as in the protocol."""
    return Services(
        unary={
            "Overseer.Info": overseer.info,
            "Overseer.Ping": overseer.ping,
            "Overseer.CreateTopic": overseer.create_topic,
            "Overseer.DescribeTopic": overseer.describe_topic,
            "Overseer.ListTopics": overseer.list_topics,
            "Overseer.DeleteTopic": overseer.delete_topic,
            "Carrier.Transact": transactions.transact,
            "Carrier.TransactMany": transactions.transact_many,
            "Peer.Nudge": peer.nudge,
            "Peer.AskBack": peer.ask_back,
            "Peer.LetGo": peer.let_go,
            "Peer.Learn": peer.learn,
            "Peer.Describe": peer.describe,
            "Peer.CreateTopic": peer.create_topic,
            "Carrier.Redrive": graves.redrive,
            "Carrier.Purge": graves.purge,
            "Cron.Put": cron.put,
            "Cron.List": cron.listed,
            "Cron.Change": cron.change,
            "Cron.Next": cron.coming,
            "Carrier.Await": replies.await_one,
            "Carrier.FindBody": bodies.find,
            "Carrier.Get": queries.get,
            "Carrier.Count": queries.count,
            "Carrier.Histogram": queries.histogram,
            "Carrier.OpenSnapshot": snapshots.open,
            "Carrier.CloseSnapshot": snapshots.close,
        },
        streams={
            "Carrier.Browse": queries.browse,
            "Carrier.Scan": snapshots.scan,
            "Carrier.Download": bodies.download,
        },
        uploads={"Carrier.Upload": bodies.upload},
        session=greeter.serve,
        metrics=metrics,
    )
