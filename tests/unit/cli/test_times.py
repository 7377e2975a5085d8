"""Times in the forms that users type."""

from __future__ import annotations

import click
import pytest

from dejaq.cli.terminal.times import SECONDS, When, parse_when

NOW = 1_700_000_000_000


@pytest.mark.parametrize(
    ("text", "at"),
    [
        ("1700000000123", 1_700_000_000_123),
        ("0", 0),
        ("2023-11-14T22:13:20Z", NOW),
        ("2023-11-14T23:13:20.250+01:00", NOW + 250),
        ("2023-11-14T22:13:20.000001Z", NOW + 1),
        ("+90s", NOW + 90_000),
        ("90s", NOW + 90_000),
        ("5m", NOW + 300_000),
        ("-5m", NOW - 300_000),
        ("2h", NOW + 7_200_000),
        ("1d", NOW + 86_400_000),
        ("1h30m", NOW + 5_400_000),
        ("1.5s", NOW + 1_500),
        ("250ms", NOW + 250),
        ("now", NOW),
    ],
)
def test_a_time_is_read_in_every_documented_form(text: str, at: int) -> None:
    assert parse_when(text).at(NOW) == at


@pytest.mark.parametrize("text", ["", "soon", "5 parsecs", "2030-13-01T00:00:00Z", "1e3", "+", "5m now", "--5m"])
def test_an_invalid_time_is_refused_with_the_valid_forms(text: str) -> None:
    with pytest.raises(ValueError, match="ISO 8601 with a zone"):
        parse_when(text)


def test_epoch_seconds_are_refused_with_both_possible_meanings() -> None:
    """U14: a message with `--at 1830000000` was delivered at once, because the number meant a time in January 1970."""
    with pytest.raises(ValueError, match=r"1970-01-22T04:20:00Z.*2027-12-28T13:20:00Z"):
        parse_when("1830000000")
    assert parse_when("1970-01-22T04:20:00Z").at(NOW) == 1_830_000_000


def test_a_time_without_a_zone_is_refused() -> None:
    with pytest.raises(ValueError, match="has no time zone"):
        parse_when("2030-01-31T09:00:00")


def test_a_relative_time_is_computed_by_the_brokers_clock() -> None:
    assert When(1_500, relative=True).as_arguments() == {"delay": 1.5}
    assert When(NOW).as_arguments() == {"at": NOW}


@pytest.mark.parametrize(("text", "seconds"), [("2.5", 2.5), ("0", 0.0), ("250ms", 0.25), ("2h", 7200.0)])
def test_a_duration_is_in_seconds_or_has_a_unit(text: str, seconds: float) -> None:
    assert SECONDS.convert(text, None, None) == seconds


@pytest.mark.parametrize("text", ["-1", "-5m", "nan", "inf", "later"])
def test_a_duration_is_never_negative_or_infinite(text: str) -> None:
    with pytest.raises(click.BadParameter, match="not a length of time"):
        SECONDS.convert(text, None, None)
