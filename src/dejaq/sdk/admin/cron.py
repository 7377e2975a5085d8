"""The schedules of a cron topic, as a client sees and changes them."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, TypedDict, Unpack

from dejaq import limits
from dejaq.errors import Code, error_of
from dejaq.protocol.schedules import schedule_to_proto
from dejaq.protocol.v1 import cron_pb2 as cron
from dejaq.sdk.producing.outgoing import Headers
from dejaq.sdk.session.seeds import Seeds
from dejaq.sdk.session.settings import ClientSettings
from dejaq.sdk.times import At, delay_us, to_datetime, to_ms


@dataclass(frozen=True, slots=True)
class ScheduleInfo:
    """A schedule, its progress, and the outcome of its last occurrences, oldest first."""

    name: str
    expression: str
    zone: str
    body: str
    headers: Mapping[str, str]
    priority: int
    group: str
    start: datetime | None
    end: datetime | None
    jitter: float
    skipped_hour: str
    repeated_hour: str
    missed: str
    missed_max: int
    overlap: str
    next: datetime | None
    paused: bool
    count: int
    last_id: str
    history: tuple[tuple[datetime, str], ...]

    @classmethod
    def from_proto(cls, proto: cron.ScheduleInfo) -> ScheduleInfo:
        """The schedule that the broker's answer describes."""
        said = proto.schedule
        return cls(
            name=said.name,
            expression=said.expression,
            zone=said.zone,
            body=said.template,
            headers=dict(said.headers),
            priority=said.priority,
            group=said.group,
            start=to_datetime(said.start_ms) if said.start_ms else None,
            end=to_datetime(said.end_ms) if said.HasField("end_ms") else None,
            jitter=said.jitter_ms / 1_000,
            skipped_hour=said.skipped_hour,
            repeated_hour=said.repeated_hour,
            missed=said.missed,
            missed_max=said.missed_max,
            overlap=said.overlap,
            next=to_datetime(proto.next_ms) if proto.HasField("next_ms") else None,
            paused=proto.paused,
            count=proto.count,
            last_id=proto.last_id,
            history=tuple(zip(map(to_datetime, proto.history_ms), proto.history_outcomes, strict=True)),
        )


@dataclass(frozen=True, slots=True)
class Schedule:
    """A schedule to add or to change; docs/cron.md describes each field.

    For a field that is None, a new schedule gets the default, and a replaced schedule keeps its value.
    """

    name: str
    expression: str
    body: str | bytes | None = None
    zone: str | None = None
    headers: Headers | None = None
    priority: int | None = None
    group: str | None = None
    start: At | None = None
    end: At | None = None
    jitter: float | timedelta | None = None
    skipped_hour: str | None = None
    repeated_hour: str | None = None
    missed: str | None = None
    missed_max: int | None = None
    overlap: str | None = None

    def to_proto(self) -> cron.Schedule:
        """The schedule in the form of the protocol; raises INVALID_SCHEDULE when it cannot be sent."""
        values: dict[str, Any] = {
            "name": self.name,
            "expression": self.expression,
            "template": None if self.body is None else _text(self.body),
            "zone": self.zone,
            "headers": dict(self.headers or {}),
            "priority": self.priority,
            "group": self.group,
            "start_ms": None if self.start is None else to_ms(self.start),
            "end_ms": None if self.end is None else to_ms(self.end),
            "jitter_ms": None if self.jitter is None else delay_us(self.jitter) // 1_000,
            "skipped_hour": self.skipped_hour,
            "repeated_hour": self.repeated_hour,
            "missed": self.missed,
            "missed_max": self.missed_max,
            "overlap": self.overlap,
        }
        try:
            return schedule_to_proto(values)
        except (ValueError, TypeError) as cause:
            raise error_of(Code.INVALID_SCHEDULE, f"schedule {str(self.name)[:80]!r}: {cause}") from None


class ScheduleFields(TypedDict, total=False):
    """The fields of `Schedule` that have defaults, except its body."""

    zone: str | None
    headers: Headers | None
    priority: int | None
    group: str | None
    start: At | None
    end: At | None
    jitter: float | timedelta | None
    skipped_hour: str | None
    repeated_hour: str | None
    missed: str | None
    missed_max: int | None
    overlap: str | None


