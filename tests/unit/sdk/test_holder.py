from __future__ import annotations

import gc
import itertools
from typing import cast
from weakref import ref

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dejaq.domain.batch import IdSpan, LeaseSet
from dejaq.sdk.consuming.grant import DeliveryPart, Grant, ranges_of
from dejaq.sdk.consuming.lease import Lease
from dejaq.sdk.consuming.prefetch_buffer import PrefetchBuffer
from dejaq.sdk.consuming.settler import Settler
from dejaq.sdk.session.broker_clock import BrokerClock

FAR = 10**15


def lease(
    lease_id: int,
    *ts: int,
    priorities: list[int] | None = None,
    rows: list[int] | None = None,
    expires: int = FAR,
) -> LeaseSet:
    count = len(ts)
    return LeaseSet(
        lease_id=lease_id,
        consumer="c",
        expires=expires,
        spans=[IdSpan(count=count, prefix=f"{lease_id:024x}", first=0)],
        ts=list(ts),
        bodies=[b"%d" % value for value in ts],
        priorities=priorities,
        rows=rows,
    )


def taken(portions: list[DeliveryPart]) -> list[tuple[int, int]]:
    """(lease, row) of each row."""
    return [(portion.grant.id, row) for portion in portions for row in portion.rows()]


def test_no_message_is_taken_before_its_time() -> None:
    holder = PrefetchBuffer()
    holder.push(lease(1, 10, 20, 30))
    assert holder.take(10, now=9, latest=9) == []
    assert taken(holder.take(10, now=20, latest=20)) == [(1, 0), (1, 1)]
    assert holder.next_ts == 30
    assert taken(holder.take(10, now=30, latest=30)) == [(1, 2)]
    assert holder.next_ts is None


def test_pushes_are_merged_by_time_then_priority() -> None:
    holder = PrefetchBuffer()
    holder.push(lease(1, 10, 20, 20, priorities=[0, -1, 5]))
    holder.push(lease(2, 5, 20))
    assert taken(holder.take(10, now=20, latest=20)) == [(2, 0), (1, 0), (1, 1), (2, 1), (1, 2)]


def test_messages_by_priority_overtake_earlier_pushes() -> None:
    holder = PrefetchBuffer()
    for number, (ts, priorities) in enumerate([((50, 60), [3, 9]), ((70,), [7]), ((80, 90, 1), [-2, 7, 7])]):
        pushed = lease(number, *ts, priorities=priorities)
        pushed.by_priority = True
        holder.push(pushed)
    assert taken(holder.take(2, now=100, latest=0)) == [(2, 0), (0, 0)]
    assert taken(holder.take(9, now=100, latest=0)) == [(1, 0), (2, 2), (2, 1), (0, 1)]


def backlog(*, late_ms: int, prioritised: bool = False) -> tuple[PrefetchBuffer, int]:
    """Eight pushes whose 100 rows each lie between each other over four seconds; and a time so long after the first."""
    holder = PrefetchBuffer()
    for number in range(8):
        ts = [1_000 + 40 * row + number for row in range(100)]
        holder.push(lease(number + 1, *ts, priorities=[0] * 100 if prioritised else None))
    return holder, 1_000 + late_ms


def test_a_backlog_of_pushes_that_lie_between_each_other_leaves_in_slices() -> None:
    """A row that leaves by itself is settled by itself, which costs the broker ten times as much."""
    holder, now = backlog(late_ms=60_000)
    portions = holder.take(800, now=now, latest=0)
    assert len(taken(portions)) == 800
    assert len(portions) == 8


def test_a_late_row_is_passed_only_within_a_quarter_of_its_lateness() -> None:
    holder, now = backlog(late_ms=5_000)
    latest = 0
    for portion in holder.take(800, now=now, latest=0):
        ts = [portion.delivery.columns.ts[place] for place in portion.index]
        assert ts == sorted(ts)
        assert latest <= ts[0] + (now - ts[0]) // 4 + 40
        latest = max(latest, ts[-1])


