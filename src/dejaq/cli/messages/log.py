"""`dejaq log`: appends to a log topic, reads it, and manages its groups."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Iterable
from typing import TYPE_CHECKING, Any

import click

from dejaq.cli.messages.produce import source_of
from dejaq.cli.terminal.invocation import Group, Invocation, pass_invocation
from dejaq.cli.terminal.lines import lines_of
from dejaq.cli.terminal.options import parse_headers
from dejaq.cli.terminal.output import iso
from dejaq.cli.terminal.times import parse_when

if TYPE_CHECKING:
    from dejaq.sdk.client import Client
    from dejaq.sdk.log.calls import LogGroupInfo, LogPreparedInfo, Start
    from dejaq.sdk.log.log import Log
    from dejaq.sdk.log.messages import AppendedBatch, LogMessage

LINES_PER_BATCH = 1_000
PLACES = "beginning, latest, an offset, or a time such as -1h or 2030-01-31T09:00:00Z"
uncommitted_option = click.option(
    "--uncommitted", is_flag=True, help="Also messages that can still be rolled back, or were."
)

wanted_option = click.option(
    "--header", "headers", multiple=True, metavar="KEY=VALUE", help="Only messages with this header; may be repeated."
)


@click.group(cls=Group)
def log() -> None:
    """Append to log topics, read them by offsets, and manage their groups."""


def _place(text: str, now_ms: int) -> Start:
    """Where reading begins or ends, as people write it."""
    from dejaq.sdk.times import to_datetime

    if text in ("beginning", "latest"):
        return text
    if text.isdecimal() and int(text) < 10**11:
        return int(text)
    try:
        return to_datetime(parse_when(text).at(now_ms))
    except ValueError as wrong:
        raise click.UsageError(f"{text!r} is not a place in a log: give {PLACES}. {wrong}") from None


def log_message_line(message: LogMessage) -> str:
    """A message of a log on one line: bucket and offset, time, key and body."""
    values = log_message_values(message)
    key = f" {values['key']}:" if message.key else ""
    mark = " (rolled back)" if message.aborted else ""
    return f"{message.bucket}/{message.offset} {values['at']}{key} {values['body']}{mark}"


def _text(data: bytes) -> str:
    return data.decode("utf-8", "backslashreplace")


def log_message_values(message: LogMessage) -> dict[str, Any]:
    """A message of a log as plain values."""
    values: dict[str, Any] = {
        "bucket": message.bucket,
        "offset": message.offset,
        "at": iso(message.ts_ms),
        "key": _text(message.key),
        "body": _text(message.body),
        "headers": message.headers,
    }
    return values | ({"rolled_back": True} if message.aborted else {})


class Printer:
    """Prints messages until there were so many; 0 for no limit."""

    def __init__(self, invocation: Invocation, count_max: int) -> None:
        self._invocation, self._left = invocation, count_max or sys.maxsize

    def show(self, message: LogMessage) -> bool:
        """Print a message; whether another one may follow."""
        self._invocation.output.record(log_message_values(message), log_message_line(message))
        self._left -= 1
        return self._left > 0


@log.command()
@click.argument("topic")
@click.option("--body", help="The message.")
@click.option("--key", default="", help="Messages with one key are in one bucket, in order.")
@click.option("--header", "headers", multiple=True, metavar="KEY=VALUE", help="A header; may be repeated.")
@click.option("--bucket", type=int, help="The bucket, instead of that of the key.")
@click.option("--file", "path", help="One message for each line of this file; - reads standard input.")
@click.option("--names", is_flag=True, help="Print the name of each batch, which `dejaq log rollback` takes.")
@pass_invocation
def append(
    invocation: Invocation,
    /,
    topic: str,
    body: str | None,
    key: str,
    headers: tuple[str, ...],
    bucket: int | None,
    path: str | None,
    names: bool,
) -> None:
    """Append a message, or the lines of a file, to TOPIC."""
    if (body is None) == (path is None):
        raise click.UsageError("Give one of --body and --file.")
    if path is not None and (key or headers):
        raise click.UsageError("With --file, messages have no keys and no headers.")

    def show(batches: Iterable[AppendedBatch]) -> None:
        for batch in batches if names else ():
            values = {"topic": topic, "bucket": batch.bucket, "offset": batch.base, "count": batch.count}
            invocation.output.record(values | {"name": batch.name}, batch.name)

    async def one(client: Client) -> None:
        target, data, found = client.log(topic), str(body).encode(), parse_headers(headers) or None
        if names:
            columns = [key.encode()] if key else None, [found] if found else None
            show(await target.append_batch([data], keys=columns[0], headers=columns[1], bucket=bucket))
            return
        place = await target.append(data, key=key.encode(), headers=found, bucket=bucket)
        values = {"topic": topic, "bucket": place.bucket, "offset": place.offset}
        invocation.output.record(values, f"{place.bucket}/{place.offset}")

    async def many(client: Client) -> int:
        count, target = 0, client.log(topic)
        with source_of(str(path)) as (source, _):
            async for lines in lines_of(source):
                for first in range(0, len(lines), LINES_PER_BATCH):
                    part = lines[first : first + LINES_PER_BATCH]
                    show(await target.append_batch(part, bucket=bucket))
                    count += len(part)
        return count

    if path is None:
        invocation.run(one)
        return
    count = invocation.run(many)
    if not names:
        invocation.output.record({"topic": topic, "appended": count}, f"{count:,} appended")


@log.command()
@click.argument("topic")
@click.option("--from", "start", default="beginning", show_default=True, metavar="PLACE", help=f"One of: {PLACES}.")
@click.option("--to", "end", default="latest", show_default=True, metavar="PLACE", help="Before this place.")
@click.option("--bucket", "buckets", type=int, multiple=True, help="Only this bucket; may be repeated.")
@click.option("--max", "count_max", type=click.IntRange(min=1), help="At most so many messages.")
@uncommitted_option
@wanted_option
@pass_invocation
def read(
    invocation: Invocation,
    /,
    topic: str,
    start: str,
    end: str,
    buckets: tuple[int, ...],
    count_max: int | None,
    uncommitted: bool,
    headers: tuple[str, ...],
) -> None:
    """Print what TOPIC has between two places, bucket by bucket, and end."""
    printer = Printer(invocation, count_max or 0)

    async def work(client: Client) -> None:
        begin, stop = _place(start, client.now_ms()), _place(end, client.now_ms())
        wanted = parse_headers(headers)
        found = client.log(topic).read(
            start=begin, end=stop, buckets=buckets or None, uncommitted=uncommitted, headers=wanted
        )
        async for batch in found:
            for message in batch:
                if not printer.show(message):
                    return

    invocation.run(work)


@log.command()
@click.argument("topic")
@click.option("-n", "count", type=click.IntRange(min=0), default=10, show_default=True, help="The last messages.")
@click.option("--follow/--no-follow", default=True, help="Wait for more messages, until Ctrl-C.")
@click.option("--max", "count_max", type=click.IntRange(min=1), help="End after so many messages.")
@uncommitted_option
@wanted_option
@pass_invocation
def tail(
    invocation: Invocation,
    /,
    topic: str,
    count: int,
    follow: bool,
    count_max: int | None,
    uncommitted: bool,
    headers: tuple[str, ...],
) -> None:
    """Print the last messages of TOPIC, and those that follow."""
    printer, wanted = Printer(invocation, count_max or 0), parse_headers(headers)

    async def work(client: Client) -> None:
        target = client.log(topic)
        ends = {bucket: one.next if uncommitted else one.stable for bucket, one in enumerate(await target.offsets())}
        last = await target.tail(count, uncommitted=uncommitted, headers=wanted) if count else ()
        for message in last:
            # What was appended meanwhile comes from the reader below.
            if message.offset < ends[message.bucket] and not printer.show(message):
                return
        if follow:
            async for message in _following(target, ends, uncommitted, wanted):
                if not printer.show(message):
                    return

    invocation.run(work)


async def _following(
    target: Log, ends: dict[int, int], uncommitted: bool, headers: dict[str, str]
) -> AsyncIterator[LogMessage]:
    async with target.reader(start=ends, uncommitted=uncommitted, headers=headers) as reader:
        async for message in reader:
            yield message


@log.command()
@click.argument("topic")
@pass_invocation
def groups(invocation: Invocation, topic: str) -> None:
    """List the groups of TOPIC with their members and their lag."""

    async def work(client: Client) -> list[LogGroupInfo]:
        return await client.log(topic).groups()

    rows = [
        {"group": one.name, "members": len(one.members), "buckets": len(one.committed), "lag": one.lag}
        for one in invocation.run(work)
    ]
    columns = ("group", "members", "buckets", "lag")
    invocation.output.table(rows, columns, numbers=columns[1:], empty="no group has read this log yet")


@log.command()
@click.argument("topic")
@click.argument("group")
@pass_invocation
def lag(invocation: Invocation, topic: str, group: str) -> None:
    """Show what GROUP has committed of each bucket of TOPIC, and how much is left."""

    async def work(client: Client) -> list[dict[str, Any]]:
        target = client.log(topic)
        found = next((one for one in await target.groups() if one.name == group), None)
        committed = {} if found is None else found.committed
        return [
            {
                "bucket": bucket,
                "start": one.start,
                "committed": committed.get(bucket),
                "next": one.next,
                "lag": one.next - max(committed.get(bucket, 0), one.start),
            }
            for bucket, one in enumerate(await target.offsets())
        ]

    columns = ("bucket", "start", "committed", "next", "lag")
    invocation.output.table(invocation.run(work), columns, numbers=columns, empty="the log has no buckets")


@log.command()
@click.argument("topic")
@click.argument("group")
@click.option("--to", "place", required=True, metavar="PLACE", help=f"One of: {PLACES}.")
@click.option("--bucket", "buckets", type=int, multiple=True, help="Only this bucket; may be repeated.")
@click.option("--dry-run", is_flag=True, help="Show the offsets and change nothing.")
@pass_invocation
def reset(
    invocation: Invocation, /, topic: str, group: str, place: str, buckets: tuple[int, ...], dry_run: bool
) -> None:
    """Let GROUP continue at another place of TOPIC; its members do so at once."""

    async def work(client: Client) -> dict[int, int]:
        target = client.log(topic)
        start = _place(place, client.now_ms())
        return await target.reset_group(group, start, buckets=buckets or None, dry_run=dry_run)

    rows = [{"bucket": bucket, "offset": offset} for bucket, offset in sorted(invocation.run(work).items())]
    if dry_run and not invocation.json:
        click.echo("dry run: nothing was changed", err=True)
    invocation.output.table(rows, ("bucket", "offset"), numbers=("bucket", "offset"), empty="no bucket was chosen")


@log.command()
@click.argument("topic")
@click.argument("name")
@pass_invocation
def rollback(invocation: Invocation, topic: str, name: str) -> None:
    """Take the batch NAME out of TOPIC, within the rollback window; `dejaq log append --names` prints names."""

    async def work(client: Client) -> None:
        await client.log(topic).rollback(name)

    invocation.run(work)
    invocation.output.record({"topic": topic, "name": name}, f"batch {name} is rolled back")


@log.command("in-doubt")
@click.argument("topic")
@pass_invocation
def in_doubt(invocation: Invocation, topic: str) -> None:
    """List the transactions that were prepared under names of TOPIC and are not resolved."""

    async def work(client: Client) -> list[LogPreparedInfo]:
        return await client.log(topic).in_doubt()

    rows = [
        {
            "name": one.name,
            "prepared": one.prepared.isoformat(),
            "deadline": one.deadline.isoformat(),
            "messages": one.messages,
            "offsets": one.offsets,
        }
        for one in invocation.run(work)
    ]
    columns = ("name", "prepared", "deadline", "messages", "offsets")
    invocation.output.table(rows, columns, numbers=columns[3:], empty="no transaction is in doubt")


@log.command()
@click.argument("topic")
@click.argument("name")
@click.option("--abort", is_flag=True, help="Abort it.")
@pass_invocation
def resolve(invocation: Invocation, topic: str, name: str, *, abort: bool) -> None:
    """Commit, or with --abort abort, the transaction that was prepared under NAME of TOPIC."""

    async def work(client: Client) -> None:
        target = client.log(topic)
        await (target.abort_prepared(name) if abort else target.commit_prepared(name))

    invocation.run(work)
    state = "aborted" if abort else "committed"
    invocation.output.record({"topic": topic, "name": name, "state": state}, f"transaction {name} is {state}")
