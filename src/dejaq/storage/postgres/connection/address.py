"""The address of a PostgreSQL store: its DSN, and how to show it without its password."""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from dejaq.errors import Code, error_of

SCHEMES = ("postgres", "postgresql")
_SECRETS = frozenset({"password", "sslpassword", "passfile"})
_RESERVED = frozenset({"public", "information_schema"})
_SCHEMA_BYTES_MAX = 63
_SHARD = re.compile(r"[0-9A-Za-z._\-]{1,64}")


def is_postgres(storage: str) -> bool:
    """Whether a setting names a PostgreSQL server."""
    return storage.partition("://")[0] in SCHEMES


def shard_dsns(storage: str) -> dict[str, str]:
    """The shards that a setting names, in order: addresses with spaces between them, each with or without a `name=`.

    The first shard without a name is `shard-1`.
    """
    found: dict[str, str] = {}
    for number, entry in enumerate(storage.split(), start=1):
        name, equals, dsn = entry.partition("=")
        if not equals or "://" in name:
            name, dsn = f"shard-{number}", entry
        if _SHARD.fullmatch(name) is None:
            raise error_of(
                Code.INVALID_ARGUMENT, f"a shard is named by 1 to 64 of 0-9 A-Z a-z . _ -, not {name[:80]!r}"
            )
        if name in found:
            raise error_of(Code.INVALID_ARGUMENT, f"two shards of the storage are named {name!r}")
        found[name] = dsn
    if len(set(found.values())) < len(found):
        raise error_of(Code.INVALID_ARGUMENT, "two shards of the storage have one address")
    return found


@dataclass(frozen=True, slots=True)
class Address:
    """A DSN and the schema in its database that belongs to one cluster. Its text form has no password."""

    dsn: str
    schema: str

    def __post_init__(self) -> None:
        if not is_postgres(self.dsn):
            raise error_of(Code.INVALID_ARGUMENT, "the storage's address must begin with postgres:// or postgresql://")
        try:
            _ = urlsplit(self.dsn).port if "," not in urlsplit(self.dsn).netloc else None
        except ValueError:
            raise error_of(Code.INVALID_ARGUMENT, f"the port in {self} is not a number up to 65535") from None
        name = self.schema
        if not name or len(name.encode()) > _SCHEMA_BYTES_MAX or "\x00" in name or '"' in name:
            raise error_of(Code.INVALID_ARGUMENT, f"a cluster of {name!r} cannot name a schema of PostgreSQL")
        if name in _RESERVED or name.startswith("pg_"):
            raise error_of(Code.INVALID_ARGUMENT, f"the cluster's name {name!r} is a schema of PostgreSQL's own")

    def __str__(self) -> str:
        return without_password(self.dsn)

    def __repr__(self) -> str:
        return f"Address({str(self)!r}, {self.schema!r})"


def shown(storage: str) -> str:
    """The setting of a storage in a form without passwords."""
    dsns = shard_dsns(storage)
    if len(dsns) == 1:
        return without_password(next(iter(dsns.values())))
    return " ".join(f"{name}={without_password(dsn)}" for name, dsn in dsns.items())


def without_password(dsn: str) -> str:
    """The DSN without its password."""
    try:
        parts = urlsplit(dsn)
        user, at, hosts = parts.netloc.rpartition("@")
        query = urlencode([(key, value) for key, value in parse_qsl(parts.query) if key not in _SECRETS], safe="/:,")
        return urlunsplit((parts.scheme, user.partition(":")[0] + at + hosts, parts.path, query, ""))
    except ValueError:
        return "postgres://..."
