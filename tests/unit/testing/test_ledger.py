"""The judge of the fault tests: each fault is seen, and no story that has an explanation is called one."""

from __future__ import annotations

import pytest

from dejaq.testing.ledger import Delivery, Fault, Kind, Ledger, Outcome, Settle

DUE_MS = 1_000


def at(ms: float) -> int:
    """Microseconds of a time in milliseconds."""
    return round(ms * 1_000)


def delivery(version: int, handed_ms: float, *settles: Settle, expires_ms: int = 2_000) -> Delivery:
    return Delivery("m", "worker", version, at(handed_ms), expires_ms, list(settles))


def settle(kind: Kind, began_ms: float, ended_ms: float, outcome: Outcome = Outcome.OK, until_ms: int = 0) -> Settle:
    return Settle(kind, at(began_ms), until_ms, at(ended_ms), outcome)


def deleted(began_ms: float, ended_ms: float, outcome: Outcome = Outcome.OK) -> Settle:
    return settle(Kind.DELETE, began_ms, ended_ms, outcome)


def faults(*deliveries: Delivery, sent: Outcome | None = Outcome.OK, pending: bool = False) -> set[Fault]:
    ledger = Ledger()
    if sent is not None:
        ledger.sent("m", DUE_MS).outcome = sent
    for one in deliveries:
        ledger.handed(one)
    return set(ledger.verdict({"m"} if pending else set()).faults)


def test_a_message_that_is_delivered_and_deleted_is_well() -> None:
    assert faults(delivery(1, 1_000, deleted(1_001, 1_002))) == set()


@pytest.mark.parametrize("sent", [Outcome.UNKNOWN, Outcome.REFUSED])
def test_what_was_not_acknowledged_need_not_come(sent: Outcome) -> None:
    assert faults(sent=sent) == set()


def test_an_acknowledged_message_that_never_comes_is_lost() -> None:
    assert faults() == {Fault.LOST}


def test_a_message_that_is_gone_although_nobody_deleted_it_is_lost() -> None:
    assert faults(delivery(1, 1_000, deleted(1_001, 1_002, Outcome.REFUSED))) == {Fault.LOST}
    assert faults(delivery(1, 1_000), sent=Outcome.UNKNOWN) == {Fault.LOST}


def test_a_delete_of_unknown_outcome_explains_that_it_is_gone() -> None:
    assert faults(delivery(1, 1_000, deleted(1_001, 1_002, Outcome.UNKNOWN))) == set()


def test_what_was_never_sent_or_was_refused_is_unexpected() -> None:
    come = delivery(1, 1_000, deleted(1_001, 1_002))
    assert faults(come, sent=None) == {Fault.UNEXPECTED}
    assert faults(come, sent=Outcome.REFUSED) == {Fault.UNEXPECTED}
    assert faults(sent=Outcome.REFUSED, pending=True) == {Fault.UNEXPECTED}


def test_a_hand_over_a_microsecond_before_its_time_is_early() -> None:
    assert faults(delivery(1, 999.999, deleted(1_001, 1_002))) == {Fault.EARLY}


def test_a_release_sets_a_new_time_to_be_early_for() -> None:
    released = delivery(1, 1_000, settle(Kind.RELEASE, 1_001, 1_002, until_ms=1_500))
    assert faults(released, delivery(2, 1_499, deleted(1_600, 1_601))) == {Fault.EARLY}
    assert faults(released, delivery(2, 1_500, deleted(1_600, 1_601))) == set()


def test_a_second_lease_before_the_first_has_ended_is_one_too_many() -> None:
    for handed_ms, found in ((1_999, {Fault.OVERLAP}), (2_000, set())):
        second = delivery(2, handed_ms, deleted(2_100, 2_101), expires_ms=3_000)
        assert faults(delivery(1, 1_000), second) == found


def test_a_release_that_may_have_been_done_ends_a_lease() -> None:
    for outcome, found in ((Outcome.UNKNOWN, set()), (Outcome.REFUSED, {Fault.OVERLAP})):
        first = delivery(1, 1_000, settle(Kind.RELEASE, 1_001, 1_002, outcome, 1_100))
        assert faults(first, delivery(2, 1_200, deleted(1_201, 1_202))) == found


def test_an_extension_keeps_others_out_until_its_end() -> None:
    second = delivery(2, 2_500, deleted(2_600, 2_601), expires_ms=3_500)
    for outcome, found in ((Outcome.OK, {Fault.OVERLAP}), (Outcome.UNKNOWN, set()), (Outcome.REFUSED, set())):
        assert faults(delivery(1, 1_000, settle(Kind.EXTEND, 1_001, 1_002, outcome, 3_000)), second) == found


def test_an_extension_never_brings_the_end_nearer() -> None:
    first = delivery(1, 1_000, settle(Kind.EXTEND, 1_001, 1_002, until_ms=1_500))
    assert faults(first, delivery(2, 1_501, deleted(1_600, 1_601))) == {Fault.OVERLAP}


def test_a_delivery_after_an_acknowledged_delete_is_a_delete_that_was_lost() -> None:
    first = delivery(1, 1_000, deleted(1_001, 1_002))
    second = delivery(2, 2_001, deleted(2_002, 2_003), expires_ms=3_000)
    assert faults(first, second) == {Fault.UNDELETED}
    assert Fault.UNDELETED in faults(first, pending=True)


def test_a_delete_under_a_lease_that_had_ended_is_stale() -> None:
    assert faults(delivery(1, 1_000, deleted(2_001, 2_002))) == {Fault.STALE}
    assert faults(delivery(1, 1_000, deleted(1_999, 2_002))) == set()


def test_a_late_delete_counts_as_done_when_another_has_deleted() -> None:
    first = delivery(1, 1_000, deleted(2_001, 2_200))
    assert faults(first, delivery(2, 2_010, deleted(2_011, 2_012), expires_ms=3_000)) == set()


def test_one_lease_is_handed_over_once() -> None:
    come = delivery(1, 1_000, deleted(1_001, 1_002))
    assert faults(come, delivery(1, 1_001)) == {Fault.TWICE}


def test_what_a_drain_leaves_is_stuck() -> None:
    assert faults(pending=True) == {Fault.STUCK}


def test_a_verdict_counts_what_it_judged() -> None:
    ledger = Ledger()
    ledger.sent("m", DUE_MS).outcome = Outcome.OK
    ledger.handed(delivery(1, 1_000))
    ledger.handed(delivery(2, 2_000, deleted(2_001, 2_002), expires_ms=3_000))
    verdict = ledger.verdict()
    assert (verdict.acknowledged, verdict.delivered, verdict.repeats) == (1, 2, 1)
    assert str(verdict).startswith("1 acknowledged, 2 delivered, 1 repeats explained, 0 faults")
