"""`dejaq get`, `move`, `edit` and `cancel`: messages by id, and the last three also by `--where` and `--all`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from dejaq.cli.terminal.invocation import Command, Invocation, pass_invocation
from dejaq.cli.terminal.options import (
    body_file_option,
    body_target,
    group_option,
    header_option,
    one_time,
    parse_headers,
    read_body,
)
from dejaq.cli.terminal.output import iso, printable, shown, text_or_base64
from dejaq.cli.terminal.times import SECONDS, WHEN, When
from dejaq.cli.terminal.where import Choice, change_many, choosing
from dejaq.errors import MEANINGS, Code, Refused

if TYPE_CHECKING:
    from dejaq.domain.message import Message
    from dejaq.sdk.client import Client
    from dejaq.sdk.producing.producer import Producer
    from dejaq.sdk.results import Results


def message_values(message: Message, now_ms: int) -> dict[str, Any]:
    """A message as plain values."""
    return {
        "id": message.id,
        "topic": message.topic,
        "at": iso(message.ts),
        "ts": message.ts,
        "status": str(message.status(now_ms)),
        "priority": message.priority,
        "attempts": message.attempts,
        "version": message.version,
        "group": message.producer_group,
        "consumer": message.lock_consumer,
        "bucket": message.bucket,
        "headers": dict(message.headers),
        **({"progress": message.progress} if message.progress else {}),
        **_body_values(message),
    }


def _body_values(message: Message) -> dict[str, Any]:
    if message.masked:
        return {"masked": True}
    if message.large is not None:
        return {"body_bytes": message.size, "large": True}
    return dict(text_or_base64(message.body))


def body_text(message: Message) -> str:
    """The body of a message in one line for people."""
    if message.masked:
        return "[no right to read the body]"
    return shown(message.body) if message.large is None else f"[{message.size:,} bytes]"


def message_line(message: Message, now_ms: int) -> str:
    """A message in one line: time, status, id, values other than the defaults, and the body."""
    unusual = {
        "priority": message.priority,
        "attempts": message.attempts,
        "consumer": message.lock_consumer,
        "progress": message.progress,
        **{f"header.{key}": value for key, value in message.headers.items()},
    }
    extras = "".join(f"{key}={printable(str(value))}  " for key, value in unusual.items() if value)
    return f"{iso(message.ts)}  {message.status(now_ms):<10}  {message.id}  {extras}{body_text(message)}"


def print_messages(invocation: Invocation, messages: Sequence[Message], now_ms: int) -> None:
    """Messages, one per line, for people or as JSON with every field."""
    output = invocation.output
    for message in messages:
        output.record(message_values(message, now_ms), message_line(message, now_ms))


@click.command(cls=Command)
@click.argument("topic")
@click.argument("ids", metavar="ID...", nargs=-1, required=True)
@click.option("--output", "path", metavar="PATH", help="Write the body of one message to this file, or '-' for stdout.")
@pass_invocation
def get(invocation: Invocation, topic: str, ids: tuple[str, ...], path: str | None) -> int:
    """Show messages by id; for a large body, its size. The exit code is 1 if one does not exist."""
    if path is not None:
        if len(ids) != 1:
            raise click.UsageError("With --output, give one id.")
        return _save(invocation, topic, ids[0], path)

    async def work(client: Client) -> tuple[list[Message | None], int]:
        return list(await client.get(topic, list(ids), fetch_large=False)), client.now_ms()

    found, now_ms = invocation.run(work)
    there = [message for message in found if message is not None]
    if len(there) == 1:
        invocation.output.record(message_values(there[0], now_ms))
    else:
        print_messages(invocation, there, now_ms)
    return refusals(invocation, ids, {row: Code.NOT_FOUND for row, message in enumerate(found) if message is None})


def _save(invocation: Invocation, topic: str, message_id: str, path: str) -> int:
    """Write a body to a file, part by part."""

    async def work(client: Client) -> Message | None:
        (message,) = await client.get(topic, [message_id], fetch_large=False)
        if message is not None:
            with body_target(path) as target:
                async for part in client.body_parts(message):
                    target.write(part)
        return message

    message = invocation.run(work)
    if message is None:
        return refusals(invocation, [message_id], {0: Code.NOT_FOUND})
    if path != "-":
        told = {"id": message_id, "topic": topic, "body_bytes": message.size, "path": path}
        invocation.output.record(told, f"{message.size:,} bytes in {path}")
    return 0


@click.command(cls=Command)
@click.argument("topic")
@click.option("--at", type=WHEN, help="The new time.")
@click.option("--delay", type=SECONDS, help="The new time, relative to now.")
@click.option("--shift", type=WHEN, help="With --where or --all: add this to each message's time, such as +2h or -30m.")
@choosing
@group_option
@pass_invocation
def move(
    invocation: Invocation,
    /,
    topic: str,
    at: When | None,
    delay: float | None,
    shift: When | None,
    group: str,
    **chosen: Any,
) -> int:
    """Move messages to another time: those with the given ids, or all that match."""
    choice = Choice(**chosen)
    choice.check()
    when = one_time(at, delay)
    if (when is None) == (shift is None) or (shift is not None and choice.ids):
        raise click.UsageError("Give the new time with --at or --delay, or, with --where or --all, --shift.")
    if shift is not None and not shift.relative:
        raise click.UsageError("--shift is a distance, such as +2h or -30m.")
    arguments: dict[str, Any] = {} if when is None else when.as_arguments()
    if shift is not None:
        arguments["shift"] = shift.ms / 1000
    if choice.many:
        return change_many(
            invocation,
            topic,
            group,
            choice,
            lambda producer, where, progress: producer.move_where(
                where, everything=choice.everything, progress=progress, **arguments
            ),
            done="moved",
        )
    ids = list(choice.ids)

    async def change(producer: Producer) -> Results:
        return await producer.move(ids, results=True, **arguments)

    return _change(invocation, topic, group, ids, "moved", change)


@click.command(cls=Command)
@click.argument("topic")
@click.option("--body", help="The new body.")
@body_file_option
@click.option("--at", type=WHEN, help="The new time.")
@click.option("--delay", type=SECONDS, help="The new time, relative to now.")
@click.option("--priority", type=int, help="The new priority; lower goes first.")
@header_option
@click.option(
    "--remove-header", "removed", multiple=True, metavar="KEY", help="A header to remove; may be given again."
)
@choosing
@group_option
@pass_invocation
def edit(
    invocation: Invocation,
    /,
    topic: str,
    body: str | None,
    body_path: str | None,
    at: When | None,
    delay: float | None,
    priority: int | None,
    headers: tuple[str, ...],
    removed: tuple[str, ...],
    group: str,
    **chosen: Any,
) -> int:
    """Change the body, time, priority or headers of messages, by id, --where or --all; values that are not given do not
    change. A header that is given is set, and the other headers of the message stay.
    """
    choice = Choice(**chosen)
    choice.check()
    when = one_time(at, delay)
    arguments: dict[str, Any] = {} if when is None else when.as_arguments()
    if body is not None and body_path is not None:
        raise click.UsageError("Give one of --body and --body-file.")
    if body is not None or body_path is not None:
        arguments["body"] = body.encode() if body is not None else read_body(str(body_path))
    if priority is not None:
        arguments["priority"] = priority
    if headers or removed:
        arguments["headers"] = parse_headers(headers) | dict.fromkeys(removed)
    if not arguments:
        raise click.UsageError(
            "Give what to change: --body, --body-file, --at, --delay, --priority, --header or --remove-header."
        )
    if choice.many:
        return change_many(
            invocation,
            topic,
            group,
            choice,
            lambda producer, where, progress: producer.edit_where(
                where, everything=choice.everything, progress=progress, **arguments
            ),
            done="edited",
        )

    async def change(producer: Producer) -> Mapping[int, Code]:
        codes: dict[int, Code] = {}
        for row, message_id in enumerate(choice.ids):
            try:
                codes[row] = await producer.edit(message_id, **arguments)
            except Refused as refused:
                codes[row] = refused.code
        return codes

    return _change(invocation, topic, group, choice.ids, "edited", change)


@click.command(cls=Command)
@click.argument("topic")
@choosing
@group_option
@pass_invocation
def cancel(invocation: Invocation, /, topic: str, group: str, **chosen: Any) -> int:
    """Cancel messages: those with the given ids, or all that match. They are never delivered."""
    choice = Choice(**chosen)
    choice.check()
    if choice.many:
        return change_many(
            invocation,
            topic,
            group,
            choice,
            lambda producer, where, progress: producer.cancel_where(
                where, everything=choice.everything, progress=progress
            ),
            done="cancelled",
        )
    ids = list(choice.ids)

    async def change(producer: Producer) -> Results:
        return await producer.cancel(ids, results=True)

    return _change(invocation, topic, group, ids, "cancelled", change)


def _change(
    invocation: Invocation,
    topic: str,
    group: str,
    ids: Sequence[str],
    done: str,
    change: Callable[[Producer], Awaitable[Any]],
) -> int:
    async def work(client: Client) -> tuple[dict[int, Code], dict[int, str]]:
        async with client.producer(topic, group=group) as producer:
            outcomes = await change(producer)
        codes = {row: outcomes[row] for row in range(len(ids))}
        foreign = [row for row, code in codes.items() if code is Code.NOT_OWNER]
        found = await client.get(topic, [ids[row] for row in foreign], fetch_large=False) if foreign else []
        return codes, {
            row: f"The message belongs to another group; repeat with --group {message.producer_group}"
            for row, message in zip(foreign, found, strict=True)
            if message is not None
        }

    codes, reasons = invocation.run(work)
    for row, message_id in enumerate(ids):
        if codes[row].succeeded:
            invocation.output.record({"id": message_id, "outcome": done}, f"{done} {message_id}")
    return refusals(invocation, ids, {row: code for row, code in codes.items() if not code.succeeded}, reasons)


def refusals(
    invocation: Invocation, ids: Sequence[str], codes: Mapping[int, Code], reasons: Mapping[int, str] | None = None
) -> int:
    """Report the ids that were refused, for a reason or the meaning of the code; the exit code."""
    for row, code in codes.items():
        reason = (reasons or {}).get(row, MEANINGS[code])
        if invocation.json:
            invocation.output.object({"id": ids[row], "outcome": code.name, "message": reason})
        else:
            click.secho(f"dejaq: {ids[row]}: {reason} [{code.name}]", fg="red", err=True)
    return 1 if codes else 0
