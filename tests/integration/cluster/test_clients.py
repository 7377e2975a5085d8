"""Clients of a cluster: spread over the brokers, and moved from a broker that stops or fails, without an error."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

import pytest

import dejaq
from dejaq.broker.cluster import cluster, seats, spreading
from dejaq.errors import Code, DejaqError
from dejaq.protocol.channel import GrpcTransport
from dejaq.protocol.v1 import overseer_pb2 as overseer
from dejaq.protocol.v1 import peer_pb2 as peer
from dejaq.protocol.websocket.transport import WebSocketTransport
from dejaq.testing.waiting import eventually, patient
from tests.integration.cluster.crew import Crew, crew_of


@pytest.fixture(params=[False, True], ids=["websocket", "grpc"])
def grpc(request: pytest.FixtureRequest) -> bool:
    """Whether the clients of the test use the WebSocket endpoints."""
    return bool(request.param)


async def test_the_consumers_of_a_topic_are_spread_over_the_brokers(grpc: bool) -> None:
    async with crew_of("a", "b", "c", grpc=grpc) as crew, AsyncExitStack() as stack:
        # All clients connect to one broker first, and know no other.
        client = await stack.enter_async_context(dejaq.connect(crew.urls[0]))
        await client.create_topic("mail", buckets=12)
        for number in range(6):
            await stack.enter_async_context(client.consumer("mail", name=f"c{number}"))
        brokers = [one.broker for one in (await client.info()).clients]
        assert sorted(brokers) == ["a", "a", "b", "b", "c", "c"]


async def test_a_client_that_was_given_one_broker_survives_its_loss(grpc: bool) -> None:
    async with crew_of("a", "b", grpc=grpc) as crew, dejaq.connect(crew.urls[0]) as client:
        await client.create_topic("mail")
        async with client.producer("mail") as producer:
            await producer.send(b"x", id="1")
            await crew.brokers.pop("a").stop()
            await producer.send(b"x", id="2")
        assert await client.count("mail") == 2


async def test_a_rolling_restart_causes_no_error(grpc: bool) -> None:
    async with crew_of("a", "b", "c", grpc=grpc, drain_ms=500) as crew, dejaq.connect(crew.url) as client:
        await client.create_topic("mail")
        sent: set[str] = set()
        seen: list[str] = []
        stop = asyncio.Event()

        async def produce() -> None:
            async with client.producer("mail") as producer:
                while not stop.is_set():
                    sent.add(await producer.send(b"x", delay=0.05))
                    await eventually(lambda: len(sent) - len(seen) < 50, within=10, what="consumers are not behind")

        async def consume(name: str) -> None:
            async with client.consumer("mail", name=name) as consumer:
                async for lease in consumer:
                    seen.append(lease.id)
                    await lease.delete()

        producing = asyncio.create_task(produce())
        consuming = [asyncio.create_task(consume(f"c{number}")) for number in range(3)]
        try:
            for name in ("a", "b", "c"):
                await renew(crew, name)
                more = len(seen) + 50
                await eventually(lambda: len(seen) >= more, within=10, what="deliveries continue")
            stop.set()
            await producing
            await eventually(lambda: len(seen) >= len(sent), within=10, what="every sent message is received")
            assert sorted(seen) == sorted(sent), "each message came once, and no caller got an error"
        finally:
            for task in consuming:
                task.cancel()
            await asyncio.gather(*consuming, return_exceptions=True)


async def renew(crew: Crew, name: str) -> None:
    """Stop a broker like an administrator, and start it again at its address."""
    addresses = crew.addresses_of(name)
    await crew.brokers[name].stop()
    await crew.make(name, **addresses, drain_ms=500).start()
    await crew.gathered()


async def test_clients_return_to_a_broker_that_has_restarted(monkeypatch: pytest.MonkeyPatch, grpc: bool) -> None:
    """Until the brokers have equal load again, no client gets an error and no message comes twice."""
    monkeypatch.setattr(spreading, "STEADY_SECONDS", 0.2)
    monkeypatch.setattr(spreading, "SETTLE_SECONDS", 1.0)
    monkeypatch.setattr(spreading, "TURN_SECONDS", 0.1)
    # A client that did not reach the restarted broker, on a busy machine, is asked again.
    monkeypatch.setattr(spreading, "AGAIN_SECONDS", 2.0)
    monkeypatch.setattr(cluster, "ROUND_SECONDS", 0.05)
    async with crew_of("a", "b", grpc=grpc, drain_ms=500) as crew, AsyncExitStack() as stack:
        client = await stack.enter_async_context(dejaq.connect(crew.url))
        await client.create_topic("mail", buckets=8)
        sent: list[str] = []
        seen: list[str] = []

        async def consume(consumer: dejaq.Consumer) -> None:
            async for lease in consumer:
                seen.append(lease.id)
                await lease.delete()

        consumers = [await stack.enter_async_context(client.consumer("mail", name=f"c{n}")) for n in range(2)]
        stack.push_async_callback(cancelled, [asyncio.create_task(consume(consumer)) for consumer in consumers])
        producers = [await stack.enter_async_context(client.producer("mail", group=f"p{n}")) for n in range(2)]

        def consumers_at(broker: str) -> list[bool]:
            return sorted(session.consumer is not None for session in crew.brokers[broker].central.greeter)

        async def even() -> bool:
            sent.extend([await producer.send(b"x", delay=0.02) for producer in producers])
            return consumers_at("a") == consumers_at("b") == [False, True]

        addresses = crew.addresses_of("b")
        await crew.brokers["b"].stop()
        await eventually(
            lambda: len(consumers_at("a")) == 4, within=10, what="all clients move to the broker that stays"
        )
        await crew.make("b", **addresses, drain_ms=500).start()
        await crew.gathered()
        await eventually(even, within=20, what="each broker has one consumer and one producer")
        await eventually(lambda: len(seen) >= len(sent), within=20, what="every sent message is received")
        assert sorted(seen) == sorted(sent), "each message came once, and no caller got an error"


async def cancelled(tasks: list[asyncio.Task[None]]) -> None:
    """Cancel tasks; raises the exception of a task that had failed before."""
    for task in tasks:
        task.cancel()
    for result in await asyncio.gather(*tasks, return_exceptions=True):
        if isinstance(result, Exception):
            raise result


@pytest.mark.parametrize("follow", [True, False])
async def test_a_client_that_follows_no_advice_is_not_asked_to_move(follow: bool) -> None:
    async with crew_of("a", "b") as crew, dejaq.connect(crew.urls[0], follow=follow) as client:
        await client.create_topic("mail")
        async with client.producer("mail"), client.consumer("mail"):
            sessions = [session for broker in crew.brokers.values() for session in broker.central.greeter]
            assert [session.movable for session in sessions] == [follow, follow]


async def test_a_transaction_at_another_broker_frees_the_credit_of_the_consumer() -> None:
    """D2: with eight messages in flight and leases of ten seconds, the ninth message came after 9.5 s."""
    async with (
        crew_of("a", "b") as crew,
        dejaq.connect(crew.urls[0], follow=False) as here,
        dejaq.connect(crew.urls[1], follow=False) as there,
    ):
        await here.create_topic("mail")
        async with here.producer("mail") as producer:
            for number in range(40):
                await producer.send(b"x", id=f"m{number}")
        async with there.consumer("mail", name="c", max_in_flight=8, lease=30) as consumer:
            for _ in range(40):
                lease = await asyncio.wait_for(anext(consumer), patient(3))
                async with here.transaction(group="g") as transaction:
                    transaction.delete(lease)
        assert await here.count("mail") == 0


async def test_the_credit_of_a_consumer_whose_broker_is_unknown_is_freed_by_asking_all_brokers() -> None:
    """D2: while etcd is full, the brokers do not know at which broker a consumer is."""
    async with (
        crew_of("a", "b", "c") as crew,
        dejaq.connect(crew.urls[0], follow=False) as here,
        dejaq.connect(crew.urls[1], follow=False) as there,
    ):
        await here.create_topic("mail")
        async with here.producer("mail") as producer:
            for number in range(6):
                await producer.send(b"x", id=f"m{number}")
        async with there.consumer("mail", name="c", max_in_flight=2, lease=30) as consumer:
            clients = crew.brokers["a"].central.cluster.clients
            topic = crew.brokers["a"].central.catalog.live("mail")
            record = seats.record_key("b", seats.record_of((topic.number, "c")))

            def unknown() -> bool:
                """The other broker writes its record again, perhaps before anybody looks."""
                if record in crew.hub.records:
                    crew.hub.erase(record)
                return clients.place_of(topic.number, "c") is None

            await eventually(unknown, within=5, what="the broker of the consumer is unknown")
            for _ in range(6):
                lease = await asyncio.wait_for(anext(consumer), patient(3))
                async with here.transaction(group="g") as transaction:
                    transaction.delete(lease)


@pytest.mark.parametrize("method", ["LetGo", "AskBack", "Settled", "Nudge", "Learn", "Describe", "CreateTopic"])
async def test_a_client_cannot_make_the_calls_of_brokers(method: str) -> None:
    """D16: any client could end another client's session and take its messages."""
    async with crew_of("a", "b") as crew, dejaq.connect(crew.urls[0]) as client:
        await client.create_topic("mail")
        central = crew.brokers["a"].central
        assert central.peer_address not in ("", central.address)
        transport = WebSocketTransport(crew.brokers["a"].address)
        try:
            with pytest.raises(DejaqError) as refused:
                await transport.call(f"Peer.{method}", peer.LearnRequest(), peer.LearnResponse, 2.0)
            assert refused.value.code is Code.VERSION_UNSUPPORTED
            with pytest.raises(DejaqError):
                await central.transport().call(f"Peer.{method}", peer.LearnRequest(), peer.LearnResponse, 2.0)
        finally:
            await transport.close()


