"""The checker of histories accepts what a correct storage does, and names each fault of a wrong storage."""

import random
from typing import Any

import pytest

from dejaq.domain.batch import CreateBatch, LeaseRequest
from dejaq.domain.changes import Cancel, Create, Delete, Edit, Edits, Extend, Release
from dejaq.domain.context import DIRECT_CALL
from dejaq.domain.ids import ProducerSession
from dejaq.domain.topic import Topic, TopicSettings
from dejaq.errors import Code
from dejaq.storage.base import apply_one
from dejaq.storage.memory.store import MemoryStorage
from dejaq.testing.history.history import History, Violation, check, check_ledger
from dejaq.testing.history.ledger import CallOutcome, DeliveryLedger, HandOver, Settle, SettlementKind
from dejaq.testing.history.linearization import Event, Op

OK, REFUSED, UNKNOWN = CallOutcome.OK, CallOutcome.REFUSED, CallOutcome.UNKNOWN


def call(op: Op, began: int, ended: int, outcome: CallOutcome = OK, **fields: Any) -> Event:
    event = Event(op, "m", began, **fields)
    if outcome is not UNKNOWN:
        event.end(ended, outcome)
    return event


def create(began: int = 0, ended: int = 5, outcome: CallOutcome = OK, ts: int = 10) -> Event:
    return call(Op.CREATE, began, ended, outcome, ts_us=ts)


def deliver(handed: int, *, lease: int = 1, expires: int, consumer: str = "a", began: int = 0) -> Event:
    return call(Op.DELIVER, began, handed, lease=lease, expires_us=expires, consumer=consumer)


def delete(began: int, ended: int, outcome: CallOutcome = OK, *, lease: int = 1) -> Event:
    return call(Op.DELETE, began, ended, outcome, lease=lease)


def release(began: int, ended: int, outcome: CallOutcome = OK, *, lease: int = 1, ts: int) -> Event:
    return call(Op.RELEASE, began, ended, outcome, lease=lease, ts_us=ts)


def extend(began: int, ended: int, outcome: CallOutcome = OK, *, lease: int = 1, expires: int) -> Event:
    return call(Op.EXTEND, began, ended, outcome, lease=lease, expires_us=expires)


def cancel(began: int, ended: int, outcome: CallOutcome = OK) -> Event:
    return call(Op.CANCEL, began, ended, outcome)


def move(began: int, ended: int, outcome: CallOutcome = OK, *, ts: int) -> Event:
    return call(Op.MOVE, began, ended, outcome, ts_us=ts)


GOOD = {
    "created, delivered, deleted": [create(), deliver(10, expires=50), delete(20, 25)],
    "answers overlap": [create(ended=40), deliver(10, expires=50), delete(20, 25)],
    "cancelled": [create(), cancel(6, 7)],
    "an unknown create that happened": [create(outcome=UNKNOWN), deliver(10, expires=50), delete(20, 25)],
    "an unknown create that did not": [create(outcome=UNKNOWN)],
    "a refused create": [create(outcome=REFUSED)],
    "a repeated create": [create(outcome=UNKNOWN), create(6, 9), deliver(10, expires=50), delete(20, 25)],
    "a create repeated after the delete": [create(), deliver(10, expires=50), delete(20, 25), create(30, 35)],
    "expired, then delivered again": [
        create(),
        deliver(10, expires=50),
        deliver(50, lease=2, expires=90, consumer="b"),
        delete(60, 65, lease=2),
    ],
    "a stale holder is refused": [
        create(),
        deliver(10, expires=50),
        deliver(50, lease=2, expires=90, consumer="b"),
        delete(55, 58, REFUSED, lease=1),
        delete(60, 65, lease=2),
    ],
    "released, then delivered at the new time": [
        create(),
        deliver(10, expires=50),
        release(20, 25, ts=30),
        deliver(30, lease=2, expires=90),
        delete(40, 45, lease=2),
    ],
    "an unknown release that happened late": [
        create(),
        deliver(10, expires=50),
        release(20, 25, UNKNOWN, ts=30),
        deliver(32, lease=2, expires=90),
        delete(40, 45, lease=2),
    ],
    "an unknown delete that happened": [create(), deliver(10, expires=50), delete(20, 25, UNKNOWN)],
    "an unknown delete that did not": [
        create(),
        deliver(10, expires=50),
        delete(20, 25, UNKNOWN),
        deliver(50, lease=2, expires=90),
        delete(60, 61, lease=2),
    ],
    "extended, then settled": [create(), deliver(10, expires=50), extend(40, 45, expires=90), delete(80, 85)],
    "an extend that came too late": [
        create(),
        deliver(10, expires=50),
        extend(45, 55, REFUSED, expires=90),
        deliver(60, lease=2, expires=90, consumer="b"),
        delete(70, 75, lease=2),
    ],
    "moved, then delivered": [create(ts=100), move(6, 8, ts=20), deliver(20, expires=50), delete(30, 35)],
    "a move refused": [create(), deliver(10, expires=50), move(12, 14, REFUSED, ts=90), delete(20, 25)],
    "one lease handed again to a consumer that reconnected": [
        create(),
        deliver(10, expires=50),
        deliver(30, expires=50, consumer="a again"),
        delete(40, 45),
    ],
    "a delete that ends after its lease": [create(), deliver(10, expires=50), delete(45, 60)],
}

