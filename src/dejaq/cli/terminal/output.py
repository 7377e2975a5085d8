"""Results on stdout: tables and lines for people, one JSON object per line for programs."""

from __future__ import annotations

import base64
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table


def text_or_base64(body: bytes) -> dict[str, str]:
    """`body` where the bytes are text, else `body_base64`: what `dejaq produce --file` reads back."""
    try:
        return {"body": body.decode("utf-8")}
    except UnicodeDecodeError:
        return {"body_base64": base64.b64encode(body).decode("ascii")}


def shown(body: bytes, width: int = 60) -> str:
    """A body in one line for people."""
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError:
        return f"<{len(body)} bytes>"
    line = printable(text)
    return line if len(line) <= width else line[: width - 1] + "\N{HORIZONTAL ELLIPSIS}"


def printable(text: str) -> str:
    """`text` without what would move the cursor or change the terminal."""
    return "".join(c if c.isprintable() else "\N{MIDDLE DOT}" for c in text)


def iso(ms: int) -> str:
    """UTC milliseconds as ISO 8601."""
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


class Output:
    """One command's results."""

    def __init__(self, *, json: bool) -> None:
        self.json = json

    @property
    def console(self) -> Console:
        """A terminal that knows its width and whether it has colours."""
        from rich.console import Console

        return Console(file=sys.stdout, highlight=False)

    def record(self, values: Mapping[str, Any], line: str | None = None) -> None:
        """One result: as JSON, or as `line`, or field by field."""
        if self.json:
            self.object(values)
        elif line is not None:
            click.echo(line)
        else:
            width = max(map(len, values), default=0)
            for name, value in values.items():
                click.echo(f"{name:<{width}}  {plain(value)}")

    def object(self, values: Mapping[str, Any]) -> None:
        """One JSON object on a line, flushed so that a reader of the pipe sees it at once."""
        sys.stdout.write(json.dumps(values, ensure_ascii=False) + "\n")
        sys.stdout.flush()

    def table(
        self,
        rows: Sequence[Mapping[str, Any]],
        columns: Sequence[str],
        *,
        numbers: Iterable[str] = (),
        empty: str = "",
    ) -> None:
        """Many results: one JSON object each with every field, or a table of `columns`.

        On a terminal that is too narrow for the table, each row is shown field by field.
        """
        if self.json:
            for row in rows:
                self.object(row)
            return
        if not rows:
            click.echo(empty, err=True)
            return
        console, width = self.console, width_of(rows, columns)
        if console.is_terminal and width > console.width:
            self._print_fields(rows, columns)
            return
        console.width = max(console.width, width)
        console.print(table_of(rows, columns, numbers=numbers))

    def _print_fields(self, rows: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> None:
        """Each row as lines of a field and its value, with an empty line between rows."""
        width = max(len(LABELS.get(column, column)) for column in columns)
        for number, row in enumerate(rows):
            if number:
                click.echo()
            for column in columns:
                click.echo(f"{LABELS.get(column, column):<{width}}  {plain(row.get(column))}")

    def line(self, text: str) -> None:
        """A line for people."""
        click.echo(text)

    def note(self, text: str) -> None:
        """A remark for people, separate from the results."""
        if not self.json:
            click.echo(text, err=True)


# Cells between two columns.
GAP = 2
# Short heads, so that a table fits a terminal of 80 columns.
LABELS = {
    "available": "avail",
    "processing": "leased",
    "consumers": "cons",
    "producers": "prod",
    "growth_per_s": "growth/s",
    "latency_ms": "latency ms",
    "clock_offset_ms": "offset ms",
    "drift_ms": "drift ms",
    "inflight": "in flight",
}


def table_of(rows: Sequence[Mapping[str, Any]], columns: Sequence[str], *, numbers: Iterable[str] = ()) -> Table:
    """A rich table."""
    from rich.table import Table
    from rich.text import Text

    right = set(numbers)
    table = Table(box=None, pad_edge=False, padding=(0, GAP, 0, 0), header_style="bold")
    for column in columns:
        label = LABELS.get(column, column)
        table.add_column(label, justify="right" if column in right else "left", overflow="fold")
    for row in rows:
        # Text, not markup: a topic or body may hold square brackets.
        table.add_row(*(Text(plain(row.get(column))) for column in columns))
    return table


def widths_of(rows: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> list[int]:
    """How many cells of a terminal each column takes, with the gap behind it."""
    from rich.cells import cell_len

    return [
        GAP + max(cell_len(LABELS.get(column, column)), *(cell_len(plain(row.get(column))) for row in rows), 0)
        for column in columns
    ]


def width_of(rows: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> int:
    """How many cells a table takes."""
    return sum(widths_of(rows, columns))


def plain(value: Any) -> str:
    """A value as a person reads it."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.1f}"
    if isinstance(value, Mapping):
        return printable(" ".join(f"{k}={v}" for k, v in value.items()))
    if isinstance(value, list | tuple):
        return printable(", ".join(map(str, value)))
    return printable(str(value))
