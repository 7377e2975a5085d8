"""`dejaq forward`: moves messages between topics, or from and to other queues, until it is stopped."""

from __future__ import annotations

import asyncio
import signal
from typing import TYPE_CHECKING, Any

import click

from dejaq.cli.terminal.invocation import Command, Invocation, pass_invocation
from dejaq.cli.terminal.logs import LEVELS, log_to_stderr
from dejaq.cli.terminal.times import SECONDS

if TYPE_CHECKING:
    from dejaq.sdk.client import Client


@click.command(cls=Command)
@click.argument("source", metavar="FROM")
@click.argument("sink", metavar="TO")
@click.option(
    "--name", default="", help="The forwarder's name. A forwarder that starts with the same name continues its work."
)
@click.option(
    "--group", default="forward", show_default=True, help="The producer group that owns the messages it creates."
)
@click.option(
    "--batch", type=click.IntRange(1, 5_000), default=500, show_default=True, help="The number of messages per step."
)
@click.option(
    "--delay", type=SECONDS, default=0.0, show_default=True, help="A delay that is added to the time of each message."
)
@click.option("--trim", is_flag=True, help="Delete moved entries from a Redis stream.")
@click.option("--max", "limit", type=click.IntRange(min=1), metavar="N", help="Stop after N messages.")
@click.option("--timeout", "idle", type=SECONDS, help="Stop when no message has arrived for this time.")
@click.option(
    "--log-level", type=LEVELS, default="info", show_default=True, help="The lowest level that is logged on stderr."
)
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
    """Move messages FROM one place TO another: a timeline, a log, redis://HOST:PORT/STREAM, or kafka://HOST:PORT/TOPIC.

    Each message arrives at least once, and the target recognises a repeat; docs/forwarding.md says how long. SIGTERM or
    Ctrl-C stops it when what it has read is moved.
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
