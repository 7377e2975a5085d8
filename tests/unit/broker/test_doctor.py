"""Degradations: said, refused by, and left behind when their cause is gone."""

from __future__ import annotations

from math import inf

import pytest

from dejaq.broker import Broker
from dejaq.broker.doctor import Doctor, resident_bytes
from dejaq.domain.batch import CreateBatch, LeaseRequest, LeaseSet, Outcomes
from dejaq.domain.topic import Topic
from dejaq.errors import Code, DejaqError, Indefinite, StoreError
from dejaq.protocol.v1 import carrier_pb2 as carrier
from dejaq.protocol.v1 import overseer_pb2 as overseer
from dejaq.storage.memory import MemoryStorage
from dejaq.timekeeper.clock import VirtualClock
from tests.unit.broker.client import Batches, RawClient, create_topic, until


class FailingStorage(MemoryStorage):
    """A memory store that can be made to fail as a disk does: the write under way is indefinite, the rest refused."""

    def __init__(self) -> None:
        super().__init__()
        self.broken = False
        self.fault: str | None = None
        self.recoveries = 0

    @property
    def failure(self) -> str | None:
        return self.fault or super().failure

    def _meet(self) -> None:
        if self.fault is not None:
            raise StoreError(self.fault)
        if self.broken:
            self.fault = "planted fault"
            raise Indefinite("the write was cut")

    async def create(self, topic: Topic, batch: CreateBatch, now: int) -> Outcomes:
        self._meet()
        return await super().create(topic, batch, now)

    async def lease(self, topic: Topic, request: LeaseRequest, now: int) -> LeaseSet | None:
        self._meet()
        return await super().lease(topic, request, now)

    async def recover(self, now: int) -> None:
        self.recoveries += 1
        if self.broken:
            raise StoreError("still broken")
        self.fault = None


@pytest.fixture
def storage() -> FailingStorage:
    return FailingStorage()


async def test_a_failed_storage_is_said_refused_and_recovered_from_without_help(
    broker: Broker, storage: FailingStorage, clock: VirtualClock
) -> None:
    """Guarantee 7: consistency over availability."""
    transport = broker.transport()
    await create_topic(transport, buckets=4)
    producer = await (await RawClient(transport).open()).produce()
    consumer = await (await (await RawClient(transport).open()).consume()).subscribe()
    batches = Batches()
    assert not (await producer.ask(create=batches.natural(["before"], clock.now_ms()))).outcomes.codes
    await until(lambda: consumer.received() == ["before"])
    storage.broken = True
    cut = await producer.ask(create=batches.natural(["cut"], clock.now_ms()))
    assert (cut.error.code, cut.error.indefinite, cut.error.retryable) == (Code.INDEFINITE, True, True)
    await until(lambda: producer.ended and consumer.ended)
    assert consumer.errors[-1].error.code == Code.UNAVAILABLE
    assert consumer.errors[-1].error.retryable

    again = await RawClient(transport).open()
    await again.hello()
    refused = await again.ask(producer=carrier.ProducerHandshake(topic="mail", group="billing"))
    assert (refused.error.code, refused.error.retryable) == (Code.UNAVAILABLE, True)
    assert refused.error.throttled_ms > 0
    info = await transport.call("Overseer.Info", overseer.InfoRequest(), overseer.InfoResponse, 5.0)
    assert list(info.brokers[0].degradations) == ["STORE_FAILED: still broken"]
    assert not broker.central.doctor.ready

    tried = storage.recoveries
    await clock.advance(20_000)
    assert tried < storage.recoveries < tried + 25, "tried again, about once a second"
    storage.broken = False
    await clock.advance(5_000)
    await until(lambda: broker.central.doctor.ready)
    assert not (await again.ask(producer=carrier.ProducerHandshake(topic="mail", group="billing"))).error.code
    assert not (await again.ask(create=batches.natural(["after"], clock.now_ms()))).outcomes.codes
    back = await (await (await RawClient(transport).open()).consume()).subscribe(lease_ms=30_000)
    await until(lambda: set(back.received()) == {"before", "after"})


async def test_a_pump_that_meets_the_fault_ends_its_session(
    broker: Broker, storage: FailingStorage, clock: VirtualClock
) -> None:
    transport = broker.transport()
    await create_topic(transport, buckets=4)
    storage.broken = True
    consumer = await (await (await RawClient(transport).open()).consume()).subscribe()
    await until(lambda: consumer.ended)
    assert consumer.errors[-1].error.code == Code.UNAVAILABLE
    await until(lambda: not broker.central.doctor.ready)


