"""`dejaq dlq`: the dead letters of a topic."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any

import click

from dejaq.cli.messages.message import body_text, message_values
from dejaq.cli.messages.query import bounds, from_option, to_option
from dejaq.cli.terminal.invocation import Group, Invocation, pass_invocation
from dejaq.cli.terminal.options import header_option, parse_headers
from dejaq.cli.terminal.output import iso, printable
from dejaq.cli.terminal.progress import ProgressBar
from dejaq.cli.terminal.where import all_option, confirm_all, yes_option
from dejaq.domain import dead_letter
from dejaq.errors import MEANINGS, Code, error_of

if TYPE_CHECKING:
    from dejaq.domain.message import Message
    from dejaq.sdk.admin.dead_letters import DeadLetters
    from dejaq.sdk.changing.bulk import BulkResult, OnProgress
    from dejaq.sdk.client import Client

reason_option = click.option("--reason", help="Only those with this reason; `max_attempts` means too many leases.")
owner_option = click.option("--group", help="Only those of this producer group.")
dry_run_option = click.option("--dry-run", is_flag=True, help="Only count the messages; change nothing.")
ids_argument = click.argument("ids", metavar="[ID...]", nargs=-1)


def _filtered(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options that select dead letters."""
    for option in (header_option, owner_option, reason_option, to_option, from_option):
        command = option(command)
    return command


def _chosen(client: Client, options: Mapping[str, Any]) -> dict[str, Any]:
    """The filter that the options describe."""
    start, end = bounds(options["start"], options["end"], client.now_ms())
    headers = parse_headers(options["headers"])
    return {
        "start": start,
        "end": end,
        "reason": options["reason"],
        "group": options["group"],
        "headers": headers or None,
    }


@click.group(cls=Group)
def dlq() -> None:
    """List, send back or remove the dead letters of a topic: messages that were leased too often or rejected."""


@dlq.command(name="list")
@click.argument("topic")
@_filtered
@click.option("--max", "limit", type=click.IntRange(min=1), default=100, show_default=True, help="Stop after.")
@pass_invocation
def list_letters(invocation: Invocation, /, topic: str, limit: int, **options: Any) -> None:
    """List dead letters of TOPIC, the oldest first."""

    async def work(client: Client) -> int:
        shown_now = 0
        async for page in client.dead_letters(topic).browse(**_chosen(client, options)):
            for message in page[: limit - shown_now]:
                invocation.output.record(_values(message, client.now_ms()), _line(message))
                shown_now += 1
            if shown_now >= limit:
                break
        return shown_now

    number = invocation.run(work)
    if not number:
        invocation.output.note(f"no dead letters of {topic} match")
    elif number >= limit:
        invocation.output.note(f"the first {limit}; --max N shows more")


@dlq.command()
@click.argument("topic")
@click.argument("id")
@pass_invocation
def show(invocation: Invocation, /, topic: str, id: str) -> int:
    """Show one dead letter of TOPIC with its history, and the error and traceback of its last attempt."""

    async def work(client: Client) -> tuple[Message | None, int]:
        (found,) = await client.get(await client.dead_letters(topic).where(), [id], fetch_large=False)
        return found, client.now_ms()

    message, now_ms = invocation.run(work)
    if message is None or message.headers.get(dead_letter.TOPIC) != topic:
        raise error_of(
            Code.NOT_FOUND, f"topic {topic!r} has no dead letter {id!r}; `dejaq dlq list {topic}` lists them"
        )
    history = {
        name.removeprefix(dead_letter.PREFIX): value
        for name, value in message.headers.items()
        if name.startswith(dead_letter.PREFIX)
    }
    trace = history.pop("traceback", "")
    lines = [_line(message), *(f"  {name}: {printable(value)}" for name, value in history.items())]
    lines += ["", *map(printable, trace.splitlines())] if trace else []
    invocation.output.record(_values(message, now_ms), "\n".join(lines))
    return 0


