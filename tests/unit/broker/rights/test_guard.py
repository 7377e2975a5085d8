"""What callers see of what they may only inspect, and how rules change while a broker serves."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from dejaq.broker import Broker
from dejaq.broker.rights.book import TOPIC
from dejaq.broker.rights.guard import Guard
from dejaq.broker.rights.needs import Claim
from dejaq.broker.rights.session_rights import SessionRights
from dejaq.domain.batch import CreateBatch
from dejaq.domain.changes import Create
from dejaq.domain.context import ANONYMOUS, DIRECT_CALL, Principal
from dejaq.domain.ids import ProducerSession
from dejaq.errors import Code, DejaqError
from dejaq.protocol.spliced import BrokerSent, whole
from dejaq.protocol.v1 import carrier_pb2 as carrier
from dejaq.protocol.v1 import cron_pb2 as cron
from dejaq.protocol.v1 import overseer_pb2 as overseer
from dejaq.protocol.v1 import rights_pb2 as rights
from dejaq.security.rights.matching import RuleSet
from dejaq.security.rights.operations import Operation
from dejaq.security.rights.rules import Effect, Rule
from dejaq.storage.base import apply_one
from dejaq.storage.memory.store import MemoryStorage
from dejaq.synchronization.local import Hub, LocalSynchronization
from dejaq.timekeeper.clock import VirtualClock
from tests.unit.broker.client import until
from tests.unit.broker.rights.callers import (
    ROOT,
    allow,
    call,
    called_by,
    code_of,
    make_topic,
    services_of,
    session,
    user,
)

ALICE, BOB = user("alice", "ops"), user("bob")
BODY = b"a body that only readers may see"


async def _send(broker: Broker, who: Principal, topic: str, *ids: str, group: str = "g") -> list[int]:
    """Create messages in a session; the codes of errors."""
    batch = carrier.CreateBatch(
        session=ProducerSession(1, len(ids)).pack(), ids=ids, ts=[2**40] * len(ids), bodies=[BODY] * len(ids)
    )
    answers = await session(
        broker,
        who,
        carrier.ClientFrame(request=1, hello=carrier.Hello(protocol=99)),
        carrier.ClientFrame(request=2, producer=carrier.ProducerHandshake(topic=topic, group=group)),
        carrier.ClientFrame(request=3, create=batch),
    )
    return [one.error.code for one in answers if one.HasField("error")]


@pytest.mark.parametrize("reads", [False, True])
async def test_bodies_are_masked_for_callers_that_may_only_inspect(guarded: Broker, reads: bool) -> None:
    await make_topic(guarded, ROOT, "mail")
    await make_topic(guarded, ROOT, "ticks", kind="cron")
    assert await _send(guarded, ROOT, "mail", "m1", "m2") == []
    schedule = cron.Schedule(name="s", expression="@daily", template=BODY.decode())
    await call(guarded, ROOT, "Cron.Put", cron.PutSchedulesRequest(topic="ticks", schedules=[schedule]))
    await allow(guarded, "group:ops", "read" if reads else "inspect", "*")
    got = await call(guarded, ALICE, "Carrier.Get", carrier.GetRequest(topic="mail", ids=["m1"]))
    browsed = await call(guarded, ALICE, "Carrier.Browse", carrier.BrowseRequest(topic="mail"))
    awaited = await call(guarded, ALICE, "Carrier.Await", carrier.AwaitRequest(topic="mail", id="m1"))
    for columns, count in ((got, 1), (browsed, 2), (awaited, 1)):
        assert list(columns.bodies) == [BODY if reads else b""] * count
        assert list(columns.ts) == [2**40] * count
        assert columns.masked is not reads
    for runs in (False, True):
        opened = await call(guarded, ALICE, "Carrier.OpenSnapshot", carrier.SnapshotRequest(topic="mail"))
        request = carrier.ScanRequest(snapshot=opened.snapshot, end_bucket=1, runs=runs)
        scanned = await call(guarded, ALICE, "Carrier.Scan", request)
        assert (BODY in scanned.SerializeToString()) is reads
        assert scanned.masked is not reads
    listed = await call(guarded, ALICE, "Cron.List", cron.ListSchedulesRequest(topic="ticks"))
    assert (listed.schedules[0].schedule.template == BODY.decode()) is reads


async def test_the_caller_s_own_topics_are_named_with_a_tilde(guarded: Broker) -> None:
    await make_topic(guarded, ALICE, "~/mail")
    assert await _send(guarded, ALICE, "~/mail", "m") == []
    answer = await call(guarded, ALICE, "Overseer.DescribeTopic", overseer.TopicRequest(name="~/mail"))
    assert (answer.topic.name, answer.topic.creator, answer.topic.available) == ("~alice/mail", "user:alice", 1)
    assert (await call(guarded, ALICE, "Carrier.Count", carrier.CountRequest(topic="~/mail"))).count == 1
    assert await code_of(guarded, BOB, "Carrier.Count", carrier.CountRequest(topic="~alice/mail")) is (
        Code.PERMISSION_DENIED
    )
    assert await code_of(guarded, BOB, "Carrier.Count", carrier.CountRequest(topic="~/mail")) is Code.TOPIC_NOT_FOUND
    assert await code_of(guarded, ANONYMOUS, "Carrier.Count", carrier.CountRequest(topic="~/mail")) is (
        Code.INVALID_TOPIC
    )


async def test_a_caller_sees_the_topics_that_it_may_use_in_pages(guarded: Broker) -> None:
    for name in ("a", "b", "c"):
        await make_topic(guarded, ROOT, name)
    for name in ("~/x", "~/y"):
        await make_topic(guarded, ALICE, name)
    await make_topic(guarded, BOB, "~/x")
    await allow(guarded, "user:alice", "produce", "a", group="billing")
    await allow(guarded, "user:alice", "inspect", "c")

    async def names(**request: object) -> tuple[list[str], bool, int]:
        answer = await call(guarded, ALICE, "Overseer.ListTopics", overseer.ListTopicsRequest(**request))  # type: ignore[arg-type]
        return [topic.name for topic in answer.topics], answer.more, answer.total

    assert await names() == (["a", "c", "~alice/x", "~alice/y"], False, 4)
    assert await names(count=1) == (["a"], True, 4)
    assert await names(count=2, after="a") == (["c", "~alice/x"], True, 4)
    assert await names(namespace="global") == (["a", "c"], False, 2)
    assert await names(namespace="~") == (["~alice/x", "~alice/y"], False, 2)
    assert await names(namespace="~bob") == ([], False, 0)
    info = await call(guarded, ALICE, "Overseer.Info", overseer.InfoRequest())
    assert [topic.name for topic in info.topics] == ["a", "c", "~alice/x", "~alice/y"]
    assert not any(client.topic not in ("a", "c") for client in info.clients)


async def test_counts_are_given_only_with_the_right_to_inspect(guarded: Broker) -> None:
    await make_topic(guarded, ROOT, "mail")
    assert await _send(guarded, ROOT, "mail", "m1") == []
    await allow(guarded, "user:alice", "produce", "mail")
    request = overseer.TopicRequest(name="mail")
    assert (await call(guarded, ALICE, "Overseer.DescribeTopic", request)).topic.available == 0
    assert (await call(guarded, ROOT, "Overseer.DescribeTopic", request)).topic.available == 1
    await allow(guarded, "user:alice", "inspect", "mail")
    assert (await call(guarded, ALICE, "Overseer.DescribeTopic", request)).topic.available == 1


async def test_a_producer_acts_only_as_the_groups_that_its_rules_name(guarded: Broker) -> None:
    await make_topic(guarded, ROOT, "mail")
    await allow(guarded, "user:alice", "produce,change", "mail", group="billing")
    assert await _send(guarded, ALICE, "mail", "m1", group="billing") == []
    assert Code.PERMISSION_DENIED in await _send(guarded, ALICE, "mail", "m2", group="other")


async def test_dead_letters_cannot_be_sent_to_a_topic_of_another(guarded: Broker) -> None:
    await make_topic(guarded, ROOT, "billing")
    request = overseer.CreateTopicRequest(name="~/x", settings=overseer.TopicSettings(dead_letter="billing"))
    assert await code_of(guarded, ALICE, "Overseer.CreateTopic", request) is Code.PERMISSION_DENIED
    await make_topic(guarded, ALICE, "~/x")
    edit = overseer.EditTopicRequest(name="~/x", settings=overseer.TopicSettings(dead_letter="billing"))
    assert await code_of(guarded, ALICE, "Overseer.EditTopic", edit) is Code.PERMISSION_DENIED
    mine = overseer.EditTopicRequest(name="~/x", settings=overseer.TopicSettings(dead_letter="~/dead"))
    assert await code_of(guarded, ALICE, "Overseer.EditTopic", mine) is Code.OK
    # Nor can a caller make the topic that gets the dead letters of another's.
    await allow(guarded, "user:bob", "create", "billing*")
    request = overseer.CreateTopicRequest(name="billing.dead")
    assert await code_of(guarded, BOB, "Overseer.CreateTopic", request) is Code.PERMISSION_DENIED


async def test_removing_a_rule_ends_the_sessions_that_lived_by_it(guarded: Broker) -> None:
    await make_topic(guarded, ROOT, "mail")
    rule = await allow(guarded, "user:alice", "consume", "mail")
    answers: list[carrier.BrokerFrame] = []
    go_on = asyncio.Event()

    async def sent() -> AsyncIterator[carrier.ClientFrame]:
        yield carrier.ClientFrame(request=1, hello=carrier.Hello(protocol=99))
        yield carrier.ClientFrame(request=2, consumer=carrier.ConsumerHandshake(topic="mail", name="c"))
        yield carrier.ClientFrame(
            request=3, subscribe=carrier.Subscribe(credit_rows=9, credit_bytes=9_000, lease_ms=1_000)
        )
        await go_on.wait()

    async def take(frame: BrokerSent) -> None:
        answers.append(whole(frame))

    open_session = asyncio.ensure_future(services_of(guarded).session(called_by(ALICE), sent(), take))
    await until(lambda: len(answers) == 3)
    await call(guarded, ROOT, "Rights.Remove", rights.RemoveRuleRequest(id=rule.id))
    await asyncio.wait_for(open_session, 10)
    assert answers[-1].error.code == Code.PERMISSION_DENIED


async def test_every_broker_of_a_cluster_applies_a_rule_and_its_removal(clock: VirtualClock) -> None:
    storage, hub = MemoryStorage(), Hub()
    # The reference store is one process's own; the second broker reads the same one.
    async with Broker(
        clock=clock, storage=storage, synchronization=LocalSynchronization(hub), broker="a", admins="user:root"
    ) as one:
        await make_topic(one, ROOT, "mail")
        other = Guard(enabled=True, admins=["user:root"], find_topic=one.central.catalog.named)
        book = type(one.central.rights.book)(
            storage=storage,
            clock=clock,
            catalog=one.central.catalog,
            synchronization=one.central.cluster.synchronization,
            guard=other,
            quotas=one.central.rights.quotas,
            random=one.central.rights.book._random,
        )
        watch = asyncio.create_task(book.run())
        rule = await allow(one, "user:alice", "read", "mail")
        claim = Claim(Operation.READ, "mail")
        await until(lambda: other.decide(ALICE, claim).allowed)
        await call(one, ROOT, "Rights.Remove", rights.RemoveRuleRequest(id=rule.id))
        await until(lambda: not other.decide(ALICE, claim).allowed)
        watch.cancel()


async def test_rules_survive_a_restart_and_are_no_topic(tmp_path: Path) -> None:
    async with Broker(tmp_path, journal="off", admins="user:root") as broker:
        await make_topic(broker, ROOT, "mail")
        await allow(broker, "user:alice", "inspect", "mail")
        again = await allow(broker, "user:alice", "inspect", "mail")
        assert len(broker.central.rights.book.rules) == 1
        listed = await call(broker, ROOT, "Overseer.ListTopics", overseer.ListTopicsRequest())
        assert [topic.name for topic in listed.topics] == ["mail"]
        assert await code_of(broker, ROOT, "Carrier.Count", carrier.CountRequest(topic=TOPIC)) is Code.INVALID_TOPIC
    count = carrier.CountRequest(topic="mail")
    async with Broker(tmp_path, journal="off", admins="user:root") as broker:
        assert await code_of(broker, ALICE, "Carrier.Count", count) is Code.OK
        await call(broker, ROOT, "Rights.Remove", rights.RemoveRuleRequest(id=again.id))
        assert await code_of(broker, ALICE, "Carrier.Count", count) is Code.PERMISSION_DENIED
        assert await code_of(broker, ROOT, "Rights.Remove", rights.RemoveRuleRequest(id=again.id)) is Code.NOT_FOUND
    async with Broker(tmp_path, journal="off", admins="user:root") as broker:
        assert await code_of(broker, ALICE, "Carrier.Count", count) is Code.PERMISSION_DENIED


async def test_a_broker_with_a_rule_that_cannot_be_read_does_not_serve_by_the_others(guarded: Broker) -> None:
    await allow(guarded, "user:alice", "read", "mail")
    central = guarded.central
    topic = await central.catalog.records(TOPIC)
    assert topic is not None
    batch = CreateBatch("rights", ProducerSession(1, 1), 0, ts=[2**45], bodies=[b"?"], ids=["broken"])
    await apply_one(central.storage, Create(topic, batch), 1, DIRECT_CALL)
    with pytest.raises(DejaqError) as refused:
        await central.rights.book.load()
    assert refused.value.code is Code.STORE_CORRUPT
    # Those that were read before still hold.
    assert len(central.rights.book.rules) == 1


async def test_callers_manage_the_rules_of_their_own_topics_and_no_others(guarded: Broker) -> None:
    await make_topic(guarded, ALICE, "~/mail")
    await make_topic(guarded, ROOT, "mail")

    def rule(topic: str, *operations: str) -> rights.PutRuleRequest:
        return rights.PutRuleRequest(
            rule=rights.RightsRule(
                effect="allow", principal="user:bob", operations=operations or ("read",), topic=topic
            )
        )

    made = await call(guarded, ALICE, "Rights.Put", rule("~/mail"))
    assert (made.rule.topic, made.rule.made_by, made.created) == ("~alice/mail", "user:alice", True)
    assert await code_of(guarded, ALICE, "Rights.Put", rule("~/*")) is Code.OK
    for refused in (rule("mail"), rule("*"), rule("~*"), rule("~bob/x"), rule("~bob/*"), rule("*", "operate")):
        assert await code_of(guarded, ALICE, "Rights.Put", refused) is Code.PERMISSION_DENIED
    assert await code_of(guarded, BOB, "Carrier.Count", carrier.CountRequest(topic="~alice/mail")) is Code.OK
    theirs = await allow(guarded, "user:alice", "read", "mail")
    assert len((await call(guarded, BOB, "Rights.List", rights.ListRulesRequest())).rules) == 2
    assert len((await call(guarded, user("eve"), "Rights.List", rights.ListRulesRequest())).rules) == 0
    assert len((await call(guarded, ALICE, "Rights.List", rights.ListRulesRequest())).rules) == 3
    only = await call(guarded, ROOT, "Rights.List", rights.ListRulesRequest(topic="~alice/mail"))
    assert {one.topic for one in only.rules} == {"~alice/mail", "~alice/*"}
    remove = rights.RemoveRuleRequest
    assert await code_of(guarded, ALICE, "Rights.Remove", remove(id=theirs.id)) is Code.PERMISSION_DENIED
    assert await code_of(guarded, BOB, "Rights.Remove", remove(id=made.rule.id)) is Code.PERMISSION_DENIED
    assert await code_of(guarded, ALICE, "Rights.Remove", remove(id=made.rule.id)) is Code.OK


async def test_check_explains_the_caller_s_own_decisions_and_an_operator_those_of_others(guarded: Broker) -> None:
    await make_topic(guarded, ROOT, "mail")
    rule = await allow(guarded, "group:ops", "read", "mail")
    ask = rights.CheckRightRequest(operation="read", topic="mail")
    mine = await call(guarded, ALICE, "Rights.Check", ask)
    assert (mine.allowed, mine.rule.id, mine.enforced) == (True, rule.id, True)
    other = await call(guarded, BOB, "Rights.Check", ask)
    assert (other.allowed, other.reason) == (False, "no rule allows user:bob to read on 'mail'")
    ask.principals.extend(["user:carol", "group:ops"])
    assert (await call(guarded, ROOT, "Rights.Check", ask)).allowed
    assert await code_of(guarded, BOB, "Rights.Check", ask) is Code.PERMISSION_DENIED


async def test_an_in_process_client_and_a_broker_without_administrators_check_nothing(
    guarded: Broker, broker: Broker
) -> None:
    transport = guarded.transport()
    request = overseer.CreateTopicRequest(name="mail")
    await transport.call("Overseer.CreateTopic", request, overseer.TopicResponse, 5.0)
    assert await code_of(broker, user("nobody"), "Overseer.CreateTopic", request) is Code.OK


async def test_the_decisions_that_a_broker_remembers_are_bounded(
    guarded: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dejaq.limits.DECISIONS_KEPT_MAX", 10)
    for number in range(50):
        guarded.central.rights.guard.decide(ALICE, Claim(Operation.READ, f"t{number}"))
    assert len(guarded.central.rights.guard._kept) <= 10


def test_a_frame_pays_less_than_a_microsecond_for_its_rights() -> None:
    rules = RuleSet(
        Rule(str(n), Effect.ALLOW, f"user:u{n}", frozenset({Operation.PRODUCE}), f"t{n}*") for n in range(2_000)
    )
    rules.add(Rule("mine", Effect.ALLOW, "user:alice", frozenset({Operation.PRODUCE}), "mail"))
    guard = Guard(enabled=True, admins=["user:root"], find_topic=lambda name: None)
    guard.set_rules(rules)
    one = SessionRights(guard, called_by(ALICE))
    handshake = carrier.ClientFrame(producer=carrier.ProducerHandshake(topic="mail", group="g"))
    one.admit("producer", handshake)
    frame = carrier.ClientFrame(create=carrier.CreateBatch())
    best = min(_seconds(lambda: one.admit("create", frame)) for _ in range(5))
    # 0.05 us on the machine of the decision page; the margin is for slower ones.
    assert best < 2e-6


def _seconds(work: Callable[[], None], count: int = 20_000) -> float:
    begun = time.process_time()
    for _ in range(count):
        work()
    return (time.process_time() - begun) / count


async def test_the_group_named_as_the_mark_for_any_group_gives_nothing(guarded: Broker) -> None:
    """A rule for one group is not one for a group that a caller names `*`."""
    await make_topic(guarded, ROOT, "mail")
    await allow(guarded, "user:bob", "produce,change", "mail", group="billing")
    assert await _send(guarded, BOB, "mail", "a", group="billing") == []
    assert Code.PERMISSION_DENIED in await _send(guarded, BOB, "mail", "b", group="*")
    create = carrier.CreateBatch(ids=["c"], ts=[0], bodies=[b""])
    step = carrier.Step(topic="mail", actor="*" * 65, create=create)
    request = carrier.TransactRequest(session=ProducerSession(1, 9).pack(), steps=[step])
    assert await code_of(guarded, BOB, "Carrier.Transact", request) is not Code.OK


async def test_an_administrator_of_one_topic_makes_no_rule_for_a_prefix(guarded: Broker) -> None:
    """Its prefix covers topics of others."""
    await allow(guarded, "user:alice", "admin", "~bob/m")
    request = rights.PutRuleRequest(
        rule=rights.RightsRule(effect="allow", principal="user:alice", operations=["admin"], topic="~bob/m*")
    )
    assert await code_of(guarded, ALICE, "Rights.Put", request) is Code.PERMISSION_DENIED
    own = rights.RightsRule(effect="allow", principal="user:alice", operations=["read"], topic="~bob/m*")
    assert await code_of(guarded, BOB, "Rights.Put", rights.PutRuleRequest(rule=own)) is Code.OK


async def test_a_schedule_of_a_group_is_replaced_only_by_its_senders(guarded: Broker) -> None:
    """A replacement keeps the group that it does not name."""
    await make_topic(guarded, ROOT, "reports", kind="cron")
    first = cron.Schedule(name="s", expression="@daily", group="billing", template=BODY.decode())
    await call(guarded, ROOT, "Cron.Put", cron.PutSchedulesRequest(topic="reports", schedules=[first]))
    await allow(guarded, "user:bob", "schedule,inspect", "reports")
    await allow(guarded, "user:bob", "produce", "reports", group="cron")
    other = cron.Schedule(name="s", expression="@hourly", template="another")
    request = cron.PutSchedulesRequest(topic="reports", schedules=[other], replace=True)
    assert await code_of(guarded, BOB, "Cron.Put", request) is Code.PERMISSION_DENIED
    change = cron.ChangeScheduleRequest(topic="reports", name="s", action=cron.PAUSE)
    answer = await call(guarded, BOB, "Cron.Change", change)
    assert [info.schedule.template for info in answer.schedules] == [""]
