"""The times of schedules: compared with another library, with Python's own time zones, and with the declared rules."""

from __future__ import annotations

import random
import zoneinfo
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from zoneinfo import ZoneInfo

import pytest
from croniter import croniter
from hypothesis import given
from hypothesis import strategies as st

from dejaq import limits
from dejaq.domain.schedules.recurrence import Calendar, RepeatedHour, SkippedHour, recurrence_of
from dejaq.domain.schedules.zone import Shift, zone_names, zone_of
from dejaq.errors import Code, DejaqError
from tests.chaos.sizes import new_seed, size
from tests.fuzz.executions import executions

HOUR = 3_600_000
DAY = 24 * HOUR
START = int(datetime(2026, 1, 1, tzinfo=UTC).timestamp() * 1_000)
TEN_YEARS = 3_653 * DAY
# One shift with one expression is one case; the full size tests every shift of every zone with every expression.
CASES = size("ZONES", ci=150, full=0)
SERIES = size("SERIES", ci=40, full=2_000)
EXPRESSIONS = (
    "*/20 * * * *",
    "30 2 * * *",
    "0 0-4 * * *",
    "15 1,2,3 * * 0,6",
    "5 */2 1-31 3,4,9-11 *",
    "0 30 1-3 * * *",
)


@pytest.fixture(autouse=True, scope="module")
def pinned_zones() -> Iterator[None]:
    """Python's own zones prefer the machine's time zone files, which may be of another year."""
    path = zoneinfo.TZPATH
    zoneinfo.reset_tzpath(to=[])
    ZoneInfo.clear_cache()
    yield
    zoneinfo.reset_tzpath(to=path)
    ZoneInfo.clear_cache()


def at(text: str) -> int:
    return int(datetime.fromisoformat(text).timestamp() * 1_000)


def times(recurrence: Calendar, start: int, end: int) -> list[int]:
    found: list[int] = []
    following = recurrence.next_after(start - 1)
    while following is not None and following < end:
        found.append(following)
        following = recurrence.next_after(following)
    return found


def local_matches(expression: str, start: datetime, end: datetime) -> set[datetime]:
    """The times that the other library finds on a calendar without shifts."""
    fields = expression.split()
    # The other library expects the seconds last, if an expression has them.
    turned = " ".join([*fields[1:], fields[0]]) if len(fields) == 6 else expression
    search = croniter(turned, start - timedelta(seconds=1))
    found: set[datetime] = set()
    while (match := search.get_next(datetime)) < end:
        found.add(match)
    return found


def judged(expression: str, zone: str, shift: Shift, skipped: SkippedHour, repeated: RepeatedHour) -> list[int]:
    """The times around a shift, minute by minute, according to the other library and Python's own zones."""
    if any(field.startswith("*") for field in expression.split()[-5:-3]):
        # The rules for shifts apply to fixed hours only.
        skipped, repeated = SkippedHour.SKIP, RepeatedHour.TWICE
    rules = ZoneInfo(zone)
    start, end = shift.at_ms - 5 * HOUR, shift.at_ms + 5 * HOUR
    naive = [datetime.fromtimestamp(ms / 1_000, rules).replace(tzinfo=None) for ms in (start, end)]
    matches = local_matches(expression, min(naive) - timedelta(hours=3), max(naive) + timedelta(hours=3))
    found: set[int] = set()
    seen: dict[datetime, int] = {}
    for ms in range(start, end, 60_000):
        local = datetime.fromtimestamp(ms / 1_000, rules)
        plain = local.replace(tzinfo=None, fold=0)
        seen[plain] = seen.get(plain, 0) + 1
        if plain in matches and (local.fold == 0 or repeated is RepeatedHour.TWICE):
            found.add(ms)
    if repeated is RepeatedHour.SKIP:
        twice = {plain for plain, count in seen.items() if count == 2}
        found = {
            ms for ms in found if datetime.fromtimestamp(ms / 1_000, rules).replace(tzinfo=None, fold=0) not in twice
        }
    before = datetime.fromtimestamp(shift.at_ms / 1_000 - 1, rules).replace(tzinfo=None)
    after = datetime.fromtimestamp(shift.at_ms / 1_000, rules).replace(tzinfo=None)
    if skipped is SkippedHour.ONCE and any(before < match < after for match in matches):
        found.add(shift.at_ms)
    return sorted(found)


def shifts_of(zone: str) -> list[Shift]:
    found: list[Shift] = []
    after = START
    while (shift := zone_of(zone).next_shift(after, START + TEN_YEARS)) is not None:
        found.append(shift)
        after = shift.at_ms
    return found


