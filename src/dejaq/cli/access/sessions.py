"""`dejaq sessions`: lists and ends the sessions of users on devices."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from dejaq.cli.terminal.invocation import Group, Invocation, pass_invocation
from dejaq.cli.terminal.output import iso
from dejaq.errors import Code

if TYPE_CHECKING:
    from dejaq.sdk.admin.access import SessionInfo
    from dejaq.sdk.client import Client

COLUMNS = ("id", "principal", "device", "broker", "streams", "since", "expires")


@click.group(cls=Group)
def sessions() -> None:
    """List and end sessions: a session is a user on a device, or an API key or certificate on all of its devices.

    Users see their own sessions; an administrator sees all.
    """


@sessions.command("list")
@pass_invocation
def list_(invocation: Invocation, /) -> None:
    """List the open sessions at every broker."""

    async def work(client: Client) -> list[SessionInfo]:
        from dejaq.sdk.admin.access import AccessCalls

        return await AccessCalls(client).sessions()

    rows = [
        {
            "id": one.id,
            "principal": one.principal,
            "device": one.device,
            "broker": one.broker,
            "streams": one.streams,
            "since": iso(one.since_ms),
            "expires": iso(one.expires_ms) if one.expires_ms else "",
            "peers": list(one.peers),
        }
        for one in invocation.run(work)
    ]
    invocation.output.table(rows, COLUMNS, numbers=("streams",), empty="no sessions")


@sessions.command()
@click.argument("session_id", metavar="ID")
@pass_invocation
def end(invocation: Invocation, /, session_id: str) -> None:
    """End a session at every broker within five seconds, and refuse its credentials.

    A token that was issued before stays refused; a key or a certificate is refused on every device for five minutes.
    """
    invocation.hints[Code.NOT_FOUND] = "list the open sessions with `dejaq sessions list`"

    async def work(client: Client) -> None:
        from dejaq.sdk.admin.access import AccessCalls

        await AccessCalls(client).end_session(session_id)

    invocation.run(work)
    invocation.output.record({"id": session_id, "ended": True}, f"session {session_id} is ended")
