"""`dejaq top`: the cluster, live."""

from __future__ import annotations

import asyncio
from itertools import count
from typing import TYPE_CHECKING, Any

import click

from dejaq.cli.info import BROKER_COLUMNS, CLIENT_COLUMNS, cluster_values
from dejaq.cli.invocation import Command, Invocation, pass_invocation
from dejaq.cli.output import table_of
from dejaq.cli.times import SECONDS
from dejaq.cli.topic import COLUMNS as TOPIC_COLUMNS

if TYPE_CHECKING:
    from rich.console import RenderableType

    from dejaq.sdk.client import Client

CHANGES = ("available", "waiting", "processing")


def changes(before: dict[str, Any] | None, after: dict[str, Any], seconds: float) -> dict[str, Any]:
    """`after`, with how fast each topic's number of messages grows, in messages a second."""
    totals = {topic["name"]: sum(topic[name] for name in CHANGES) for topic in (before or {}).get("topics", ())}
    topics = []
    for topic in after["topics"]:
        total = sum(topic[name] for name in CHANGES)
        grown = total - totals.get(topic["name"], total)
        topics.append({**topic, "growth_per_s": round(grown / seconds, 1) if seconds > 0 else 0.0})
    return {**after, "topics": topics}


def screen(values: dict[str, Any]) -> RenderableType:
    """One picture of the cluster."""
    from rich.console import Group
    from rich.text import Text

    columns = (*TOPIC_COLUMNS[:5], "growth_per_s", *TOPIC_COLUMNS[5:])
    clock = values["brokers"][0]["clock"] if values["brokers"] else ""
    return Group(
        Text(f"cluster {values['cluster']}   {clock}   Ctrl-C leaves", style="bold"),
        table_of(values["brokers"], BROKER_COLUMNS, numbers=("drift_ms",)),
        table_of(values["topics"], columns, numbers=columns[2:]),
        table_of(
            values["clients"],
            CLIENT_COLUMNS,
            numbers=("latency_ms", "clock_offset_ms", "inflight", "buckets"),
        ),
    )


@click.command(cls=Command)
@click.option("--interval", type=SECONDS, default=1.0, show_default=True, help="How often to look.")
@click.option("--times", type=click.IntRange(min=1), metavar="N", help="Stop after N looks.")
@pass_invocation
def top(invocation: Invocation, interval: float, times: int | None) -> None:
    """Watch brokers, topics and clients live."""
    invocation.run(lambda client: _watch(client, invocation, max(0.1, interval), times))


async def _watch(client: Client, invocation: Invocation, interval: float, times: int | None) -> None:
    from rich.live import Live

    before: dict[str, Any] | None = None
    loop = asyncio.get_running_loop()
    seen_at = loop.time()
    console = invocation.output.console
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
                live.update(screen(picture), refresh=True)
            if look == times:
                return
            await asyncio.sleep(interval)
    finally:
        if live is not None:
            live.stop()
