"""U23: durations of topic settings, which the SDK named in ms and the command line in seconds."""

from __future__ import annotations

import inspect
from datetime import timedelta
from typing import Any

import click
import pytest

import dejaq
from dejaq.cli.messages import topic
from dejaq.cli.terminal.times import SECONDS
from dejaq.domain.topic import TopicSettings
from dejaq.sdk.admin.topics import DURATIONS, settings_message

TEXTS = {"15m": 900_000, "900": 900_000, "0.25h": 900_000, "10m5m": 900_000, "250ms": 250, "1h30m": 5_400_000}
OTHERS = {900: 900_000, 2.5: 2_500, timedelta(minutes=15): 900_000, 0: 0, "7d": 604_800_000, "2w": 1_209_600_000}


@pytest.mark.parametrize(("length", "ms"), (TEXTS | OTHERS).items())
@pytest.mark.parametrize("name", DURATIONS)
def test_a_duration_is_seconds_a_timedelta_or_a_text(name: str, length: object, ms: int) -> None:
    assert getattr(settings_message(**{name: length}), DURATIONS[name]) == ms


@pytest.mark.parametrize(("text", "ms"), TEXTS.items())
def test_the_command_line_reads_the_same_texts(text: str, ms: int) -> None:
    assert SECONDS.convert(text, None, None) == ms / 1_000


@pytest.mark.parametrize("length", ["", "soon", "-5m", "nan", "inf", -1, True, "5 m", "5M", b"5m", float("nan")])
def test_what_is_no_duration_is_refused_with_the_forms(length: Any) -> None:
    with pytest.raises(dejaq.InvalidArgument, match=r"not a length of time; .*1h30m") as refused:
        settings_message(max_future=length)
    assert refused.value.code is dejaq.Code.INVALID_SETTING
    if isinstance(length, str):
        with pytest.raises(click.BadParameter):
            SECONDS.convert(length, None, None)


@pytest.mark.parametrize("name", DURATIONS)
def test_the_stored_name_is_refused_with_the_one_to_give(name: str) -> None:
    with pytest.raises(dejaq.InvalidArgument, match=f"give {name}, such as"):
        settings_message(**{DURATIONS[name]: 1_000})


def test_every_duration_of_a_topic_has_one_name_in_the_sdk_and_at_the_command_line() -> None:
    stored = {name for name in TopicSettings.__dataclass_fields__ if name.endswith("_ms")}
    assert set(DURATIONS.values()) == stored
    given = inspect.signature(dejaq.Client.create_topic).parameters
    options = {option.name for option in topic.create.params}
    assert DURATIONS.keys() <= given.keys() & options
    assert not stored & given.keys()
