"""`dejaq cron`: the schedules of cron topics."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from dejaq.cli.terminal.invocation import Group, Invocation, pass_invocation
from dejaq.cli.terminal.options import header_option, parse_headers
from dejaq.cli.terminal.times import SECONDS, WHEN, When
from dejaq.domain.schedules.zone import zone_of
from dejaq.errors import Code, DejaqError, error_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime

    from dejaq.sdk.admin.cron import ScheduleInfo
    from dejaq.sdk.client import Client

COLUMNS = ("name", "expression", "zone", "next", "state", "count")


def _moment(at: datetime | None) -> str | None:
    return None if at is None else at.isoformat(timespec="seconds").replace("+00:00", "Z")


def _names(topic: str) -> str:
    return f"`dejaq cron list {topic}` shows the names"


def _missing(topic: str, name: str) -> DejaqError:
    return error_of(Code.NOT_FOUND, f"topic {topic!r} has no schedule {name!r}")


def schedule_values(info: ScheduleInfo) -> dict[str, Any]:
    """A schedule as plain values."""
    state = "paused" if info.paused else "over" if info.next is None else "active"
    return {
        "name": info.name,
        "expression": info.expression,
        "zone": info.zone,
        "next": _moment(info.next),
        "state": state,
        "count": info.count,
        "body": info.body,
        "headers": dict(info.headers),
        "priority": info.priority,
        "group": info.group,
        "start": _moment(info.start),
        "end": _moment(info.end),
        "jitter_s": info.jitter,
        "skipped_hour": info.skipped_hour,
        "repeated_hour": info.repeated_hour,
        "missed": info.missed,
        "missed_max": info.missed_max,
        "overlap": info.overlap,
        "last_id": info.last_id,
    }


@click.group(cls=Group)
def cron() -> None:
    """Add, list, pause, resume, run and remove the schedules of a cron topic."""


def _rules(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options for the times of a schedule."""
    for option in (
        click.option("--zone", help="The time zone, an IANA name.  [default: UTC]"),
        click.option("--start", type=WHEN, help="The first time at which it may run."),
        click.option("--end", type=WHEN, help="The last time at which it may run."),
        click.option(
            "--skipped-hour",
            type=click.Choice(["skip", "once"]),
            help="What to do with fixed local times that a clock change skips. [default: once]",
        ),
        click.option(
            "--repeated-hour",
            type=click.Choice(["skip", "once", "twice"]),
            help="What to do with fixed local times that a clock change repeats. [default: once]",
        ),
    ):
        command = option(command)
    return command


def _chosen(start: When | None, end: When | None, now_ms: int, rest: dict[str, Any]) -> dict[str, Any]:
    times = {key: when.at(now_ms) for key, when in (("start", start), ("end", end)) if when is not None}
    return {**rest, **times}


@cron.command()
@click.argument("topic")
@click.argument("name")
@click.argument("expression")
@click.option("--body", help="The body, with the placeholders {time} {local} {date} {ms} {name} {topic} {count}.")
@click.option("--priority", type=int, help="The priority of each occurrence.  [default: 0]")
@click.option("--group", help="The producer group that owns the occurrences.  [default: cron]")
@click.option("--jitter", type=SECONDS, help="Each occurrence is due later by up to this time.")
@click.option(
    "--missed",
    type=click.Choice(["skip", "last", "all"]),
    help="What to do with runs that were missed because no broker was running. [default: last]",
)
@click.option("--missed-max", type=int, help="The most that `--missed all` makes up.  [default: 100]")
@click.option(
    "--overlap",
    type=click.Choice(["allow", "skip"]),
    help="Whether to create an occurrence while the previous one still exists. [default: allow]",
)
@click.option(
    "--replace", is_flag=True, help="Change the schedule with this name; settings that are not given do not change."
)
@header_option
@_rules
@pass_invocation
def add(
    invocation: Invocation,
    /,
    topic: str,
    name: str,
    expression: str,
    headers: tuple[str, ...],
    start: When | None,
    end: When | None,
    **rest: Any,
) -> None:
    """Add the schedule NAME: five or six fields, '@every 90s', '@at TIME', @hourly, @daily, @weekly, ..."""
    invocation.hints[Code.ID_TAKEN] = (
        f"change it with --replace, or choose another name; `dejaq cron list {topic}` shows what it says"
    )

    async def work(client: Client) -> ScheduleInfo:
        chosen = _chosen(start, end, client.now_ms(), rest)
        return await client.cron(topic).add(name, expression, headers=parse_headers(headers), **chosen)

    added = invocation.run(work)
    invocation.output.record(schedule_values(added), f"schedule {name} of {topic} runs next at {_moment(added.next)}")


