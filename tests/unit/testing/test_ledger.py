"""The judge of the fault tests finds each fault, and reports no history that has an explanation."""

from __future__ import annotations

import pytest

from dejaq.testing.history.ledger import CallOutcome, DeliveryFault, DeliveryLedger, HandOver, Settle, SettlementKind

DUE_MS = 1_000


def at(ms: float) -> int:
    """The microseconds of a time in milliseconds."""
    return round(ms * 1_000)


def delivery(version: int, handed_ms: float, *settles: Settle, expires_ms: int = 2_000) -> HandOver:
    return HandOver("m", "worker", version, at(handed_ms), expires_ms, list(settles))


def settle(
    kind: SettlementKind, began_ms: float, ended_ms: float, outcome: CallOutcome = CallOutcome.OK, until_ms: int = 0
) -> Settle:
    return Settle(kind, at(began_ms), until_ms, at(ended_ms), outcome)


def deleted(began_ms: float, ended_ms: float, outcome: CallOutcome = CallOutcome.OK) -> Settle:
    return settle(SettlementKind.DELETE, began_ms, ended_ms, outcome)


def faults(
    *deliveries: HandOver, sent: CallOutcome | None = CallOutcome.OK, pending: bool = False
) -> set[DeliveryFault]:
    ledger = DeliveryLedger()
    if sent is not None:
        ledger.sent("m", DUE_MS).outcome = sent
    for one in deliveries:
        ledger.handed(one)
    return set(ledger.verdict({"m"} if pending else set()).faults)


def test_a_message_that_is_delivered_and_deleted_is_no_fault() -> None:
    assert faults(delivery(1, 1_000, deleted(1_001, 1_002))) == set()


@pytest.mark.parametrize("sent", [CallOutcome.UNKNOWN, CallOutcome.REFUSED])
def test_an_unacknowledged_message_need_not_come(sent: CallOutcome) -> None:
    assert faults(sent=sent) == set()


def test_an_acknowledged_message_that_never_comes_is_lost() -> None:
    assert faults() == {DeliveryFault.LOST}


def test_a_missing_message_that_was_not_deleted_is_lost() -> None:
    assert faults(delivery(1, 1_000, deleted(1_001, 1_002, CallOutcome.REFUSED))) == {DeliveryFault.LOST}
    assert faults(delivery(1, 1_000), sent=CallOutcome.UNKNOWN) == {DeliveryFault.LOST}


def test_a_delete_of_unknown_outcome_explains_a_missing_message() -> None:
    assert faults(delivery(1, 1_000, deleted(1_001, 1_002, CallOutcome.UNKNOWN))) == set()


def test_a_message_that_was_not_sent_or_was_refused_is_unexpected() -> None:
    come = delivery(1, 1_000, deleted(1_001, 1_002))
    assert faults(come, sent=None) == {DeliveryFault.UNEXPECTED}
    assert faults(come, sent=CallOutcome.REFUSED) == {DeliveryFault.UNEXPECTED}
    assert faults(sent=CallOutcome.REFUSED, pending=True) == {DeliveryFault.UNEXPECTED}


def test_a_hand_over_a_microsecond_before_its_time_is_early() -> None:
    assert faults(delivery(1, 999.999, deleted(1_001, 1_002))) == {DeliveryFault.EARLY}


def test_a_delivery_before_the_time_of_a_release_is_early() -> None:
    released = delivery(1, 1_000, settle(SettlementKind.RELEASE, 1_001, 1_002, until_ms=1_500))
    assert faults(released, delivery(2, 1_499, deleted(1_600, 1_601))) == {DeliveryFault.EARLY}
    assert faults(released, delivery(2, 1_500, deleted(1_600, 1_601))) == set()


def test_a_second_lease_before_the_end_of_the_first_is_a_fault() -> None:
    for handed_ms, found in ((1_999, {DeliveryFault.OVERLAP}), (2_000, set())):
        second = delivery(2, handed_ms, deleted(2_100, 2_101), expires_ms=3_000)
        assert faults(delivery(1, 1_000), second) == found


def test_a_release_of_unknown_outcome_may_end_a_lease() -> None:
    for outcome, found in ((CallOutcome.UNKNOWN, set()), (CallOutcome.REFUSED, {DeliveryFault.OVERLAP})):
        first = delivery(1, 1_000, settle(SettlementKind.RELEASE, 1_001, 1_002, outcome, 1_100))
        assert faults(first, delivery(2, 1_200, deleted(1_201, 1_202))) == found


def test_an_extension_excludes_other_leases_until_its_end() -> None:
    second = delivery(2, 2_500, deleted(2_600, 2_601), expires_ms=3_500)
    for outcome, found in (
        (CallOutcome.OK, {DeliveryFault.OVERLAP}),
        (CallOutcome.UNKNOWN, set()),
        (CallOutcome.REFUSED, set()),
    ):
        assert faults(delivery(1, 1_000, settle(SettlementKind.EXTEND, 1_001, 1_002, outcome, 3_000)), second) == found


def test_an_extension_never_shortens_a_lease() -> None:
    first = delivery(1, 1_000, settle(SettlementKind.EXTEND, 1_001, 1_002, until_ms=1_500))
    assert faults(first, delivery(2, 1_501, deleted(1_600, 1_601))) == {DeliveryFault.OVERLAP}


def test_a_delivery_after_an_acknowledged_delete_is_a_lost_delete() -> None:
    first = delivery(1, 1_000, deleted(1_001, 1_002))
    second = delivery(2, 2_001, deleted(2_002, 2_003), expires_ms=3_000)
    assert faults(first, second) == {DeliveryFault.UNDELETED}
    assert DeliveryFault.UNDELETED in faults(first, pending=True)


def test_a_delete_under_a_lease_that_had_ended_is_stale() -> None:
    assert faults(delivery(1, 1_000, deleted(2_001, 2_002))) == {DeliveryFault.STALE}
    assert faults(delivery(1, 1_000, deleted(1_999, 2_002))) == set()


def test_a_late_delete_counts_as_done_when_another_has_deleted() -> None:
    first = delivery(1, 1_000, deleted(2_001, 2_200))
    assert faults(first, delivery(2, 2_010, deleted(2_011, 2_012), expires_ms=3_000)) == set()


def test_one_lease_is_handed_over_once() -> None:
    come = delivery(1, 1_000, deleted(1_001, 1_002))
    assert faults(come, delivery(1, 1_001)) == {DeliveryFault.TWICE}


def test_a_message_that_is_left_after_a_drain_is_stuck() -> None:
    assert faults(pending=True) == {DeliveryFault.STUCK}


def test_a_verdict_counts_the_checked_messages() -> None:
    ledger = DeliveryLedger()
    ledger.sent("m", DUE_MS).outcome = CallOutcome.OK
    ledger.handed(delivery(1, 1_000))
    ledger.handed(delivery(2, 2_000, deleted(2_001, 2_002), expires_ms=3_000))
    verdict = ledger.verdict()
    assert (verdict.acknowledged, verdict.delivered, verdict.repeats) == (1, 2, 1)
    assert str(verdict).startswith("1 acknowledged, 2 delivered, 1 repeats explained, 0 faults")
