"""A schedule of a cron topic: its settings, its progress, and the messages that it needs next. Pure.

Each occurrence becomes a message whose id consists of the schedule's name and the occurrence's time, so it is created
only once. Occurrences are created ahead of their time and wait on the timeline.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, fields, replace
from datetime import UTC
from enum import StrEnum
from functools import lru_cache
from typing import Any

from dejaq import limits
from dejaq.domain.message import check_headers
from dejaq.domain.schedules.recurrence import Recurrence, RepeatedHour, SkippedHour, recurrence_of
from dejaq.domain.schedules.zone import zone_of
from dejaq.errors import Code, DejaqError, error_of

# How far ahead occurrences are prepared. The shorter lead is for schedules where the last occurrence decides about the
# next, and where an occurrence that was not delivered in time must not be delivered later. The half second keeps this
# work away from full seconds, when most deliveries happen.
LEAD_MS = 15_500
LEAD_OVERLAP_MS = 500
# An occurrence that would be created this late counts as missed: no broker was running when it was due.
MISSED_AFTER_MS = 10_000
PREPARED_MAX = 40
HISTORY_MAX = 20
# The next time of a schedule that is paused or has ended.
NEVER_MS = limits.TS_MS_MAX

_NAME = re.compile(r"[0-9A-Za-z._\-]{1,40}")
_PLACE = re.compile(r"\{([a-z_]+)\}")
_WINDOW_MS = 60_000


class Missed(StrEnum):
    """The rule for occurrences that were missed while no broker was running."""

    SKIP = "skip"
    LAST = "last"
    ALL = "all"


class Overlap(StrEnum):
    """Whether an occurrence is created while the previous one still exists."""

    ALLOW = "allow"
    SKIP = "skip"


class OccurrenceOutcome(StrEnum):
    """The outcome of an occurrence."""

    CREATED = "created"
    # Skipped because the previous one still existed.
    OVERLAPPED = "overlapped"
    # Skipped because no broker was running in time.
    MISSED = "missed"
    # Requested by a user.
    RUN = "run"


@dataclass(frozen=True, slots=True)
class ScheduleSettings:
    """The settings of a schedule; every field has a safe default."""

    name: str
    expression: str
    zone: str = "UTC"
    template: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    priority: int = 0
    group: str = "cron"
    start_ms: int = 0
    end_ms: int | None = None
    jitter_ms: int = 0
    skipped_hour: SkippedHour = SkippedHour.ONCE
    repeated_hour: RepeatedHour = RepeatedHour.ONCE
    missed: Missed = Missed.LAST
    missed_max: int = 100
    overlap: Overlap = Overlap.ALLOW

    def recurrence(self) -> Recurrence:
        """When it runs."""
        return _recurrence(self.expression, self.zone, self.start_ms, self.skipped_hour, self.repeated_hour)

    def next_after(self, after_ms: int) -> int | None:
        """The first occurrence after an instant, up to the end."""
        found = self.recurrence().next_after(max(after_ms, self.start_ms - 1))
        return found if found is not None and (self.end_ms is None or found <= self.end_ms) else None

    def times(self, after_ms: int, count: int) -> list[int]:
        """The next occurrences."""
        found: list[int] = []
        at: int | None = after_ms
        while len(found) < count and at is not None and (at := self.next_after(at)) is not None:
            found.append(at)
        return found

    def check(self) -> None:
        """Raise INVALID_SCHEDULE, INVALID_PRIORITY or INVALID_HEADERS, saying what is wrong."""
        if _NAME.fullmatch(self.name) is None:
            raise _invalid(f"{self.name[:80]!r} is not the name of a schedule: 1 to 40 of 0-9 A-Z a-z . _ -")
        if len(self.template.encode()) > limits.SCHEDULE_TEMPLATE_BYTES_MAX:
            raise _invalid(f"the template is larger than {limits.SCHEDULE_TEMPLATE_BYTES_MAX} bytes")
        unknown = [name for name in _PLACE.findall(self.template) if name not in _FIELDS]
        if unknown:
            raise _invalid(f"the template names {{{unknown[0]}}}; known are {', '.join(map('{{{}}}'.format, _FIELDS))}")
        if not 0 <= self.jitter_ms <= limits.SCHEDULE_JITTER_MS_MAX:
            raise _invalid(f"a jitter is 0 to {limits.SCHEDULE_JITTER_MS_MAX} ms")
        if not 1 <= self.missed_max <= limits.SCHEDULE_MISSED_MAX:
            raise _invalid(f"missed_max is 1 to {limits.SCHEDULE_MISSED_MAX}")
        if not 1 <= len(self.group) <= limits.GROUP_CHARS_MAX:
            raise _invalid(f"a producer group is 1 to {limits.GROUP_CHARS_MAX} characters")
        if not limits.PRIORITY_MIN <= self.priority <= limits.PRIORITY_MAX:
            raise error_of(Code.INVALID_PRIORITY)
        if check_headers(self.headers) is not Code.OK:
            raise error_of(Code.INVALID_HEADERS)
        self.recurrence()

    def occurrence_id(self, at_ms: int) -> str:
        """The one id of an occurrence."""
        return f"{self.name}:{_instant(at_ms)}"

    def due_ms(self, at_ms: int, message_id: str) -> int:
        """When the message of an occurrence is due: its time plus the jitter, which depends on the id."""
        if not self.jitter_ms:
            return at_ms
        return min(at_ms + zlib.crc32(message_id.encode()) % (self.jitter_ms + 1), limits.TS_MS_MAX)

    def body(self, *, at_ms: int, count: int, topic: str) -> bytes:
        """The template with its placeholders replaced."""
        if "{" not in self.template:
            return self.template.encode()
        values = {"name": self.name, "topic": topic, "count": str(count), "ms": str(at_ms)}
        return _PLACE.sub(lambda match: values.get(match[1]) or self._time(match[1], at_ms), self.template).encode()

    def _time(self, place: str, at_ms: int) -> str:
        """The occurrence's time as a placeholder's value."""
        local = zone_of(self.zone).local(at_ms)
        if place == "time":
            return local.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        return local.isoformat(timespec="seconds") if place == "local" else local.date().isoformat()


_FIELDS = ("name", "topic", "count", "time", "local", "date", "ms")


@dataclass(frozen=True, slots=True)
class ScheduleProgress:
    """The progress of a schedule: its next occurrence, those already created, and the outcomes of the last ones."""

    next_ms: int | None = None
    paused: bool = False
    count: int = 0
    last_id: str = ""
    prepared: tuple[int, ...] = ()
    history: tuple[tuple[int, str], ...] = ()

    def noted(self, *entries: tuple[int, str]) -> ScheduleProgress:
        """A copy with a longer history, without the oldest entries."""
        return replace(self, history=(*self.history, *entries)[-HISTORY_MAX:])


@dataclass(frozen=True, slots=True)
class Occurrence:
    """A message that a schedule needs."""

    id: str
    ts: int
    body: bytes


def begun(schedule: ScheduleSettings, now: int) -> ScheduleProgress:
    """The progress of a new schedule; raises INVALID_SCHEDULE when it would never run."""
    first = schedule.next_after(now)
    if first is None:
        raise _invalid(f"{schedule.expression!r} in {schedule.zone} has no time to come before its end")
    return ScheduleProgress(next_ms=first)


def wake_ms(schedule: ScheduleSettings, progress: ScheduleProgress) -> int:
    """When a schedule must be examined again."""
    if progress.paused or progress.next_ms is None:
        return NEVER_MS
    return max(0, progress.next_ms - lead_ms(schedule))


def lead_ms(schedule: ScheduleSettings) -> int:
    """How long before its time an occurrence is created."""
    return LEAD_OVERLAP_MS if schedule.overlap is Overlap.SKIP or schedule.missed is Missed.SKIP else LEAD_MS


def advance(
    schedule: ScheduleSettings, progress: ScheduleProgress, *, topic: str, now: int, last_there: bool
) -> tuple[list[Occurrence], ScheduleProgress]:
    """The occurrences to create at `now`, and the resulting progress.

    `last_there` says whether the last occurrence still exists; it matters only if overlap is not allowed.
    """
    following = progress.next_ms
    if progress.paused or following is None or following > now + lead_ms(schedule):
        return [], progress
    due: list[int] = []
    entries: list[tuple[int, str]] = []
    if following < now - MISSED_AFTER_MS:
        due = _missed(schedule, following, now - MISSED_AFTER_MS)
        if not due or due[0] != following:
            entries.append((following, OccurrenceOutcome.MISSED))
        following = schedule.next_after(now - MISSED_AFTER_MS - 1)
    allowed = schedule.overlap is Overlap.ALLOW
    # Twice the lead if possible, so that a schedule that runs often is examined rarely.
    lead = lead_ms(schedule)
    horizon = now + (2 * LEAD_MS if lead == LEAD_MS else lead)
    while following is not None and following <= horizon and len(due) < max(PREPARED_MAX, schedule.missed_max):
        due.append(following)
        following = schedule.next_after(following)
    kept = due if allowed else [] if last_there else due[:1]
    made = [_occurrence(schedule, at, progress.count + place + 1, topic) for place, at in enumerate(kept)]
    entries += [(at, OccurrenceOutcome.CREATED if at in kept else OccurrenceOutcome.OVERLAPPED) for at in due]
    after = ScheduleProgress(
        next_ms=following,
        count=progress.count + len(made),
        last_id=made[-1].id if made else progress.last_id,
        prepared=tuple(
            [at for at in (*progress.prepared, *kept) if at + schedule.jitter_ms > now][-2 * PREPARED_MAX :]
        ),
        history=(*progress.history, *entries)[-HISTORY_MAX:],
    )
    return made, after


def prepared_ids(schedule: ScheduleSettings, progress: ScheduleProgress, now: int) -> list[str]:
    """The ids of the occurrences that are created and not yet due."""
    ids = {at: schedule.occurrence_id(at) for at in progress.prepared}
    return [message_id for at, message_id in ids.items() if schedule.due_ms(at, message_id) > now]


# Many schedules run at the same time.
@lru_cache(maxsize=1_000)
def _instant(at_ms: int) -> str:
    """A time in UTC in the format of ids."""
    text = zone_of("UTC").local(at_ms).strftime("%Y%m%dT%H%M%S")
    return text + (f".{at_ms % 1_000:03d}" if at_ms % 1_000 else "") + "Z"


def withdrawn(schedule: ScheduleSettings, progress: ScheduleProgress, ids: Collection[str]) -> ScheduleProgress:
    """The progress without some of the created occurrences: they are removed from the count and the history."""
    gone = {at for at in progress.prepared if schedule.occurrence_id(at) in ids}
    return replace(
        progress,
        count=progress.count - len(gone),
        prepared=(),
        history=tuple(
            entry for entry in progress.history if entry[0] not in gone or entry[1] != OccurrenceOutcome.CREATED
        ),
    )


def _occurrence(schedule: ScheduleSettings, at_ms: int, count: int, topic: str) -> Occurrence:
    message_id = schedule.occurrence_id(at_ms)
    return Occurrence(
        id=message_id,
        ts=schedule.due_ms(at_ms, message_id),
        body=schedule.body(at_ms=at_ms, count=count, topic=topic),
    )


def _missed(schedule: ScheduleSettings, first: int, end: int) -> list[int]:
    """The missed occurrences of first <= time < end to create: the last ones, as many as the rule allows."""
    most = {Missed.SKIP: 0, Missed.LAST: 1, Missed.ALL: schedule.missed_max}[schedule.missed]
    if not most:
        return []
    window = _WINDOW_MS
    while True:
        # Backwards from the end in growing windows, so that years of occurrences are not counted one by one.
        start = max(first, end - window)
        found: list[int] = []
        at = schedule.next_after(start - 1)
        while at is not None and at < end:
            found.append(at)
            at = schedule.next_after(at)
        if len(found) >= most or start == first:
            return found[-most:]
        window *= 4


@lru_cache(maxsize=10_000)
def _recurrence(expression: str, zone: str, start_ms: int, skipped: SkippedHour, repeated: RepeatedHour) -> Recurrence:
    return recurrence_of(expression, zone=zone, start_ms=start_ms, skipped=skipped, repeated=repeated)


# Records

_ENUMS = {"skipped_hour": SkippedHour, "repeated_hour": RepeatedHour, "missed": Missed, "overlap": Overlap}
_DEFAULTS = [
    (one.name, getattr(ScheduleSettings(name="", expression=""), one.name)) for one in fields(ScheduleSettings)
]
_LETTERS: dict[str, str] = {
    OccurrenceOutcome.CREATED: "c",
    OccurrenceOutcome.OVERLAPPED: "o",
    OccurrenceOutcome.MISSED: "m",
    OccurrenceOutcome.RUN: "r",
}
_OUTCOMES = {letter: str(outcome) for outcome, letter in _LETTERS.items()}
_STEPS = [one.name for one in fields(ScheduleProgress)]


def encode(schedule: ScheduleSettings, progress: ScheduleProgress) -> bytes:
    """A schedule and its progress as the body of its message, without values that equal their defaults."""
    said = {key: value for key, default in _DEFAULTS if (value := getattr(schedule, key)) != default}
    done = {key: value for key in _STEPS if (value := getattr(progress, key)) or (key == "next_ms" and value == 0)}
    if progress.history:
        # Twenty pairs would be the largest part of the record.
        letters = "".join([_LETTERS[outcome] for _, outcome in progress.history])
        done["history"] = [letters, *[at for at, _ in progress.history]]
    return json.dumps({"schedule": said, "progress": done}, separators=(",", ":")).encode()


def decode(body: bytes) -> tuple[ScheduleSettings, ScheduleProgress]:
    """The schedule and progress that `encode` wrote; raises INVALID_SCHEDULE for anything else."""
    try:
        record: dict[str, dict[str, Any]] = json.loads(body)
        said, done = record["schedule"], record["progress"]
        for key, kind in _ENUMS.items():
            if key in said:
                said[key] = kind(said[key])
        done["prepared"] = tuple(done.get("prepared", ()))
        done["history"] = _history(done.get("history") or [""])
        return ScheduleSettings(**said), ScheduleProgress(**done)
    except (ValueError, KeyError, TypeError, AttributeError) as cause:
        raise _invalid("the record of a schedule cannot be read") from cause


def _history(written: list[Any]) -> tuple[tuple[int, str], ...]:
    if not isinstance(written[0], str):
        # Pairs, as an older release wrote them.
        return tuple((int(at), str(outcome)) for at, outcome in written)
    letters, *times = written
    return tuple([(at, _OUTCOMES[letter]) for letter, at in zip(letters, times, strict=True)])


def schedule_of(values: Mapping[str, Any]) -> ScheduleSettings:
    """A schedule from plain values, such as a client sends; raises INVALID_SCHEDULE for invalid values."""
    known = {one.name for one in fields(ScheduleSettings)}
    chosen = dict(values)
    for key, value in values.items():
        if key not in known:
            raise _invalid(f"a schedule has no {key!r}")
        if key in _ENUMS:
            choices: Any = _ENUMS[key]
            if value not in list(choices):
                raise _invalid(f"{key} is one of {', '.join(choices)}, not {value!r}")
            chosen[key] = choices(value)
    schedule = ScheduleSettings(**chosen)
    schedule.check()
    return schedule


def _invalid(why: str) -> DejaqError:
    return error_of(Code.INVALID_SCHEDULE, why)
