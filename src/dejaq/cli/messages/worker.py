"""`dejaq worker`: runs a function for each message until it is stopped."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable
from difflib import get_close_matches
from importlib import import_module
from typing import TYPE_CHECKING, Any

import click

from dejaq.cli.terminal.invocation import Command, Invocation, pass_invocation
from dejaq.cli.terminal.logs import LEVELS, log_to_stderr
from dejaq.cli.terminal.times import SECONDS
from dejaq.domain.backoff import Backoff
from dejaq.errors import DejaqError, InvalidArgument

if TYPE_CHECKING:
    from dejaq.sdk.client import Client


class FunctionType(click.ParamType[Callable[..., Any]]):
    """The user's function as `module:name`; modules of the current directory are found too."""

    name = "function"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Callable[..., Any]:
        """Import it, or report the error."""
        if callable(value):
            return value  # type: ignore[no-any-return]
        module, colon, path = str(value).partition(":")
        if not module or not colon or not path:
            self.fail(f"{value!r} is not MODULE:FUNCTION, such as shop.mail:send", param, ctx)
        return self._found(module, path, param, ctx)

    def _found(
        self, module: str, path: str, param: click.Parameter | None, ctx: click.Context | None
    ) -> Callable[..., Any]:
        if os.getcwd() not in sys.path:
            sys.path.insert(0, os.getcwd())
        try:
            found: Any = import_module(module)
        except Exception as error:  # noqa: BLE001 - the user's module may raise anything
            if isinstance(error, ModuleNotFoundError) and error.name and f"{module}.".startswith(f"{error.name}."):
                self.fail(f"there is no module {error.name!r} in {os.getcwd()} or on PYTHONPATH", param, ctx)
            self.fail(f"the module {module!r} fails on import: {type(error).__name__}: {error}", param, ctx)
        for name in path.split("."):
            if not hasattr(found, name):
                near = get_close_matches(name, [known for known in dir(found) if not known.startswith("_")], n=1)
                hint = f"; is it {near[0]!r}?" if near else ""
                self.fail(f"there is no {name!r} in {module!r}{hint}", param, ctx)
            found = getattr(found, name)
        if not callable(found):
            self.fail(f"{path!r} in {module!r} is not a function but {type(found).__name__}", param, ctx)
        return found  # type: ignore[no-any-return]


class BackoffType(click.ParamType[Backoff]):
    """A back-off policy on the command line."""

    name = "policy"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Backoff:
        """Parse it, or say what is wrong with it."""
        if isinstance(value, Backoff):
            return value
        try:
            return Backoff.parse(str(value))
        except InvalidArgument as wrong:
            self.fail(wrong.message, param, ctx)


@click.command(cls=Command)
@click.argument("function", type=FunctionType(), metavar="MODULE:FUNCTION")
@click.argument("topic")
@click.option(
    "--concurrency",
    type=click.IntRange(min=1),
    default=8,
    show_default=True,
    help="The number of messages that are processed at the same time.",
)
@click.option(
    "--retry",
    type=BackoffType(),
    default="exponential:1s:5m:0.5",
    show_default=True,
    help="When a failed message is delivered again: fixed:WAIT[:JITTER] or exponential:FIRST:LONGEST[:JITTER].",
)
@click.option("--timeout", type=SECONDS, help="How long the function may take for one message.")
@click.option(
    "--grace", type=SECONDS, default=30.0, show_default=True, help="How long a stop waits for running functions."
)
@click.option("--lease", "lease_s", type=SECONDS, default=30.0, show_default=True, help="The length of a lease.")
@click.option(
    "--codec",
    type=click.Choice(["json", "msgpack"]),
    help="Decode the body as the function's annotation says, and reply with what it returns.",
)
@click.option(
    "--name", default="", help="The consumer's name. A consumer that returns with the same name keeps its leases."
)
@click.option("--max", "limit", type=click.IntRange(min=1), metavar="N", help="Stop after N messages.")
@click.option(
    "--log-level", type=LEVELS, default="info", show_default=True, help="The lowest level that is logged on stderr."
)
@pass_invocation
def worker(
    invocation: Invocation,
    /,
    function: Callable[..., Any],
    topic: str,
    limit: int | None,
    lease_s: float,
    log_level: str,
    **terms: Any,
) -> None:
    """Run a function for each message of TOPIC when it is due.

    The function, async or not, receives the lease, or with --codec the decoded body. When it returns, the message is
    deleted. When it raises an exception, the message is delivered again later. After SIGTERM or Ctrl-C the worker
    takes no more messages and waits for running functions; after a second one it releases their messages.
    """
    log_to_stderr(log_level, as_json=invocation.json)

    async def work(client: Client) -> None:
        make_worker: Callable[..., Callable[[Callable[..., Any]], object]] = client.worker
        make_worker(topic, lease=lease_s, max_messages=limit, **terms)(function)
        await client.run_workers()

    def waiting(reason: DejaqError) -> None:
        logging.getLogger("dejaq.worker").warning("waiting for a broker: %s", reason)

    invocation.run(work, waiting=waiting)
