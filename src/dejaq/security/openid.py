"""The client's side of an OpenID provider: discovery, the device flow, the code flow, refresh and revocation."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from urllib.parse import urlencode

from dejaq.errors import Unauthenticated, Unavailable
from dejaq.security.fetching import fetch_json
from dejaq.security.settings import SCOPE_DEFAULT, Issuer, check_url

DISCOVERY_SECONDS = 600.0
# The device flow, RFC 8628.
DEVICE_GRANT = "urn:ietf:params:oauth:grant-type:device_code"
INTERVAL_SECONDS, SLOWER_SECONDS, INTERVAL_SECONDS_MAX = 5.0, 5.0, 60.0
LOGIN_SECONDS_MAX = 3_600.0
_TEXT_CHARS_MAX = 300

Fetch = Callable[..., Awaitable[dict[str, Any]]]
Sleep = Callable[[float], Awaitable[object]]


@dataclass(frozen=True, slots=True)
class LoginSettings:
    """How users of one provider log in: the provider, and the client that it knows DejaQ as."""

    issuer: str
    client_id: str
    scope: str = SCOPE_DEFAULT
    # The kind of token that the broker accepts: `access_token` or `id_token`.
    token: str = "access_token"  # noqa: S105 - the name of a field
    # The resource that the token is for (RFC 8707), where the provider asks for it.
    resource: str = ""
    # The authorities of the provider's own certificate, if they are not those of the operating system.
    ca: str = ""

    @classmethod
    def of(cls, issuer: Issuer) -> LoginSettings:
        """Those in a broker's `auth` file."""
        return cls(issuer.issuer, issuer.client_id, issuer.scope, issuer.token, issuer.resource, issuer.ca)


@dataclass(frozen=True, slots=True)
class ProviderEndpoints:
    """Addresses of a provider, from its discovery document; empty for what it does not offer."""

    authorization: str
    token: str
    device: str
    revocation: str
    end_session: str


@dataclass(frozen=True, slots=True)
class DeviceLogin:
    """A login that has begun: the user opens the address, on any device, and types the code."""

    device_code: str = field(repr=False)
    user_code: str
    address: str
    # The address with the code in it; empty where the provider gives none.
    complete_address: str
    interval_s: float
    lifetime_s: float


@dataclass(frozen=True, slots=True)
class TokenSet:
    """What a provider gave after a login or a refresh."""

    # The token for brokers.
    bearer: str = field(repr=False)
    expires_us: int
    # Empty where the provider gives none: then the user logs in again at the end.
    refresh_token: str = field(default="", repr=False)
    id_token: str = field(default="", repr=False)


