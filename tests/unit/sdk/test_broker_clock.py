from __future__ import annotations

from dejaq.sdk.broker_clock import BrokerClock
from dejaq.timekeeper.clock import VirtualClock

START_MS = 1_700_000_000_000


def exchange(broker: BrokerClock, clock: VirtualClock, *, ahead_us: int, out_us: int, back_us: int) -> None:
    sent = clock.now_us()
    broker.observe(sent_us=sent, broker_us=sent + out_us + ahead_us, round_trip_us=out_us + back_us)


def test_one_shared_clock_has_no_offset_and_no_margin() -> None:
    clock = VirtualClock(START_MS)
    broker = BrokerClock(clock)
    broker.meet(clock.identity)
    exchange(broker, clock, ahead_us=0, out_us=900_000, back_us=100)
    assert broker.shared
    assert (broker.offset_us, broker.uncertainty_us) == (0, 0)
    assert broker.latency_us == 900_100
    assert broker.surely_ms() == broker.now_ms() == START_MS


def test_the_real_offset_lies_within_the_uncertainty_however_lopsided_the_way() -> None:
    clock = VirtualClock(START_MS)
    for out_us, back_us in ((0, 5_000), (5_000, 0), (2_000, 3_000)):
        broker = BrokerClock(clock)
        broker.meet("elsewhere")
        exchange(broker, clock, ahead_us=70_000, out_us=out_us, back_us=back_us)
        assert abs(broker.offset_us - 70_000) <= broker.uncertainty_us
        assert broker.sure.now_us() <= clock.now_us() + 70_000


def test_the_quickest_exchange_counts() -> None:
    clock = VirtualClock(START_MS)
    broker = BrokerClock(clock)
    broker.meet("elsewhere")
    for out_us in (8_000, 100, 4_000):
        exchange(broker, clock, ahead_us=-1_000_000, out_us=out_us, back_us=100)
    assert broker.uncertainty_us <= 101
    assert abs(broker.offset_us + 1_000_000) <= 101


def test_a_clock_that_was_set_makes_older_exchanges_worthless() -> None:
    clock = VirtualClock(START_MS)
    broker = BrokerClock(clock)
    broker.meet("elsewhere")
    exchange(broker, clock, ahead_us=0, out_us=10, back_us=10)
    exchange(broker, clock, ahead_us=3_600_000_000, out_us=2_000, back_us=2_000)
    assert abs(broker.offset_us - 3_600_000_000) <= broker.uncertainty_us


def test_another_broker_begins_anew() -> None:
    clock = VirtualClock(START_MS)
    broker = BrokerClock(clock)
    broker.meet("elsewhere")
    exchange(broker, clock, ahead_us=5_000_000, out_us=10, back_us=10)
    broker.meet(clock.identity)
    assert (broker.offset_us, broker.uncertainty_us) == (0, 0)
