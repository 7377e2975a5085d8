"""Global names, names of a user, and the names that only the broker uses."""

from __future__ import annotations

import pytest

from dejaq.domain.naming.topic_name import (
    check_asked_topic,
    check_topic_name,
    is_hidden,
    namespace_of,
    resolved,
    valid_topic_name,
)
from dejaq.domain.topic import Topic, TopicSettings
from dejaq.domain.topic_record import read_topic, write_topic
from dejaq.errors import Code, DejaqError


@pytest.mark.parametrize("name", ["mail", "~alice/mail", "~a.b+c@example.com/mail.dead", "~alice/schedules"])
def test_a_global_name_and_a_name_of_a_user_are_valid(name: str) -> None:
    assert valid_topic_name(name)
    assert not is_hidden(name)


@pytest.mark.parametrize(
    "name",
    ["", "~", "~/mail", "~alice", "~alice/", "~alice/a/b", "~al ice/mail", "alice/mail", "/security"],
)
def test_no_other_name_is_valid(name: str) -> None:
    with pytest.raises(DejaqError) as refused:
        check_topic_name(name)
    assert refused.value.code is Code.INVALID_TOPIC


@pytest.mark.parametrize("name", ["/security", "mail/schedules", "~alice/mail/schedules"])
def test_names_of_the_broker_itself_are_hidden_and_no_client_may_ask_for_them(name: str) -> None:
    assert is_hidden(name)
    with pytest.raises(DejaqError):
        check_asked_topic(name)


def test_a_short_name_is_the_caller_s_own_topic() -> None:
    check_asked_topic("~/mail")
    assert resolved("~/mail", "alice") == "~alice/mail"
    assert resolved("~bob/mail", "alice") == "~bob/mail"
    assert resolved("mail", "") == "mail"


@pytest.mark.parametrize("user", ["", "a/b", "x" * 65, "al ice"])
def test_a_short_name_of_a_caller_without_a_usable_name_is_refused(user: str) -> None:
    with pytest.raises(DejaqError) as refused:
        resolved("~/mail", user)
    assert refused.value.code is Code.INVALID_TOPIC


def test_the_namespace_is_the_user() -> None:
    assert namespace_of("~alice/mail") == "alice"
    assert namespace_of("mail") == namespace_of("mail/schedules") == ""


def test_the_creator_survives_in_the_record_and_is_no_setting() -> None:
    topic = Topic("~alice/mail", 7, TopicSettings(), creator="user:alice")
    assert read_topic(write_topic(topic)) == topic
    assert read_topic(write_topic(topic)).newer == ()
    assert b"creator" not in write_topic(Topic("mail", 8, TopicSettings()))
