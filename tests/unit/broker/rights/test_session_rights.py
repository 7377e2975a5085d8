"""What a session may do with logs while rules change."""

from __future__ import annotations

import pytest

from dejaq.broker import Broker
from dejaq.broker.rights.session_rights import OPENS_MAX, SessionRights
from dejaq.errors import OutOfState, PermissionDenied
from dejaq.protocol.v1 import carrier_pb2 as carrier
from dejaq.protocol.v1 import log_pb2
from dejaq.protocol.v1 import rights_pb2 as rights
from tests.unit.broker.rights.callers import ROOT, allow, call, called_by, make_topic, user

BOB = user("bob")


def opens(topic: str) -> carrier.ClientFrame:
    return carrier.ClientFrame(request=2, log=log_pb2.LogCommand(open=log_pb2.LogOpen(topic=topic)))


async def reading(broker: Broker, *topics: str) -> SessionRights:
    """The rights of a session of bob, which may read these logs."""
    for topic in topics:
        await make_topic(broker, ROOT, topic, kind="log")
        await allow(broker, "user:bob", "read,consume", topic)
    return SessionRights(broker.central.rights.guard, called_by(BOB))


async def forbid(broker: Broker, topic: str) -> None:
    rule = rights.RightsRule(effect="deny", principal="user:bob", operations=["read", "consume"], topic=topic)
    await call(broker, ROOT, "Rights.Put", rights.PutRuleRequest(rule=rule))


async def test_a_session_that_tried_a_second_log_still_loses_the_right_of_the_first(guarded: Broker) -> None:
    session = await reading(guarded, "one", "two")
    session.admit("log", opens("one"))
    session.admit("log", opens("two"))
    assert session.lost() is None
    await forbid(guarded, "one")
    assert isinstance(session.lost(), PermissionDenied)


async def test_a_log_that_was_refused_ends_no_session_that_reads_another(guarded: Broker) -> None:
    session = await reading(guarded, "one")
    await make_topic(guarded, ROOT, "secret", kind="log")
    session.admit("log", opens("one"))
    with pytest.raises(PermissionDenied):
        session.admit("log", opens("secret"))
    assert session.lost() is None


async def test_a_session_tries_a_bounded_number_of_logs(guarded: Broker) -> None:
    session = await reading(guarded, "one")
    for _ in range(OPENS_MAX):
        session.admit("log", opens("one"))
    names = [f"log{number}" for number in range(OPENS_MAX)]
    session = await reading(guarded, *names)
    for name in names:
        session.admit("log", opens(name))
    with pytest.raises(OutOfState, match="begin a new session"):
        session.admit("log", opens(names[0]))
