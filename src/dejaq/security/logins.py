"""The page on which a broker says at which providers its users log in; it needs no credentials (RFC 9728)."""

from __future__ import annotations

import json
import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dejaq.errors import Unavailable
from dejaq.security.fetching import fetch_json
from dejaq.security.openid import LoginSettings
from dejaq.security.settings import AuthSettings, Issuer

LOGIN_PATH = "/.well-known/oauth-protected-resource"
_NAME = "dejaq_logins"
_FIELDS = ("issuer", "client_id", "scope", "token", "resource")


@dataclass(frozen=True, slots=True)
class PublishedLogin:
    """An issuer of a broker, by its short name."""

    alias: str
    settings: LoginSettings


def logins_page(settings: AuthSettings | None) -> bytes:
    """The page of a broker with these settings; empty where nobody can log in."""
    issuers: Sequence[Issuer] = settings.issuers if settings is not None else ()
    if not issuers:
        return b""
    logins = [
        {"alias": issuer.alias, **{name: getattr(issuer, name) for name in _FIELDS}}
        for issuer in issuers
        if issuer.client_id
    ]
    page = {
        "authorization_servers": [issuer.issuer for issuer in issuers],
        "bearer_methods_supported": ["header"],
        _NAME: logins,
    }
    return json.dumps(page).encode()


async def published_logins(address: str, context: ssl.SSLContext | None) -> list[PublishedLogin]:
    """The logins that the broker at host:port publishes; raises UNAVAILABLE when it has none or does not answer."""
    scheme = "https" if context is not None else "http"
    page = await fetch_json(f"{scheme}://{address}{LOGIN_PATH}", context=context)
    entries = page.get(_NAME)
    found = [_published(one) for one in entries] if isinstance(entries, list) else []
    if not found:
        raise Unavailable(
            f"the broker at {address} names no provider for logins: its `auth` file has no issuer with a client_id"
        )
    return found


def _published(entry: Any) -> PublishedLogin:
    if not isinstance(entry, dict) or not all(isinstance(entry.get(name), str) for name in ("alias", *_FIELDS)):
        raise Unavailable("the broker's page about logins cannot be read; the broker and this command differ too much")
    return PublishedLogin(entry["alias"], LoginSettings(**{name: entry[name] for name in _FIELDS}))
