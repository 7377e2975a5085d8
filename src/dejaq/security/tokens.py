"""Bearer tokens of OpenID providers: JSON Web Tokens, verified with the provider's public keys."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from dejaq.domain.context import Principal, PrincipalKind
from dejaq.errors import DejaqError, InvalidArgument, Unauthenticated
from dejaq.security.base import Identity
from dejaq.security.certificates import needs_extra
from dejaq.security.issuer_keys import KEY_ID_CHARS_MAX, IssuerKeys
from dejaq.security.settings import Issuer

# Nothing longer is parsed.
TOKEN_BYTES_MAX = 8 * 1024
# How far the clocks of the provider and the broker may differ.
LEEWAY_SECONDS = 60
CACHE_MAX = 10_000
# A verified token is verified again after this time, with the keys that the provider has then.
CACHE_SECONDS = 60
USER_CHARS_MAX = 64
LOGIN_CHARS = 32
GROUPS_MAX = 200
GROUP_CHARS_MAX = 128


class TokenVerifier:
    """Verifies the tokens of several issuers, and remembers those that it verified by their SHA-256."""

    def __init__(self, issuers: Sequence[tuple[Issuer, IssuerKeys]]) -> None:
        self._issuers = {issuer.issuer: (issuer, keys) for issuer, keys in issuers}
        # The digest of a token -> its identity, and until when that is used without verifying again.
        self._known: dict[bytes, tuple[Identity, int]] = {}

    async def verify(self, token: str, now_us: int) -> Identity:
        """The identity in a token; raises UNAUTHENTICATED, or UNAVAILABLE while its issuer's keys are not known."""
        digest = hashlib.sha256(token.encode("utf-8", "replace")).digest()
        known = self._known.get(digest)
        if known is not None and now_us < known[1]:
            return known[0]
        identity = await self._verify(token, now_us)
        if not identity.login:
            # The issuer does not say which tokens belong together, so each is a login of its own.
            identity = replace(identity, login=digest.hex()[:LOGIN_CHARS])
        assert identity.expires_us is not None
        if len(self._known) >= CACHE_MAX:
            self._known.clear()
        self._known[digest] = (identity, min(identity.expires_us, now_us + CACHE_SECONDS * 1_000_000))
        return identity

    async def _verify(self, token: str, now_us: int) -> Identity:
        header, claims = _unverified(token)
        named = claims.get("iss")
        issuer, keys = self._issuers.get(named, (None, None)) if isinstance(named, str) else (None, None)
        if issuer is None or keys is None:
            raise Unauthenticated("the token's issuer is not one that this broker accepts")
        if header.get("alg") not in issuer.algorithms:
            raise Unauthenticated("the token's algorithm is not one that this broker accepts of its issuer")
        if "crit" in header:
            raise Unauthenticated("the token has critical extensions, which this broker does not know")
        key_id = header.get("kid", "")
        if not isinstance(key_id, str) or len(key_id) > KEY_ID_CHARS_MAX:
            raise Unauthenticated("the token has no key id that can be used")
        verified = _verified(token, await keys.find(key_id), issuer)
        return _identity(verified, issuer, now_us)


