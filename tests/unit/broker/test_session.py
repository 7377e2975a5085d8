"""The state machine of a session: the commands allowed in each state, protocol versions, and invalid input."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from dejaq import limits
from dejaq.broker import Broker
from dejaq.domain.batch import Outcomes
from dejaq.domain.changes import Change, Create
from dejaq.domain.context import CallContext
from dejaq.errors import Code, Refused
from dejaq.protocol.v1 import carrier_pb2 as carrier
from dejaq.protocol.version import PROTOCOL
from dejaq.storage.memory.store import MemoryStorage
from dejaq.timekeeper.clock import VirtualClock
from tests.unit.broker.client import Batches, RawClient, create_topic, until
from tests.unit.broker.conftest import Connect

COMMANDS: dict[str, dict[str, Any]] = {
    "hello": {"hello": carrier.Hello(protocol=1)},
    "ping": {"ping": carrier.Ping(client_us=7)},
    "producer": {"producer": carrier.ProducerHandshake(topic="mail", group="billing")},
    "consumer": {"consumer": carrier.ConsumerHandshake(topic="mail", name="worker")},
    "create": {"create": Batches().natural(["a"], 0)},
    "edit": {"edit": carrier.EditBatch(ids=["a"], ts=[1])},
    "cancel": {"cancel": carrier.CancelBatch(ids=["a"])},
    "subscribe": {"subscribe": carrier.Subscribe(credit_rows=1, lease_ms=1_000)},
    "unsubscribe": {"unsubscribe": carrier.Unsubscribe()},
    "settle": {"settle": carrier.Settle(kind=carrier.DELETE, lease=1)},
    "recalled": {"recalled": carrier.RecallAnswer(lease=1)},
}
# How to reach each state, and the commands that it allows.
WAYS: dict[str, tuple[str, ...]] = {
    "connected": (),
    "idle": ("hello",),
    "producer": ("hello", "producer"),
    "consumer": ("hello", "consumer"),
    "subscribed": ("hello", "consumer", "subscribe"),
}
FITS: dict[str, set[str]] = {
    "connected": {"hello", "ping"},
    "idle": {"ping", "producer", "consumer"},
    "producer": {"ping", "create", "edit", "cancel"},
    "consumer": {"ping", "subscribe", "settle", "recalled"},
    "subscribed": {"ping", "subscribe", "unsubscribe", "settle", "recalled"},
}


@pytest.mark.parametrize("state", WAYS)
@pytest.mark.parametrize("command", COMMANDS)
async def test_a_command_is_done_in_its_state_and_refused_in_every_other(
    connect: Connect, broker: Broker, state: str, command: str
) -> None:
    client = await connect()
    for step in WAYS[state]:
        await client.ask(**COMMANDS[step])
    await until(lambda: [session.state for session in broker.central.greeter] == [state])
    if command == "recalled" and command in FITS[state]:
        await client.start(**COMMANDS[command])
        assert (await client.ask(**COMMANDS["ping"])).pong.client_us == 7
        return
    answer = await client.ask(**COMMANDS[command])
    refused = answer.WhichOneof("event") == "error" and answer.error.code == Code.OUT_OF_STATE
    assert refused == (command not in FITS[state])
    if refused:
        assert [session.state for session in broker.central.greeter] == [state]
        assert state in answer.error.message
        assert command in answer.error.message


async def test_unsubscribe_returns_to_the_state_consumer(connect: Connect, broker: Broker) -> None:
    client = await (await connect()).consume()
    await client.subscribe()
    await client.ask(**COMMANDS["unsubscribe"])
    assert [session.state for session in broker.central.greeter] == ["consumer"]


async def test_the_handshake_carries_versions_and_the_clock(connect: Connect, clock: VirtualClock) -> None:
    welcome = (await (await connect()).hello()).welcome
    assert (welcome.protocol, welcome.cluster, welcome.clock) == (PROTOCOL, "dejaq", clock.identity)
    assert welcome.broker_us == clock.now_us()


async def test_an_old_protocol_is_refused_and_a_newer_one_gets_the_version_of_the_broker(
    connect: Connect,
) -> None:
    client = await connect()
    answer = await client.ask(hello=carrier.Hello(protocol=0))
    assert answer.error.code == Code.VERSION_UNSUPPORTED
    assert not answer.error.retryable
    assert (await client.ask(hello=carrier.Hello(protocol=9))).welcome.protocol == PROTOCOL


MALFORMED: dict[str, carrier.ClientFrame] = {
    "no request": carrier.ClientFrame(ping=carrier.Ping()),
    "no command": carrier.ClientFrame(request=5),
    "nothing": carrier.ClientFrame(),
}


@pytest.mark.parametrize("kind", MALFORMED)
async def test_an_invalid_frame_is_answered_and_the_session_stays_open(connect: Connect, kind: str) -> None:
    client = await connect()
    frame = MALFORMED[kind]
    if frame.request:
        client._waiting[frame.request] = asyncio.get_running_loop().create_future()
        answer = client._waiting[frame.request]
        await client.send_raw(frame)
        assert (await answer).error.code == Code.INVALID_ARGUMENT
    else:
        await client.send_raw(frame)
        await until(lambda: client.errors)
        assert client.errors[0].error.code == Code.INVALID_ARGUMENT
    assert (await client.hello()).HasField("welcome")


def _batch(**columns: Any) -> carrier.CreateBatch:
    batch = Batches().natural(["a", "b"], 1_700_000_000_000)
    for name, value in columns.items():
        if isinstance(value, list):
            del getattr(batch, name)[:]
            getattr(batch, name).extend(value)
        else:
            setattr(batch, name, value)
    return batch


@pytest.mark.parametrize(
    "batch",
    [
        _batch(session=b"short"),
        _batch(session=b"elevenbytes"),
        _batch(ts=[]),
        _batch(ts=[1]),
        _batch(bodies=[b"x"]),
        _batch(ids=["a"]),
        _batch(priorities=[1]),
        _batch(headers=[b""]),
        _batch(bucket=4),
        _batch(sequence=2**32 - 1),
        _batch(ids=[], ts=[2, 1]),
    ],
)
async def test_a_malformed_batch_is_refused_as_a_whole(connect: Connect, batch: carrier.CreateBatch) -> None:
    client = await (await connect()).produce()
    answer = await client.ask(create=batch)
    assert answer.error.code == Code.INVALID_ARGUMENT
    assert not (await client.ask(create=Batches().natural(["c"], 0))).outcomes.codes


@pytest.mark.parametrize("topic", ["", "no such topic", "unknown", "x" * 129])
async def test_a_handshake_needs_an_existing_topic(connect: Connect, topic: str) -> None:
    client = await connect()
    await client.hello()
    for command in (
        {"producer": carrier.ProducerHandshake(topic=topic, group="g")},
        {"consumer": carrier.ConsumerHandshake(topic=topic, name="n")},
    ):
        expected = Code.TOPIC_NOT_FOUND if topic == "unknown" else Code.INVALID_TOPIC
        assert (await client.ask(**command)).error.code == expected


@pytest.mark.parametrize("name", ["", "x" * 65, "line\nbreak", "\x00"])
async def test_a_handshake_needs_a_readable_name(connect: Connect, name: str) -> None:
    client = await connect()
    await client.hello()
    for command in (
        {"producer": carrier.ProducerHandshake(topic="mail", group=name)},
        {"consumer": carrier.ConsumerHandshake(topic="mail", name=name)},
    ):
        assert (await client.ask(**command)).error.code == Code.INVALID_ARGUMENT
    assert (await client.ask(producer=carrier.ProducerHandshake(topic="mail", group="x" * 64))).HasField("outcomes")


class SlowStorage(MemoryStorage):
    """A memory store whose creates wait at a gate before they are answered."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = asyncio.Event()
        self.begun: list[str] = []

    async def apply(self, changes: Sequence[Change], now: int, context: CallContext) -> list[Outcomes | Refused]:
        outcomes = await super().apply(changes, now, context)
        self.begun += [change.batch.id_of(0) for change in changes if isinstance(change, Create)]
        await self.gate.wait()
        return outcomes


