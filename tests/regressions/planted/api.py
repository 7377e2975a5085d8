"""Planted bugs of the blocking client and of other parts of the SDK's interface."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future
from typing import Any

from tests.regressions.bugs import Bug


def _closed_client_waits_for_its_loop() -> None:
    from dejaq.sdk.blocking.portal import Portal

    def usable(self: Portal) -> Any:
        return self._loop

    Portal._usable = usable  # type: ignore[method-assign]


def _calls_have_no_bound() -> None:
    from dejaq.sdk.blocking.portal import Portal

    def wait(self: Portal, future: Future[Any], _seconds: float | None) -> Any:
        return future.result(5)

    Portal._wait = wait  # type: ignore[method-assign]


def _blocking_client_lacks_a_method() -> None:
    from dejaq.sdk.blocking.cron import Cron

    del Cron.add_many


def _dead_letter_without_its_error() -> None:
    from dejaq.domain.dead_letter import Cause

    Cause.of = classmethod(lambda cls, reason, error=None: cls(reason))  # type: ignore[assignment]


def _worker_releases_what_has_no_attempts_left() -> None:
    from dejaq.sdk.working.worker import Worker

    async def was_last(self: Worker, _lease: Any) -> bool:
        return False

    Worker._was_last = was_last  # type: ignore[method-assign]


def _undecodable_body_comes_again() -> None:
    from dejaq.sdk.working.worker import Reject, Worker

    async def reject(self: Worker, lease: Any, wish: Reject) -> None:
        await self._failed(lease, wish, timed_out=False)

    Worker._reject = reject  # type: ignore[method-assign]


def _time_jumps_over_what_is_due() -> None:
    from dejaq.testing.virtual_time import VirtualTime

    async def next_due(self: VirtualTime, _now: int) -> int | None:
        return None

    VirtualTime._next_due = next_due  # type: ignore[method-assign]


def _progress_outlives_its_lease() -> None:
    from dejaq.broker.delivery.progress import ProgressReports

    def here(self: ProgressReports, topic: int, message_id: str, _lease_id: int) -> str:
        report = self._reports.get((topic, message_id))
        return report.text if report is not None else ""

    ProgressReports.here = here  # type: ignore[method-assign]


def _progress_is_seen_at_one_broker_only() -> None:
    from dejaq.broker.delivery.roster import Roster

    Roster.broker_of = lambda self, _name: None  # type: ignore[method-assign]


BLOCKING = "tests/integration/sdk/test_blocking.py"
DEAD_LETTERS = "tests/integration/sdk/test_dead_letters.py"
TYPED_WORKER = "tests/integration/sdk/test_typed_worker.py"
VIRTUAL_TIME = "tests/integration/testing/test_virtual_time.py"
PROGRESS = "tests/integration/sdk/test_progress.py"
SURFACE = "tests/unit/sdk/test_blocking_surface.py"

BUGS: Mapping[str, Bug] = {
    "u19-closed-client": Bug(
        _closed_client_waits_for_its_loop, f"{BLOCKING}::test_a_closed_client_reports_that_it_is_closed"
    ),
    "u19-calls-without-a-bound": Bug(
        _calls_have_no_bound, f"{BLOCKING}::test_a_call_waits_no_longer_than_its_time_limit"
    ),
    "u19-method-is-missing": Bug(
        _blocking_client_lacks_a_method,
        f"{SURFACE}::test_a_blocking_class_has_every_public_name_of_the_async_one",
    ),
    "u24-undecodable-body": Bug(
        _undecodable_body_comes_again, f"{TYPED_WORKER}::test_a_body_that_does_not_decode_goes_to_the_dead_letters"
    ),
    "u24-progress-of-another-lease": Bug(
        _progress_outlives_its_lease, f"{PROGRESS}::test_a_report_belongs_to_its_lease"
    ),
    "u24-progress-in-a-cluster": Bug(
        _progress_is_seen_at_one_broker_only,
        "tests/integration/cluster/test_clients.py::test_the_progress_of_a_message_is_seen_at_every_broker",
    ),
    "u24-time-jumps": Bug(
        _time_jumps_over_what_is_due, f"{VIRTUAL_TIME}::test_each_message_is_handed_over_at_its_own_time"
    ),
    "u24-error-of-a-rejection": Bug(
        _dead_letter_without_its_error, f"{DEAD_LETTERS}::test_a_rejection_keeps_the_error_and_its_traceback"
    ),
    "u24-error-of-the-last-attempt": Bug(
        _worker_releases_what_has_no_attempts_left,
        f"{DEAD_LETTERS}::test_a_worker_whose_last_attempt_fails_sends_the_error_with_the_message",
    ),
}
