"""Planted bugs of the SDK."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partialmethod

from tests.regressions.bugs import Bug


def _worker_deletes_what_was_not_awaited() -> None:
    from dejaq.sdk.working.worker_lease import WatchedLease

    async def check_calls(self: WatchedLease) -> None:
        """Find no unawaited call."""

    WatchedLease.check_calls = check_calls  # type: ignore[method-assign]


def _blocking_function_gets_coroutines() -> None:
    from dejaq.sdk.working import worker

    worker.BlockingLease = lambda lease, _loop: lease  # type: ignore[assignment, misc]


def _consumer_uses_the_wall_clock() -> None:
    from dejaq.sdk.session.broker_clock import BrokerClock
    from dejaq.timekeeper.clock import Clock

    def monotonic_us(self: BrokerClock) -> int:
        clock: Clock = self._clock
        return clock.now_us()

    observe = BrokerClock.observe

    def observed(self: BrokerClock, *, sent: float, broker_us: int) -> int:
        return observe(
            self, sent=sent + self._clock.now_us() / 1_000_000 - self._clock.monotonic(), broker_us=broker_us
        )

    BrokerClock._monotonic_us = monotonic_us  # type: ignore[method-assign]
    BrokerClock.observe = observed  # type: ignore[method-assign]


def _uncertainty_does_not_age() -> None:
    from dejaq.sdk.session.broker_clock import ClockSample

    ClockSample.uncertainty_at = lambda self, _now_us: self.uncertainty_us  # type: ignore[method-assign]


def _gaps_are_never_closed() -> None:
    from dejaq.sdk.producing import sender

    sender.Numbering.acknowledged = lambda _self, _session: 0  # type: ignore[method-assign]
    sender.wants_new_session = lambda _refused: False  # type: ignore[assignment]


def _full_sessions_are_kept() -> None:
    from dejaq.sdk.producing import sender

    sender.wants_new_session = lambda _refused: False  # type: ignore[assignment]


def _repeats_are_judged_by_name() -> None:
    from dejaq.storage.used_sequences import UsedSequences

    UsedSequences._compare = lambda _self, _first, _check: None  # type: ignore[method-assign]


def _a_cancelled_wait_takes_a_message_along() -> None:
    import asyncio

    from dejaq.sdk.consuming import consumer
    from dejaq.sdk.consuming.lease import Lease

    async def after_taking(self: consumer.Consumer) -> Lease:
        (portion,) = await self._take(1)
        await asyncio.sleep(0)
        return Lease(portion, portion.index[0], self._settler, self._clock)

    consumer.Consumer.__anext__ = after_taking  # type: ignore[method-assign]


def _nothing_is_recalled_late() -> None:
    from dejaq.sdk.consuming.consumer import Consumer

    async def nothing(_self: Consumer) -> None:
        return

    Consumer._return_unseen = nothing  # type: ignore[method-assign]


def _a_full_consumer_goes_on_taking() -> None:
    from dejaq.sdk.consuming.consumer import Consumer

    Consumer._start_pause = lambda _self: None  # type: ignore[method-assign]


def _use_before_opening() -> None:
    from dejaq.sdk.session.connection import Connection

    Connection.check_open = lambda _self: None  # type: ignore[method-assign]


def _consumers_end_with_an_outage() -> None:
    from dejaq.errors import NoBroker

    NoBroker.retryable = False


def _workers_want_a_broker_at_once() -> None:
    from dejaq.sdk.working import worker

    async def opened(self: worker.Worker) -> worker.Consumer:
        consumer = self._make_consumer()
        await consumer.open()
        return consumer

    worker.Worker._opened = opened  # type: ignore[method-assign]


def _an_edit_replaces_all_headers() -> None:
    from dejaq.domain.headers import decode_header_change, encode_headers
    from dejaq.storage.memory import deciding, owning

    def replaced(present: bytes, change: bytes | None) -> bytes:
        if change is None:
            return present
        return encode_headers({key: value for key, value in decode_header_change(change).items() if value is not None})

    deciding.edited_headers = replaced  # type: ignore[attr-defined]
    owning.edited_headers = replaced  # type: ignore[attr-defined]


def _refusals_in_a_list_are_only_returned() -> None:
    from dejaq.sdk.results import Results

    raise_for_failures = Results.raise_for_failures

    def raised(self: Results) -> None:
        if len(self) == 1:
            raise_for_failures(self)

    Results.raise_for_failures = raised  # type: ignore[method-assign]


def _refusals_in_a_batch_are_only_returned() -> None:
    from dejaq.sdk.consuming.lease import Batch
    from dejaq.sdk.consuming.settler import Settlement
    from dejaq.sdk.producing.producer import Producer
    from dejaq.sdk.results import Results

    Producer.send_batch = partialmethod(Producer.send_batch, results=True)  # type: ignore[method-assign, assignment]
    settle = Batch._settle

    async def returned(
        batch: Batch, settlement: Settlement, positions: Sequence[int] | None, *, raises: bool
    ) -> Results:
        return await settle(batch, settlement, positions, raises=False)

    Batch._settle = returned  # type: ignore[method-assign]


def _refused_dead_letters_are_only_counted() -> None:
    from dejaq.sdk.admin.dead_letters import DeadLetters

    each = DeadLetters._each
    DeadLetters._each = lambda letters, *arguments, raises: each(  # type: ignore[method-assign, assignment]
        letters, *arguments, raises=False
    )


def _topics_that_refuse_a_copy_are_only_returned() -> None:
    from dejaq.sdk.results import FanOut

    FanOut.raise_for_failures = lambda sent: None  # type: ignore[method-assign]


def _an_empty_filter_changes_everything() -> None:
    from dejaq.sdk.changing.bulk import Where

    Where.is_empty = property(lambda _self: False)  # type: ignore[assignment, method-assign]


def _a_settled_row_counts_as_lost() -> None:
    from dejaq.sdk.consuming.grant import Grant

    Grant.settled_here = lambda _self, _row: False  # type: ignore[method-assign]


def _the_owner_is_not_named() -> None:
    from dejaq.sdk.changing.by_owner import ByOwner

    async def unnamed(_self: ByOwner, _message_id: str) -> str:
        return ""

    ByOwner._owner_of = unnamed  # type: ignore[method-assign]


WORKER = "tests/integration/sdk/test_worker.py"
CONSUMER = "tests/integration/sdk/test_consumer.py"
NAMES = "tests/integration/sdk/test_names.py"
NOT_OPEN = "tests/integration/sdk/test_not_open.py"
OUTAGE = "tests/integration/sdk/test_outage.py"
CLOCK = "tests/unit/sdk/test_broker_clock.py"


def merge_a_backlog_row_by_row() -> None:
    from dejaq.sdk.consuming.prefetch_buffer import PrefetchBuffer

    PrefetchBuffer._order_slack = lambda self, now: 0


BUGS: Mapping[str, Bug] = {
    "a-full-consumer-goes-on-taking": Bug(
        _a_full_consumer_goes_on_taking,
        "tests/integration/sdk/test_max_messages.py::test_a_consumer_that_has_taken_its_maximum_holds_nothing_more",
    ),
    "a-backlog-is-merged-row-by-row": Bug(
        merge_a_backlog_row_by_row,
        "tests/unit/sdk/test_holder.py::test_a_backlog_of_pushes_that_lie_between_each_other_leaves_in_slices",
    ),
    "u1-call-not-awaited": Bug(
        _worker_deletes_what_was_not_awaited,
        f"{WORKER}::test_the_worker_waits_for_a_call_in_a_task_of_its_own",
    ),
    "u1-blocking-function": Bug(
        _blocking_function_gets_coroutines,
        f"{WORKER}::test_a_blocking_function_settles_with_blocking_calls",
    ),
    "d3-wall-clock": Bug(
        _consumer_uses_the_wall_clock,
        f"{CONSUMER}::test_setting_the_wall_clock_of_a_consumers_machine_makes_no_message_early",
    ),
    "d3-uncertainty-without-age": Bug(
        _uncertainty_does_not_age, f"{CLOCK}::test_the_uncertainty_grows_with_the_age_of_the_exchange"
    ),
    "d1-gaps": Bug(_gaps_are_never_closed, f"{NAMES}::test_a_producer_works_after_any_number_of_refused_sends"),
    "d1-full-session": Bug(
        _full_sessions_are_kept,
        f"{NAMES}::test_a_batch_with_more_refused_rows_than_a_session_may_have_gaps_is_sent",
    ),
    "d13-names": Bug(_repeats_are_judged_by_name, f"{NAMES}::test_a_copied_producer_loses_nothing"),
    "d13-transactions": Bug(_repeats_are_judged_by_name, f"{NAMES}::test_a_copied_client_can_commit_transactions"),
    "d6-cancelled-wait": Bug(
        _a_cancelled_wait_takes_a_message_along,
        f"{CONSUMER}::test_a_wait_that_is_cancelled_at_any_moment_loses_no_message",
    ),
    "d6-held-again": Bug(
        _nothing_is_recalled_late, f"{CONSUMER}::test_a_message_that_returns_to_the_buffer_after_a_stop_is_released"
    ),
    "u9-not-open": Bug(_use_before_opening, f"{NOT_OPEN}::test_a_producer_of_a_parent_process_is_refused"),
    "u8-consumer": Bug(
        _consumers_end_with_an_outage,
        f"{OUTAGE}::test_a_consumer_waits_through_an_outage_of_any_length_and_logs_it",
    ),
    "u16-headers": Bug(
        _an_edit_replaces_all_headers,
        "tests/integration/sdk/test_edit_batch.py::test_edits_merge_headers_and_remove_those_that_are_none",
    ),
    "u17-second-settlement": Bug(
        _a_settled_row_counts_as_lost, f"{CONSUMER}::test_a_second_settlement_reports_that_it_is_the_second"
    ),
    "u17-owner": Bug(
        _the_owner_is_not_named,
        "tests/integration/sdk/test_producer.py::test_a_change_of_a_single_message_raises_when_it_is_refused",
    ),
    "u18-list": Bug(
        _refusals_in_a_list_are_only_returned,
        "tests/integration/sdk/test_producer.py::test_a_refused_item_of_a_list_raises",
    ),
    "u18-send-batch": Bug(
        _refusals_in_a_batch_are_only_returned,
        "tests/integration/sdk/test_producer.py::test_a_refused_message_of_a_batch_raises",
    ),
    "u18-batch-of-leases": Bug(
        _refusals_in_a_batch_are_only_returned,
        "tests/integration/sdk/test_shared_settles.py::test_a_refused_message_of_a_batch_of_leases_raises[extend]",
    ),
    "u18-dead-letters": Bug(
        _refused_dead_letters_are_only_counted,
        "tests/integration/sdk/test_dead_letters.py::test_dead_letters_are_moved_back_by_id_and_by_filter",
    ),
    "u18-fan-out": Bug(
        _topics_that_refuse_a_copy_are_only_returned,
        "tests/integration/sdk/test_producer.py::test_fan_out_may_let_each_topic_decide_for_itself",
    ),
    "u18-empty-filter": Bug(
        _an_empty_filter_changes_everything,
        "tests/integration/sdk/test_bulk.py::test_an_empty_filter_must_be_confirmed",
    ),
    "u8-worker": Bug(_workers_want_a_broker_at_once, f"{WORKER}::test_a_worker_starts_while_no_broker_runs"),
}
