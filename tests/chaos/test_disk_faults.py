"""R12: a broker whose disk is full, fails or is slow stops acknowledging, reports it, and recovers by itself."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from http import HTTPStatus
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

import dejaq
from dejaq.testing.servers.faults import FaultUnavailable, FaultyDisk, SmallDisk, small_disk
from dejaq.testing.servers.process import BrokerProcess
from dejaq.testing.waiting import eventually
from tests.chaos.sizes import size

# A short deadline, so that a send that cannot be acknowledged fails soon.
DEADLINE = 0.6


@pytest.fixture(autouse=True, params=range(size("R12", ci=1, full=10)))
def again(request: pytest.FixtureRequest) -> None:
    """Runs every test of this module several times."""


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    try:
        with small_disk(tmp_path / "small", 16 * 1024 * 1024) as made:
            yield made
    except FaultUnavailable as reason:
        pytest.skip(str(reason))


class Ledger:
    """Sends to a broker and records which messages were acknowledged and which have an unknown outcome."""

    def __init__(self, client: dejaq.Client, producer: dejaq.Producer) -> None:
        self.client = client
        self._producer = producer
        self._sent = 0
        self.acknowledged: set[str] = set()
        self.unknown: set[str] = set()

    @classmethod
    @asynccontextmanager
    async def on(cls, url: str) -> AsyncIterator[Ledger]:
        async with dejaq.connect(url, deadline=DEADLINE, timeout=DEADLINE) as client:
            await client.create_topic("mail", buckets=4)
            async with client.producer("mail", group="billing") as producer:
                yield cls(client, producer)

    async def send(self, *, body_bytes: int = 100) -> bool:
        """Send one message, and return whether it was acknowledged."""
        self._sent += 1
        name = f"m-{self._sent}"
        try:
            await self._producer.send(b"x" * body_bytes, delay=3_600, id=name)
        except (dejaq.Unavailable, dejaq.Indefinite):
            self.unknown.add(name)
            return False
        self.acknowledged.add(name)
        return True

    async def degradations(self) -> list[str]:
        return list((await self.client.info()).brokers[0].degradations)

    async def healthy_again(self) -> None:
        """Wait until the broker reports no degradation and accepts messages."""

        async def healthy() -> bool:
            return not await self.degradations()

        await eventually(healthy, within=20, what="the broker is healthy", poll=0.05)
        await eventually(self.send, within=20, what="the broker acknowledges", poll=0.05)

    async def check(self) -> None:
        """Every acknowledged message exists once, and every other message is one with an unknown outcome."""
        found = [message.id async for page in self.client.browse("mail") for message in page]
        assert len(found) == len(set(found))
        assert self.acknowledged <= set(found), "acknowledged messages are lost"
        assert set(found) <= self.acknowledged | self.unknown
        assert await self.client.count("mail") == len(found)


async def serving(address: str) -> bool:
    """What a load balancer learns from the page for it."""

    def ask() -> bool:
        try:
            with urlopen(f"http://{address}/readyz", timeout=5) as answer:
                return bool(answer.status == HTTPStatus.OK)
        except HTTPError as refused:
            assert refused.code == HTTPStatus.SERVICE_UNAVAILABLE
            return False

    return await asyncio.to_thread(ask)


@pytest.mark.chaos
async def test_r12_a_full_disk(disk: SmallDisk) -> None:
    """G1, G7, G8: without space the broker acknowledges nothing and reports it; with space again it continues."""
    # The last part of the disk is not kept for consumers, so that creates use up all of it.
    serving_on = BrokerProcess(disk.path / "data", options=["--disk-free-min", "0"])
    async with serving_on as broker, Ledger.on(broker.url) as ledger:
        for _ in range(20):
            assert await ledger.send()
        disk.fill(leave_bytes=100_000)
        while await ledger.send(body_bytes=5_000):
            pass
        disk.fill()
        assert "No space left" in " ".join(await ledger.degradations())
        assert not await serving(broker.address)
        assert not await ledger.send()
        assert broker.running
        disk.free()
        await ledger.healthy_again()
        assert await serving(broker.address)
        await ledger.check()
        await broker.restart()
        await ledger.healthy_again()
        await ledger.check()


@pytest.mark.chaos
async def test_r12_a_disk_with_little_space_left(disk: SmallDisk) -> None:
    """G7, G8: creates are refused with the reason, consumers continue, and creates are admitted again by themselves."""
    async with BrokerProcess(disk.path / "data") as broker, Ledger.on(broker.url) as ledger:
        async with ledger.client.producer("mail", group="now") as producer:
            await producer.send_batch([b"x" * 100] * 200, delay=0.2)
        assert await ledger.send()
        # Half of the sixteenth that is kept.
        disk.fill(leave_bytes=disk.size_bytes // 32)

        async def refused() -> bool:
            return not await ledger.send()

        await eventually(refused, within=20, what="creates are refused", poll=0.05)
        assert "free space" in " ".join(await ledger.degradations())
        with pytest.raises(dejaq.Unavailable, match="creates are refused until there is more") as caught:
            async with ledger.client.producer("mail", group="refused") as producer:
                await producer.send(b"x", delay=3_600)
        assert caught.value.code is dejaq.Code.OVERLOADED
        assert await serving(broker.address)
        assert await ledger.client.count("mail") == 200 + len(ledger.acknowledged)
        delivered = 0
        async with ledger.client.consumer("mail", name="worker", max_messages=200) as consumer:
            async for leases in consumer.batches(50):
                (await leases.delete()).raise_for_failures()
                delivered += len(leases)
        assert delivered == 200
        disk.free()
        await ledger.healthy_again()
        await ledger.check()


@pytest.mark.parametrize("fault", ["fail_writes", "fail_syncs"])
async def test_r12_an_io_error(tmp_path: Path, fault: str) -> None:
    """G1, G7: while the disk answers EIO nothing is acknowledged; when the disk works again the broker does too."""
    broker = dejaq.Broker(tmp_path / "data", listen="127.0.0.1:0")
    with FaultyDisk() as faulty:
        async with broker, Ledger.on(f"dejaq://{broker.address}") as ledger:
            assert await ledger.send()
            setattr(faulty, fault, True)
            assert not await ledger.send()
            assert "Input/output error" in " ".join(await ledger.degradations())
            assert not await serving(broker.address)
            assert not await ledger.send()
            faulty.heal()
            await ledger.healthy_again()
            assert await serving(broker.address)
            await ledger.check()


async def test_r12_a_slow_disk(tmp_path: Path) -> None:
    """G1, G7: during a slow sync nothing is acknowledged, and calls that need no sync are answered."""
    broker = dejaq.Broker(tmp_path / "data", listen="127.0.0.1:0")
    with FaultyDisk() as faulty:
        async with broker, Ledger.on(f"dejaq://{broker.address}") as ledger:
            assert await ledger.send()
            faulty.hold_syncs()
            waiting = asyncio.create_task(ledger.send())
            await eventually(lambda: faulty.syncs_held, within=5, what="a sync hangs")
            assert (await ledger.client.ping()).latency_ms < 1_000
            assert not waiting.done()
            assert not await waiting, "a send was acknowledged while its sync hung"
            faulty.let_syncs_go()
            await ledger.healthy_again()
            await ledger.check()
