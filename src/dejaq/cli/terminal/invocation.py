"""What every command shares: the common options, and the connection to a broker."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

import click

from dejaq.errors import Code, DejaqError, Unavailable

if TYPE_CHECKING:
    from dejaq.cli.terminal.output import Output
    from dejaq.sdk.client import Client

Result = TypeVar("Result")
URL_DEFAULT = "dejaq://127.0.0.1:7400"
# How long a command waits for the first connection. After that it tolerates a longer outage.
CONNECT_SECONDS = 3.0
WAIT_SECONDS = 1.0


def url_default() -> str:
    """The address where no --url is given. Read here and not by an option, so that --url wins everywhere."""
    return os.environ.get("DEJAQ_URL") or URL_DEFAULT


@dataclass(slots=True)
class Invocation:
    """The shared options of one command line."""

    url: str = field(default_factory=url_default)
    json: bool = False
    debug: bool = False
    # What to do next after an error, where a command knows better than the general table.
    hints: dict[Code, str] = field(default_factory=dict)

    @property
    def output(self) -> Output:
        """Where results go: to people, or as JSON to programs."""
        from dejaq.cli.terminal.output import Output

        return Output(json=self.json)

    def run(
        self, work: Callable[[Client], Awaitable[Result]], *, waiting: Callable[[DejaqError], None] | None = None
    ) -> Result:
        """Connect, do `work` with the client, and disconnect.

        With `waiting` it waits for a broker for as long as it takes, and calls that with the reason.
        """
        import dejaq

        async def connected() -> Result:
            client = dejaq.connect(self.url, name="dejaq cli")
            try:
                while True:
                    try:
                        await client.open(deadline=CONNECT_SECONDS)
                        break
                    except Unavailable as error:
                        if waiting is None:
                            raise
                        waiting(error)
                        await asyncio.sleep(WAIT_SECONDS)
                return await work(client)
            finally:
                await client.close()

        return asyncio.run(connected())


def _keep(name: str) -> Callable[[click.Context, click.Parameter, Any], Any]:
    """A callback that stores a given option, so that it applies to the subcommands too."""

    def keep(context: click.Context, _: click.Parameter, value: Any) -> Any:
        if value is not None:
            setattr(invocation_of(context), name, value)
        return value

    return keep


def invocation_of(context: click.Context) -> Invocation:
    """The invocation a command belongs to."""
    return context.ensure_object(Invocation)


def shared_options() -> list[click.Parameter]:
    """The options that every command accepts, before or after its own."""
    return [
        click.Option(
            ["--url"],
            metavar="URL",
            expose_value=False,
            callback=_keep("url"),
            help=f"The broker, or several separated by commas. Default: DEJAQ_URL, otherwise {URL_DEFAULT}",
        ),
        click.Option(
            ["--json"],
            is_flag=True,
            default=None,
            expose_value=False,
            callback=_keep("json"),
            help="Print JSON, one object per line.",
        ),
        click.Option(
            ["--debug"],
            is_flag=True,
            default=None,
            expose_value=False,
            callback=_keep("debug"),
            help="Show the traceback of an error.",
        ),
    ]


class Command(click.Command):
    """A command with the shared options."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.params.extend(shared_options())


class Group(click.Group):
    """A group whose commands have the shared options, and take them before the command's name too."""

    command_class = Command

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.params.extend(shared_options())


pass_invocation = click.make_pass_decorator(Invocation, ensure=True)
