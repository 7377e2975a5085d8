"""Planted bugs for the defects that a new user found at the command line and in the API."""

from __future__ import annotations

from tests.regressions.bugs import Bug


def _epoch_seconds_are_milliseconds() -> None:
    import dejaq.cli.terminal.times
    import dejaq.sdk.times

    for module in (dejaq.cli.terminal.times, dejaq.sdk.times):
        module.seconds_suspected = lambda value: None  # type: ignore[attr-defined]
    dejaq.sdk.times.limits.PLAIN_TIME_MS_MIN = 0  # type: ignore[misc]


def _rules_bind_every_expression() -> None:
    import dejaq.domain.schedules.recurrence

    dejaq.domain.schedules.recurrence._has_fixed_time = lambda expression: True  # type: ignore[assignment]


def _missed_runs_are_prepared_early() -> None:
    import dejaq.domain.schedules.schedule

    dejaq.domain.schedules.schedule.lead_ms = lambda schedule: dejaq.domain.schedules.schedule.LEAD_MS  # type: ignore[assignment]


def _a_replacement_keeps_nothing() -> None:
    import dejaq.broker.cron.service

    dejaq.broker.cron.service.asdict = lambda schedule: {}  # type: ignore[attr-defined]


def _a_draining_broker_is_left_at_once() -> None:
    from dejaq.sdk.session.connection import Connection

    async def leave(connection: Connection, link: object) -> None:
        return

    Connection._finish_work = leave  # type: ignore[method-assign]


def _every_fault_is_no_broker() -> None:
    from dejaq.errors import DejaqError

    DejaqError.answered = property(lambda error: False, lambda error, value: None)  # type: ignore[assignment]


def _the_code_of_the_store_is_hidden() -> None:
    import dejaq.broker.doctor

    def hide(error: dejaq.broker.doctor.StoreError) -> dejaq.broker.doctor.DejaqError:
        return dejaq.broker.doctor.Unavailable("the broker's storage does not work now", details=str(error))

    dejaq.broker.doctor.cannot_serve = hide


def _an_edit_forgets_who_is_back() -> None:
    from dejaq.broker.reactions import Reactions
    from dejaq.domain.topic import Topic
    from dejaq.errors import Unavailable

    async def with_defect(self: Reactions, topic: Topic) -> None:
        await self._leave(topic, Unavailable("the settings have changed; reconnect to continue"))

    Reactions.topic_changed = with_defect  # type: ignore[method-assign]


def _only_the_store_learns_of_an_edit() -> None:
    from dejaq.broker.catalog import Catalog
    from dejaq.broker.reactions import Reactions

    async def with_defect(self: Reactions, topic: object) -> None:
        return None

    Reactions.topic_changed = with_defect  # type: ignore[method-assign]
    Catalog.check = lambda catalog, topic: None  # type: ignore[method-assign, assignment]


def _a_create_meets_a_deletion() -> None:
    import dejaq.sdk.admin.topics

    dejaq.sdk.admin.topics.Code = type("Code", (), {"TOPIC_DELETING": None})  # type: ignore[assignment, misc]


def _each_page_of_a_sweep_reads_all_that_is_left() -> None:
    from typing import Any

    from dejaq.broker.calls.replies import ReplyCalls
    from dejaq.domain.changes import Cancel
    from dejaq.domain.context import CallContext
    from dejaq.storage.base import Filter

    context = CallContext.internal("expire messages")

    async def sweep(replies: Any, topic: Any) -> None:
        storage, now = replies._broker.storage, replies._broker.clock.now_ms()
        while (page := await storage.browse(topic, Filter(end=now + 1), None, 100, now)).messages:
            for message in page.messages:
                await storage.apply([Cancel(topic, message.producer_group, [message.id])], now, context)

    ReplyCalls.sweep = sweep  # type: ignore[method-assign]


def _a_code_is_printed_as_its_number() -> None:
    from dejaq.errors import Code

    Code.__str__ = int.__repr__  # type: ignore[method-assign, assignment]


def _every_path_has_the_metrics() -> None:
    import dejaq.broker.metrics

    dejaq.broker.metrics._only_metrics = dejaq.broker.metrics.make_wsgi_app


