"""`dejaq count`, `histogram` and `browse`: what is on the timeline, without taking it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from dejaq.cli.bars import STEPS_MS, draw, label_for, step_for
from dejaq.cli.invocation import Command, Invocation, pass_invocation
from dejaq.cli.output import iso
from dejaq.cli.times import SECONDS, WHEN, When

if TYPE_CHECKING:
    from dejaq.sdk.client import Client

STATUSES = click.Choice(["available", "waiting", "processing"])
LINES = 24
LINES_MAX = 500
# How far ahead the histogram looks when it is not told: the nearest that holds everything.
SPANS_MS = tuple(step * 20 for step in STEPS_MS if step >= 500)

from_option = click.option("--from", "start", type=WHEN, help="Messages at this time or later.")
to_option = click.option("--to", "end", type=WHEN, help="Messages before this time.")
status_option = click.option("--status", type=STATUSES, help="Messages with this status.")


def bounds(start: When | None, end: When | None, now_ms: int) -> tuple[int | None, int | None]:
    """The times that --from and --to name."""
    return (
        None if start is None else max(0, start.at(now_ms)),
        None if end is None else max(0, end.at(now_ms)),
    )


@click.command(cls=Command)
@click.argument("topic")
@from_option
@to_option
@status_option
@pass_invocation
def count(invocation: Invocation, topic: str, start: When | None, end: When | None, status: str | None) -> None:
    """Count messages, exactly."""

    async def work(client: Client) -> int:
        first, last = bounds(start, end, client.now_ms())
        return await client.count(topic, status=status, start=first, end=last)

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
@from_option
@to_option
@click.option("--step", type=SECONDS, help="The length of a bar's time. Default: what fits the screen.")
@status_option
@pass_invocation
def histogram(
    invocation: Invocation,
    topic: str,
    start: When | None,
    end: When | None,
    step: float | None,
    status: str | None,
) -> None:
    """Draw how many messages are due when. Without a range: from now to where the last ones are."""

    async def work(client: Client) -> Picture:
        now_ms = client.now_ms()
        first, last = bounds(start, end, now_ms)
        step_ms = None if step is None else max(1, round(step * 1000))
        first = now_ms if first is None else first
        if last is None:
            last = await _end_of(client, topic, status, first)
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
            earlier=await client.count(topic, status=status, end=first),
            later=await client.count(topic, status=status, start=last),
            steps=await client.histogram(topic, start=first, end=last, step=step_ms / 1000, status=status),
        )

    picture = invocation.run(work)
    if invocation.json:
        invocation.output.object(_picture_values(topic, picture))
        return
    _draw(invocation, picture)


async def _end_of(client: Client, topic: str, status: str | None, start: int) -> int:
    """A time soon after the last message: counts find the span, one fine histogram the place in it."""
    span = SPANS_MS[-1]
    for span in SPANS_MS:
        if await client.count(topic, status=status, start=start + span) == 0:
            break
    step = max(1, span // LINES_MAX)
    steps = await client.histogram(topic, start=start, end=start + span, step=step / 1000, status=status)
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
        f"{picture.earlier:,} earlier, {picture.later:,} later (UTC)"
    )


@click.command(cls=Command)
@click.argument("topic")
@from_option
@to_option
@status_option
@click.option("--max", "limit", type=click.IntRange(min=1), default=100, show_default=True, help="Stop after.")
@click.option("--all", "everything", is_flag=True, help="Do not stop.")
@pass_invocation
def browse(
    invocation: Invocation,
    topic: str,
    start: When | None,
    end: When | None,
    status: str | None,
    limit: int,
    everything: bool,
) -> None:
    """List messages in the order of their time, without taking them."""
    from dejaq.cli.message import print_messages

    async def work(client: Client) -> bool:
        now_ms = client.now_ms()
        left = limit
        first, last = bounds(start, end, now_ms)
        async for page in client.browse(topic, status=status, start=first, end=last):
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
