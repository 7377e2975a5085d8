"""The steps of a schedule: a pure computation, so that every rule can be tested directly."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dejaq.domain.schedules.recurrence import RepeatedHour, SkippedHour
from dejaq.domain.schedules.schedule import (
    HISTORY_MAX,
    LEAD_MS,
    LEAD_OVERLAP_MS,
    MISSED_AFTER_MS,
    NEVER_MS,
    Missed,
    Overlap,
    ScheduleProgress,
    ScheduleSettings,
    advance,
    begun,
    decode,
    encode,
    prepared_ids,
    schedule_of,
    wake_ms,
    withdrawn,
)
from dejaq.errors import Code, DejaqError

NOW = 1_800_000_000_000
MINUTE = 60_000


def every_minute(**fields: Any) -> ScheduleSettings:
    return ScheduleSettings("tick", "* * * * *", template="{count}", **fields)


def run(
    schedule: ScheduleSettings, progress: ScheduleProgress, now: int, *, there: bool = False
) -> tuple[list[int], ScheduleProgress]:
    made, after = advance(schedule, progress, topic="t", now=now, last_there=there)
    return [occurrence.ts for occurrence in made], after


def test_occurrences_are_prepared_ahead_of_their_time() -> None:
    schedule = every_minute()
    progress = begun(schedule, NOW)
    first = NOW - NOW % MINUTE + MINUTE
    assert progress.next_ms == first
    assert wake_ms(schedule, progress) == first - LEAD_MS
    assert run(schedule, progress, first - LEAD_MS - 1) == ([], progress)
    made, after = run(schedule, progress, first - LEAD_MS)
    assert made == [first]
    assert after.next_ms == first + MINUTE
    assert (after.count, after.last_id) == (1, schedule.occurrence_id(first))


def test_a_schedule_that_runs_often_is_checked_seldom() -> None:
    schedule = ScheduleSettings("often", "@every 1s", start_ms=NOW)
    progress = begun(schedule, NOW)
    looks, now, made = 0, NOW, []
    while now < NOW + 60_000:
        fresh, progress = run(schedule, progress, now)
        made += fresh
        looks += 1
        now = wake_ms(schedule, progress)
    assert made == [NOW + 1_000 * number for number in range(1, len(made) + 1)]
    assert looks <= 6


@pytest.mark.parametrize(
    ("missed", "limit", "made_up"),
    [(Missed.SKIP, 100, 0), (Missed.LAST, 100, 1), (Missed.ALL, 3, 3), (Missed.ALL, 100, 10)],
)
def test_missed_occurrences_are_created_as_declared(missed: Missed, limit: int, made_up: int) -> None:
    schedule = every_minute(missed=missed, missed_max=limit)
    first = NOW - NOW % MINUTE + MINUTE
    progress = ScheduleProgress(next_ms=first)
    now = first + 9 * MINUTE + MINUTE // 2
    made, after = run(schedule, progress, now)
    late = [ts for ts in made if ts < now - MISSED_AFTER_MS]
    assert late == [first + MINUTE * number for number in range(10)][10 - made_up :]
    assert after.next_ms is not None
    assert after.next_ms > now
    expected = [] if made_up == 10 else ["missed"]
    assert [outcome for _, outcome in after.history] == expected + ["created"] * len(made)


def test_a_short_outage_misses_nothing() -> None:
    schedule = every_minute(missed=Missed.SKIP)
    first = NOW - NOW % MINUTE + MINUTE
    made, _ = run(schedule, ScheduleProgress(next_ms=first), first + MISSED_AFTER_MS)
    assert made == [first]


def test_years_of_seconds_are_not_counted_one_by_one() -> None:
    schedule = ScheduleSettings("tick", "* * * * * *", missed=Missed.ALL, missed_max=5)
    made, _ = run(schedule, ScheduleProgress(next_ms=NOW - 3 * 365 * 86_400_000), NOW)
    assert [ts for ts in made if ts < NOW - MISSED_AFTER_MS] == [NOW - 10_000 - 1_000 * n for n in range(5, 0, -1)]


def test_an_occurrence_that_is_skipped_when_missed_is_prepared_just_before_its_time() -> None:
    """U23: occurrences that had been prepared 30 s in advance were delivered after an outage, however late."""
    schedule = every_minute(missed=Missed.SKIP)
    progress = begun(schedule, NOW)
    assert progress.next_ms is not None
    assert wake_ms(schedule, progress) == progress.next_ms - LEAD_OVERLAP_MS
    often = ScheduleSettings("often", "@every 1s", start_ms=NOW, missed=Missed.SKIP)
    made, _ = run(often, begun(often, NOW), NOW + 600)
    assert made == [NOW + 1_000]


def test_overlap_is_decided_when_the_next_is_near() -> None:
    schedule = every_minute(overlap=Overlap.SKIP)
    progress = begun(schedule, NOW)
    assert progress.next_ms is not None
    assert wake_ms(schedule, progress) == progress.next_ms - LEAD_OVERLAP_MS
    now = wake_ms(schedule, progress)
    made, after = run(schedule, progress, now)
    assert made == [progress.next_ms]
    made, after = run(schedule, after, now + MINUTE, there=True)
    assert (made, after.history[-1][1]) == ([], "overlapped")
    made, after = run(schedule, after, now + 2 * MINUTE)
    assert made == [progress.next_ms + 2 * MINUTE]
    assert after.count == 2


def test_paused_and_finished_schedules_create_nothing() -> None:
    schedule = every_minute(end_ms=NOW + 2 * MINUTE)
    progress = begun(schedule, NOW)
    paused = replace(progress, paused=True)
    assert wake_ms(schedule, paused) == NEVER_MS
    assert run(schedule, paused, NOW + 10 * MINUTE) == ([], paused)
    made, after = run(schedule, progress, NOW + 2 * MINUTE)
    assert len(made) == 2
    assert wake_ms(schedule, after) == NEVER_MS


def test_prepared_occurrences_are_remembered_until_they_are_due() -> None:
    schedule = ScheduleSettings("often", "@every 5s", start_ms=NOW)
    made, after = run(schedule, begun(schedule, NOW), NOW)
    assert len(made) == 6
    assert prepared_ids(schedule, after, NOW + 10_000) == [schedule.occurrence_id(ts) for ts in made[2:]]


def test_the_history_is_limited() -> None:
    progress = ScheduleProgress()
    for number in range(3 * HISTORY_MAX):
        progress = progress.noted((number, "created"))
    assert [at for at, _ in progress.history] == list(range(2 * HISTORY_MAX, 3 * HISTORY_MAX))


def test_templates_replace_their_placeholders_and_nothing_else() -> None:
    schedule = ScheduleSettings(
        "n", "@daily", zone="Europe/Berlin", template='{"at": "{local}", "n": {count}, "d": "{date}"}'
    )
    schedule.check()
    assert (
        schedule.body(at_ms=NOW, count=7, topic="t")
        == b'{"at": "2027-01-15T09:00:00+01:00", "n": 7, "d": "2027-01-15"}'
    )


def test_ids_name_the_schedule_and_the_instant() -> None:
    schedule = ScheduleSettings("n", "@daily")
    assert schedule.occurrence_id(NOW) == "n:20270115T080000Z"
    assert schedule.occurrence_id(NOW + 7) == "n:20270115T080000.007Z"
    longest = ScheduleSettings("n" * 40, "@daily").occurrence_id(NOW + 7)
    assert len(longest) <= 64


SCHEDULES = st.builds(
    ScheduleSettings,
    name=st.text("abc.-_", min_size=1, max_size=40),
    expression=st.sampled_from(["* * * * *", "@every 7s", "@daily"]),
    zone=st.sampled_from(["UTC", "Asia/Tokyo"]),
    template=st.text(max_size=50),
    headers=st.dictionaries(st.text(min_size=1, max_size=5), st.text(max_size=5), max_size=3),
    jitter_ms=st.integers(0, 1_000),
    end_ms=st.none() | st.integers(NOW, NOW * 2),
    skipped_hour=st.sampled_from(SkippedHour),
    repeated_hour=st.sampled_from(RepeatedHour),
    missed=st.sampled_from(Missed),
    overlap=st.sampled_from(Overlap),
)
PROGRESS = st.builds(
    ScheduleProgress,
    next_ms=st.none() | st.integers(0, NOW),
    paused=st.booleans(),
    count=st.integers(0, 2**60),
    last_id=st.text(max_size=20),
    prepared=st.lists(st.integers(0, NOW), max_size=3).map(tuple),
    history=st.lists(st.tuples(st.integers(0, NOW), st.sampled_from(["created", "run"])), max_size=3).map(tuple),
)


@given(schedule=SCHEDULES, progress=PROGRESS)
def test_a_record_is_parsed_as_it_was_written(schedule: ScheduleSettings, progress: ScheduleProgress) -> None:
    assert decode(encode(schedule, progress)) == (schedule, progress)


def test_a_record_of_an_older_release_is_read() -> None:
    body = b'{"schedule":{"name":"s","expression":"@daily"},"progress":{"history":[[5,"created"],[6,"run"]]}}'
    assert decode(body)[1].history == ((5, "created"), (6, "run"))


def test_withdrawn_occurrences_are_not_counted() -> None:
    """Neither the count nor the history includes occurrences that were withdrawn before they were due."""
    schedule = ScheduleSettings("s", "@every 10s", start_ms=NOW)
    made, after = advance(schedule, begun(schedule, NOW), topic="t", now=NOW, last_there=False)
    left = withdrawn(schedule, after, {made[-1].id})
    assert (left.count, left.prepared) == (len(made) - 1, ())
    assert [at for at, _ in left.history] == [one.ts for one in made[:-1]]


@given(body=st.binary(max_size=60) | st.sampled_from([b"{}", b"[]", b'{"schedule":{},"progress":{}}', b"1"]))
def test_r15_any_other_record_is_refused(body: bytes) -> None:
    """R15: a damaged record leads to one clear refusal."""
    with pytest.raises(DejaqError) as refused:
        decode(body)
    assert refused.value.code is Code.INVALID_SCHEDULE


@given(seconds=st.integers(1, 200), jumps=st.lists(st.integers(0, 100_000), min_size=1, max_size=30))
def test_however_time_passes_each_occurrence_is_created_once_and_in_order(seconds: int, jumps: list[int]) -> None:
    """G11: the created times are consecutive times of the schedule without repeats, however often it is checked."""
    schedule = ScheduleSettings("s", f"@every {seconds}s", start_ms=NOW, missed=Missed.ALL, missed_max=1_000)
    progress, now, made = begun(schedule, NOW), NOW, []
    for jump in jumps:
        now += jump
        fresh, progress = run(schedule, progress, now)
        made += fresh
        progress = decode(encode(schedule, progress))[1]
    assert made == [NOW + seconds * 1_000 * number for number in range(1, len(made) + 1)]
    assert progress.count == len(made)


def test_unknown_fields_are_named() -> None:
    with pytest.raises(DejaqError, match="no 'colour'"):
        schedule_of({"name": "n", "expression": "@daily", "colour": "red"})