@pytest.mark.timeout(3_600 if not CASES else 400)
def test_every_shift_of_ten_years_follows_the_rules(
    record_property: Callable[[str, object], None],
) -> None:
    chance = random.Random(new_seed())
    zones = sorted(zone_names())
    if CASES:
        zones = chance.sample(zones, min(len(zones), CASES // 2))
    cases = [(zone, shift) for zone in zones for shift in shifts_of(zone)]
    assert len(cases) > 50
    record_property("figure", f"{len(cases)} shifts of {len(zones)} zones")
    for zone, shift in chance.sample(cases, CASES) if CASES and len(cases) > CASES else cases:
        for expression in EXPRESSIONS if not CASES else [chance.choice(EXPRESSIONS)]:
            skipped, repeated = chance.choice(list(SkippedHour)), chance.choice(list(RepeatedHour))
            calendar = Calendar(expression, zone_of(zone), skipped, repeated)
            expected = judged(expression, zone, shift, skipped, repeated)
            found = times(calendar, shift.at_ms - 5 * HOUR, shift.at_ms + 5 * HOUR)
            # Another shift nearby would have a gap of its own, which `judged` does not consider.
            assert found == expected, f"{expression} {zone} at {shift}, {skipped}, {repeated}"


def field(chance: random.Random, low: int, high: int) -> str:
    kind = chance.randrange(5)
    first, last = sorted((chance.randint(low, high), chance.randint(low, high)))
    # The other library treats a range of one day, such as 6-6, as a whole week.
    if kind == 0 or first == last:
        return str(first)
    if kind == 1:
        return f"{first}-{last}"
    if kind == 2:
        return f"*/{chance.randint(1, high - low)}"
    if kind == 3:
        return ",".join(str(chance.randint(low, high)) for _ in range(3))
    return "*"


def test_ten_years_of_random_expressions_equal_another_library() -> None:
    chance = random.Random(new_seed())
    for _ in range(SERIES):
        # The two libraries read a step in one day field next to the other day field differently, so only one field is
        # set.
        days = chance.choice([(field(chance, 1, 28), "*"), ("*", field(chance, 0, 6))])
        expression = " ".join([field(chance, 0, 59), field(chance, 0, 23), days[0], field(chance, 1, 12), days[1]])
        after = START + chance.randrange(TEN_YEARS)
        calendar = recurrence_of(expression, zone="UTC", start_ms=0)
        search = croniter(expression, datetime.fromtimestamp(after / 1_000, UTC))
        for _ in range(50):
            following = calendar.next_after(after)
            assert following is not None
            assert following == round(search.get_next(float) * 1_000), f"{expression} after {after}"
            after = following


def test_a_skipped_hour() -> None:
    start, end = at("2026-03-29T00:00:00+01:00"), at("2026-03-30T12:00:00+02:00")
    berlin = zone_of("Europe/Berlin")
    late = at("2026-03-30T02:30:00+02:00")
    assert times(Calendar("30 2 * * *", berlin, SkippedHour.SKIP), start, end) == [late]
    # At the first instant that exists.
    assert times(Calendar("30 2 * * *", berlin), start, end) == [at("2026-03-29T03:00:00+02:00"), late]
    # Once for all skipped times, and for those that are due at that instant anyway.
    often = times(
        Calendar("0,20,40 1-3 * * *", berlin), at("2026-03-29T01:40:00+01:00"), at("2026-03-29T03:21:00+02:00")
    )
    assert often == [at("2026-03-29T01:40:00+01:00"), at("2026-03-29T03:00:00+02:00"), at("2026-03-29T03:20:00+02:00")]


def test_a_repeated_hour() -> None:
    start, end = at("2026-10-25T00:00:00+02:00"), at("2026-10-25T12:00:00+01:00")
    berlin = zone_of("Europe/Berlin")
    first, second = at("2026-10-25T02:30:00+02:00"), at("2026-10-25T02:30:00+01:00")
    for rule, expected in (("once", [first]), ("twice", [first, second]), ("skip", [])):
        assert times(Calendar("30 2 * * *", berlin, repeated=RepeatedHour(rule)), start, end) == expected
    twice = times(Calendar("0,30 2 * * *", berlin, repeated=RepeatedHour.TWICE), start, end)
    assert twice == [first - HOUR // 2, first, second - HOUR // 2, second]


@pytest.mark.parametrize("rule", list(RepeatedHour))
def test_a_schedule_without_a_fixed_hour_runs_through_a_repeated_hour(rule: RepeatedHour) -> None:
    """U5: by default, `*/30` and `@hourly` did not run for an hour each October."""
    start, end = at("2026-10-25T02:00:00+02:00"), at("2026-10-25T03:00:00+01:00")
    for expression, minutes in (("*/30 * * * *", 30), ("@hourly", 60), ("30 * * * *", 60), ("0 */15 2 * * *", 15)):
        calendar = recurrence_of(expression, zone="Europe/Berlin", start_ms=0, repeated=rule)
        assert isinstance(calendar, Calendar)
        found = times(calendar, start, end)
        assert len(found) == 120 // minutes
        assert {later - earlier for earlier, later in pairwise(found)} == {minutes * 60_000}


@pytest.mark.parametrize("rule", list(SkippedHour))
def test_a_skipped_hour_adds_no_run_to_a_schedule_without_a_fixed_hour(rule: SkippedHour) -> None:
    """U5: `45 * * * *` ran at 3:00 as well when an hour was skipped."""
    start, end = at("2026-03-29T00:00:00+01:00"), at("2026-03-29T06:00:00+02:00")
    calendar = recurrence_of("45 * * * *", zone="Europe/Berlin", start_ms=0, skipped=rule)
    assert isinstance(calendar, Calendar)
    assert times(calendar, start, end) == [start + 45 * 60_000 + n * HOUR for n in range(5)]
    # A minute field that begins with a star is not fixed either, as in Debian's cron.
    quarters = recurrence_of("*/15 2 * * *", zone="Europe/Berlin", start_ms=0, skipped=rule)
    assert isinstance(quarters, Calendar)
    assert times(quarters, start, end) == []


def test_odd_shifts_are_followed() -> None:
    """A shift of half an hour on Lord Howe Island, and a whole day that Samoa skipped."""
    assert {abs(shift.after_ms - shift.before_ms) for shift in shifts_of("Australia/Lord_Howe")} == {HOUR // 2}
    samoa = Calendar("0 12 * * *", zone_of("Pacific/Apia"), SkippedHour.SKIP)
    noons = times(samoa, at("2011-12-29T00:00:00-10:00"), at("2012-01-01T00:00:00+14:00"))
    assert [zone_of("Pacific/Apia").local(ms).day for ms in noons] == [29, 31]


def test_intervals_and_single_times() -> None:
    every = recurrence_of("@every 1h30m", zone="UTC", start_ms=1_000)
    assert every.next_after(0) == every.next_after(1_000) == 1_000 + 5_400_000
    assert every.next_after(1_000 + 5_400_000) == 1_000 + 2 * 5_400_000
    for text in ("2026-12-24T18:00:00", "2026-12-24T17:00:00Z", str(at("2026-12-24T17:00:00+00:00"))):
        once = recurrence_of(f"@at {text}", zone="Europe/Berlin", start_ms=0)
        assert once.next_after(0) == at("2026-12-24T17:00:00+00:00")
        assert once.next_after(at("2026-12-24T17:00:00+00:00")) is None
    gap = recurrence_of("@at 2026-03-29T02:30:00", zone="Europe/Berlin", start_ms=0)
    assert gap.next_after(0) == at("2026-03-29T03:00:00+02:00")
    fold = recurrence_of("@at 2026-10-25T02:30:00", zone="Europe/Berlin", start_ms=0)
    assert fold.next_after(0) == at("2026-10-25T02:30:00+02:00")


def test_a_single_time_in_epoch_seconds_is_refused() -> None:
    """U14: `@at 1830000000` was a time in January 1970."""
    with pytest.raises(DejaqError, match="2027-12-28"):
        recurrence_of("@at 1830000000", zone="UTC", start_ms=0)


def test_no_time_follows_the_last_valid_time() -> None:
    daily = recurrence_of("@daily", zone="Asia/Tokyo", start_ms=0)
    assert daily.next_after(limits.TS_MS_MAX) is None
    assert daily.next_after(limits.TS_MS_MAX - 5 * DAY) is not None
    assert recurrence_of("@every 10d", zone="UTC", start_ms=0).next_after(limits.TS_MS_MAX - DAY) is None


@executions(400)
@given(
    text=st.text(max_size=40)
    | st.lists(st.text("0123456789*/,-#LWMONJAN@every:. TZ", max_size=8), min_size=1, max_size=7).map(" ".join)
    | st.sampled_from(["@every ", "@at ", "@", "* * * * "]).flatmap(
        lambda head: st.text(max_size=20).map(head.__add__)
    ),
    zone=st.sampled_from(["UTC", "Europe/Berlin", "Pacific/Apia", "", "Europe", "\0", "a/../b"]),
    after=st.integers(0, limits.TS_MS_MAX),
)
def test_r15_any_text_is_a_schedule_or_refused(text: str, zone: str, after: int) -> None:
    """R15: an expression leads to ascending times or to one clear refusal, and to nothing else."""
    try:
        recurrence = recurrence_of(text, zone=zone, start_ms=START)
    except DejaqError as refused:
        assert refused.code is Code.INVALID_SCHEDULE
        return
    following = recurrence.next_after(after)
    assert following is None or after < following <= limits.TS_MS_MAX
