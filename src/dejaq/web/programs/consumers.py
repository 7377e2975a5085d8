"""The consumers of one program, and the messages that it holds."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field

import msgspec

from dejaq.errors import Code, DejaqError, error_of
from dejaq.sdk.client import Client
from dejaq.sdk.consuming.consumer import Consumer
from dejaq.sdk.consuming.lease import Lease
from dejaq.web.api.operations.receiving import lease_value
from dejaq.web.api.times import parse_time
from dejaq.web.api.values import decoded_body
from dejaq.web.leases import HeldByClient
from dejaq.web.problem import problem_of
from dejaq.web.programs.frames import Leased, OpenCall, SettleCall

CONSUMERS_MAX = 16
# Expired leases are looked for this often.
SWEEP_SECONDS = 2.0


@dataclass(slots=True, eq=False)
class _OpenConsumer:
    number: int
    consumer: Consumer
    credit: int
    held: dict[str, Lease] = field(default_factory=dict)
    # Set when a message was settled, so that others fit into the credit.
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    task: asyncio.Task[None] | None = None


class ProgramConsumers:
    """Opens consumers and settles their messages by lease id."""

    def __init__(self, client: Client, send: Callable[[msgspec.Struct], Awaitable[None]]) -> None:
        self._client = client
        self._send = send
        self._consumers: dict[int, _OpenConsumer] = {}
        self._owners: dict[str, _OpenConsumer] = {}
        self._last = 0

    async def open(self, call: OpenCall) -> int:
        """Subscribe; returns the number of the consumer."""
        if len(self._consumers) >= CONSUMERS_MAX:
            raise error_of(Code.LIMIT_EXCEEDED, f"a program has at most {CONSUMERS_MAX} consumers")
        self._last += 1
        consumer = self._client.consumer(
            call.topic,
            name=call.name,
            lease=call.lease,
            max_in_flight=call.credit,
            auto_extend=False,
            wait_through_outages=False,
        )
        opened = self._consumers[self._last] = _OpenConsumer(self._last, consumer, call.credit)
        try:
            await consumer.open()
        except BaseException:
            del self._consumers[opened.number]
            await consumer.close()
            raise
        opened.task = asyncio.ensure_future(self._push(opened))
        return opened.number

    async def _push(self, opened: _OpenConsumer) -> None:
        """Send leases while there is credit, until the consumer ends."""
        try:
            while True:
                self._forget_expired(opened)
                free = opened.credit - len(opened.held)
                if free <= 0:
                    opened.changed.clear()
                    with suppress(TimeoutError):
                        await asyncio.wait_for(opened.changed.wait(), SWEEP_SECONDS)
                    continue
                try:
                    batch = await opened.consumer.take(free, timeout=SWEEP_SECONDS)
                except TimeoutError:
                    continue
                values = []
                for lease in batch:
                    lease_id = secrets.token_urlsafe(18)
                    opened.held[lease_id] = lease
                    self._owners[lease_id] = opened
                    values.append(lease_value(HeldByClient(lease_id, lease)))
                await self._send(Leased(opened.number, values))
        except DejaqError as error:
            await self._send(Leased(opened.number, [], error=problem_of(error)))
        except StopAsyncIteration:
            pass

    def _forget_expired(self, opened: _OpenConsumer) -> None:
        for lease_id, lease in list(opened.held.items()):
            if lease.expired or lease.settled:
                self._forget(opened, lease_id)

    def _forget(self, opened: _OpenConsumer, lease_id: str) -> None:
        opened.held.pop(lease_id, None)
        self._owners.pop(lease_id, None)
        opened.changed.set()

    async def settle(self, call: SettleCall, now_ms: int) -> int | None:
        """Settle or extend a lease; returns its new end when it was extended. Raises LEASE_LOST."""
        opened, lease = self._held(call.lease)
        if call.how == "extend":
            await lease.extend(call.seconds)
            return lease.expires_ms
        if call.how == "progress":
            await lease.progress(call.text)
            return None
        try:
            if call.how == "delete" and call.reply is not None:
                body = decoded_body(call.reply.body, call.reply.body_base64) or b""
                await lease.delete(reply=body, headers=call.reply.headers or None)
            elif call.how == "delete":
                await lease.delete()
            elif call.how == "release":
                at = parse_time(call.at, now_ms)
                if at is not None and call.delay is not None:
                    raise error_of(Code.INVALID_ARGUMENT, "give one of at and delay")
                await lease.release(at=at, delay=call.delay)
            else:
                await lease.reject(call.reason or "rejected")
        finally:
            if lease.settled or lease.expired:
                self._forget(opened, call.lease)
        return None

    def _held(self, lease_id: str) -> tuple[_OpenConsumer, Lease]:
        opened = self._owners.get(lease_id)
        if opened is None:
            raise error_of(Code.LEASE_LOST, "this program holds no message under this lease id")
        return opened, opened.held[lease_id]

    def find(self, topic: str, lease_id: str) -> Lease:
        """The message that the program holds, for an operation of the API; raises LEASE_LOST."""
        lease = self._held(lease_id)[1]
        if lease.topic != topic:
            raise error_of(Code.LEASE_LOST, f"the message under this lease id is not of topic {topic!r}")
        return lease

    def forget(self, lease_id: str) -> None:
        """An operation of the API has settled the message."""
        if (opened := self._owners.get(lease_id)) is not None:
            self._forget(opened, lease_id)

    async def end(self, number: int) -> None:
        """Close a consumer and return its messages; raises NOT_FOUND."""
        opened = self._consumers.pop(number, None)
        if opened is None:
            raise error_of(Code.NOT_FOUND, f"this program has no consumer {number}")
        await self._close(opened)

    async def _close(self, opened: _OpenConsumer) -> None:
        if opened.task is not None:
            opened.task.cancel()
            await asyncio.gather(opened.task, return_exceptions=True)
        # Delivered again now, and not when the leases end.
        returned = [lease.release() for lease in opened.held.values() if not (lease.expired or lease.settled)]
        await asyncio.gather(*returned, return_exceptions=True)
        for lease_id in list(opened.held):
            self._forget(opened, lease_id)
        with suppress(DejaqError):
            await opened.consumer.close()

    async def close(self) -> None:
        """Close all of them."""
        opened, self._consumers = list(self._consumers.values()), {}
        await asyncio.gather(*map(self._close, opened))
