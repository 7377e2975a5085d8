"""S6: the security log has what callers did and tried; a change of it is found; a full disk loses nothing silently."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from dejaq.broker import Broker
from dejaq.broker.rights.audit import SecurityAudit
from dejaq.cli.main import root
from dejaq.domain.context import CallContext
from dejaq.domain.ids import ProducerSession
from dejaq.errors import Code
from dejaq.journal.security.events import SecurityEvent, read_events
from dejaq.journal.verification import Fault, verify
from dejaq.protocol.v1 import carrier_pb2 as carrier
from dejaq.protocol.v1 import log_pb2
from dejaq.protocol.v1 import overseer_pb2 as overseer
from dejaq.protocol.v1 import rights_pb2 as rights
from tests.unit.broker.rights.callers import ROOT, allow, call, called_by, code_of, make_topic, session, user

ALICE = user("alice")
LOG = overseer.TopicSettings(kind="log", buckets=1)
CANARY = "canary-6f1d20"


async def _work(data: Path, *, audited: Callable[[SecurityAudit], None] = lambda audit: None) -> list[SecurityEvent]:
    """Run a broker in which an administrator and a caller without rights do things."""
    async with Broker(data, journal="off", admins="user:root") as broker:
        await make_topic(broker, ROOT, "mail")
        await make_topic(broker, ROOT, "mail")
        rule = await allow(broker, "user:alice", "read", "mail")
        await call(broker, ROOT, "Rights.Remove", rights.RemoveRuleRequest(id=rule.id))
        for _ in range(3):
            assert await code_of(broker, ALICE, "Carrier.Count", carrier.CountRequest(topic="mail")) is (
                Code.PERMISSION_DENIED
            )
        edit = overseer.EditTopicRequest(name="mail", settings=overseer.TopicSettings(client_rate=10))
        await call(broker, ROOT, "Overseer.EditTopic", edit)
        await call(broker, ROOT, "Overseer.DeleteTopic", overseer.TopicRequest(name="mail"))
        audited(broker.central.rights.audit)
    return list(read_events(data / "security"))


async def test_the_log_has_changes_and_refusals_and_continues_after_a_restart(tmp_path: Path) -> None:
    events = await _work(tmp_path)
    assert [(one.event, one.outcome, one.principal, one.count) for one in events] == [
        ("topic_created", "ok", "user:corp/root", 1),
        ("rule_added", "ok", "user:corp/root", 1),
        ("rule_removed", "ok", "user:corp/root", 1),
        ("refused", "refused", "user:corp/alice", 3),
        ("topic_edited", "ok", "user:corp/root", 1),
        ("topic_deleted", "ok", "user:corp/root", 1),
    ]
    assert "read on mail" in events[1].target
    assert events[3].target == "Carrier.Count"
    assert events[3].peer == "ipv4:192.0.2.1"
    assert verify(tmp_path / "security").whole
    again = await _work(tmp_path)
    assert [one.sequence for one in again] == list(range(1, len(again) + 1))
    assert len(again) == 12
    assert verify(tmp_path / "security").whole


async def test_changes_of_many_messages_and_commands_that_override_are_recorded(tmp_path: Path) -> None:
    ids = [f"m{number}" for number in range(150)]
    batch = carrier.CreateBatch(session=ProducerSession(2, 1).pack(), ids=ids, ts=[2**42] * 150, bodies=[b""] * 150)
    async with Broker(tmp_path, journal="off", admins="user:root") as broker:
        await make_topic(broker, ROOT, "mail")
        await call(broker, ROOT, "Overseer.CreateTopic", overseer.CreateTopicRequest(name="log", settings=LOG))
        answers = await session(
            broker,
            ROOT,
            carrier.ClientFrame(request=1, hello=carrier.Hello(protocol=99)),
            carrier.ClientFrame(request=2, producer=carrier.ProducerHandshake(topic="mail", group="billing")),
            carrier.ClientFrame(request=3, create=batch),
            carrier.ClientFrame(request=4, edit=carrier.EditBatch(ids=ids, ts=[2**42 + 1] * 150)),
            carrier.ClientFrame(request=5, cancel=carrier.CancelBatch(ids=ids[:120])),
            carrier.ClientFrame(request=6, cancel=carrier.CancelBatch(ids=ids[120:])),
        )
        assert [one.error.message for one in answers if one.HasField("error")] == []
        await call(broker, ROOT, "Carrier.Purge", carrier.PurgeRequest(topic="mail", ids=["gone"]))
        reset = log_pb2.LogResetRequest(topic="log", group="g", positions=[log_pb2.LogPosition(bucket=0, offset=0)])
        await call(broker, ROOT, "Log.Reset", reset)
        await call(broker, ROOT, "Log.RemoveGroup", log_pb2.LogRemoveGroupRequest(topic="log", group="g"))
    found = {one.event: one.target for one in read_events(tmp_path / "security")}
    del found["topic_created"]
    assert found == {
        "bulk_edit": "mail as billing: 150 messages",
        "bulk_cancel": "mail as billing: 120 messages",
        "purged": "mail: 1",
        "log_group_reset": "log: g",
        "log_group_removed": "log: g",
    }


async def test_s6_every_change_of_the_log_is_found(tmp_path: Path) -> None:
    for _ in range(3):
        await _work(tmp_path / "data")
    log = tmp_path / "data" / "security"
    segments = sorted(log.glob("*.parquet"))
    assert len(segments) >= 3

    def edit(copy: Path) -> None:
        path = copy / segments[1].name
        path.write_bytes(path.read_bytes().replace(b"user:corp/root", b"user:corp/eve_"))

    def flip(copy: Path) -> None:
        path = copy / segments[0].name
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 1
        path.write_bytes(content)

    def delete(copy: Path) -> None:
        (copy / segments[1].name).unlink()
        (copy / segments[1].with_suffix(".json").name).unlink()

    def truncate(copy: Path) -> None:
        (copy / segments[-1].name).unlink()
        (copy / segments[-1].with_suffix(".json").name).unlink()

    def reorder(copy: Path) -> None:
        first, second = copy / segments[0].name, copy / segments[1].name
        content = first.read_bytes()
        first.write_bytes(second.read_bytes())
        second.write_bytes(content)

    for number, change in enumerate((edit, flip, delete, truncate, reorder)):
        copy = tmp_path / str(number)
        shutil.copytree(log, copy)
        assert verify(copy).whole
        change(copy)
        assert not verify(copy).whole, change.__name__
        shown = CliRunner().invoke(root, ["audit", "security", str(copy)], standalone_mode=False)
        assert shown.return_value == 1, change.__name__
    assert Fault.EDITED in {finding.fault for finding in verify(tmp_path / "1").findings}


async def test_the_command_lists_the_events(tmp_path: Path) -> None:
    await _work(tmp_path)
    shown = CliRunner().invoke(
        root, ["audit", "security", str(tmp_path / "security"), "--event", "refused"], standalone_mode=False
    )
    assert shown.return_value == 0
    assert "no rule allows user:alice to inspect on 'mail'" in shown.output
    assert "(3 times)" in shown.output
    assert "rule_added" not in shown.output
    nothing = CliRunner().invoke(root, ["audit", "security", str(tmp_path / "none")], standalone_mode=False)
    assert nothing.exception is not None


async def test_a_disk_that_fails_degrades_the_broker_and_loses_no_event(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Broker(tmp_path, journal="off", admins="user:root") as broker:
        audit = broker.central.rights.audit
        with monkeypatch.context() as broken:

            def fail(*_: object, **__: object) -> None:
                raise OSError("no space left on device")

            broken.setattr("dejaq.journal.ledger.put_in_place", fail)
            await make_topic(broker, ROOT, "mail")
            await audit.flush()
            assert "no space left" in broker.central.doctor.degradations["security_log"]
            # It still serves, and still records.
            await make_topic(broker, ROOT, "other")
        await audit.flush()
        assert "security_log" not in broker.central.doctor.degradations
    assert [one.target for one in read_events(tmp_path / "security")] == ["mail", "other"]
    assert verify(tmp_path / "security").whole


async def test_waiting_events_are_bounded_and_the_number_of_lost_ones_is_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dejaq.limits.SECURITY_EVENTS_WAITING_MAX", 10)
    async with Broker(tmp_path, journal="off", admins="user:root") as broker:
        audit = broker.central.rights.audit
        for number in range(25):
            audit.record(called_by(ALICE), "refused", target=f"t{number}", outcome="refused")
        assert "15 events are lost" in broker.central.doctor.degradations["security_log"]
        assert len(audit.waiting()) == 1
        await audit.flush()
        assert "security_log" not in broker.central.doctor.degradations
    events = list(read_events(tmp_path / "security"))
    assert (events[-1].event, events[-1].count) == ("events lost", 15)
    assert len(events) == 11


async def test_s8_bodies_are_in_no_event_error_or_metric(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG")
    async with Broker(tmp_path, journal="off", admins="user:root") as broker:
        await make_topic(broker, ROOT, "mail")
        batch = carrier.CreateBatch(ids=["m"], ts=[1], bodies=[CANARY.encode()])
        request = carrier.TransactRequest(
            session=bytes(10), steps=[carrier.Step(topic="mail", actor="g", create=batch)]
        )
        try:
            await call(broker, ALICE, "Carrier.Transact", request)
        except Exception as error:
            assert CANARY not in str(error)
        await call(broker, ROOT, "Carrier.Transact", request)
        from prometheus_client import generate_latest

        assert CANARY.encode() not in generate_latest(broker.central.metrics.registry)
    assert CANARY not in caplog.text
    for path in (tmp_path / "security").iterdir():
        assert CANARY.encode() not in path.read_bytes()


async def test_a_broker_that_checks_no_rights_keeps_no_log(tmp_path: Path) -> None:
    async with Broker(tmp_path, journal="off") as broker:
        broker.central.rights.audit.record(CallContext("r", "p"), "refused")
        assert not broker.central.rights.audit.kept
    assert not (tmp_path / "security").exists()
