"""`dejaq consume`: receives messages when they are due, shows them, and settles them."""

from __future__ import annotations

import asyncio
import os
import secrets
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dejaq.cli.terminal.invocation import Command, Invocation, pass_invocation
from dejaq.cli.terminal.options import body_target
from dejaq.cli.terminal.output import iso, shown, text_or_base64
from dejaq.cli.terminal.times import SECONDS
from dejaq.errors import Code, Conflict

if TYPE_CHECKING:
    from dejaq.sdk.client import Client
    from dejaq.sdk.consuming.lease import Lease


@click.command(cls=Command)
@click.argument("topic")
@click.option("--name", help="The consumer's name. A consumer that returns with the same name keeps its leases.")
@click.option("--max", "limit", type=click.IntRange(min=1), metavar="N", help="Stop after N messages.")
@click.option("--lease", "lease_s", type=SECONDS, default=30.0, show_default=True, help="The length of a lease.")
@click.option(
    "--release-after", type=SECONDS, help="Do not delete the messages: release each one, due again after this time."
)
@click.option(
    "--output",
    "folder",
    metavar="FOLDER",
    help="Write each body to a file in this directory; the message's id is the name.",
)
@click.option("--timeout", type=SECONDS, help="Stop when no message has arrived for this time.")
@pass_invocation
def consume(
    invocation: Invocation,
    topic: str,
    name: str | None,
    limit: int | None,
    lease_s: float,
    release_after: float | None,
    folder: str | None,
    timeout: float | None,
) -> int:
    """Receive messages of TOPIC when they are due, print each one, and then delete it. For a large body, print its
    size.
    """
    name = name or f"cli-{os.getpid()}-{secrets.token_hex(3)}"

    async def work(client: Client) -> tuple[int, int]:
        taken = lost = 0
        terms: dict[str, Any] = {"lease": lease_s, "max_messages": limit, "fetch_large": False}
        async with client.consumer(topic, name=name, **terms) as consumer:
            leases = aiter(consumer)
            while True:
                try:
                    async with asyncio.timeout(timeout):
                        lease = await anext(leases)
                except (TimeoutError, StopAsyncIteration):
                    break
                if folder is not None:
                    await _save(lease, Path(folder))
                _print(invocation, lease, consumer.now_ms())
                taken += 1
                lost += not await _settle(lease, release_after)
        return taken, lost

    invocation.output.note(f"consuming {topic} as {name}; Ctrl-C stops")
    taken, lost = invocation.run(work)
    done = "deleted" if release_after is None else "released"
    invocation.output.note(f"{taken:,} taken, {taken - lost:,} {done}" + (f", {lost:,} lost" if lost else ""))
    return 1 if lost else 0


async def _settle(lease: Lease, release_after: float | None) -> bool:
    try:
        if release_after is None:
            await lease.delete()
        else:
            await lease.release(delay=release_after)
    except Conflict as refused:
        if refused.code is not Code.LEASE_LOST:
            raise
        click.secho(f"dejaq: {lease.id}: the lease expired; the message is delivered again", fg="red", err=True)
        return False
    return True


async def _save(lease: Lease, folder: Path) -> None:
    """Write a body to its file, a part at a time; a message is settled only when all of it is there."""
    with body_target(str(folder / lease.id), make_folder=True) as target:
        async for part in lease.parts():
            target.write(part)


def _print(invocation: Invocation, lease: Lease, now_ms: int) -> None:
    values: dict[str, Any] = {
        "id": lease.id,
        "at": iso(lease.ts),
        "ts": lease.ts,
        "late_ms": now_ms - lease.ts,
        "attempts": lease.attempts,
        "version": lease.version,
        "headers": dict(lease.headers),
        **({"body_bytes": lease.size, "large": True} if lease.large else text_or_base64(lease.body)),
    }
    body = f"[{lease.size:,} bytes]" if lease.large else shown(lease.body, width=200)
    invocation.output.record(values, f"{values['at']}  +{values['late_ms']} ms  {lease.id}  {body}")
