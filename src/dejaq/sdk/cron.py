"""The schedules of a cron topic, as a client sees and changes them."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from dejaq import limits
from dejaq.errors import Code, error_of
from dejaq.protocol.schedules import schedule_to_proto
from dejaq.protocol.v1 import cron_pb2 as cron
from dejaq.sdk.outgoing import Headers
from dejaq.sdk.seeds import Seeds
from dejaq.sdk.settings import ClientSettings
from dejaq.sdk.times import At, delay_us, to_datetime, to_ms


@dataclass(frozen=True, slots=True)
class ScheduleInfo:
    """A schedule, how far it has come, and what became of its last occurrences, oldest first."""

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
        """What the broker answered."""
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
    """What a schedule shall say; see docs/cron.md for each field."""

    name: str
    expression: str
    body: str | bytes = ""
    zone: str = "UTC"
    headers: Headers | None = None
    priority: int = 0
    group: str = "cron"
    start: At | None = None
    end: At | None = None
    jitter: float | timedelta = 0
    skipped_hour: str = "once"
    repeated_hour: str = "once"
    missed: str = "last"
    missed_max: int = 100
    overlap: str = "allow"

    def to_proto(self) -> cron.Schedule:
        """As the broker takes it; raises INVALID_SCHEDULE for what cannot be sent."""
        values: dict[str, Any] = {
            "name": self.name,
            "expression": self.expression,
            "template": _text(self.body),
            "zone": self.zone,
            "headers": dict(self.headers or {}),
            "priority": self.priority,
            "group": self.group,
            "start_ms": None if self.start is None else to_ms(self.start),
            "end_ms": None if self.end is None else to_ms(self.end),
            "jitter_ms": delay_us(self.jitter) // 1_000,
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


class Cron:
    """The schedules of one cron topic. Made by `client.cron`."""

    def __init__(self, seeds: Seeds, settings: ClientSettings, topic: str) -> None:
        self.topic = topic
        self._seeds = seeds
        self._settings = settings

    async def add(self, name: str, expression: str, body: str | bytes = "", **fields: Any) -> ScheduleInfo:
        """Add a schedule; the fields are those of `dejaq.Schedule`, and `replace=True` changes one that is there.

        A repeat that says the same changes nothing; one that says something else is ID_TAKEN.
        """
        replacing = bool(fields.pop("replace", False))
        try:
            schedule = Schedule(name, expression, body, **fields)
        except TypeError as cause:
            raise error_of(Code.INVALID_SCHEDULE, str(cause).replace("Schedule.__init__() ", "")) from None
        return (await self.add_many([schedule], replace=replacing))[0]

    async def add_many(self, schedules: Iterable[Schedule], *, replace: bool = False) -> list[ScheduleInfo]:
        """Add schedules, each thousand of them all or none."""
        rows = [schedule.to_proto() for schedule in schedules]
        added: list[ScheduleInfo] = []
        for start in range(0, len(rows), limits.SCHEDULES_PER_CALL_MAX):
            part = rows[start : start + limits.SCHEDULES_PER_CALL_MAX]
            request = cron.PutSchedulesRequest(topic=self.topic, schedules=part, replace=replace)
            added += await self._call("Cron.Put", request)
        return added

    async def get(self, name: str) -> ScheduleInfo | None:
        """One schedule; None when there is none of this name."""
        request = cron.ListSchedulesRequest(topic=self.topic, names=[name])
        found = await self._call("Cron.List", request)
        return found[0] if found else None

    async def all(self) -> AsyncIterator[ScheduleInfo]:
        """Every schedule, those that run next first."""
        request = cron.ListSchedulesRequest(topic=self.topic)
        while True:
            answer = await self._seeds.call("Cron.List", request, cron.SchedulesResponse, patience=self._settings)
            for schedule in answer.schedules:
                yield ScheduleInfo.from_proto(schedule)
            if not answer.cursor:
                return
            request.cursor = answer.cursor

    async def pause(self, name: str) -> ScheduleInfo:
        """Make no more occurrences; those prepared and not yet due are cancelled."""
        return (await self._change(name, cron.PAUSE))[0]

    async def resume(self, name: str) -> ScheduleInfo:
        """Go on with the next time to come; what fell into the pause is not made up for."""
        return (await self._change(name, cron.RESUME))[0]

    async def run(self, name: str) -> str:
        """Make one occurrence now, beside the others; gives its id."""
        key = secrets.token_hex(6)
        await self._change(name, cron.RUN, key=key)
        return f"{name}:run-{key}"

    async def remove(self, name: str) -> None:
        """Forget a schedule; its occurrences that are prepared and not yet due are cancelled."""
        await self._change(name, cron.REMOVE)

    async def next(self, name: str, count: int = 5) -> list[datetime]:
        """The coming times of a schedule."""
        return await self._times(cron.NextTimesRequest(topic=self.topic, name=name, count=count))

    async def preview(self, expression: str, count: int = 5, **fields: Any) -> list[datetime]:
        """The coming times of a schedule that is not there."""
        proposed = Schedule("preview", expression, **fields).to_proto()
        return await self._times(cron.NextTimesRequest(topic=self.topic, proposed=proposed, count=count))

    async def history(self, name: str) -> tuple[tuple[datetime, str], ...]:
        """The last occurrences, oldest first: their times, and created, overlapped, missed or run."""
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
