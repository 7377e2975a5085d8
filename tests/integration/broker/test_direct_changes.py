"""Creates and deletes over WebSocket that the broker begins when they arrive, without a task for each frame."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from dejaq.broker import Broker
from dejaq.broker.metrics import DELETED
from dejaq.broker.sessions.session import Session
from dejaq.domain.batch import Outcomes
from dejaq.errors import Code, Indefinite, Refused
from dejaq.protocol.v1 import carrier_pb2 as carrier
from dejaq.protocol.version import PROTOCOL
from dejaq.protocol.websocket.transport import WebSocketTransport
from dejaq.storage.base import Filter
from tests.unit.broker.client import Batches, RawClient, create_topic, until

FUTURE = time.time_ns() // 1_000_000 + 3_600_000


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[Broker]:
    async with Broker(tmp_path / "data", listen="127.0.0.1:0", drain_ms=0) as broker:
        yield broker


@pytest.fixture
async def transport(broker: Broker) -> AsyncIterator[WebSocketTransport]:
    transport = WebSocketTransport(broker.address)
    await create_topic(transport, buckets=4)
    yield transport
    await transport.close()


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """For each frame that was offered, whether it was begun at once."""
    answers: list[bool] = []
    take = Session.take

    def recorded(session: Session, received: bytes) -> bool:
        answers.append(take(session, received))
        return answers[-1]

    monkeypatch.setattr(Session, "take", recorded)
    return answers


def code_of(answer: carrier.BrokerFrame) -> Code:
    """The outcome of the only row, or the error of the frame."""
    if answer.HasField("error"):
        return Code(answer.error.code)
    return Code(answer.outcomes.codes[0]) if answer.outcomes.codes else Code.OK


async def test_a_bad_frame_among_others_has_its_own_error(
    broker: Broker, transport: WebSocketTransport, taken: list[bool]
) -> None:
    client = await (await RawClient(transport).open()).produce()
    taken.clear()
    batches = [Batches(n).natural([f"m{n}"], FUTURE) for n in range(20)]
    batches[3].ids[0] = "m2"
    batches[7].ids[0] = "x" * 1_000
    batches[11].session = b"not a session"
    batches[13].sequence = 5
    batches[13].acknowledged = 6
    answers = await asyncio.gather(*[await client.start(create=batch) for batch in batches])
    codes = {n: code_of(answer) for n, answer in enumerate(answers) if code_of(answer) is not Code.OK}
    invalid = Code.INVALID_ARGUMENT
    assert codes == {3: Code.ALREADY_EXISTS, 7: Code.INVALID_ID, 11: invalid, 13: invalid}
    assert taken == [True] * 20
    topic = broker.central.catalog.live("mail")
    assert await broker.central.storage.count(topic, Filter(), 0) == 16
    await client.close()


async def test_deletes_are_answered_row_by_row_and_free_the_credit(
    broker: Broker, transport: WebSocketTransport, taken: list[bool]
) -> None:
    producer = await (await RawClient(transport).open()).produce()
    await producer.ask(create=Batches().natural([f"m{n}" for n in range(40)], time.time_ns() // 1_000_000))
    consumer = await (await (await RawClient(transport).open()).consume()).subscribe(rows=20)
    await until(lambda: len(consumer.received()) == 20)
    lease = consumer.pushes[0].lease
    taken.clear()
    deletes = [carrier.Settle(kind=carrier.DELETE, lease=lease, ranges=[row, row + 1]) for row in (0, 1, 1, 2)]
    deletes.append(carrier.Settle(kind=carrier.DELETE, lease=lease + 99, ranges=[0, 1]))
    deletes.append(carrier.Settle(kind=carrier.DELETE, lease=lease, ranges=[1]))
    answers = await asyncio.gather(*[await consumer.start(settle=settle) for settle in deletes])
    ok, lost = Code.OK, Code.LEASE_LOST
    assert [code_of(answer) for answer in answers] == [ok, ok, lost, ok, lost, Code.INVALID_ARGUMENT]
    assert taken == [True] * 6
    await until(lambda: len(consumer.received()) == 23)
    assert broker.central.metrics.value(DELETED, "mail") == 3
    await consumer.close()
    await producer.close()


async def test_frames_behind_one_that_waits_are_done_in_order(transport: WebSocketTransport) -> None:
    """All commands of a producer are sent without waiting for any answer."""
    client = await RawClient(transport).open()
    waiting = [
        await client.start(hello=carrier.Hello(protocol=PROTOCOL, sdk="raw", client="test", clock="none")),
        await client.start(producer=carrier.ProducerHandshake(topic="mail", group="billing")),
        await client.start(create=Batches(1).natural(["a"], FUTURE)),
        await client.start(cancel=carrier.CancelBatch(ids=["a"])),
        await client.start(create=Batches(2).natural(["a"], FUTURE)),
        await client.start(create=Batches(3).natural(["a"], FUTURE)),
    ]
    codes = [code_of(answer) for answer in await asyncio.gather(*waiting)]
    assert codes == [Code.OK] * 5 + [Code.ALREADY_EXISTS]
    await client.close()


async def test_a_store_that_fails_answers_every_frame(
    broker: Broker, transport: WebSocketTransport, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = await (await RawClient(transport).open()).produce()
    failed: list[asyncio.Future[list[Outcomes | Refused]]] = []

    def begin(*_: object) -> asyncio.Future[list[Outcomes | Refused]]:
        failed.append(asyncio.get_running_loop().create_future())
        failed[-1].get_loop().call_soon(failed[-1].set_exception, Indefinite("the storage failed while writing"))
        return failed[-1]

    session = next(iter(broker.central.greeter))
    monkeypatch.setattr(session._changes, "_begin", begin)
    answers = await asyncio.gather(
        *[await client.start(create=Batches(n).natural([f"m{n}"], FUTURE)) for n in range(5)]
    )
    assert [code_of(answer) for answer in answers] == [Code.INDEFINITE] * 5
    assert len(failed) == 5
    await client.close()


async def test_a_session_that_ends_waits_for_the_answers_of_its_changes(
    broker: Broker, transport: WebSocketTransport
) -> None:
    client = await (await RawClient(transport).open()).produce()
    waiting = [await client.start(create=Batches(n).natural([f"m{n}"], FUTURE)) for n in range(10)]
    await until(lambda: next(iter(broker.central.greeter))._under_way)
    next(iter(broker.central.greeter)).end(Indefinite("the test ends it"))
    began = time.monotonic()
    assert [code_of(answer) for answer in await asyncio.gather(*waiting)] == [Code.OK] * 10
    await until(lambda: client.ended)
    assert time.monotonic() - began < 5
    await client.close()
