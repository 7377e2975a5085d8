"""`dejaq transaction`: makes all changes of a file, or none."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dejaq import limits
from dejaq.cli.messages.rows import InputRow, RowError, parse_row
from dejaq.cli.terminal.invocation import Command, Invocation, pass_invocation
from dejaq.cli.terminal.options import group_option

if TYPE_CHECKING:
    from dejaq.sdk.changing.transaction import Transaction
    from dejaq.sdk.client import Client
    from dejaq.sdk.log.log import Log

# The fields of each kind of change, in addition to topic, id and group.
CHANGES = {
    "send": {"body", "body_base64", "at", "delay", "priority", "headers"},
    "edit": {"body", "body_base64", "at", "delay", "priority", "headers", "version"},
    "move": {"at", "delay"},
    "cancel": set[str](),
    "append": {"body", "body_base64", "key", "headers", "bucket"},
}
DONE = {"send": "sent", "edit": "edited", "move": "moved", "cancel": "cancelled", "append": "appended"}


@dataclass(frozen=True, slots=True)
class LineChange:
    """One line: the kind of change, the message, and the values."""

    line: int
    kind: str
    topic: str
    group: str | None
    values: dict[str, Any]
    row: InputRow

    def add_to(self, transaction: Transaction, log_of: Callable[[str], Log]) -> str:
        """Add it to a transaction; returns the id of the message, or the key of one of a log."""
        if self.kind == "append":
            key, row = self.values.get("key", ""), self.row
            transaction.append(
                log_of(self.topic),
                row.body,
                key=key.encode(),
                headers=row.headers or None,
                bucket=self.values.get("bucket"),
            )
            return str(key)
        times = self.row.when.as_arguments() if "at" in self.values or "delay" in self.values else {}
        if self.kind == "send":
            row = self.row
            return transaction.send(
                self.topic,
                row.body,
                id=row.id,
                priority=row.priority,
                headers=row.headers or None,
                group=self.group,
                **times,
            )
        assert self.row.id is not None
        if self.kind == "cancel":
            transaction.cancel(self.topic, self.row.id, group=self.group)
        elif self.kind == "move":
            transaction.move(self.topic, self.row.id, group=self.group, **times)
        else:
            transaction.edit(self.topic, self.row.id, group=self.group, **self._edited(), **times)
        return self.row.id

    def _edited(self) -> dict[str, Any]:
        chosen: dict[str, Any] = {}
        if "body" in self.values or "body_base64" in self.values:
            chosen["body"] = self.row.body
        if "priority" in self.values:
            chosen["priority"] = self.row.priority
        if "headers" in self.values:
            chosen["headers"] = self.values["headers"] or {}
        if "version" in self.values:
            chosen["version"] = self.values["version"]
        return chosen


@click.command(cls=Command)
@click.argument("path", metavar="FILE")
@click.option("--dry-run", is_flag=True, help="Only read the file and report what it would change.")
@group_option
@pass_invocation
def transaction(invocation: Invocation, path: str, dry_run: bool, group: str) -> int:
    """Make all changes of FILE, or of stdin with '-', or none of them.

    One JSON object per line: {"do": "send", "topic", "body" or "body_base64", "id", "at" or "delay", "priority",
    "headers"}, {"do": "move", "topic", "id", "at" or "delay"}, {"do": "edit", "topic", "id", what changes,
    "version"}, {"do": "cancel", "topic", "id"}; each may have its own "group". An edit merges "headers" with
    those of the message, and removes a header whose value is null. {"do": "append", "topic", "body" or
    "body_base64", "key", "headers", "bucket"} appends to a log.
    """
    changes = _read(path)
    counts = {DONE[kind]: count for kind, count in Counter(change.kind for change in changes).items()}
    if dry_run:
        told = ", ".join(f"{count:,} {done}" for done, count in counts.items())
        invocation.output.record({**counts, "dry_run": True}, f"{told} would be asked for; nothing was changed")
        return 0

    async def work(client: Client) -> list[str]:
        logs = {change.topic: client.log(change.topic) for change in changes if change.kind == "append"}
        async with client.transaction(group=group) as collected:
            return [change.add_to(collected, logs.__getitem__) for change in changes]

    ids = invocation.run(work)
    for change, message_id in zip(changes, ids, strict=True):
        if change.kind == "append":
            told = f"appended to {change.topic}"
            invocation.output.record({"key": message_id, "topic": change.topic, "outcome": "appended"}, told)
            continue
        values = {"id": message_id, "topic": change.topic, "outcome": DONE[change.kind]}
        invocation.output.record(values, f"{values['outcome']} {message_id} in {change.topic}")
    return 0


def _read(path: str) -> list[LineChange]:
    """Every change of a file; if one line cannot be read, nothing is done."""
    try:
        text = sys.stdin.read() if path == "-" else Path(path).read_text("utf-8")
    except (OSError, UnicodeDecodeError) as wrong:
        raise click.BadParameter(f"cannot read {path}: {wrong}", param_hint="FILE") from None
    changes: list[LineChange] = []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        try:
            changes.append(parse_change(line, number))
        except RowError as wrong:
            raise click.BadParameter(f"line {number}: {wrong}; nothing was done", param_hint="FILE") from None
    if not 1 <= len(changes) <= limits.BATCH_COUNT_MAX:
        told = f"{len(changes):,} changes; a transaction has 1 to {limits.BATCH_COUNT_MAX:,}"
        raise click.BadParameter(told, param_hint="FILE")
    return changes


def parse_change(text: str, line: int) -> LineChange:
    """The change on one line; RowError says what is wrong with it."""
    try:
        values = json.loads(text)
    except ValueError as wrong:
        raise RowError(f"not JSON: {wrong}") from None
    if not isinstance(values, dict) or values.get("do") not in CHANGES:
        raise RowError(f'not an object with "do" as one of {", ".join(CHANGES)}')
    kind, topic, group = values.pop("do"), values.pop("topic", None), values.pop("group", None)
    if not isinstance(topic, str) or not isinstance(group, str | None):
        raise RowError("'topic' must be a string, and 'group' where it is given")
    unknown = sorted(set(values) - CHANGES[kind] - {"id"})
    if unknown:
        raise RowError(f"{kind} takes no {unknown[0]!r}; it takes id, {', '.join(sorted(CHANGES[kind])) or 'no more'}")
    version = values.get("version", 0)
    if not isinstance(version, int) or isinstance(version, bool):
        raise RowError("'version' must be an integer")
    if kind == "append":
        _check_append(values)
    elif kind != "send" and not isinstance(values.get("id"), str):
        raise RowError(f"{kind} needs the 'id' of a message")
    if kind == "move" and not {"at", "delay"} & set(values):
        raise RowError("move needs 'at' or 'delay'")
    if kind == "edit" and not set(values) - {"id", "version"}:
        raise RowError("edit needs what changes: body, at, delay, priority or headers")
    return LineChange(line, kind, topic, group, values, _row(kind, values, line))


def _check_append(values: dict[str, Any]) -> None:
    if "id" in values:
        raise RowError("a message of a log has no 'id'; give it a 'key'")
    if not isinstance(values.get("key", ""), str):
        raise RowError("'key' must be a string")
    bucket = values.get("bucket", 0)
    if not isinstance(bucket, int) or isinstance(bucket, bool):
        raise RowError("'bucket' must be an integer")


def _row(kind: str, values: dict[str, Any], line: int) -> InputRow:
    """The values of a message, read as `dejaq produce` reads them."""
    plain = {key: value for key, value in values.items() if key not in ("version", "key", "bucket")}
    if kind == "edit" and isinstance(plain.get("headers"), dict):
        plain["headers"] = {name: value for name, value in plain["headers"].items() if value is not None}
    if kind != "send" and not {"body", "body_base64"} & set(plain):
        plain["body"] = ""
    return parse_row(json.dumps(plain), line)
