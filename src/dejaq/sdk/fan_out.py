"""Sends one message to several topics under one id."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from dejaq.errors import Code, Conflict, DejaqError
from dejaq.sdk.changing.transaction import Transaction
from dejaq.sdk.producing.outgoing import Headers
from dejaq.sdk.producing.producer import Producer
from dejaq.sdk.results import FanOut


@dataclass(frozen=True, slots=True)
class Copy:
    """The fields of the message, the same in every topic."""

    body: bytes
    ts: int
    id: str
    priority: int
    headers: Headers | None


class _MakeProducer(Protocol):
    def __call__(self, topic: str, *, group: str) -> Producer: ...


class _MakeTransaction(Protocol):
    def __call__(self, *, group: str) -> Transaction: ...


class FanOuts:
    """Sends copies: in one transaction, or with one producer per topic."""

    def __init__(self, producer: _MakeProducer, transaction: _MakeTransaction) -> None:
        self._make_producer = producer
        self._make_transaction = transaction
        self._producers: dict[tuple[str, str], asyncio.Task[Producer]] = {}

    async def close(self) -> None:
        """Wait until the producers that are being opened are open; the client closes them."""
        opening, self._producers = list(self._producers.values()), {}
        await asyncio.gather(*opening, return_exceptions=True)

    async def send(self, topics: Sequence[str], copy: Copy, *, group: str, atomic: bool | None) -> FanOut:
        """Send to every topic; with `atomic` None it tries a transaction first."""
        names = list(dict.fromkeys(topics))
        if atomic is not False:
            try:
                async with self._make_transaction(group=group) as t:
                    for topic in names:
                        t.send(topic, copy.body, at=copy.ts, id=copy.id, priority=copy.priority, headers=copy.headers)
                return FanOut(id=copy.id, codes=dict.fromkeys(names, Code.OK))
            except Conflict as error:
                if atomic or error.code is not Code.DIFFERENT_STORES:
                    raise
        codes = await asyncio.gather(*(self._send(topic, copy, group) for topic in names))
        return FanOut(id=copy.id, codes=dict(zip(names, codes, strict=True)))

    async def _send(self, topic: str, copy: Copy, group: str) -> Code:
        try:
            producer = await self._producer(topic, group)
            await producer.send(copy.body, at=copy.ts, id=copy.id, priority=copy.priority, headers=copy.headers)
        except DejaqError as error:
            return error.code
        return Code.OK

    async def _producer(self, topic: str, group: str) -> Producer:
        key = (topic, group)
        task = self._producers.get(key)
        if task is None or (task.done() and task.exception() is not None):
            task = self._producers[key] = asyncio.ensure_future(self._opened(topic, group))
        return await asyncio.shield(task)

    async def _opened(self, topic: str, group: str) -> Producer:
        producer = self._make_producer(topic, group=group)
        await producer.open()
        return producer