class Cron:
    """The schedules of one cron topic. Create it with `client.cron`."""

    def __init__(self, seeds: Seeds, settings: ClientSettings, topic: str) -> None:
        self.topic = topic
        self._seeds = seeds
        self._settings = settings

    async def add(
        self,
        name: str,
        expression: str,
        body: str | bytes | None = None,
        *,
        replace: bool = False,
        **fields: Unpack[ScheduleFields],
    ) -> ScheduleInfo:
        """Add a schedule; the fields are those of `dejaq.Schedule`.

        A repeated call with the same fields changes nothing; a call with other fields raises ID_TAKEN. With `replace`
        the call changes the schedule of this name: the given fields change, and all other fields keep their values.
        """
        try:
            schedule = Schedule(name, expression, body, **fields)
        except TypeError as cause:
            raise error_of(Code.INVALID_SCHEDULE, str(cause).replace("Schedule.__init__() ", "")) from None
        return (await self.add_many([schedule], replace=replace))[0]

    async def add_many(self, schedules: Iterable[Schedule], *, replace: bool = False) -> list[ScheduleInfo]:
        """Add schedules in groups of a thousand, each group completely or not at all; `replace` works as in `add`."""
        rows = [schedule.to_proto() for schedule in schedules]
        added: list[ScheduleInfo] = []
        for start in range(0, len(rows), limits.SCHEDULES_PER_CALL_MAX):
            part = rows[start : start + limits.SCHEDULES_PER_CALL_MAX]
            request = cron.PutSchedulesRequest(topic=self.topic, schedules=part, replace=replace)
            added += await self._call("Cron.Put", request)
        return added

    async def get(self, name: str) -> ScheduleInfo | None:
        """One schedule; None when no schedule has this name."""
        request = cron.ListSchedulesRequest(topic=self.topic, names=[name])
        found = await self._call("Cron.List", request)
        return found[0] if found else None

    async def all(self) -> AsyncIterator[ScheduleInfo]:
        """Every schedule, ordered by the next time at which it runs."""
        request = cron.ListSchedulesRequest(topic=self.topic)
        while True:
            answer = await self._seeds.call("Cron.List", request, cron.SchedulesResponse, patience=self._settings)
            for schedule in answer.schedules:
                yield ScheduleInfo.from_proto(schedule)
            if not answer.cursor:
                return
            request.cursor = answer.cursor

    async def pause(self, name: str) -> ScheduleInfo:
        """Create no more occurrences, and cancel those that were prepared and are not yet due."""
        return (await self._change(name, cron.PAUSE))[0]

    async def resume(self, name: str) -> ScheduleInfo:
        """Continue with the next occurrence in the future; occurrences during the pause are not created later."""
        return (await self._change(name, cron.RESUME))[0]

    async def run(self, name: str) -> str:
        """Create one occurrence now, in addition to the regular ones; returns its id."""
        key = secrets.token_hex(6)
        await self._change(name, cron.RUN, key=key)
        return f"{name}:run-{key}"

    async def remove(self, name: str) -> bool:
        """Delete a schedule, and cancel its occurrences that are prepared and not yet due.

        Returns False when no schedule has this name.
        """
        return bool(await self._change(name, cron.REMOVE))

    async def next(self, name: str, count: int = 5) -> list[datetime]:
        """The next times of a schedule."""
        return await self._times(cron.NextTimesRequest(topic=self.topic, name=name, count=count))

    async def preview(self, expression: str, count: int = 5, **fields: Unpack[ScheduleFields]) -> list[datetime]:
        """The next times of a schedule that has not been added."""
        proposed = Schedule("preview", expression, **fields).to_proto()
        return await self._times(cron.NextTimesRequest(topic=self.topic, proposed=proposed, count=count))

    async def history(self, name: str) -> tuple[tuple[datetime, str], ...]:
        """The last occurrences, oldest first: their times, and whether each was created, overlapped, missed or run by
        hand.
        """
        found = await self.get(name)
        if found is None:
            raise error_of(Code.NOT_FOUND, f"topic {self.topic!r} has no schedule {name!r}")
        return found.history

    async def _change(self, name: str, action: cron.ScheduleAction, key: str = "") -> list[ScheduleInfo]:
        request = cron.ChangeScheduleRequest(topic=self.topic, name=name, action=action, key=key)
        return await self._call("Cron.Change", request)

    async def _times(self, request: cron.NextTimesRequest) -> list[datetime]:
        answer = await self._seeds.call("Cron.Next", request, cron.NextTimesResponse, patience=self._settings)
        return [to_datetime(at) for at in answer.times_ms]

    async def _call(
        self, method: str, request: cron.PutSchedulesRequest | cron.ListSchedulesRequest | cron.ChangeScheduleRequest
    ) -> list[ScheduleInfo]:
        answer = await self._seeds.call(method, request, cron.SchedulesResponse, patience=self._settings)
        return [ScheduleInfo.from_proto(schedule) for schedule in answer.schedules]


def _text(body: str | bytes) -> str:
    if isinstance(body, str):
        return body
    try:
        return bytes(body).decode()
    except (UnicodeDecodeError, TypeError):
        raise error_of(Code.INVALID_SCHEDULE, "the body of a schedule is text, in which places are filled in") from None
