from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from dejaq import limits
from dejaq.errors import Code, InvalidArgument
from dejaq.sdk.times import lease_ms, resolve, resolve_column, to_datetime, to_ms

NOW_US = 1_700_000_000_000_400


def test_epoch_milliseconds_and_aware_datetimes_are_times() -> None:
    assert to_ms(1_700_000_000_123) == 1_700_000_000_123
    assert to_ms(0) == 0
    assert to_ms(datetime(1970, 1, 1, 2, 0, 1, tzinfo=timezone(timedelta(hours=2)))) == 1_000
    assert to_ms(datetime(1970, 1, 1, microsecond=1_001, tzinfo=UTC)) == 2


def test_a_datetime_converts_to_milliseconds_and_back() -> None:
    moment = datetime(2031, 5, 6, 7, 8, 9, 123_000, tzinfo=UTC)
    assert to_datetime(to_ms(moment)) == moment
    assert to_datetime(limits.TS_MS_MAX + 10**9).year == 9999


def test_seconds_since_the_epoch_are_refused_with_both_possible_meanings() -> None:
    """U14: 1830000000 was read as 22 January 1970, and the message was delivered at once."""
    for refuse in (
        lambda: to_ms(1_830_000_000),
        lambda: resolve(1_830_000_000, None, NOW_US),
        lambda: resolve_column(1_830_000_000, None, count=2, now_us=NOW_US),
        lambda: resolve_column([1_830_000_000_000, 1_830_000_000], None, count=2, now_us=NOW_US),
    ):
        with pytest.raises(InvalidArgument, match=r"1970-01-22T04:20:00Z.*2027-12-28T13:20:00Z.*datetime") as refused:
            refuse()
        assert refused.value.code is Code.INVALID_TIME
    assert to_ms(limits.PLAIN_TIME_MS_MIN) == limits.PLAIN_TIME_MS_MIN
    with pytest.raises(InvalidArgument):
        to_ms(limits.PLAIN_TIME_MS_MIN - 1)


def test_a_time_before_2001_is_accepted_as_a_datetime() -> None:
    """U14: the error names a form that is accepted."""
    old = datetime(1975, 1, 1, tzinfo=UTC)
    assert to_datetime(to_ms(old)) == old
    assert resolve_column([old, 0], None, count=2, now_us=NOW_US) == [to_ms(old), 0]


@pytest.mark.parametrize("wrong", [datetime(2030, 1, 1), 1.5, True, "now", None])
def test_naive_datetimes_and_other_types_are_refused(wrong: Any) -> None:
    with pytest.raises(InvalidArgument) as refused:
        to_ms(wrong)
    assert refused.value.code is Code.INVALID_TIME


def test_the_error_of_a_naive_datetime_names_the_missing_time_zone() -> None:
    with pytest.raises(InvalidArgument, match="time zone"):
        to_ms(datetime(2030, 1, 1))


def test_a_delay_is_rounded_up_so_that_it_never_ends_early() -> None:
    assert resolve(None, 0.001, NOW_US) == 1_700_000_000_002
    assert resolve(None, timedelta(seconds=2), NOW_US) == 1_700_000_002_001
    assert resolve(None, 2.5, 1_700_000_000_000_000) == 1_700_000_002_500
    assert resolve(None, None, NOW_US) == 1_700_000_000_000


def test_a_time_and_a_delay_together_are_refused() -> None:
    with pytest.raises(InvalidArgument):
        resolve(0, 1, NOW_US)
    with pytest.raises(InvalidArgument):
        resolve_column([0], [1], count=1, now_us=NOW_US)


@pytest.mark.parametrize("wrong", [float("nan"), float("inf"), True, "5"])
def test_a_delay_is_a_finite_number_of_seconds(wrong: Any) -> None:
    with pytest.raises(InvalidArgument):
        resolve(None, wrong, NOW_US)


def test_a_column_is_one_value_for_all_or_one_per_message() -> None:
    one, two = 1_700_000_000_001, 1_700_000_000_002
    assert resolve_column(one, None, count=3, now_us=NOW_US) == [one, one, one]
    assert resolve_column([one, two], None, count=2, now_us=NOW_US) == [one, two]
    assert resolve_column([one, to_datetime(two)], None, count=2, now_us=NOW_US) == [one, two]
    assert resolve_column(None, [0, 1], count=2, now_us=0) == [0, 1_000]
    with pytest.raises(InvalidArgument, match="3 times for 2 messages"):
        resolve_column([one, one, two], None, count=2, now_us=NOW_US)


def test_the_length_of_a_lease_is_limited() -> None:
    assert lease_ms(limits.LEASE_MS_MIN / 1000) == limits.LEASE_MS_MIN
    assert lease_ms(timedelta(milliseconds=limits.LEASE_MS_MAX)) == limits.LEASE_MS_MAX
    for wrong in (limits.LEASE_MS_MIN / 1000 - 0.001, limits.LEASE_MS_MAX / 1000 + 0.001, float("nan"), -1):
        with pytest.raises(InvalidArgument) as refused:
            lease_ms(wrong)
        assert refused.value.code is Code.INVALID_LEASE