async def test_frames_are_pipelined_in_order_and_reading_pauses_when_answers_are_missing() -> None:
    storage = SlowStorage()
    async with Broker(storage=storage, drain_ms=0) as broker:
        transport = broker.transport()
        await create_topic(transport)
        client = await (await RawClient(transport).open()).produce()
        batches = Batches()
        names = [f"m{n}" for n in range(2 * limits.SESSION_INFLIGHT_MAX)]

        async def send_all() -> list[asyncio.Future[carrier.BrokerFrame]]:
            return [await client.start(create=batches.natural([name], 0)) for name in names]

        sending = asyncio.create_task(send_all())
        await until(lambda: len(storage.begun) == limits.SESSION_INFLIGHT_MAX)
        for _ in range(100):
            await asyncio.sleep(0)
        assert storage.begun == names[: limits.SESSION_INFLIGHT_MAX]
        assert not sending.done()
        storage.gate.set()
        for answer in await sending:
            assert not (await answer).outcomes.codes
        assert storage.begun == names


async def test_large_frames_are_read_only_within_the_memory_limit() -> None:
    """G8: memory."""
    storage = SlowStorage()
    async with Broker(storage=storage, drain_ms=0) as broker:
        transport = broker.transport()
        await create_topic(transport)
        client = await (await RawClient(transport).open()).produce()
        batches = Batches()
        bodies = [bytes(limits.BODY_BYTES_MAX)] * 7
        fit = limits.SESSION_INFLIGHT_BYTES_MAX // (7 * limits.BODY_BYTES_MAX)
        sent = []
        for n in range(fit + 2):
            ids = [f"m{n}-{i}" for i in range(7)]
            sent.append(await client.start(create=batches.natural(ids, 0, bodies=bodies)))
        await until(lambda: len(storage.begun) == fit)
        for _ in range(100):
            await asyncio.sleep(0)
        assert len(storage.begun) == fit
        storage.gate.set()
        for answer in sent:
            assert not (await answer).outcomes.codes


async def test_a_fault_of_the_broker_is_an_internal_error_of_one_request(
    connect: Connect,
    storage: MemoryStorage,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    client = await (await connect()).produce()

    async def broken(*_: object) -> None:
        raise ZeroDivisionError("planted")

    monkeypatch.setattr(storage, "apply", broken)
    assert (await client.ask(create=Batches().natural(["a"], 0))).error.code == Code.INTERNAL
    assert "planted" in caplog.text
    monkeypatch.undo()
    assert not (await client.ask(create=Batches().natural(["a"], 0))).outcomes.codes


async def test_the_requests_of_a_vanished_client_are_still_done(clock: VirtualClock) -> None:
    storage = SlowStorage()
    async with Broker(storage=storage, clock=clock, drain_ms=0) as broker:
        transport = broker.transport()
        await create_topic(transport)
        client = await (await RawClient(transport).open()).produce()
        await client.start(create=Batches().natural(["a"], 0))
        await until(lambda: storage.begun)
        closing = asyncio.create_task(client.close())
        storage.gate.set()
        await closing
        await until(lambda: not len(broker.central.greeter))
        found = await storage.get(broker.central.catalog.live("mail"), ["a"], clock.now_ms())
        assert found[0] is not None
