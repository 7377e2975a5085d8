"""Every call has a context, and the log record of a failure has the request id that the client received."""

from __future__ import annotations

import asyncio
import inspect
import logging
from typing import Any

import pytest

from dejaq.broker import Broker
from dejaq.broker.context import begin_call, bound
from dejaq.broker.inprocess import InProcessTransport
from dejaq.domain.context import ANONYMOUS, IN_PROCESS, CallContext, Principal
from dejaq.errors import InternalError
from dejaq.protocol.v1 import carrier_pb2 as carrier
from dejaq.protocol.v1 import errors_pb2
from dejaq.protocol.v1 import overseer_pb2 as overseer
from dejaq.storage.memory.store import MemoryStorage
from dejaq.testing.model.replay import events_of, read_journal
from dejaq.testing.waiting import patient
from dejaq.timekeeper.clock import VirtualClock
from tests.unit.broker.client import Batches, RawClient, create_topic, until
from tests.unit.broker.conftest import Connect


def test_every_call_of_both_tables_takes_a_context_first(broker: Broker) -> None:
    services, peers = broker.central.services, broker.central._peer_calls
    calls: dict[str, Any] = {**services.unary, **services.streams, **services.uploads, **peers.unary}
    calls["Carrier.Session"] = services.session
    assert len(calls) > 30
    for name, call in calls.items():
        first = next(iter(inspect.signature(call).parameters.values()))
        assert first.annotation == "CallContext", f"{name} takes {first}"


async def test_a_deadline_limits_the_waits_of_a_call() -> None:
    assert bound(begin_call("a peer"), 5) == 5
    context = begin_call("a peer", seconds=2)
    assert context.principal is ANONYMOUS
    assert 1 < bound(context, 5) <= 2
    assert bound(context, 0.5) == 0.5
    assert bound(begin_call("a peer", seconds=-1), 5) == 0
    assert context.of_frame(7).deadline == context.deadline


async def test_a_call_does_not_wait_for_a_message_beyond_its_deadline(
    broker: Broker, transport: InProcessTransport
) -> None:
    request = carrier.AwaitRequest(topic="mail", id="not-there", timeout_ms=60_000)
    context = begin_call("a peer", seconds=0)
    answer = await asyncio.wait_for(broker.central.services.call(context, "Carrier.Await", request), patient(5))
    assert isinstance(answer, carrier.MessageColumns)
    assert not answer.ts


def _record_of(caplog: pytest.LogCaptureFixture) -> dict[str, Any]:
    (record,) = [record for record in caplog.records if record.levelno == logging.ERROR]
    fields: dict[str, Any] = vars(record)["dejaq"]
    assert fields["request_id"] in record.getMessage()
    return fields


async def test_the_log_record_of_a_failed_call_has_its_request_id(
    transport: InProcessTransport, storage: MemoryStorage, caplog: pytest.LogCaptureFixture, monkeypatch: Any
) -> None:
    async def count(*_: object) -> int:
        raise ZeroDivisionError("a defect")

    monkeypatch.setattr(storage, "count", count)
    with pytest.raises(InternalError) as failed:
        await transport.call("Overseer.ListTopics", overseer.ListTopicsRequest(), overseer.ListTopicsResponse, 5)
    fields = _record_of(caplog)
    assert fields["method"] == "Overseer.ListTopics"
    assert (fields["peer"], fields["principal"]) == (IN_PROCESS, ANONYMOUS.name)
    assert failed.value.details == f"request {fields['request_id']}"


async def test_the_log_record_of_a_failed_frame_has_its_request_id(
    connect: Connect, storage: MemoryStorage, caplog: pytest.LogCaptureFixture, monkeypatch: Any
) -> None:
    producer = await (await connect()).produce()

    async def apply(*_: object) -> None:
        raise ZeroDivisionError("a defect")

    monkeypatch.setattr(storage, "apply", apply)
    answer = await producer.ask(create=Batches().natural(["a"], 5))
    fields = _record_of(caplog)
    assert fields["method"] == "create"
    assert fields["request_id"].endswith(f"/{answer.request}")
    assert answer.error.details == f"request {fields['request_id']}"
    await producer.close()


async def test_the_journal_names_the_caller_of_every_change() -> None:
    """The endpoint gives a call its principal, and the record of what the call changes has it."""
    caller = "operator"

    def begin(peer: str, seconds: float | None) -> CallContext:
        return CallContext("a request", peer, Principal(caller))

    storage = MemoryStorage(journal=True)
    clock = VirtualClock()
    async with Broker(clock=clock, storage=storage, drain_ms=0) as broker:
        transport = InProcessTransport(broker.central.services, begin)
        for name in ("mail", "mail.dead"):
            await create_topic(transport, name)
        caller = "producer"
        producer = await (await RawClient(transport).open()).produce()
        now = clock.now_ms()
        await producer.ask(create=Batches().natural(["a", "b", "c", "d", "later"], [now] * 4 + [now + 60_000]))
        await producer.ask(edit=carrier.EditBatch(ids=["later"], ts=[now + 70_000]))
        caller = "consumer"
        consumer = await (await (await RawClient(transport).open()).consume()).subscribe()
        await until(lambda: len(consumer.received()) == 4)
        (push,) = consumer.pushes
        await consumer.settle(carrier.DELETE, push.lease, ranges=[0, 1])
        await consumer.settle(carrier.RELEASE, push.lease, ranges=[1, 2], ts=[now + 9_000])
        await consumer.settle(carrier.REJECT, push.lease, ranges=[2, 3], reason="no use")
        await consumer.close()
        caller = "keeper"
        redrive = carrier.RedriveRequest(topic="mail.dead", target="mail", ids=[consumer.received()[2]])
        await transport.call("Carrier.Redrive", redrive, errors_pb2.Outcomes, 5)
        purge = carrier.PurgeRequest(topic="mail", ids=["later"])
        await transport.call("Carrier.Purge", purge, errors_pb2.Outcomes, 5)
        caller = "operator"
        await transport.call("Overseer.DeleteTopic", overseer.TopicRequest(name="mail"), overseer.TopicResponse, 5)
        await until(lambda: broker.central.catalog.named("mail") is None)
        records = await read_journal(storage)
    found: dict[str, set[str]] = {}
    for record in records:
        for event in events_of(record):
            found.setdefault(event.kind, set()).add(record.principal)
    assert found == {
        "created": {"producer", "consumer", "keeper"},
        "moved": {"producer"},
        "leased": {"consumer"},
        "deleted": {"consumer"},
        "released": {"consumer"},
        "dead_lettered": {"consumer"},
        "cancelled": {"keeper"},
        "topic_dropped": {"operator"},
    }
