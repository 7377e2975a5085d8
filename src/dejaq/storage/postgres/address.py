"""Where a PostgreSQL store is: its DSN, and how to name it without its password."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from dejaq.errors import Code, error_of

SCHEMES = ("postgres", "postgresql")
_SECRETS = frozenset({"password", "sslpassword", "passfile"})
_RESERVED = frozenset({"public", "information_schema"})
_SCHEMA_BYTES_MAX = 63


def is_postgres(storage: str) -> bool:
    """Whether a setting names a PostgreSQL server."""
    return storage.partition("://")[0] in SCHEMES


@dataclass(frozen=True, slots=True)
class Address:
    """A DSN and the schema in its database that belongs to one cluster. Shown, it has no password."""

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


def without_password(dsn: str) -> str:
    """The DSN as it may be shown."""
    try:
        parts = urlsplit(dsn)
        user, at, hosts = parts.netloc.rpartition("@")
        query = urlencode([(key, value) for key, value in parse_qsl(parts.query) if key not in _SECRETS], safe="/:,")
        return urlunsplit((parts.scheme, user.partition(":")[0] + at + hosts, parts.path, query, ""))
    except ValueError:
        return "postgres://..."
