"""`dejaq forward`: move messages between topics, or from and to other queues, until it is told to stop."""

from __future__ import annotations

import asyncio
import signal
from typing import TYPE_CHECKING, Any

import click

from dejaq.cli.invocation import Command, Invocation, pass_invocation
from dejaq.cli.logs import LEVELS, log_to_stderr
from dejaq.cli.times import SECONDS

if TYPE_CHECKING:
    from dejaq.sdk.client import Client


@click.command(cls=Command)
@click.argument("source", metavar="FROM")
@click.argument("sink", metavar="TO")
@click.option("--name", default="", help="The forwarder's name; who comes back under it goes on where it was.")
@click.option("--group", default="forward", show_default=True, help="The producer group that owns what it makes.")
@click.option("--batch", type=click.IntRange(1, 5_000), default=500, show_default=True, help="Messages in one step.")
@click.option("--delay", type=SECONDS, default=0.0, show_default=True, help="Added to when they are due in a topic.")
@click.option("--trim", is_flag=True, help="Delete from a Redis stream what was moved.")
@click.option("--max", "limit", type=click.IntRange(min=1), metavar="N", help="Stop after N messages.")
@click.option("--timeout", "idle", type=SECONDS, help="Stop when nothing has come for this long.")
@click.option("--log-level", type=LEVELS, default="info", show_default=True, help="What is told on stderr.")
@pass_invocation
def forward(
    invocation: Invocation,
    /,
    source: str,
    sink: str,
    limit: int | None,
    idle: float | None,
    log_level: str,
    **options: Any,
) -> int:
    """Move messages FROM one place TO another: topics, or redis://HOST:PORT/STREAM.

    Each arrives at least once, and once in effect where it is known by its id. SIGTERM or Ctrl-C stops it when what it
    has read is moved.
    """
    from dejaq.forward import forwarder

    log_to_stderr(log_level, as_json=invocation.json)

    async def work(client: Client) -> tuple[int, int]:
        moving = forwarder(client, source, sink, **options)
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, moving.stop)
        await moving.run(max_messages=limit, idle=idle)
        return moving.stats.moved, moving.stats.refused

    moved, refused = invocation.run(work)
    invocation.output.record(
        {"moved": moved, "refused": refused}, f"{moved:,} moved" + (f", {refused:,} refused" if refused else "")
    )
    return 1 if refused else 0
