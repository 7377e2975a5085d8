"""Options that several commands share, and their common meaning."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import click

from dejaq import limits
from dejaq.cli.terminal.times import When

GROUP_DEFAULT = "default"

group_option = click.option(
    "--group",
    default=GROUP_DEFAULT,
    envvar="DEJAQ_GROUP",
    show_default=True,
    show_envvar=True,
    help="The producer group, which owns what it creates.",
)
header_option = click.option(
    "--header", "headers", multiple=True, metavar="KEY=VALUE", help="A header; can be given several times."
)

body_file_option = click.option(
    "--body-file",
    "body_path",
    metavar="PATH",
    help="A file whose content is the body; '-' for stdin.",
)


def read_body(path: str) -> bytes:
    """The content of a file, or of stdin for '-', as a body; no more is read than a body may have."""
    try:
        if path == "-":
            return sys.stdin.buffer.read(limits.LARGE_BODY_BYTES_MAX + 1)
        with Path(path).open("rb") as source:
            return source.read(limits.LARGE_BODY_BYTES_MAX + 1)
    except OSError as wrong:
        raise click.BadParameter(f"cannot read {path}: {wrong.strerror}", param_hint="--body-file") from None


@contextmanager
def body_target(path: str, *, make_folder: bool = False) -> Iterator[BinaryIO]:
    """The file for a body, '-' for stdout; the file gets its name when it is complete."""
    if path == "-":
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    partial = Path(f"{path}.partial")
    try:
        if make_folder:
            partial.parent.mkdir(parents=True, exist_ok=True)
        with partial.open("wb") as target:
            yield target
        partial.replace(path)
    except OSError as wrong:
        raise click.BadParameter(f"cannot write {path}: {wrong.strerror}", param_hint="--output") from None
    finally:
        partial.unlink(missing_ok=True)


def one_time(at: When | None, delay: float | None) -> When | None:
    """The time that either --at or --delay gives."""
    if at is not None and delay is not None:
        raise click.UsageError("Give one of --at and --delay.")
    return When(round(delay * 1000), relative=True) if delay is not None else at


def parse_headers(headers: Sequence[str]) -> dict[str, str]:
    """The map of KEY=VALUE pairs."""
    parsed = {}
    for header in headers:
        key, equals, value = header.partition("=")
        if not key or not equals:
            raise click.BadParameter(f"{header!r} is not KEY=VALUE", param_hint="--header")
        parsed[key] = value
    return parsed
