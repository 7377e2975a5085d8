"""Many alarms with one timer."""

from __future__ import annotations

import random

from dejaq.timekeeper.alarms import COMMON_MS, MANY, Alarms
from dejaq.timekeeper.clock import VirtualClock


async def test_each_alarm_rings_once_at_the_time_that_was_set_last() -> None:
    clock, rang = VirtualClock(), list[tuple[int, int]]()
    alarms, chance, start = Alarms(clock), random.Random(1), clock.now_ms()
    made = [alarms.alarm(lambda n=n: rang.append((n, clock.now_ms() - start))) for n in range(50)]  # type: ignore[misc]
    expected: dict[int, int] = {}
    for _ in range(500):
        number = chance.randrange(50)
        if chance.random() < 0.2:
            made[number].unset()
            expected.pop(number, None)
        else:
            expected[number] = chance.randrange(1, 1_000)
            made[number].set(start + expected[number])
    await clock.advance(2_000)
    assert sorted(rang) == sorted(expected.items())


async def test_an_alarm_that_is_set_while_another_rings_is_not_missed() -> None:
    clock, rang = VirtualClock(), list[str]()
    alarms = Alarms(clock)
    second = alarms.alarm(lambda: rang.append("second"))

    def ring() -> None:
        rang.append("first")
        second.set(clock.now_ms() + 5)

    alarms.alarm(ring).set(clock.now_ms() + 10)
    await clock.advance(14)
    assert rang == ["first"]
    await clock.advance(1)
    assert rang == ["first", "second"]


async def test_alarms_that_are_set_again_and_again_do_not_accumulate() -> None:
    clock = VirtualClock()
    alarms = Alarms(clock)
    one, closed = alarms.alarm(lambda: None), alarms.alarm(lambda: None)
    closed.close()
    closed.set(clock.now_ms())
    for number in range(10_000):
        one.set(clock.now_ms() + 1_000 + number)
    assert len(alarms._heap) <= 1_010
    assert alarms.count == 1
    await clock.advance(20_000)
    assert alarms._heap == []


def test_many_alarms_have_common_times_that_are_never_late_nor_past() -> None:
    alarms, chance = Alarms(VirtualClock(), phase_ms=37), random.Random(1)
    assert alarms.common(12_345, 0) == 12_345, "there are few"
    alarms.count = MANY
    for _ in range(1_000):
        now, ahead = chance.randrange(1 << 40), chance.randrange(-50, 1_000)
        at = alarms.common(now + ahead, now)
        assert now + ahead - COMMON_MS < at <= now + ahead
        if ahead <= COMMON_MS:
            assert at == now + ahead, "a time that is near is not moved into the past"
        else:
            assert at > now
            assert at % COMMON_MS == 37