BAD = {
    "never seen again": ([create()], Violation.LOST),
    "delivered and gone without a delete": ([create(), deliver(10, expires=50)], Violation.LOST),
    "gone although the delete was refused": (
        [create(), deliver(10, expires=50), delete(60, 65, REFUSED)],
        Violation.LOST,
    ),
    "delivered, never created": ([deliver(10, expires=50), delete(20, 25)], Violation.UNEXPECTED),
    "delivered, its create refused": (
        [create(outcome=REFUSED), deliver(10, expires=50), delete(20, 25)],
        Violation.UNEXPECTED,
    ),
    "delivered before it was created": (
        [deliver(3, expires=50), create(5, 9, ts=0), delete(20, 25)],
        Violation.UNEXPECTED,
    ),
    "early by one": ([create(ts=10), deliver(9, expires=50), delete(20, 25)], Violation.EARLY),
    "early after a release": (
        [
            create(),
            deliver(10, expires=50),
            release(20, 25, ts=40),
            deliver(39, lease=2, expires=90),
            delete(45, 46, lease=2),
        ],
        Violation.UNORDERED,
    ),
    "early after a move": (
        [create(ts=10), move(6, 8, ts=90), deliver(20, expires=50), delete(30, 35)],
        Violation.UNORDERED,
    ),
    "two live leases": (
        [
            create(),
            deliver(10, expires=50),
            deliver(49, lease=2, expires=90, consumer="b"),
            delete(60, 65, lease=2),
        ],
        Violation.OVERLAP,
    ),
    "two live leases after an extend": (
        [
            create(),
            deliver(10, expires=50),
            extend(20, 25, expires=80),
            deliver(70, lease=2, expires=120, consumer="b"),
            delete(90, 95, lease=2),
        ],
        Violation.OVERLAP,
    ),
    "one lease handed over twice": (
        [create(), deliver(10, expires=50), deliver(20, expires=50), delete(30, 35)],
        Violation.UNEXPLAINED,
    ),
    "delivered after its delete": (
        [create(), deliver(10, expires=50), delete(20, 25), deliver(60, lease=2, expires=90, began=55)],
        Violation.UNEXPLAINED,
    ),
    "delivered after its cancel": (
        [create(), cancel(6, 7), deliver(20, expires=50), delete(30, 35)],
        Violation.UNEXPLAINED,
    ),
    "a stale holder's delete is done": (
        [
            create(),
            deliver(10, expires=50),
            deliver(50, lease=2, expires=90, consumer="b"),
            delete(55, 58, lease=1),
            delete(60, 65, REFUSED, lease=2),
        ],
        Violation.UNORDERED,
    ),
    "settled after the lease": ([create(), deliver(10, expires=50), delete(51, 55)], Violation.UNORDERED),
    "the holder of a live lease is refused": (
        [create(), deliver(10, expires=50), delete(20, 25, REFUSED), delete(30, 35)],
        Violation.UNORDERED,
    ),
    "cancelled under a live lease": (
        [create(), deliver(10, expires=50), cancel(20, 25)],
        Violation.UNORDERED,
    ),
    "deleted twice": ([create(), deliver(10, expires=50), delete(20, 25), delete(26, 30)], Violation.UNORDERED),
    "a lease id that went back": (
        [create(), deliver(10, lease=5, expires=20), deliver(30, lease=4, expires=90), delete(40, 45, lease=4)],
        Violation.UNORDERED,
    ),
    "deleted and cancelled": (
        [create(), deliver(10, expires=50), delete(20, 25), cancel(60, 65)],
        Violation.UNORDERED,
    ),
}


