"""Times as people type them."""

from __future__ import annotations

import click
import pytest

from dejaq.cli.times import SECONDS, When, parse_when

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
def test_what_is_no_time_is_refused_with_the_forms_there_are(text: str) -> None:
    with pytest.raises(ValueError, match="ISO 8601 with a zone"):
        parse_when(text)


def test_a_time_without_a_zone_is_refused() -> None:
    with pytest.raises(ValueError, match="has no time zone"):
        parse_when("2030-01-31T09:00:00")


def test_a_distance_is_left_to_the_brokers_clock() -> None:
    assert When(1_500, relative=True).as_arguments() == {"delay": 1.5}
    assert When(NOW).as_arguments() == {"at": NOW}


@pytest.mark.parametrize(("text", "seconds"), [("2.5", 2.5), ("0", 0.0), ("250ms", 0.25), ("2h", 7200.0)])
def test_a_length_of_time_is_seconds_or_has_a_unit(text: str, seconds: float) -> None:
    assert SECONDS.convert(text, None, None) == seconds


@pytest.mark.parametrize("text", ["-1", "-5m", "nan", "inf", "later"])
def test_a_length_of_time_is_never_negative_or_endless(text: str) -> None:
    with pytest.raises(click.BadParameter, match="not a length of time"):
        SECONDS.convert(text, None, None)