async def test_the_port_of_brokers_serves_no_client() -> None:
    """D16: the port for brokers does not serve clients."""
    async with crew_of("a", "b") as crew:
        transport = GrpcTransport(crew.brokers["a"].central.peer_address)
        try:
            with pytest.raises(DejaqError) as refused:
                await transport.call("Overseer.Info", overseer.InfoRequest(), overseer.InfoResponse, 2.0)
            assert refused.value.code is Code.VERSION_UNSUPPORTED
            with pytest.raises(DejaqError):
                await (await transport.session()).receive()
        finally:
            await transport.close()


async def test_a_single_broker_has_no_port_for_brokers() -> None:
    """D16: no other broker calls it."""
    async with dejaq.Broker(listen="127.0.0.1:0") as broker:
        assert broker.central.peer_address == ""


async def test_the_progress_of_a_message_is_seen_at_every_broker() -> None:
    """U24: only the broker that the consumer is connected to has the report."""
    async with (
        crew_of("a", "b") as crew,
        dejaq.connect(crew.urls[0], follow=False) as one,
        dejaq.connect(crew.urls[1], follow=False) as other,
    ):
        await one.create_topic("mail")
        async with one.producer("mail") as producer, one.consumer("mail") as consumer:
            await producer.send(b"x", id="x")
            lease = await anext(consumer)
            await lease.progress("half")

            async def seen() -> bool:
                (message,) = await other.get("mail", ["x"])
                return message is not None and message.progress == "half"

            await eventually(seen, within=10, what="the other broker asks for the report")
            await crew.brokers.pop("a").stop()
            (message,) = await other.get("mail", ["x"])
            assert message is not None
            assert message.progress == ""