@pytest.mark.parametrize("name", GOOD)
def test_a_correct_history_passes(name: str) -> None:
    assert [str(finding) for finding in check(GOOD[name])] == []


@pytest.mark.parametrize("name", BAD)
def test_a_wrong_history_is_found(name: str) -> None:
    events, violation = BAD[name]
    assert violation in {finding.violation for finding in check(events)}


def test_every_violation_has_a_test() -> None:
    assert {violation for _, violation in BAD.values()} == set(Violation)


def test_a_message_that_is_left_in_the_store_is_not_lost() -> None:
    assert check([create(ts=10**9)], left={"m"}) == []
    assert check([create(), deliver(10, expires=50)], left={"m"}) == []


def test_a_deleted_message_must_not_be_left() -> None:
    findings = check([create(), deliver(10, expires=50), delete(20, 25)], left={"m"})
    assert {finding.violation for finding in findings} == {Violation.UNORDERED}


def test_messages_are_checked_separately() -> None:
    other = Event(Op.CREATE, "other", 0, ts_us=5)
    other.end(3, OK)
    findings = check([*GOOD["created, delivered, deleted"], other])
    assert [(finding.id, finding.violation) for finding in findings if finding.id == "m"] == []
    assert Violation.LOST in {finding.violation for finding in findings if finding.id == "other"}
    assert "other" in str(findings[0])


def ledger_of(*deliveries: HandOver) -> DeliveryLedger:
    ledger = DeliveryLedger()
    ledger.sent("m", 10).outcome = OK
    for delivery in deliveries:
        ledger.handed(delivery)
    return ledger


def handed(version: int, at_ms: int, expires_ms: int, *settles: Settle) -> HandOver:
    return HandOver("m", f"c{version}", version, at_ms * 1_000, expires_ms, list(settles))


def settle(kind: SettlementKind, began_ms: int, ended_ms: int, outcome: CallOutcome = OK, until_ms: int = 0) -> Settle:
    return Settle(kind, began_ms * 1_000, until_ms, ended_ms * 1_000, outcome)


def test_the_records_of_a_correct_workload_pass() -> None:
    ledger = ledger_of(
        handed(
            1,
            10,
            50,
            settle(SettlementKind.EXTEND, 20, 22, until_ms=70),
            settle(SettlementKind.DELETE, 80, 82, REFUSED),
        ),
        handed(2, 75, 90, settle(SettlementKind.RELEASE, 80, 85, until_ms=100)),
        handed(3, 101, 150, settle(SettlementKind.DELETE, 120, 125)),
    )
    assert [str(finding) for finding in check_ledger(ledger)] == []


