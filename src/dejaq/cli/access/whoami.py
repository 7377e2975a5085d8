"""`dejaq whoami`: the caller as the broker sees it."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from dejaq.cli.terminal.invocation import Command, Invocation, pass_invocation
from dejaq.cli.terminal.output import iso

if TYPE_CHECKING:
    from dejaq.sdk.admin.access import Caller
    from dejaq.sdk.client import Client


@click.command(cls=Command)
@pass_invocation
def whoami(invocation: Invocation, /) -> None:
    """Show who the broker takes you for: your principal, user, groups and session."""

    async def work(client: Client) -> Caller:
        from dejaq.sdk.admin.access import AccessCalls

        return await AccessCalls(client).who_am_i()

    caller = invocation.run(work)
    values = {**asdict(caller), "groups": list(caller.groups)}
    expires_ms = values.pop("expires_ms")
    values["expires"] = iso(expires_ms) if expires_ms else ""
    invocation.output.record(values)
