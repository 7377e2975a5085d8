"""`dejaq count`, `histogram` and `browse`: show the timeline without changing it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from dejaq.cli.terminal.bars import STEPS_MS, draw, label_for, step_for
from dejaq.cli.terminal.invocation import Command, Invocation, pass_invocation
from dejaq.cli.terminal.options import parse_headers
from dejaq.cli.terminal.output import iso
from dejaq.cli.terminal.times import SECONDS, WHEN, When

if TYPE_CHECKING:
    from dejaq.sdk.client import Client

STATUSES = click.Choice(["available", "waiting", "processing"])
LINES = 24
LINES_MAX = 500
# How far ahead the histogram looks by default: the shortest span that contains all messages.
SPANS_MS = tuple(step * 20 for step in STEPS_MS if step >= 500)

from_option = click.option("--from", "start", type=WHEN, help="Messages at this time or later.")
to_option = click.option("--to", "end", type=WHEN, help="Messages before this time.")
# How much of what is to come the histogram leaves out, when it is far behind everything else.
FAR_SHARE = 0.05


def filter_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options that say which messages are meant."""
    for option in (
        click.option("--header", "headers", multiple=True, metavar="KEY=VALUE", help="Messages with this header."),
        click.option("--consumer", help="Messages that this consumer holds."),
        click.option("--group", help="Messages of this producer group."),
        click.option("--status", type=STATUSES, help="Messages with this status."),
        to_option,
        from_option,
    ):
        command = option(command)
    return command


def chosen(headers: Sequence[str], **rest: Any) -> dict[str, Any]:
    """What those options say, as a client takes it."""
    return {**rest, "headers": parse_headers(headers) or None}


def bounds(start: When | None, end: When | None, now_ms: int) -> tuple[int | None, int | None]:
    """The times that --from and --to name."""
    return (
        None if start is None else max(0, start.at(now_ms)),
        None if end is None else max(0, end.at(now_ms)),
    )


@click.command(cls=Command)
@click.argument("topic")
@filter_options
@pass_invocation
def count(
    invocation: Invocation, /, topic: str, start: When | None, end: When | None, headers: tuple[str, ...], **rest: Any
) -> None:
    """Count messages, exactly."""
    where = chosen(headers, **rest)

    async def work(client: Client) -> int:
        first, last = bounds(start, end, client.now_ms())
        return await client.count(topic, start=first, end=last, **where)

    number = invocation.run(work)
    invocation.output.record({"topic": topic, "count": number}, str(number))


@dataclass(frozen=True, slots=True)
class Picture:
    """A histogram with what lies outside its range."""

    start: int
    end: int
    step: int
    earlier: int
    later: int
    steps: Sequence[tuple[int, int]]


@click.command(cls=Command)
@click.argument("topic")
@filter_options
@click.option("--step", type=SECONDS, help="The time that one bar covers. Default: as many bars as fit on the screen.")
@pass_invocation
def histogram(
    invocation: Invocation,
    /,
    topic: str,
    start: When | None,
    end: When | None,
    step: float | None,
    headers: tuple[str, ...],
    **rest: Any,
) -> None:
    """Draw the number of messages that are due in each period.

    Without --to, it ends at a time before which nearly all of them are due; the number of later ones is printed below.
    """
    where = chosen(headers, **rest)

    async def work(client: Client) -> Picture:
        now_ms = client.now_ms()
        first, last = bounds(start, end, now_ms)
        step_ms = None if step is None else max(1, round(step * 1000))
        first = now_ms if first is None else first
        if last is None:
            last = await _end_of(client, topic, where, first)
        step_ms = step_ms or step_for(last - first, LINES)
        first -= first % step_ms
        if last <= first:
            raise click.UsageError("--to must be later than --from.")
        if (last - first) // step_ms > LINES_MAX and not invocation.json:
            raise click.UsageError(f"That is over {LINES_MAX} bars; give a longer --step or a shorter range.")
        return Picture(
            start=first,
            end=last,
            step=step_ms,
            earlier=await client.count(topic, end=first, **where),
            later=await client.count(topic, start=last, **where),
            steps=await client.histogram(topic, start=first, end=last, step=step_ms / 1000, **where),
        )

    picture = invocation.run(work)
    if invocation.json:
        invocation.output.object(_picture_values(topic, picture))
        return
    _draw(invocation, picture)


async def _end_of(client: Client, topic: str, where: dict[str, Any], start: int) -> int:
    """A time soon after the last message, or after all but a few that are far behind the others.

    Counts find the span, one fine histogram the place in it.
    """
    left_out = int(await client.count(topic, start=start, **where) * FAR_SHARE)
    span = SPANS_MS[-1]
    for span in SPANS_MS:
        if await client.count(topic, start=start + span, **where) <= left_out:
            break
    step = max(1, span // LINES_MAX)
    steps = await client.histogram(topic, start=start, end=start + span, step=step / 1000, **where)
    return steps[-1][0] + step if steps else start + span


def _picture_values(topic: str, picture: Picture) -> dict[str, Any]:
    return {
        "topic": topic,
        "from": iso(picture.start),
        "to": iso(picture.end),
        "step_ms": picture.step,
        "earlier": picture.earlier,
        "later": picture.later,
        "steps": [{"at": iso(at), "ts": at, "count": number} for at, number in picture.steps],
    }


def _draw(invocation: Invocation, picture: Picture) -> None:
    counts = dict(picture.steps)
    starts = range(picture.start, picture.end, picture.step)
    labels = [label_for(at, picture.step) for at in starts]
    values = [counts.get(at, 0) for at in starts]
    for line in draw(labels, values, width=invocation.output.console.width):
        click.echo(line)
    inside = sum(values)
    invocation.output.note(
        f"{inside:,} from {iso(picture.start)} to {iso(picture.end)}, "
        f"{picture.earlier:,} earlier, {picture.later:,} later (UTC)" + ("; --to shows them" if picture.later else "")
    )


@click.command(cls=Command)
@click.argument("topic")
@filter_options
@click.option("--max", "limit", type=click.IntRange(min=1), default=100, show_default=True, help="Stop after.")
@click.option("--all", "everything", is_flag=True, help="List all messages.")
@pass_invocation
def browse(
    invocation: Invocation,
    /,
    topic: str,
    start: When | None,
    end: When | None,
    headers: tuple[str, ...],
    limit: int,
    everything: bool,
    **rest: Any,
) -> None:
    """List messages in the order of their time, without leasing them."""
    where = chosen(headers, **rest)
    from dejaq.cli.messages.message import print_messages

    async def work(client: Client) -> bool:
        now_ms = client.now_ms()
        left = limit
        first, last = bounds(start, end, now_ms)
        async for page in client.browse(topic, start=first, end=last, **where):
            messages = page if everything else page[:left]
            if messages:
                print_messages(invocation, messages, now_ms)
            left -= len(messages)
            if left <= 0 and not everything:
                return True
        if left == limit:
            invocation.output.note("no messages")
        return False

    if invocation.run(work):
        invocation.output.note(f"the first {limit}; --max N shows more, --all shows all")
