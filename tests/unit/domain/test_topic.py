import json
from typing import Any

import pytest

from dejaq import limits
from dejaq.domain.naming.topic_name import check_topic_name
from dejaq.domain.topic import Durability, Topic, TopicKind, TopicSettings, TopicStage
from dejaq.domain.topic_record import read_topic, write_topic
from dejaq.errors import Code, InvalidArgument

EDGES = {
    "buckets": (limits.BUCKETS_MIN, limits.BUCKETS_MAX),
    "max_future_ms": (0, limits.TS_MS_MAX),
    "max_lease_ms": (limits.LEASE_MS_MIN, limits.LEASE_MS_MAX),
    "max_body_bytes": (0, limits.LARGE_BODY_BYTES_MAX),
}


def made(name: str, value: Any) -> TopicSettings:
    return TopicSettings(**{name: value})


@pytest.mark.parametrize("name", EDGES)
def test_a_setting_is_allowed_at_its_edges_and_refused_beyond(name: str) -> None:
    low, high = EDGES[name]
    for edge in (low, high):
        made(name, edge).check()
    for value in (low - 1, high + 1, "1", 1.0, None, True):
        with pytest.raises(InvalidArgument, match=name) as error:
            made(name, value).check()
        assert error.value.code is Code.INVALID_SETTING


def test_the_defaults_are_allowed_and_durable() -> None:
    TopicSettings().check()
    assert TopicSettings().durability is Durability.FSYNC


def test_settings_survive_json() -> None:
    settings = TopicSettings(buckets=3, durability=Durability.RELAXED, kind=TopicKind.PRIORITY)
    assert TopicSettings.from_dict(json.loads(json.dumps(settings.as_dict()))) == settings


def test_settings_that_are_absent_have_their_default() -> None:
    assert TopicSettings.from_dict({"buckets": 7}) == TopicSettings(buckets=7)


@pytest.mark.parametrize(
    "values",
    [
        {"bucket": 1},
        {"durability": "maybe"},
        {"kind": "heap"},
        {"buckets": 0},
        {"journal": "yes"},
        {"max_lease_ms": "1"},
    ],
)
def test_wrong_settings_are_refused(values: dict[str, int | str | bool]) -> None:
    with pytest.raises(InvalidArgument) as error:
        TopicSettings.from_dict(values)
    assert error.value.code is Code.INVALID_SETTING


@pytest.mark.parametrize("name", ["a", "Mail.out_2-b", "x" * limits.TOPIC_NAME_CHARS_MAX, "."])
def test_valid_topic_names_are_accepted(name: str) -> None:
    check_topic_name(name)


@pytest.mark.parametrize("name", ["", "x" * (limits.TOPIC_NAME_CHARS_MAX + 1), "a b", "a/b", "a:b", "ä", "a\n", "<b>"])
def test_invalid_topic_names_are_refused(name: str) -> None:
    with pytest.raises(InvalidArgument) as error:
        check_topic_name(name)
    assert error.value.code is Code.INVALID_TOPIC


def test_a_refused_name_is_shortened_in_the_error() -> None:
    with pytest.raises(InvalidArgument) as error:
        check_topic_name("x" * 1_000_000)
    assert len(str(error.value)) < 300


def test_a_change_of_state_changes_nothing_else() -> None:
    topic = Topic("mail", 3, TopicSettings(), created_ms=5)
    assert topic.in_state(TopicStage.DELETING) == Topic("mail", 3, TopicSettings(), TopicStage.DELETING, 5)


def test_a_record_of_a_newer_release_is_read_and_written_unchanged() -> None:
    record = json.loads(write_topic(Topic("mail", 1, TopicSettings(buckets=4))))
    record["settings"] |= {"colour": "red", "kind": "spiral"}
    topic = read_topic(json.dumps(record).encode())
    assert topic.settings == TopicSettings(buckets=4)
    assert topic.unsupported_setting == "kind=spiral"
    assert json.loads(write_topic(topic.in_state(TopicStage.DELETING)))["settings"] == record["settings"]
    del record["settings"]["kind"]
    assert read_topic(json.dumps(record).encode()).unsupported_setting is None