@cron.command(name="list")
@click.argument("topic")
@pass_invocation
def list_(invocation: Invocation, topic: str) -> None:
    """List the schedules of TOPIC, the next one to run first."""

    async def work(client: Client) -> list[ScheduleInfo]:
        return [info async for info in client.cron(topic).all()]

    rows = [schedule_values(info) for info in invocation.run(work)]
    invocation.output.table(rows, COLUMNS, numbers=["count"], empty=f"topic {topic} has no schedules")


def _simple(name: str, done: str, about: str) -> None:
    @cron.command(name=name, help=about)
    @click.argument("topic")
    @click.argument("schedule")
    @pass_invocation
    def change(invocation: Invocation, topic: str, schedule: str) -> None:
        invocation.hints[Code.NOT_FOUND] = _names(topic)

        async def work(client: Client) -> Any:
            made = await getattr(client.cron(topic), name)(schedule)
            if made is False:
                raise _missing(topic, schedule)
            return made

        made = invocation.run(work)
        values = {"topic": topic, "schedule": schedule, "done": done}
        if name == "run":
            values["id"] = made
        invocation.output.record(values, f"schedule {schedule} {done}" + (f" as {made}" if name == "run" else ""))


_simple("pause", "is paused", "Stop a schedule; occurrences that are not yet due are cancelled.")
_simple("resume", "goes on", "Continue a paused schedule with its next time.")
_simple("run", "runs now", "Create one additional occurrence now.")
_simple("remove", "is removed", "Remove a schedule; occurrences that are not yet due are cancelled.")


@cron.command(name="next")
@click.argument("topic")
@click.argument("schedule")
@click.option(
    "--count", type=click.IntRange(1, 1_000), default=5, show_default=True, help="The number of times to show."
)
@click.option("--proposed", is_flag=True, help="SCHEDULE is an expression that is not stored.")
@_rules
@pass_invocation
def next_(
    invocation: Invocation,
    /,
    topic: str,
    schedule: str,
    count: int,
    proposed: bool,
    start: When | None,
    end: When | None,
    **rest: Any,
) -> None:
    """Show the next times of a schedule, or of an expression with --proposed: in UTC, and in the schedule's zone."""
    invocation.hints[Code.NOT_FOUND] = f"{_names(topic)}; an expression that is not stored needs --proposed"

    async def work(client: Client) -> tuple[str, list[datetime]]:
        schedules = client.cron(topic)
        if proposed:
            chosen = _chosen(start, end, client.now_ms(), rest)
            return rest["zone"] or "UTC", await schedules.preview(schedule, count, **chosen)
        found = await schedules.get(schedule)
        if found is None:
            raise _missing(topic, schedule)
        return found.zone, await schedules.next(schedule, count)

    zone, times = invocation.run(work)
    for at in times:
        ts = round(at.timestamp() * 1_000)
        local = zone_of(zone).local(ts).isoformat(timespec="seconds")
        line = f"{_moment(at)}" if zone == "UTC" else f"{_moment(at)}  {local}"
        invocation.output.record({"at": _moment(at), "ts": ts, "local": local, "zone": zone}, line)


@cron.command()
@click.argument("topic")
@click.argument("schedule")
@pass_invocation
def history(invocation: Invocation, topic: str, schedule: str) -> None:
    """Show the last occurrences: created, overlapped, missed or run by hand."""
    invocation.hints[Code.NOT_FOUND] = _names(topic)

    async def work(client: Client) -> tuple[tuple[datetime, str], ...]:
        return await client.cron(topic).history(schedule)

    for at, outcome in invocation.run(work):
        invocation.output.record({"at": _moment(at), "outcome": outcome}, f"{_moment(at)}  {outcome}")
