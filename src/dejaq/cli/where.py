"""`--where`: which messages a command is about, as people type it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any

import click

from dejaq.cli.progress import Progress
from dejaq.cli.times import parse_when

if TYPE_CHECKING:
    from dejaq.cli.invocation import Invocation
    from dejaq.sdk.bulk import BulkResult, OnProgress, Where
    from dejaq.sdk.client import Client
    from dejaq.sdk.producer import Producer

FORMS = "from=TIME, to=TIME, priority=N, priority=LOW..HIGH or header.NAME=VALUE"

where_option = click.option(
    "--where",
    "conditions",
    multiple=True,
    metavar="CONDITION",
    help=f"Every message of the group that matches, instead of ids: {FORMS}. May be given again.",
)
dry_run_option = click.option("--dry-run", is_flag=True, help="With --where: only count what would be changed.")


def parse_where(conditions: Sequence[str], now_ms: int) -> Where:
    """What the conditions spell together."""
    from dejaq.sdk.bulk import Where

    chosen: dict[str, Any] = {}
    headers: dict[str, str] = {}
    for condition in conditions:
        name, equals, value = condition.partition("=")
        if not equals:
            raise _wrong(condition)
        if name in ("from", "to"):
            try:
                chosen["start" if name == "from" else "end"] = max(0, parse_when(value).at(now_ms))
            except ValueError as wrong:
                raise click.BadParameter(f"{value!r} is not a time; {wrong}", param_hint="--where") from None
        elif name == "priority":
            chosen["priorities"] = _range(condition, value)
        elif name.startswith("header.") and len(name) > len("header."):
            headers[name.removeprefix("header.")] = value
        else:
            raise _wrong(condition)
    return Where(**chosen, headers=headers or None)


def _range(condition: str, value: str) -> tuple[int, int]:
    low, dots, high = value.partition("..")
    try:
        return int(low), int(high if dots else low)
    except ValueError:
        raise _wrong(condition) from None


def _wrong(condition: str) -> click.BadParameter:
    return click.BadParameter(f"{condition!r} is none of {FORMS}", param_hint="--where")


def check_chosen(ids: Sequence[str], conditions: Sequence[str], *, dry_run: bool) -> None:
    """Messages are named by id or by --where, and only the latter can be counted first."""
    if bool(ids) == bool(conditions):
        raise click.UsageError("Give ids, or --where, and not both.")
    if dry_run and not conditions:
        raise click.UsageError("--dry-run counts what --where matches; ids need no counting.")


def change_where(
    invocation: Invocation,
    topic: str,
    group: str,
    conditions: Sequence[str],
    change: Callable[[Producer, Where, OnProgress], Awaitable[BulkResult]],
    *,
    done: str,
    dry_run: bool,
) -> int:
    """Count what matches, then change it and show how far it is; the exit code."""
    from dejaq.cli.dlq import report_bulk

    async def work(client: Client) -> tuple[int, BulkResult | None]:
        where = parse_where(conditions, client.now_ms())
        async with client.producer(topic, group=group) as producer:
            matched = await producer.count_where(where)
            if dry_run or not matched:
                return matched, None
            with Progress(done, matched, quiet=invocation.json) as bar:
                return matched, await change(producer, where, bar.follow(matched))

    matched, result = invocation.run(work)
    values = {"topic": topic, "group": group}
    if result is None:
        told = f"{matched:,} messages of {group} in {topic} match; nothing was changed"
        if not matched:
            told = f"no messages of {group} in {topic} match"
        invocation.output.record({**values, "matched": matched, done: 0, "dry_run": dry_run}, told)
        return 0
    return report_bulk(invocation, values, result, done)