def _everything_is_changed_without_a_question() -> None:
    import dejaq.cli.messages.dlq
    import dejaq.cli.terminal.where

    for module in (dejaq.cli.messages.dlq, dejaq.cli.terminal.where):
        module.confirm_all = lambda invocation, question, *, yes: None  # type: ignore[attr-defined]


def _coming_times_are_in_utc_only() -> None:
    import dejaq.cli.messages.cron

    utc = dejaq.cli.messages.cron.zone_of("UTC")
    dejaq.cli.messages.cron.zone_of = lambda zone: utc  # type: ignore[attr-defined]


def _a_schedule_that_is_not_there_is_removed() -> None:
    from dejaq.sdk.admin.cron import Cron

    remove = Cron.remove

    async def removed(cron: Cron, name: str) -> bool:
        await remove(cron, name)
        return True

    Cron.remove = removed  # type: ignore[method-assign]


def _a_refusal_names_no_owner() -> None:
    import dejaq.cli.messages.message

    refusals = dejaq.cli.messages.message.refusals
    dejaq.cli.messages.message.refusals = lambda invocation, ids, codes, reasons=None: refusals(invocation, ids, codes)


def _one_message_far_away_sets_the_step() -> None:
    import dejaq.cli.messages.query

    dejaq.cli.messages.query.FAR_SHARE = 0


def _the_folder_of_an_output_must_exist() -> None:
    import dejaq.cli.messages.consume

    body_target = dejaq.cli.messages.consume.body_target

    def within_a_folder(path: str, *, make_folder: bool) -> object:
        return body_target(path)

    dejaq.cli.messages.consume.body_target = within_a_folder  # type: ignore[attr-defined]


def _every_failure_has_one_exit_code() -> None:
    import dejaq.cli.terminal.failures

    dejaq.cli.terminal.failures._exit_code = lambda error: 1


def _a_screen_hides_what_does_not_fit() -> None:
    import dejaq.cli.operating.top

    dejaq.cli.operating.top.remark_on = lambda hidden: ""


def _a_wide_table_is_folded() -> None:
    import dejaq.cli.terminal.output

    dejaq.cli.terminal.output.width_of = lambda rows, columns: 0


def _a_relative_time_is_compared() -> None:
    from dejaq.domain.batch import CreateBatch

    CreateBatch.accepts_time = lambda batch, row, ts: ts == batch.ts[row]  # type: ignore[method-assign]


