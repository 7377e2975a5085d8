"""Which callers a broker knows, from the file of its setting `auth`."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

from dejaq.errors import Code, DejaqError, error_of
from dejaq.security.keys import ApiKey

# Signatures with a public key only: with a shared secret, an issuer's public key could be used to forge a token.
ALGORITHMS = ("RS256", "ES256", "PS256", "Ed25519", "RS384", "RS512", "ES384", "ES512", "PS384", "PS512")
ALGORITHMS_DEFAULT = ("RS256", "ES256", "PS256", "Ed25519")
SCOPE_DEFAULT = "openid profile email offline_access"
TOKEN_KINDS = ("access_token", "id_token")
_ALIAS = re.compile(r"[0-9A-Za-z._\-]{1,32}")
_ISSUERS_MAX = 32
_LOOPBACK = ("localhost", "127.0.0.1", "::1")
Section = TypeVar("Section")


@dataclass(frozen=True, slots=True)
class Issuer:
    """An OpenID provider whose tokens are accepted."""

    alias: str
    issuer: str
    audience: tuple[str, ...]
    algorithms: tuple[str, ...] = ALGORITHMS_DEFAULT
    # The claims with the user's short name and with the groups; a dot separates the names of nested claims.
    user_claim: str = "preferred_username"
    groups_claim: str = "groups"
    # Written before each user and group, so that users of two issuers with one name are two users.
    user_prefix: str = ""
    # The address of the keys, where the provider has no discovery document.
    jwks: str = ""
    # The authorities of the provider's own certificate, if they are not those of the operating system.
    ca: str = ""
    # How people log in: DejaQ's client id at the provider (empty: they cannot use `dejaq login`), what it asks
    # for, the kind of token that brokers get, and the resource (RFC 8707) where the provider asks for one.
    client_id: str = ""
    scope: str = SCOPE_DEFAULT
    token: str = "access_token"  # noqa: S105 - the name of a field
    resource: str = ""


@dataclass(frozen=True, slots=True)
class CertificateUser:
    """The user of a client certificate."""

    name: str
    user: str = ""
    groups: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class AuthSettings:
    """Every way in which a caller may prove who it is."""

    # Whether callers without credentials are served, as the principal `anonymous`.
    anonymous: bool = False
    # Callers with every right: `user:alice`, `user:ISSUER/alice`, `group:NAME`, `key:ID` or `certificate:NAME`.
    admins: frozenset[str] = frozenset()
    # The most producers and consumers that one principal may have open at one broker at one time.
    sessions_per_user_max: int = 1_000
    issuers: tuple[Issuer, ...] = ()
    keys: tuple[ApiKey, ...] = ()
    certificates: Mapping[str, CertificateUser] = field(default_factory=dict)


def load_settings(path: str) -> AuthSettings:
    """The settings in a TOML file; raises INVALID_ARGUMENT that names the file and the key."""
    try:
        values = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise error_of(Code.INVALID_ARGUMENT, f"auth file {path}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise error_of(Code.INVALID_ARGUMENT, f"auth file {path} is not TOML: {error}") from None
    try:
        return parse_settings(values)
    except DejaqError as error:
        raise error_of(Code.INVALID_ARGUMENT, f"auth file {path}: {error.message}") from None


def parse_settings(values: Mapping[str, Any]) -> AuthSettings:
    """The settings in parsed TOML; raises INVALID_ARGUMENT that names the key."""
    known: dict[str, type] = {
        "anonymous": bool,
        "sessions_per_user_max": int,
        "admins": list,
        "issuers": list,
        "keys": list,
        "certificates": list,
    }
    for name, value in values.items():
        if name not in known or type(value) is not known[name]:
            raise _wrong(name, f"not known, or not of the right kind; known: {', '.join(known)}")
    issuers = tuple(_issuer(one) for one in values.get("issuers", ()))
    for what in ("alias", "issuer"):
        if len({getattr(issuer, what) for issuer in issuers}) < len(issuers):
            raise _wrong("issuers", f"two of them have the same {what}")
    if len({issuer.user_prefix for issuer in issuers}) < len(issuers):
        raise _wrong("issuers.user_prefix", "different for each issuer, or users with one name are one user")
    if len(issuers) > _ISSUERS_MAX:
        raise _wrong("issuers", f"at most {_ISSUERS_MAX}")
    users = [_section(CertificateUser, "certificates", one) for one in values.get("certificates", ())]
    keys = tuple(_section(ApiKey, "keys", one) for one in values.get("keys", ()))
    for key in keys:
        if not re.fullmatch(r"[0-9a-f]{12}", key.id) or not re.fullmatch(r"[0-9a-f]{64}", key.digest):
            raise _wrong("keys", "id and digest are those that `dejaq key create --offline` prints")
    most = values.get("sessions_per_user_max", AuthSettings.__dataclass_fields__["sessions_per_user_max"].default)
    if not 1 <= most <= 1_000_000:
        raise _wrong("sessions_per_user_max", "from 1 to 1000000")
    return AuthSettings(
        anonymous=values.get("anonymous", False),
        sessions_per_user_max=most,
        admins=_admins(values.get("admins", [])),
        issuers=issuers,
        keys=keys,
        certificates={user.name: user for user in users},
    )


def _admins(names: list[object]) -> frozenset[str]:
    kinds = ("user:", "group:", "key:", "certificate:")
    if not all(isinstance(name, str) and name.startswith(kinds) and not name.endswith(":") for name in names):
        raise _wrong("admins", "a list of user:NAME, group:NAME, key:ID or certificate:NAME")
    return frozenset(map(str, names))


def _issuer(values: object) -> Issuer:
    issuer = _section(Issuer, "issuers", values)
    if not _ALIAS.fullmatch(issuer.alias):
        raise _wrong("issuers.alias", "1 to 32 characters of 0-9 A-Z a-z . _ -")
    if not issuer.audience:
        raise _wrong("issuers.audience", "at least one: a token for another service must not be accepted")
    unknown = sorted(set(issuer.algorithms) - set(ALGORITHMS))
    if unknown or not issuer.algorithms:
        raise _wrong("issuers.algorithms", f"at least one of {', '.join(ALGORITHMS)}")
    if issuer.token not in TOKEN_KINDS:
        raise _wrong("issuers.token", " or ".join(TOKEN_KINDS))
    for name in ("issuer", "jwks"):
        check_url(getattr(issuer, name), f"issuers.{name}")
    return issuer


def check_url(url: str, key: str) -> None:
    """Raise INVALID_ARGUMENT for an address that is not https, or http on this machine."""
    parts = urlsplit(url)
    if url and parts.scheme != "https" and not (parts.scheme == "http" and parts.hostname in _LOOPBACK):
        raise _wrong(key, "an https:// address: keys from an unprotected one could be anybody's")


def _section(kind: type[Section], key: str, values: object) -> Section:
    if not isinstance(values, dict):
        raise _wrong(key, "a list of tables: [[{key}]]")
    known = {one.name: one for one in fields(kind)}  # type: ignore[arg-type]
    taken: dict[str, Any] = {}
    for name, value in values.items():
        expected = known.get(name)
        if expected is None:
            raise _wrong(f"{key}.{name}", f"not known; known: {', '.join(known)}")
        if str(expected.type).startswith("tuple"):
            value = [value] if isinstance(value, str) else value
            if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
                raise _wrong(f"{key}.{name}", "a list of strings")
            taken[name] = tuple(value)
        elif (str(expected.type) == "int") != (type(value) is int) or not isinstance(value, int | str):
            raise _wrong(f"{key}.{name}", "a number" if str(expected.type) == "int" else "a string")
        else:
            taken[name] = value
    missing = [name for name, one in known.items() if one.default is MISSING and not taken.get(name)]
    if missing:
        raise _wrong(f"{key}.{missing[0]}", "given")
    return kind(**taken)


def _wrong(key: str, allowed: str) -> DejaqError:
    return error_of(Code.INVALID_ARGUMENT, f"{key} must be {allowed}")
