"""`dejaq produce`: sends one message from the command line, or a file of messages."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dejaq.cli.messages.rows import InputRow, RowError, parse_row
from dejaq.cli.terminal.invocation import Command, Invocation, pass_invocation
from dejaq.cli.terminal.lines import LINE_BYTES_MAX, lines_of
from dejaq.cli.terminal.options import body_file_option, group_option, header_option, one_time, parse_headers, read_body
from dejaq.cli.terminal.progress import ProgressBar
from dejaq.cli.terminal.times import SECONDS, WHEN, When
from dejaq.errors import MEANINGS, Code

if TYPE_CHECKING:
    from dejaq.sdk.client import Client
    from dejaq.sdk.producing.producer import Producer

# Enough to make a batch cheap, few enough that progress is seen and an error is near its line.
ROWS_A_BATCH = 1_000
BYTES_A_BATCH = 4 * 1024 * 1024


@click.command(cls=Command)
@click.argument("topic")
@click.option("--body", help="The message.")
@body_file_option
@click.option("--id", "message_id", metavar="ID", help="The id; a repeat with the same id and content changes nothing.")
@click.option("--at", type=WHEN, help="When it is due. Default: now.")
@click.option("--delay", type=SECONDS, help="The time until it is due.")
@click.option("--priority", type=int, default=0, show_default=True, help="Lower goes first.")
@header_option
@group_option
@click.option(
    "--file",
    "path",
    metavar="PATH",
    help="Send every line of this file, or of stdin with '-': "
    '{"body" or "body_base64", "id", "at" or "delay", "priority", "headers"}.',
)
@pass_invocation
def produce(
    invocation: Invocation,
    topic: str,
    body: str | None,
    body_path: str | None,
    message_id: str | None,
    at: When | None,
    delay: float | None,
    priority: int,
    headers: tuple[str, ...],
    group: str,
    path: str | None,
) -> int:
    """Send a message, or a file of messages, to TOPIC."""
    if [body, body_path, path].count(None) != 2:
        raise click.UsageError("Give one of --body, --body-file and --file.")
    if path is not None:
        if any((message_id, at, delay is not None, priority, headers)):
            raise click.UsageError("With --file, give ids, times, priorities and headers in the rows.")
        return _produce_file(invocation, topic, group, path)
    content = body.encode() if body is not None else read_body(str(body_path))
    when = one_time(at, delay) or When(0, relative=True)
    arguments: dict[str, Any] = {"priority": priority, "headers": parse_headers(headers) or None}

    async def work(client: Client) -> str:
        async with client.producer(topic, group=group) as producer:
            return await producer.send(content, id=message_id, **when.as_arguments(), **arguments)

    sent = invocation.run(work)
    invocation.output.record({"id": sent, "topic": topic}, sent)
    return 0


def _produce_file(invocation: Invocation, topic: str, group: str, path: str) -> int:
    async def work(client: Client) -> LineSender:
        async with client.producer(topic, group=group) as producer:
            with source_of(path) as (source, size), ProgressBar("sending", size, quiet=invocation.json) as progress:
                sender = LineSender(invocation, producer)
                await sender.send_all(source, progress)
                return sender

    sender = invocation.run(work)
    summary = {
        "topic": topic,
        "created": sender.created,
        "repeats": sender.repeats,
        "refused": sender.refused,
    }
    invocation.output.record(
        summary,
        f"{sender.created:,} created, {sender.repeats:,} already there, {sender.refused:,} refused",
    )
    return 1 if sender.refused else 0


@contextmanager
def source_of(path: str) -> Iterator[tuple[int, int | None]]:
    """The descriptor to read from and its size in bytes, where that is known."""
    if path == "-":
        yield sys.stdin.fileno(), None
        return
    try:
        with Path(path).open("rb") as source:
            known = Path(path).is_file()
            yield source.fileno(), Path(path).stat().st_size if known else None
    except (FileNotFoundError, IsADirectoryError, PermissionError) as wrong:
        raise click.BadParameter(f"cannot read {path}: {wrong.strerror}", param_hint="--file") from None


class LineSender:
    """Sends rows in batches and counts their outcomes."""

    def __init__(self, invocation: Invocation, producer: Producer) -> None:
        self._invocation = invocation
        self._producer = producer
        self.created = 0
        self.repeats = 0
        self.refused = 0

    async def send_all(self, source: int, progress: ProgressBar) -> None:
        """Send every line when it arrives; a refused line is reported with its number, and the others are sent."""
        number = 0
        async for lines in lines_of(source):
            rows: list[InputRow] = []
            held = 0
            for line in lines:
                number += 1
                row = self._parse(line, number)
                if row is not None:
                    rows.append(row)
                    held += len(row.body)
                if len(rows) >= ROWS_A_BATCH or held >= BYTES_A_BATCH:
                    await self._send(rows)
                    rows, held = [], 0
            if rows:
                await self._send(rows)
            progress.advance(sum(map(len, lines)) + len(lines), f"{self.created:,} created")

    def _parse(self, line: bytes, number: int) -> InputRow | None:
        if not line.strip():
            return None
        try:
            if len(line) > LINE_BYTES_MAX:
                raise RowError(f"longer than {LINE_BYTES_MAX} bytes")
            return parse_row(line.decode("utf-8"), number)
        except (RowError, UnicodeDecodeError) as wrong:
            self._refuse(number, "INVALID_ROW", str(wrong))
            return None

    async def _send(self, rows: Sequence[InputRow]) -> None:
        # A batch is columns, so rows with and without an id, and rows with a time or a delay, are sent in separate
        # batches.
        kinds: dict[tuple[bool, bool], list[InputRow]] = {}
        for row in rows:
            kinds.setdefault((row.id is not None, row.when.relative), []).append(row)
        for (named, relative), alike in kinds.items():
            await self._send_alike(alike, named=named, relative=relative)

    async def _send_alike(self, rows: Sequence[InputRow], *, named: bool, relative: bool) -> None:
        times: dict[str, Any] = (
            {"delay": [row.when.ms / 1000 for row in rows]} if relative else {"at": [row.when.ms for row in rows]}
        )
        results = await self._producer.send_batch(
            [row.body for row in rows],
            ids=[str(row.id) for row in rows] if named else None,
            priorities=[row.priority for row in rows] if any(row.priority for row in rows) else None,
            headers=[row.headers for row in rows] if any(row.headers for row in rows) else None,
            results=True,
            **times,
        )
        for index, row in enumerate(rows):
            code = results[index]
            if code is Code.OK:
                self.created += 1
            elif code.succeeded:
                self.repeats += 1
            else:
                self._refuse(row.line, code.name, MEANINGS[code])

    def _refuse(self, line: int, code: str, message: str) -> None:
        self.refused += 1
        if self._invocation.json:
            self._invocation.output.object({"line": line, "outcome": code, "message": message})
        else:
            click.secho(f"dejaq: line {line}: {message} [{code}]", fg="red", err=True)