@dlq.command()
@click.argument("topic")
@ids_argument
@_filtered
@all_option
@yes_option
@click.option("--target", metavar="TOPIC", help="The topic to send them to. Default: TOPIC.")
@dry_run_option
@pass_invocation
def redrive(
    invocation: Invocation,
    /,
    topic: str,
    ids: tuple[str, ...],
    everything: bool,
    yes: bool,
    target: str | None,
    dry_run: bool,
    **options: Any,
) -> int:
    """Send dead letters back to TOPIC: those with the given ids, or all that match the filter. They are due at once,
    with no attempts.
    """
    _check_choice(ids, options, everything=everything)
    if everything and not dry_run:
        question = f"Every dead letter of topic {topic} will be delivered again. Continue?"
        confirm_all(invocation, question, yes=yes)

    def change(letters: DeadLetters, where: dict[str, Any], progress: OnProgress) -> Awaitable[BulkResult]:
        return letters.redrive(list(ids) or None, to=target, progress=progress, results=True, **where)

    return _change(invocation, topic, ids, options, change, done="redriven", dry_run=dry_run)


@dlq.command()
@click.argument("topic")
@ids_argument
@_filtered
@all_option
@yes_option
@dry_run_option
@pass_invocation
def purge(
    invocation: Invocation,
    /,
    topic: str,
    ids: tuple[str, ...],
    everything: bool,
    yes: bool,
    dry_run: bool,
    **options: Any,
) -> int:
    """Remove dead letters of TOPIC permanently: those with the given ids, or all that match the filter."""
    _check_choice(ids, options, everything=everything)
    if everything and not dry_run:
        confirm_all(invocation, f"Remove every dead letter of topic {topic} for good?", yes=yes)
    elif not (yes or dry_run or invocation.json):
        which = f"{len(ids)} dead letters" if ids else "every dead letter that matches"
        click.confirm(f"Remove {which} of topic {topic} for good?", abort=True, err=True)

    def change(letters: DeadLetters, where: dict[str, Any], progress: OnProgress) -> Awaitable[BulkResult]:
        return letters.purge(list(ids) or None, progress=progress, results=True, **where)

    return _change(invocation, topic, ids, options, change, done="purged", dry_run=dry_run)


def _check_choice(ids: tuple[str, ...], options: Mapping[str, Any], *, everything: bool) -> None:
    """Raise a usage error unless there is exactly one of ids, a filter and --all."""
    if sum((bool(ids), any(options.values()), everything)) != 1:
        raise click.UsageError("Give ids or a filter, or --all for every dead letter, not both.")


def _change(
    invocation: Invocation,
    topic: str,
    ids: tuple[str, ...],
    options: Mapping[str, Any],
    change: Callable[[DeadLetters, dict[str, Any], OnProgress], Awaitable[BulkResult]],
    *,
    done: str,
    dry_run: bool,
) -> int:
    async def work(client: Client) -> tuple[int, BulkResult | None]:
        letters = client.dead_letters(topic)
        where = _chosen(client, options)
        matched = len(ids) or await letters.count(**where)
        if dry_run or not matched:
            return matched, None
        with ProgressBar(done, matched, quiet=invocation.json) as bar:
            return matched, await change(letters, where, bar.follow(matched))

    matched, result = invocation.run(work)
    if result is None:
        values = {"topic": topic, "matched": matched, done: 0, "dry_run": dry_run}
        told = f"{matched:,} dead letters of {topic} match; nothing was changed"
        invocation.output.record(values, told if matched else f"no dead letters of {topic} match")
        return 0
    return report_bulk(invocation, {"topic": topic}, result, done)


def report_bulk(invocation: Invocation, values: Mapping[str, Any], result: BulkResult, done: str) -> int:
    """Report the outcome of many messages; returns the exit code."""
    refused = {code.name: count for code, count in result.refused.items()}
    line = f"{result.done:,} {done}" + "".join(f", {count:,} {name}" for name, count in refused.items())
    invocation.output.record({**values, "matched": result.matched, done: result.done, "refused": refused}, line)
    if not invocation.json:
        for message_id, code in list(result.examples.items())[:10]:
            click.secho(f"dejaq: {message_id}: {MEANINGS[code]} [{code.name}]", fg="red", err=True)
    return 1 if refused else 0


def _values(message: Message, now_ms: int) -> dict[str, Any]:
    """A dead letter as plain values, its history by name."""
    history = {
        name.removeprefix("dejaq-"): value
        for name, value in message.headers.items()
        if name.startswith(dead_letter.PREFIX)
    }
    return {**message_values(message, now_ms), **history}


def _line(message: Message) -> str:
    headers = message.headers
    reason = printable(headers.get(dead_letter.REASON, ""))
    if error := headers.get(dead_letter.ERROR):
        reason += f" ({printable(error)})"
    attempts = headers.get(dead_letter.ATTEMPTS, "?")
    return f"{iso(message.ts)}  {message.id}  attempts={attempts}  {reason}  {body_text(message)}"
