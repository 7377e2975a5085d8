"""`dejaq history`: what the journals know of one message id."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from dejaq.cli.terminal.invocation import Command, Invocation, pass_invocation
from dejaq.cli.terminal.output import iso, printable
from dejaq.cli.terminal.times import SECONDS
from dejaq.domain.ids import valid_id
from dejaq.errors import Code, error_of

if TYPE_CHECKING:
    from dejaq.sdk.admin.history import HistoryEvent, MessageHistory
    from dejaq.sdk.client import Client


def event_values(event: HistoryEvent) -> dict[str, Any]:
    """An event as plain values, without the fields that do not concern it."""
    values = {name: value for name, value in asdict(event).items() if value is not None}
    for name in ("lease", "ticket", "principal"):
        if not values[name]:
            del values[name]
    return {"at": iso(event.at_ms), **values}


def event_line(event: HistoryEvent) -> str:
    """An event in one line: when, what, by which group or consumer, and its other values."""
    late_ms = event.handed_us / 1_000 - event.ts_ms if event.handed_us and event.ts_ms is not None else None
    handed = iso(event.handed_us // 1_000) if event.handed_us else None
    details = {
        "by": printable(event.actor) or None,
        "caller": printable(event.principal) or None,
        "time": iso(event.ts_ms) if event.ts_ms is not None else None,
        "until": iso(event.expires_ms) if event.expires_ms is not None else None,
        "attempt": event.attempts,
        "priority": event.priority or None,
        "bytes": event.body_bytes,
        "handed": handed,
        "late_ms": None if late_ms is None else f"{late_ms:.1f}",
    }
    text = "  ".join(f"{name}={value}" for name, value in details.items() if value is not None)
    return f"{iso(event.at_ms)}  {event.kind:<13}  {text}".rstrip()


@click.command(cls=Command)
@click.argument("topic")
@click.argument("message_id", metavar="ID")
@click.option("--max", "limit", type=click.IntRange(min=1), default=1_000, show_default=True, help="Stop after.")
@click.option("--seconds", type=SECONDS, default=60.0, show_default="1m", help="How long to search.")
@pass_invocation
def history(invocation: Invocation, topic: str, message_id: str, limit: int, seconds: float) -> int:
    """Show the life of one message, from the journals of all brokers, also when the message is gone.

    The exit code is 1 when the journals know nothing of it.
    """
    if not valid_id(message_id):
        raise error_of(Code.INVALID_ID, details=message_id[:80])

    async def work(client: Client) -> MessageHistory:
        return await client.history(topic, message_id, count=limit, seconds=seconds)

    found = invocation.run(work)
    for event in found.events:
        invocation.output.record(event_values(event), event_line(event))
    for note in found.notes:
        invocation.output.note(note)
    if not found.complete:
        invocation.output.note("the search ended early; --max and --seconds extend it, and older events may be missing")
    if not found.events:
        invocation.output.note(f"the journals that were searched know nothing of {message_id} in {topic}")
    return 0 if found.events else 1
