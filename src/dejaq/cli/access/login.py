"""`dejaq login` and `dejaq logout`: a user logs in at an OpenID provider; later commands use the tokens."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

import click

from dejaq.cli.terminal.invocation import CONNECT_SECONDS, Command, Invocation, pass_invocation
from dejaq.errors import DejaqError, Unavailable

if TYPE_CHECKING:
    from dejaq.sdk.admin.access import Caller
    from dejaq.sdk.session.address import Target
    from dejaq.security.openid import LoginSettings, OpenIdClient, TokenSet


@click.command(cls=Command)
@click.option("--issuer", metavar="URL", help="The provider. Default: the one that the broker names.")
@click.option("--client-id", metavar="ID", help="DejaQ's client id at the provider.")
@click.option("--scope", metavar="SCOPES", help="What to ask for. Default: openid profile email offline_access")
@click.option(
    "--token",
    type=click.Choice(["access_token", "id_token"]),
    help="The kind of token that the broker accepts. Default: access_token",
)
@click.option("--resource", metavar="URI", help="The resource of the token, where the provider asks for one.")
@click.option("--issuer-ca", metavar="FILE", help="The authority of the provider's certificate.")
@click.option("--alias", metavar="NAME", help="Which provider, if the broker names several.")
@pass_invocation
def login(
    invocation: Invocation,
    /,
    issuer: str | None,
    client_id: str | None,
    scope: str | None,
    token: str | None,
    resource: str | None,
    issuer_ca: str | None,
    alias: str | None,
) -> None:
    """Log in with a browser, on this or another device, for the broker at --url.

    The tokens are kept in ~/.config/dejaq/logins.json (DEJAQ_LOGINS names another file), which only you can read, and
    are used and renewed by `dejaq` and the SDK for the addresses in --url.
    """
    given = {
        "issuer": issuer,
        "client_id": client_id,
        "scope": scope,
        "token": token,
        "resource": resource,
        "ca": issuer_ca,
    }
    chosen = {name: value for name, value in given.items() if value is not None}
    if issuer is not None and client_id is None:
        raise click.UsageError("--issuer needs --client-id.")
    caller = asyncio.run(_log_in(invocation, chosen, alias))
    values = {"principal": caller.principal, "user": caller.user, "groups": list(caller.groups)}
    invocation.output.record(values, f"logged in as {caller.principal}")


async def _log_in(invocation: Invocation, chosen: dict[str, str], alias: str | None) -> Caller:
    from dejaq.sdk.session.address import parse_url
    from dejaq.security.login_file import KeptLogin, LoginFile, default_path
    from dejaq.security.openid import LoginSettings, OpenIdClient
    from dejaq.timekeeper.clock import SystemClock

    target, clock = parse_url(invocation.url), SystemClock()
    settings = LoginSettings(**chosen) if "issuer" in chosen else await _published(target, alias, chosen)
    client = OpenIdClient(settings, now_us=clock.now_us)
    tokens = await _confirmed(invocation, client)
    caller = await _ask_broker(invocation, tokens)
    kept = KeptLogin(target.addresses, settings, tokens.bearer, tokens.refresh_token, tokens.expires_us, clock.now_us())
    await LoginFile(default_path()).keep(kept)
    if not tokens.refresh_token:
        click.echo("The provider gave no refresh token: log in again when the token has expired.", err=True)
    return caller


async def _published(target: Target, alias: str | None, chosen: dict[str, str]) -> LoginSettings:
    """What the broker says about its provider, with what the user chose."""
    from dejaq.sdk.session.security import NO_OPTIONS
    from dejaq.security.logins import published_logins

    context = NO_OPTIONS.client_tls().context() if target.tls else None
    failure: DejaqError = Unavailable("the address names no broker on a network; give --issuer and --client-id")
    for address in target.addresses:
        if address.startswith("unix:"):
            continue
        try:
            found = await published_logins(address, context)
        except Unavailable as error:
            failure = error
            continue
        named = [one for one in found if alias is None or one.alias == alias]
        if len(named) != 1:
            known = ", ".join(one.alias for one in found)
            raise click.UsageError(f"Choose one of the broker's providers with --alias: {known}.")
        return replace(named[0].settings, **chosen)
    raise failure


async def _confirmed(invocation: Invocation, client: OpenIdClient) -> TokenSet:
    """The tokens after the user has confirmed the login in a browser."""
    begun = await client.begin_device_login()
    where = begun.complete_address or begun.address
    if invocation.json:
        invocation.output.record({"open": where, "address": begun.address, "code": begun.user_code})
    else:
        click.echo(f"Open {where} in a browser and confirm the code {begun.user_code}.", err=True)
    return await client.finish_device_login(begun)


async def _ask_broker(invocation: Invocation, tokens: TokenSet) -> Caller:
    """The caller as the broker sees it; raises UNAUTHENTICATED when it does not accept the token."""
    import dejaq
    from dejaq.sdk.admin.access import AccessCalls

    client = dejaq.connect(invocation.url, name="dejaq cli", token=tokens.bearer)
    try:
        await client.open(deadline=CONNECT_SECONDS)
        return await AccessCalls(client).who_am_i()
    finally:
        await client.close()


@click.command(cls=Command)
@pass_invocation
def logout(invocation: Invocation, /) -> None:
    """Forget the login for the broker at --url, here and at the provider.

    The last token stays valid until it expires, within minutes; `dejaq sessions end` ends it at once.
    """
    found, revoked = asyncio.run(_log_out(invocation.url))
    if not found:
        invocation.output.record({"logged_out": False, "revoked": False}, "there is no login for this broker")
        return
    told = "logged out" if revoked else "logged out here; the provider did not revoke the login"
    invocation.output.record({"logged_out": True, "revoked": revoked}, told)


async def _log_out(url: str) -> tuple[bool, bool]:
    from dejaq.sdk.session.address import parse_url
    from dejaq.security.login_file import LoginFile, default_path
    from dejaq.security.openid import OpenIdClient

    kept = await LoginFile(default_path()).forget(parse_url(url).addresses)
    if kept is None or not kept.refresh_token:
        return kept is not None, False
    try:
        return True, await OpenIdClient(kept.settings).revoke(kept.refresh_token)
    except DejaqError:
        return True, False
