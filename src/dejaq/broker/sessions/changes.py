"""The changes that a session's client asks for: what is checked before, who does them, and what the answer says."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from dejaq.broker.delivery.prepared import PreparedChange
from dejaq.domain.batch import Outcomes
from dejaq.domain.context import CallContext
from dejaq.errors import OutOfState, Refused
from dejaq.protocol.columns import write_outcomes
from dejaq.protocol.create_columns import CreateColumns
from dejaq.protocol.v1 import carrier_pb2 as carrier
from dejaq.storage.base import BeginsChanges

if TYPE_CHECKING:
    from dejaq.broker.sessions.broker_context import BrokerContext
    from dejaq.broker.sessions.session import Session

COMMANDS = frozenset({"create", "edit", "cancel", "settle", "deletes", "extends"})
Answers = asyncio.Future[list[Outcomes | Refused]]
Complete = Callable[[Sequence[Outcomes | Refused], carrier.BrokerFrame], None]


class SessionChanges:
    """Changes by the producer or the consumer of one session."""

    def __init__(self, session: Session, broker: BrokerContext) -> None:
        self._session = session
        self._broker = broker
        self._storage = broker.storage
        self._begin = broker.storage.begin if isinstance(broker.storage, BeginsChanges) else None

    async def answer(
        self, context: CallContext, command: str, frame: carrier.ClientFrame, answer: carrier.BrokerFrame
    ) -> None:
        """Do a change and write its answer; nothing is awaited before the call to the storage."""
        throttled_ms = self._admit(command, frame)
        outcomes = await self._do(context, command, frame)
        self._complete(command, outcomes, throttled_ms, answer)

    def is_direct(self, command: str | None, frame: carrier.ClientFrame) -> bool:
        """Whether the change can be begun without a task: it needs nothing but one call to the storage."""
        if self._begin is None:
            return False
        if command == "create":
            return self._session.producer is not None and not frame.create.digests
        if self._session.consumer is None:
            return False
        return command == "deletes" or (command == "settle" and frame.settle.kind == carrier.DELETE)

    def begin(
        self, context: CallContext, command: str, frame: carrier.ClientFrame, columns: CreateColumns | None
    ) -> tuple[Answers, Complete]:
        """Begin a direct change; returns what to wait for, and what writes the answer then or raises why not.

        `columns` has those columns of a create that are not in the frame.
        """
        throttled_ms = self._admit(command, frame, columns)
        change = self._prepare(command, frame, columns)
        answers = None if self._begin is None else self._begin(change.changes, change.now, context)
        if answers is None:
            answers = asyncio.ensure_future(self._storage.apply(change.changes, change.now, context))

        def complete(found: Sequence[Outcomes | Refused], answer: carrier.BrokerFrame) -> None:
            self._complete(command, change.finish(found), throttled_ms, answer)

        return answers, complete

    def _admit(self, command: str, frame: carrier.ClientFrame, columns: CreateColumns | None = None) -> int:
        """Check that the change may be made now; how long the client should wait before its next, in ms."""
        if self._session.topic is not None:
            self._broker.catalog.check(self._session.topic)
        self._broker.doctor.admit(command)
        return self._throttle(command, frame, columns)

    def _throttle(self, command: str, frame: carrier.ClientFrame, columns: CreateColumns | None) -> int:
        """Count an owner's change; how long the client should wait before its next."""
        producer = self._session.producer
        if producer is None or not (self._broker.quotas.quotas.quotas or producer.topic.settings.client_rate):
            return 0
        creates, change = command == "create", getattr(frame, command)
        rows = len(change.ts) if creates else len(change.ids)
        topic, bodies = producer.topic, () if command == "cancel" else (columns or change).bodies
        wait = self._broker.quotas.take(self._session.context, topic, rows, creates=creates, bodies=bodies)
        return max(wait, self._broker.throttles.take(topic, self._session.client, rows))

    def _complete(self, command: str, outcomes: Outcomes, throttled_ms: int, answer: carrier.BrokerFrame) -> None:
        self._session.rights.changed(command, outcomes.count)
        self._broker.doctor.confirm()
        answer.outcomes.SetInParent()
        if throttled_ms:
            answer.outcomes.throttled_ms = throttled_ms
        write_outcomes(answer.outcomes, outcomes)

    async def _do(self, context: CallContext, command: str, frame: carrier.ClientFrame) -> Outcomes:
        producer, consumer = self._session.producer, self._session.consumer
        if producer is not None:
            if command == "create":
                return await producer.create(context, frame.create)
            if command == "edit":
                return await producer.edit(context, frame.edit)
            return await producer.cancel(context, frame.cancel)
        if consumer is None:
            raise OutOfState(f"{command!r} needs a handshake first")
        if command == "deletes":
            return await consumer.prepare_deletes(frame.deletes).apply(self._storage, context)
        if command == "extends":
            return await consumer.extend(context, frame.extends)
        return await consumer.settle(context, frame.settle)

    def _prepare(self, command: str, frame: carrier.ClientFrame, columns: CreateColumns | None) -> PreparedChange:
        """A direct change, as the storage gets it."""
        producer, consumer = self._session.producer, self._session.consumer
        if producer is not None:
            return producer.prepare(frame.create, columns)
        if consumer is None:
            raise OutOfState(f"{command!r} needs a handshake first")
        return (
            consumer.prepare_deletes(frame.deletes) if command == "deletes" else consumer.prepare_delete(frame.settle)
        )
