"""A client that sends raw frames, and helpers to wait for conditions."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

from dejaq.domain.ids import ProducerSession
from dejaq.domain.topic import TopicSettings
from dejaq.errors import Unavailable
from dejaq.protocol.columns import settings_to_proto
from dejaq.protocol.transport import Transport
from dejaq.protocol.v1 import carrier_pb2 as carrier
from dejaq.protocol.v1 import overseer_pb2 as overseer
from dejaq.protocol.version import PROTOCOL
from dejaq.testing.waiting import patient

DEADLINE_SECONDS = 10.0


async def until(condition: Callable[[], object]) -> None:
    """Let the event loop run until the condition is true."""
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not condition():
        assert time.monotonic() < deadline, "the condition did not become true"
        await asyncio.sleep(0)


async def create_topic(transport: Transport, name: str = "mail", **settings: Any) -> overseer.TopicResponse:
    request = overseer.CreateTopicRequest(name=name, settings=settings_to_proto(TopicSettings(**settings)))
    return await transport.call("Overseer.CreateTopic", request, overseer.TopicResponse, 5.0)


class RawClient:
    """One session; it stores answers by request number, and other frames of the broker in lists."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._request = 0
        self._waiting: dict[int, asyncio.Future[carrier.BrokerFrame]] = {}
        self.pushes: list[carrier.Push] = []
        self.recalls: list[carrier.BrokerFrame] = []
        self.errors: list[carrier.BrokerFrame] = []
        self.draining = False
        self.ended = False
        # Called with every recall; returns the rows to release, or None to send no answer.
        self.on_recall: Callable[[carrier.Recall], list[int] | None] = lambda recall: None

    async def open(self) -> RawClient:
        self._channel = await self._transport.session()
        self._reader = asyncio.create_task(self._read())
        return self

    async def close(self) -> None:
        await self._channel.close()
        await asyncio.wait((self._reader,))

    async def _read(self) -> None:
        try:
            while (frame := await self._channel.receive()) is not None:
                await self._take(frame)
        except Unavailable:
            # The connection of the broker ended without a final frame.
            pass
        self.ended = True

    async def _take(self, frame: carrier.BrokerFrame) -> None:
        event = frame.WhichOneof("event")
        if event == "push":
            self.pushes.append(frame.push)
        elif event == "draining":
            self.draining = True
        elif event == "recall":
            self.recalls.append(frame)
            rows = self.on_recall(frame.recall)
            if rows is not None:
                answer = carrier.RecallAnswer(lease=frame.recall.lease, rows=rows)
                await self.send_raw(carrier.ClientFrame(request=frame.request, recalled=answer))
        elif frame.request == 0:
            self.errors.append(frame)
        else:
            self._waiting.pop(frame.request).set_result(frame)

    async def send_raw(self, frame: carrier.ClientFrame) -> None:
        await self._channel.send(frame)

    async def start(self, **command: Any) -> asyncio.Future[carrier.BrokerFrame]:
        """Send a command and return the future of its answer."""
        self._request += 1
        future = self._waiting[self._request] = asyncio.get_running_loop().create_future()
        await self.send_raw(carrier.ClientFrame(request=self._request, **command))
        return future

    async def ask(self, **command: Any) -> carrier.BrokerFrame:
        """Send a command and wait for its answer."""
        return await asyncio.wait_for(await self.start(**command), patient(DEADLINE_SECONDS))

    async def hello(self) -> carrier.BrokerFrame:
        return await self.ask(hello=carrier.Hello(protocol=PROTOCOL, sdk="raw", client="test", clock="none"))

    async def produce(self, topic: str = "mail", group: str = "billing") -> RawClient:
        await self.hello()
        answer = await self.ask(producer=carrier.ProducerHandshake(topic=topic, group=group))
        assert answer.HasField("outcomes"), answer
        return self

    async def consume(self, name: str = "worker", topic: str = "mail") -> RawClient:
        await self.hello()
        answer = await self.ask(consumer=carrier.ConsumerHandshake(topic=topic, name=name))
        assert answer.HasField("outcomes"), answer
        return self

    async def subscribe(
        self, *, rows: int = 1_000, lease_ms: int = 30_000, prefetch_ms: int = 0, size: int = 0
    ) -> RawClient:
        answer = await self.ask(
            subscribe=carrier.Subscribe(credit_rows=rows, credit_bytes=size, lease_ms=lease_ms, prefetch_ms=prefetch_ms)
        )
        assert answer.HasField("outcomes"), answer
        return self

    async def settle(self, kind: carrier.SettleKind, lease: int, **fields: Any) -> carrier.BrokerFrame:
        return await self.ask(settle=carrier.Settle(kind=kind, lease=lease, **fields))

    def received(self) -> list[str]:
        """The ids of every row pushed so far."""
        return [message_id for push in self.pushes for message_id in ids_of(push)]


def ids_of(push: carrier.Push) -> list[str]:
    ids: list[str] = []
    taken = 0
    for span in push.spans:
        if span.prefix:
            ids += [f"{span.prefix}{span.first + i:08x}" for i in range(span.count)]
        else:
            ids += push.ids[taken : taken + span.count]
            taken += span.count
    return ids


class Batches:
    """Builds the create batches of one producer session."""

    def __init__(self, number: int = 1) -> None:
        self.session = ProducerSession(1_700_000_000_000, number).pack()
        self.sequence = 0

    def natural(self, ids: list[str], ts: int | list[int], **columns: Any) -> carrier.CreateBatch:
        times = [ts] * len(ids) if isinstance(ts, int) else ts
        columns.setdefault("bodies", [b"body"] * len(ids))
        batch = carrier.CreateBatch(session=self.session, sequence=self.sequence, ids=ids, ts=times, **columns)
        self.sequence += len(ids)
        return batch

    def generated(self, ts: list[int], bucket: int = 0, body: bytes = b"body") -> carrier.CreateBatch:
        batch = carrier.CreateBatch(
            session=self.session, sequence=self.sequence, bucket=bucket, ts=ts, bodies=[body] * len(ts)
        )
        self.sequence += len(ts)
        return batch