class JumpyClock(VirtualClock):
    """A clock whose wall time can be set, as an operator or a time service does."""

    def __init__(self) -> None:
        super().__init__()
        self.set_by_ms = 0

    def now_us(self) -> int:
        return super().now_us() + self.set_by_ms * 1_000

    def now_ms(self) -> int:
        return self.now_us() // 1_000


@pytest.mark.parametrize("jump_ms", [501, 3_600_000, -501, -3_600_000])
async def test_a_jump_of_the_clock_is_shown_for_a_minute(jump_ms: int) -> None:
    clock = JumpyClock()
    storage = MemoryStorage()
    await storage.open(0)
    doctor = Doctor(storage=storage, clock=clock, memory_bytes_max=0, drift_ms_max=500)
    await doctor.examine()
    assert doctor.degradations == {}
    clock.set_by_ms = jump_ms
    await doctor.examine()
    assert doctor.degradations == {"clock": f"the clock jumped by {jump_ms:+} ms"}
    assert doctor.drift_ms == pytest.approx(jump_ms, abs=0.01)
    assert doctor.ready
    doctor.admit("create")
    await clock.advance(59_000)
    await doctor.examine()
    assert "clock" in doctor.degradations
    await clock.advance(1_000)
    await doctor.examine()
    assert doctor.degradations == {}


async def test_a_small_step_of_the_clock_is_no_jump() -> None:
    clock = JumpyClock()
    storage = MemoryStorage()
    await storage.open(0)
    doctor = Doctor(storage=storage, clock=clock, memory_bytes_max=0, drift_ms_max=500)
    clock.set_by_ms = 499
    await doctor.examine()
    assert doctor.degradations == {}


async def test_above_its_memory_a_broker_takes_no_creates_and_everything_else() -> None:
    """Guarantee 8: memory."""
    storage = MemoryStorage()
    await storage.open(0)
    used = [1_000]
    doctor = Doctor(
        storage=storage,
        clock=VirtualClock(),
        memory_bytes_max=1_000,
        drift_ms_max=500,
        read_memory=lambda: used[0],
    )
    await doctor.examine()
    doctor.admit("create")
    used[0] = 1_001
    await doctor.examine()
    with pytest.raises(DejaqError) as caught:
        doctor.admit("create")
    assert (caught.value.code, caught.value.retryable) == (Code.OVERLOADED, True)
    assert caught.value.throttled_ms > 0
    for command in ("settle", "edit", "cancel", "subscribe", "consumer"):
        doctor.admit(command)
    assert doctor.ready
    used[0] = 999
    await doctor.examine()
    doctor.admit("create")


def test_the_memory_of_this_process_is_known() -> None:
    assert resident_bytes() > 1_000_000


async def test_a_draining_broker_lets_consumers_settle_and_refuses_the_rest() -> None:
    storage = MemoryStorage()
    await storage.open(0)
    doctor = Doctor(storage=storage, clock=VirtualClock(), memory_bytes_max=0, drift_ms_max=500)
    await doctor.start_draining()
    doctor.admit("settle")
    for command in ("create", "edit", "cancel", "subscribe", "producer", "consumer", "create_topic"):
        with pytest.raises(DejaqError) as caught:
            doctor.admit(command)
        assert caught.value.code is Code.DRAINING
    assert not doctor.ready


async def test_a_clock_that_jumped_is_gone_by_only_when_it_was_compared(storage: FailingStorage) -> None:
    """G2: nothing may be leased, answered or told of the time between the jump and the comparison."""
    clock = JumpingClock()
    doctor = Doctor(storage=storage, clock=clock, memory_bytes_max=0, drift_ms_max=1_000)
    doctor.stray_ms_max = lambda: 100.0
    clock.jump_us = 90_000
    doctor.admit("create")
    doctor.check_clock()
    clock.jump_us = 110_000
    for refused in (doctor.check_clock, lambda: doctor.admit("create")):
        with pytest.raises(DejaqError) as caught:
            refused()
        assert caught.value.code is Code.CUT_OFF
    with pytest.raises(Indefinite):
        doctor.confirm()
    doctor.trust_clock(doctor.clock_gap_ms)
    doctor.admit("create")
    doctor.confirm()
    # Alone, there is nothing to compare it with.
    doctor.stray_ms_max = lambda: inf
    clock.jump_us = 3_600_000_000
    doctor.admit("create")


class JumpingClock(VirtualClock):
    """A clock that is set by hand."""

    jump_us = 0

    def now_us(self) -> int:
        return super().now_us() + self.jump_us
