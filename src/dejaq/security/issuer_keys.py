"""The public keys of one OpenID provider: fetched when they are needed, and kept while the provider does not answer."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from dejaq.errors import DejaqError, Unauthenticated, Unavailable
from dejaq.security.certificates import needs_extra
from dejaq.security.settings import Issuer

log = logging.getLogger(__name__)

REFRESH_SECONDS = 600.0
# Between two fetches that unknown key ids cause: callers choose the ids in their tokens.
FORCED_SECONDS = 30.0
UNKNOWN_MAX = 1_000
KEYS_MAX = 100
KEY_ID_CHARS_MAX = 256

Fetch = Callable[[str], Awaitable[dict[str, Any]]]


class IssuerKeys:
    """Finds the key of a token by its id."""

    def __init__(self, issuer: Issuer, *, fetch: Fetch, monotonic: Callable[[], float]) -> None:
        self._issuer = issuer
        self._fetch = fetch
        self._monotonic = monotonic
        self._keys: dict[str, Any] = {}
        self._fetched_at: float | None = None
        self._tried_at: float | None = None
        # Ids that the provider did not have at the last fetch.
        self._unknown: set[str] = set()
        self._lock = asyncio.Lock()

    async def find(self, key_id: str) -> Any:
        """The key; raises UNAUTHENTICATED when the provider has none of this id, and UNAVAILABLE without any keys."""
        if self._due():
            await self._refresh()
        key = self._keys.get(key_id)
        if key is None and key_id not in self._unknown and self._may_force():
            await self._refresh()
            key = self._keys.get(key_id)
        if key is not None:
            return key
        if self._fetched_at is None:
            raise Unavailable(f"the keys of the issuer {self._issuer.alias} cannot be fetched; try again later")
        if len(self._unknown) < UNKNOWN_MAX:
            self._unknown.add(key_id)
        raise Unauthenticated(f"the issuer {self._issuer.alias} has no key of the token's id; log in again")

    def _due(self) -> bool:
        now = self._monotonic()
        old = self._fetched_at is None or now - self._fetched_at >= REFRESH_SECONDS
        return old and self._may_force()

    def _may_force(self) -> bool:
        return self._tried_at is None or self._monotonic() - self._tried_at >= FORCED_SECONDS

    async def _refresh(self) -> None:
        began = self._tried_at
        async with self._lock:
            if self._tried_at != began:
                # Another call has fetched them meanwhile.
                return
            self._tried_at = self._monotonic()
            try:
                keys = _parse(await self._fetch(await self._address()), self._issuer)
            except DejaqError as error:
                # The keys from before stay in use: a provider that is away must not lock out its users.
                log.warning("the keys of the issuer %s were not fetched: %s", self._issuer.alias, error)
                return
            self._keys, self._fetched_at = keys, self._monotonic()
            self._unknown.clear()

    async def _address(self) -> str:
        if self._issuer.jwks:
            return self._issuer.jwks
        document = await self._fetch(self._issuer.issuer.rstrip("/") + "/.well-known/openid-configuration")
        if document.get("issuer") != self._issuer.issuer:
            raise Unavailable(f"the discovery document names another issuer than {self._issuer.issuer}")
        address = document.get("jwks_uri")
        if not isinstance(address, str):
            raise Unavailable("the discovery document has no jwks_uri")
        return address


def _parse(document: dict[str, Any], issuer: Issuer) -> dict[str, Any]:
    """The keys for signatures, by id; a key that cannot be used is left out."""
    try:
        from joserfc.errors import JoseError
        from joserfc.jwk import import_key
    except ModuleNotFoundError:
        raise needs_extra("authentication by tokens") from None
    found: dict[str, Any] = {}
    entries = document.get("keys")
    for entry in entries[:KEYS_MAX] if isinstance(entries, list) else ():
        if not isinstance(entry, dict) or entry.get("use", "sig") != "sig" or entry.get("kty") == "oct":
            continue
        key_id = entry.get("kid", "")
        if not isinstance(key_id, str) or len(key_id) > KEY_ID_CHARS_MAX:
            continue
        try:
            found[key_id] = import_key(entry)
        except (JoseError, ValueError, TypeError, KeyError):
            log.info("a key of the issuer %s is not used: it cannot be read", issuer.alias)
    if not found:
        raise Unavailable(f"the issuer {issuer.alias} has no key for signatures")
    return found
