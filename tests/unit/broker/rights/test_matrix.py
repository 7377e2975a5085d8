"""S3: every call and every frame, for every role, on the topic of the role's rule and on another.

The calls and frames are read from the descriptors, so that one without a row here, or without an entry in the table of
needs, fails. What is expected is written here a second time, apart from the table.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import pytest
from google.protobuf.message import Message

from dejaq.broker import Broker, server
from dejaq.broker.rights.masking import MASKS
from dejaq.broker.rights.own_names import FIELDS
from dejaq.broker.rights.table import CALLS, FRAMES, Open
from dejaq.domain.context import ANONYMOUS, BROKER, Principal
from dejaq.errors import Code, DejaqError
from dejaq.protocol.v1 import carrier_pb2 as carrier
from dejaq.protocol.v1 import cron_pb2 as cron
from dejaq.protocol.v1 import history_pb2 as history
from dejaq.protocol.v1 import log_pb2
from dejaq.protocol.v1 import overseer_pb2 as overseer
from dejaq.protocol.v1 import rights_pb2 as rights
from dejaq.security.rights.operations import OF_TOPICS, Operation
from tests.unit.broker.rights.callers import ROOT, allow, call, code_of, make_topic, session, user

METHODS = {f"{service.name}.{method.name}": method for service in server._SERVICES for method in service.methods}
COMMANDS = [field.name for field in carrier.ClientFrame.DESCRIPTOR.oneofs_by_name["command"].fields]
DIGEST, SESSION = bytes(32), bytes(10)
HEAD = carrier.UploadHead(size=1, stored=1, digest=DIGEST)


def _rule(topic: str) -> rights.PutRuleRequest:
    rule = rights.RightsRule(effect="allow", principal="user:x", operations=["read"], topic=topic)
    return rights.PutRuleRequest(rule=rule)


def _upload(topic: str) -> carrier.UploadFrame:
    frame = carrier.UploadFrame(head=HEAD)
    frame.head.topic = topic
    return frame


def _find(topic: str) -> carrier.UploadHead:
    return _upload(topic).head


def _transact(topic: str) -> carrier.TransactRequest:
    step = carrier.Step(topic=topic, actor="g", create=carrier.CreateBatch(ids=["t"], ts=[2**40], bodies=[b""]))
    return carrier.TransactRequest(session=SESSION, steps=[step])


# A request of each call about a topic. Those that no right lets a caller begin have None.
REQUESTS: dict[str, Callable[[str], Message] | None] = {
    "Overseer.Info": None,
    "Overseer.Ping": None,
    "Overseer.CreateTopic": lambda topic: overseer.CreateTopicRequest(name=topic),
    "Overseer.EditTopic": lambda topic: overseer.EditTopicRequest(
        name=topic, settings=overseer.TopicSettings(client_rate=5_000)
    ),
    "Overseer.DescribeTopic": lambda topic: overseer.TopicRequest(name=topic),
    "Overseer.Copies": lambda topic: overseer.TopicRequest(name=topic),
    "Overseer.ListTopics": None,
    # Of a topic that does not exist, so that the cells after it find theirs.
    "Overseer.DeleteTopic": lambda topic: overseer.TopicRequest(name=f"{topic}.gone"),
    "Overseer.RekeyTopic": lambda topic: overseer.RekeyTopicRequest(name=topic),
    "Overseer.Checkpoint": lambda topic: overseer.CheckpointRequest(),
    "Carrier.Session": None,
    "Carrier.Transact": _transact,
    "Carrier.TransactMany": None,
    "Carrier.Await": lambda topic: carrier.AwaitRequest(topic=topic, id="m"),
    "Carrier.Get": lambda topic: carrier.GetRequest(topic=topic, ids=["m"]),
    "Carrier.Count": lambda topic: carrier.CountRequest(topic=topic),
    "Carrier.Histogram": lambda topic: carrier.HistogramRequest(
        topic=topic, filter=carrier.Filter(start=0, end=1), step_ms=1
    ),
    "Carrier.Browse": lambda topic: carrier.BrowseRequest(topic=topic),
    "Carrier.History": lambda topic: history.HistoryRequest(topic=topic, id="m"),
    "Carrier.OpenSnapshot": lambda topic: carrier.SnapshotRequest(topic=topic),
    # With the snapshot of the topic in place of its name.
    "Carrier.CloseSnapshot": lambda topic: carrier.CloseSnapshotRequest(snapshot=topic),
    "Carrier.Scan": lambda topic: carrier.ScanRequest(snapshot=topic, end_bucket=1),
    "Carrier.Upload": _upload,
    "Carrier.FindBody": _find,
    "Carrier.Download": lambda topic: carrier.DownloadRequest(topic=topic, id="m"),
    "Carrier.Redrive": lambda topic: carrier.RedriveRequest(topic=topic, target=topic, ids=["m"]),
    "Carrier.Purge": lambda topic: carrier.PurgeRequest(topic=topic, ids=["gone"]),
    "Cron.Put": lambda topic: cron.PutSchedulesRequest(
        topic=topic, schedules=[cron.Schedule(name="s", expression="@daily")]
    ),
    "Cron.List": lambda topic: cron.ListSchedulesRequest(topic=topic),
    "Cron.Change": lambda topic: cron.ChangeScheduleRequest(topic=topic, name="s", action=cron.PAUSE),
    "Cron.Next": lambda topic: cron.NextTimesRequest(topic=topic, name="s"),
    "Log.Offsets": lambda topic: log_pb2.LogOffsetsRequest(topic=topic),
    "Log.OffsetsForTime": lambda topic: log_pb2.LogTimeRequest(topic=topic),
    "Log.Fetch": lambda topic: log_pb2.LogFetchRequest(topic=topic),
    "Log.Rollback": lambda topic: log_pb2.LogRollbackRequest(topic=topic, session=SESSION),
    "Log.Groups": lambda topic: log_pb2.LogGroupsRequest(topic=topic),
    "Log.Reset": lambda topic: log_pb2.LogResetRequest(topic=topic, group="g"),
    "Log.RemoveGroup": lambda topic: log_pb2.LogRemoveGroupRequest(topic=topic, group="g"),
    "Log.Prepare": lambda topic: log_pb2.LogPrepareRequest(topic=topic, name="t"),
    "Log.Resolve": lambda topic: log_pb2.LogResolveRequest(topic=topic, name="t"),
    "Log.InDoubt": lambda topic: log_pb2.LogInDoubtRequest(topic=topic),
    # Own keys and sessions need no right; tests/integration/security/test_access.py has those of others.
    "Access.WhoAmI": None,
    "Access.CreateKey": None,
    "Access.ListKeys": None,
    "Access.RevokeKey": None,
    "Access.ListSessions": None,
    "Access.EndSession": None,
    "Rights.List": None,
    "Rights.Put": _rule,
    "Rights.Remove": lambda topic: rights.RemoveRuleRequest(id="none"),
    "Rights.Check": None,
    "Rights.SetQuota": lambda topic: rights.QuotaRequest(quota=rights.RightsQuota(principal="user:x", topics=1)),
    "Rights.ListQuotas": None,
}
READING = frozenset({Operation.INSPECT, Operation.READ, Operation.ADMIN})
SENDING = frozenset({Operation.PRODUCE, Operation.CHANGE, Operation.ADMIN})
# The operations of which each alone lets a caller do the call.
EXPECTED: dict[str, frozenset[Operation]] = {
    "Overseer.CreateTopic": frozenset({Operation.CREATE, Operation.ADMIN}),
    "Overseer.EditTopic": frozenset({Operation.ADMIN}),
    "Overseer.DescribeTopic": OF_TOPICS,
    "Overseer.Copies": READING,
    "Overseer.DeleteTopic": frozenset({Operation.ADMIN}),
    "Overseer.RekeyTopic": frozenset({Operation.ADMIN}),
    "Overseer.Checkpoint": frozenset({Operation.OPERATE}),
    "Carrier.Transact": frozenset({Operation.PRODUCE, Operation.ADMIN}),
    **dict.fromkeys(("Carrier.Await", "Carrier.Get", "Carrier.Count", "Carrier.Histogram"), READING),
    **dict.fromkeys(("Carrier.Browse", "Carrier.History", "Carrier.OpenSnapshot"), READING),
    **dict.fromkeys(("Carrier.CloseSnapshot", "Carrier.Scan", "Cron.List", "Cron.Next"), READING),
    "Carrier.Upload": SENDING,
    "Carrier.FindBody": SENDING,
    "Carrier.Download": frozenset({Operation.READ, Operation.CONSUME, Operation.ADMIN}),
    **dict.fromkeys(("Log.Offsets", "Log.OffsetsForTime", "Log.Groups", "Log.InDoubt"), READING),
    "Log.Fetch": frozenset({Operation.READ, Operation.CONSUME, Operation.ADMIN}),
    **dict.fromkeys(("Log.Rollback", "Log.Prepare", "Log.Resolve"), frozenset({Operation.CHANGE, Operation.ADMIN})),
    **dict.fromkeys(("Log.Reset", "Log.RemoveGroup"), frozenset({Operation.CONSUME, Operation.ADMIN})),
    "Carrier.Redrive": frozenset({Operation.ADMIN}),
    "Carrier.Purge": frozenset({Operation.ADMIN}),
    "Cron.Put": frozenset({Operation.ADMIN}),
    "Cron.Change": frozenset({Operation.SCHEDULE, Operation.ADMIN}),
    "Rights.Put": frozenset({Operation.ADMIN, Operation.OPERATE}),
    "Rights.Remove": frozenset({Operation.OPERATE}),
    "Rights.SetQuota": frozenset({Operation.OPERATE}),
}
PRODUCING = frozenset({Operation.PRODUCE, Operation.ADMIN})
CHANGING = frozenset({Operation.CHANGE, Operation.ADMIN})
CONSUMING = frozenset({Operation.CONSUME, Operation.ADMIN})
EXPECTED_FRAMES: dict[str, frozenset[Operation]] = {
    "hello": frozenset(Operation),
    "ping": frozenset(Operation),
    "renew": frozenset(Operation),
    "producer": SENDING,
    "create": PRODUCING,
    "edit": CHANGING,
    "cancel": CHANGING,
    **dict.fromkeys(("consumer", "subscribe", "unsubscribe", "settle", "deletes", "extends"), CONSUMING),
    **dict.fromkeys(("recalled", "busy", "progress"), CONSUMING),
    # The row below appends.
    "log": PRODUCING,
}
MINE, OTHER = "mail", "other"
ROLES: dict[str, tuple[Principal, frozenset[Operation]]] = {
    **{str(one): (user(f"with-{one}"), frozenset({one})) for one in Operation},
    "nobody": (user("nobody"), frozenset()),
    "anonymous": (ANONYMOUS, frozenset()),
    "denied": (user("denied"), frozenset()),
}
WHOLE = {"root": ROOT, "broker": BROKER}


@pytest.fixture
async def matrix(guarded: Broker) -> Broker:
    for topic in (MINE, OTHER):
        await make_topic(guarded, ROOT, topic)
    for operation in Operation:
        await allow(guarded, f"user:with-{operation}", operation, "*" if operation is Operation.OPERATE else f"{MINE}*")
    await allow(guarded, "user:denied", ",".join(OF_TOPICS), "*")
    await allow(guarded, "user:denied", "operate", "*")
    await allow(guarded, "user:denied", ",".join(OF_TOPICS), "*", effect="deny")
    await allow(guarded, "user:denied", "operate", "*", effect="deny")
    return guarded


async def _snapshot(broker: Broker, topic: str) -> str:
    answer = await call(broker, ROOT, "Carrier.OpenSnapshot", carrier.SnapshotRequest(topic=topic))
    return str(answer.snapshot)


async def _cell(broker: Broker, who: Principal, method: str, topic: str) -> bool:
    """Whether the caller was allowed to begin the call."""
    make = REQUESTS[method]
    assert make is not None
    named = await _snapshot(broker, topic) if "snapshot" in METHODS[method].input_type.fields_by_name else topic
    code = await code_of(broker, who, method, make(named))
    if method in ("Carrier.Scan",):
        await call(broker, ROOT, "Carrier.CloseSnapshot", carrier.CloseSnapshotRequest(snapshot=named))
    return code is not Code.PERMISSION_DENIED


def test_every_call_of_the_protocol_has_a_need_and_a_row_here() -> None:
    assert set(CALLS) == set(METHODS) == set(REQUESTS)
    assert {method for method, make in REQUESTS.items() if make is not None} == set(EXPECTED)
    opened = {method for method, need in CALLS.items() if isinstance(need, Open)}
    assert opened - {"Overseer.DescribeTopic", "Rights.Remove"} == {
        method for method, make in REQUESTS.items() if make is None
    }


def test_every_frame_of_a_session_has_a_need_and_a_row_here() -> None:
    assert set(FRAMES) == set(COMMANDS) == set(EXPECTED_FRAMES)


def test_every_field_that_names_a_topic_is_resolved() -> None:
    found: dict[str, set[str]] = {}
    inputs = [method.input_type for method in METHODS.values()]
    inputs += [field.message_type for field in carrier.ClientFrame.DESCRIPTOR.oneofs_by_name["command"].fields]
    inputs += [carrier.Step.DESCRIPTOR, carrier.UploadHead.DESCRIPTOR, log_pb2.LogStep.DESCRIPTOR]
    for kind in inputs:
        for field in kind.fields:
            named = field.name in ("topic", "target") or (field.name == "name" and "Topic" in kind.name)
            inner = [f"{field.name}.{one.name}" for one in _parts(field) if one.name in ("topic", "dead_letter")]
            for path in ([field.name] if named and field.type == field.TYPE_STRING else []) + inner:
                found.setdefault(kind.name, set()).add(path)
    # Heads of uploads, steps of transactions and commands of frames are resolved as messages of their own.
    for whole in ("UploadFrame", "TransactRequest", "ClientFrame"):
        found.pop(whole, None)
    assert found == {kind: set(paths) for kind, paths in FIELDS.items()}


def _parts(field: Any) -> list[Any]:
    return [] if field.message_type is None or field.is_repeated else list(field.message_type.fields)


def test_every_answer_with_a_body_has_a_mask() -> None:
    """Also those that answer a change of schedules, which have templates. Copies are names of servers."""
    reading = {method for method, operations in EXPECTED.items() if operations == READING} - {"Overseer.Copies"}
    assert set(MASKS) == reading | {"Cron.Put", "Cron.Change"}


@pytest.mark.parametrize("method", sorted(EXPECTED))
async def test_a_call_is_allowed_to_exactly_the_roles_that_may_do_it(matrix: Broker, method: str) -> None:
    for (role, (who, operations)), topic in product(ROLES.items(), (MINE, OTHER)):
        whole_cluster = Operation.OPERATE in operations and Operation.OPERATE in EXPECTED[method]
        expected = bool(operations & EXPECTED[method]) and (topic == MINE or whole_cluster)
        assert await _cell(matrix, who, method, topic) is expected, (role, method, topic)
    for role, who in WHOLE.items():
        for topic in (MINE, OTHER):
            assert await _cell(matrix, who, method, topic), (role, method, topic)


@pytest.mark.parametrize("method", sorted(set(EXPECTED) - {"Overseer.Checkpoint", "Rights.Remove", "Rights.SetQuota"}))
async def test_the_creator_of_a_topic_may_do_everything_to_it_and_nothing_to_another(
    matrix: Broker, method: str
) -> None:
    alice, bob = user("alice"), user("bob")
    await make_topic(matrix, alice, "~alice/box")
    await allow(matrix, "user:alice", "create", "made")
    await make_topic(matrix, alice, "made")
    assert await _cell(matrix, alice, method, "~alice/box")
    assert not await _cell(matrix, bob, method, "~alice/box")
    if method != "Overseer.DeleteTopic":
        # Its row names another topic than the one that was made.
        assert await _cell(matrix, alice, method, "made")
    assert not await _cell(matrix, bob, method, "made")
    assert not await _cell(matrix, alice, method, OTHER)


async def test_calls_that_need_no_right_answer_every_caller(matrix: Broker) -> None:
    for who in (ANONYMOUS, user("nobody")):
        for method, request in {
            "Overseer.Info": overseer.InfoRequest(),
            "Overseer.Ping": overseer.PingRequest(),
            "Overseer.ListTopics": overseer.ListTopicsRequest(),
            "Rights.List": rights.ListRulesRequest(),
            "Rights.Check": rights.CheckRightRequest(operation="read", topic=MINE),
        }.items():
            assert await code_of(matrix, who, method, request) is Code.OK, method


async def test_a_transaction_is_refused_for_any_step_and_the_others_of_its_call_are_not(matrix: Broker) -> None:
    who, _ = ROLES["produce"]
    mine, other = _transact(MINE), _transact(OTHER)
    other.sequence = 1
    both = carrier.TransactRequest(session=SESSION, sequence=2, steps=[*_transact(MINE).steps, *other.steps])
    assert await code_of(matrix, who, "Carrier.Transact", both) is Code.PERMISSION_DENIED
    request = carrier.TransactManyRequest(transactions=[mine, other, both])
    answer = await call(matrix, who, "Carrier.TransactMany", request)
    assert [one.error.code for one in answer.answers] == [0, Code.PERMISSION_DENIED, Code.PERMISSION_DENIED]
    assert (await call(matrix, ROOT, "Carrier.Count", carrier.CountRequest(topic=OTHER))).count == 0
    assert (await call(matrix, ROOT, "Carrier.Count", carrier.CountRequest(topic=MINE))).count == 1


FREE = ("hello", "ping", "renew")
HANDSHAKE = {"create": "producer", "edit": "producer", "cancel": "producer"}


def _frames(command: str, topic: str) -> list[carrier.ClientFrame]:
    """The frames up to a command, in the order that the session's state allows."""
    before = ["hello"] if command != "hello" else []
    if command not in (*FREE, "producer", "consumer", "log"):
        before.append(HANDSHAKE.get(command, "consumer"))
    if command in ("unsubscribe", "busy"):
        before.append("subscribe")
    frames = []
    for number, name in enumerate([*before, command], 1):
        frame = carrier.ClientFrame(request=number)
        part = getattr(frame, name)
        part.SetInParent()
        if name == "hello":
            part.protocol = 99
        elif name in ("producer", "consumer"):
            part.topic = topic
            setattr(part, "group" if name == "producer" else "name", "g")
        elif name == "log":
            part.append.topic = topic
        elif name == "subscribe":
            part.credit_rows = part.credit_bytes = part.lease_ms = 1_000
        frames.append(frame)
    return frames


@pytest.mark.parametrize("command", COMMANDS)
async def test_a_frame_is_allowed_to_exactly_the_roles_that_may_send_it(matrix: Broker, command: str) -> None:
    cells: list[tuple[str, Principal, str, bool]] = [
        (
            role,
            who,
            topic,
            command in FREE or (topic == MINE and bool(operations & EXPECTED_FRAMES[command])),
        )
        for (role, (who, operations)), topic in product(ROLES.items(), (MINE, OTHER))
    ]
    cells += [(role, who, topic, True) for role, who in WHOLE.items() for topic in (MINE, OTHER)]
    for role, who, topic, expected in cells:
        answers = await session(matrix, who, *_frames(command, topic))
        denied = [one.error.code for one in answers if one.error.code == Code.PERMISSION_DENIED]
        assert (not denied) is expected, (role, command, topic, answers)


async def test_a_call_that_the_table_lacks_is_refused(matrix: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(CALLS, "Overseer.Ping")
    with pytest.raises(DejaqError) as refused:
        await call(matrix, user("nobody"), "Overseer.Ping", overseer.PingRequest())
    assert refused.value.code is Code.PERMISSION_DENIED