@pytest.mark.parametrize(("late_ms", "prioritised"), [(900, False), (60_000, True)])
def test_rows_that_are_due_just_now_or_have_priorities_keep_their_order(late_ms: int, prioritised: bool) -> None:
    holder, now = backlog(late_ms=late_ms, prioritised=prioritised)
    portions = holder.take(800, now=now, latest=0)
    ts = [portion.delivery.columns.ts[place] for portion in portions for place in portion.index]
    assert ts == sorted(ts)
    assert len(portions) > 100


def test_rows_of_one_moment_leave_as_one_slice() -> None:
    holder = PrefetchBuffer()
    holder.push(lease(1, *[10] * 1_000))
    holder.push(lease(2, *[10] * 1_000))
    portions = holder.take(5_000, now=10, latest=10)
    assert [(portion.grant.id, len(portion)) for portion in portions] == [(1, 1_000), (2, 1_000)]
    assert isinstance(portions[0].index, range)


def test_no_more_than_asked_for_is_taken() -> None:
    holder = PrefetchBuffer()
    holder.push(lease(1, 1, 2, 3))
    assert taken(holder.take(2, now=9, latest=9)) == [(1, 0), (1, 1)]
    assert taken(holder.take(2, now=9, latest=9)) == [(1, 2)]


@given(
    st.lists(st.lists(st.tuples(st.integers(0, 6), st.integers(-2, 2)), min_size=1, max_size=6), max_size=5),
    st.integers(0, 7),
    st.integers(1, 9),
)
def test_any_pushes_leave_in_order_and_each_row_once(pushes: list[list[tuple[int, int]]], now: int, limit: int) -> None:
    holder = PrefetchBuffer()
    for number, keys in enumerate(pushes):
        holder.push(lease(number, *[ts for ts, _ in keys], priorities=[p for _, p in keys]))
    seen: list[tuple[int, int]] = []
    while portions := holder.take(limit, now=now, latest=0):
        assert sum(map(len, portions)) <= limit
        seen.extend(taken(portions))
    keys_seen = [pushes[number][row] for number, row in seen]
    assert keys_seen == sorted(keys_seen)
    assert sorted(seen) == [
        (number, row) for number, keys in enumerate(pushes) for row, (ts, _) in enumerate(keys) if ts <= now
    ]


def test_a_repeated_push_hands_no_message_out_twice() -> None:
    holder = PrefetchBuffer()
    holder.push(lease(1, 10, 20, 30))
    assert taken(holder.take(1, now=10, latest=10)) == [(1, 0)]
    assert holder.push(lease(1, 10, 20, 30, rows=[0, 1, 2], expires=FAR + 5))
    assert taken(holder.take(10, now=30, latest=30)) == [(1, 1), (1, 2)]
    assert holder.grants[1].expires == FAR + 5


def test_a_repeated_push_restores_rows_whose_recall_the_broker_did_not_receive() -> None:
    holder = PrefetchBuffer()
    holder.push(lease(1, 10, 20))
    assert holder.recall(1, [1]) == [1]
    holder.push(lease(1, 10, 20, rows=[0, 1]))
    assert taken(holder.take(10, now=20, latest=20)) == [(1, 0), (1, 1)]


def test_what_is_settled_while_the_broker_sends_it_again_is_not_handed_out_again() -> None:
    holder = PrefetchBuffer()
    holder.push(lease(1, 10, 20))
    holder.push(lease(2, 10))
    holder.take(10, now=20, latest=20)
    holder.reconnect()
    for number, rows in ((1, [0]), (2, [0])):
        grant = holder.grants[number]
        grant.settle(rows)
        holder.forget_if_settled(grant)
    assert holder.push(lease(1, 10, 20))
    assert not holder.push(lease(2, 10))
    assert holder.take(10, now=20, latest=20) == []
    assert list(holder.grants) == [1]


