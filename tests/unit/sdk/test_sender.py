from __future__ import annotations

from random import Random

from dejaq.domain.ids import COUNTER_MAX
from dejaq.protocol.v1 import carrier_pb2 as carrier
from dejaq.sdk.producing.outgoing import OutgoingColumns
from dejaq.sdk.producing.sender import Numbering, fill
from dejaq.sdk.session.backoff import RetryDelays
from dejaq.timekeeper.clock import VirtualClock


def test_rows_with_a_relative_time_are_named_as_ranges() -> None:
    """What is added to a batch later continues its rows."""
    batch = carrier.CreateBatch()
    for relative in ([True], [True, False], None, [False, True], [True]):
        count = len(relative or [False])
        fill(batch, OutgoingColumns([1] * count, [b""] * count, ids=["id"] * count, relative=relative))
    assert list(batch.relative_rows) == [0, 2, 5, 7]
    assert len(batch.ts) == 7


def test_batches_get_counters_of_their_own_and_use_the_buckets_in_turn() -> None:
    numbering = Numbering(VirtualClock(), Random(1))
    numbering.buckets = 3
    taken = [numbering.take(10) for _ in range(6)]
    assert [first for _, first, _ in taken] == [0, 10, 20, 30, 40, 50]
    buckets = [bucket for _, _, bucket in taken]
    assert set(buckets[:3]) == {0, 1, 2}
    assert buckets[:3] == buckets[3:]
    assert len({session for session, _, _ in taken}) == 1


def test_a_session_that_has_used_up_its_counters_is_followed_by_another() -> None:
    numbering = Numbering(VirtualClock(), Random(1))
    first_session, _, _ = numbering.take(COUNTER_MAX)
    same, first, _ = numbering.take(1)
    assert (same, first) == (first_session, COUNTER_MAX)
    other, first, _ = numbering.take(1)
    assert other != first_session
    assert first == 0


def test_waits_double_up_to_a_limit_and_follow_the_hint_of_the_broker() -> None:
    backoff = RetryDelays(Random(1), deadline=30.0)
    waits = [backoff.seconds() for _ in range(7)]
    for wait, most in zip(waits, (0.05, 0.1, 0.2, 0.4, 0.8, 1.0, 1.0), strict=True):
        assert most / 2 <= wait <= most
    assert backoff.seconds(at_least_ms=2_000) == 2.0
    backoff.reset()
    assert backoff.seconds() <= 0.05


def test_several_tries_fit_into_a_short_deadline() -> None:
    backoff = RetryDelays(Random(1), deadline=0.1)
    assert sum(backoff.seconds() for _ in range(4)) <= 0.1