def _unverified(token: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Header and claims, only to choose the issuer and the key; nothing else is believed of them."""
    if len(token) > TOKEN_BYTES_MAX or not token.isascii():
        raise Unauthenticated(f"a token has at most {TOKEN_BYTES_MAX} bytes of ASCII")
    parts = token.split(".")
    if len(parts) != 3:
        raise Unauthenticated("the credentials are neither an API key nor a token in three parts")
    return _part(parts[0]), _part(parts[1])


def _part(text: str) -> dict[str, Any]:
    try:
        found = json.loads(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))
    except (ValueError, RecursionError):
        raise Unauthenticated("the token cannot be read") from None
    if not isinstance(found, dict):
        raise Unauthenticated("the token cannot be read")
    return found


def _verified(token: str, key: Any, issuer: Issuer) -> dict[str, Any]:
    """The claims, after the signature was verified."""
    try:
        from joserfc import jwt
        from joserfc.errors import JoseError
    except ModuleNotFoundError:
        raise needs_extra("authentication by tokens") from None
    try:
        return dict(jwt.decode(token, key, algorithms=list(issuer.algorithms)).claims)
    except (JoseError, ValueError, TypeError, RecursionError):
        # The text of the library could repeat parts of the token.
        raise Unauthenticated("the token's signature is not valid; log in again") from None


def _identity(claims: Mapping[str, Any], issuer: Issuer, now_us: int) -> Identity:
    now = now_us / 1_000_000
    expires = _number(claims, "exp")
    if claims.get("iss") != issuer.issuer:
        raise Unauthenticated("the token's issuer is not one that this broker accepts")
    audience = claims.get("aud")
    audiences = audience if isinstance(audience, list) else [audience]
    if not any(isinstance(one, str) and one in issuer.audience for one in audiences):
        raise Unauthenticated("the token is for another service: its audience does not name this broker")
    if expires is None:
        raise Unauthenticated("the token has no end; this broker accepts only tokens that expire")
    if expires <= now:
        raise Unauthenticated("the token has expired; log in again")
    for name in ("nbf", "iat"):
        begin = _number(claims, name)
        if begin is not None and begin > now + LEEWAY_SECONDS:
            raise Unauthenticated("the token is not valid yet; compare the clocks of the issuer and the broker")
    issued = _number(claims, "iat")
    return Identity(
        _principal(claims, issuer),
        expires_us=int(expires * 1_000_000),
        issued_us=None if issued is None else int(issued * 1_000_000),
        login=_login(claims, issuer),
    )


def _login(claims: Mapping[str, Any], issuer: Issuer) -> str:
    """The provider's session, which a token keeps when it is refreshed (the claim `sid`); empty where there is none."""
    session = claims.get("sid")
    if not isinstance(session, str) or not session:
        return ""
    return hashlib.sha256(f"{issuer.issuer}\0{session}".encode()).hexdigest()[:LOGIN_CHARS]


def _number(claims: Mapping[str, Any], name: str) -> float | None:
    value = claims.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 2**40:
        raise Unauthenticated(f"the token's {name} is not a time")
    return float(value)


def _principal(claims: Mapping[str, Any], issuer: Issuer) -> Principal:
    name = _claim(claims, issuer.user_claim)
    if not isinstance(name, str) or not 1 <= len(name) <= USER_CHARS_MAX or not name.isprintable():
        raise Unauthenticated(f"the token has no user of 1 to {USER_CHARS_MAX} characters in {issuer.user_claim!r}")
    if "/" in name:
        # `user:ALIAS/NAME` is the full name of a user of an issuer, which no short name may look like.
        raise Unauthenticated(f"the user in the token's {issuer.user_claim!r} has a '/'; choose another claim")
    user = issuer.user_prefix + name
    groups = _claim(claims, issuer.groups_claim)
    named = [groups] if isinstance(groups, str) else groups if isinstance(groups, list) else []
    good = [one for one in named if isinstance(one, str) and 0 < len(one) <= GROUP_CHARS_MAX and one.isprintable()]
    if len(good) > GROUPS_MAX:
        # To leave some out could leave out the group that a rule denies.
        raise Unauthenticated(f"the token has more than {GROUPS_MAX} groups; let the issuer send fewer")
    return Principal(
        name=f"user:{issuer.alias}/{name}",
        kind=PrincipalKind.USER,
        user=user,
        groups=frozenset(issuer.user_prefix + one for one in good),
    )


def _claim(claims: Mapping[str, Any], path: str) -> object:
    found: object = claims
    for name in path.split("."):
        found = found.get(name) if isinstance(found, Mapping) else None
    return found


def expires_us_of(token: str) -> int | None:
    """When a token says that it expires, in microseconds, without verifying it; None where it does not say so."""
    try:
        _, claims = _unverified(token)
        expires = _number(claims, "exp")
    except (DejaqError, InvalidArgument):
        return None
    return None if expires is None else int(expires * 1_000_000)
