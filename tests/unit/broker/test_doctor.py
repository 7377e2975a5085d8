"""Degradations are reported, refuse calls, and end when their cause has ended."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from dejaq.broker import Broker, disk_space
from dejaq.broker.disk_space import DiskSpace, Space, space_of
from dejaq.broker.doctor import Doctor, resident_bytes
from dejaq.broker.events import NoListener, SingleBroker
from dejaq.domain.batch import LeaseRequest, LeaseSet, Outcomes
from dejaq.domain.changes import Change
from dejaq.domain.context import CallContext
from dejaq.domain.topic import Topic
from dejaq.errors import Code, DejaqError, Indefinite, Refused, StoreError
from dejaq.protocol.v1 import carrier_pb2 as carrier
from dejaq.protocol.v1 import overseer_pb2 as overseer
from dejaq.storage.memory.store import MemoryStorage
from dejaq.testing.waiting import eventually
from dejaq.timekeeper.clock import VirtualClock
from tests.unit.broker.client import Batches, RawClient, create_topic, until


class FailingStorage(MemoryStorage):
    """A memory store that can fail like a disk: the running write has an unknown outcome, later calls are refused."""

    def __init__(self) -> None:
        super().__init__()
        self.broken = False
        self.damaged = False
        self.fault: str | None = None
        self.recoveries = 0

    @property
    def failure(self) -> str | None:
        return self.fault or super().failure

    @property
    def corrupt(self) -> bool:
        return self.damaged

    def _meet(self) -> None:
        if self.fault is not None:
            raise StoreError(self.fault)
        if self.broken:
            self.fault = "planted fault"
            raise Indefinite("the write was cut")

    async def apply(self, changes: Sequence[Change], now: int, context: CallContext) -> list[Outcomes | Refused]:
        self._meet()
        return await super().apply(changes, now, context)

    async def lease(self, topic: Topic, request: LeaseRequest, now: int, context: CallContext) -> LeaseSet | None:
        self._meet()
        return await super().lease(topic, request, now, context)

    async def recover(self, now: int) -> None:
        self.recoveries += 1
        if self.broken:
            raise StoreError("still broken")
        self.fault = None


@pytest.fixture
def storage() -> FailingStorage:
    return FailingStorage()


async def test_a_failed_storage_is_reported_refuses_calls_and_recovers_by_itself(
    broker: Broker, storage: FailingStorage, clock: VirtualClock
) -> None:
    """G7: consistency over availability."""
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
    assert consumer.errors[-1].error.code == Code.STORE_FAILED
    assert consumer.errors[-1].error.retryable

    again = await RawClient(transport).open()
    await again.hello()
    refused = await again.ask(producer=carrier.ProducerHandshake(topic="mail", group="billing"))
    assert (refused.error.code, refused.error.retryable) == (Code.STORE_FAILED, True)
    assert refused.error.throttled_ms > 0
    info = await transport.call("Overseer.Info", overseer.InfoRequest(), overseer.InfoResponse, 5.0)
    assert list(info.brokers[0].degradations) == ["STORE_FAILED: still broken"]
    assert not broker.central.doctor.ready

    tried = storage.recoveries
    await clock.advance(20_000)
    assert tried < storage.recoveries < tried + 25, "tried again, about once per second"
    storage.broken = False
    await clock.advance(5_000)
    await until(lambda: broker.central.doctor.ready)
    assert not (await again.ask(producer=carrier.ProducerHandshake(topic="mail", group="billing"))).error.code
    assert not (await again.ask(create=batches.natural(["after"], clock.now_ms()))).outcomes.codes
    back = await (await (await RawClient(transport).open()).consume()).subscribe(lease_ms=30_000)
    await until(lambda: set(back.received()) == {"before", "after"})


async def test_a_storage_that_fails_repeatedly_is_reopened_less_and_less_often(
    broker: Broker, storage: FailingStorage, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """U4: health does not change hundreds of times when a storage fails at every use."""
    changes: list[bool] = []
    doctor = broker.central.doctor

    async def note() -> None:
        changes.append(doctor.ready)

    monkeypatch.setattr(broker.central.reactions, "readiness_changed", note)
    for _ in range(2_000):
        if storage.fault is None:
            storage.fault = "it fails whenever it is used"
        await clock.advance(250)
    assert 2 < changes.count(True) < 40, "reopened, but not four times per second for eight minutes"


async def test_a_storage_that_takes_long_to_open_is_tried_less_often(clock: VirtualClock) -> None:
    """On a full disk each try read everything, and the broker did nothing else."""

    class LargeStorage(FailingStorage):
        async def recover(self, now: int) -> None:
            await clock.sleep(5.0)
            await super().recover(now)

    storage = LargeStorage()
    await storage.open(clock.now_ms())
    storage.broken, storage.fault = True, "the disk is full"
    doctor = Doctor(storage=storage, clock=clock, memory_bytes_max=0, drift_ms_max=1_000)
    running = asyncio.create_task(doctor.run())
    for _ in range(1_000):
        await clock.advance(250)
    assert 8 <= storage.recoveries <= 11, "a fifth of 250 seconds, in tries of five"
    storage.broken = False
    for _ in range(200):
        await clock.advance(250)
    assert doctor.ready
    running.cancel()
    await asyncio.wait([running])


async def test_damage_has_its_own_code_and_clients_do_not_retry(
    broker: Broker, storage: FailingStorage, clock: VirtualClock
) -> None:
    """U4: clients of a damaged storage get STORE_CORRUPT, and not an error that may end soon."""
    transport = broker.transport()
    await create_topic(transport, buckets=4)
    producer = await (await RawClient(transport).open()).produce()
    storage.broken = storage.damaged = True
    storage.fault = "planted damage"
    answer = await producer.ask(create=Batches().natural(["m"], clock.now_ms()))
    assert (answer.error.code, answer.error.retryable) == (Code.STORE_CORRUPT, False)
    info = await transport.call("Overseer.Info", overseer.InfoRequest(), overseer.InfoResponse, 5.0)
    assert list(info.brokers[0].degradations) == ["STORE_FAILED: still broken"]
    with pytest.raises(StoreError) as refused:
        await create_topic(transport, name="other", buckets=4)
    assert refused.value.code is Code.STORE_CORRUPT


async def test_a_lease_loop_that_meets_a_fault_ends_its_session(
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
    """A clock whose wall time can be set, as by an operator or a time service."""

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


async def test_a_broker_above_its_memory_limit_refuses_only_creates() -> None:
    """G8: memory."""
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


async def test_a_broker_with_little_free_space_refuses_only_creates_until_there_is_enough_again() -> None:
    """G8: disk. A sixteenth of the disk is kept for consumers, or less where the limit is lower."""
    storage = MemoryStorage()
    await storage.open(0)
    free = [100]
    disk = DiskSpace("/data", 10_000, read=lambda path: Space(free[0], 1_600))
    doctor = Doctor(storage=storage, clock=VirtualClock(), memory_bytes_max=0, drift_ms_max=500, disk=disk)
    await doctor.examine()
    doctor.admit("create")
    for free[0] in (99, 100, 124):
        await doctor.examine()
        with pytest.raises(DejaqError, match="/data") as caught:
            doctor.admit("create")
        assert (caught.value.code, caught.value.retryable) == (Code.OVERLOADED, True)
        for command in ("settle", "edit", "cancel", "subscribe", "consumer"):
            doctor.admit(command)
        assert doctor.ready
    free[0] = 125
    await doctor.examine()
    assert doctor.degradations == {}
    doctor.admit("create")
    for path, least, left in (("/data", 50, 51), ("/data", 0, 0), (None, 50, 0)):
        enough = DiskSpace(path, least, read=lambda _, left=left: Space(left, 1_600))  # type: ignore[misc]
        await enough.look()
        assert enough.shortage() is None


async def test_a_disk_that_hangs_does_not_stop_the_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    """G7: the free space was read on the event loop, and nothing was answered any more."""
    monkeypatch.setattr(disk_space, "LOOK_SECONDS", 0.01)
    hanging, answers = threading.Event(), 0

    def read(path: str) -> Space:
        nonlocal answers
        assert hanging.wait(30)
        answers += 1
        return Space(0, 1_600)

    storage = MemoryStorage()
    await storage.open(0)
    disk = DiskSpace("/data", 10_000, read=read)
    doctor = Doctor(storage=storage, clock=VirtualClock(), memory_bytes_max=0, drift_ms_max=500, disk=disk)
    for _ in range(5):
        await doctor.examine()
    assert doctor.ready
    assert answers == 0
    hanging.set()

    async def short() -> bool:
        await doctor.examine()
        return "disk" in doctor.degradations

    await eventually(short, within=10)


def test_the_free_space_of_a_directory_is_known(tmp_path: Path) -> None:
    space = space_of(str(tmp_path))
    assert space is not None
    assert 0 < space.free < space.total
    assert space_of(str(tmp_path / "missing")) is None


def test_the_memory_of_this_process_is_known() -> None:
    assert resident_bytes() > 1_000_000


async def test_a_draining_broker_accepts_settlements_and_refuses_other_calls() -> None:
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


class OtherBrokers(SingleBroker):
    def clock_change_ms_max(self) -> float:
        return 100.0


async def test_a_clock_that_jumped_is_trusted_only_after_a_comparison(storage: FailingStorage) -> None:
    """G2: between the jump and the comparison, the broker must not lease, answer or report by that time."""
    clock = JumpingClock()
    await storage.open(clock.now_ms())
    doctor = Doctor(storage=storage, clock=clock, memory_bytes_max=0, drift_ms_max=1_000)
    doctor.connect(OtherBrokers(), NoListener())
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
    # Without another broker the clock may be used again, but nothing says that it is right.
    doctor.trust_clock(doctor.clock_gap_ms, confirmed=False)
    doctor.admit("create")
    doctor.confirm()
    assert doctor.clock_ahead_ms == 110
    doctor.trust_clock(doctor.clock_gap_ms, confirmed=True)
    assert doctor.clock_ahead_ms == 0
    doctor.admit("create")
    doctor.confirm()
    # A single broker has no other clock to compare with.
    doctor.connect(SingleBroker(), NoListener())
    clock.jump_us = 3_600_000_000
    doctor.admit("create")


class JumpingClock(VirtualClock):
    """A clock that the test sets."""

    jump_us = 0

    def now_us(self) -> int:
        return super().now_us() + self.jump_us


async def test_memory_is_examined_while_a_recovery_takes_long(clock: VirtualClock) -> None:
    """A storage whose recovery hangs must not hide everything else that is wrong."""

    class HangingStorage(FailingStorage):
        async def recover(self, now: int) -> None:
            await asyncio.Event().wait()

    storage = HangingStorage()
    storage.fault = "planted fault"
    memory = 1
    doctor = Doctor(
        storage=storage, clock=clock, memory_bytes_max=1_000, drift_ms_max=1_000, read_memory=lambda: memory
    )
    running = asyncio.ensure_future(doctor.run())
    await until(lambda: "storage" in doctor.degradations)
    memory = 2_000
    await clock.advance(5_000)
    await until(lambda: {"storage", "memory"} <= doctor.degradations.keys())
    running.cancel()
    await asyncio.wait((running,))
