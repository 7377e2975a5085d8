"""`dejaq top`: the cluster, live."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, count
from typing import TYPE_CHECKING, Any

import click

from dejaq.cli.messages.topic import COLUMNS as TOPIC_COLUMNS
from dejaq.cli.operating.info import BROKER_COLUMNS, CLIENT_COLUMNS, cluster_values
from dejaq.cli.terminal.invocation import Command, Invocation, pass_invocation
from dejaq.cli.terminal.output import GAP, table_of, widths_of
from dejaq.cli.terminal.times import SECONDS

if TYPE_CHECKING:
    from rich.console import RenderableType

    from dejaq.sdk.client import Client

CHANGES = ("available", "waiting", "processing")
# Where the output is no terminal, nothing is cut.
WIDTH_OF_FILES = 1_000
GROWING_COLUMNS = (*TOPIC_COLUMNS[:5], "growth_per_s", *TOPIC_COLUMNS[5:])
NUMBERS = (*GROWING_COLUMNS[2:], "drift_ms", "latency_ms", "clock_offset_ms", "inflight")


def changes(before: dict[str, Any] | None, after: dict[str, Any], seconds: float) -> dict[str, Any]:
    """`after`, with the growth of each topic, in messages per second."""
    totals = {topic["name"]: sum(topic[name] for name in CHANGES) for topic in (before or {}).get("topics", ())}
    topics = []
    for topic in after["topics"]:
        total = sum(topic[name] for name in CHANGES)
        grown = total - totals.get(topic["name"], total)
        topics.append({**topic, "growth_per_s": round(grown / seconds, 1) if seconds > 0 else 0.0})
    return {**after, "topics": topics}


@dataclass(frozen=True, slots=True)
class Shown:
    """A table cut to its place on the screen: `rows` and `columns` that fit, and how many do not."""

    name: str
    rows: Sequence[Mapping[str, Any]]
    columns: Sequence[str]
    rows_hidden: int
    columns_hidden: int


def screen(values: dict[str, Any], width: int | None = None, height: int | None = None) -> RenderableType:
    """One view of the cluster, cut to a screen of `width` cells and `height` lines where these are given."""
    from rich.console import Group
    from rich.text import Text

    tables = {"brokers": BROKER_COLUMNS, "topics": GROWING_COLUMNS, "clients": CLIENT_COLUMNS}
    rows = [len(values[name]) for name in tables]
    # The title, a head for each table and the remark take a line each.
    lines = rows if height is None else divide(height - 2 - len(tables), rows)
    shown = [_cut(name, values[name], tables[name], width, room) for name, room in zip(tables, lines, strict=True)]
    clock = values["brokers"][0]["clock"] if values["brokers"] else ""
    parts: list[RenderableType] = [Text(f"cluster {values['cluster']}   {clock}   Ctrl-C ends", style="bold")]
    parts += [table_of(one.rows, one.columns, numbers=NUMBERS) for one in shown]
    remark = remark_on(shown)
    return Group(*parts, *([Text(remark, style="bold", no_wrap=True, overflow="ellipsis")] if remark else []))


def divide(lines: int, wanted: Sequence[int]) -> list[int]:
    """Lines for each table: those that want few get them, the others share what is left."""
    shares = [0] * len(wanted)
    left = max(0, lines)
    for place, table in enumerate(sorted(range(len(wanted)), key=lambda table: wanted[table])):
        shares[table] = min(wanted[table], left // (len(wanted) - place))
        left -= shares[table]
    return shares


def _cut(name: str, rows: Sequence[Mapping[str, Any]], columns: Sequence[str], width: int | None, lines: int) -> Shown:
    rows_shown = rows[:lines]
    ends = list(accumulate(widths_of(rows_shown, columns)))
    # The last column needs no gap behind it.
    fit = len(columns) if width is None else max(1, sum(end - GAP <= width for end in ends))
    return Shown(name, rows_shown, columns[:fit], len(rows) - len(rows_shown), len(columns) - fit)


def remark_on(shown: Sequence[Shown]) -> str:
    """How much the screen does not show, or nothing."""
    hidden = [f"{one.rows_hidden:,} {one.name}" for one in shown if one.rows_hidden]
    columns = sum(one.columns_hidden for one in shown)
    hidden += [f"{columns} columns"] if columns else []
    return f"not shown: {', '.join(hidden)}; see `dejaq info`" if hidden else ""


@click.command(cls=Command)
@click.option("--interval", type=SECONDS, default=1.0, show_default=True, help="The time between two updates.")
@click.option("--times", type=click.IntRange(min=1), metavar="N", help="Stop after N updates.")
@pass_invocation
def top(invocation: Invocation, interval: float, times: int | None) -> None:
    """Show brokers, topics and clients, continuously updated."""
    invocation.run(lambda client: _watch(client, invocation, max(0.1, interval), times))


async def _watch(client: Client, invocation: Invocation, interval: float, times: int | None) -> None:
    from rich.live import Live

    before: dict[str, Any] | None = None
    loop = asyncio.get_running_loop()
    seen_at = loop.time()
    console = invocation.output.console
    if not console.is_terminal:
        console.width = WIDTH_OF_FILES
    live = None if invocation.json else Live(console=console, auto_refresh=False, screen=console.is_terminal)
    if live is not None:
        live.start()
    try:
        for look in count(1):
            after = cluster_values(await client.info())
            elapsed, seen_at = loop.time() - seen_at, loop.time()
            picture = changes(before, after, elapsed)
            before = after
            if live is None:
                invocation.output.object(picture)
            else:
                size = (console.width, console.height) if console.is_terminal else (None, None)
                live.update(screen(picture, *size), refresh=True)
            if look == times:
                return
            await asyncio.sleep(interval)
    finally:
        if live is not None:
            live.stop()