class OpenIdClient:
    """Logs users in at one provider. It keeps the discovery document for ten minutes and no tokens.

    Every method raises UNAVAILABLE when the provider does not answer, and UNAUTHENTICATED when it refuses. `secret` is
    for a client with a secret, such as a web server.
    """

    def __init__(
        self,
        settings: LoginSettings,
        *,
        secret: str = "",
        fetch: Fetch = fetch_json,
        monotonic: Callable[[], float] = time.monotonic,
        now_us: Callable[[], int] = lambda: time.time_ns() // 1_000,
        sleep: Sleep = asyncio.sleep,
    ) -> None:
        self.settings = settings
        self._secret = secret
        self._fetch: Fetch = partial(fetch, ca=settings.ca)
        self._monotonic = monotonic
        self._now_us = now_us
        self._sleep = sleep
        self._known: tuple[ProviderEndpoints, float] | None = None

    async def endpoints(self) -> ProviderEndpoints:
        """The provider's addresses; the last ones stay in use while it does not answer."""
        known = self._known
        if known is not None and self._monotonic() - known[1] < DISCOVERY_SECONDS:
            return known[0]
        try:
            document = await self._fetch(self.settings.issuer.rstrip("/") + "/.well-known/openid-configuration")
            found = _endpoints(document, self.settings.issuer)
        except Unavailable:
            if known is None:
                raise
            return known[0]
        self._known = (found, self._monotonic())
        return found

    async def begin_device_login(self) -> DeviceLogin:
        """Begin a login by the device flow."""
        address = (await self.endpoints()).device
        if not address:
            raise Unavailable(f"the provider {self.settings.issuer} does not offer the device flow (RFC 8628)")
        answer = await self._fetch(address, form=self._form({"scope": self.settings.scope}))
        _refuse_error(answer)
        lifetime_s = _number(answer.get("expires_in"), LOGIN_SECONDS_MAX)
        return DeviceLogin(
            device_code=_text(answer, "device_code"),
            user_code=_text(answer, "user_code"),
            address=_text(answer, "verification_uri"),
            complete_address=str(answer.get("verification_uri_complete") or ""),
            interval_s=min(_number(answer.get("interval"), INTERVAL_SECONDS), INTERVAL_SECONDS_MAX),
            lifetime_s=min(lifetime_s, LOGIN_SECONDS_MAX),
        )

    async def finish_device_login(self, login: DeviceLogin) -> TokenSet:
        """Wait until the user has confirmed the login; raises UNAUTHENTICATED when they refuse or take too long."""
        ends_at = self._monotonic() + login.lifetime_s
        interval_s = login.interval_s
        while self._monotonic() + interval_s < ends_at:
            await self._sleep(interval_s)
            try:
                answer = await self._ask_token({"grant_type": DEVICE_GRANT, "device_code": login.device_code})
            except Unavailable:
                # RFC 8628 asks for longer pauses while the provider does not answer.
                interval_s = min(2 * interval_s, INTERVAL_SECONDS_MAX)
                continue
            error = answer.get("error")
            if error == "slow_down":
                interval_s = min(interval_s + SLOWER_SECONDS, INTERVAL_SECONDS_MAX)
            elif error != "authorization_pending":
                return self._tokens(answer)
        raise Unauthenticated("the login was not confirmed in time; begin again")

    def authorization_parameters(self, *, redirect: str, state: str, nonce: str, verifier: str) -> dict[str, str]:
        """The query of the authorization endpoint's address, for the code flow with PKCE (RFC 7636)."""
        parameters = {
            "response_type": "code",
            "client_id": self.settings.client_id,
            "redirect_uri": redirect,
            "scope": self.settings.scope,
            "state": state,
            "nonce": nonce,
            "code_challenge": challenge_of(verifier),
            "code_challenge_method": "S256",
        }
        if self.settings.resource:
            parameters["resource"] = self.settings.resource
        return parameters

    async def authorization_address(self, *, redirect: str, state: str, nonce: str, verifier: str) -> str:
        """The address to which a browser is sent to log in; afterwards the provider sends it to `redirect`."""
        address = (await self.endpoints()).authorization
        if not address:
            raise Unavailable(f"the provider {self.settings.issuer} has no authorization endpoint")
        query = urlencode(self.authorization_parameters(redirect=redirect, state=state, nonce=nonce, verifier=verifier))
        return f"{address}{'&' if '?' in address else '?'}{query}"

    async def exchange(self, code: str, *, redirect: str, verifier: str) -> TokenSet:
        """The tokens for the code with which the browser came back. The caller compares `state` and `nonce`."""
        form = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": redirect,
            "code_verifier": verifier,
        }
        return self._tokens(await self._ask_token(form))

    async def refresh(self, refresh_token: str) -> TokenSet:
        """New tokens. The provider may replace the refresh token; otherwise the given one stays in use."""
        answer = await self._ask_token({"grant_type": "refresh_token", "refresh_token": refresh_token})
        return self._tokens(answer, refresh_token)

    async def revoke(self, refresh_token: str) -> bool:
        """Have the provider forget a refresh token; False where it does not offer that."""
        address = (await self.endpoints()).revocation
        if not address:
            return False
        form = self._form({"token": refresh_token, "token_type_hint": "refresh_token"}, resource=False)
        _refuse_error(await self._fetch(address, form=form, empty=True))
        return True

    async def _ask_token(self, form: dict[str, str]) -> dict[str, Any]:
        address = (await self.endpoints()).token
        return await self._fetch(address, form=self._form(form))

    def _form(self, form: Mapping[str, str], *, resource: bool = True) -> dict[str, str]:
        made = {**form, "client_id": self.settings.client_id}
        if self._secret:
            made["client_secret"] = self._secret
        if resource and self.settings.resource:
            made["resource"] = self.settings.resource
        return made

    def _tokens(self, answer: Mapping[str, Any], refresh_token: str = "") -> TokenSet:
        _refuse_error(answer)
        lifetime_s = _number(answer.get("expires_in"), 300.0)
        return TokenSet(
            bearer=_text(answer, self.settings.token),
            expires_us=self._now_us() + int(lifetime_s * 1_000_000),
            refresh_token=str(answer.get("refresh_token") or refresh_token),
            id_token=str(answer.get("id_token") or ""),
        )


def challenge_of(verifier: str) -> str:
    """The S256 challenge of a PKCE verifier, which has 43 to 128 random characters."""
    return base64.urlsafe_b64encode(hashlib.sha256(verifier.encode("ascii")).digest()).rstrip(b"=").decode()


def _endpoints(document: Mapping[str, Any], issuer: str) -> ProviderEndpoints:
    if document.get("issuer") != issuer:
        raise Unavailable(f"the discovery document names another issuer than {issuer}")

    def address(name: str) -> str:
        found = document.get(name)
        if not isinstance(found, str):
            return ""
        check_url(found, name)
        return found

    token = address("token_endpoint")
    if not token:
        raise Unavailable("the discovery document has no token_endpoint")
    return ProviderEndpoints(
        authorization=address("authorization_endpoint"),
        token=token,
        device=address("device_authorization_endpoint"),
        revocation=address("revocation_endpoint"),
        end_session=address("end_session_endpoint"),
    )


def _refuse_error(answer: Mapping[str, Any]) -> None:
    """Raise UNAUTHENTICATED for an OAuth error. It shows the provider's words, without control characters."""
    error = answer.get("error")
    if error is None:
        return
    words = f"{error}: {answer['error_description']}" if answer.get("error_description") else str(error)
    shown = "".join(one for one in words if one.isprintable())[:_TEXT_CHARS_MAX]
    raise Unauthenticated(f"the provider refused: {shown}")


def _text(answer: Mapping[str, Any], name: str) -> str:
    found = answer.get(name)
    if not isinstance(found, str) or not found or not found.isprintable():
        raise Unavailable(f"the provider's answer has no {name}")
    return found


def _number(value: object, otherwise: float) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 2**40:
        return otherwise
    return float(value)
