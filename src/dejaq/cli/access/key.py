"""`dejaq key`: makes, lists and revokes API keys."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from dejaq.cli.terminal.invocation import Group, Invocation, pass_invocation
from dejaq.cli.terminal.output import iso
from dejaq.cli.terminal.times import DurationType
from dejaq.errors import Code

if TYPE_CHECKING:
    from dejaq.sdk.admin.access import KeyInfo
    from dejaq.sdk.client import Client

COLUMNS = ("id", "user", "groups", "label", "made_by", "made_at", "expires")


@click.group(cls=Group)
def key() -> None:
    """Make, list and revoke API keys.

    Users make keys of their own; an administrator makes keys of every user.
    """


def _values(info: KeyInfo) -> dict[str, Any]:
    return {
        "id": info.id,
        "user": info.user,
        "groups": ",".join(info.groups),
        "label": info.label,
        "made_by": info.made_by,
        "made_at": iso(info.made_ms),
        "expires": iso(info.expires_ms) if info.expires_ms else "",
    }


@key.command()
@click.option("--user", default="", metavar="NAME", help="The user for whom the key acts. Default: yourself.")
@click.option(
    "--group", "groups", multiple=True, metavar="NAME", help="A group of the key; can be given several times."
)
@click.option("--label", default="", metavar="TEXT", help="What people call the key.")
@click.option("--lifetime", type=DurationType(), metavar="LENGTH", help="How long the key is valid, such as 90d.")
@click.option(
    "--offline", is_flag=True, help="Ask no broker: print a key, and the table for the file of the broker's `auth`."
)
@pass_invocation
def create(
    invocation: Invocation,
    /,
    user: str,
    groups: tuple[str, ...],
    label: str,
    lifetime: float | None,
    offline: bool,
) -> None:
    """Make a key and print it. It cannot be shown again: only its SHA-256 is stored."""
    if offline:
        if lifetime is not None:
            raise click.UsageError("--lifetime needs a broker; a key in the file is valid until it is taken out.")
        _print_offline(invocation, user, groups, label)
        return
    lifetime_ms = round(lifetime * 1_000) if lifetime is not None else 0
    if lifetime is not None and lifetime_ms < 1:
        raise click.UsageError("--lifetime must be longer than 0.")

    async def work(client: Client) -> tuple[KeyInfo, str]:
        from dejaq.sdk.admin.access import AccessCalls

        return await AccessCalls(client).create_key(user=user, groups=groups, label=label, lifetime_ms=lifetime_ms)

    info, secret = invocation.run(work)
    invocation.output.record({**_values(info), "key": secret}, secret)
    if not invocation.json:
        click.echo(f"This is the only time that key {info.id} is shown.", err=True)


def _print_offline(invocation: Invocation, user: str, groups: tuple[str, ...], label: str) -> None:
    import secrets

    from dejaq.security.keys import digest_of, new_secret

    key_id, secret = new_secret(secrets.token_bytes)
    values = {"id": key_id, "digest": digest_of(secret), "user": user, "groups": list(groups), "label": label}
    # JSON strings and lists of strings are TOML too.
    table = "\n".join(["[[keys]]", *(f"{name} = {_toml(value)}" for name, value in values.items() if value)])
    invocation.output.record({**values, "key": secret}, f"{secret}\n\n{table}")


def _toml(value: object) -> str:
    import json

    return json.dumps(value, ensure_ascii=False)


@key.command("list")
@pass_invocation
def list_(invocation: Invocation, /) -> None:
    """List your keys, or every key if you are an administrator; not those in the file of `auth`."""

    async def work(client: Client) -> list[KeyInfo]:
        from dejaq.sdk.admin.access import AccessCalls

        return await AccessCalls(client).keys()

    rows = [_values(info) for info in invocation.run(work)]
    invocation.output.table(rows, COLUMNS, empty="no keys")


@key.command()
@click.argument("key_id", metavar="ID")
@pass_invocation
def revoke(invocation: Invocation, /, key_id: str) -> None:
    """Have every broker refuse a key; its open streams end within five seconds."""
    invocation.hints[Code.NOT_FOUND] = (
        "list the keys with `dejaq key list`; a key in the file of `auth` is removed there"
    )

    async def work(client: Client) -> None:
        from dejaq.sdk.admin.access import AccessCalls

        await AccessCalls(client).revoke_key(key_id)

    invocation.run(work)
    invocation.output.record({"id": key_id, "revoked": True}, f"key {key_id} is revoked")
