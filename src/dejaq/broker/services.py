"""The broker's calls by name, whatever carries them: gRPC and the in-process transport serve the same table."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from google.protobuf.message import Message

from dejaq.broker.access.gate import CallerGate
from dejaq.broker.calls.access import AccessService
from dejaq.broker.calls.bodies import BodyCalls
from dejaq.broker.calls.dead_letters import DeadLetterCalls
from dejaq.broker.calls.history import HistoryCalls
from dejaq.broker.calls.logs import LogService
from dejaq.broker.calls.overseer import OverseerService
from dejaq.broker.calls.queries import QueryCalls
from dejaq.broker.calls.replies import ReplyCalls
from dejaq.broker.calls.rights import RightsCalls
from dejaq.broker.calls.snapshots import Snapshots
from dejaq.broker.calls.transactions import Transactions
from dejaq.broker.cluster.service import PeerService
from dejaq.broker.cron.service import CronService
from dejaq.broker.doctor import cannot_serve
from dejaq.broker.metrics import ERRORS, Metrics
from dejaq.broker.rights.audit import SecurityAudit
from dejaq.broker.rights.audited import note
from dejaq.broker.rights.guard import Guard
from dejaq.broker.sessions.greeter import Greeter
from dejaq.broker.sessions.session import Frames, Send
from dejaq.domain.context import CallContext
from dejaq.errors import DejaqError, InternalError, StoreError

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Calls:
    """Unary calls by name."""

    unary: dict[str, Callable[[CallContext, Any], Awaitable[Message]]]
    metrics: Metrics

    async def call(self, context: CallContext, method: str, request: Message) -> Message:
        """Answer a unary call; raises a DejaqError and nothing else."""
        try:
            return await self.unary[method](context, request)
        except Exception as error:  # noqa: BLE001 - whatever it is, the caller gets an error of ours
            raise self._answered(context, method, error) from None

    def _answered(self, context: CallContext, method: str, error: Exception) -> DejaqError:
        if isinstance(error, StoreError):
            error = cannot_serve(error)
        elif not isinstance(error, DejaqError):
            log.error(
                "%s failed (request %s)",
                method,
                context.request_id,
                exc_info=error,
                extra=context.log_fields(event="call_failed", method=method),
            )
            error = InternalError(details=f"request {context.request_id}")
        self.metrics.add(ERRORS, 1, error.code.name)
        error.answered = True
        return error


@dataclass(frozen=True, slots=True)
class Services(Calls):
    """What a client can call: unary calls, server streams, client streams, and the session.

    Every call passes the guard before it is done; sessions pass it with each frame.
    """

    guard: Guard
    audit: SecurityAudit
    streams: dict[str, Callable[[CallContext, Any], AsyncIterator[Message]]]
    uploads: dict[str, Callable[[CallContext, Any], Awaitable[Message]]]
    session: Callable[[CallContext, Frames, Send], Awaitable[None]]
    # Callers pass it before a call or session begins, where they arrive over a network.
    gate: CallerGate

    async def call(self, context: CallContext, method: str, request: Message) -> Message:
        """Answer a unary call; raises a DejaqError and nothing else."""
        try:
            masked = self.guard.admit(context, method, request)
            response = await self.unary[method](context, request)
            note(self.audit, context, method, request, response)
            if masked:
                self.guard.mask(method, response)
            return response
        except Exception as error:  # noqa: BLE001 - whatever it is, the caller gets an error of ours
            raise self._answered(context, method, error) from None

    async def stream(self, context: CallContext, method: str, request: Message) -> AsyncIterator[Message]:
        """Answer a server-streaming call; raises a DejaqError and nothing else."""
        try:
            masked = self.guard.admit(context, method, request)
            async for response in self.streams[method](context, request):
                if masked:
                    self.guard.mask(method, response)
                yield response
        except Exception as error:  # noqa: BLE001 - whatever it is, the caller gets an error of ours
            raise self._answered(context, method, error) from None

    async def upload(self, context: CallContext, method: str, requests: AsyncIterator[Message]) -> Message:
        """Answer a client-streaming call; raises a DejaqError and nothing else."""
        try:
            return await self.uploads[method](context, self._admitted(context, method, requests))
        except Exception as error:  # noqa: BLE001 - whatever it is, the caller gets an error of ours
            raise self._answered(context, method, error) from None

    async def _admitted(
        self, context: CallContext, method: str, requests: AsyncIterator[Message]
    ) -> AsyncIterator[Message]:
        """The frames of an upload: its head passes the guard before the call sees it, and parts come after a head."""
        async for request in requests:
            if request.HasField("head"):
                self.guard.admit(context, method, request.head)
            yield request


def peer_calls_of(
    *,
    peer: PeerService,
    overseer: OverseerService,
    histories: HistoryCalls,
    access: AccessService,
    metrics: Metrics,
) -> Calls:
    """The table of every call of other brokers."""
    return Calls(
        unary={
            "Overseer.Ping": overseer.ping,
            "Peer.Nudge": peer.notify,
            "Peer.AskBack": peer.recall,
            "Peer.Settled": peer.settled,
            "Peer.Progress": peer.progress,
            "Peer.LetGo": peer.let_go,
            "Peer.Learn": peer.learn,
            "Peer.Describe": peer.describe,
            "Peer.Sessions": access.sessions_here,
            "Peer.History": histories.here,
            "Peer.CreateTopic": peer.create_topic,
        },
        metrics=metrics,
    )


def _access_calls(access: AccessService) -> dict[str, Callable[[CallContext, Any], Awaitable[Message]]]:
    return {
        "Access.WhoAmI": access.who_am_i,
        "Access.CreateKey": access.create_key,
        "Access.ListKeys": access.list_keys,
        "Access.RevokeKey": access.revoke_key,
        "Access.ListSessions": access.list_sessions,
        "Access.EndSession": access.end_session,
    }


def services_of(
    *,
    overseer: OverseerService,
    queries: QueryCalls,
    histories: HistoryCalls,
    snapshots: Snapshots,
    transactions: Transactions,
    dead_letters: DeadLetterCalls,
    cron: CronService,
    replies: ReplyCalls,
    bodies: BodyCalls,
    logs: LogService,
    greeter: Greeter,
    rights: RightsCalls,
    guard: Guard,
    audit: SecurityAudit,
    access: AccessService,
    gate: CallerGate,
    metrics: Metrics,
) -> Services:
    """The table of every call of clients, named as in the protocol."""
    return Services(
        guard=guard,
        audit=audit,
        unary={
            "Overseer.Info": overseer.info,
            "Overseer.Ping": overseer.ping,
            "Overseer.CreateTopic": overseer.create_topic,
            "Overseer.EditTopic": overseer.edit_topic,
            "Overseer.RekeyTopic": overseer.rekey_topic,
            "Overseer.DescribeTopic": overseer.describe_topic,
            "Overseer.ListTopics": overseer.list_topics,
            "Overseer.Copies": overseer.copies,
            "Overseer.DeleteTopic": overseer.delete_topic,
            "Overseer.Checkpoint": overseer.checkpoint,
            "Carrier.Transact": transactions.transact,
            "Carrier.TransactMany": transactions.transact_many,
            "Carrier.Redrive": dead_letters.redrive,
            "Carrier.Purge": dead_letters.purge,
            "Cron.Put": cron.put,
            "Cron.List": cron.listed,
            "Cron.Change": cron.change,
            "Cron.Next": cron.coming,
            **logs.calls(),
            **_access_calls(access),
            "Carrier.Await": replies.await_one,
            "Carrier.FindBody": bodies.find,
            "Rights.List": rights.listed,
            "Rights.Put": rights.put,
            "Rights.Remove": rights.remove,
            "Rights.Check": rights.check,
            "Rights.SetQuota": rights.set_quota,
            "Rights.ListQuotas": rights.quotas,
            "Carrier.Get": queries.get,
            "Carrier.Count": queries.count,
            "Carrier.Histogram": queries.histogram,
            "Carrier.History": histories.history,
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
        gate=gate,
        metrics=metrics,
    )
