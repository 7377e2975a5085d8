"""Planted bugs of fleets: work that grows with the number of consumers, or with the number of topics."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from tests.regressions.bugs import Bug

ASSIGNMENT = "tests/unit/broker/test_assignment.py"
CATALOG = "tests/unit/broker/test_catalog.py"
LEASER = "tests/unit/broker/test_leaser.py"
LOOK_AHEAD = "tests/unit/broker/test_look_ahead.py"
METRICS = "tests/unit/broker/test_metrics.py"
CLIENTS = "tests/unit/broker/test_clients.py"


def _every_join_assigns_all_buckets_again() -> None:
    """A join computes the place of every bucket."""
    from dejaq.broker.assignment.assignment import Assignment

    change = Assignment.change

    def with_defect(self: Assignment, weights: Mapping[str, int], gone: Iterable[str] = ()) -> Iterator[None]:
        for bucket in range(len(self._place)):
            self._queue(bucket)
        yield from change(self, weights, gone)

    Assignment.change = with_defect  # type: ignore[method-assign]


def _every_helper_concerns_all() -> None:
    """When one consumer has free credit, the helpers of all consumers are computed again."""
    from dejaq.broker.assignment.lending import Lending

    def with_defect(self: Lending, place: Any) -> None:
        self._due.update(name for _, name in self._sharing)

    Lending._concerned = with_defect  # type: ignore[method-assign]


def _an_assignment_is_one_step() -> None:
    """The whole assignment of a fleet is computed at once, and the event loop waits for it."""
    from dejaq.broker.assignment import assignment

    assignment.PAUSE_STEPS = 1_000_000


def _all_consumers_are_one_record() -> None:
    """D27: a broker publishes all its consumers in one record."""
    from dejaq.broker.cluster import clients

    clients.record_of = lambda key: 0


def _one_creation_at_a_time() -> None:
    """L8: the creation of a topic waits for all others."""
    from dejaq.broker.name_locks import NameLocks

    of = NameLocks.of
    NameLocks.of = lambda locks, name: of(locks, "one name for all")  # type: ignore[method-assign]


def _every_topic_has_series() -> None:
    """L8: every topic has metrics of its own."""
    from dejaq.broker import metrics

    metrics.TOPIC_SERIES_MAX = 1_000_000


def _a_second_call_per_message() -> None:
    """L7: after each message the leaser makes a lease call that finds nothing."""
    from dejaq.broker.delivery.leaser import Leaser

    flow = Leaser.set_flow

    def with_defect(self: Leaser, *terms: Any) -> None:
        self._expects = False
        flow(self, *terms)

    Leaser.set_flow = with_defect  # type: ignore[method-assign]


def _a_consumer_that_leaves_wakes_all() -> None:
    """L7: a consumer that leaves wakes every other, although it held nothing."""
    from dejaq.broker.delivery.leaser import Leaser

    recall = Leaser.recall_unpushed

    async def with_defect(self: Leaser) -> bool:
        await recall(self)
        self._inflight.buckets = None
        return True

    Leaser.recall_unpushed = with_defect  # type: ignore[method-assign]


def _returned_messages_wake_all() -> None:
    """L7: each lease that a consumer returns wakes every other consumer."""
    from dejaq.broker.delivery.roster import Roster

    Roster.notify_returned = lambda self, ts, buckets: self.notify(ts)  # type: ignore[method-assign]


def _a_consumer_that_is_behind_takes_all() -> None:
    """L15: a consumer that is opened with a backlog leases up to its credit."""
    from dejaq.broker.delivery import pace

    pace.LATE_ROWS = 10_000


def _a_young_consumer_looks_far_ahead() -> None:
    """L15: a consumer that was just opened leases its whole window."""
    from dejaq.broker.delivery import flow

    flow.YOUNG_MS = 0


def _a_slow_consumer_takes_all_in_time() -> None:
    """L15: a consumer gets each message in time, however long those before it wait there."""
    from dejaq.broker.delivery import pace

    pace.FRESH_MS = 0


def _a_batch_wakes_all() -> None:
    """L7: a batch of more than 16 messages wakes every consumer of its topic."""
    from dejaq.broker.delivery.roster import Roster

    Roster.is_fleet = property(lambda self: False)  # type: ignore[assignment,method-assign]


def _every_consumer_checks_each_second() -> None:
    """L7: each of 1,000 idle consumers asks the storage once per second."""
    from dejaq.broker.delivery import leaser

    leaser.RECHECK_MS_MAX = 1_000


def _assignments_lose_a_bucket() -> None:
    """A consumer that gets buckets is not notified of one of them."""
    from dejaq.broker.assignment.seating import Seating

    own = Seating.own
    Seating.own = lambda self, name: own(self, name)[1:]  # type: ignore[method-assign]


BUGS = {
    "L7-a-second-call-per-message": Bug(_a_second_call_per_message, f"{LEASER}::test_a_message_costs_one_lease_call"),
    "L7-a-consumer-that-leaves-wakes-all": Bug(
        _a_consumer_that_leaves_wakes_all,
        f"{LEASER}::test_a_consumer_that_leaves_without_unsent_leases_wakes_no_other",
    ),
    "L7-returned-messages-wake-all": Bug(
        _returned_messages_wake_all,
        f"{LEASER}::test_returned_messages_wake_the_consumers_of_their_buckets_and_no_other",
    ),
    "L15-a-consumer-that-is-behind-takes-all": Bug(
        _a_consumer_that_is_behind_takes_all,
        f"{LOOK_AHEAD}::test_a_consumer_that_is_behind_holds_few_late_messages_until_it_is_fast",
    ),
    "L15-a-young-consumer-looks-far-ahead": Bug(
        _a_young_consumer_looks_far_ahead,
        f"{LOOK_AHEAD}::test_a_consumer_that_was_just_opened_leases_few_messages_ahead",
    ),
    "L15-a-slow-consumer-takes-all-in-time": Bug(
        _a_slow_consumer_takes_all_in_time,
        f"{LOOK_AHEAD}::test_a_consumer_whose_messages_wait_for_user_code_gets_no_more_of_them",
    ),
    "L7-a-batch-wakes-all": Bug(
        _a_batch_wakes_all, f"{LEASER}::test_a_batch_wakes_the_consumers_of_its_buckets_and_no_other"
    ),
    "L7-every-consumer-checks-each-second": Bug(
        _every_consumer_checks_each_second,
        f"{LEASER}::test_many_waiting_consumers_share_a_timer_and_check_less_often",
    ),
    "L7-assignments-lose-a-bucket": Bug(
        _assignments_lose_a_bucket,
        f"{LEASER}::test_deliveries_go_on_while_the_consumers_of_a_fleet_are_replaced",
    ),
    "L8-one-creation-at-a-time": Bug(
        _one_creation_at_a_time,
        f"{CATALOG}::test_topics_that_are_created_at_the_same_time_share_the_writes_of_the_storage",
    ),
    "L8-every-topic-has-series": Bug(
        _every_topic_has_series,
        f"{METRICS}::test_the_busiest_topics_have_series_of_their_own_and_the_rest_share_one",
    ),
    "L7-every-join-assigns-all-buckets-again": Bug(
        _every_join_assigns_all_buckets_again,
        f"{ASSIGNMENT}::test_a_join_and_a_leave_in_a_fleet_cost_as_much_as_moves",
    ),
    "L7-every-helper-concerns-all": Bug(
        _every_helper_concerns_all,
        f"{ASSIGNMENT}::test_in_a_fleet_a_change_of_free_credit_concerns_few_consumers",
    ),
    "L7-an-assignment-is-one-step": Bug(
        _an_assignment_is_one_step,
        f"{ASSIGNMENT}::test_a_large_change_is_computed_in_small_steps",
    ),
    "D27-all-consumers-are-one-record": Bug(
        _all_consumers_are_one_record,
        f"{CLIENTS}::test_two_thousand_consumers_are_many_small_records_and_a_change_rewrites_one",
    ),
}