BUGS = {
    "U7-a-relative-time-is-compared": Bug(
        _a_relative_time_is_compared,
        "tests/integration/sdk/test_deduplication.py::test_a_repeat_with_a_relative_time_changes_nothing[memory]",
    ),
    "U18-everything-is-changed-without-a-question": Bug(
        _everything_is_changed_without_a_question,
        "tests/unit/cli/test_where.py::test_a_change_of_everything_needs_all_and_waits_for_an_answer",
    ),
    "U5-coming-times-are-in-utc-only": Bug(
        _coming_times_are_in_utc_only,
        "tests/acceptance/test_cli.py::test_the_next_times_of_a_schedule_are_also_shown_in_its_time_zone",
    ),
    "U17-a-schedule-that-is-not-there-is-removed": Bug(
        _a_schedule_that_is_not_there_is_removed,
        "tests/acceptance/test_cli.py::test_removing_a_schedule_that_does_not_exist_is_an_error",
    ),
    "U17-a-refusal-names-no-owner": Bug(
        _a_refusal_names_no_owner,
        "tests/acceptance/test_cli.py::test_a_message_of_another_group_is_refused_with_the_owner_and_the_option",
    ),
    "U23-one-message-far-away-sets-the-step": Bug(
        _one_message_far_away_sets_the_step,
        "tests/acceptance/test_cli.py::test_a_message_far_behind_the_others_does_not_flatten_the_histogram",
    ),
    "U23-the-folder-of-an-output-must-exist": Bug(
        _the_folder_of_an_output_must_exist,
        "tests/acceptance/test_cli.py::test_consume_creates_the_folder_of_its_output",
    ),
    "U12-every-failure-has-one-exit-code": Bug(
        _every_failure_has_one_exit_code,
        "tests/unit/cli/test_failures.py::test_the_exit_codes_of_no_broker_a_refusal_and_a_broker_fault_differ",
    ),
    "U23-a-screen-hides-what-does-not-fit": Bug(
        _a_screen_hides_what_does_not_fit,
        "tests/unit/cli/test_info.py::test_a_small_screen_names_the_number_of_hidden_rows",
    ),
    "U23-a-wide-table-is-folded": Bug(
        _a_wide_table_is_folded,
        "tests/unit/cli/test_output.py::test_a_table_that_is_wider_than_the_terminal_is_shown_field_by_field",
    ),
    "U23-a-code-is-printed-as-its-number": Bug(
        _a_code_is_printed_as_its_number, "tests/unit/test_errors.py::test_a_code_is_printed_as_its_name"
    ),
    "U23-every-path-has-the-metrics": Bug(
        _every_path_has_the_metrics,
        "tests/unit/broker/test_metrics.py::test_the_endpoint_serves_and_a_taken_port_is_a_clear_error",
    ),
    "loop-each-page-of-a-sweep-reads-all-that-is-left": Bug(
        _each_page_of_a_sweep_reads_all_that_is_left,
        "tests/integration/sdk/test_replies.py::test_unread_messages_are_removed_in_one_pass_and_in_small_commits",
    ),
    "U15-connected-clients-keep-the-old-settings": Bug(
        _only_the_store_learns_of_an_edit,
        "tests/integration/sdk/test_topic_edit.py::test_changed_settings_apply_to_connected_clients[memory]",
    ),
    "U15-an-edit-forgets-who-is-back": Bug(
        _an_edit_forgets_who_is_back,
        "tests/integration/sdk/test_topic_edit.py"
        "::test_a_consumer_that_is_back_before_other_sessions_have_ended_gets_messages[memory]",
    ),
    "U15-a-create-meets-a-deletion": Bug(
        _a_create_meets_a_deletion,
        "tests/integration/sdk/test_topic_edit.py"
        "::test_a_topic_is_created_again_as_soon_as_its_deletion_is_done[memory]",
    ),
    "U12-every-fault-is-no-broker": Bug(
        _every_fault_is_no_broker,
        "tests/integration/sdk/test_outage.py::test_a_broker_that_is_cut_off_has_its_own_error_code",
    ),
    "U12-the-code-of-the-store-is-hidden": Bug(
        _the_code_of_the_store_is_hidden,
        "tests/integration/sdk/test_outage.py::test_a_failing_disk_has_its_own_error_code",
    ),
    "U11-a-draining-broker-is-left-at-once": Bug(
        _a_draining_broker_is_left_at_once,
        "tests/integration/sdk/test_outage.py"
        "::test_a_broker_that_drains_waits_for_the_messages_that_user_code_has[delete]",
    ),
    "U5-rules-bind-every-expression": Bug(
        _rules_bind_every_expression,
        "tests/unit/domain/test_recurrence.py::test_a_schedule_without_a_fixed_hour_runs_through_a_repeated_hour",
    ),
    "U5-a-skipped-hour-adds-a-run": Bug(
        _rules_bind_every_expression,
        "tests/unit/domain/test_recurrence.py::test_a_skipped_hour_adds_no_run_to_a_schedule_without_a_fixed_hour",
    ),
    "U17-a-replacement-keeps-nothing": Bug(
        _a_replacement_keeps_nothing,
        "tests/integration/sdk/test_cron.py::test_a_replacement_keeps_what_it_does_not_name",
    ),
    "U23-missed-runs-are-prepared-early": Bug(
        _missed_runs_are_prepared_early,
        "tests/unit/domain/test_schedule.py::test_an_occurrence_that_is_skipped_when_missed_is_prepared_just_before_its_time",
    ),
    "U14-epoch-seconds-in-the-sdk": Bug(
        _epoch_seconds_are_milliseconds,
        "tests/unit/sdk/test_times.py::test_seconds_since_the_epoch_are_refused_with_both_possible_meanings",
    ),
    "U14-epoch-seconds-on-the-command-line": Bug(
        _epoch_seconds_are_milliseconds,
        "tests/unit/cli/test_times.py::test_epoch_seconds_are_refused_with_both_possible_meanings",
    ),
}
