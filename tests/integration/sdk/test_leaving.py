"""What a consumer that leaves sends, and when."""

from __future__ import annotations

import pytest

import dejaq
from dejaq.protocol.v1 import carrier_pb2 as carrier
from dejaq.testing.waiting import eventually
from tests.integration.sdk.conftest import TOPIC
from tests.integration.sdk.cutting import CuttingSession, CuttingTransport


async def test_unseen_messages_leave_before_the_request_to_unsubscribe_is_answered(
    client: dejaq.Client, producer: dejaq.Producer, wire: CuttingTransport, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other consumers wait for them, and each round trip makes them later."""
    receive = CuttingSession.receive

    async def receive_late(session: CuttingSession) -> carrier.BrokerFrame | None:
        frame = await receive(session)
        asked = {sent.request for sent in wire.frames if sent.WhichOneof("command") == "unsubscribe"}
        if frame is not None and frame.request in asked:
            await eventually(lambda: "settle" in wire.sent, within=5, what="the consumer returns its messages")
        return frame

    monkeypatch.setattr(CuttingSession, "receive", receive_late)
    await producer.send_batch([b"x"] * 3, delay=1)
    async with client.consumer(TOPIC, name="leaving", prefetch=5.0) as consumer:
        await eventually(lambda: consumer._holder.next_ts is not None, within=5)
    assert wire.sent.index("settle") > wire.sent.index("unsubscribe")
    assert await client.count(TOPIC, status="processing") == 0