def test_the_rest_of_a_lease_keeps_its_row_numbers() -> None:
    holder = PrefetchBuffer()
    assert not holder.push(lease(7, 10, 20, rows=[3, 9]))
    portions = holder.take(10, now=20, latest=20)
    assert taken(portions) == [(7, 3), (7, 9)]
    assert portions[0].grant.ranges([3, 9]) == [3, 4, 9, 10]


def test_only_rows_that_user_code_has_not_seen_are_recalled() -> None:
    holder = PrefetchBuffer()
    holder.push(lease(1, 10, 20, 30))
    holder.take(1, now=10, latest=10)
    assert holder.recall(1, [0, 2]) == [2]
    assert holder.recall(99, [0]) == []
    assert taken(holder.take(10, now=99, latest=99)) == [(1, 1)]


def test_rows_whose_lease_has_ended_are_dropped() -> None:
    holder = PrefetchBuffer()
    holder.push(lease(1, 10, expires=15))
    holder.push(lease(2, 10, expires=100))
    assert taken(holder.take(10, now=20, latest=20)) == [(2, 0)]
    assert list(holder.grants) == [2]


def test_emptying_takes_only_rows_that_user_code_has_not_seen() -> None:
    holder = PrefetchBuffer()
    holder.push(lease(1, 10, 20, 30))
    holder.take(1, now=10, latest=10)
    assert taken(holder.empty()) == [(1, 1), (1, 2)]
    assert holder.next_ts is None
    assert 1 in holder.grants


def test_a_whole_lease_is_one_range_of_rows() -> None:
    grant = Grant(1, expires=5, total=3)
    assert grant.ranges(range(3)) == [0, 3]
    assert grant.ranges([0, 2]) == [0, 1, 2, 3]


@given(st.sets(st.integers(0, 40)))
def test_ranges_name_exactly_the_rows(rows: set[int]) -> None:
    ranges = ranges_of(sorted(rows))
    assert {row for start, end in ranges for row in range(start, end)} == rows
    assert all(first[1] < second[0] for first, second in itertools.pairwise(ranges))


def test_each_row_has_its_own_end_once_the_ends_differ() -> None:
    grant = Grant(1, expires=100, total=3)
    grant.unsettled.update({0, 1, 2})
    grant.move_end([1], 500)
    assert [grant.end_of(row) for row in range(3)] == [100, 500, 100]
    assert grant.ending_before(200) == [0, 2]
    grant.lose([0])
    assert grant.end_of(0) == 0
    assert grant.ending_before(200) == [2]
    grant.move_end([1, 2], 900)
    assert grant.ending_before(900) == []


class _Bodies(list[bytes]):
    """A column that can be observed."""


def test_a_message_that_is_kept_does_not_keep_the_others_of_its_push_in_memory() -> None:
    """L13: a consumer works on one message for an hour, and is done with the other 15 at once."""
    bodies = _Bodies(b"body %d" % row for row in range(16))
    pushed = LeaseSet(
        lease_id=7, consumer="w", expires=1_000, spans=[IdSpan(16, prefix="p-", first=0)], ts=list(range(16)),
        bodies=bodies, headers=[b""] * 16, attempts=list(range(16)), rows=list(range(16, 32)),
    )  # fmt: skip
    column = ref(bodies)
    holder = PrefetchBuffer()
    holder.push(pushed)
    grant = holder.grants[7]
    (portion,) = holder.take(16, now=100, latest=100)
    settler, clock = cast(Settler, None), cast(BrokerClock, None)
    leases = [Lease(portion, place, settler, clock) for place in portion.index]
    before = [(one.id, one.body, one.ts, one.attempts, one.expires_ms, one.settled) for one in leases]
    del pushed, bodies, portion
    grant.settle(range(16, 30))
    assert column() is not None
    grant.settle([30])
    gc.collect()
    assert column() is None
    after = [(one.id, one.body, one.ts, one.attempts, one.expires_ms, one.settled) for one in leases]
    assert after == [(*one[:5], place < 15) for place, one in enumerate(before)]
    assert [(one.held.portions[0].rows(), one.version) for one in leases[15:]] == [([31], 7)]
    assert grant.knows(16)
    assert not grant.knows(32)
