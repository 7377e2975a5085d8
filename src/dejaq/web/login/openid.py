"""Signing in at OpenID providers with a browser: the authorization code flow with PKCE."""

from __future__ import annotations

import base64
import hmac
import json
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from dejaq.errors import Unauthenticated
from dejaq.security.openid import OpenIdClient

# Users who are at their provider at one time, and how long they may take there.
PENDING_MAX = 1_000
PENDING_SECONDS = 600.0


@dataclass(frozen=True, slots=True)
class PendingLogin:
    """A user who was sent to the provider. The browser keeps `binding` in a cookie, so no other one can come back."""

    alias: str
    redirect: str
    then: str
    until_s: float
    state: str = field(repr=False)
    nonce: str = field(repr=False)
    verifier: str = field(repr=False)
    binding: str = field(repr=False)


class OpenIdLogins:
    """The providers of this gateway by alias, and the users who are signing in."""

    def __init__(
        self, providers: Mapping[str, OpenIdClient], *, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self.providers = providers
        self._monotonic = monotonic
        self._pending: OrderedDict[str, PendingLogin] = OrderedDict()

    async def begin(self, alias: str, *, redirect: str, then: str) -> tuple[str, PendingLogin]:
        """The provider's address to send the browser to, and what is remembered meanwhile; raises UNAVAILABLE."""
        pending = PendingLogin(
            alias=alias,
            redirect=redirect,
            then=then,
            until_s=self._monotonic() + PENDING_SECONDS,
            state=secrets.token_urlsafe(24),
            nonce=secrets.token_urlsafe(24),
            verifier=secrets.token_urlsafe(48),
            binding=secrets.token_urlsafe(24),
        )
        address = await self.providers[alias].authorization_address(
            redirect=redirect, state=pending.state, nonce=pending.nonce, verifier=pending.verifier
        )
        self._pending[pending.state] = pending
        while len(self._pending) > PENDING_MAX:
            self._pending.popitem(last=False)
        return address, pending

    async def finish(self, answer: Mapping[str, str], binding: str) -> tuple[str, PendingLogin]:
        """The token for the brokers when the browser is back; raises UNAUTHENTICATED, or UNAVAILABLE."""
        pending = self._pending.pop(answer.get("state", ""), None)
        if pending is None or pending.until_s < self._monotonic():
            raise Unauthenticated("the sign-in took too long or was used before; begin again")
        if not hmac.compare_digest(binding.encode(), pending.binding.encode()):
            raise Unauthenticated("the sign-in was begun in another browser; begin again")
        if "code" not in answer:
            words = "".join(one for one in answer.get("error", "no code") if one.isprintable())[:100]
            raise Unauthenticated(f"the provider refused: {words}")
        provider = self.providers[pending.alias]
        tokens = await provider.exchange(answer["code"], redirect=pending.redirect, verifier=pending.verifier)
        # The token came from the provider itself over TLS; the brokers verify the signature of what they get.
        if not hmac.compare_digest(_nonce_of(tokens.id_token).encode(), pending.nonce.encode()):
            raise Unauthenticated("the provider's answer is for another sign-in; begin again")
        return tokens.bearer, pending


def _nonce_of(id_token: str) -> str:
    try:
        part = id_token.split(".")[1]
        found = json.loads(base64.urlsafe_b64decode(part + "=" * (-len(part) % 4)))["nonce"]
    except (IndexError, KeyError, TypeError, ValueError):
        return ""
    return found if isinstance(found, str) else ""