@pytest.mark.parametrize(
    ("deliveries", "violation"),
    [
        ([], Violation.LOST),
        ([handed(1, 9, 50, settle(SettlementKind.DELETE, 20, 21))], Violation.EARLY),
        ([handed(1, 10, 50), handed(2, 49, 90, settle(SettlementKind.DELETE, 60, 61))], Violation.OVERLAP),
        ([handed(1, 10, 50, settle(SettlementKind.DELETE, 51, 52))], Violation.UNORDERED),
        ([handed(1, 10, 50, settle(SettlementKind.DELETE, 20, 21)), handed(2, 60, 90)], Violation.UNEXPLAINED),
    ],
)
def test_the_records_of_a_faulty_workload_do_not_pass(deliveries: list[HandOver], violation: Violation) -> None:
    assert violation in {finding.violation for finding in check_ledger(ledger_of(*deliveries))}


@pytest.mark.parametrize("seed", range(30))
async def test_the_memory_store_always_passes(seed: int) -> None:
    """Random work on the reference store, with answers lost at random, has no finding."""
    assert [str(finding) for finding in await _work(random.Random(seed))] == []


async def _work(choice: random.Random) -> list[object]:
    storage = MemoryStorage()
    await storage.open(0)
    topic = Topic("t", 1, TopicSettings(buckets=1))
    await storage.put_topic(topic, DIRECT_CALL)
    history, leases, now = History(), [], 1_000

    def note(event: Event, code: Code) -> None:
        if choice.random() < 0.8:
            event.end((now + choice.randrange(3)) * 1_000, OK if code.succeeded else REFUSED)

    for step in range(120):
        now += choice.randrange(6)
        began = (now - choice.randrange(3)) * 1_000
        act = choice.choice(["create", "lease", "lease", "delete", "extend", "release", "cancel", "move"])
        one = f"m{choice.randrange(step + 1)}"
        ts = now + choice.randrange(-5, 15)
        if act == "create":
            batch = CreateBatch("o", ProducerSession(1, 1), step, [ts], [b""], ids=[f"m{step}"])
            event = history.begin(Op.CREATE, f"m{step}", began, ts_us=ts * 1_000)
            note(event, (await apply_one(storage, Create(topic, batch), now, DIRECT_CALL))[0])
        elif act == "lease":
            request = LeaseRequest([0], "c", until=now, expires=now + choice.randrange(1, 20), rows_max=1)
            lease = await storage.lease(topic, request, now, DIRECT_CALL)
            if lease is not None:
                leases.append(lease)
                expires = lease.expires * 1_000
                history.delivered(
                    lease.ids()[0], now * 1_000, lease=lease.lease_id, expires_us=expires, consumer=str(step)
                )
        elif act == "cancel":
            event = history.begin(Op.CANCEL, one, began)
            note(event, (await apply_one(storage, Cancel(topic, "o", [one]), now, DIRECT_CALL))[0])
        elif act == "move":
            event = history.begin(Op.MOVE, one, began, ts_us=ts * 1_000)
            note(event, (await apply_one(storage, Edit(topic, "o", Edits([one], ts=[ts])), now, DIRECT_CALL))[0])
        elif leases:
            lease = choice.choice(leases)
            one, at, until = lease.ids()[0], lease.lease_id, now + choice.randrange(1, 20)
            if act == "delete":
                event = history.begin(Op.DELETE, one, began, lease=at)
                note(event, (await apply_one(storage, Delete(topic, at, "c", None), now, DIRECT_CALL))[0])
            elif act == "extend":
                event = history.begin(Op.EXTEND, one, began, lease=at, expires_us=until * 1_000)
                note(event, (await apply_one(storage, Extend(topic, at, "c", None, until), now, DIRECT_CALL))[0])
            else:
                event = history.begin(Op.RELEASE, one, began, lease=at, ts_us=ts * 1_000)
                note(event, (await apply_one(storage, Release(topic, at, "c", None, ts), now, DIRECT_CALL))[0])
    ids = {event.id for event in history.events}
    left = {message.id for message in await storage.get(topic, sorted(ids), now) if message is not None}
    created = {event.id for event in history.events if event.op is Op.CREATE}
    assert left <= created
    return list(check([event for event in history.events if event.id in created], left))
