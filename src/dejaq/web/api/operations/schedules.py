"""The schedules of cron topics: list, add, pause, resume, run, remove, preview."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from dejaq import limits
from dejaq.errors import Code, error_of
from dejaq.sdk.admin.cron import ScheduleInfo
from dejaq.web.api.operation import ApiAnswer, ApiCall

_LISTED_MAX = 1_000


class ScheduleValue(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """A schedule; docs/cron.md describes each field."""

    expression: str
    body: str | None = None
    zone: str | None = None
    headers: dict[str, str] | None = None
    priority: Annotated[int, Meta(ge=limits.PRIORITY_MIN, le=limits.PRIORITY_MAX)] | None = None
    group: str | None = None
    skipped_hour: str | None = None
    repeated_hour: str | None = None
    missed: str | None = None
    missed_max: Annotated[int, Meta(ge=0, le=limits.SCHEDULE_MISSED_MAX)] | None = None
    overlap: str | None = None
    jitter: Annotated[float, Meta(ge=0, le=limits.SCHEDULE_JITTER_MS_MAX / 1_000)] | None = None

    def fields(self) -> dict[str, Any]:
        """The given fields, except the expression and the body."""
        names = [name for name in self.__struct_fields__ if name not in ("expression", "body")]
        return {name: value for name in names if (value := getattr(self, name)) is not None}


class ScheduleList(msgspec.Struct):
    """Schedules in the order of their next occurrence; at most 1,000."""

    schedules: list[ScheduleInfo]


class ScheduleTimes(msgspec.Struct):
    """The next times of a schedule."""

    times: list[datetime]


class TimesQuery(msgspec.Struct, forbid_unknown_fields=True):
    """How many times to compute."""

    count: Annotated[int, Meta(ge=1, le=100)] = 10


class RunValue(msgspec.Struct):
    """The id of the message that was created."""

    id: str


async def list_schedules(call: ApiCall) -> ApiAnswer:
    """The schedules of a cron topic."""
    found: list[ScheduleInfo] = []
    async for schedule in call.client.cron(call.topic).all():
        found.append(schedule)
        if len(found) >= _LISTED_MAX:
            break
    return ApiAnswer(ScheduleList(found))


async def put_schedule(call: ApiCall) -> ApiAnswer:
    """Add a schedule, or change the one of this name."""
    value = call.json(ScheduleValue)
    cron = call.client.cron(call.topic)
    return ApiAnswer(await cron.add(call.path["name"], value.expression, value.body, replace=True, **value.fields()))


async def get_schedule(call: ApiCall) -> ApiAnswer:
    """One schedule."""
    found = await call.client.cron(call.topic).get(call.path["name"])
    if found is None:
        raise error_of(Code.NOT_FOUND, f"topic {call.topic} has no schedule {call.path['name'][:60]}")
    return ApiAnswer(found)


async def remove_schedule(call: ApiCall) -> ApiAnswer:
    """Delete a schedule, and cancel its occurrences that are not yet due."""
    if not await call.client.cron(call.topic).remove(call.path["name"]):
        raise error_of(Code.NOT_FOUND, f"topic {call.topic} has no schedule {call.path['name'][:60]}")
    return ApiAnswer(status=204)


async def pause_schedule(call: ApiCall) -> ApiAnswer:
    """Create no more occurrences."""
    return ApiAnswer(await call.client.cron(call.topic).pause(call.path["name"]))


async def resume_schedule(call: ApiCall) -> ApiAnswer:
    """Continue with the next occurrence in the future."""
    return ApiAnswer(await call.client.cron(call.topic).resume(call.path["name"]))


async def run_schedule(call: ApiCall) -> ApiAnswer:
    """Create one occurrence now."""
    return ApiAnswer(RunValue(await call.client.cron(call.topic).run(call.path["name"])))


async def next_times(call: ApiCall) -> ApiAnswer:
    """The next times of a schedule."""
    return ApiAnswer(ScheduleTimes(await call.client.cron(call.topic).next(call.path["name"], call.query.count)))


async def preview_times(call: ApiCall) -> ApiAnswer:
    """The next times of a schedule that has not been added."""
    value = call.json(ScheduleValue)
    times = await call.client.cron(call.topic).preview(value.expression, call.query.count, **value.fields())
    return ApiAnswer(ScheduleTimes(times))
