"""`dejaq cron`: the schedules of cron topics."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from dejaq.cli.invocation import Group, Invocation, pass_invocation
from dejaq.cli.options import header_option, parse_headers
from dejaq.cli.times import SECONDS, WHEN, When
from dejaq.errors import Code, error_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime

    from dejaq.sdk.client import Client
    from dejaq.sdk.cron import ScheduleInfo

COLUMNS = ("name", "expression", "zone", "next", "state", "count")


def _moment(at: datetime | None) -> str | None:
    return None if at is None else at.isoformat(timespec="seconds").replace("+00:00", "Z")


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
    """The options that say when a schedule runs."""
    for option in (
        click.option("--zone", default="UTC", show_default=True, help="The time zone, an IANA name."),
        click.option("--start", type=WHEN, help="The first instant that it may run at."),
        click.option("--end", type=WHEN, help="The last instant that it may run at."),
        click.option(
            "--skipped-hour",
            type=click.Choice(["skip", "once"]),
            default="once",
            show_default=True,
            help="Local times that a change of the clocks skips.",
        ),
        click.option(
            "--repeated-hour",
            type=click.Choice(["skip", "once", "twice"]),
            default="once",
            show_default=True,
            help="Local times that a change of the clocks repeats.",
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
@click.option("--body", default="", help="The body; {time} {local} {date} {ms} {name} {topic} {count} are filled in.")
@click.option("--priority", type=int, default=0, help="The priority of each occurrence.")
@click.option("--group", default="cron", show_default=True, help="The producer group that owns the occurrences.")
@click.option("--jitter", type=SECONDS, default=0.0, help="Each occurrence is due up to so much later.")
@click.option(
    "--missed",
    type=click.Choice(["skip", "last", "all"]),
    default="last",
    show_default=True,
    help="Runs missed while nothing was up.",
)
@click.option("--missed-max", type=int, default=100, show_default=True, help="The most that `--missed all` makes up.")
@click.option(
    "--overlap",
    type=click.Choice(["allow", "skip"]),
    default="allow",
    show_default=True,
    help="Whether an occurrence comes while the last is still there.",
)
@click.option("--replace", is_flag=True, help="Change the schedule of this name that is there.")
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

    async def work(client: Client) -> ScheduleInfo:
        chosen = _chosen(start, end, client.now_ms(), rest)
        return await client.cron(topic).add(name, expression, headers=parse_headers(headers), **chosen)

    added = invocation.run(work)
    invocation.output.record(schedule_values(added), f"schedule {name} of {topic} runs next at {_moment(added.next)}")


@cron.command(name="list")
@click.argument("topic")
@pass_invocation
def list_(invocation: Invocation, topic: str) -> None:
    """List the schedules of TOPIC, those that run next first."""

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
        async def work(client: Client) -> Any:
            return await getattr(client.cron(topic), name)(schedule)

        made = invocation.run(work)
        values = {"topic": topic, "schedule": schedule, "done": done}
        if name == "run":
            values["id"] = made
        invocation.output.record(values, f"schedule {schedule} {done}" + (f" as {made}" if name == "run" else ""))


_simple("pause", "is paused", "Make no more occurrences; those prepared and not yet due are cancelled.")
_simple("resume", "goes on", "Go on with the next time to come.")
_simple("run", "runs now", "Make one occurrence now, beside the others.")
_simple("remove", "is removed", "Forget a schedule; occurrences prepared and not yet due are cancelled.")


@cron.command(name="next")
@click.argument("topic")
@click.argument("schedule")
@click.option("--count", type=click.IntRange(1, 1_000), default=5, show_default=True, help="How many times.")
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
    """Show the coming times of a schedule, or of an expression with --proposed."""

    async def work(client: Client) -> list[datetime]:
        if proposed:
            chosen = _chosen(start, end, client.now_ms(), rest)
            return await client.cron(topic).preview(schedule, count, **chosen)
        return await client.cron(topic).next(schedule, count)

    for at in invocation.run(work):
        invocation.output.record({"at": _moment(at), "ts": round(at.timestamp() * 1_000)}, _moment(at))


@cron.command()
@click.argument("topic")
@click.argument("schedule")
@pass_invocation
def history(invocation: Invocation, topic: str, schedule: str) -> None:
    """Show what became of the last occurrences: created, overlapped, missed or run."""

    async def work(client: Client) -> ScheduleInfo:
        found = await client.cron(topic).get(schedule)
        if found is None:
            raise error_of(Code.NOT_FOUND, f"topic {topic!r} has no schedule {schedule!r}")
        return found

    for at, outcome in invocation.run(work).history:
        invocation.output.record({"at": _moment(at), "outcome": outcome}, f"{_moment(at)}  {outcome}")
