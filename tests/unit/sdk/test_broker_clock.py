from __future__ import annotations

import pytest

from dejaq.sdk.session.broker_clock import DRIFT_PPM, BrokerClock

START_MS = 1_700_000_000_000


class TwoClocks:
    """A wall clock that can be set, and a monotonic clock whose rate may be wrong."""

    identity = "two clocks"

    def __init__(self, *, ppm: int = 0) -> None:
        self.wall_us = START_MS * 1_000
        self.true_us = 0
        self._ppm = ppm

    def now_us(self) -> int:
        return self.wall_us

    def now_ms(self) -> int:
        return self.wall_us // 1_000

    def monotonic(self) -> float:
        return (self.true_us + self.true_us * self._ppm / 1_000_000) / 1_000_000

    async def sleep(self, seconds: float) -> None:
        self.advance(seconds)

    def advance(self, seconds: float) -> None:
        self.wall_us += round(seconds * 1_000_000)
        self.true_us += round(seconds * 1_000_000)


def exchange(broker: BrokerClock, clock: TwoClocks, *, ahead_us: int, out_us: int, back_us: int) -> None:
    """Compare clocks with a broker whose clock is `ahead_us` ahead of a correct wall clock."""
    sent = clock.monotonic()
    clock.advance(out_us / 1_000_000)
    broker_us = START_MS * 1_000 + clock.true_us + ahead_us
    clock.advance(back_us / 1_000_000)
    broker.observe(sent=sent, broker_us=broker_us)


def true_us(clock: TwoClocks, ahead_us: int) -> int:
    return START_MS * 1_000 + clock.true_us + ahead_us


def test_one_shared_clock_has_no_offset_and_no_margin() -> None:
    clock = TwoClocks()
    broker = BrokerClock(clock)
    broker.meet(clock.identity)
    exchange(broker, clock, ahead_us=0, out_us=900_000, back_us=100)
    assert broker.shared
    assert (broker.offset_us, broker.uncertainty_us) == (0, 0)
    assert broker.latency_us == 900_100
    assert broker.surely_ms() == broker.now_ms() == START_MS + 900


def test_the_real_offset_lies_within_the_uncertainty_however_asymmetric_the_round_trip() -> None:
    clock = TwoClocks()
    for out_us, back_us in ((0, 5_000), (5_000, 0), (2_000, 3_000)):
        broker = BrokerClock(clock)
        broker.meet("elsewhere")
        exchange(broker, clock, ahead_us=70_000, out_us=out_us, back_us=back_us)
        assert abs(broker.offset_us - 70_000) <= broker.uncertainty_us
        assert broker.sure.now_us() <= true_us(clock, 70_000)


def test_the_quickest_exchange_is_used() -> None:
    clock = TwoClocks()
    broker = BrokerClock(clock)
    broker.meet("elsewhere")
    for out_us in (8_000, 100, 4_000):
        exchange(broker, clock, ahead_us=-1_000_000, out_us=out_us, back_us=100)
    assert broker.uncertainty_us <= 103
    assert abs(broker.offset_us + 1_000_000) <= 103


def test_a_clock_that_was_set_discards_older_exchanges() -> None:
    clock = TwoClocks()
    broker = BrokerClock(clock)
    broker.meet("elsewhere")
    exchange(broker, clock, ahead_us=0, out_us=10, back_us=10)
    exchange(broker, clock, ahead_us=3_600_000_000, out_us=2_000, back_us=2_000)
    assert abs(broker.offset_us - 3_600_000_000) <= broker.uncertainty_us


def test_another_broker_discards_older_exchanges() -> None:
    clock = TwoClocks()
    broker = BrokerClock(clock)
    broker.meet("elsewhere")
    exchange(broker, clock, ahead_us=5_000_000, out_us=10, back_us=10)
    broker.meet(clock.identity)
    assert (broker.offset_us, broker.uncertainty_us) == (0, 0)


@pytest.mark.parametrize("step_us", [3_200_000, -3_200_000, 86_400_000_000])
def test_setting_the_wall_clock_of_this_machine_changes_nothing(step_us: int) -> None:
    """D3: every prefetched message was handed over 3.2 s early."""
    clock = TwoClocks()
    broker = BrokerClock(clock)
    broker.meet("elsewhere")
    exchange(broker, clock, ahead_us=500, out_us=10, back_us=10)
    clock.wall_us += step_us
    clock.advance(1.0)
    assert true_us(clock, 500) - 300 <= broker.sure.now_us() <= true_us(clock, 500)
    assert abs(broker.now_us() - true_us(clock, 500)) <= broker.uncertainty_us
    # The reported drift is the error of this machine's wall clock.
    assert abs(broker.offset_us - (500 - step_us)) <= broker.uncertainty_us


@pytest.mark.parametrize("ppm", [-DRIFT_PPM + 1, DRIFT_PPM - 1])
def test_the_uncertainty_grows_with_the_age_of_the_exchange(ppm: int) -> None:
    """D3: messages were 1 to 5 ms early at a drift of 100 ppm."""
    clock = TwoClocks(ppm=ppm)
    broker = BrokerClock(clock)
    broker.meet("elsewhere")
    exchange(broker, clock, ahead_us=0, out_us=10, back_us=10)
    for _ in range(20):
        clock.advance(5.0)
        assert broker.sure.now_us() <= true_us(clock, 0) <= broker.now_us() + broker.uncertainty_us
    assert broker.uncertainty_us >= 100 * DRIFT_PPM - 100


def test_a_recent_exchange_is_preferred_to_a_quicker_old_one() -> None:
    """D3: the uncertainty grows with the age of the exchange."""
    clock = TwoClocks(ppm=100)
    broker = BrokerClock(clock)
    broker.meet("elsewhere")
    exchange(broker, clock, ahead_us=0, out_us=10, back_us=10)
    clock.advance(60.0)
    exchange(broker, clock, ahead_us=0, out_us=500, back_us=500)
    assert broker.uncertainty_us <= 502
    assert broker.sure.now_us() <= true_us(clock, 0)


def test_a_copy_of_a_virtual_machine_does_not_share_the_clock_of_its_original() -> None:
    """D3: both have one identity, and clocks of their own."""
    clock = TwoClocks()
    broker = BrokerClock(clock)
    broker.meet(clock.identity)
    exchange(broker, clock, ahead_us=-5_000_000, out_us=10, back_us=10)
    assert not broker.shared
    assert broker.sure.now_us() <= true_us(clock, -5_000_000)


def test_a_clock_that_was_compared_long_ago_is_not_fresh() -> None:
    """D3: a client that only commits transactions compares its clock before it computes a delay."""
    clock = TwoClocks()
    broker = BrokerClock(clock)
    assert not broker.fresh
    exchange(broker, clock, ahead_us=0, out_us=10, back_us=10)
    assert broker.fresh
    clock.advance(31.0)
    assert not broker.fresh
