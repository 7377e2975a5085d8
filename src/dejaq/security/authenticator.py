"""Finds the identity of a caller from whatever it showed: a certificate, an API key, or a token."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from dejaq.domain.context import ANONYMOUS, Principal, PrincipalKind
from dejaq.errors import Unauthenticated
from dejaq.security.base import Credentials, Identity
from dejaq.security.keys import PREFIX, ApiKey, id_in
from dejaq.security.settings import AuthSettings
from dejaq.security.tokens import TOKEN_BYTES_MAX, TokenVerifier

_ANYONE = Identity(ANONYMOUS)


class CallerAuthenticator:
    """Implements `Authenticator`. A key or a token wins over a certificate, which proves the device more than the user.

    `settings` is None for a broker without users: callers with a certificate have a name, and all others are anonymous.
    """

    def __init__(
        self,
        settings: AuthSettings | None,
        *,
        find_key: Callable[[str], ApiKey | None] = lambda _: None,
        tokens: TokenVerifier | None = None,
    ) -> None:
        self._settings = settings if settings is not None else AuthSettings(anonymous=True)
        self._static = {key.id: key for key in self._settings.keys}
        self._find_key = find_key
        self._tokens = tokens
        self._ignores_bearer = settings is None

    async def authenticate(self, credentials: Credentials, peer: str, now_us: int) -> Identity:
        """The caller's identity; raises UNAUTHENTICATED, or UNAVAILABLE while an issuer's keys cannot be fetched."""
        identity = await self._identify(credentials, now_us)
        if self._settings.admins and self._is_admin(identity.principal):
            return replace(identity, principal=replace(identity.principal, admin=True))
        return identity

    def _is_admin(self, principal: Principal) -> bool:
        names = {principal.name, *(f"group:{group}" for group in principal.groups)}
        if principal.user:
            names.add(f"user:{principal.user}")
        return not self._settings.admins.isdisjoint(names)

    async def _identify(self, credentials: Credentials, now_us: int) -> Identity:
        bearer = credentials.bearer
        if bearer and not self._ignores_bearer:
            if bearer.startswith(PREFIX):
                return self._of_key(bearer, now_us)
            if self._tokens is None:
                raise Unauthenticated("this broker accepts API keys only; no issuer of tokens is configured")
            if len(bearer) > TOKEN_BYTES_MAX:
                raise Unauthenticated(f"a token has at most {TOKEN_BYTES_MAX} bytes")
            return await self._tokens.verify(bearer, now_us)
        if credentials.certificate:
            return self._of_certificate(credentials, now_us)
        if self._settings.anonymous:
            return _ANYONE
        raise Unauthenticated("the broker serves only known callers: give an API key, a token or a client certificate")

    def _of_key(self, text: str, now_us: int) -> Identity:
        key_id = id_in(text)
        key = (self._static.get(key_id) or self._find_key(key_id)) if key_id is not None else None
        # One answer for every reason, so that the answer does not say which ids exist.
        if key is None or not key.matches(text) or 0 < key.expires_ms <= now_us // 1_000:
            raise Unauthenticated("the API key is not valid: it is wrong, was revoked, or has expired")
        return Identity(key.principal, key.expires_ms * 1_000 if key.expires_ms else None)

    def _of_certificate(self, credentials: Credentials, now_us: int) -> Identity:
        if 0 < credentials.certificate_expires_us <= now_us:
            raise Unauthenticated("the client's certificate has expired")
        for name in credentials.certificate:
            found = self._settings.certificates.get(name)
            if found is not None:
                principal = _certified(name, found.user, frozenset(found.groups))
                break
        else:
            principal = _certified(credentials.certificate[0], "", frozenset())
        return Identity(principal, credentials.certificate_expires_us or None)


def _certified(name: str, user: str, groups: frozenset[str]) -> Principal:
    return Principal(name=f"certificate:{name}", kind=PrincipalKind.CERTIFICATE, user=user, groups=groups)
