"""Options that several commands share, and what they mean together."""

from __future__ import annotations

from collections.abc import Sequence

import click

from dejaq.cli.times import When

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
    "--header", "headers", multiple=True, metavar="KEY=VALUE", help="A header; may be given again."
)


def one_time(at: When | None, delay: float | None) -> When | None:
    """The one time that --at and --delay name together."""
    if at is not None and delay is not None:
        raise click.UsageError("Give one of --at and --delay.")
    return When(round(delay * 1000), relative=True) if delay is not None else at


def parse_headers(headers: Sequence[str]) -> dict[str, str]:
    """The map that KEY=VALUE pairs spell."""
    parsed = {}
    for header in headers:
        key, equals, value = header.partition("=")
        if not key or not equals:
            raise click.BadParameter(f"{header!r} is not KEY=VALUE", param_hint="--header")
        parsed[key] = value
    return parsed
